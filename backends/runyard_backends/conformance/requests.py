"""HITL requests in the store (H1, H3 to H7, H10)."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from runyard import errors
from runyard.domain.states import RunStatus
from runyard.models import ErrorInfo, HitlRequest, Usage, new_id
from runyard.ports.queries import PageRequest
from runyard.ports.results import Responded

from .world import T, World, eventually, now, said

pytestmark = pytest.mark.asyncio


class TestHitl:
    async def test_waiting_requests_are_measured_over_all_tenants(self, world: World) -> None:
        """The measurement of waiting requests excludes answered requests, and requests of ended runs."""
        other = World(await world.factory(tenant="b"), world.factory)
        assert (await world.workers.measure()).oldest_request is None
        await world.suspended("asks", thread="a")
        await world.suspended("approves", thread="b", kind="approval")
        await other.suspended("asks", thread="a")
        answered = await world.suspended("answered", thread="c")
        await world.runs.respond("yes", request_id=answered)
        await world.suspended("cancelled", thread="d")
        await world.runs.cancel("d", "cancelled")
        found = await world.workers.measure()
        assert (found.questions, found.approvals, found.steps) == (2, 1, 0)
        assert found.oldest_request is not None and 0 <= found.oldest_request < 60

    async def test_suspend_and_respond(self, world: World) -> None:
        """H1, H5: After the answer, the same run continues with its earlier messages and the answer."""
        attempt = await world.start("r1", "q")
        request = HitlRequest(request_id=new_id(), kind="approval", payload={"tool": "rm"}, answer_schema={"type": "boolean"})
        ended = await world.ask(attempt, request, messages=[said("may I?")], first_event=4)
        assert ended.status is RunStatus.SUSPENDED and ended.event_id == f"{attempt.fence}-6"
        run = await world.run("r1")
        assert run.status is RunStatus.SUSPENDED and run.suspended_at is not None
        (pending,) = (await world.runs.requests()).items
        assert (pending.request_id, pending.run_id, pending.thread_id, pending.kind) == (
            request.request_id,
            "r1",
            T,
            "approval",
        )
        assert (pending.payload, pending.answer_schema) == ({"tool": "rm"}, {"type": "boolean"})
        assert pending.created_at is not None
        responded = await world.runs.respond(True, thread_id=T)
        assert responded.created and [job.run_id for job in responded.effects.jobs] == ["r1"]
        assert (await world.run("r1")).suspended_at is None
        attempt = await world.take("r1")
        assert await world.context(attempt) == ["q", "may I?"]
        answered = (await world.runs.ledger(attempt)).requests[request.request_id]
        assert answered.answer is True and answered.answered_at is not None
        await world.finish(attempt, said("done"))
        assert await world.texts() == ["q", "may I?", "done"]
        assert (await world.run("r1")).attempt == 2

    async def test_the_ledger_says_whether_answers_started_the_attempt(self, world: World) -> None:
        """E2: The ledger says whether the attempt began after an answer, or after a release, an error or a crash. An attempt
        after an answer does not discard streamed text. An attempt after a release, an error or a crash discards it."""
        await world.suspended("r1")
        await world.runs.respond(True, thread_id=T)
        attempt, ledgers = await world.take("r1"), []
        for error in (None, ErrorInfo(code="agent_error", message="m")):
            ledgers.append(await world.runs.ledger(attempt))
            await world.runs.release(attempt, error=error)
            attempt = await world.take("r1")
        ledgers.append(await world.runs.ledger(attempt))
        await world.ask(attempt, HitlRequest(request_id=new_id()))
        await world.runs.respond(True, thread_id=T)
        ledgers.append(await world.runs.ledger(await world.take("r1")))
        await world.bury("w")
        ledgers.append(await world.runs.ledger(await world.take("r1", worker="x")))
        assert [ledger.resumes for ledger in ledgers] == [True, False, False, True, False]
        assert [ledger.retries for ledger in ledgers] == [False, False, True, False, False]

    async def test_claim_after_a_retry_has_the_error(self, world: World) -> None:
        """R11: The claim has the error of the previous attempt. The ledger says that the attempt is a retry after this
        error."""
        error = ErrorInfo(code="agent_error", message="m")
        await world.runs.release(await world.start("r1"), error=error)
        claim = await world.claim("r1")
        assert claim.run is not None and claim.attempt is not None and claim.run.error == error
        assert (await world.runs.ledger(claim.attempt)).retries

    async def test_answer_keeps_who_gave_it_and_for_whom(self, world: World) -> None:
        """H3: ``answered_by`` and ``on_behalf_of`` are stored. A repeated answer does not change them."""
        await world.suspended("r1", "q")
        responded = await world.runs.respond("yes", request_id="q", answered_by="desk", on_behalf_of="ann")
        again = await world.runs.respond("yes", request_id="q", answered_by="other", on_behalf_of="bob")
        for request in (responded.request, again.request, await world.runs.request("q")):
            assert request is not None
            assert (request.answered_by, request.on_behalf_of) == ("desk", "ann")

    async def test_suspended_run_is_claimed_by_nobody(self, world: World) -> None:
        """H1: A suspended run is held by no worker and cannot be claimed."""
        await world.suspended("r1")
        assert (await world.claim("r1")).outcome == "suspended"
        assert await world.workers.running("w") == []

    async def test_answer_already_there(self, world: World) -> None:
        """H12: If the answer exists already, the run continues instead of being suspended."""
        request = HitlRequest(request_id=new_id())
        await world.ask(await world.start("r1"), request)
        await world.runs.respond("yes", thread_id=T)
        attempt = await world.take("r1")
        another = HitlRequest(request_id=new_id())
        for _ in range(2):  # the second call repeats the first after a lost reply
            ended = await world.ask(attempt, request, another, usage=Usage(requests=1))
            assert ended.status is RunStatus.RUNNING
        assert await world.status("r1") is RunStatus.RUNNING
        await world.finish(attempt, said("done"))
        assert (await world.run("r1")).usage.requests == 1

    @pytest.mark.parametrize("answer", [None, False, 0, "", "text", [1, {"a": None}], {"k": "v"}])
    async def test_any_json_is_an_answer(self, world: World, answer: Any) -> None:
        request = await world.suspended("r1")
        await world.runs.respond(answer, thread_id=T)
        attempt = await world.take("r1")
        recorded = (await world.runs.ledger(attempt)).requests[request]
        assert recorded.answer == answer and recorded.answered_at is not None

    async def test_which_request(self, world: World) -> None:
        """H3: An answer is refused [404] if no request is pending. If several requests are pending, the answer must name one.
        An answer is stale if no pending request has its request id."""
        with pytest.raises(errors.ThreadNotFoundError):
            await world.runs.respond(1, thread_id=T)
        with pytest.raises(errors.HitlNoPendingRequestError):
            await world.runs.respond(1, request_id=new_id())
        with pytest.raises((errors.InvalidInputError, errors.HitlNoPendingRequestError)):
            await world.runs.respond(1)
        attempt = await world.start("r1")
        with pytest.raises(errors.HitlNoPendingRequestError):
            await world.runs.respond(1, thread_id=T)
        one, two = HitlRequest(request_id=new_id()), HitlRequest(request_id=new_id())
        await world.ask(attempt, one, two)
        with pytest.raises(errors.HitlAmbiguousError) as ambiguous:
            await world.runs.respond(1, thread_id=T)
        assert set(ambiguous.value.details["request_ids"]) == {one.request_id, two.request_id}
        stale = new_id()
        with pytest.raises(errors.HitlStaleAnswerError) as caught:
            await world.runs.respond(1, thread_id=T, request_id=stale)
        assert caught.value.details["request_id"] == stale
        assert set(caught.value.details["pending"]) == {one.request_id, two.request_id}
        await world.runs.respond(2, request_id=two.request_id)
        assert [r.request_id for r in (await world.runs.requests()).items] == [one.request_id]

    async def test_request_is_found_by_its_id(self, world: World) -> None:
        """H10: A request can be read by its id.

        The result for a pending request equals the request's entry in the inbox. After the answer, the result contains the
        answer.
        """
        attempt = await world.start("r1")
        one = HitlRequest(request_id=new_id())
        await world.ask(attempt, one)
        (waiting,) = (await world.runs.requests()).items
        assert await world.runs.request(one.request_id) == waiting
        answered = (await world.runs.respond(1, request_id=one.request_id)).request
        assert await world.runs.request(one.request_id) == answered
        assert await world.runs.request("none") is None
        await world.threads.delete_thread(T, cancel=True)
        assert await world.runs.request(one.request_id) is None

    async def test_answers_that_arrive_while_the_run_goes_on(self, world: World) -> None:
        """H12: An answer for a queued or running run is stored, and the run keeps its status."""
        one, two = HitlRequest(request_id=new_id()), HitlRequest(request_id=new_id())
        await world.ask(await world.start("r1"), one, two)
        await world.runs.respond(1, request_id=one.request_id)
        responded = await world.runs.respond(2, request_id=two.request_id)
        assert responded.effects.jobs == [] and await world.status("r1") is RunStatus.QUEUED
        attempt = await world.take("r1")
        answers = {r.request_id: r.answer for r in (await world.runs.ledger(attempt)).requests.values()}
        assert answers == {one.request_id: 1, two.request_id: 2}

    async def test_answer_that_does_not_fit_its_schema_is_refused(self, world: World) -> None:
        """H3: An answer that does not fit the schema raises HitlInvalidAnswerError, and the request stays pending."""
        request = await world.suspended("r1", answer_schema={"type": "object", "required": ["ok"]})
        with pytest.raises(errors.HitlInvalidAnswerError):
            await world.runs.respond({"no": 1}, thread_id=T)
        assert [r.request_id for r in (await world.runs.requests()).items] == [request]
        assert (await world.runs.respond({"ok": 1}, thread_id=T)).created

    async def test_repeated_answer_is_one_answer(self, world: World) -> None:
        """H3: The same response gets the same result. A different second answer raises HitlAlreadyAnsweredError."""
        request = await world.suspended("r1")
        first = await world.runs.respond("yes", thread_id=T, response_id="x")
        again = await world.runs.respond("yes", thread_id=T, response_id="x")
        assert first.created and not again.created and again.request.answer == "yes" and again.effects.jobs == []
        assert not (await world.runs.respond("yes", thread_id=T, request_id=request)).created
        for fields in ({"response_id": "x"}, {"request_id": request}, {"request_id": request, "response_id": "y"}):
            with pytest.raises(errors.HitlAlreadyAnsweredError):
                await world.runs.respond("no", thread_id=T, **fields)
        with pytest.raises(errors.HitlNoPendingRequestError):
            await world.runs.respond("no", thread_id=T)
        attempt = await world.take("r1")
        assert (await world.runs.ledger(attempt)).requests[request].answer == "yes"

    async def test_a_response_id_names_one_answer(self, world: World) -> None:
        """H3: A response id that was used for another request of the thread is refused. The request that it should answer stays
        pending."""
        one, two = HitlRequest(request_id=new_id()), HitlRequest(request_id=new_id())
        await world.ask(await world.start("r1"), one, two)
        await world.runs.respond(1, request_id=one.request_id, response_id="x")
        with pytest.raises(errors.InvalidInputError, match="response_id"):
            await world.runs.respond(1, request_id=two.request_id, response_id="x")
        assert [r.request_id for r in (await world.runs.requests()).items] == [two.request_id]
        assert (await world.runs.respond(1, request_id=two.request_id, response_id="y")).created

    async def test_a_request_is_found_by_its_answer(self, world: World) -> None:
        """H3: ``answered`` returns the thread's request with the answer, and None for other threads and answers."""
        request = await world.suspended("r1")
        await world.runs.respond("yes", thread_id=T, response_id="x")
        found = await world.runs.answered(T, "x")
        assert found is not None and (found.request_id, found.answer, found.response_id) == (request, "yes", "x")
        assert [await world.runs.answered(*ids) for ids in ((T, "y"), ("u", "x"))] == [None, None]
        await world.threads.delete_thread(T, cancel=True)
        assert await world.runs.answered(T, "x") is None

    async def test_two_responders(self, world: World) -> None:
        """H4: Of two concurrent answers exactly one is applied."""
        request = await world.suspended("r1")
        answers = await asyncio.gather(
            *(world.runs.respond(n, thread_id=T, request_id=request) for n in range(5)), return_exceptions=True
        )
        won = [a for a in answers if isinstance(a, Responded) and a.created]
        assert len(won) == 1
        assert sum(isinstance(a, errors.HitlAlreadyAnsweredError) for a in answers) == 4
        assert [job.run_id for job in won[0].effects.jobs] == ["r1"]

    @pytest.mark.parametrize("keep", [False, True])
    async def test_cancel_of_a_suspended_run(self, world: World, keep: bool) -> None:
        """R10, H7: A cancel ends a suspended run at once and closes its request. A late answer is stale."""
        request = await world.suspended("r1")
        changed = await world.runs.cancel(T, "r1", keep=keep)
        assert changed.run.status is RunStatus.CANCELLED and changed.run.suspended_at is None
        assert (changed.run.completion_seq is not None) is keep
        assert (await world.runs.requests()).items == []
        with pytest.raises(errors.HitlStaleAnswerError):
            await world.runs.respond(1, thread_id=T, request_id=request)
        with pytest.raises(errors.HitlNoPendingRequestError):
            await world.runs.respond(1, thread_id=T)

    async def test_extra_is_saved_with_the_suspension(self, world: World) -> None:
        """H11: The extra of a suspension is saved on the run. It is saved on the thread when the run completes."""
        attempt = await world.start("r1")
        await world.ask(attempt, HitlRequest(request_id=new_id()), extra={"a": 1})
        thread = await world.threads.thread(T)
        assert thread is not None and thread.extra == {}
        await world.runs.respond(1, thread_id=T)
        claim = await world.claim("r1")
        assert claim.extra == {"a": 1} and claim.attempt is not None
        await world.finish(claim.attempt, said("x"))
        thread = await world.threads.thread(T)
        assert thread is not None and thread.extra == {"a": 1}

    async def test_repeated_suspend_asks_once(self, world: World) -> None:
        """H6: A repeated call of ``suspend``, after a lost reply, stores one request."""
        attempt = await world.start("r1")
        request = HitlRequest(request_id=new_id())
        first = await world.ask(attempt, request)
        second = await world.ask(attempt, request)
        assert (first.status, first.event_id) == (second.status, second.event_id)
        assert len((await world.runs.requests()).items) == 1

    async def test_inbox_lists_pending_requests_of_all_threads(self, world: World) -> None:
        """H10: The inbox lists every pending request of every thread. Each request can be answered by its id."""
        ids = [await world.suspended("r", thread=f"t{n}") for n in range(3)]
        page = await world.runs.requests(page=PageRequest(limit=2))
        rest = await world.runs.requests(page=PageRequest(limit=2, cursor=page.next))
        assert [r.request_id for r in page.items + rest.items] == ids
        assert [r.request_id for r in (await world.runs.requests(thread_id="t1")).items] == [ids[1]]
        await world.runs.respond(1, request_id=ids[1])
        assert [r.request_id for r in (await world.runs.requests()).items] == [ids[0], ids[2]]
        assert len((await world.runs.requests(pending=False)).items) == 3

    async def test_the_inbox_names_the_agent(self, world: World) -> None:
        """H10: The inbox names the agent of the run or of its thread. An external run has no agent."""
        await world.ask(await world.start("r1", agent="planner"), HitlRequest(request_id=new_id()))
        await world.runs.respond(1, thread_id=T)
        await world.finish(await world.take("r1"))
        await world.ask(await world.start("r2"), HitlRequest(request_id=new_id()))
        await world.checkpointer.save_pending_request("solo", HitlRequest(request_id=new_id()), run_id="x")
        found = (await world.runs.requests(pending=False)).items
        assert [(r.run_id, r.agent) for r in found] == [("r1", "planner"), ("r2", "planner"), ("x", None)]
        attempt = await world.start("r3", thread="u", agent="critic")
        await world.ask(attempt, HitlRequest(request_id="q"))
        assert (await world.runs.respond(1, thread_id="u")).request.agent == "critic"
        ledger = await world.runs.ledger(await world.take("r3", thread="u"))
        assert ledger.requests["q"].agent == "critic"

    async def test_deadline_fails_the_run(self, world: World) -> None:
        """H7: At the deadline of a request, its default is applied. A late answer is stale."""
        request = await world.suspended("r1", deadline_at=now() - timedelta(seconds=1), on_deadline={"fail": True})
        await world.runs.admit()
        assert await world.status("r1") is RunStatus.FAILED
        with pytest.raises(errors.HitlStaleAnswerError):
            await world.runs.respond(1, thread_id=T, request_id=request)

    async def test_a_timeout_counts_by_the_clock_of_the_store(self, world: World) -> None:
        """H7: A timeout is measured by the store's clock. The clock of a worker has no effect."""
        await world.suspended("r1", timeout=3600, on_deadline={"fail": True})
        (request,) = (await world.runs.requests()).items
        assert request.deadline_at is not None and request.created_at is not None
        assert abs((request.deadline_at - request.created_at).total_seconds() - 3600) < 5
        assert request.timeout is None

    async def test_deadline_of_a_run_that_goes_on_holds_up_no_other(self, world: World) -> None:
        """H7: A deadline that cannot be applied yet does not delay another deadline."""
        attempt, soon = await world.start("r1", thread="u"), now() + timedelta(seconds=1)
        requests = [HitlRequest(request_id=new_id(), deadline_at=at, on_deadline={"fail": True}) for at in (None, soon)]
        await world.ask(attempt, *requests)
        await world.runs.respond("yes", request_id=requests[0].request_id)
        await world.suspended("r1", deadline_at=soon + timedelta(milliseconds=1), on_deadline={"fail": True})

        async def failed() -> bool:
            await world.runs.admit(1)
            return await world.status("r1") is RunStatus.FAILED

        await eventually(failed)
        assert await world.status("r1", "u") is RunStatus.QUEUED

    async def test_deadline_answers(self, world: World) -> None:
        """H7: A default answer is applied, and the run continues."""
        request = await world.suspended("r1", deadline_at=now() - timedelta(seconds=1), on_deadline={"answer": "default"})
        effects = (await world.runs.admit()).effects
        assert [job.run_id for job in effects.jobs] == ["r1"]
        attempt = await world.take("r1")
        assert (await world.runs.ledger(attempt)).requests[request].answer == "default"
        with pytest.raises(errors.HitlStaleAnswerError):
            await world.runs.respond(1, thread_id=T, request_id=request)

    async def test_redriven_run_asks_anew(self, world: World) -> None:
        """H1, I1: A run ends, and its request is closed without an answer. After a redrive, the run can store this request
        again."""
        request = await world.suspended("r1", deadline_at=now() - timedelta(seconds=1), on_deadline={"fail": True})
        await world.runs.admit()
        assert await world.status("r1") is RunStatus.FAILED
        await world.runs.redrive(T, "r1")
        attempt = await world.take("r1")
        assert (await world.runs.ledger(attempt)).requests == {}
        ended = await world.ask(attempt, HitlRequest(request_id=request, payload={"question": "?"}))
        assert ended.status is RunStatus.SUSPENDED
        assert [pending.request_id for pending in (await world.runs.requests()).items] == [request]
        assert (await world.runs.respond("now", thread_id=T)).created
