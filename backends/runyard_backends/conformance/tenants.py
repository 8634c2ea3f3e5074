"""Tenants share a database and see no data of each other (A1)."""

from __future__ import annotations

from typing import Any

import pytest

from runyard import errors
from runyard.domain.states import RunStatus
from runyard.models import HitlRequest, RunOptions, new_id
from runyard.ports.commands import ThreadRequest
from runyard.ports.queries import RunFilter, ThreadFilter

from .world import T, World, said

pytestmark = pytest.mark.asyncio


class TestTenants:
    async def test_equal_ids_are_different_threads(self, world: World) -> None:
        other = World(await world.factory(tenant="other"), world.factory)
        await world.turn("r1", extra={"who": "mine"})
        await other.turn("r1", extra={"who": "theirs"})
        assert (await other.messages())[0].id != (await world.messages())[0].id
        assert await other.ref("r1") != await world.ref("r1")
        await other.threads.delete_thread(T)
        assert await world.texts() == ["r1?", "r1!"]
        await other.backend.close()

    async def test_everything_of_another_tenant_is_unknown(self, world: World) -> None:
        """A1: Every call for another tenant's item finds nothing or raises a not-found error."""
        other = World(await world.factory(tenant="other"), world.factory)
        await world.turn("r1")
        request = await world.suspended("r2")
        message = await world.id_of("r1!")
        assert await other.threads.thread(T) is None and await other.runs.run(T, "r1") is None
        assert (await other.runs.runs()).items == [] and (await other.runs.requests()).items == []
        assert (await other.threads.threads()).items == []
        for hidden in (
            other.messages(),
            other.messages(leaf=message),
            other.leaves(),
            other.fork("c", after_run_id="r1"),
            other.runs.cancel(T, "r1"),
            other.runs.respond(1, thread_id=T, request_id=request),
            other.threads.delete_thread(T),
        ):
            with pytest.raises(errors.ThreadNotFoundError):
                await hidden
        with pytest.raises(errors.HitlNoPendingRequestError):
            await other.runs.respond(1, request_id=request)
        await other.store("theirs")
        with pytest.raises(errors.MessageNotFoundError):
            await other.messages(leaf=message)
        await other.backend.close()

    async def test_no_list_shows_another_tenants(self, world: World) -> None:
        """A1: No list shows another tenant's items, with any filter. The order of the tenants' names does not matter."""
        tenants = ("a", "b", "c")
        worlds = {tenant: World(await world.factory(tenant=tenant), world.factory) for tenant in tenants}
        for tenant, each in worlds.items():
            named: dict[str, Any] = {"agent": "A", "tags": {"k": "v"}}
            await each.threads.create_thread(ThreadRequest(thread_id=T, extra={"of": tenant}, **named))
            facts: dict[str, Any] = {"agent": "A", "metadata": {"of": tenant}, "options": RunOptions(parallel=True)}
            await each.turn("completed", **facts)
            await each.failed("failed", **facts)
            await each.fork("child", after_run_id="completed", options=named)
            await each.ask(await each.start("suspended", **facts), HitlRequest(request_id=new_id(), payload={"of": tenant}))
            await each.start("running", **facts)
            await each.accept("queued", **facts)
            await each.accept("cancelled", **facts)
            await each.runs.cancel(T, "cancelled")
        for tenant, each in worlds.items():
            for status in (None, *RunStatus):
                count = 6 if status is None else 0 if status is RunStatus.DEAD else 1
                for thread_id, agent in ((None, None), (T, None), (None, "A")):
                    runs = (await each.runs.runs(RunFilter(status=status, thread_id=thread_id, agent=agent))).items
                    assert [run.metadata for run in runs] == [{"of": tenant}] * count
            for agent, tags in ((None, {}), ("A", {}), (None, {"k": "v"})):
                threads = (await each.threads.threads(ThreadFilter(agent=agent, tags=tags))).items
                assert [(thread.thread_id, thread.extra) for thread in threads] == [
                    (T, {"of": tenant}),
                    ("child", {"of": tenant}),
                ]
            [child] = (await each.threads.threads(ThreadFilter(parent_thread_id=T))).items
            assert child.extra == {"of": tenant}
            for pending in (True, False):
                for thread_id in (None, T):
                    [request] = (await each.runs.requests(pending=pending, thread_id=thread_id)).items
                    assert request.payload == {"of": tenant}
            await each.backend.close()

    async def test_equal_request_ids(self, world: World) -> None:
        other = World(await world.factory(tenant="other"), world.factory)
        request = new_id()
        for each in (world, other):
            await each.ask(await each.start("r1"), HitlRequest(request_id=request))
        await other.runs.respond("theirs", request_id=request)
        assert [r.request_id for r in (await world.runs.requests()).items] == [request]
        await other.backend.close()

    async def test_workers_serve_every_tenant(self, world: World) -> None:
        """W9: The operations of workers take the tenant from the job. One worker serves every tenant."""
        other = World(await world.factory(tenant="other"), world.factory)
        await other.accept("r1", "theirs")
        claim = (await world.runs.claim(await world.hire(), [await other.ref("r1")]))[0]
        assert claim.tenant == "other" and claim.attempt is not None
        assert await world.context(claim.attempt) == ["theirs"]
        await world.finish(claim.attempt, said("x"))
        assert await other.texts() == ["theirs", "x"] and await world.threads.thread(T) is None
        await other.backend.close()
