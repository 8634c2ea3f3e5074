"""After a client's commit in Postgres, make the changes in Redis that the commit requires.

These changes are the :class:`~runyard.ports.scheduling.Effects` of the commit. A failure in this module does not undo the
commit. If Redis does not answer, the reconciler submits the jobs later. In a worker, :mod:`runyard.worker.effects_sender`
applies the effects of many commits with one call.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

from ..domain.events import Event
from ..errors import RunyardError

if TYPE_CHECKING:
    from ..ports.scheduling import Effects
    from ..ports.stores import Backend

EFFECTS_TIMEOUT_SECONDS: Final = 2.0
"""Seconds for which a caller waits for Redis after its call has committed in Postgres."""


async def apply_effects(effects: Effects, backend: Backend, *, patience: float = EFFECTS_TIMEOUT_SECONDS) -> bool:
    """Delete the streams, submit the jobs, send the cancel hints and write the events of ``effects``.

    The streams are deleted first, because no later call deletes a stream that this call did not delete in time.

    ``patience``: seconds for all calls together. If a call fails, log a warning and return False. An error of Redis is logged
    and not raised, because it only delays runs.
    """
    if not effects:
        return True
    if effects.events:
        from ..support import metrics  # prometheus-client takes half of a client's import time

        metrics.count_ends(effects.events)
    done = True
    try:
        async with asyncio.timeout(patience):
            for name, call in _calls(effects, backend):
                done = await _attempt(name, call, effects) and done
    except TimeoutError:
        _warn("effects_timed_out", effects, timeout_seconds=patience)
        return False
    return done


def _calls(effects: Effects, backend: Backend) -> Iterator[tuple[str, Callable[[], Awaitable[None]]]]:
    if effects.deleted:
        yield "forget_streams", partial(backend.events.forget, effects.deleted)
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


async def _attempt(name: str, call: Callable[[], Awaitable[None]], effects: Effects) -> bool:
    try:
        await call()
    except (RunyardError, OSError) as error:
        _warn("effect_failed", effects, effect=name, error=str(error))
        return False
    return True


def _warn(event: str, effects: Effects, **fields: object) -> None:
    """Log that an effect failed, with the number of ``effects`` of each kind.

    The reconciler submits the jobs that Redis did not get.
    """
    import structlog  # this import takes as long as the other imports of a client together

    jobs, events, hints = len(effects.submissions), len(effects.events), len(effects.cancels)
    counts = {"jobs_to_submit": jobs, "events_to_write": events, "cancel_hints_to_send": hints}
    refs = [*(job.ref for job in effects.submissions), *(event.ref for event in effects.events), *effects.cancels]
    first = {"first_thread_key": refs[0].thread_key, "first_run_id": refs[0].run_id} if refs else {}
    structlog.get_logger("runyard.effects").warning(event, **fields, **counts, **first)
