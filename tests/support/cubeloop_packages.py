"""The two packages of cubeloop, and agents of these packages. Their model is the packages' own test provider."""

from __future__ import annotations

import asyncio
import importlib
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

NAMES = ("cubeloop", "cubepi")


@dataclass
class Package:
    """One package. ``calls``: the calls of the tool ``add``."""

    name: str
    calls: list[tuple[int, int]] = field(default_factory=list)

    def module(self, path: str = "") -> ModuleType:
        return importlib.import_module(f"{self.name}.{path}".rstrip("."))

    @property
    def provider(self) -> Any:
        return self.module("providers.faux").FauxProvider()

    @property
    def errors(self) -> Any:
        return self.module("checkpointer.exceptions")

    @property
    def hitl(self) -> Any:
        return self.module("hitl")

    def says(self, text: str, **fields: Any) -> Any:
        return self.module("providers.faux").faux_assistant_message(text, **fields)

    def calls_for(self, *calls: tuple[str, str, dict[str, Any]]) -> Any:
        """Return an answer with tool calls. Each call has an id, a name and arguments."""
        faux = self.module("providers.faux")
        return faux.faux_assistant_message([faux.faux_tool_call(n, a, id=i) for i, n, a in calls], stop_reason="tool_use")

    def agent(self, *responses: Any, provider: Any = None, **fields: Any) -> Any:
        model = provider or self.provider
        model.append_responses(list(responses))
        return self.module().Agent(model=model.model("m"), **fields)

    def user(self, text: str, **fields: Any) -> Any:
        base = self.module("providers.base")
        return base.UserMessage(content=[base.TextContent(text=text)], **fields)

    def add(self) -> Any:
        """A tool that records its calls."""

        async def add(a: int, b: int) -> str:
            """Add two numbers."""
            self.calls.append((a, b))
            return str(a + b)

        return self.module().tool(add)


def asking(key: str = "k", prompt: str = "Which?") -> dict[str, Any]:
    """Return the arguments of a call of ``ask_user``."""
    return {"questions": [{"key": key, "prompt": prompt}]}


async def asked(cp: Any, thread_id: str, running: asyncio.Task[Any]) -> None:
    """Wait until the agent's question is stored."""
    while await cp.load_pending(thread_id) is None:
        assert not running.done()
        await asyncio.sleep(0)
