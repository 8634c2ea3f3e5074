"""Agents of an App that are plain functions. Such a function takes and returns messages."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ..domain.messages import Message
from ..domain.quoting import brief
from ..errors import InvalidInputError
from ..formats.conversion import Format, check_format, from_blob, to_format

if TYPE_CHECKING:
    from ..execution.context import RunContext

Reply: TypeAlias = "Message | dict[str, Any] | str | Sequence[Message | dict[str, Any]] | None"
MessageFunction: TypeAlias = "Callable[[list[Any]], Reply | Awaitable[Reply]]"

SYNC_THREADS: Final = 64
"""Maximum number of sync functions that a process executes at the same time. A run keeps its worker's slot while its function
waits for a thread."""


def message_agent(fn: MessageFunction, *, format: Format | None = None, asks_humans: bool = False) -> MessageAgent:
    """Return an agent for an :class:`~runyard.App` that calls a function of messages.

    ``fn(messages)``: a sync or async function. Its argument is the conversation so far, including the prompt. The function
    returns a text, a message, a list of messages, or None. A text becomes an assistant message. A returned list may begin with
    all messages of the argument. In this case only the messages after them are stored. The run fails if the list has messages
    of the argument at another place, for example after a system message. For None and for an empty list, nothing is stored. A
    sync function is executed in a thread. A process has at most 64 such threads. A cancel of the run does not stop the thread.
    ``format``: the format of JSON objects (``"openai"``, ``"anthropic"``, …) that ``fn`` takes and returns instead of
    :class:`~runyard.models.Message`. ``asks_humans``: whether ``fn`` may call ``current_run().ask``. If True, a probe of the
    agent fails with HitlNotAllowedError, and ``fn`` is not called (F9).

    After a crash the function is called again, with the messages that an earlier attempt stored. Use a step
    (:func:`runyard.step`) for each side effect that must not be repeated.

    Raises InvalidInputError for an unknown format, or if ``fn`` cannot be called.
    """
    if format is not None:
        check_format(format)
    if not callable(fn):
        raise InvalidInputError(f"message_agent needs a function that takes a list of messages, got {brief(fn)}", field="fn")
    return MessageAgent(fn, format, asks_humans)


@dataclass(frozen=True, slots=True)
class MessageAgent:
    """A function of messages as the agent of an App (:func:`message_agent`)."""

    fn: MessageFunction
    format: Format | None = None
    asks_humans: bool = False

    async def __call__(self, ctx: RunContext) -> None:
        history = await ctx.history()
        given = [*history] if self.format is None else self._formatted(history)
        known = [*given]
        reply = await _called(self.fn, given)
        if inspect.isawaitable(reply):
            reply = await reply
        if isinstance(reply, list | tuple):
            new = _added([*reply], known)
        else:
            new = [] if reply is None else [reply]
        if new:
            await ctx.append(*self._messages(new))

    def _formatted(self, history: Sequence[Message]) -> list[Any]:
        assert self.format is not None
        names = {call.id: call.name for message in history for call in message.tool_calls}
        return [item for message in history for item in to_format(self.format, message, names).items]

    def _messages(self, new: Sequence[Any]) -> list[Message]:
        made: list[Message] = []
        for each in new:
            if isinstance(each, str):
                made.append(Message.assistant(each))
            elif isinstance(each, Message):
                made.append(each)
            elif self.format is not None and isinstance(each, dict):
                made.append(from_blob(self.format, each))
            else:
                words = "JSON objects" if self.format is not None else "runyard Messages"
                raise InvalidInputError(f"the function returned {brief(each)}; return texts or {words}", field="message")
        return made


def _added(returned: list[Any], known: list[Any]) -> list[Any]:
    """Return the messages that a function added to the given messages ``known``.

    Raises InvalidInputError if the returned list contains messages of ``known`` anywhere but at its beginning, or only some of
    them. The run must not store a given message a second time.
    """
    given, size = set(map(id, known)), len(known)
    if known and returned[:size] == known:
        returned = returned[size:]
    elif known and any(returned[at : at + size] == known for at in range(1, len(returned))):
        given.update(map(id, returned))
    if any(id(each) in given for each in returned):
        raise InvalidInputError(
            "the function returned messages of its argument, but the returned list does not begin with all of them; return "
            "only the new messages, or all messages of the argument and then the new messages. To send the model a system "
            "message, put the system message into a copy of the list",
            field="message",
        )
    return returned


async def _called(fn: MessageFunction, messages: list[Any]) -> Any:
    if inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(type(fn).__call__):
        return fn(messages)
    return await asyncio.get_running_loop().run_in_executor(_threads(), copy_context().run, fn, messages)


@cache
def _threads() -> ThreadPoolExecutor:
    """Return the threads of sync functions.

    The default threads of the event loop are not used, because these threads also resolve host names. If functions occupied
    all default threads, no new connection could be opened.
    """
    return ThreadPoolExecutor(SYNC_THREADS, thread_name_prefix="runyard-function")
