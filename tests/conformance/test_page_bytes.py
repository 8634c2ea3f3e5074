"""Lists in pages of few bytes, on each store: short pages, that lead to the end."""

from collections.abc import AsyncIterator

import pytest

from runyard.domain.derived_ids import candidate_id, first_prompt_id
from runyard.domain.fan_outs import key_of
from runyard.models import ErrorInfo, JsonObject, Usage, new_id
from runyard.ports.commands import AcceptRequest, Cut, FanOut, ForkRequest
from runyard.ports.fan_outs import ProbeEnd
from runyard.ports.queries import PageRequest, PathRequest
from runyard.ports.stores import Backend
from runyard_backends.conformance.pages import create, pages
from runyard_backends.conformance.world import T, World, said, user
from runyard_backends.memory import connect as memory
from runyard_backends.postgres.backend import connect as postgres
from tests.http.halves import halves

BYTES = 20_000


@pytest.fixture(params=["memory", "http", "postgres"])
def store(request: pytest.FixtureRequest) -> str:
    """Where it is, for those that need a server."""
    return request.getfixturevalue("module_postgres_url") if request.param == "postgres" else request.param


@pytest.fixture
async def world(store: str) -> AsyncIterator[World]:
    async def factory(tenant: str = "") -> Backend:
        if store.startswith("postgres"):
            return await postgres(store, tenant=new_id(), page_bytes=BYTES)
        found = await memory(tenant=tenant, page_bytes=BYTES)
        return await halves(found) if store == "http" else found

    backend = await factory()
    yield World(backend, factory)
    await backend.close()


@pytest.mark.parametrize("newest_first", [False, True])
async def test_message_larger_than_a_page_comes_alone(world: World, newest_first: bool) -> None:
    sizes = [6, BYTES + 1, 5]
    for size in sizes:
        await world.threads.store_message(T, user("x" * size))
    found = await pages(lambda at: world.threads.messages(T, PathRequest(limit=1000, cursor=at, newest_first=newest_first)))
    expected = sizes[::-1] if newest_first else sizes
    assert [[len(message.text) for message in page] for page in found] == [[size] for size in expected]
    assert len((await world.threads.messages(T)).items) == 3


async def test_thread_list_is_paged_by_bytes(world: World) -> None:
    ids = [f"t{n}" for n in range(10)]
    for id in ids:
        await create(world, id, extra={"x": "x" * 7000})
    found = await pages(lambda at: world.threads.threads(page=PageRequest(limit=1000, cursor=at)))
    assert len(found) == 5 and [thread.thread_id for page in found for thread in page] == ids


async def test_attempts(world: World) -> None:
    attempt = await world.start("r1")
    for _ in range(9):
        await world.runs.release(attempt, error=ErrorInfo(code="x", message="x" * 7000))
        attempt = await world.take("r1")
    await world.finish(attempt, said("done"))
    found = await pages(lambda at: world.runs.attempts(T, "r1", PageRequest(limit=1000, cursor=at)))
    assert len(found) == 5 and [attempt.outcome for page in found for attempt in page] == ["retried"] * 9 + ["completed"]
    few = await pages(lambda at: world.runs.attempts(T, "r1", PageRequest(limit=1, cursor=at)))
    assert [page[0] for page in few] == [attempt for page in found for attempt in page]
    assert few[-1][0].fence == attempt.fence


async def test_runs(world: World) -> None:
    ids = [f"r{n}" for n in range(10)]
    for id in ids:
        await world.accept(id, "x" * 7000, thread=id)
    found = await pages(lambda at: world.runs.runs(page=PageRequest(limit=1000, cursor=at)))
    assert len(found) == 5 and [run.run_id for page in found for run in page] == ids[::-1]


@pytest.mark.parametrize("threads", [False, True])
async def test_f15_candidates_of_a_fan_out(world: World, threads: bool) -> None:
    """F15: A page of candidates ends at its bytes. A larger candidate is a page by itself. Of a run on a thread it has the last
    messages that fit."""
    await world.turn("before")
    sizes = [*[7000] * 6, BYTES * 2, 5]
    fan = FanOut(messages=[user("?") for _ in sizes], max_parallel=8, threads=threads)
    fork = ForkRequest(src=T, new="job", cut=Cut(), fan=fan)
    await world.runs.accept(AcceptRequest(thread_id=T, run_id="job", kind="fork_many", fork=fork))
    attempt, store = await world.take("job"), world.backend.fan_outs
    for n, size in enumerate(sizes):
        text, messages = "x" * size, [said("x" * size).model_dump(mode="json")]
        if threads:
            thread = candidate_id(T, "job", n)
            prompt = AcceptRequest(
                thread_id=thread, run_id=first_prompt_id(thread), input=user("?"), job=await world.ref("job")
            )
            await world.runs.accept(prompt)
            await world.finish(await world.take(prompt.run_id, thread=thread), said(text))
        else:
            value: JsonObject = {"text": text, "messages": messages, "stop_reason": "stop"}
            await store.end(attempt, [ProbeEnd(key_of(n), "completed", Usage(), value)])
    found = await pages(lambda at: store.candidates(T, "job", PageRequest(limit=1000, cursor=at)))
    a_page = 2 if threads else 1  # a record has its answer as the text and as the message
    assert [[len(one.text) for one in page] for page in found] == [[7000] * a_page] * (6 // a_page) + [[BYTES * 2], [5]]
    assert [one.number for page in found for one in page] == list(range(len(sizes)))
    assert [one.omitted for page in found for one in page] == [[]] * 6 + [["messages"] if threads else [], []]
    large = next(one for page in found for one in page if len(one.text) == BYTES * 2)
    assert len(large.messages) == 1
