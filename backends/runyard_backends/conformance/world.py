"""Helpers for the suite's tests: short names for the operations, by default on one thread."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Any, TypeAlias, cast

import pytest_asyncio

from runyard.domain.states import RunStatus
from runyard.models import Branch, ErrorInfo, Event, HitlRequest, Message, Run, ToolCallPart, ToolResultPart, Usage, new_id
from runyard.ports.commands import AcceptRequest, Cut, ForkRequest, Write
from runyard.ports.queries import PathRequest
from runyard.ports.refs import AttemptToken, RunRef
from runyard.ports.results import Accepted, Claim, Ended, Forked
from runyard.ports.runs import RunStore
from runyard.ports.stores import Backend, RequestStore
from runyard.ports.workers import WorkerInfo

BackendFactory: TypeAlias = Callable[..., Awaitable[Backend]]

T = "t"
DEADLINE = 30.0


def user(text: str, **fields: Any) -> Message:
    return Message.user(text, **fields)


def said(text: str, **fields: Any) -> Message:
    return Message.assistant(text, **fields)


def call(*ids: str, text: str | None = None) -> Message:
    """Make an assistant message with one tool call per id."""
    return Message(
        role="assistant", content=[ToolCallPart(id=i, name="look", arguments={}) for i in ids], metadata={"text": text}
    )


def result(*ids: str) -> Message:
    return Message.tool(*(ToolResultPart(call_id=i, content="seen") for i in ids))


class World:
    """A backend of one tenant, with a worker ``w``."""

    def __init__(self, backend: Backend, factory: BackendFactory) -> None:
        self.backend, self.factory = backend, factory
        self.runs, self.threads, self.checkpointer, self.workers = (
            backend.runs,
            backend.threads,
            backend.checkpointer,
            backend.workers,
        )

    async def hire(self, worker_id: str = "w", **fields: Any) -> str:
        if worker_id not in {worker.worker_id for worker in await self.workers.workers()}:
            await self.workers.register(WorkerInfo(**{"worker_id": worker_id, "queues": ["default"], **fields}))
        return worker_id

    async def bury(self, worker_id: str = "w") -> None:
        """Declare a worker dead."""
        (worker,) = [w for w in await self.workers.workers() if w.worker_id == worker_id]
        assert worker.heartbeat_at is not None
        assert await self.workers.mark_dead(worker_id, worker.heartbeat_at)

    async def accept(self, run_id: str, text: str | None = "hi", *, thread: str = T, **fields: Any) -> Accepted:
        message = None if text is None else user(text)
        return await self.runs.accept(AcceptRequest(thread_id=thread, run_id=run_id, input=message, **fields))

    async def ref(self, run_id: str, thread: str = T) -> RunRef:
        key = await self.threads.thread_key(thread)
        assert key is not None
        return RunRef(key, run_id)

    async def claim(self, run_id: str, *, thread: str = T, worker: str = "w") -> Claim:
        await self.hire(worker)
        (claim,) = await self.runs.claim(worker, [await self.ref(run_id, thread)])
        return claim

    async def take(self, run_id: str, *, thread: str = T, worker: str = "w") -> AttemptToken:
        """Claim a run. The claim must succeed."""
        claim = await self.claim(run_id, thread=thread, worker=worker)
        assert claim.outcome == "claimed" and claim.attempt is not None, claim
        return claim.attempt

    async def start(self, run_id: str, text: str | None = "hi", *, thread: str = T, **fields: Any) -> AttemptToken:
        await self.accept(run_id, text, thread=thread, **fields)
        return await self.take(run_id, thread=thread)

    async def crash(self, run_id: str, times: int, *, thread: str = T, worker: str = "crashing") -> None:
        """Let the run crash ``times`` times. A crash is a claim of the run, followed by the death of its worker. If an attempt
        must run alone, call ``isolate`` before its crash."""
        for n in range(times):
            claim = await self.claim(run_id, thread=thread, worker=f"{worker}{n}")
            assert claim.attempt is not None, claim
            if claim.alone:
                await self.runs.isolate(claim.attempt)
            await self.bury(f"{worker}{n}")

    async def finish(self, attempt: AttemptToken, *messages: Message, **fields: Any) -> Ended:
        (ended,) = await self.runs.complete([Write(attempt=attempt, messages=messages, **fields)])
        if isinstance(ended, Exception):
            raise ended
        return ended

    async def turn(self, run_id: str, *, thread: str = T, extra: Any = None, usage: Usage | None = None, **fields: Any) -> None:
        """Execute a whole run. The user's message is ``<run>?``, and the assistant's message is ``<run>!``."""
        attempt = await self.start(run_id, f"{run_id}?", thread=thread, **fields)
        ended = await self.finish(attempt, said(f"{run_id}!"), extra=extra, usage=usage)
        assert ended.status is RunStatus.COMPLETED

    async def failed(self, run_id: str, *, thread: str = T, **fields: Any) -> None:
        """Make a run that fails after the message ``<run>…``."""
        attempt = await self.start(run_id, f"{run_id}?", thread=thread, **fields)
        await self.runs.fail(Write(attempt=attempt, messages=[said(f"{run_id}…")]), ErrorInfo(code="x", message="x"))

    async def run(self, run_id: str, thread: str = T) -> Run:
        run = await self.runs.run(thread, run_id)
        assert run is not None
        return run

    async def status(self, run_id: str, thread: str = T) -> RunStatus:
        return (await self.run(run_id, thread)).status

    async def messages(self, thread: str = T, leaf: str | None = None) -> list[Message]:
        return (await self.threads.messages(thread, PathRequest(leaf_id=leaf))).items

    async def texts(self, thread: str = T, leaf: str | None = None) -> list[str]:
        return texts(await self.messages(thread, leaf))

    async def loaded(self, thread: str = T) -> list[str]:
        data = await self.checkpointer.load(thread)
        assert data is not None
        return texts(data.messages)

    @property
    def request_store(self) -> RequestStore:
        return cast(RequestStore, self.checkpointer)

    async def context(self, attempt: AttemptToken) -> list[str]:
        return texts(await self.runs.context(attempt))

    async def cut(self, thread: str = T, **cut: Any) -> list[str]:
        messages, _ = await self.threads.cut_messages(thread, Cut(**cut))
        return texts(messages)

    async def fork(self, new: str, src: str = T, *, metadata: Any = None, options: Any = None, **cut: Any) -> Forked:
        return await self.threads.fork(ForkRequest(src=src, new=new, cut=Cut(**cut), metadata=metadata, **(options or {})))

    async def store(self, text: str, parent: str | None = None, *, thread: str = T, **fields: Any) -> str:
        """Store a user message and return its id."""
        return (await self.threads.store_message(thread, user(text), parent, **fields)).id

    async def leaves(self, thread: str = T) -> list[Branch]:
        return (await self.threads.branches(thread)).items

    async def id_of(self, text: str, thread: str = T) -> str:
        """Return the id of the message with this text, anywhere in the tree of ``thread``."""
        for leaf in await self.leaves(thread):
            for message in await self.messages(thread, leaf.message_id):
                if message.text == text:
                    return message.id
        raise AssertionError(f"no message {text!r} in {thread!r}")

    async def ask(
        self, attempt: AttemptToken, *requests: HitlRequest, messages: Sequence[Message] = (), **fields: Any
    ) -> Ended:
        return await self.runs.suspend(Write(attempt=attempt, messages=messages, **fields), requests)

    async def count(self) -> None:
        """Add the usage of all ended runs to the totals."""
        begun, today = now(), now().date()

        async def counted() -> bool:
            await self.backend.usage.count()
            until = (await self.backend.usage.report(today, today)).counted_until
            return until is not None and until >= begun

        await eventually(counted)

    async def suspended(self, run_id: str, request_id: str | None = None, *, thread: str = T, **fields: Any) -> str:
        """Make a run that waits for a human, and return the request's id."""
        attempt = await self.start(run_id, f"{run_id}?", thread=thread)
        request = HitlRequest(request_id=request_id or new_id(), payload={"question": "?"}, **fields)
        ended = await self.ask(attempt, request)
        assert ended.status is RunStatus.SUSPENDED
        return request.request_id


class CheckpointWorld(World):
    """A backend of one tenant without workers. Its runs are external."""

    async def turn(self, run_id: str, *, thread: str = T, extra: Any = None, usage: Usage | None = None, **fields: Any) -> None:
        """Claim, write and complete a run, as :meth:`World.turn` does with a worker. ``usage`` and ``fields`` need a worker."""
        assert usage is None and not fields, "an external run has no usage and no options"
        await self.claimed(run_id, user(f"{run_id}?"), said(f"{run_id}!"), thread=thread)
        if extra is not None:
            await self.checkpointer.save_extra(thread, extra)
        await self.checkpointer.mark_run_complete(thread, run_id)

    async def failed(self, run_id: str, *, thread: str = T, **fields: Any) -> None:
        """Make a run that fails after the message ``<run>…``, at the deadline of a request."""
        assert not fields, "an external run has no options"
        await self.claimed(run_id, user(f"{run_id}?"), said(f"{run_id}…"), thread=thread)
        overdue = HitlRequest(request_id=new_id(), timeout=0, on_deadline={"fail": True})
        await self.request_store.save_requests(thread, [overdue], run_id=run_id)
        assert await self.request_store.load_requests(thread, run_id=run_id) == []

    async def claimed(self, run_id: str, *messages: Message, thread: str = T) -> None:
        """Claim an external run and append its messages."""
        await self.checkpointer.claim_run(thread, run_id)
        own = [message.model_copy(update={"run_id": run_id}) for message in messages]
        await self.checkpointer.append(thread, own)


async def proved(runs: RunStore, ref: RunRef) -> list[Event]:
    """Return all events that the store makes from its rows for a run, from all pages."""
    found = list[Event]()
    while page := await runs.run_events(ref, found[-1].id if found else None):
        found += page
    return found


def texts(messages: Sequence[Message]) -> list[str]:
    """Return the text of each message. The text of a message with tool calls is ``call:<ids>``, and the text of a message with
    results is ``result:<ids>``."""
    return [_text(message) for message in messages]


def _text(message: Message) -> str:
    if message.tool_calls:
        return "call:" + ",".join(part.id for part in message.tool_calls)
    if message.tool_results:
        return "result:" + ",".join(part.call_id for part in message.tool_results)
    return message.text


def now() -> datetime:
    return datetime.now(UTC)


async def eventually(check: Callable[[], Awaitable[bool]]) -> None:
    """Repeat ``check`` until it is true, for at most ten seconds."""
    async with asyncio.timeout(DEADLINE):
        while not await check():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest_asyncio.fixture
async def world(backend_factory: BackendFactory) -> Any:
    """Yield a :class:`World` of the default tenant."""
    backend = await backend_factory()
    yield World(backend, backend_factory)
    await backend.close()
