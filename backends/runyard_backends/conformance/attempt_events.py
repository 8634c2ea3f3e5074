"""Events of an attempt: their numbers, and the events that the store makes from its rows (E2)."""

from __future__ import annotations

import json

import pytest

from runyard.domain.event_data import check_event_data
from runyard.domain.states import RunStatus
from runyard.models import Event, HitlRequest, new_id
from runyard.ports.commands import Write
from runyard.ports.refs import RunRef
from runyard.ports.scheduling import EVENT_BYTES_PER_READ

from .world import T, World, said

pytestmark = pytest.mark.asyncio


class TestAttemptEvents:
    async def test_events_number_the_write(self, world: World) -> None:
        """E1: The events of the run's messages and of its end have ids with the fence of the attempt."""
        attempt = await world.start("r1")
        await world.runs.append(attempt, [said("one")], first_event=3)
        ended = await world.finish(attempt, said("two"), first_event=7)
        assert ended.event_id == f"{attempt.fence}-8"
        events = await world.runs.run_events(attempt.ref)
        assert [(e.id, e.type) for e in events if e.type != "run.started"][-3:] == [
            (f"{attempt.fence}-3", "message.completed"),
            (f"{attempt.fence}-7", "message.completed"),
            (f"{attempt.fence}-8", "run.completed"),
        ]

    async def test_proven_events_hold_what_live_ones_do(self, world: World) -> None:
        """E1: The store makes events from its rows. They have the same types and data as the live events of the run."""
        await world.turn("r1")
        await world.failed("r2")
        asked = await world.suspended("r3")
        proven = {run: await world.runs.run_events(await world.ref(run)) for run in ("r1", "r2", "r3")}
        ends = {run: (events[-1].type, events[-1].data) for run, events in proven.items()}
        assert ends["r1"] == ("run.completed", {"status": "completed"})
        error = {"code": "x", "message": "x", "details": {}}
        assert ends["r2"] == ("run.failed", {"status": "failed", "error": error})
        assert ends["r3"] == ("run.suspended", {"status": "suspended", "request_ids": [asked]})
        outside = (await world.runs.cancel(T, "r3")).effects.events
        assert [(event.type, event.data) for event in outside] == [("run.cancelled", {"status": "cancelled"})]
        stored_events = [(event.type, event.data) for events in proven.values() for event in events]
        for type_, data in (*stored_events, *((event.type, event.data) for event in outside)):
            check_event_data(type_, data)

    async def test_proven_events_come_in_pages(self, world: World) -> None:
        """E1, E4: The store makes events from its rows, and a reader gets them in pages. A page has a limited number of events
        and of bytes."""
        first = await world.start("r1")
        small = [said(f"small {n}") for n in range(5)]
        await world.runs.append(first, small, first_event=3)
        await world.runs.release(first)
        second = await world.take("r1")
        large = [said("x" * (EVENT_BYTES_PER_READ // 3)) for _ in range(7)]
        await world.runs.append(second, large, first_event=4)
        huge = said("x" * EVENT_BYTES_PER_READ * 2)
        asked = [HitlRequest(request_id=f"q{n}", payload={"question": "x" * n}) for n in (9, 1, 5)]
        await world.runs.suspend(Write(attempt=second, messages=[huge], first_event=20), asked)
        numbers = [f"{first.fence}-{n}" for n in range(2, 8)] + [f"{second.fence}-{n}" for n in (*range(4, 11), *range(20, 25))]
        found, after = list[list[Event]](), None
        while page := await world.runs.run_events(first.ref, after):
            found.append(page)
            after = page[-1].id
        events = [event for page in found for event in page]
        assert [event.id for event in events] == numbers
        assert [event.type for event in events[-4:]] == [*["hitl.requested"] * 3, "run.suspended"]
        assert events[-1].data["request_ids"] == ["q9", "q1", "q5"]
        sizes = [sum(len(json.dumps(event.data)) for event in page) for page in found]
        assert all(size <= EVENT_BYTES_PER_READ or len(page) == 1 for size, page in zip(sizes, found, strict=True)), sizes
        for n, event_id in enumerate(numbers):
            assert await world.runs.run_events(first.ref, event_id, limit=1) == events[n + 1 : n + 2]
        assert await world.runs.run_events(first.ref, f"{first.fence}-9", limit=1) == events[6:7]
        assert await world.runs.run_events(first.ref, f"{10**30}-{10**30}") == []
        assert await world.runs.run_events(RunRef(first.thread_key, "nowhere")) == []

    async def test_a_request_that_is_waited_for_again_has_one_event(self, world: World) -> None:
        """E1, H12: A later attempt waits for the stored request without a second event. The request is answered once, and the
        answer still queues the run again."""
        attempt = await world.start("r1")
        one, two, three = (HitlRequest(request_id=name, payload={"question": name}) for name in ("one", "two", "three"))
        await world.ask(attempt, one, two)
        await world.runs.respond(1, request_id="one")
        attempt = await world.take("r1")
        ledger = await world.runs.ledger(attempt)
        assert set(ledger.received) == {"one"}
        parked = await world.ask(attempt, ledger.requests["two"], three, first_event=5)
        assert (parked.status, parked.event_id) == (RunStatus.SUSPENDED, f"{attempt.fence}-6")
        asked = [event.id for event in await world.runs.run_events(attempt.ref) if event.type == "hitl.requested"]
        assert len(asked) == 3 and asked[-1] == f"{attempt.fence}-5"
        await world.runs.respond(2, request_id="two")
        attempt = await world.take("r1")
        ledger = await world.runs.ledger(attempt)
        assert set(ledger.received) == {"two"}
        await world.runs.respond(3, request_id="three")
        assert (await world.ask(attempt, ledger.requests["three"])).status is RunStatus.RUNNING
        assert set((await world.runs.ledger(attempt)).received) == {"two", "three"}
        await world.runs.release(attempt)
        assert not (await world.runs.ledger(await world.take("r1"))).received

    async def test_a_request_of_an_external_run_has_no_proven_event(self, world: World) -> None:
        """E1: A request that a checkpointer saved has no event id. The events of its run do not contain the request."""
        await world.checkpointer.claim_run(T, "x")
        await world.checkpointer.save_pending_request(T, HitlRequest(request_id=new_id()), run_id="x")
        events = await world.runs.run_events(await world.ref("x"))
        assert "hitl.requested" not in {event.type for event in events} and all(event.id for event in events)

    async def test_deleted_thread_proves_no_events(self, world: World) -> None:
        """E4: After the deletion of a thread, the store makes no more events from its rows."""
        await world.suspended("r1")
        ref = await world.ref("r1")
        await world.threads.delete_thread(T, cancel=True)
        assert await world.runs.run_events(ref) == []

    async def test_an_end_with_the_number_of_a_message_is_proved(self, world: World) -> None:
        """E2: Readers wait for the event of a run's end. This event is therefore returned even if a message has the same event
        number."""
        await world.suspended("r1")
        run = await world.run("r1")
        events = await world.runs.run_events(await world.ref("r1"))
        assert [event.type for event in events if event.id == run.event_id] == ["run.suspended"]

    async def test_an_end_that_was_left_behind_is_not_proved(self, world: World) -> None:
        """E2: The store makes events from its rows. After an answer, these events do not include ``run.suspended``, because the
        run is queued again."""
        request_id = await world.suspended("r1")
        await world.runs.respond("yes", request_id=request_id)
        events = await world.runs.run_events(await world.ref("r1"))
        assert {event.type for event in events} == {"message.completed", "hitl.requested"}

    async def test_a_release_without_a_task_ends_a_cancelled_run_after_all_its_events(self, world: World) -> None:
        """E1: A release can end a cancelled run whose attempt has no task any more. The event of the run's end gets a new
        fence, because it is unknown how many events the attempt had."""
        attempt = await world.start("r1")
        await world.runs.append(attempt, [said("one")], first_event=3)
        await world.runs.cancel(T, "r1")
        ended = await world.runs.release(attempt, first_event=None)
        assert ended.status is RunStatus.CANCELLED
        assert [event.event_id for event in ended.effects.events] == [ended.event_id]
        events = await world.runs.run_events(attempt.ref)
        assert [event.type for event in events][-2:] == ["message.completed", "run.cancelled"]
        assert events[-1].id == ended.event_id
