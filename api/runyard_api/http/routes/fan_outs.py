"""Routes of fan-outs: start one, follow its progress, and read its candidates."""

from __future__ import annotations

from time import monotonic
from typing import Final

from fastapi import APIRouter, Response
from pydantic import TypeAdapter, ValidationError

from runyard.client.fan_out import choice_of
from runyard.errors import (
    HitlNotAllowedError,
    InvalidCursorError,
    ResultExpiredError,
    RunNotFoundError,
    ThreadNotFoundError,
    TooManyCandidatesError,
)
from runyard.models import FanOutProgress, Message, new_id
from runyard.support.turns import turn

from ..answers import CandidatePage, FanOutAnswer
from ..idempotency import Idempotency
from ..problems import wrong_entry
from ..request_models import FanOut, MessageInput
from .arguments import Paging, RunId, ThreadId, Wait, patience
from .documentation import operation
from .forks import JOB, REFUSED, later
from .replies import reply
from .route_access import Reads, Route, Writes
from .runs import OF_RUN, OF_THREAD

router = APIRouter(tags=["forks"], route_class=Route)

_MESSAGE: Final[TypeAdapter[str | MessageInput]] = TypeAdapter(str | MessageInput)


@router.post(
    f"{OF_THREAD}/fork_many",
    **operation(
        *REFUSED,
        HitlNotAllowedError,
        ResultExpiredError,
        TooManyCandidatesError,
        s200=(FanOutAnswer, "The first page of the answers, and the index of the winner."),
        s202=JOB,
    ),
)
async def fork_many(caller: Writes, thread_id: ThreadId, body: FanOut, key: Idempotency, wait: Wait = 30.0) -> Response:
    """Try several messages on the same snapshot. Return the answers and the winner. With `stop` = `first`, the winner is the
    first success. With `judge`, the judge chooses the winner. With neither, `winner` is null. Pass `next` as `cursor` to
    `…/candidates` of the fork job to get further answers."""
    messages = await _messages(body)
    run_id = body.run_id or key.id("fork_many", thread_id) or new_id()
    try:
        with caller.seat().permit:  # before the accept, so that a refused request creates no fork job
            handle = await caller.client.enqueue_fork_many(
                thread_id, run_id,
                messages=messages, after_run_id=body.after_run_id, threads=body.threads, stop=body.stop, judge=body.judge,
                max_parallel=body.max_parallel, agent=body.agent, timeout=body.timeout,
            )  # fmt: skip
            winner, verdict = choice_of(await handle.result(patience(wait, caller)))
    except TimeoutError:
        return await later(caller, thread_id, run_id)
    page, progress = await handle.candidates(), await handle.progress()
    return reply(
        FanOutAnswer.model_validate(
            {
                "run_id": handle.run_id, "results": page.items, "next": page.next,
                "winner": winner, "verdict": verdict, "usage": progress.usage,
            }
        )
    )  # fmt: skip


async def _messages(body: FanOut) -> list[str | Message]:
    """Return the messages of ``body``. The event loop runs between them. Raises RequestValidationError for an invalid
    message."""
    messages: list[str | Message] = []
    since = monotonic()
    for place, item in enumerate(body.messages):
        try:
            found = _MESSAGE.validate_python(item)
        except ValidationError as error:
            raise wrong_entry(error, body, "messages", place) from None
        messages.append(found if isinstance(found, str) else found.message())
        since = await turn(since)
    return messages


@router.get(
    f"{OF_RUN}/progress",
    **operation(
        RunNotFoundError, ThreadNotFoundError, ResultExpiredError, s200=(FanOutProgress, "The counts of the candidates.")
    ),
)
async def read_progress(caller: Reads, thread_id: ThreadId, run_id: RunId) -> Response:
    """Read the number of candidates of a fan-out by status, and their usage so far."""
    return reply(await caller.client.fan_out_progress(thread_id, run_id))


@router.get(
    f"{OF_RUN}/candidates",
    **operation(
        RunNotFoundError,
        ThreadNotFoundError,
        ResultExpiredError,
        InvalidCursorError,
        s200=(CandidatePage, "A page of the candidates."),
    ),
)
async def read_candidates(caller: Reads, thread_id: ThreadId, run_id: RunId, paging: Paging) -> Response:
    """Read the candidates of a fan-out in the order of its messages, while it runs and afterwards. A page has about 8 MiB at
    most."""
    page = await caller.client.candidates(thread_id, run_id, **paging)
    return reply(CandidatePage.model_construct(items=page.items, next=page.next))
