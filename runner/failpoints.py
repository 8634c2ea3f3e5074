"""Failpoints: what happens to a process before and after its calls of the ports, by the environment. For tests of runyard.

``RUNYARD_FAILPOINTS`` holds rules separated by ``;``. A rule is ``port.verb.moment=action``, as in::

    RUNYARD_FAILPOINTS="runs.complete.after=crash;runs.append.before[r1]=delay(0.5)*3"

* ``port.verb``: a verb of :mod:`runner.ports`, such as ``runs.claim`` or ``scheduler.claim``; ``*`` stands for any text, so
  ``scheduler.*`` and ``*`` are patterns. ``moment``: ``before`` the call is made, or ``after`` its answer came and before the
  caller has it: a verb of a store has committed by then.
* ``[run id]``, optional: only calls that name this run.
* ``action``: ``crash`` (SIGKILL to the own process), ``error`` (BackendUnavailableError: before the call, the request was lost;
  after it, the answer), ``delay(seconds)``, ``pause(path)`` (until the file exists), ``note(path)`` (appends the point's name
  as a line).
* ``*times``, optional: the rule applies so often, then no more. ``+skip``, optional: not to the first so many calls.

Several rules for one point apply in their order. Nothing of this is loaded, and no call goes through it, unless the variable is
set: :func:`runner.registry.connect` puts the proxies of :func:`armed` around a backend.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import re
import signal
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from . import eventwriter, ports
from .errors import BackendUnavailableError, InvalidInputError

T = TypeVar("T")

VARIABLE: Final = "RUNYARD_FAILPOINTS"

PORTS: Final[Mapping[str, Sequence[type]]] = {
    "checkpointer": (ports.Checkpointer,),
    "threads": (ports.ThreadStore,),
    "runs": (ports.RunStore,),
    "workers": (ports.WorkerStore,),
    "scheduler": (ports.Scheduler,),
    "events": (ports.EventLog, eventwriter.ManyAppender),
}
"""The parts of a backend and their protocols."""

MOMENTS: Final = ("before", "after")

_RULE: Final = re.compile(
    r"(?P<point>[\w.*]+)(?:\[(?P<run>[^\]]+)\])?=(?P<action>\w+)(?:\((?P<argument>[^)]*)\))?(?:\*(?P<times>\d+))?(?:\+(?P<skip>\d+))?"
)


def verbs() -> list[str]:
    """Every ``port.verb`` that a failpoint can be at: the coroutine methods of the ports."""
    return [
        f"{port}.{name}"
        for port, protocols in PORTS.items()
        for protocol in protocols
        for name, member in vars(protocol).items()
        if inspect.iscoroutinefunction(member)
    ]


@dataclass(slots=True)
class Rule:
    """One rule of the variable. ``times`` and ``skip`` count down."""

    point: str
    action: str
    argument: str = ""
    run: str | None = None
    times: int | None = None
    skip: int = 0

    def matches(self, point: str) -> bool:
        return fnmatchcase(point, self.point) or fnmatchcase(point.rpartition(".")[0], self.point)

    def due(self, runs: Callable[[], set[str]]) -> bool:
        """True if the rule applies to this call, which is counted."""
        if self.times == 0 or (self.run is not None and self.run not in runs()):
            return False
        if self.skip:
            self.skip -= 1
            return False
        if self.times is not None:
            self.times -= 1
        return True


def parse(text: str) -> list[Rule]:
    """The rules in ``text``. Raises InvalidInputError for one that cannot be read, or that is at no point of any port."""
    rules = []
    known = [f"{verb}.{moment}" for verb in verbs() for moment in MOMENTS]
    for part in filter(None, (part.strip() for part in text.split(";"))):
        found = _RULE.fullmatch(part)
        if found is None or found["action"] not in ACTIONS:
            raise InvalidInputError(
                f"{VARIABLE}: {part!r} is no rule; write port.verb.before=action with {', '.join(ACTIONS)}", field=VARIABLE
            )
        times = int(found["times"]) if found["times"] else None
        rule = Rule(found["point"], found["action"], found["argument"] or "", found["run"], times, int(found["skip"] or 0))
        if not any(rule.matches(point) for point in known):
            raise InvalidInputError(
                f"{VARIABLE}: there is no point {rule.point!r}; verbs are {', '.join(verbs())}", field=VARIABLE
            )
        rules.append(rule)
    return rules


@functools.cache
def of_process(text: str) -> Sequence[Rule]:
    """The rules in ``text``, counted for the whole process, however many backends it connects."""
    return parse(text)


def armed(backend: T, rules: Sequence[Rule]) -> T:
    """``backend`` with ``rules`` around its parts, also for its other tenants."""
    return cast(T, _Backend(backend, rules))


class _Backend:
    """A backend whose parts are armed."""

    def __init__(self, inner: Any, rules: Sequence[Rule]) -> None:
        self._inner, self._rules = inner, rules

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name in PORTS:
            found = _Port(name, found, self._rules)
            setattr(self, name, found)
        return found

    def for_tenant(self, tenant: str) -> Any:
        return _Backend(self._inner.for_tenant(tenant), self._rules)


class _Port:
    """One part of a backend: its verbs, each between its rules."""

    def __init__(self, name: str, inner: Any, rules: Sequence[Rule]) -> None:
        self._name, self._inner, self._rules = name, inner, rules

    def __getattr__(self, verb: str) -> Any:
        method = getattr(self._inner, verb)
        before, after = ([rule for rule in self._rules if rule.matches(f"{self._name}.{verb}.{m}")] for m in MOMENTS)
        if not inspect.iscoroutinefunction(method) or not (before or after):
            return method

        @functools.wraps(method)
        async def between(*args: Any, **kwargs: Any) -> Any:
            await self._apply(before, f"{verb}.before", args, kwargs)
            answer = await method(*args, **kwargs)
            await self._apply(after, f"{verb}.after", args, kwargs)
            return answer

        setattr(self, verb, between)
        return between

    async def _apply(self, rules: Sequence[Rule], point: str, *call: Any) -> None:
        for rule in rules:
            if rule.due(lambda: set(runs_in(call))):
                await ACTIONS[rule.action](rule.argument, f"{self._name}.{point}")


def runs_in(value: Any) -> Iterator[str]:
    """The run ids in the arguments of a call: a verb names a run by its id alone, or in a request, an attempt or a job."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from runs_in(list(value.values()))
    elif isinstance(value, Sequence | set):
        for item in value:
            yield from runs_in(item)
    elif isinstance(run_id := getattr(value, "run_id", None), str):
        yield run_id
    elif is_dataclass(value):
        for field in fields(value):
            if field.name in ("attempt", "job", "ref"):
                yield from runs_in(getattr(value, field.name))


async def _crash(_argument: str, _point: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def _error(_argument: str, point: str) -> None:
    raise BackendUnavailableError(f"failpoint {point}")


async def _delay(argument: str, _point: str) -> None:
    await asyncio.sleep(float(argument))


async def _pause(argument: str, _point: str) -> None:
    while not Path(argument).exists():  # noqa: ASYNC110, ASYNC240 - the file is another process's
        await asyncio.sleep(0.01)


async def _note(argument: str, point: str) -> None:
    file = os.open(argument, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, f"{point}\n".encode())
    finally:
        os.close(file)


ACTIONS: Final[Mapping[str, Callable[[str, str], Awaitable[None]]]] = {
    "crash": _crash,
    "error": _error,
    "delay": _delay,
    "pause": _pause,
    "note": _note,
}
