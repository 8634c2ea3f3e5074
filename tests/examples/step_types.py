"""How type checkers read ``ctx.step``. They must find an error in each line that ends with ``wrong``, and in no other line."""

import functools
from collections.abc import Callable
from typing import Any, assert_type

from runyard import RunContext


async def refund(cents: int, why: str = "") -> str:
    return f"{cents} {why}"


async def keyed(cents: int, idempotency_key: str) -> str:
    return f"{cents} {idempotency_key}"


def count(words: list[str]) -> int:
    return len(words)


async def agent(ctx: RunContext, unknown: Callable[..., Any]) -> None:
    assert_type(await ctx.step(refund, 40), str)
    assert_type(await ctx.step(refund, 40, "broken", key="k", on_unknown="ask"), str)
    assert_type(await ctx.step(keyed, 40), str)
    assert_type(await ctx.step(count, ["a"]), int)
    assert_type(await ctx.step(lambda: refund(40)), str)
    assert_type(await ctx.step(functools.partial(refund, 40)), str)
    await ctx.step(unknown, 1, 2)
    await ctx.step(refund, "forty")  # wrong
    await ctx.step(refund)  # wrong
    await ctx.step(count, 3)  # wrong
    await ctx.step(refund, 40, on_unknown="never")  # wrong
