"""The route of signals. A signal is a named value that a program sends to a thread. A run that waits for this name takes the
signal."""

from __future__ import annotations

from fastapi import APIRouter, Response

from runyard.domain.waits import Signal
from runyard.errors import SignalConflictError, ThreadNotFoundError, TooManySignalsError

from ..idempotency import Idempotency
from ..request_models import SendSignal
from .arguments import ThreadId
from .documentation import operation
from .replies import reply
from .route_access import Responds, Route

router = APIRouter(tags=["signals"], route_class=Route)


@router.post(
    "/v1/threads/{thread_id}/signals",
    **operation(
        ThreadNotFoundError,
        SignalConflictError,
        TooManySignalsError,
        s200=(Signal, "The signal."),
    ),
)
async def send_signal(caller: Responds, thread_id: ThreadId, body: SendSignal, key: Idempotency) -> Response:
    """Send a signal to a thread. A run that waits for the name continues. Otherwise the signal stays until a run waits for it.

    A repetition with the same `signal_id` changes nothing.
    """
    signal_id = body.signal_id or key.id("signal", thread_id)
    sent_by = caller.principal.name or caller.principal.id
    return reply(await caller.client.signal(thread_id, body.name, body.value, signal_id=signal_id, sent_by=sent_by))
