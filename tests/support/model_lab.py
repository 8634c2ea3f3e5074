"""One run of a pydantic-ai agent on the memory backend, attempt by attempt, with a model that is a list of answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    ModelResponsePart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, DeltaThinkingPart, DeltaToolCall, FunctionModel

from runyard.app import App, as_function
from runyard.domain.states import RunStatus
from runyard.errors import StaleFenceError
from runyard.events.writer import EventWriter
from runyard.execution.executor import Execution, WorkerServices
from runyard.models import Event, HitlRequest, Message, RetryPolicy, Run, RunOptions
from runyard.ports.commands import AcceptRequest
from runyard.ports.refs import RunRef
from runyard.ports.results import Claim, Ended
from runyard.ports.stores import Backend
from runyard.ports.workers import WorkerInfo
from runyard_backends.conformance.world import proved
from runyard_backends.memory import connect

Answer = str | Sequence[ModelResponsePart] | Exception


def call(name: str, id: str | None = None, **arguments: Any) -> ToolCallPart:
    """Return a tool call of the model. Its id is by default the name of its tool."""
    return ToolCallPart(name, arguments, tool_call_id=id or name)


@dataclass
class Script:
    """A model that gives ``answers`` in order. To a history with n answers it gives answer n, counted from 0.

    An answer that is an exception is raised once. ``requests``: the histories that the model received. ``prompts``: the
    instructions and tools that it received.
    """

    answers: Sequence[Answer]
    requests: list[list[ModelMessage]] = field(default_factory=list)
    prompts: list[AgentInfo] = field(default_factory=list)
    pieces: int = 3
    before: int = 0
    """Number of answers in the history that do not belong to this script."""

    def __post_init__(self) -> None:
        self._raised: set[int] = set()

    @property
    def model(self) -> FunctionModel:
        """Return the model, which streams."""
        return FunctionModel(self._whole, stream_function=self._stream, model_name="script")

    @property
    def silent(self) -> FunctionModel:
        """Return the same model without streaming."""
        return FunctionModel(self._whole, model_name="script")

    def _next(self, messages: list[ModelMessage], info: AgentInfo) -> list[ModelResponsePart]:
        self.requests.append(list(messages))
        self.prompts.append(info)
        n = sum(isinstance(message, ModelResponse) for message in messages) - self.before
        answer = self.answers[n]
        if isinstance(answer, Exception):
            if n not in self._raised:
                self._raised.add(n)
                raise answer
            return [TextPart("recovered")]
        return [TextPart(answer)] if isinstance(answer, str) else list(answer)

    async def _whole(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return ModelResponse(self._next(messages, info))

    async def _stream(self, messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        for index, part in enumerate(self._next(messages, info)):
            match part:
                case TextPart(content=text):
                    for piece in cut(text, self.pieces):
                        yield piece
                case ThinkingPart(content=text):
                    yield {index: DeltaThinkingPart(content=text)}
                case ToolCallPart():
                    arguments = part.args if isinstance(part.args, str) else json.dumps(part.args)
                    yield {index: DeltaToolCall(part.tool_name, "", tool_call_id=part.tool_call_id)}
                    for piece in cut(arguments, self.pieces):
                        yield {index: DeltaToolCall(json_args=piece)}

    def results(self, n: int = -1) -> dict[str, Any]:
        """Return the results of tools in the nth request, by the ids of their calls."""
        parts = [part for message in self.requests[n] if isinstance(message, ModelRequest) for part in message.parts]
        return {part.tool_call_id: part.content for part in parts if isinstance(part, ToolReturnPart)}


def cut(text: str, pieces: int) -> list[str]:
    size = -(-len(text) // pieces) or 1
    return [text[start : start + size] for start in range(0, len(text), size)] or [""]


@dataclass
class Lab:
    """Runs of the thread ``t``. ``agent``: any agent that an App takes."""

    backend: Backend
    writer: EventWriter
    workers: int = 0
    started: set[str] = field(default_factory=set)

    @classmethod
    async def open(cls) -> Lab:
        backend = await connect()
        return cls(backend, EventWriter(backend.events))

    async def accept(self, run_id: str = "r", text: str | Message = "hi", **options: Any) -> None:
        chosen = RunOptions(**{"max_attempts": 5, "retry": RetryPolicy(initial=0), **options})
        said = Message.user(text) if isinstance(text, str) else text
        request = AcceptRequest(thread_id="t", run_id=run_id, input=said, options=chosen)
        await self.backend.runs.accept(request)

    async def attempt(self, agent: Any, run_id: str = "r") -> Ended | None:
        """Execute one attempt of the run. Accept the run first if it is new."""
        execution = await self.execution(agent, run_id)
        return await execution.run()

    async def execution(self, agent: Any, run_id: str = "r") -> Execution:
        if run_id not in self.started:
            await self.accept(run_id)
            self.started.add(run_id)
        return Execution(
            WorkerServices.of(App({"agent": as_function(agent)}), self.backend, self.writer), await self.claim(run_id)
        )

    async def claim(self, run_id: str) -> Claim:
        self.workers += 1
        worker = f"w{self.workers}"
        await self.backend.workers.register(WorkerInfo(worker_id=worker, queues=["default"]))
        [claim] = await self.backend.runs.claim(worker, [await self.ref(run_id)])
        assert claim.outcome == "claimed", claim.outcome
        return claim

    async def crash(self, agent: Any, appends: int, run_id: str = "r") -> None:
        """Execute one attempt, and declare its worker dead after this number of committed calls of ``append``."""
        execution = await self.execution(agent, run_id)
        append, left, committed, gone = self.backend.runs.append, appends, asyncio.Event(), asyncio.Event()

        async def failing(*args: Any, **kwargs: Any) -> Any:
            nonlocal left
            if left:
                left -= 1
                stored = await append(*args, **kwargs)
                if left:
                    return stored
            committed.set()
            await gone.wait()
            raise StaleFenceError("the process is gone")

        self.backend.runs.append = failing  # type: ignore[method-assign]
        attempt = asyncio.create_task(execution.run())
        async with asyncio.timeout(30):
            await committed.wait()
            self.backend.runs.append = append  # type: ignore[method-assign]
            [info] = [w for w in await self.backend.workers.workers() if w.worker_id == f"w{self.workers}"]
            assert info.heartbeat_at is not None
            await self.backend.workers.mark_dead(info.worker_id, info.heartbeat_at)
            gone.set()
            assert await attempt is None

    async def ref(self, run_id: str = "r") -> RunRef:
        key = await self.backend.threads.thread_key("t")
        assert key is not None
        return RunRef(key, run_id)

    async def run(self, run_id: str = "r") -> Run:
        run = await self.backend.runs.run("t", run_id)
        assert run is not None
        return run

    async def messages(self, run_id: str = "r") -> list[Message]:
        """Return the messages of a run in any status."""
        events = await proved(self.backend.runs, await self.ref(run_id))
        return [Message.model_validate(event.data["message"]) for event in events if event.type == "message.completed"]

    async def said(self) -> list[tuple[str, object]]:
        """Return a short form of the run's messages: the role, and the text, calls or results."""
        return [(message.role, in_short(message)) for message in await self.messages()]

    async def pending(self) -> list[HitlRequest]:
        return (await self.backend.runs.requests(thread_id="t")).items

    async def respond(self, answer: Any, request: HitlRequest | None = None) -> None:
        if request is None:
            await self.backend.runs.respond(answer, thread_id="t")
        else:
            await self.backend.runs.respond(answer, request_id=request.request_id)

    async def events(self, run_id: str = "r") -> list[Event]:
        self.writer.close()
        await self.writer.run()
        return await self.backend.events.read(await self.ref(run_id))


def in_short(message: Message) -> object:
    if message.tool_calls:
        return [call.id for call in message.tool_calls]
    if message.tool_results:
        return {result.call_id: result.content for result in message.tool_results}
    return message.text


def status(ended: Ended | None) -> RunStatus | None:
    return ended.status if ended else None


def prompts(messages: Sequence[ModelMessage]) -> list[UserPromptPart]:
    """Return the user's texts in a request."""
    return [part for m in messages if isinstance(m, ModelRequest) for part in m.parts if isinstance(part, UserPromptPart)]
