"""Tools of an MCP server, which is a process of its own: as durable as an agent's own."""

from __future__ import annotations

import sys
from pathlib import Path

from fastmcp.client.transports import StdioTransport
from pydantic_ai import Agent
from pydantic_ai.mcp import MCPToolset

from runyard import App, RunStatus
from runyard.testing import Harness, ScriptedModel, call

SERVER = Path(__file__).parents[1] / "support" / "agents" / "counting_server.py"


async def test_a_finished_tool_of_a_server_is_not_called_again(tmp_path: Path) -> None:
    """R9: the worker dies before it stored the model's last word; the next one starts the server anew and asks it nothing."""
    notes = tmp_path / "notes"
    toolset = MCPToolset(StdioTransport(sys.executable, [str(SERVER), str(notes)]), init_timeout=60)
    agent = Agent(ScriptedModel([call("add", one=2, other=3), "It is 5."]), toolsets=[toolset])
    async with Harness(App({"counter": agent})) as harness:
        harness.crash_after("append", 2)
        run = await harness.prompt("t", "What is 2 + 3?")
    assert (run.status, run.text, run.attempts) == (RunStatus.COMPLETED, "It is 5.", 2)
    assert notes.read_text() == "2 + 3\n"
    [result] = [part for message in run.messages for part in message.tool_results]
    assert (result.content, result.is_error) == (5, False)
