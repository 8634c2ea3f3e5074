"""What a web backend relies on, over nothing but HTTP, while an API process and a worker are killed, and then the other two."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from itertools import pairwise

import httpx
import pytest

from runyard import Client, Event, Run, RunHandle, errors
from tests.acceptance.test_http_server import environment, runyard
from tests.support.fleet import Fleet, free_port, until
from tests.support.forked import ForkedProcess

BOUND = 60.0
PROMPTS = 8
STUCK = {"acme": 2, "zeta": 5}
"""The prompt of each tenant that goes on only when the worker that holds it is killed."""


class Servers:
    """Two API processes, each always on its own port."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.ports = [free_port(), free_port()]
        self.processes: dict[int, ForkedProcess] = {}

    @property
    def urls(self) -> list[str]:
        return [f"http://127.0.0.1:{port}" for port in self.ports]

    async def start(self, n: int) -> None:
        """Until it is ready."""
        command = ["api", "--port", str(self.ports[n])]
        self.processes[n] = await ForkedProcess.command(command, environment(self.fleet))
        async with httpx.AsyncClient(base_url=self.urls[n]) as http:

            async def ready() -> bool:
                assert self.processes[n].returncode is None
                try:
                    return (await http.get("/readyz")).status_code == 200
                except httpx.TransportError:
                    return False

            await until(ready, BOUND)

    async def kill(self, n: int) -> None:
        """SIGKILL."""
        if self.processes[n].returncode is None:
            self.processes[n].kill()
            await self.processes[n].wait()


@asynccontextmanager
async def servers(fleet: Fleet) -> AsyncIterator[Servers]:
    """Both, ready; gone in the end."""
    both = Servers(fleet)
    try:
        await asyncio.gather(both.start(0), both.start(1), fleet.start(), fleet.start())
        yield both
    finally:
        for n in both.processes:
            await both.kill(n)


class Tenant:
    """A web backend with two processes, each of which talks to its own API process."""

    def __init__(self, name: str, one: Client, two: Client) -> None:
        self.name, self.one, self.two = name, one, two

    def words(self, n: int) -> str:
        return f"{self.name} {n}"

    def script(self, n: int) -> str:
        return f"say {self.words(n)} | hang | say late" if n == STUCK[self.name] else f"say {self.words(n)} | sleep 0.1"

    def said(self, n: int) -> list[str]:
        """What the assistant says to a prompt."""
        return [self.words(n), "late"] if n == STUCK[self.name] else [self.words(n)]

    async def prompt(self, n: int) -> RunHandle:
        """Enqueue at one process, and once more at the other (R2)."""
        first, second = (self.one, self.two) if n % 2 else (self.two, self.one)
        handle = await first.enqueue("t", self.script(n), f"p{n}")
        assert not (await second.enqueue("t", self.script(n), f"p{n}")).created
        return handle

    async def spoken(self, thread_id: str) -> list[str]:
        """What the assistant said on a thread."""
        return [message.text for message in (await self.two.messages(thread_id)).items if message.role == "assistant"]

    async def stuck(self) -> Run:
        """The prompt that will go no further, once a worker has begun it."""
        handle = self.two.handle("t", f"p{STUCK[self.name]}")

        async def accepted() -> bool:
            with suppress(errors.ThreadNotFoundError):
                return handle.id in [run.run_id for run in (await self.two.runs("t")).items]
            return False

        await until(accepted, BOUND)
        async with aclosing(handle.stream()) as events:
            async for event in events:
                if event.type == "message.completed":
                    break
        return await handle.run()


async def watch(handle: RunHandle) -> list[Event]:
    return [event async for event in handle.stream()]


async def converse(tenant: Tenant, before: Callable[[int], Awaitable[object]]) -> None:
    """A thread's prompts in order, each watched from its beginning; a fork; a question and its answer."""
    handles: list[RunHandle] = []
    async with asyncio.TaskGroup() as group:
        watching: list[asyncio.Task[list[Event]]] = []
        for n in range(PROMPTS):
            await before(n)
            handles.append(await tenant.prompt(n))
            watching.append(group.create_task(watch(handles[-1])))
        with pytest.raises(errors.RunConflictError):
            await tenant.one.enqueue("t", "other words", "p0")
        results = [await handle.result(BOUND) for handle in handles]
    assert all(result.ok for result in results)

    for handle, task in zip(handles, watching, strict=True):
        assert task.result() == await watch(tenant.two.handle("t", handle.id)), "E1: nothing missed, nothing twice"
    runs = (await tenant.one.runs("t")).items[::-1]
    assert [run.run_id for run in runs] == [f"p{n}" for n in range(PROMPTS)]
    for earlier, later in pairwise(runs):
        assert earlier.finished_at is not None and later.started_at is not None and earlier.finished_at <= later.started_at
        assert earlier.completion_seq is not None and later.completion_seq == earlier.completion_seq + 1
    assert await tenant.spoken("t") == [text for n in range(PROMPTS) for text in tenant.said(n)]


async def fork_and_ask(tenant: Tenant) -> None:
    """F1, H3: at one process what the other one made."""
    for client in (tenant.one, tenant.two):
        fork = await client.fork("t", "fork", "p3", message=f"say more of {tenant.name}", run_id="first")
        assert (fork.parent_thread_id, fork.forked_after_run_id) == ("t", "p3")
    assert (await tenant.two.handle("fork", "first").result(BOUND)).ok
    assert await tenant.spoken("fork") == [
        *(text for n in range(4) for text in tenant.said(n)),
        f"more of {tenant.name}",
    ]
    asking = await tenant.one.enqueue("fork", f"color of {tenant.name}?", "asks")
    [request] = (await asking.result(BOUND)).requests
    assert [one.request_id for one in (await tenant.two.requests()).items] == [request.request_id]
    for client in (tenant.two, tenant.one):
        answered = await client.respond("fork", "red", request.request_id, f"{tenant.name}-click")
        assert answered.answer == "red"
    assert (await asking.result(BOUND)).text == f"color of {tenant.name}? red"
    assert len(await tenant.spoken("t")) == sum(len(tenant.said(n)) for n in range(PROMPTS))


@pytest.mark.slow
async def test_two_tenants_while_every_process_is_killed_in_turn(fleet: Fleet) -> None:
    """R1 to R3, I1, I3, E1, F1, H3, A1: order, repetition, streams, forks and answers hold; equal ids of tenants never meet."""
    async with servers(fleet) as apis, AsyncExitStack() as stack:
        tenants = []
        for name in STUCK:
            key = await runyard(fleet, "--tenant", name, "keys", "create", "web")
            clients = [await stack.enter_async_context(Client.connect(url, api_key=key.strip())) for url in apis.urls]
            tenants.append(Tenant(name, *clients))
        acme, zeta = tenants
        replaced = asyncio.Event()

        async def break_things() -> None:
            for n, tenant in enumerate(tenants):
                run = await tenant.stuck()
                assert run.worker_id is not None
                fleet.processes[int(run.worker_id.split("-")[-2])].kill()
                await apis.kill(n)
                await asyncio.gather(apis.start(n), fleet.start())
                replaced.set()

        async def second_comes_later(n: int) -> None:
            if n == STUCK["zeta"]:
                await replaced.wait()

        async def at_once(n: int) -> None:
            pass

        async with asyncio.timeout(2 * BOUND), asyncio.TaskGroup() as group:
            group.create_task(break_things())
            group.create_task(converse(acme, at_once))
            group.create_task(converse(zeta, second_comes_later))
        for tenant in tenants:
            assert (await tenant.one.run("t", f"p{STUCK[tenant.name]}")).attempt == 2, "no worker was lost in mid-run"
        await asyncio.gather(fork_and_ask(acme), fork_and_ask(zeta))
        assert (await fleet.client.threads()).items == []
        with pytest.raises(errors.HitlNoPendingRequestError):
            await acme.one.respond("t", "red")
