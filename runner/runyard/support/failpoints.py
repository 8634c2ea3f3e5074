"""Failpoints: faults before and after calls of the ports, for tests of runyard. An environment variable sets the failpoints.

``RUNYARD_FAILPOINTS`` has rules separated by ``;``. A rule is ``port.verb.moment=action``, as in::

    RUNYARD_FAILPOINTS="runs.complete.after=crash;runs.append.before[r1]=delay(0.5)*3"

- ``port.verb``: a verb of :mod:`runyard.ports.stores`, such as ``runs.claim`` or ``scheduler.claim``. ``*`` matches any text:
  ``scheduler.*`` and ``*`` are valid.
- ``moment``: ``before`` or ``after`` the call. At ``after``, the store has committed, but the caller has no answer yet.
- ``[run id]``, optional: the rule applies to calls with this run id only.
- ``action``: ``crash`` kills this process with SIGKILL. ``error`` raises BackendUnavailableError, as if the request
  (``before``) or the answer (``after``) was lost. ``delay(seconds)`` waits. ``pause(path)`` waits until the file exists.
  ``note(path)`` appends a line with the name of the point to the file.
- ``*times``, optional: the number of calls to which the rule applies.
- ``+skip``, optional: the number of calls that the rule skips first.

Several rules for one point apply in the order in which they are written. If the variable is set,
:func:`runyard.support.backend_urls.connect` puts the proxies of :func:`armed` around a backend. Otherwise this module is not
loaded.
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
from typing import Any, Final, TypeVar

from ..errors import BackendUnavailableError, InvalidInputError
from ..ports import fan_outs, graph_checkpoints, runs, scheduling, stores

T = TypeVar("T")

VARIABLE: Final = "RUNYARD_FAILPOINTS"

PORTS: Final[Mapping[str, Sequence[type]]] = {
    "checkpointer": (stores.Checkpointer,),
    "threads": (stores.ThreadStore,),
    "runs": (runs.RunStore,),
    "workers": (stores.WorkerStore,),
    "scheduler": (scheduling.Scheduler,),
    "events": (scheduling.EventLog,),
    "fan_outs": (fan_outs.FanOutStore,),
    "graphs": (graph_checkpoints.GraphCheckpointStore,),
}
"""The attributes of a backend that can have failpoints, and the protocols of these attributes."""

MOMENTS: Final = ("before", "after")

_RULE: Final = re.compile(
    r"(?P<point>[\w.*]+)(?:\[(?P<run>[^\]]+)\])?=(?P<action>\w+)(?:\((?P<argument>[^)]*)\))?(?:\*(?P<times>\d+))?(?:\+(?P<skip>\d+))?"
)


def verbs() -> list[str]:
    """Return every ``port.verb`` that can have a failpoint. The verbs are the coroutine methods of the ports."""
    return [
        f"{port}.{name}"
        for port, protocols in PORTS.items()
        for protocol in protocols
        for name, member in vars(protocol).items()
        if inspect.iscoroutinefunction(member)
    ]


@dataclass(slots=True)
class Rule:
    """One rule of the variable.

    ``times``: the number of further calls to which the rule applies, or None for all calls. ``skip``: the number of calls that
    the rule still skips. The skipped calls come first.
    """

    point: str
    action: str
    argument: str = ""
    run: str | None = None
    times: int | None = None
    skip: int = 0

    def matches(self, point: str) -> bool:
        return fnmatchcase(point, self.point) or fnmatchcase(point.rpartition(".")[0], self.point)

    def due(self, runs: Callable[[], set[str]]) -> bool:
        """Count the call. Return whether the rule applies to the call."""
        if self.times == 0 or (self.run is not None and self.run not in runs()):
            return False
        if self.skip:
            self.skip -= 1
            return False
        if self.times is not None:
            self.times -= 1
        return True


def parse(text: str) -> list[Rule]:
    """Return the rules in ``text``.

    Raise InvalidInputError for an unreadable rule, and for a rule that matches no failpoint.
    """
    rules = []
    known = [f"{verb}.{moment}" for verb in verbs() for moment in MOMENTS]
    for part in filter(None, (part.strip() for part in text.split(";"))):
        found = _RULE.fullmatch(part)
        if found is None or found["action"] not in ACTIONS:
            raise InvalidInputError(
                f"{VARIABLE}: {part!r} is not a rule; write VERB.before=ACTION, where ACTION is one of {', '.join(ACTIONS)}",
                field=VARIABLE,
            )
        times = int(found["times"]) if found["times"] else None
        rule = Rule(found["point"], found["action"], found["argument"] or "", found["run"], times, int(found["skip"] or 0))
        if not any(rule.matches(point) for point in known):
            raise InvalidInputError(
                f"{VARIABLE}: no failpoint matches {rule.point!r}; a failpoint is VERB.before or VERB.after, where VERB is "
                f"one of {', '.join(verbs())}",
                field=VARIABLE,
            )
        rules.append(rule)
    return rules


@functools.cache
def of_process(text: str) -> Sequence[Rule]:
    """Return the rules in ``text``. All backends of the process count the calls of these rules together."""
    return parse(text)


def armed(backend: T, rules: Sequence[Rule]) -> T:
    """Replace each port of ``backend`` by a proxy that applies ``rules``. Do the same for the backends that its ``for_tenant``
    returns. Return ``backend``.

    The ports are replaced in place. Objects that the backend makes from its ports, such as its streams, therefore also have
    the failpoints. A backend that already has rules stays unchanged, because ``for_tenant`` may return the same backend again.
    """
    part: Any = backend
    if isinstance(part.runs, _Port):
        return backend
    for name in PORTS:
        setattr(part, name, _Port(name, getattr(part, name), rules))
    for_tenant = part.for_tenant
    part.for_tenant = lambda tenant: armed(for_tenant(tenant), rules)
    return backend


class _Port:
    """A proxy of one port of a backend. The calls of its verbs apply the rules."""

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
    """Yield the possible run ids in the arguments of a call: all strings, and the run ids of requests, attempts and jobs."""
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
    while not Path(argument).exists():  # noqa: ASYNC110, ASYNC240 - another process makes the file
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
