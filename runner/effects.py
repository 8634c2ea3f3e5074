"""Carry out what a commit asked of Redis.

The verb has been decided in Postgres when its :class:`~runner.exchange.Effects` are in hand, so nothing here may undo or refuse
it: a Redis that does not answer costs latency, and the reconciler submits what was not.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

from .errors import RunyardError
from .models import Event

if TYPE_CHECKING:
    from .exchange import Effects
    from .ports import Backend

PATIENCE: Final = 2.0
"""Seconds that a caller waits for Redis after its verb was committed."""


async def apply(effects: Effects, backend: Backend, *, patience: float = PATIENCE) -> bool:
    """Submit the jobs, write the events and hint the cancels of ``effects``.

    ``patience``: seconds for all of it. Returns False, after a warning in the log, if Redis did not take everything; that never
    raises, since losing Redis costs latency and never a run.
    """
    if not effects:
        return True
    if effects.events:
        from . import metrics  # prometheus-client: half of a light client's import time

        metrics.count_ends(effects.events)
    if getattr(backend, "scheduler", None) is None:
        _warn("connected without Redis; the reconciler will submit", **_counts(effects))
        return False
    done = True
    try:
        async with asyncio.timeout(patience):
            for name, call in _calls(effects, backend):
                done = await _attempt(name, call) and done
    except TimeoutError:
        _warn("redis did not answer in time; the reconciler will submit", patience=patience, **_counts(effects))
        return False
    return done


def _calls(effects: Effects, backend: Backend) -> Iterator[tuple[str, Callable[[], Awaitable[None]]]]:
    if jobs := effects.submissions:
        yield "submit", partial(backend.scheduler.submit, jobs)
    if effects.cancels:
        yield "hint_cancel", partial(backend.scheduler.hint_cancel, effects.cancels)
    for thread_key, events in _by_thread(effects).items():
        yield "append_events", partial(backend.events.append, thread_key, events)


def _by_thread(effects: Effects) -> dict[int, list[Event]]:
    grouped: defaultdict[int, list[Event]] = defaultdict(list)
    for event in effects.events:
        grouped[event.ref.thread_key].append(
            Event(id=event.event_id, type=event.type, thread_id=event.thread_id, run_id=event.ref.run_id, data=event.data)
        )
    return grouped


async def _attempt(name: str, call: Callable[[], Awaitable[None]]) -> bool:
    try:
        await call()
    except (RunyardError, OSError) as error:
        _warn("redis refused an effect; the reconciler will make up for it", effect=name, error=str(error))
        return False
    return True


def _warn(what: str, **fields: object) -> None:
    import structlog  # brings a terminal renderer along: half of a light client's import time

    structlog.get_logger("runyard.effects").warning(what, **fields)


def _counts(effects: Effects) -> dict[str, int]:
    return {"jobs": len(effects.jobs), "events": len(effects.events), "cancels": len(effects.cancels)}
