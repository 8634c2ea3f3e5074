"""The conformance suite of LangGraph's checkpoint savers, on Postgres and in memory, through both kinds of methods."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.checkpoint.conformance import checkpointer_test, validate

from runyard.adapters.langgraph_saver import RunyardSaver


class Synchronous(BaseCheckpointSaver[str]):
    """Calls the synchronous methods of a saver from a thread, because the suite calls only asynchronous methods."""

    def __init__(self, saver: RunyardSaver) -> None:
        super().__init__()
        self.saver = saver

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return await asyncio.to_thread(self.saver.get_tuple, config)

    async def alist(self, config: RunnableConfig | None, **options: Any) -> AsyncIterator[CheckpointTuple]:
        for found in await asyncio.to_thread(lambda: [*self.saver.list(config, **options)]):
            yield found

    async def aput(self, *args: Any) -> RunnableConfig:
        return await asyncio.to_thread(self.saver.put, *args)

    async def aput_writes(self, *args: Any, **options: Any) -> None:
        await asyncio.to_thread(self.saver.put_writes, *args, **options)

    async def adelete_thread(self, thread_id: str) -> None:
        await asyncio.to_thread(self.saver.delete_thread, thread_id)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        await asyncio.to_thread(self.saver.delete_for_runs, run_ids)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        await asyncio.to_thread(self.saver.copy_thread, source_thread_id, target_thread_id)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        await asyncio.to_thread(lambda: self.saver.prune(thread_ids, strategy=strategy))


@pytest.mark.parametrize("synchronous", [False, True], ids=["async", "sync"])
@pytest.mark.parametrize("store", ["postgres", "memory"])
async def test_conformance(store: str, synchronous: bool, request: pytest.FixtureRequest) -> None:
    """The suite detects every capability, and every test of these capabilities passes."""
    url = await asyncio.to_thread(request.getfixturevalue, "module_postgres_url") if store == "postgres" else "memory://"

    @checkpointer_test(name="RunyardSaver")
    async def saver() -> AsyncGenerator[BaseCheckpointSaver[str], None]:
        async with RunyardSaver(url) as made:
            yield Synchronous(made) if synchronous else made

    report = await validate(saver)
    outcomes = {name: (result.detected, result.failures) for name, result in report.results.items()}
    assert outcomes == dict.fromkeys(report.results, (True, [])), outcomes
    assert len(report.results) == 8
    assert sum(result.tests_passed for result in report.results.values()) >= 70
