"""Checkpointers to open by name, over whichever backend is installed for them (semantics: R13 to R15).

::

    cp = PostgresCheckpointer(dsn="postgresql://…")
    async with cp:
        await cp.append(thread_id, [msg1, msg2])
        data = await cp.load(thread_id)
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

from . import registry
from .errors import InvalidInputError
from .models import CheckpointData, HitlRequest, JsonObject, Message
from .ports import Checkpointer

if TYPE_CHECKING:
    from .exchange import Aborted, Responded
    from .ports import Backend, RequestStore

__all__ = ["CheckpointData", "Checkpointer", "MemoryCheckpointer", "PostgresCheckpointer"]


class _Connected:
    """A checkpointer of a backend that is connected on entering, or on first use if that needs no closing."""

    def __init__(self, url: str, *, tenant: str = "", **options: Any) -> None:
        self._url, self._tenant, self._options = url, tenant, options
        self._backend: Backend | None = None

    async def __aenter__(self) -> Self:
        await self._connect()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        backend, self._backend = self._backend, None
        if backend is not None:
            await backend.close()

    async def _connect(self) -> Checkpointer:
        if self._backend is None:
            self._backend = await registry.connect(self._url, tenant=self._tenant, **self._options)
        return self._backend.checkpointer

    async def _open(self) -> Checkpointer:
        if self._backend is None:
            raise InvalidInputError(f"{type(self).__name__} is not open; use it inside `async with`")
        return self._backend.checkpointer

    async def _requests(self) -> RequestStore:
        return cast("RequestStore", await self._open())

    async def load(self, thread_id: str) -> CheckpointData | None:
        """The thread's messages, extra and parent; None for an unknown thread (semantics: R1)."""
        return await (await self._open()).load(thread_id)

    async def append(self, thread_id: str, messages: Sequence[Message]) -> None:
        """Store messages, each under its own run id; all or none. Raises RunAlreadyCompletedError, RunAlreadyClaimedError."""
        await (await self._open()).append(thread_id, messages)

    async def save_extra(self, thread_id: str, extra: JsonObject) -> None:
        """Merge into the thread's extra at the top level; existing keys survive.

        Raises InvalidInputError if ``extra`` holds too much (:mod:`runner.bounds`).
        """
        await (await self._open()).save_extra(thread_id, extra)

    async def save_pending_request(self, thread_id: str, request: HitlRequest | None, *, run_id: str | None = None) -> None:
        """Keep one pending request with its run id; None clears both."""
        await (await self._open()).save_pending_request(thread_id, request, run_id=run_id)

    async def load_pending_request(self, thread_id: str) -> HitlRequest | None:
        """The pending request, or None."""
        return await (await self._open()).load_pending_request(thread_id)

    async def load_pending_run_id(self, thread_id: str) -> str | None:
        """The run id of the pending request; None without one."""
        return await (await self._open()).load_pending_run_id(thread_id)

    async def load_pending(self, thread_id: str) -> tuple[HitlRequest, str | None] | None:
        """The pending request and its run id, read together."""
        return await (await self._open()).load_pending(thread_id)

    async def claim_run(self, thread_id: str, run_id: str) -> None:
        """Begin a run. Raises RunAlreadyClaimedError, RunAlreadyCompletedError (semantics: R13)."""
        await (await self._open()).claim_run(thread_id, run_id)

    async def mark_run_complete(self, thread_id: str, run_id: str) -> None:
        """Complete a run; again is a no-op. Raises RunNotClaimedError, RunAlreadyClaimedError (semantics: R13)."""
        await (await self._open()).mark_run_complete(thread_id, run_id)

    async def snapshot(self, thread_id: str, *, after_run_id: str) -> list[Message]:
        """What a fork after the run would see. Raises ThreadNotFoundError, RunNotCompletedError."""
        return await (await self._open()).snapshot(thread_id, after_run_id=after_run_id)

    async def fork(
        self, src_thread_id: str, new_thread_id: str, *, after_run_id: str, metadata: JsonObject | None = None
    ) -> None:
        """Fork after a completed run (semantics: F1, F4). Raises ThreadNotFoundError, RunNotCompletedError,
        ThreadAlreadyExistsError."""
        await (await self._open()).fork(src_thread_id, new_thread_id, after_run_id=after_run_id, metadata=metadata)

    async def save_requests(self, thread_id: str, requests: Sequence[HitlRequest], *, run_id: str) -> None:
        """Keep requests of a run beside each other; one with a known id stays as it is."""
        await (await self._requests()).save_requests(thread_id, requests, run_id=run_id)

    async def load_requests(self, thread_id: str, *, run_id: str | None = None) -> list[HitlRequest]:
        """Requests that wait or were answered, of the run or of the thread, the oldest first."""
        return await (await self._requests()).load_requests(thread_id, run_id=run_id)

    async def answer_request(
        self,
        thread_id: str,
        answer: Any,
        *,
        request_id: str | None = None,
        response_id: str | None = None,
        answered_by: str | None = None,
    ) -> Responded:
        """Answer a request once. Raises as :meth:`runner.Client.respond` (semantics: H3, H4)."""
        return await (await self._requests()).answer_request(
            thread_id, answer, request_id=request_id, response_id=response_id, answered_by=answered_by
        )

    async def abort_pending(self, thread_id: str, reason: str, *, run_id: str | None = None) -> Aborted:
        """Give up the run that waits for a human. As :meth:`runner.Client.abort_pending` (semantics: H8)."""
        return await (await self._requests()).abort_pending(thread_id, reason, run_id=run_id)


class MemoryCheckpointer(_Connected):
    """Threads in this process, gone with it. Needs no opening; ``name`` shares one with whoever names it."""

    def __init__(self, name: str = "", *, tenant: str = "") -> None:
        super().__init__(f"memory://{name}", tenant=tenant)

    async def _open(self) -> Checkpointer:
        return await self._connect()


class PostgresCheckpointer(_Connected):
    """Threads in Postgres, in the schema that ``runyard migrate`` makes; workers and clients see the same ones.

    ``dsn``: ``postgresql://…``. ``min_pool_size``, ``max_pool_size``: bounds of the connections. Use it with ``async with``;
    entering raises SchemaUninitialized, SchemaMismatch, BackendUnavailableError.
    """

    def __init__(self, dsn: str, *, min_pool_size: int = 1, max_pool_size: int = 10, tenant: str = "") -> None:
        super().__init__(dsn, tenant=tenant, min_pool_size=min_pool_size, max_pool_size=max_pool_size)
