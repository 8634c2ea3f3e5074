"""The store keeps the ``provider_details`` of an agent's message, and drops the ``provider_details`` of a caller's message
(M5)."""

from __future__ import annotations

from typing import Final

import pytest

from runyard.domain.size_limits import MAX_NESTING, MAX_VALUES, MESSAGE_BYTES
from runyard.errors import InvalidInputError, MessageTooLargeError, RunConflictError
from runyard.models import (
    AudioPart,
    CheckpointData,
    DocumentPart,
    FilePart,
    JsonObject,
    Message,
    Part,
    Source,
    TextPart,
    ThinkingPart,
    ToolResultPart,
)
from runyard.ports.commands import AcceptRequest, Cut, FanOut, ForkRequest, Write

from .world import T, World, call, result, said, user

pytestmark = pytest.mark.asyncio

DETAILS: JsonObject = {"pydantic_ai": {"parts": [{"provider_name": "openai", "id": "msg_1"}], "n": [1, None]}}
SAYS: JsonObject = {"pydantic_ai": {"parts": [{"content": ["look", {"kind": "image-url", "url": "http://10.0.0.1/x"}]}]}}


class TestWritersWithoutWorkers:
    """The tests of :class:`TestWriters` that also apply to a store without workers."""

    async def test_m5_of_a_stored_message_nothing_but_its_content_and_metadata_is_kept(self, world: World) -> None:
        for n, message in enumerate((user("a"), said("b"), call("c"), result("c"), Message(role="system", content="d"))):
            sent = message.model_copy(update={"provider_details": DETAILS, "metadata": SAYS})
            stored = await world.threads.store_message(T, sent)
            assert (stored.provider_details, stored.metadata) == (None, SAYS), n
            assert await world.threads.store_message(T, sent) == stored
        assert {message.provider_details is None for message in await world.messages()} == {True}


class TestWriters(TestWritersWithoutWorkers):
    async def test_m5_of_a_prompt_nothing_but_its_content_and_metadata_is_kept(self, world: World) -> None:
        """M5: Only the content and the metadata of a prompt are stored, even if a caller sets other fields. The metadata stays
        unchanged."""
        prompt = user("hi", provider_details=DETAILS, metadata=SAYS)
        accepted = await world.runs.accept(AcceptRequest(thread_id=T, run_id="r", input=prompt))
        attempt = await world.take("r")
        [seen] = await world.runs.context(attempt)
        for kept in (accepted.run.input, (await world.run("r")).input, seen):
            assert kept is not None and (kept.provider_details, kept.metadata) == (None, SAYS)

    async def test_m5_of_candidates_nothing_but_their_content_and_metadata_is_kept(self, world: World) -> None:
        await world.turn("before")
        candidates = [user("a", provider_details=DETAILS, metadata=SAYS), user("b", provider_details=DETAILS)]
        fork = ForkRequest(src=T, new="job", cut=Cut(), fan=FanOut(messages=candidates, max_parallel=2))
        await world.accept("job", None, kind="fork_many", fork=fork)
        claim = await world.claim("job")
        assert claim.attempt is not None
        found = await world.backend.fan_outs.messages(claim.attempt, [0, 1])
        assert [m.provider_details for m in found.values()] == [None, None]

    async def test_m5_what_an_attempt_appends_keeps_what_its_provider_said(self, world: World) -> None:
        """M5, R9: The provider details in an attempt's messages are kept. The next attempt, readers, and forks of forks get
        them."""
        attempt = await world.start("r")
        turns = (call("c"), result("c"), said("done"))
        own = [message.model_copy(update={"provider_details": DETAILS}) for message in turns]
        await world.runs.append(attempt, own[:2], first_event=1)
        again = await world.runs.context(attempt)
        assert [m.provider_details for m in again] == [None, DETAILS, DETAILS]
        [ended] = await world.runs.complete([Write(attempt=attempt, messages=own[2:])])
        assert not isinstance(ended, Exception)
        await world.fork("child", after_run_id="r")
        await world.turn("s", thread="child")
        await world.fork("grandchild", "child", after_run_id="s")
        for thread in (T, "child", "grandchild"):
            assert [m.provider_details for m in await world.messages(thread)][:4] == [None, DETAILS, DETAILS, DETAILS]

    async def test_m5_what_a_caller_stores_again_of_an_agent_is_a_callers(self, world: World) -> None:
        """M5: If a caller stores an agent's message again, the stored message counts as a caller's message."""
        attempt = await world.start("r")
        await world.finish(attempt, said("done", provider_details=DETAILS))
        last = (await world.messages())[-1]
        assert last.provider_details == DETAILS
        stored = await world.threads.store_message("other", last.model_copy(update={"run_id": None}))
        assert stored.provider_details is None
        assert (await world.threads.store_message("other", last)).provider_details is None

    async def test_m5_erasing_takes_what_a_provider_said_along(self, world: World) -> None:
        attempt = await world.start("r")
        await world.finish(attempt, said("done", provider_details=DETAILS))
        await world.fork("child", after_run_id="r")
        await world.threads.erase_thread(T)
        assert [m.provider_details for m in await world.messages("child")] == [None, None]


ORIGINAL: Final = Source(format="anthropic", blob={"role": "user", "content": [{"type": "text", "text": "hi", "x": [1, None]}]})
PARTS: Final[list[Part]] = [
    TextPart(text="hi"),
    AudioPart(data="aGk=", media_type="audio/wav"),
    DocumentPart(url="https://example.org/a.pdf", name="a"),
    FilePart(file_id="file-1", provider="openai"),
    ThinkingPart(text="", signature="s", provider="anthropic", redacted=True),
    ToolResultPart(call_id="c", name="t", content=[{"type": "text", "text": "a"}], has_parts=True),
]


class TestOriginalsWithoutWorkers:
    """The tests of :class:`TestOriginals` that also apply to a store without workers."""

    async def test_m2_erasing_takes_the_original_along(self, world: World) -> None:
        """M2: An erasure also erases the original of a message, because the original has the content of the message."""
        await world.threads.store_message(T, user("hi", source=ORIGINAL))
        await world.turn("r")
        await world.fork("child", after_run_id="r")
        await world.threads.erase_thread(T)
        assert {message.source for message in await world.messages("child")} == {None}

    async def test_a2_the_bounds_of_a_message_hold_for_its_original(self, world: World) -> None:
        """A2: The limits on values, nesting and bytes also apply to the original."""
        deep: JsonObject = {}
        for _ in range(MAX_NESTING):
            deep = {"a": deep}
        for blob in (deep, {"a": [0] * (MAX_VALUES + 1)}):
            with pytest.raises(InvalidInputError):
                await world.threads.store_message(T, user("hi", source=Source(format="openai", blob=blob)))
        large = Source(format="openai", blob={"a": "x" * MESSAGE_BYTES})
        with pytest.raises(MessageTooLargeError):
            await world.threads.store_message(T, user("hi", source=large))


class TestOriginals(TestOriginalsWithoutWorkers):
    async def test_m2_the_original_of_a_message_is_kept_by_every_write(self, world: World) -> None:
        """M2: The original of a prompt, of a stored message and of an attempt's message is read and inherited unchanged."""
        stored = await world.threads.store_message(T, Message.user(PARTS, source=ORIGINAL))
        assert (stored.source, stored.content) == (ORIGINAL, PARTS)
        prompt = user("hi", source=ORIGINAL)
        await world.runs.accept(AcceptRequest(thread_id=T, run_id="r", input=prompt))
        attempt = await world.take("r")
        assert [message.source for message in await world.runs.context(attempt)] == [ORIGINAL, ORIGINAL]
        assert (run := await world.run("r")).input is not None and run.input.source == ORIGINAL
        await world.finish(attempt, said("done", source=ORIGINAL))
        await world.fork("child", after_run_id="r")
        for thread in (T, "child"):
            assert [message.source for message in await world.messages(thread)] == [ORIGINAL] * 3

    async def test_b1_another_original_is_another_message(self, world: World) -> None:
        """B1, R2: A message with the same id but another original is refused. A prompt with the same run id but another
        original is also refused."""
        message = user("hi", source=ORIGINAL)
        stored = await world.threads.store_message(T, message)
        assert await world.threads.store_message(T, message) == stored
        with pytest.raises(InvalidInputError):
            await world.threads.store_message(T, message.model_copy(update={"source": None}))
        await world.runs.accept(AcceptRequest(thread_id=T, run_id="r", input=user("a", source=ORIGINAL)))
        with pytest.raises(RunConflictError):
            await world.runs.accept(AcceptRequest(thread_id=T, run_id="r", input=user("a")))


class TestCheckpointedWriters:
    async def test_m5_what_a_host_appends_is_an_agents(self, world: World) -> None:
        """M5: Messages that a host appends count as messages of an agent. An in-process ``Agent`` appends the answers of its
        model by the same call."""
        await world.checkpointer.claim_run(T, "r")
        await world.checkpointer.append(T, [user("hi", run_id="r"), said("done", run_id="r", provider_details=DETAILS)])
        data = await world.checkpointer.load(T) or CheckpointData()
        assert [m.provider_details for m in data.messages] == [None, DETAILS]
