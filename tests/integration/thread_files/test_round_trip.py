"""Export and import of thread families: what the readers of a store see is the same on the other side (F1, F2, F10, I5)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import cast

import pytest

from runyard.errors import RunAlreadyCompletedError
from runyard.ports.branches import BranchStore
from runyard.ports.stores import Backend
from runyard.support.backend_urls import connect
from runyard_backends.memory import connect as connect_memory
from runyard_backends.thread_files import import_threads
from tests.support.thread_families import FAMILY, exported, furnish, shown

KINDS = ("sqlite-memory", "memory-sqlite", "postgres-mysql", "mysql-postgres")
"""The source and the target."""


@pytest.fixture(params=KINDS)
def kinds(request: pytest.FixtureRequest) -> list[str]:
    return str(request.param).split("-")


@pytest.fixture
def urls(kinds: list[str], request: pytest.FixtureRequest) -> dict[str, str]:
    names = {"sqlite": "new_sqlite_url", "mysql": "mysql_url", "postgres": "postgres_url"}
    return {kind: request.getfixturevalue(names[kind]) for kind in kinds if kind in names}


@pytest.fixture
async def stores(kinds: list[str], urls: dict[str, str]) -> AsyncIterator[tuple[Backend, Backend]]:
    opened = [
        await connect(urls[kind]) if kind in urls else await connect_memory(f"memory://{kind}{n}-{id(urls)}")
        for n, kind in enumerate(kinds)
    ]
    yield opened[0], opened[1]
    for backend in opened:
        await backend.close()


async def test_a_family_is_the_same_in_another_store(stores: tuple[Backend, Backend]) -> None:
    """F1, F2, F10, B3: Forks of forks, inherited, deleted and partly visible runs, interleaved runs, legacy messages, branches,
    labels, extra, requests and answers are the same after export and import. A repetition changes nothing."""
    source, target = stores
    await furnish(source)
    file = await exported(source, "t", forks=True)
    report = await import_threads(target, file)
    assert report.complete and report.notes == [] and report.outcomes == {"imported": len(FAMILY)}
    for thread in FAMILY:
        expected, found = await shown(source, thread), await shown(target, thread)
        if thread == "repaired":  # the messages that close the tool calls are made anew
            assert [len(path[-1]) for path in found["paths"].values()] == [len(p[-1]) for p in expected["paths"].values()]
            continue
        assert found == expected, thread
    with pytest.raises(RunAlreadyCompletedError):  # the id of the deleted run stays taken
        await target.checkpointer.claim_run("t", "gone")
    before = {thread: await shown(target, thread) for thread in FAMILY}
    for store in (source, target):
        branches = cast(BranchStore, store.threads)
        keys = await branches.branch_keys("t")
        places = [await branches.branch_at("t", place) for place in range(len(keys) + 1)]
        assert places == [(key, len(keys)) for key in (*keys, None)] and len(keys) > 1
    again = await import_threads(target, file)
    assert again.outcomes == {"unchanged": len(FAMILY)} and {t: await shown(target, t) for t in FAMILY} == before
