"""runyard's suite of adapters for the adapter of parrot."""

from __future__ import annotations

from parrot import Bot

from runyard.testing.adapter_suite import AdapterSuite, SuiteTool


class TestParrot(AdapterSuite):
    def echo_agent(self, seen: list[list[str]]) -> Bot:
        return Bot(heard=seen)

    def tool_agent(self, tool: SuiteTool) -> Bot:
        return Bot(tool)

    def approval_agent(self, tool: SuiteTool) -> Bot:
        return Bot(tool, careful=True)
