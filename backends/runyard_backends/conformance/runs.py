"""Runs: acceptance, due times, lists."""

from __future__ import annotations

from datetime import timedelta

import pytest

from runyard import errors
from runyard.domain.states import RunStatus
from runyard.models import ErrorInfo, Event, Message, RunOptions
from runyard.ports.commands import AcceptRequest, ThreadRequest, Write
from runyard.ports.queries import PageRequest, RunFilter
from runyard.ports.scheduling import Effects

from .world import T, World, eventually, now, said

pytestmark = pytest.mark.asyncio


class TestRunsWithoutWorkers:
    """The tests of :class:`TestRuns` that also apply to a store without workers."""

    async def test_every_message_carries_the_run_id(self, world: World) -> None:
        """R1: Every message of a run carries the run id, including the user's message."""
        await world.turn("r1")
        assert [(m.text, m.run_id) for m in await world.messages()] == [("r1?", "r1"), ("r1!", "r1")]

    async def test_bad_ids(self, world: World) -> None:
        """A2: An id that does not have 1 to 255 printable characters is refused."""
        for bad in ("", "a\nb", "x" * 256):
            with pytest.raises(errors.InvalidInputError):
                await world.accept(bad)
            with pytest.raises(errors.InvalidInputError):
                await world.accept("r", thread=bad)
            for name in ("agent", "queue"):
                with pytest.raises(errors.InvalidInputError):
                    await world.accept("r", **{name: bad})
            with pytest.raises(errors.InvalidInputError):
                await world.threads.create_thread(ThreadRequest(thread_id="new", agent=bad))
            with pytest.raises(errors.InvalidInputError):
                await world.fork("new", options={"agent": bad})


class TestRuns(TestRunsWithoutWorkers):
    async def test_accept_creates_thread_and_job(self, world: World) -> None:
        """R1: ``accept`` creates the thread if necessary and returns the job of the run."""
        accepted = await world.accept("r1", agent="helper", queue="q", priority="high", metadata={"a": 1})
        assert accepted.created and accepted.run.status is RunStatus.QUEUED
        (job,) = accepted.effects.jobs
        assert (job.ref, job.queue, job.priority, job.kind) == (await world.ref("r1"), "q", "high", "prompt")
        run = await world.run("r1")
        assert (run.agent, run.metadata, run.input and run.input.text) == ("helper", {"a": 1}, "hi")
        assert await world.texts() == []

    async def test_statuses_are_those_of_the_runs(self, world: World) -> None:
        """``statuses`` takes pairs of thread id and run id, and returns one status per pair, in the same order. The status is
        None if the tenant does not have the run."""
        await world.accept("r1")
        await world.accept("r2")
        await world.finish(await world.take("r1"), said("r1!"))
        await world.accept("r1", thread="u")
        asked = [(T, "r2"), (T, "r1"), ("u", "r1"), ("u", "r2"), ("nothing", "r1"), (T, "r2")]
        queued, completed = RunStatus.QUEUED, RunStatus.COMPLETED
        assert await world.runs.statuses(asked) == [queued, completed, queued, None, None, queued]
        assert await world.runs.statuses([]) == []
        await world.threads.delete_thread("u", cancel=True)
        assert await world.runs.statuses([("u", "r1")]) == [None]

    async def test_a_job_announces_its_run_until_an_attempt_begins(self, world: World) -> None:
        """E6: ``accept`` and ``redrive`` issue a fence for the event ``run.queued``. Every job of the run has this event until
        an attempt begins."""

        def announced(effects: Effects) -> Event | None:
            (job,) = effects.jobs
            return job.queued

        event = announced((await world.accept("r1")).effects)
        assert event is not None
        assert await world.runs.run_events(await world.ref("r1")) == [event]
        assert (event.type, event.thread_id, event.run_id, event.data) == ("run.queued", T, "r1", {"attempt": 1})
        assert (await world.accept("r2")).effects.jobs == []
        page = await world.workers.waiting(unchanged=timedelta(0))
        assert [(job.run_id, job.queued) for job in page.jobs] == [("r1", event)]
        attempt = await world.take("r1")
        assert event not in await world.runs.run_events(attempt.ref)
        assert announced((await world.runs.release(attempt)).effects) is None
        last = await world.take("r1")
        ended = await world.runs.fail(Write(attempt=last), ErrorInfo(code="x", message="x"))
        behind = announced(ended.effects)
        assert behind is not None and (behind.run_id, behind.data) == ("r2", {"attempt": 1})
        await world.finish(await world.take("r2"), said("r2!"))
        again = announced((await world.runs.redrive(T, "r1")).effects)
        assert again is not None and again.data == {"attempt": 3}
        fences = [event.id, behind.id, f"{attempt.fence}-1", f"{last.fence}-1", again.id]
        assert fences == sorted(fences, key=lambda id_: [int(n) for n in str(id_).split("-")])
        assert all(str(id_).endswith("-1") for id_ in fences) and len(set(fences)) == 5

    async def test_repeated_request_is_the_same_run(self, world: World) -> None:
        """R2: A repeated request returns the same run, which is executed once."""
        first = await world.accept("r1", "x")
        assert not (await world.accept("r1", "x")).created
        attempt = await world.take("r1")
        assert not (await world.accept("r1", "x")).created
        await world.finish(attempt, said("done"))
        again = await world.accept("r1", "x")
        assert not again.created and again.run.status is RunStatus.COMPLETED and again.effects.jobs == []
        assert again.run.accepted_at == first.run.accepted_at
        assert await world.texts() == ["x", "done"]

    async def test_other_request_conflicts(self, world: World) -> None:
        """R2: A different request with the same run id raises RunConflictError. The error names the differences."""
        await world.accept("r1", "x", agent="a")
        with pytest.raises(errors.RunConflictError) as caught:
            await world.accept("r1", "y", agent="b")
        assert set(caught.value.details["differs"]) == {"message", "agent"}
        with pytest.raises(errors.RunConflictError, match=r"with another parallel \(false, got true\); choose") as caught:
            await world.accept("r1", "x", agent="a", options=RunOptions(parallel=True))
        assert caught.value.details["differs"] == ["parallel"]
        again = RunOptions(expires_in=60, multitask_strategy="reject")
        words = r'expires_in \(null, got 60(\.0)?\), message, multitask_strategy \("enqueue", got "reject"\); choose'
        with pytest.raises(errors.RunConflictError, match=words) as caught:
            await world.accept("r1", "y", agent="a", options=again)
        assert caught.value.details["differs"] == ["expires_in", "message", "multitask_strategy"]
        assert caught.value.details["values"] == {"expires_in": [None, 60], "multitask_strategy": ["enqueue", "reject"]}

    async def test_a_repetition_may_change_options_that_are_not_compared(self, world: World) -> None:
        """R2: A repeated request may have other values of the options that are not compared. The options of the first request
        apply."""
        await world.accept("r1", "x")
        changed = RunOptions(timeout=9, max_attempts=3, webhook="https://example.com/x")
        again = await world.accept("r1", "x", options=changed, queue="other", priority="high", delay=60)
        assert not again.created and again.run.options.timeout is None and again.run.queue == "default"

    async def test_nul_is_refused(self, world: World) -> None:
        with pytest.raises(errors.InvalidInputError):
            await world.accept("r1", metadata={"a": "\0"})

    async def test_message_text_is_kept_verbatim(self, world: World) -> None:
        """M2: Text is stored verbatim, including lone surrogates and NUL."""
        odd = "\ud800 \0 \u2028 ünï 👩‍👩‍👧"
        attempt = await world.start("r1", odd)
        await world.finish(attempt, said(odd))
        assert await world.texts() == [odd, odd]

    async def test_message_id_must_be_a_uuid(self, world: World) -> None:
        bad = Message(id="nope", role="user", content="x")
        with pytest.raises(errors.InvalidInputError):
            await world.runs.accept(AcceptRequest(thread_id=T, run_id="r1", input=bad))
        attempt = await world.start("r2")
        with pytest.raises(errors.InvalidInputError):
            await world.runs.append(attempt, [bad])

    async def test_continuing_where_nothing_is_to_do_is_refused(self, world: World) -> None:
        """R1: A run with ``message=None`` continues from the leaf. ``accept`` raises NothingToRunError if the leaf needs no
        answer."""
        with pytest.raises(errors.NothingToRunError):
            await world.accept("r0", None)
        assert await world.threads.thread(T) is None
        await world.turn("r1")
        with pytest.raises(errors.NothingToRunError):
            await world.accept("r2", None)
        assert await world.runs.run(T, "r2") is None
        await world.store("and?")
        attempt = await world.start("r2", None)
        assert await world.context(attempt) == ["r1?", "r1!", "and?"]

    async def test_no_message_behind_a_busy_lane(self, world: World) -> None:
        """R1: On a busy lane, a run without a message is accepted, because the run ahead can still add messages."""
        await world.start("r1")
        assert (await world.accept("r2", None)).created

    async def test_run_options_and_metadata_survive(self, world: World) -> None:
        """R11: Options and metadata of a run are stored."""
        options = RunOptions(timeout=5, max_attempts=3)
        await world.accept("r1", options=options, metadata={"k": [1, None, {"x": "y"}]}, app_version="7")
        run = await world.run("r1")
        assert (run.options, run.metadata, run.app_version) == (options, {"k": [1, None, {"x": "y"}]}, "7")

    async def test_delayed_run_is_not_due(self, world: World) -> None:
        """R11: A delayed run does not block its lane before it is due."""
        accepted = await world.accept("late", delay=3600)
        assert accepted.effects.jobs == [] and accepted.run.admitted_at is None
        claim = await world.claim("late")
        assert claim.outcome == "not_due" and claim.retry_in is not None and 3500 < claim.retry_in <= 3600
        await world.turn("r1")
        admitted = await world.runs.admit()
        assert admitted.next_due is not None and 3500 < admitted.next_due <= 3600

    async def test_run_at_in_the_past_is_due(self, world: World) -> None:
        """R11: A run with a ``run_at`` in the past is due at once."""
        await world.accept("r1", run_at=now() - timedelta(hours=1))
        await world.take("r1")

    async def test_delayed_run_is_admitted_when_due(self, world: World) -> None:
        """R11, I1: ``admit`` returns a delayed run when it is due. A run that is already due at its acceptance needs no
        ``admit``."""
        accepted = await world.accept("soon", delay=0.05)
        jobs = [job.run_id for job in accepted.effects.jobs]

        async def handed_out() -> bool:
            jobs.extend(job.run_id for job in (await world.runs.admit()).effects.jobs)
            return bool(jobs)

        await eventually(handed_out)
        assert jobs == ["soon"]
        await world.take("soon")

    async def test_runs_lists_and_filters(self, world: World) -> None:
        await world.turn("r1", agent="a")
        await world.accept("r2", agent="b", thread="u")
        assert {r.run_id for r in (await world.runs.runs()).items} == {"r1", "r2"}
        assert [r.run_id for r in (await world.runs.runs(RunFilter(thread_id="u"))).items] == ["r2"]
        assert [r.run_id for r in (await world.runs.runs(RunFilter(status=RunStatus.COMPLETED))).items] == ["r1"]
        assert [r.run_id for r in (await world.runs.runs(RunFilter(agent="b"))).items] == ["r2"]
        first = await world.runs.runs(page=PageRequest(limit=1))
        second = await world.runs.runs(page=PageRequest(limit=1, cursor=first.next))
        assert {first.items[0].run_id, second.items[0].run_id} == {"r1", "r2"} and second.next is None

    async def test_unknown_runs(self, world: World) -> None:
        assert await world.runs.run(T, "r1") is None
        with pytest.raises(errors.ThreadNotFoundError):
            await world.runs.cancel(T, "r1")
        await world.accept("r1")
        for verb in (world.runs.cancel, world.runs.redrive):
            with pytest.raises(errors.RunNotFoundError):
                await verb(T, "r2")

    async def test_explain_names_what_a_run_waits_for(self, world: World) -> None:
        """R12: ``explain`` returns one sentence that names the reason why the run waits."""
        await world.accept("r1", queue="gpu")
        assert "gpu" in await world.runs.explain(T, "r1")
        await world.accept("r2")
        assert "r1" in await world.runs.explain(T, "r2")

    async def test_explain_of_an_unknown_run_is_refused(self, world: World) -> None:
        """R12: ``explain`` distinguishes an unknown thread from an unknown run."""
        await world.accept("r1")
        for verb in (world.runs.explain, world.runs.attempts):
            with pytest.raises(errors.RunNotFoundError):
                await verb(T, "other")
            with pytest.raises(errors.ThreadNotFoundError):
                await verb("other", "r1")

    async def test_explain_a_run_that_was_put_back(self, world: World) -> None:
        """R12: For a run that was released without an error, ``explain`` names the reason to wait and no error."""
        await world.accept("r1", agent="writer")
        await world.hire("writers", agents={"writer": "default"})
        await world.runs.release(await world.take("r1", worker="writers"), delay=3600)
        await world.hire("readers", agents={"reader": "default"})
        await world.bury("writers")
        why = await world.runs.explain(T, "r1")
        assert "agent writer" in why and "error" not in why
        error = ErrorInfo(code="flaky", message="again")
        await world.runs.release(await world.start("r2", thread="u"), delay=3600, error=error)
        assert "after flaky: again" in await world.runs.explain("u", "r2")
