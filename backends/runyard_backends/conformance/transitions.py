"""Every verb of a run in every status. If runyard.domain.states.TRANSITIONS does not list the pair, the verb changes
nothing."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import pytest

from runyard import errors
from runyard.domain.crashes import MAX_CRASHES
from runyard.domain.states import ENDED, RunStatus, Verb, targets
from runyard.models import ErrorInfo, HitlRequest, Message, Run, RunOptions, new_id
from runyard.ports.commands import Write
from runyard.ports.refs import AttemptToken

from .world import T, World, eventually, now, said

pytestmark = pytest.mark.asyncio

ERROR = ErrorInfo(code="x", message="x")
S = RunStatus


@dataclass
class Scene:
    """A run ``r`` in a certain state, with its last attempt and its request, if any."""

    world: World
    attempt: AttemptToken
    request: str = ""

    async def facts(self) -> tuple[Run | None, list[Message], list[HitlRequest]]:
        messages = [
            message
            for leaf in (await self.world.leaves() if await self.world.threads.thread(T) else [])
            for message in await self.world.messages(leaf=leaf.message_id)
        ]
        return await self.world.runs.run(T, "r"), messages, (await self.world.runs.requests(pending=False)).items


async def set_up(world: World, status: RunStatus | None, verb: Verb) -> Scene:
    """Bring a run into ``status``."""
    await world.hire("w")
    await world.turn("before")
    key = (await world.ref("r")).thread_key
    nobody = AttemptToken(key, "r", 1 << 40)
    if status is None:
        return Scene(world, nobody)
    if (status, verb) == (S.QUEUED, Verb.EXPIRE):
        await world.accept("r", "r?", options=RunOptions(expires_in=0.001))
        return Scene(world, nobody)
    await world.accept("r", "r?")
    if status is S.QUEUED and verb is not Verb.RESPOND:
        return Scene(world, nobody)
    attempt = await world.take("r")
    await world.runs.append(attempt, [said("half")])
    match status:
        case S.QUEUED | S.SUSPENDED:
            one = HitlRequest(request_id=new_id())
            if (status, verb) == (S.SUSPENDED, Verb.FAIL):
                one = one.model_copy(update={"deadline_at": now() - timedelta(seconds=1), "on_deadline": {"fail": True}})
            two = HitlRequest(request_id=new_id())
            await world.ask(attempt, one, *([two] if status is S.QUEUED else []))
            if status is S.QUEUED:
                await world.runs.respond(1, request_id=two.request_id)
            return Scene(world, attempt, one.request_id)
        case S.RUNNING if verb is Verb.RESPOND:
            one, two = HitlRequest(request_id=new_id()), HitlRequest(request_id=new_id())
            await world.ask(attempt, one, two)
            await world.runs.respond(1, request_id=two.request_id)
            return Scene(world, await world.take("r"), one.request_id)
        case S.COMPLETED:
            await world.finish(attempt, said("done"))
        case S.FAILED:
            await world.runs.fail(Write(attempt=attempt), ERROR)
        case S.CANCELLED:
            await world.runs.cancel(T, "r")
            await world.finish(attempt)
        case S.DEAD:
            await world.bury()
            await world.crash("r", MAX_CRASHES - 1)
            assert (await world.claim("r", worker="undertaker")).outcome == "ended"
    assert await world.status("r") is status
    return Scene(world, attempt)


async def act(scene: Scene, verb: Verb) -> None:
    """Execute ``verb``. Raises the error if the verb is refused."""
    world, attempt = scene.world, scene.attempt
    write = Write(attempt=attempt, messages=[said("more")])
    match verb:
        case Verb.ACCEPT:
            await world.accept("r", "r?")
        case Verb.ADMIT:
            await world.runs.admit()
        case Verb.CLAIM:
            await world.claim("r", worker="claimant")
        case Verb.APPEND:
            await world.runs.append(attempt, write.messages)
        case Verb.SUSPEND:
            await world.runs.suspend(write, [HitlRequest(request_id=new_id())])
        case Verb.RESPOND:
            await world.runs.respond(1, thread_id=T, request_id=scene.request or None)
        case Verb.COMPLETE:
            await world.finish(attempt, *write.messages)
        case Verb.FAIL if scene.request:
            await world.runs.admit()
        case Verb.FAIL:
            await world.runs.fail(write, ERROR)
        case Verb.RELEASE:
            await world.runs.release(attempt)
        case Verb.BURY:
            await world.runs.bury(attempt, "killed")
        case Verb.EXPIRE:
            await over(world)
            await world.runs.admit()
        case Verb.CANCEL:
            await world.runs.cancel(T, "r")
        case Verb.REDRIVE:
            await world.runs.redrive(T, "r")


async def over(world: World) -> None:
    """Wait until the run's expiry has passed. Do nothing if the run has no expiry."""
    run = await world.runs.run(T, "r")

    async def passed() -> bool:
        return run is None or run.expires_at is None or now() > run.expires_at + timedelta(milliseconds=50)

    await eventually(passed)


class TestTransitions:
    @pytest.mark.parametrize("verb", list(Verb), ids=str)
    @pytest.mark.parametrize("status", [None, *S], ids=str)
    async def test_every_state_and_verb(self, world: World, status: RunStatus | None, verb: Verb) -> None:
        """R18: A verb that the transition table lists for the status succeeds. Any other verb changes nothing."""
        scene = await set_up(world, status, verb)
        before = await scene.facts()
        allowed = targets(status, verb)
        try:
            await act(scene, verb)
        except errors.RunyardError:
            assert not allowed or (status, verb) == (S.QUEUED, Verb.ADMIT)
        after = await scene.facts()
        if not allowed:
            assert after == before
        else:
            run = after[0]
            assert run is not None and run.status in allowed
            if verb not in (Verb.ADMIT, Verb.CLAIM):
                assert after != before

    @pytest.mark.parametrize("status", sorted(ENDED))
    async def test_a_finished_run_is_not_altered(self, world: World, status: RunStatus) -> None:
        """R2, I8: Repeated operations of every caller, except redrive, leave a finished run unchanged."""
        scene = await set_up(world, status, Verb.CLAIM)
        before = await scene.facts()
        for verb in [verb for verb in Verb if verb is not Verb.REDRIVE] * 2:
            try:
                await act(scene, verb)
            except errors.RunyardError:
                continue
        await world.bury("claimant")
        await world.runs.admit()
        assert await scene.facts() == before

    async def test_timestamps_follow_the_status(self, world: World) -> None:
        """R18: Each status sets its timestamps and no others."""
        for status in S:
            scene = await set_up(World(await world.factory(tenant=str(status)), world.factory), status, Verb.CLAIM)
            run = (await scene.facts())[0]
            assert run is not None
            assert (run.finished_at is not None) == (status in ENDED)
            assert (run.suspended_at is not None) == (status is S.SUSPENDED)
            assert (run.completion_seq is not None) == (status is S.COMPLETED)
            assert run.admitted_at is not None
            for worker in await world.workers.workers():
                await world.workers.leave(worker.worker_id)
            await scene.world.backend.close()
