"""Values are nested 100 levels deep at most, whoever brings them; nothing of a deeper one is kept."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
from pydantic import JsonValue

from runner import errors
from runner.exchange import ThreadRequest, Write
from runner.models import ErrorInfo, HitlRequest, JsonObject, new_id
from runner.nesting import MAX_NESTING
from runner.states import RunStatus

from .checkpointer import keeper
from .world import T, World, said

pytestmark = pytest.mark.asyncio


def within(levels: int) -> JsonObject:
    """An object so many levels deep."""
    value: JsonValue = {}
    for _ in range(levels - 2):
        value = [value]
    return {"k": value}


DEEPEST, TOO_DEEP, BOTTOMLESS = (within(levels) for levels in (MAX_NESTING, MAX_NESTING + 1, 100_000))


async def refused(field: str, call: Callable[[], Awaitable[object]]) -> None:
    with pytest.raises(errors.InvalidInputError, match=f"more than {MAX_NESTING}") as error:
        await call()
    assert error.value.details == {"field": field, "most": MAX_NESTING}


class TestNesting:
    async def test_as_deep_as_may_be(self, world: World) -> None:
        """What is stored is read, and can be stored again where it came from."""
        made = await world.threads.create_thread(ThreadRequest(thread_id=T, extra={"a": DEEPEST["k"]}, config=DEEPEST))
        assert made.thread.config == DEEPEST
        await world.threads.update_thread(T, extra={"b": DEEPEST["k"]})
        await world.checkpointer.save_extra(T, {"c": DEEPEST["k"]})
        await world.suspended("r1", "q", on_deadline=DEEPEST, answer_schema={})
        answered = await world.runs.respond(DEEPEST, thread_id=T)
        assert (answered.request.answer, answered.request.on_deadline) == (DEEPEST, DEEPEST)
        claim = await world.claim("r1")
        assert claim.attempt is not None and claim.extra == dict.fromkeys("abc", DEEPEST["k"])
        await world.runs.finish_step(claim.attempt, "k", DEEPEST)
        await world.finish(claim.attempt, extra={"d": DEEPEST["k"]}, result=DEEPEST)
        assert (await world.run("r1")).result == DEEPEST
        assert (await world.start("r2", metadata=DEEPEST)).run_id == "r2"

    @pytest.mark.parametrize("value", [TOO_DEEP, BOTTOMLESS], ids=["by one", "by far"])
    async def test_what_a_host_brings(self, world: World, value: JsonObject) -> None:
        """R15, F3: no thread comes of it, and the one that is there stays as it was."""
        await refused("extra", lambda: world.threads.create_thread(ThreadRequest(thread_id=T, extra=value)))
        await refused("config", lambda: world.threads.create_thread(ThreadRequest(thread_id=T, config=value)))
        await refused("metadata", lambda: world.accept("r", metadata=value))
        await refused("extra", lambda: world.checkpointer.save_extra(T, value))
        assert await world.threads.thread(T) is None
        await world.turn("r1")
        await refused("extra", lambda: world.threads.update_thread(T, extra=value))
        await refused("metadata", lambda: world.fork("f", metadata=value))
        before, after = await world.threads.thread(T), await world.threads.thread("f")
        assert before is not None and (before.extra, after) == ({}, None)

    async def test_metadata_of_a_fork_leaves_room(self, world: World) -> None:
        """F3: it becomes a key of the fork's extra, which can be saved as it was read."""
        await world.turn("r1")
        await refused("metadata", lambda: world.fork("f", metadata=DEEPEST))
        extra = (await world.fork("f", metadata=within(MAX_NESTING - 1))).thread.extra
        await world.checkpointer.save_extra("f", extra)

    @pytest.mark.parametrize("value", [TOO_DEEP, BOTTOMLESS], ids=["by one", "by far"])
    async def test_an_answer(self, world: World, value: JsonObject) -> None:
        """H3: the question still waits."""
        await world.suspended("r1", "q", answer_schema={"$ref": "#/$defs/any", "$defs": {"any": {}}})
        await refused("answer", lambda: world.runs.respond(value, thread_id=T))
        assert (await world.runs.respond(DEEPEST, thread_id=T)).created

    @pytest.mark.parametrize("value", [TOO_DEEP, BOTTOMLESS], ids=["by one", "by far"])
    async def test_what_an_attempt_brings(self, world: World, value: JsonObject) -> None:
        """R6: nothing of the write is kept, and the attempt goes on."""
        attempt = await world.start("r1")
        await refused("result", lambda: world.runs.finish_step(attempt, "k", value))
        error = ErrorInfo(code="x", message="x").model_copy(update={"details": value})
        await refused("error", lambda: world.runs.fail(Write(attempt=attempt), error))
        await refused("error", lambda: world.runs.release(attempt, error=error))
        for field in ("extra", "result"):
            fields: dict[str, Any] = {field: value}
            write = Write(attempt=attempt, messages=[said("no")], **fields)
            await refused(field, partial(world.finish, attempt, said("no"), **fields))
            await refused(field, partial(world.runs.suspend, write, [HitlRequest()]))
            await refused(field, partial(world.runs.fail, write, ErrorInfo(code="x", message="x")))
        for field in ("payload", "answer_schema", "on_deadline"):
            requests = [HitlRequest(), HitlRequest().model_copy(update={field: value})]
            await refused(field, partial(world.ask, attempt, *requests, messages=[said("no")]))
        ledger = await world.runs.ledger(attempt)
        assert (ledger.steps, ledger.requests) == ({}, {})
        assert (await world.finish(attempt, said("yes"))).status is RunStatus.COMPLETED
        assert await world.texts() == ["hi", "yes"]

    async def test_requests_of_a_checkpointer(self, world: World) -> None:
        """R15: none of them is kept."""
        request = HitlRequest(request_id=new_id(), payload=TOO_DEEP)
        await refused("payload", lambda: world.checkpointer.save_pending_request(T, request))
        requests = [HitlRequest(request_id=new_id()), request]
        await refused("payload", lambda: keeper(world).save_requests(T, requests, run_id="x"))
        assert await keeper(world).load_requests(T) == []
