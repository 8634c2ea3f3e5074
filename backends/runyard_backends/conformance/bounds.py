"""Limits on the nesting, the number, the digits and the bytes of values from every source. A value beyond a limit is not
stored."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from runyard import errors
from runyard.domain.size_limits import (
    MAX_BITS,
    MAX_BYTES,
    MAX_EXTRA,
    MAX_NESTING,
    MAX_PARTS,
    MAX_RESULT_VALUES,
    MAX_VALUES,
    MESSAGE_BYTES,
)
from runyard.domain.states import RunStatus
from runyard.models import (
    ErrorInfo,
    HitlRequest,
    JsonObject,
    JsonValue,
    Limit,
    Message,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    new_id,
)
from runyard.ports.commands import AcceptRequest, Cut, FanOut, ForkRequest, ThreadRequest, Write

from .world import T, World, said, user

pytestmark = pytest.mark.asyncio


def within(levels: int) -> JsonObject:
    """Make an object with the given number of levels."""
    value: JsonValue = {}
    for _ in range(levels - 2):
        value = [value]
    return {"k": value}


DEEPEST, TOO_DEEP, BOTTOMLESS = (within(levels) for levels in (MAX_NESTING, MAX_NESTING + 1, 100_000))


async def refused(field: str, call: Callable[[], Awaitable[object]]) -> None:
    with pytest.raises(errors.InvalidInputError, match=f"more than {MAX_NESTING}") as error:
        await call()
    assert error.value.details == {"field": field, "most": MAX_NESTING}


class TestWholeMessages:
    @pytest.mark.parametrize(
        "made",
        [
            {"stop_reason": "length"},
            {"content": "text"},
            {"content": [TextPart(text="x").model_copy(update={"text": None})]},
            {"content": [TextPart(text="x").model_copy(update={"text": b"\xff"})]},
            {"metadata": ["a"]},
            {"role": "developer"},
        ],
        ids=str,
    )
    async def test_message_made_invalid_after_its_check_is_refused(self, world: World, made: dict[str, Any]) -> None:
        """R15: A message that became invalid by an assignment or a copy is refused, because the store could not decode it
        later."""
        message = user("x").model_copy(update=made)
        attempt = await world.start("r1")
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: world.threads.store_message(T, message),
            lambda: world.runs.append(attempt, [message]),
            lambda: world.checkpointer.append(T, [message]),
        ]
        for call in calls:
            with pytest.raises(errors.InvalidInputError) as error:
                await call()
            assert error.value.details["field"] == "message"
        await world.finish(attempt)


class TestNestingWithoutWorkers:
    """The tests of :class:`TestNesting` for a store without workers."""

    @pytest.mark.parametrize("value", [TOO_DEEP, BOTTOMLESS], ids=["by one", "by far"])
    async def test_values_from_a_host(self, world: World, value: JsonObject) -> None:
        """R15, F3: A refused value from a host creates no thread and changes no existing thread."""
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
        """F3: The extra of a fork contains the metadata one level deeper. The metadata may therefore have at most one level
        less than the limit. The fork's extra can then be saved again."""
        await world.turn("r1")
        await refused("metadata", lambda: world.fork("f", metadata=DEEPEST))
        extra = (await world.fork("f", metadata=within(MAX_NESTING - 1))).thread.extra
        await world.checkpointer.save_extra("f", extra)

    async def test_requests_of_a_checkpointer(self, world: World) -> None:
        """R15: If one request of a call is refused, the call stores no request."""
        request = HitlRequest(request_id=new_id(), payload=TOO_DEEP)
        await refused("payload", lambda: world.checkpointer.save_pending_request(T, request))
        requests = [HitlRequest(request_id=new_id()), request]
        await refused("payload", lambda: world.request_store.save_requests(T, requests, run_id="x"))
        assert await world.request_store.load_requests(T) == []


class TestNesting(TestNestingWithoutWorkers):
    async def test_value_of_the_greatest_depth_is_stored_and_read(self, world: World) -> None:
        """A2: A value at the limit can be stored, read, and stored again in the same place."""
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
    async def test_answer_nested_too_deep_is_refused(self, world: World, value: JsonObject) -> None:
        """H3: After a refused answer, the request is still pending."""
        await world.suspended("r1", "q", answer_schema={"$ref": "#/$defs/any", "$defs": {"any": {}}})
        await refused("answer", lambda: world.runs.respond(value, thread_id=T))
        assert (await world.runs.respond(DEEPEST, thread_id=T)).created

    @pytest.mark.parametrize("value", [TOO_DEEP, BOTTOMLESS], ids=["by one", "by far"])
    async def test_values_from_an_attempt(self, world: World, value: JsonObject) -> None:
        """R6: No part of a refused write is stored, and the attempt continues."""
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


FEW: JsonObject = {"k": [0] * (MAX_VALUES - 1)}
MANY: JsonObject = {"k": [0] * MAX_VALUES}
LONG: JsonObject = {"k": -(2**63) - 1}


def large(field: str) -> JsonObject:
    """Make an object that is larger than the limit of ``field``."""
    return {"k": "é" * (MAX_BYTES[field] // 2)}


async def exceeds(field: str, most: int, call: Callable[[], Awaitable[object]]) -> None:
    with pytest.raises(errors.InvalidInputError) as error:
        await call()
    assert (error.value.details["field"], error.value.details["most"]) == (field, most)


class TestBoundsWithoutWorkers:
    """The tests of :class:`TestBounds` for a store without workers."""

    @pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan])
    async def test_numbers_that_json_has_not(self, world: World, number: float) -> None:
        """A2, R15: Every store refuses numbers that JSON cannot represent. The refused call stores nothing."""
        value: JsonObject = {"k": [number]}
        for message in (Message.user("x", metadata=value), Message.tool(ToolResultPart(call_id="c", content=value))):
            with pytest.raises(errors.InvalidInputError):
                await world.checkpointer.append(T, [user("x"), message])
            with pytest.raises(errors.InvalidInputError):
                await world.threads.store_message(T, message)
        with pytest.raises(errors.InvalidInputError):
            await world.checkpointer.save_extra(T, value)
        with pytest.raises(errors.InvalidInputError):
            await world.accept("r", metadata=value)
        assert await world.threads.thread(T) is None

    async def test_parts_of_tool_results(self, world: World) -> None:
        """A2: The limit on parts counts the parts of all results of a message together."""
        part = {"type": "text", "text": "x"}
        results = [ToolResultPart(call_id=id, content=[part] * (MAX_PARTS // 2), has_parts=True) for id in "ab"]
        await exceeds("message", MAX_PARTS, lambda: world.threads.store_message(T, Message.tool(*results)))
        await world.threads.store_message(T, Message.tool(results[0]))

    async def test_titles_and_tags(self, world: World) -> None:
        """F7: Titles and tags have their limits."""
        title, tags = "x" * (MAX_BYTES["title"] + 1), {f"tag-{n}": "x" * 100 for n in range(MAX_BYTES["tags"] // 100)}
        await world.turn("r1")
        for call in (
            partial(world.threads.update_thread, T, title=title),
            lambda: world.threads.create_thread(ThreadRequest(thread_id="new", title=title)),
            lambda: world.fork("new", options={"title": title}),
        ):
            await exceeds("title", MAX_BYTES["title"], call)
        for call in (
            partial(world.threads.update_thread, T, tags=tags),
            lambda: world.threads.create_thread(ThreadRequest(thread_id="new", tags=tags)),
            lambda: world.fork("new", options={"tags": tags}),
        ):
            await exceeds("tags", MAX_BYTES["tags"], call)
        thread = await world.threads.thread(T)
        assert thread is not None and (thread.title, thread.tags) == (None, {})
        assert await world.threads.thread("new") is None


class TestBounds(TestBoundsWithoutWorkers):
    @pytest.mark.parametrize("number", [-(2**63), 2**64 - 1, 1e20, -1.7e308, 5e-324, 0.1, True])
    async def test_numbers_come_back(self, world: World, number: float) -> None:
        """R15: In every stored value, a number is read as it was written. The value can be saved again."""
        value: JsonObject = {"k": number}
        await world.checkpointer.append(T, [user("x", metadata=value)])
        for _ in range(2):
            await world.checkpointer.save_extra(T, value)
            data = await world.checkpointer.load(T)
            assert data is not None and (data.extra, data.messages[0].metadata) == (value, value)
            value = data.extra
        await world.accept("r", metadata=value)
        assert (await world.run("r")).metadata == value
        await world.suspended("s", "q", thread="other")
        await world.runs.respond(value, request_id="q")
        attempt = await world.take("s", thread="other")
        assert (await world.runs.ledger(attempt)).requests["q"].answer == value
        await world.finish(attempt, said("y"), result=value)
        assert (await world.run("s", "other")).result == value

    @pytest.mark.parametrize(
        ("value", "most"), [(MANY, MAX_VALUES), (LONG, MAX_BITS), (None, None)], ids=["values", "bits", "bytes"]
    )
    async def test_values_from_a_host(self, world: World, value: JsonObject | None, most: int | None) -> None:
        """A2: A refused value from a host creates no thread and no run. It changes no existing thread."""

        async def refused(field: str, call: Callable[[JsonObject], Awaitable[object]]) -> None:
            given = large(field) if value is None else value
            await exceeds(field, MAX_BYTES[field] if most is None else most, lambda: call(given))

        await refused("extra", lambda v: world.threads.create_thread(ThreadRequest(thread_id=T, extra=v)))
        await refused("config", lambda v: world.threads.create_thread(ThreadRequest(thread_id=T, config=v)))
        await refused("metadata", lambda v: world.accept("r", metadata=v))
        await refused("extra", lambda v: world.checkpointer.save_extra(T, v))
        assert await world.threads.thread(T) is None
        await world.turn("r1")
        await refused("extra", lambda v: world.threads.update_thread(T, extra=v))
        await refused("config", lambda v: world.threads.update_thread(T, config=v))
        await refused("metadata", lambda v: world.fork("f", metadata=v))
        await world.suspended("r2", "q")
        await refused("answer", lambda v: world.runs.respond(v, thread_id=T))
        assert (await world.runs.respond(FEW, thread_id=T)).created
        thread = await world.threads.thread(T)
        assert thread is not None and thread.extra == {} and await world.threads.thread("f") is None

    @pytest.mark.parametrize("value", [MANY, LONG], ids=["values", "bits"])
    async def test_messages(self, world: World, value: JsonObject) -> None:
        """A2: Every operation that takes a message limits the size of its tool calls, tool results and metadata."""
        most = MAX_VALUES if value is MANY else MAX_BITS
        for message in (
            Message.assistant([ToolCallPart(id="c", name="n", arguments=value)]),
            Message.tool(ToolResultPart(call_id="c", content=value)),
            Message.user("x", metadata=value),
        ):
            await exceeds("message", most, partial(world.threads.store_message, T, message))
            await exceeds("message", most, partial(world.checkpointer.append, T, [user("x"), message]))
        assert await world.threads.thread(T) is None
        attempt = await world.start("r1")
        await exceeds("message", most, lambda: world.runs.append(attempt, [said("no"), message]))
        await exceeds("message", most, lambda: world.finish(attempt, said("no"), message))
        assert (await world.finish(attempt, said("yes"))).status is RunStatus.COMPLETED
        assert await world.texts() == ["hi", "yes"]

    async def test_parts_of_a_message(self, world: World) -> None:
        """A2: The number of parts is also limited in an agent's messages. No schema of the API checks these messages."""
        parts = [TextPart(text="x")] * (MAX_PARTS + 1)
        attempt = await world.start("r1")
        await exceeds("message", MAX_PARTS, lambda: world.runs.append(attempt, [Message.assistant(parts)]))
        await world.finish(attempt, Message.assistant(parts[1:]))

    async def test_m2_an_unknown_field_of_a_part_is_refused(self, world: World) -> None:
        """M2, M6: A write refuses a part with an unknown field. It does not drop the field."""
        part = {"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}
        message = Message.tool(ToolResultPart(call_id="c", content=[part], has_parts=True))
        fork = ForkRequest(src=T, new="job", cut=Cut(), fan=FanOut(messages=[message], max_parallel=1))
        await world.turn("before")
        attempt = await world.start("r1")
        for refused in (
            lambda: world.threads.store_message(T, message),
            lambda: world.runs.accept(AcceptRequest(thread_id="u", run_id="r2", input=message)),
            lambda: world.runs.append(attempt, [message]),
            lambda: world.checkpointer.append("u", [message]),
            lambda: world.accept("job", None, kind="fork_many", fork=fork),
        ):
            with pytest.raises(errors.InvalidInputError):
                await refused()
        assert await world.threads.thread("u") is None

    async def test_a_message_has_a_size_without_a_limit(self, world: World) -> None:
        """R16: Without ``message_bytes``, MESSAGE_BYTES limits a message. ``message_bytes`` may be higher or lower."""
        much = "x" * (MESSAGE_BYTES + 1)
        attempt = await world.start("r0", thread="u")
        for refused in (
            lambda: world.accept("r1", much),
            lambda: world.store(much),
            lambda: world.checkpointer.append(T, [user(much)]),
            lambda: world.runs.append(attempt, [said(much)]),
            lambda: world.finish(attempt, said(much)),
        ):
            with pytest.raises(errors.MessageTooLargeError) as error:
                await refused()
            assert error.value.details["most"] == MESSAGE_BYTES and error.value.details["size"] > MESSAGE_BYTES
        assert await world.threads.thread(T) is None
        await world.backend.limits.set_limit(Limit(name="message_bytes", most=MESSAGE_BYTES + 1000))
        await world.accept("r1", much)

    async def test_values_from_an_attempt(self, world: World) -> None:
        """R6: No part of a refused write is stored, and the attempt continues."""
        attempt = await world.start("r1")
        most = {"extra": MAX_VALUES, "result": MAX_RESULT_VALUES}
        for field in most:
            for value, bound in (({"k": [0] * most[field]}, most[field]), (large(field), MAX_BYTES[field])):
                fields: dict[str, Any] = {field: value}
                await exceeds(field, bound, partial(world.finish, attempt, said("no"), **fields))
        await exceeds("result", MAX_BYTES["result"], lambda: world.runs.finish_step(attempt, "k", large("result")))
        for field in ("payload", "answer_schema", "on_deadline"):
            for value, bound in ((MANY, MAX_VALUES), (large(field), MAX_BYTES[field])):
                request = HitlRequest().model_copy(update={field: value})
                await exceeds(field, bound, partial(world.ask, attempt, request, messages=[said("no")]))
        error = ErrorInfo(code="x", message="x", details=large("error"))
        await exceeds("error", MAX_BYTES["error"], lambda: world.runs.fail(Write(attempt=attempt), error))
        assert (await world.finish(attempt, said("yes"), extra={"k": FEW["k"]})).status is RunStatus.COMPLETED
        assert await world.texts() == ["hi", "yes"]

    async def test_extra_in_all(self, world: World) -> None:
        """A2: The limit on extra also applies to the result of many merges."""
        for key in "ab":
            await world.checkpointer.save_extra(T, {key: "x" * (MAX_EXTRA // 2 - 100)})
        more: JsonObject = {"c": "x" * 1000}
        await exceeds("extra", MAX_EXTRA, lambda: world.checkpointer.save_extra(T, more))
        await exceeds("extra", MAX_EXTRA, lambda: world.threads.update_thread(T, title="no", extra=more))
        attempt = await world.start("r1")
        await exceeds("extra", MAX_EXTRA, lambda: world.finish(attempt, said("no"), extra=more))
        await world.finish(attempt, said("yes"), extra={"a": "smaller"})
        thread = await world.threads.thread(T)
        assert thread is not None and (thread.extra["a"], thread.title) == ("smaller", None)
        assert await world.texts() == ["hi", "yes"]
