from collections.abc import Awaitable, Callable

import openai

from runyard import RunContext


def adapt(agent: object) -> Callable[[RunContext], Awaitable[None]] | None: ...
