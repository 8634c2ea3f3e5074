"""The route that accepts many prompts in one request."""

from __future__ import annotations

from time import monotonic

from fastapi import APIRouter, Request, Response
from pydantic import ValidationError

from runyard.client.prompts import Prompt as ClientPrompt
from runyard.client.run_handle import RunHandle
from runyard.domain.list_entries import entry
from runyard.errors import BackendUnavailableError, InvalidRequestError, RunyardError
from runyard.support.turns import turn

from ..answers import PromptOutcome, PromptOutcomes
from ..batch_bodies import BatchedPrompt, PromptBatch
from ..idempotency import Idempotency, Key
from ..problems import invalid_request, problem_of, request_id_of, wrong_entry
from .documentation import operation
from .replies import reply_lists
from .route_access import Route, Writes

router = APIRouter(tags=["runs"], route_class=Route)


@router.post("/v1/runs", **operation(s200=(PromptOutcomes, "One outcome per prompt, in order.")))
async def create_runs(request: Request, caller: Writes, body: PromptBatch, key: Idempotency) -> Response:
    """Accept up to 1,000 prompts and return one outcome per prompt, in order. If one prompt is refused, the other prompts are
    still accepted. Unknown threads are created.

    If a prompt does not fit the schema, only this prompt is refused. If the body has no list of up to 1,000 prompts, the whole
    request is refused. Prompts of one thread are accepted in their order. A repetition of a prompt with the same `run_id`
    returns the same run.
    """
    checked = await _checked(body, key)
    sent = [one for one in checked if isinstance(one, ClientPrompt)]
    stored = await caller.client.enqueue_many(sent)
    lost = [one for one in stored if isinstance(one, BackendUnavailableError)]
    if lost and len(lost) == len(sent):  # the client repeats a request that has this error as its response
        raise lost[0]
    found, request_id, since = iter(stored), request_id_of(request.scope), monotonic()
    items = []
    for one in checked:
        items.append(_outcome(next(found) if isinstance(one, ClientPrompt) else one, request_id))
        since = await turn(since)
    return await reply_lists(PromptOutcomes.model_construct(items=[]), items=items)


async def _checked(body: PromptBatch, key: Key) -> list[ClientPrompt | InvalidRequestError]:
    """Return each prompt of ``body``, or an error that names its wrong fields. The event loop runs between the prompts."""
    checked: list[ClientPrompt | InvalidRequestError] = []
    since = monotonic()
    for place, item in enumerate(body.items):
        try:
            found = BatchedPrompt.model_validate(item)
            checked.append(found.prompt(key.id("batch", found.thread_id, str(place))))
        except ValidationError as error:
            checked.append(invalid_request(wrong_entry(error, body, "items", place)))
        since = await turn(since)
    return checked


def _outcome(outcome: RunHandle | RunyardError, request_id: str) -> PromptOutcome:
    if isinstance(outcome, RunyardError):
        return PromptOutcome.model_construct(created=False, run=None, problem=problem_of(outcome, request_id))
    run = outcome.accepted
    assert run is not None
    # Large values of an existing run are left out already.
    return PromptOutcome.model_construct(created=outcome.created, run=entry(run) if outcome.created else run, problem=None)
