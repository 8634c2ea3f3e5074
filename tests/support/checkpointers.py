"""Checkpointers that pass their calls on to another checkpointer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from runyard.agents.local_thread import OF_REQUESTS
from runyard.checkpointer import MemoryCheckpointer
from runyard.ports.stores import Checkpointer


class Documented:
    """A checkpointer that another program could have: it has the documented methods only."""

    def __init__(self) -> None:
        self._kept = MemoryCheckpointer()

    def __getattr__(self, name: str) -> Any:
        if name in OF_REQUESTS:
            raise AttributeError(name)
        return getattr(self._kept, name)


class Watched:
    """A checkpointer that calls ``tell`` before each call and ``told`` after it. If ``tell`` raises, the call is not made."""

    def __init__(self, cp: Checkpointer, tell: Callable[[str], object], told: Callable[[str], object] = lambda method: None):
        self._cp, self._tell, self._told = cp, tell, told

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._cp, name)

        async def call(*args: Any, **fields: Any) -> Any:
            self._tell(name)
            answer = await method(*args, **fields)
            self._told(name)
            return answer

        return call
