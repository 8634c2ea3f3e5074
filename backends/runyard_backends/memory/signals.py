"""The verb that sends a signal to a thread."""

from __future__ import annotations

from typing import Any

from runyard.domain.states import RunStatus
from runyard.domain.waits import Signal, check_signal
from runyard.errors import TooManySignalsError
from runyard.ports.results import Signalled
from runyard.ports.scheduling import Effects

from . import hitl_answers, lanes, waits
from .state import Database, ThreadState, job
from .values import check_json


def signal(db: Database, thread: ThreadState, name: str, value: Any, signal_id: str, sent_by: str | None) -> Signalled:
    """Send a signal to a thread. If the thread has a signal with the same id, return that signal. If the run that took this
    signal is queued, also return the run's job. Raises SignalConflictError, TooManySignalsError, InvalidInputError."""
    check_signal(name, value, signal_id, sent_by)
    if (known := db.signals.get((thread.key, signal_id))) is not None:
        known.signal.check_same(name, value)
        taker = thread.runs.get(known.signal.run_id or "")
        effects = Effects()
        if taker is not None and taker.run.status is RunStatus.QUEUED:
            effects.jobs.append(job(thread, taker, db.now()))
        return Signalled(known.signal.model_copy(deep=True), False, effects)
    effects = lanes.admit_thread(db, thread)
    effects += hitl_answers.fire_deadlines(db, thread)
    fields = {"signal_id": signal_id, "thread_id": thread.id, "name": name, "sent_by": sent_by, "sent_at": db.now()}
    try:
        sent = waits.send(db, thread, Signal(value=check_json(value, "value"), **fields))
    except TooManySignalsError:
        db.tell(effects)
        raise
    effects += sent.effects
    sent.effects = effects
    return sent
