"""The agent of a run (L1 to L5). A request can name the agent. Otherwise the run gets the agent of its thread. If the thread
has none, the run gets the default agent of the namespace."""

from __future__ import annotations

from typing import Any

import pytest

from runyard.models import Limit, Run
from runyard.ports.commands import AcceptRequest, Cut, ForkRequest, ThreadRequest
from runyard.ports.queries import RunFilter
from runyard.ports.results import Claim

from .world import T, World, said

pytestmark = pytest.mark.asyncio


async def hire(world: World, worker_id: str, *agents: str, default: str | None = None, queue: str = "default") -> None:
    """Register a worker. ``default``: the default agent of the worker, or None for its first agent."""
    names = dict.fromkeys(agents, queue)
    await world.hire(worker_id, queues=[queue], agents=names, default_agent=default or agents[0])


async def accepted(world: World, run_id: str, agent: str | None = None, *, thread: str = T, **fields: Any) -> Run:
    """Accept a run and return it. Check that the result, the stored run and the list of the agent's runs show the same
    agent."""
    run = (await world.accept(run_id, thread=thread, agent=agent, **fields)).run
    assert (await world.run(run_id, thread)).agent == run.agent
    if run.agent is not None:
        assert run_id in [each.run_id for each in (await world.runs.runs(RunFilter(agent=run.agent))).items]
    return run


async def agent_of(world: World, thread: str = T) -> str | None:
    found = await world.threads.thread(thread)
    assert found is not None
    return found.agent


async def claimed(world: World, run_id: str, worker: str, *, thread: str = T) -> Claim:
    (claim,) = await world.runs.claim(worker, [await world.ref(run_id, thread)])
    return claim


async def executed(world: World, run_id: str, worker: str) -> None:
    claim = await claimed(world, run_id, worker)
    assert claim.attempt is not None
    await world.finish(claim.attempt, said("!"))


class TestAgents:
    async def test_a_run_gets_the_default_agent_when_it_is_accepted(self, world: World) -> None:
        """L1: The run, its thread and later runs of the thread get the default agent. A later change of the default agent does
        not affect them."""
        await hire(world, "w", "writer", "reader")
        assert (await accepted(world, "r1")).agent == "writer"
        assert await agent_of(world) == "writer"
        await world.workers.leave("w")
        await hire(world, "v", "editor", "writer")
        assert (await accepted(world, "r2")).agent == "writer"
        assert (await accepted(world, "r3", thread="u")).agent == "editor"

    async def test_a_run_that_names_an_agent_gets_it(self, world: World) -> None:
        """L1: A thread keeps the agent of its first run. A later run may name another agent for itself."""
        await hire(world, "w", "writer", "reader")
        assert (await accepted(world, "r1", "reader")).agent == "reader"
        assert (await accepted(world, "r2", "writer")).agent == "writer"
        assert (await accepted(world, "r3")).agent == "reader"
        assert await agent_of(world) == "reader"

    async def test_a_thread_gets_another_agent(self, world: World) -> None:
        """L2: The agent of a thread changes. Later runs have the new agent. Queued runs keep their agent. When the agent of the
        thread is removed, the next run gets the default agent."""
        await hire(world, "w", "writer", "reader")
        await accepted(world, "r1")
        assert (await world.threads.update_thread(T, agent="reader")).agent == "reader"
        assert (await accepted(world, "r2")).agent == "reader"
        assert (await world.run("r1")).agent == "writer"
        assert (await world.threads.update_thread(T, agent=None)).agent is None
        assert (await accepted(world, "r3")).agent == "writer"
        assert await agent_of(world) == "writer"

    async def test_a_thread_that_was_created_gets_the_agent_of_its_first_run(self, world: World) -> None:
        """L1: The first run gets the default agent. The thread, which had no agent, gets the same agent."""
        await hire(world, "w", "writer")
        await world.threads.create_thread(ThreadRequest(thread_id=T))
        assert await agent_of(world) is None
        assert (await accepted(world, "r1")).agent == "writer"
        assert await agent_of(world) == "writer"

    async def test_a_run_that_was_accepted_before_any_worker_gets_the_agent_of_its_first_claim(self, world: World) -> None:
        """L1: The claim sets the agent of the run and of its thread."""
        assert (await accepted(world, "r1")).agent is None
        await hire(world, "w", "writer", "reader")
        claim = await claimed(world, "r1", "w")
        assert claim.outcome == "claimed" and claim.run is not None and claim.run.agent == "writer"
        assert (await world.run("r1")).agent == await agent_of(world) == "writer"
        assert (await world.runs.runs(RunFilter(agent="writer"))).items[0].run_id == "r1"

    @pytest.mark.parametrize("limited", [False, True])
    async def test_runs_that_were_accepted_before_any_worker_get_the_agent_of_their_thread(
        self, world: World, limited: bool
    ) -> None:
        """L1, L4: The first claim sets the agent of the thread, and the later runs of the thread get this agent. A worker with
        a different default agent executes these later runs only if the worker also serves the agent of the thread."""
        if limited:
            await world.backend.limits.set_limit(Limit(name="running_per_agent", subject="a", most=9))
        for run_id in ("r1", "r2", "r3"):
            await accepted(world, run_id)
        await hire(world, "w", "a")
        await hire(world, "v", "b")
        await hire(world, "both", "c", "a")
        await executed(world, "r1", "w")
        assert (await claimed(world, "r2", "v")).outcome == "unserved"
        assert (await world.run("r2")).agent == "a"
        await executed(world, "r2", "w")
        claim = await claimed(world, "r3", "both")
        assert claim.run is not None and claim.run.agent == await agent_of(world) == "a"

    async def test_the_default_agent_changes_with_the_workers_that_have_it(self, world: World) -> None:
        """L3: A namespace keeps its default agent while a live worker has the same default. When no live worker has this
        default, the namespace takes the default agent of the newest live worker. A new worker alone does not change the
        default."""
        await hire(world, "a1", "a")
        await hire(world, "b1", "b", "a")
        await hire(world, "a2", "a")
        assert (await accepted(world, "r1", thread="t1")).agent == "a"
        await world.workers.leave("a1")
        assert (await accepted(world, "r2", thread="t2")).agent == "a"
        await world.bury("a2")
        assert (await accepted(world, "r3", thread="t3")).agent == "b"
        await world.workers.leave("b1")
        assert (await accepted(world, "r4", thread="t4")).agent == "b"

    async def test_programs_in_two_namespaces_never_answer_each_others_threads(self, world: World) -> None:
        """L4: Two programs have different namespaces. Neither executes runs of the other. This holds for default agents, for
        runs on a thread of the other program, and for agents with the same name."""
        await hire(world, "w1", "shop/clerk", queue="shop")
        await hire(world, "w2", "blog/clerk", queue="blog")
        for namespace, worker, other in (("shop", "w1", "w2"), ("blog", "w2", "w1")):
            run = await accepted(world, namespace, f"{namespace}/", thread=namespace)
            assert (run.agent, run.queue) == (f"{namespace}/clerk", namespace)
            assert (await claimed(world, namespace, other, thread=namespace)).outcome == "unserved"
            assert (await claimed(world, namespace, worker, thread=namespace)).outcome == "claimed"
        assert (await accepted(world, "r2", "blog/", thread="shop")).agent == "shop/clerk"
        assert (await accepted(world, "r3", None, thread="shop")).agent == "shop/clerk"
        assert (await accepted(world, "r4", None, thread="other")).agent is None
        assert (await claimed(world, "r4", "w1", thread="other")).outcome == "unserved"

    async def test_a_run_waits_for_a_worker_of_its_namespace(self, world: World) -> None:
        """L4, R12: A run waits for a worker of its namespace. The run also waits if no such worker was registered when the run
        was accepted.
        """
        run = await accepted(world, "r1", "shop/")
        assert (run.agent, run.queue) == ("shop/", "shop")
        assert (await accepted(world, "r2", "shop/clerk", thread="u")).queue == "shop"
        await hire(world, "w", "writer", queue="shop")
        assert await world.runs.explain(T, "r1") == "no live worker of queue shop serves an agent of namespace shop"
        assert await world.runs.explain("u", "r2") == "no live worker of queue shop serves agent shop/clerk"
        assert (await claimed(world, "r1", "w")).outcome == "unserved"
        await hire(world, "v", "shop/clerk", queue="shop")
        assert (
            await world.runs.explain(T, "r1")
            == "worker w does not serve the run's agent; waiting for a free worker that serves it"
        )
        claim = await claimed(world, "r1", "v")
        assert claim.run is not None and claim.run.agent == "shop/clerk"
        assert await agent_of(world) == "shop/clerk"

    async def test_explain_names_a_run_without_an_agent_that_no_worker_serves(self, world: World) -> None:
        """L4, R12: For a run without an agent, ``explain`` says that no worker serves an agent of the namespace."""
        await accepted(world, "r1")
        await hire(world, "w", "shop/clerk")
        assert await world.runs.explain(T, "r1") == "no live worker of queue default serves an agent without a namespace"

    async def test_a_thread_that_was_created_in_a_namespace_belongs_to_it(self, world: World) -> None:
        """L4: A run on the thread gets an agent of the thread's namespace. The namespace of the caller does not matter."""
        await hire(world, "w1", "writer")
        await hire(world, "w2", "shop/clerk", queue="shop")
        await world.threads.create_thread(ThreadRequest(thread_id=T, agent="shop/"))
        assert (await accepted(world, "r1")).agent == "shop/clerk"
        assert await agent_of(world) == "shop/clerk"

    async def test_a_repetition_is_the_same_run_whatever_the_default_is_now(self, world: World) -> None:
        """L1, R2: A repeated request returns the same run, even if the default agent has changed."""
        first = await world.accept("r1")
        await hire(world, "w", "writer")
        again = await world.accept("r1")
        assert (again.created, again.run.run_id) == (False, first.run.run_id)

    async def test_runs_without_an_agent_count_for_the_limit_of_the_agent_that_executes_them(self, world: World) -> None:
        """L5: A run without an agent counts for the limit of the agent that executes the run, even if the run was accepted
        before any worker was registered.
        """
        await world.backend.limits.set_limit(Limit(name="running_per_agent", subject="writer", most=1))
        await world.accept("early", thread="t0")
        await hire(world, "w", "writer")
        await accepted(world, "r1", thread="t1")
        await accepted(world, "r2", "writer", thread="t2")
        assert (await claimed(world, "r1", "w", thread="t1")).outcome == "claimed"
        assert (await claimed(world, "r2", "w", thread="t2")).outcome == "limited"
        assert (await claimed(world, "early", "w", thread="t0")).outcome == "limited"
        assert (await world.run("early", "t0")).agent == "writer"
        assert await world.runs.explain("t0", "early") == "waiting for a permit of agent writer (limit 1)"

    async def test_runs_without_an_agent_are_usage_of_the_agent_that_executes_them(self, world: World) -> None:
        """L5: If a run named no agent, it counts in the usage report of the agent that executed it."""
        await hire(world, "w", "writer")
        await world.turn("r1")
        await world.count()
        assert [day.runs for day in (await world.backend.usage.report(agent="writer")).days if day.runs] == [1]

    async def test_each_run_of_several_threads_gets_its_agent(self, world: World) -> None:
        """L1: Several runs are accepted. A run gets the agent that it names. A run without an agent gets the agent of its
        thread, or else the default agent. The runs are on known threads, new threads and threads without an agent."""
        await hire(world, "w", "writer", "reader")
        await accepted(world, "first", "reader", thread="t1")
        for thread in ("t2", "t3"):
            await world.threads.create_thread(ThreadRequest(thread_id=thread))
        wants = [("t1", None), ("t1", "writer"), ("t2", None), ("t2", "reader"), ("t3", "reader"), ("t3", None), ("t4", None)]
        runs = [await accepted(world, f"r{n}", agent, thread=thread) for n, (thread, agent) in enumerate(wants)]
        assert [run.agent for run in runs] == ["reader", "writer", "writer", "reader", "reader", "reader", "writer"]


class TestAgentsOfJobs:
    async def test_forks_keep_the_agent_of_their_source(self, world: World) -> None:
        """L1, F7: Forks, fork jobs and probes have the agent of the source. The queue of a job is the queue of its agent."""
        await hire(world, "w", "shop/clerk", queue="shop")
        await world.accept("r1", agent="shop/")
        claim = await claimed(world, "r1", "w")
        assert claim.attempt is not None
        await world.finish(claim.attempt, said("!"))
        fork = (await world.fork("copy", after_run_id="r1")).thread
        assert fork.agent == "shop/clerk"
        assert (await world.threads.update_thread(T, agent=None)).agent is None
        probe = ForkRequest(src=T, new="of-probe", cut=Cut(after_run_id="r1"))
        job = await world.runs.accept(AcceptRequest(thread_id=T, run_id="probe", kind="fork_once", agent="shop/", fork=probe))
        assert (job.run.agent, await agent_of(world)) == ("shop/clerk", None)  # F9: a probe writes to no thread
        await world.threads.update_thread(T, agent="shop/clerk")
        for kind in ("fork", "fork_once"):
            request = ForkRequest(src=T, new=f"of-{kind}", cut=Cut(after_run_id="r1"))
            job = await world.runs.accept(AcceptRequest(thread_id=T, run_id=kind, kind=kind, fork=request))
            assert (job.run.agent, job.run.queue) == ("shop/clerk", "shop")
