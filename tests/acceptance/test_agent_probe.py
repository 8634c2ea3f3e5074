"""F9: probes of an Agent in its own process, over every kind of checkpointer."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import pytest
from pydantic_ai import Tool
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.toolsets import ApprovalRequiredToolset, ExternalToolset, FunctionToolset

from runyard import Agent, App, Budget, current_run
from runyard.errors import HitlNotAllowedError, RunNotCompletedError
from runyard.hitl import ApprovalPolicyMiddleware, InMemoryChannel, ask_user_tool
from runyard.ports.stores import Checkpointer
from tests.support.checkpointers import Watched
from tests.support.scripted_models import answering, calling, echo

T, R = "t", "r"


def look() -> str:
    """Look something up."""
    return "seen"


class Deciding(AbstractCapability[Any]):
    """A hook that answers deferred calls by asking somebody."""

    async def handle_deferred_tool_calls(self, ctx: Any, *, requests: Any) -> Any:
        raise AssertionError("nobody may be asked")


CHANNEL = InMemoryChannel()
WAYS: dict[str, dict[str, Any]] = {
    "ask_user_tool": {"tools": [ask_user_tool()]},
    "middleware": {"middleware": [ApprovalPolicyMiddleware(policy=lambda call: None)]},  # type: ignore[arg-type, return-value]
    "hook": {"middleware": [Deciding()]},
    "channel": {"channel": CHANNEL},
    "approval-tool": {"tools": [Tool(look, requires_approval=True)]},
    "approval-toolset": {"toolsets": [ApprovalRequiredToolset(FunctionToolset([look]))]},
    "nested-toolset": {"toolsets": [ApprovalRequiredToolset(FunctionToolset([look])).prefixed("deep")]},
    "external-toolset": {"toolsets": [ExternalToolset([])]},
    "budget": {"budget": Budget(steps=1, on_exceeded="ask")},
}


@pytest.mark.parametrize("way", WAYS)
async def test_f9_what_can_ask_is_refused_before_the_snapshot_is_read(way: str) -> None:
    calls: list[str] = []
    cp = Watched(None, calls.append)  # type: ignore[arg-type]
    agent = Agent(echo(), checkpointer=cp, **WAYS[way])  # type: ignore[arg-type]
    with pytest.raises(RuntimeError) as refused:
        await agent.fork_once(src_thread_id=T, message="?", after_run_id=R)
    assert isinstance(refused.value, HitlNotAllowedError) and calls == []
    spec = App(agents={"it": agent}).find("it")
    assert spec is not None and spec.hitl, "a worker refuses it as well"


def test_f9_what_cannot_ask_may_probe() -> None:
    agent = Agent(echo(), tools=[look, Tool(look, name="again")], budget=Budget(steps=1), toolsets=[FunctionToolset([])])
    assert not agent.asks_humans


async def test_f9_the_last_guard(cp: Checkpointer) -> None:
    """F9: a tool that asks by itself is found out when it does, and the probe is refused; nothing is kept."""

    async def sly() -> str:
        """Ask without saying so."""
        return str(await current_run().ask("may I?"))

    agent = Agent(calling(("sly", {})), tools=[sly], checkpointer=cp, thread_id=T)
    await Agent(echo(), checkpointer=cp, thread_id=T).prompt("hi", run_id=R)
    with pytest.raises(HitlNotAllowedError):
        await agent.fork_once(message="?", after_run_id=R)
    assert await cp.load_pending(T) is None


async def test_f9_result_and_context(cp: Checkpointer) -> None:
    """F9: it starts from the snapshot, and its result has only what it added, the user message included."""
    seen: list[str] = []

    def answer(prompt: str, results: list[Any]) -> Any:
        seen.append(prompt)
        return "done" if results else [("look", {})]

    await Agent(echo(), checkpointer=cp, thread_id=T).prompt("one", run_id=R)
    await Agent(echo(), checkpointer=cp, thread_id=T).prompt("two", run_id="s")
    histories: list[list[str]] = []

    class Listening(Agent):
        async def __call__(self, ctx: Any) -> None:
            histories.append([m.text for m in await ctx.history()])
            ctx.extra["thrown"] = "away"
            await super().__call__(ctx)

    agent = Listening(answering(answer), tools=[look], checkpointer=cp, thread_id=T)
    result = await agent.fork_once(message="three", after_run_id=R)
    assert histories == [["one", "one!", "three"]]
    assert [m.role for m in result.messages] == ["user", "assistant", "tool", "assistant"]
    assert (result.text, result.stop_reason) == ("done", "stop")
    assert agent.state.active_run_id is None
    data = await cp.load(T)
    assert data is not None and "thrown" not in data.extra
    with pytest.raises(RunNotCompletedError):
        await agent.fork_once(message="?", after_run_id="unknown")


async def test_f9_a_providers_error_is_a_stop_reason(cp: Checkpointer) -> None:
    await Agent(echo(), checkpointer=cp, thread_id=T).prompt("one", run_id=R)
    agent = Agent(answering(lambda prompt, results: RuntimeError("down")), checkpointer=cp, thread_id=T)
    result = await agent.fork_once(message="two", after_run_id=R)
    assert (result.text, result.stop_reason, [m.text for m in result.messages]) == ("", "error", ["two"])


async def test_f9_a_hook_that_was_cancelled_does_not_cancel_the_caller(cp: Checkpointer) -> None:
    class Lost(AbstractCapability[Any]):
        async def before_model_request(self, ctx: Any, request_context: Any) -> Any:
            raise asyncio.CancelledError

    await Agent(echo(), checkpointer=cp, thread_id=T).prompt("one", run_id=R)
    agent = Agent(echo(), middleware=[Lost()], checkpointer=cp, thread_id=T)
    result = await agent.fork_once(message="two", after_run_id=R)
    assert (result.stop_reason, [m.text for m in result.messages]) == ("error", ["two"])


async def test_f9_nothing_is_written_to_any_thread(cp: Checkpointer, cp_url: str) -> None:
    """F9: the whole store is what it was; only reads were asked of the checkpointer."""
    await Agent(echo(), checkpointer=cp, thread_id=T).prompt("one", run_id=R)
    calls: list[str] = []
    probing = Agent(calling(("look", {})), tools=[look], checkpointer=Watched(cp, calls.append), thread_id=T)  # type: ignore[arg-type]
    dump = _dump_of(cp, cp_url)
    before = await dump()
    await probing.fork_once(message="?", after_run_id=R)
    await probing.fork_once(src_thread_id=T, message="?", after_run_id=R)
    assert set(calls) == {"snapshot", "load"}
    assert await dump() == before


def _dump_of(cp: Any, url: str) -> Callable[[], Awaitable[object]]:
    """What reads everything that the checkpointer's store holds."""
    if url.startswith("postgres"):
        return lambda: _rows(url)
    if url.startswith(("sqlite", "mysql")):
        return lambda: _rows_without_schemas(cp, url)

    async def memory() -> object:
        inner = cp if url == "memory" else cp._kept
        db = inner._backend.world.db
        return repr([(t.id, t.thread, t.branches, t.runs) for t in db.of("")]), repr(db.requests), repr(db.notes)

    return memory


async def _rows(url: str) -> object:
    connection = await asyncpg.connect(url)
    try:
        tables = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'runyard' ORDER BY 1")
        assert len(tables) > 5
        rows = {name: await connection.fetch(f"SELECT t::text FROM runyard.{name} t") for (name,) in tables}
        return {name: sorted(row[0] for row in found) for name, found in rows.items()}
    finally:
        await connection.close()


async def _rows_without_schemas(cp: Any, url: str) -> object:
    """Every row of SQLite or of MariaDB, read beside the checkpointer."""
    names = ["threads", "branches", "levels", "messages", "runs", "requests", "unclaimed", "labels", "thread_tags"]
    if url.startswith("sqlite"):
        with contextlib.closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
            return {name: sorted(map(str, connection.execute(f"SELECT * FROM runyard_{name}"))) for name in names}
    async with cp._backend.db.pool.acquire() as connection:
        rows = {}
        for name in names:
            cursor = connection.cursor()
            await cursor.execute(f"SELECT * FROM runyard_{name}")
            rows[name] = sorted(map(str, await cursor.fetchall()))
        return rows


async def test_f9_a_closed_set_of_stop_reasons(cp: Checkpointer) -> None:
    """F9: what the provider said of its answer, in runyard's words."""
    from pydantic_ai.messages import ModelResponse, TextPart
    from pydantic_ai.models.function import FunctionModel

    await Agent(echo(), checkpointer=cp, thread_id=T).prompt("one", run_id=R)
    model = FunctionModel(lambda messages, info: ModelResponse([TextPart("cut sho")], finish_reason="length"))
    result = await Agent(model, checkpointer=cp, thread_id=T).fork_once(message="two", after_run_id=R)
    assert (result.text, result.stop_reason) == ("cut sho", "max_tokens")
