"""A deterministic agent for demos and tests. Its prompt is its script: commands separated by ``|``.

=========================  =================================================================================================
command                    effect
=========================  =================================================================================================
``say TEXT``               streams TEXT word by word and appends TEXT; text without a command is a ``say``
``tool NAME ARG …``        calls a tool: ``add`` and ``mul`` take numbers, ``echo`` returns its arguments, ``boom`` raises
``approve NAME ARG …``     asks for approval of the tool call first; a refused call gets an error result
``ask QUESTION``           asks the human and appends question and answer; ``QUESTION?`` alone is an ``ask``
``sleep SECONDS``          waits, without blocking the worker
``hang``                   waits for ever, in the first attempt only
``spin SECONDS``           blocks the worker's event loop
``set KEY VALUE``          sets ``extra[KEY]``
``fail [transient]``       raises an error; with ``transient``, the error is retryable and raised in the first attempt only
``crash``                  kills its process with SIGKILL, in the first attempt only; ``crash always`` in each attempt
=========================  =================================================================================================

If a script ends with a tool, the agent appends a text with the result. Each message of the agent contains the number of its
command. A later attempt skips the commands whose messages are committed. Example::

    say hello | tool add 1 2 | approve refund 10 | color? | sleep 0.5
"""

from __future__ import annotations

import asyncio
import math
import os
import re
import signal
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final

from ..app import App
from ..domain.messages import Message, ToolCallPart, ToolResultPart
from ..domain.size_limits import JsonObject
from ..execution.context import RunContext

TOKEN_SECONDS: Final = 0.0
"""Seconds between two streamed words, if RUNYARD_TOKEN_DELAY is not set."""


class PermanentError(Exception):
    """The error of ``fail``. It is not retried."""

    retryable = False


class TransientError(Exception):
    """The error of ``fail transient`` in a run's first attempt. The run is retried."""


@dataclass(frozen=True, slots=True)
class Command:
    """One command of a script. ``number`` is its position, from 0."""

    number: int
    verb: str
    rest: str

    @property
    def words(self) -> list[str]:
        return self.rest.split()


def parse(script: str) -> list[Command]:
    """Split a script into commands.

    A text without a command becomes ``ask`` if the text ends with ``?``, and ``say`` otherwise.
    """
    commands = []
    for number, text in enumerate(filter(None, (part.strip() for part in script.split("|")))):
        verb, _, rest = text.partition(" ")
        if verb in VERBS:
            commands.append(Command(number, verb, rest.strip()))
        elif text.endswith("?"):
            commands.append(Command(number, "ask", text))
        else:
            commands.append(Command(number, "say", text))
    return commands


async def scripted(ctx: RunContext) -> None:
    """Execute the script in the last user message of the history."""
    history = await ctx.history()
    prompt = next((message.text for message in reversed(history) if message.role == "user"), "")
    done = _done(message for message in history if message.run_id == ctx.run_id)
    commands = parse(prompt) or [Command(0, "say", "Hello.")]
    for command in commands:
        if command.number not in done:
            await VERBS[command.verb](ctx, command, history)
    last = (await ctx.history())[-1:]
    if last and last[0].tool_results:
        text = ", ".join(str(result.content) for result in last[0].tool_results)
        await _speak(ctx, Command(len(commands), "say", text), text)


def _done(own: Iterable[Message]) -> set[int]:
    """Return the numbers of the commands whose last message is committed."""
    done = set()
    for message in own:
        number = message.metadata.get("command")
        if isinstance(number, int) and message.metadata.get("last", True):
            done.add(number)
    return done


async def _speak(ctx: RunContext, command: Command, text: str) -> None:
    delay = float(os.environ.get("RUNYARD_TOKEN_DELAY", TOKEN_SECONDS))
    for token in re.findall(r"\S+\s*", text):
        await ctx.stream_text(token)
        await asyncio.sleep(delay)
    await ctx.append(Message.assistant(text, stop_reason="stop", metadata={"command": command.number}))


async def _say(ctx: RunContext, command: Command, history: list[Message]) -> None:
    await _speak(ctx, command, command.rest)


async def _ask(ctx: RunContext, command: Command, history: list[Message]) -> None:
    answer = await ctx.ask(command.rest, key=str(command.number))
    await _speak(ctx, command, f"{command.rest} {answer}")


async def _tool(ctx: RunContext, command: Command, history: list[Message]) -> None:
    call = await _call(ctx, command, history)
    await _answer(ctx, command, await _use(ctx, call))


async def _approve(ctx: RunContext, command: Command, history: list[Message]) -> None:
    call = await _call(ctx, command, history)
    approval = await ctx.approve(call)
    if approval:
        result = await _use(ctx, call.model_copy(update={"arguments": approval.arguments}))
    else:
        result = ToolResultPart(call_id=call.id, content=approval.reason or "denied", is_error=True)
    await _answer(ctx, command, result)


async def _call(ctx: RunContext, command: Command, history: list[Message]) -> ToolCallPart:
    """Return the tool call of the command. If no earlier attempt has committed the call, append it."""
    call_id = f"call-{ctx.run_id}-{command.number}"
    for message in history:
        for call in message.tool_calls:
            if call.id == call_id:
                return call
    name, *arguments = command.words or ["echo"]
    call = ToolCallPart(id=call_id, name=name, arguments={"args": list(arguments)})
    metadata: JsonObject = {"command": command.number, "last": False}
    await ctx.append(Message.assistant([call], stop_reason="tool_calls", metadata=metadata))
    return call


async def _use(ctx: RunContext, call: ToolCallPart) -> ToolResultPart:
    await ctx.emit({"call_id": call.id, "name": call.name, "arguments": call.arguments}, type="tool.started")
    try:
        content = await ctx.step(_run_tool, call.name, call.arguments, key=call.id)
        result = ToolResultPart(call_id=call.id, content=content)
    except (ValueError, ArithmeticError) as error:
        result = ToolResultPart(call_id=call.id, content=str(error), is_error=True)
    await ctx.emit({"call_id": call.id, "name": call.name, "is_error": result.is_error}, type="tool.completed")
    return result


def _run_tool(name: str, arguments: JsonObject) -> object:
    words = arguments.get("args")
    args = [str(word) for word in words] if isinstance(words, list) else []
    if name == "boom":
        raise ValueError("the tool broke")
    if name not in ("add", "mul"):
        return " ".join([name, *args]) if name != "echo" else " ".join(args)
    numbers = [float(arg) for arg in args]
    value = float(sum(numbers) if name == "add" else math.prod(numbers))
    return int(value) if value.is_integer() else value


async def _answer(ctx: RunContext, command: Command, result: ToolResultPart) -> None:
    await ctx.append(Message.tool(result, metadata={"command": command.number}))


async def _sleep(ctx: RunContext, command: Command, history: list[Message]) -> None:
    await asyncio.sleep(float(command.rest or 1))


async def _hang(ctx: RunContext, command: Command, history: list[Message]) -> None:
    if ctx.attempt == 1:
        await asyncio.Event().wait()


async def _spin(ctx: RunContext, command: Command, history: list[Message]) -> None:
    time.sleep(float(command.rest or 1))  # noqa: ASYNC251 - the command exists to block the event loop


async def _set(ctx: RunContext, command: Command, history: list[Message]) -> None:
    key, _, value = command.rest.partition(" ")
    ctx.extra[key] = value


async def _fail(ctx: RunContext, command: Command, history: list[Message]) -> None:
    if command.rest != "transient":
        raise PermanentError(command.rest or "the script failed")
    if ctx.attempt == 1:
        raise TransientError("the first attempt failed; a retry succeeds")


async def _crash(ctx: RunContext, command: Command, history: list[Message]) -> None:
    if ctx.attempt == 1 or command.rest == "always":
        os.kill(os.getpid(), signal.SIGKILL)


VERBS: Final[dict[str, Callable[[RunContext, Command, list[Message]], Awaitable[None]]]] = {
    "say": _say,
    "ask": _ask,
    "tool": _tool,
    "approve": _approve,
    "sleep": _sleep,
    "hang": _hang,
    "spin": _spin,
    "set": _set,
    "fail": _fail,
    "crash": _crash,
}

app = App({"scripted": scripted}, version="1")
"""An app that serves the scripted agent: ``runyard.testing.scripted_agent:app``."""
