"""Tests of external runs in forks, of tool cycles and erased messages, and of ids that a store must distinguish."""

from __future__ import annotations

import pytest

from runyard import errors
from runyard.domain.size_limits import MESSAGE_BYTES
from runyard.domain.states import RunStatus
from runyard.models import HitlRequest, JsonObject, Message, new_id
from runyard.ports.queries import PageRequest, PathRequest, RunFilter

from .world import T, World, call, result, said, texts, user

pytestmark = pytest.mark.asyncio


async def claimed(world: World, run_id: str, *messages: Message, thread: str = T, complete: bool = False) -> list[Message]:
    """Claim a run and append its messages. Complete the run if ``complete`` is True. Return the messages."""
    own = [message.model_copy(update={"run_id": run_id}) for message in messages]
    await world.checkpointer.claim_run(thread, run_id)
    await world.checkpointer.append(thread, own)
    if complete:
        await world.checkpointer.mark_run_complete(thread, run_id)
    return own


class TestCheckpoints:
    async def test_partly_visible_run(self, world: World) -> None:
        """S6: A fork is cut inside a completed run and shows a part of the run. Forks of this fork, at any depth, cannot be cut
        after this run. They cannot have another run with the same id."""
        one, _ = await claimed(world, "x", said("one"), said("two"), complete=True)
        await world.fork("c", at_message_id=one.id)
        await world.fork("d", src="c", at_message_id=one.id)
        for thread in ("c", "d"):
            assert await world.texts(thread) == ["one"]
            with pytest.raises(errors.ForkBoundaryError):
                await world.checkpointer.snapshot(thread, after_run_id="x")
            with pytest.raises(errors.RunAlreadyCompletedError):
                await world.checkpointer.claim_run(thread, "x")
            with pytest.raises(errors.RunAlreadyCompletedError):
                await world.checkpointer.append(thread, [said("more", run_id="x")])
        await claimed(world, "own", said("own"), thread="d", complete=True)
        await world.fork("e", src="d", after_run_id="own")
        assert await world.texts("e") == ["one", "own"]

    async def test_open_run_that_completes_later(self, world: World) -> None:
        """I5, S6: A fork is cut inside a live run. The fork shows only the run's messages up to the cut, even when the run is
        completed later. No run of the fork can get the id of this run."""
        (half,) = await claimed(world, "x", said("half"))
        await world.fork("c", at_message_id=half.id)
        with pytest.raises(errors.RunAlreadyClaimedError):
            await world.checkpointer.claim_run("c", "x")
        await world.checkpointer.append(T, [said("rest", run_id="x")])
        await world.checkpointer.mark_run_complete(T, "x")
        assert await world.texts("c") == ["half"] and await world.texts() == ["half", "rest"]
        with pytest.raises(errors.RunNotClaimedError):
            await world.checkpointer.mark_run_complete("c", "x")
        with pytest.raises(errors.RunNotCompletedError):
            await world.checkpointer.snapshot("c", after_run_id="x")

    async def test_inherited_runs(self, world: World) -> None:
        """S6: An inherited run counts as completed, even in forks of forks. A run after the cut is not inherited."""
        for run_id in ("a", "b"):
            await claimed(world, run_id, said(run_id), complete=True)
        await world.checkpointer.fork(T, "c", after_run_id="a")
        await claimed(world, "own", said("own"), thread="c", complete=True)
        await world.checkpointer.fork("c", "d", after_run_id="own")
        for thread in ("c", "d"):
            await world.checkpointer.mark_run_complete(thread, "a")
            with pytest.raises(errors.RunAlreadyCompletedError):
                await world.checkpointer.claim_run(thread, "a")
            await world.checkpointer.claim_run(thread, "b")
        assert texts(await world.checkpointer.snapshot("d", after_run_id="a")) == ["a"]

    async def test_cut_inside_a_tool_cycle(self, world: World) -> None:
        """F6: A cut inside a tool cycle is refused. The error names the nearest valid cuts. A fork with ``repair`` has error
        results for the open calls."""
        asked, calls, partial, rest = await claimed(world, "x", user("q"), call("a", "b"), result("a"), result("b"))
        for inside in (calls, partial):
            with pytest.raises(errors.ForkBoundaryError) as caught:
                await world.fork("c", at_message_id=inside.id)
            assert (caught.value.details["before"], caught.value.details["after"]) == (asked.id, rest.id)
        forked = await world.fork("c", at_message_id=partial.id, repair=True)
        assert await world.texts("c") == ["q", "call:a,b", "result:a", "result:b"]
        [closing] = (await world.messages("c"))[-1].tool_results
        assert closing.is_error and forked.thread.forked_at_seq == 3
        assert await world.cut(at_message_id=partial.id, repair=True) == ["q", "call:a,b", "result:a", "result:b"]
        await claimed(world, "own", said("on"), thread="c", complete=True)
        assert await world.cut("c", after_run_id="own") == ["q", "call:a,b", "result:a", "result:b", "on"]

    async def test_inherited_message_ids(self, world: World) -> None:
        """B2, B1: A fork of a fork cannot store another message under an inherited id. Storing an inherited message again
        returns the inherited message."""
        plain = await world.threads.store_message(T, user("plain"))
        (old,) = await claimed(world, "x", said("old"), complete=True)
        await world.fork("c", after_run_id="x")
        await world.fork("d", src="c", after_run_id="x")
        for thread in ("c", "d"):
            for taken in (plain, old):
                with pytest.raises(errors.InvalidInputError):
                    await world.threads.store_message(thread, user("new", id=taken.id))
                with pytest.raises(errors.InvalidInputError):
                    await world.checkpointer.append(thread, [user("new", id=taken.id, run_id="y")])
            await world.checkpointer.append(thread, [user("plain", id=plain.id)])
            assert await world.texts(thread) == ["plain", "old"]

    async def test_erased_messages_in_forks(self, world: World) -> None:
        """D3: Forks of an erased thread, and their forks, have tombstones with the same ids, numbers and parents."""
        await world.checkpointer.append(T, [user("secret", metadata={"ssn": 1})])
        await claimed(world, "x", said("secret"), complete=True)
        await world.fork("c", after_run_id="x")
        await world.fork("d", src="c", after_run_id="x")
        before = await world.messages("d")
        await world.threads.erase_thread(T)
        for thread in ("c", "d"):
            after = await world.messages(thread)
            assert texts(after) == ["[erased]", "[erased]"] and all(m.metadata == {} for m in after)
            assert [(m.id, m.role, m.run_id, m.seq, m.parent_id) for m in after] == [
                (m.id, m.role, m.run_id, m.seq, m.parent_id) for m in before
            ]

    async def test_erased_tool_calls_keep_their_results(self, world: World) -> None:
        """D3, I7: The tombstones of a tool call and of its result have the same call id. No call is therefore open in a
        fork."""
        await claimed(world, "x", user("q"), call("a", "b"), result("a", "b"), complete=True)
        await world.fork("c", after_run_id="x")
        await world.threads.erase_thread(T)
        assert await world.texts("c") == ["[erased]", "call:a,b", "result:a,b"]
        _, calls, results = await world.messages("c")
        assert [(part.name, part.arguments) for part in calls.tool_calls] == [("erased", {})] * 2
        assert [part.content for part in results.tool_results] == ["[erased]"] * 2
        await world.fork("d", src="c", at_message_id=results.id)
        with pytest.raises(errors.ForkBoundaryError):
            await world.fork("e", src="c", at_message_id=calls.id)

    async def test_deletion_of_a_whole_family(self, world: World) -> None:
        """D1, D2: Forks keep the messages that they show, in any order of deletions. The ids of deleted threads can be used
        again."""
        await claimed(world, "x", said("x"), complete=True)
        await claimed(world, "y", said("y"))
        await world.fork("c", after_run_id="x")
        await claimed(world, "z", said("z"), thread="c", complete=True)
        await world.fork("d", src="c", after_run_id="z")
        await world.threads.delete_thread("c")
        await world.threads.delete_thread(T)
        assert await world.texts("d") == ["x", "z"]
        assert [m.run_status for m in await world.messages("d")] == [RunStatus.COMPLETED] * 2
        await world.fork("e", src="d", after_run_id="x")
        await world.threads.delete_thread("d")
        assert await world.texts("e") == ["x"] and (await world.runs.runs()).items == []
        await claimed(world, "x", said("new"), complete=True)
        assert await world.texts() == ["new"]

    async def test_legacy_messages_beside_runs(self, world: World) -> None:
        """F1, F10: A message without a run is stored before the last message of a run. The snapshot after this run has the
        message."""
        await world.checkpointer.append(T, [user("old"), said("older")])
        await world.checkpointer.claim_run(T, "x")
        await world.checkpointer.append(T, [said("x1", run_id="x"), user("between"), said("x2", run_id="x"), user("later")])
        assert await world.texts() == ["old", "older", "between", "later"]
        assert await world.loaded() == ["old", "older", "x1", "between", "x2", "later"]
        await world.checkpointer.mark_run_complete(T, "x")
        assert texts(await world.checkpointer.snapshot(T, after_run_id="x")) == ["old", "older", "x1", "between", "x2"]

    async def test_many_messages_in_one_call(self, world: World) -> None:
        """R15: A call with hundreds of messages stores each message once. The parent of each message is the previous
        message."""
        messages = [user(f"{n}") for n in range(230)]
        await world.checkpointer.append(T, messages[:120])
        await world.checkpointer.append(T, messages)
        stored = await world.messages()
        assert texts(stored) == [f"{n}" for n in range(230)] and [m.seq for m in stored] == [*range(1, 231)]
        assert [m.parent_id for m in stored] == [None, *(m.id for m in stored[:-1])]
        page = await world.threads.messages(T, PathRequest(limit=130, newest_first=True))
        rest = await world.threads.messages(T, PathRequest(limit=130, newest_first=True, cursor=page.next))
        assert texts([*page.items, *rest.items]) == [f"{n}" for n in range(230)][::-1] and rest.next is None

    async def test_the_first_fault_of_a_call_decides(self, world: World) -> None:
        """R13: If several messages of a call are invalid, the call raises the error of the first of them."""
        plain = await world.threads.store_message(T, user("plain"))
        await claimed(world, "x", complete=True)
        taken, late = user("y", id=plain.id, run_id="y"), user("late", run_id="x")
        with pytest.raises(errors.InvalidInputError):
            await world.checkpointer.append(T, [taken, late])
        with pytest.raises(errors.RunAlreadyCompletedError):
            await world.checkpointer.append(T, [late, taken])

    async def test_message_that_is_too_large(self, world: World) -> None:
        """R16: A call with a message of more than MESSAGE_BYTES stores no message."""
        much = user("x" * (MESSAGE_BYTES + 1))
        for refused in (world.checkpointer.append(T, [user("fine"), much]), world.threads.store_message(T, much)):
            with pytest.raises(errors.MessageTooLargeError):
                await refused
        assert await world.threads.thread(T) is None

    @pytest.mark.parametrize("number", [-(2**63), 2**64 - 1, 1e20, -1.7e308, 5e-324, 0.1, True])
    async def test_numbers_come_back(self, world: World, number: float) -> None:
        """R15: In extra, messages and answers, a number is read as it was written."""
        value: JsonObject = {"k": number}
        await world.checkpointer.append(T, [user("x", metadata=value)])
        await world.checkpointer.save_extra(T, value)
        data = await world.checkpointer.load(T)
        assert data is not None and (data.extra, data.messages[0].metadata) == (value, value)
        await world.request_store.save_requests(T, [HitlRequest(request_id="q", payload=value)], run_id="x")
        answered = await world.request_store.answer_request(T, value)
        assert (answered.request.answer, answered.request.payload) == (value, value)

    async def test_runs_and_requests_in_pages(self, world: World) -> None:
        """R15: Lists of runs and of requests are complete for a caller that follows their cursors."""
        for n in range(7):
            await claimed(world, f"r{n}", complete=n % 2 == 0)
            request = HitlRequest(request_id=f"{world.backend.tenant}q{n}")
            await world.request_store.save_requests(T, [request], run_id=f"r{n}")
        for list_of, where in ((world.runs.runs, {}), (world.runs.runs, {"where": RunFilter(thread_id=T)})):
            found, cursor = list[str](), None
            while True:
                page = await list_of(page=PageRequest(limit=3, cursor=cursor), **where)
                found += [run.run_id for run in page.items]
                if (cursor := page.next) is None:
                    break
            assert found == [f"r{n}" for n in range(7)][::-1]
        running = await world.runs.runs(RunFilter(status=RunStatus.RUNNING))
        assert [run.run_id for run in running.items] == ["r5", "r3", "r1"]
        asked, cursor = list[str](), None
        while True:
            some = await world.runs.requests(thread_id=T, page=PageRequest(limit=2, cursor=cursor))
            asked += [request.run_id or "" for request in some.items]
            if (cursor := some.next) is None:
                break
        assert asked == [f"r{n}" for n in range(7)]


class TestNames:
    """Ids that a store must not confuse."""

    @pytest.mark.parametrize(
        ("one", "other"),
        [("a", "A"), ("a", "a "), ("e", "é"), ("é", "e\u0301"), ("ß", "ss"), ("a%", "a_"), ("1", "01"), ("😀", "😁")],
    )
    async def test_similar_ids_are_different(self, world: World, one: str, other: str) -> None:
        """A2: Ids that differ in case, accents, trailing blanks or Unicode form are different ids. This holds for threads,
        runs, requests and labels."""
        for n, name in enumerate((one, other)):
            await claimed(world, "r", said(f"{n}"), thread=name, complete=True)
            await claimed(world, name, said(f"in {n}"), complete=True)
            await world.request_store.save_requests(name, [HitlRequest(request_id=name)], run_id=name)
            await world.threads.set_label(T, name)
        for n, name in enumerate((one, other)):
            assert await world.texts(name) == [f"{n}"]
            assert [r.request_id for r in await world.request_store.load_requests(name, run_id=name)] == [name]
            assert texts(await world.checkpointer.snapshot(T, after_run_id=name))[-1] == f"in {n}"
        [leaf] = await world.leaves()
        assert leaf.labels == sorted([one, other])

    async def test_tenants(self, world: World) -> None:
        """A1: Another tenant's threads, runs, requests and messages are unknown."""
        other = World(await world.factory(tenant="other"), world.factory)
        stored = await world.threads.store_message(T, user("mine"))
        await claimed(world, "x", said("x"), complete=True)
        await world.request_store.save_requests(T, [HitlRequest(request_id="q")], run_id="x")
        assert await other.threads.thread(T) is None and await other.checkpointer.load(T) is None
        assert (await other.runs.runs()).items == [] and (await other.runs.requests()).items == []
        assert (await other.threads.threads()).items == [] and await other.runs.request("q") is None
        for hidden in (
            other.messages(leaf=stored.id),
            other.checkpointer.fork(T, "c", after_run_id="x"),
            other.checkpointer.snapshot(T, after_run_id="x"),
            other.threads.delete_thread(T),
            other.request_store.answer_request(T, 1, request_id="q"),
        ):
            with pytest.raises(errors.ThreadNotFoundError):
                await hidden
        await claimed(other, "x", said("theirs"), complete=True)
        await other.request_store.save_requests(T, [HitlRequest(request_id="q")], run_id="x")
        await other.request_store.answer_request(T, "theirs")
        assert [r.answer for r in await world.request_store.load_requests(T)] == [None]
        assert await world.texts() == ["mine", "x"] and await other.texts() == ["theirs"]
        await other.backend.close()

    async def test_text_that_no_store_takes(self, world: World) -> None:
        """A2: NUL characters are refused in ids, in extra and in answers. Nothing is stored."""
        odd = "a\0"
        await world.request_store.save_requests(T, [HitlRequest(request_id=new_id())], run_id="x")
        with pytest.raises(errors.InvalidInputError):
            await world.checkpointer.save_extra(T, {"k": odd})
        with pytest.raises(errors.InvalidInputError):
            await world.checkpointer.claim_run(T, odd)
        with pytest.raises(errors.InvalidInputError):
            await world.checkpointer.append(odd, [user("x")])
        with pytest.raises(errors.InvalidInputError):
            await world.request_store.answer_request(T, odd)
        data = await world.checkpointer.load(T)
        assert data is not None and (data.extra, data.messages) == ({}, [])

    async def test_message_text_is_kept_verbatim(self, world: World) -> None:
        """R15: The text of a message may have any character."""
        odd = "nul \0 lone \ud800 😀 \u2028 'quoted' \"double\" \\ %s ? ;"
        await world.checkpointer.append(T, [user(odd, metadata={"k": odd})])
        data = await world.checkpointer.load(T)
        assert data is not None and (data.messages[0].text, data.messages[0].metadata) == (odd, {"k": odd})
