"""Waits of runs for a time or a signal, in the store (K1, K2)."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from runyard import errors
from runyard.domain.explanations import moment
from runyard.domain.states import RunStatus
from runyard.domain.waits import MAX_OPEN_SIGNALS, MAX_WAITS, Wait
from runyard.models import ErrorInfo, HitlRequest, Usage, new_id
from runyard.ports.commands import Write
from runyard.ports.refs import AttemptToken
from runyard.ports.results import Ended

from .world import T, World, eventually, now, said

pytestmark = pytest.mark.asyncio

SOON = 0.3
"""Seconds of a wait that ends during the test, but never during the call that suspends the run."""


def sleep(wait_id: str = "nap", **fields: Any) -> Wait:
    return Wait(wait_id=wait_id, kind="sleep", **fields)


async def park(world: World, attempt: AttemptToken, *waits: Wait, asks: HitlRequest | None = None) -> Ended:
    return await world.runs.suspend(Write(attempt=attempt), [asks] if asks else [], waits)


async def wake(world: World, run_id: str = "r1") -> AttemptToken:
    """Claim the run after its wait has ended."""

    async def queued() -> bool:
        await world.runs.admit()
        return await world.status(run_id) is RunStatus.QUEUED

    await eventually(queued)
    return await world.take(run_id)


class TestSleep:
    async def test_k1_a_sleeper_is_parked_until_its_time(self, world: World) -> None:
        """K1: A sleeping run holds no worker and no permit. It is not in the inbox and does not count as a waiting request."""
        attempt = await world.start("r1")
        ended = await park(world, attempt, sleep(timeout=3600))
        assert ended.status is RunStatus.SUSPENDED
        run = await world.run("r1")
        assert (run.status, run.waiting_for, run.worker_id, run.stopped) == (RunStatus.SUSPENDED, "wait", None, False)
        assert (await world.claim("r1")).outcome == "suspended"
        assert (await world.runs.requests(pending=False)).items == []
        assert (await world.workers.measure()).oldest_request is None
        admitted = await world.runs.admit()
        assert admitted.next_due is not None and 3500 < admitted.next_due <= 3600
        with pytest.raises(errors.HitlNoPendingRequestError):
            await world.runs.respond("yes", thread_id=T)
        assert (await world.runs.abort_pending(T, "why")).run is None

    async def test_k1_the_time_wakes_the_run_once(self, world: World) -> None:
        """K1, H5: The same run continues in another attempt, and its ledger has the end of the sleep."""
        await park(world, await world.start("r1"), sleep(timeout=SOON))
        attempt = await wake(world)
        ledger = await world.runs.ledger(attempt)
        assert ledger.waits["nap"].ended_at is not None
        ended = await park(world, attempt, sleep(timeout=3600))  # the same sleep does not begin again
        assert ended.status is RunStatus.RUNNING
        await world.finish(attempt, said("awake"))
        assert await world.texts() == ["hi", "awake"] and (await world.run("r1")).attempt == 2
        assert (await world.runs.admit()).next_due is None

    async def test_k1_a_due_time_that_has_passed_parks_nothing(self, world: World) -> None:
        attempt = await world.start("r1")
        for due in (sleep(due_at=now() - timedelta(seconds=1)), sleep("other", timeout=0)):
            assert (await park(world, attempt, due)).status is RunStatus.RUNNING
        assert {wait.ended_at is not None for wait in (await world.runs.ledger(attempt)).waits.values()} == {True}

    async def test_k1_the_first_due_time_stays(self, world: World) -> None:
        """K1: An answer may start a later attempt during a sleep. This attempt continues the sleep with its first due time."""
        ask = HitlRequest(request_id=new_id())
        await park(world, await world.start("r1"), sleep(timeout=3600), asks=ask)
        run = await world.run("r1")
        assert run.waiting_for == "answer" and run.stopped
        await world.runs.respond("yes", request_id=ask.request_id)
        attempt = await world.take("r1")
        first = (await world.runs.ledger(attempt)).waits["nap"].due_at
        await park(world, attempt, sleep(timeout=7200))
        assert (await world.runs.explain(T, "r1")) == f"sleeping until {moment(first)}" if first else False

    async def test_k1_a_sleeper_blocks_its_lane_only(self, world: World) -> None:
        """R3, R4: A prompt behind a sleeping run waits until the sleeping run has ended."""
        await park(world, await world.start("r1"), sleep(timeout=SOON))
        await world.accept("r2")
        assert (await world.claim("r2")).outcome == "behind"
        await world.finish(await wake(world), said("awake"))
        await world.take("r2")

    async def test_r10_a_cancel_ends_a_sleeper_at_once(self, world: World) -> None:
        """R10: A cancel ends a sleeping run at once. The end of its sleep has no effect."""
        await park(world, await world.start("r1"), sleep(timeout=SOON))
        changed = await world.runs.cancel(T, "r1")
        assert changed.run.status is RunStatus.CANCELLED and changed.run.waiting_for is None
        assert (await world.runs.admit()).next_due is None
        assert await world.status("r1") is RunStatus.CANCELLED

    async def test_i2_an_attempt_without_the_fence_parks_nothing(self, world: World) -> None:
        """I2, R10: The suspension by an attempt that is over is refused. The waits of a run with a requested cancel are not
        stored."""
        attempt = await world.start("r1")
        await world.bury()
        other = await world.take("r1", worker="w2")
        with pytest.raises(errors.StaleFenceError):
            await park(world, attempt, sleep(timeout=1))
        await world.runs.cancel(T, "r1")
        assert (await park(world, other, sleep(timeout=1))).status is RunStatus.CANCELLED
        assert (await world.runs.admit()).next_due is None

    async def test_a_repeated_suspension_changes_nothing(self, world: World) -> None:
        """A repeated call after a lost reply has no effect."""
        attempt = await world.start("r1")
        first, second = [await park(world, attempt, sleep(timeout=60)) for _ in range(2)]
        assert (first.status, first.event_id) == (second.status, second.event_id)

    async def test_r10_the_usage_of_a_repeated_suspension_counts_once(self, world: World) -> None:
        """R10: The first call of ``suspend`` stores the usage, but its reply is lost. The call is repeated after a cancel. The
        usage counts once."""
        attempt, used = await world.start("r1"), Usage(requests=1, input_tokens=7)
        write = Write(attempt=attempt, usage=used)
        assert (await world.runs.suspend(write, [], [sleep(timeout=0)])).status is RunStatus.RUNNING
        await world.runs.cancel(T, "r1")
        assert (await world.runs.suspend(write, [], [sleep(timeout=0)])).status is RunStatus.CANCELLED
        assert (await world.run("r1")).usage == used

    async def test_a_redriven_run_sleeps_again(self, world: World) -> None:
        """The redriven run keeps the sleeps that had ended. Its open sleep is deleted."""
        await park(world, await world.start("r1"), sleep("done", timeout=SOON))
        ask = HitlRequest(request_id=new_id(), timeout=SOON, on_deadline={"fail": True})
        await park(world, await wake(world), sleep("open", timeout=3600), asks=ask)

        async def failed() -> bool:
            await world.runs.admit()
            return await world.status("r1") is RunStatus.FAILED

        await eventually(failed)
        await world.runs.redrive(T, "r1")
        assert set((await world.runs.ledger(await world.take("r1"))).waits) == {"done"}

    async def test_deleting_a_thread_forgets_its_sleepers(self, world: World) -> None:
        await park(world, await world.start("r1"), sleep(timeout=60))
        await world.threads.delete_thread(T, cancel=True)
        assert (await world.runs.admit()).next_due is None

    async def test_the_waits_of_a_run_are_bounded(self, world: World) -> None:
        attempt = await world.start("r1")
        with pytest.raises(errors.InvalidInputError):
            await park(world, attempt, *(sleep(str(n), timeout=1) for n in range(MAX_WAITS + 1)))
        await world.runs.fail(Write(attempt=attempt), ErrorInfo(code="x", message="x"))


def signal(wait_id: str = "w", name: str = "paid", **fields: Any) -> Wait:
    return Wait(wait_id=wait_id, kind="signal", name=name, **fields)


class TestSignals:
    async def test_k2_a_signal_wakes_the_run_that_waits(self, world: World) -> None:
        """K2: The run continues with the value of the signal. The sender can read which run took the signal."""
        assert (await park(world, await world.start("r1"), signal())).status is RunStatus.SUSPENDED
        sent = await world.runs.signal(T, "paid", {"order": 7}, signal_id="s")
        assert (sent.created, sent.signal.run_id, sent.signal.value) == (True, "r1", {"order": 7})
        assert await world.status("r1") is RunStatus.QUEUED
        again = await world.runs.signal(T, "paid", {"order": 7}, signal_id="s")  # the reply of the first call was lost
        assert (again.created, again.effects.jobs) == (False, sent.effects.jobs)
        wait = (await world.runs.ledger(await world.take("r1"))).waits["w"]
        assert not (await world.runs.signal(T, "paid", {"order": 7}, signal_id="s")).effects
        assert (wait.signal_id, wait.value, wait.ended_at is not None) == ("s", {"order": 7}, True)

    async def test_k2_a_signal_may_come_first(self, world: World) -> None:
        """K2: A signal stays until a run waits for it. Each signal is taken once. The oldest signal is taken first."""
        attempt = await world.start("r1")
        for n in range(3):
            assert (await world.runs.signal(T, "paid", n, signal_id=f"s{n}")).signal.run_id is None
        await world.runs.signal(T, "other", "x", signal_id="x")
        for _ in range(2):  # the second call repeats the first after a lost reply
            assert (await park(world, attempt, signal("a"), signal("b"))).status is RunStatus.RUNNING
        waits = (await world.runs.ledger(attempt)).waits
        assert {name: wait.value for name, wait in waits.items()} == {"a": 0, "b": 1}
        assert (await park(world, attempt, signal("c"), signal("d"))).status is RunStatus.RUNNING
        ledger = await world.runs.ledger(attempt)
        assert (ledger.waits["c"].value, ledger.waits["d"].signal_id) == (2, None)

    async def test_k2_a_repeated_signal_is_one_signal(self, world: World) -> None:
        """K2: A repeated signal is one signal, before and after a run took it. Another name or value with the same id is
        refused."""
        attempt = await world.start("r1")
        first = await world.runs.signal(T, "paid", 1, signal_id="s")
        again = await world.runs.signal(T, "paid", 1, signal_id="s")
        assert again.signal == first.signal
        await park(world, attempt, signal("a"))
        await world.runs.signal(T, "paid", 1, signal_id="s")
        for name, value in (("paid", 2), ("due", 1)):
            with pytest.raises(errors.SignalConflictError):
                await world.runs.signal(T, name, value, signal_id="s")
        assert (await park(world, attempt, signal("b"))).status is RunStatus.SUSPENDED

    async def test_k2_of_many_senders_and_one_wait_one_signal_is_taken(self, world: World) -> None:
        await park(world, await world.start("r1"), signal())
        sent = await asyncio.gather(*(world.runs.signal(T, "paid", n, signal_id=f"s{n}") for n in range(8)))
        assert sorted(each.signal.run_id or "" for each in sent) == [""] * 7 + ["r1"]

    async def test_k2_a_wait_that_timed_out_takes_nothing(self, world: World) -> None:
        await park(world, await world.start("r1"), signal(timeout=SOON))
        attempt = await wake(world)
        assert (await world.runs.signal(T, "paid", 1, signal_id="s")).signal.run_id is None
        wait = (await world.runs.ledger(attempt)).waits["w"]
        assert wait.ended_at is not None and wait.signal_id is None

    async def test_k2_an_ended_run_takes_nothing(self, world: World) -> None:
        """K2: A cancelled run takes no signal. A completed run whose other wait ended first takes no signal either."""
        await park(world, await world.start("r1"), signal())
        await world.runs.cancel(T, "r1")
        attempt = await world.start("r2")
        assert (await park(world, attempt, signal(), sleep(timeout=0))).status is RunStatus.RUNNING
        await world.finish(attempt, said("done"))
        assert (await world.runs.signal(T, "paid", 1, signal_id="s")).signal.run_id is None
        await park(world, await world.start("r3"), signal())
        assert (await world.runs.signal(T, "paid", 1, signal_id="s")).signal.run_id == "r3"

    async def test_k2_a_signal_belongs_to_its_thread(self, world: World) -> None:
        """K2, A1: Other threads, forks, and threads of another tenant do not have the signal."""
        other = World(await world.factory(tenant="b"), world.factory)
        await world.turn("r0")
        await world.runs.signal(T, "paid", 1, signal_id="s")
        await world.fork("f", after_run_id="r0")
        for thread in ("f", "u"):
            attempt = await world.start("r1", thread=thread)
            assert (await park(world, attempt, signal())).status is RunStatus.SUSPENDED
        with pytest.raises(errors.ThreadNotFoundError):
            await other.runs.signal(T, "paid", 1, signal_id="s")
        with pytest.raises(errors.ThreadNotFoundError):
            await world.runs.signal("unknown", "paid", 1, signal_id="s")

    @pytest.mark.parametrize(
        ("name", "value"), [("", 1), ("x" * 256, 1), ("a\nb", 1), ("paid", "x" * 9_000_000), ("paid", float("nan"))]
    )
    async def test_a2_invalid_signals_are_refused(self, world: World, name: str, value: Any) -> None:
        await world.accept("r1")
        with pytest.raises((errors.InvalidInputError, errors.RequestTooLargeError)):
            await world.runs.signal(T, name, value, signal_id="s")

    async def test_a2_the_sender_of_a_signal_has_a_bounded_name(self, world: World) -> None:
        await world.accept("r1")
        with pytest.raises(errors.InvalidInputError):
            await world.runs.signal(T, "paid", 1, signal_id="s", sent_by="x" * 1001)
        assert (await world.runs.signal(T, "paid", 1, signal_id="s", sent_by="x" * 1000)).signal.sent_by == "x" * 1000

    async def test_a2_the_signals_that_nobody_takes_are_bounded(self, world: World) -> None:
        await world.accept("r1")
        for part in range(0, MAX_OPEN_SIGNALS, 100):
            sent = (world.runs.signal(T, f"n{n}", n, signal_id=f"s{n}") for n in range(part, part + 100))
            await asyncio.gather(*sent)
        with pytest.raises(errors.TooManySignalsError):
            await world.runs.signal(T, "one more", 1, signal_id="more")

    async def test_d1_deletion_removes_signals(self, world: World) -> None:
        """D1, D2: A new thread with the id of a deleted thread does not have the signals of the deleted thread."""
        await world.accept("r1")
        await world.runs.signal(T, "paid", 1, signal_id="s")
        await world.threads.delete_thread(T, cancel=True)
        assert (await park(world, await world.start("r1"), signal())).status is RunStatus.SUSPENDED
        assert (await world.runs.signal(T, "paid", 2, signal_id="s")).created

    async def test_d1_deletion_of_a_run_removes_the_signals_that_it_took(self, world: World) -> None:
        """D1: Deleting a run deletes the signals that it took. Other signals of the thread stay."""
        attempt = await world.start("r1")
        for n in range(2):
            await world.runs.signal(T, "paid", n, signal_id=f"s{n}")
        await park(world, attempt, signal())
        await world.runs.fail(Write(attempt=attempt), ErrorInfo(code="x", message="x"))
        await world.runs.delete_run(T, "r1")
        assert (await world.runs.signal(T, "paid", "other", signal_id="s0")).created
        assert not (await world.runs.signal(T, "paid", 1, signal_id="s1")).created

    async def test_k2_a_refused_signal_changes_nothing(self, world: World) -> None:
        """K2: A refused signal returns no effects, so it cannot submit a job. The refused call therefore does not process a
        wait that has ended. A later call processes this wait and queues the run again."""
        attempt = await world.start("r1")
        await world.runs.signal(T, "paid", True, signal_id="s")
        due = now() + timedelta(seconds=0.2)
        await park(world, attempt, sleep(due_at=due))

        async def passed() -> bool:
            return now() > due

        await eventually(passed)
        with pytest.raises(errors.SignalConflictError):
            await world.runs.signal(T, "paid", 1, signal_id="s")  # 1 == True in Python
        with pytest.raises(errors.SignalConflictError):
            await world.runs.signal(T, "paid", [True], signal_id="s")
        repeated = await world.runs.signal(T, "paid", True, signal_id="s")
        assert not repeated.created and repeated.effects.jobs == []
        assert await world.status("r1") is RunStatus.SUSPENDED
        assert [job.run_id for job in (await world.runs.admit()).effects.jobs] == ["r1"]

    async def test_k2_the_oldest_wait_takes_the_signal(self, world: World) -> None:
        """K2, R12: The waits of one suspension have the order in which the run asked for them. The first wait in this order
        takes the first signal."""
        names = [f"w{n * 7 % 10}" for n in range(10)]
        await park(world, await world.start("r1"), *(signal(name) for name in names))
        for taken in range(3):
            sent = await world.runs.signal(T, "paid", taken, signal_id=f"s{taken}")
            assert sent.created
        waits = (await world.runs.ledger(await world.take("r1"))).waits
        assert {name: wait.value for name, wait in waits.items() if wait.signal_id} == dict(zip(names, range(3), strict=False))

    async def test_r12_explain_names_the_first_of_several_waits(self, world: World) -> None:
        names = [f"name{n * 7 % 10}" for n in range(10)]
        await park(world, await world.start("r1"), *(signal(f"w{name}", name) for name in names))
        assert (await world.runs.explain(T, "r1")).startswith("waiting for signal name0 since")
        await world.runs.signal(T, "name0", 1, signal_id="s")
        await park(world, await world.take("r1"), *(signal(f"w{name}", name) for name in names[1:]))
        assert (await world.runs.explain(T, "r1")).startswith("waiting for signal name7 since")

    async def test_r12_explain_names_the_signal(self, world: World) -> None:
        await park(world, await world.start("r1"), signal())
        since = (await world.run("r1")).suspended_at
        assert since is not None
        assert await world.runs.explain(T, "r1") == f"waiting for signal paid since {moment(since)}"
