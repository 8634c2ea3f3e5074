"""Checkpointers, each for one backend (R13 to R15).

::

    cp = PostgresCheckpointer(dsn="postgresql://…")
    async with cp:
        await cp.append(thread_id, [msg1, msg2])
        data = await cp.load(thread_id)
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack, cast
from urllib.parse import quote

from .domain.messages import Message
from .domain.requests import HitlRequest
from .domain.size_limits import JsonObject
from .domain.threads import CheckpointData
from .errors import InvalidInputError
from .ports.stores import DEFAULT_MAX_POOL_CONNECTIONS, DEFAULT_MIN_POOL_CONNECTIONS, Checkpointer
from .support import backend_urls

if TYPE_CHECKING:
    from .ports.commands import ForkOptions
    from .ports.results import Aborted, Responded
    from .ports.stores import Backend, RequestStore

__all__ = [
    "CheckpointData",
    "Checkpointer",
    "MemoryCheckpointer",
    "MySQLCheckpointer",
    "PostgresCheckpointer",
    "SQLiteCheckpointer",
]


class _Connected:
    """Base class of checkpointers. ``async with`` connects to the backend.

    The connections are closed at the end of the block.
    """

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
            self._backend = await backend_urls.connect(self._url, tenant=self._tenant, **self._options)
        return self._backend.checkpointer

    async def _open(self) -> Checkpointer:
        if self._backend is None:
            raise InvalidInputError(f"{type(self).__name__} is not open; use it inside `async with`")
        return self._backend.checkpointer

    async def _requests(self) -> RequestStore:
        return cast("RequestStore", await self._open())

    async def load(self, thread_id: str) -> CheckpointData | None:
        """Return the thread's messages, extra and parent thread, or None for an unknown thread (R1)."""
        return await (await self._open()).load(thread_id)

    async def append(self, thread_id: str, messages: Sequence[Message]) -> None:
        """Store all messages. After an error, no message is stored. The ``run_id`` of a message names its run. Messages of
        several runs may be mixed.

        Raises RunAlreadyCompletedError, RunAlreadyClaimedError.
        """
        await (await self._open()).append(thread_id, messages)

    async def save_extra(self, thread_id: str, extra: JsonObject) -> None:
        """Merge ``extra`` into the thread's extra at the top level. The keys that ``extra`` lacks keep their values.

        Raises InvalidInputError if ``extra`` exceeds the :mod:`runyard.domain.size_limits`.
        """
        await (await self._open()).save_extra(thread_id, extra)

    async def save_pending_request(self, thread_id: str, request: HitlRequest | None, *, run_id: str | None = None) -> None:
        """Store the thread's pending request and its run id. If ``request`` is None, remove the stored request and its run id.

        :meth:`load_pending` returns the request and its run id.
        """
        await (await self._open()).save_pending_request(thread_id, request, run_id=run_id)

    async def load_pending_request(self, thread_id: str) -> HitlRequest | None:
        """Return the pending request, or None."""
        return await (await self._open()).load_pending_request(thread_id)

    async def load_pending_run_id(self, thread_id: str) -> str | None:
        """Return the run id of the pending request, or None without a pending request."""
        return await (await self._open()).load_pending_run_id(thread_id)

    async def load_pending(self, thread_id: str) -> tuple[HitlRequest, str | None] | None:
        """Return the pending request and its run id, read together. Return None without a pending request."""
        return await (await self._open()).load_pending(thread_id)

    async def claim_run(self, thread_id: str, run_id: str) -> None:
        """Claim a run. Raises RunAlreadyClaimedError, RunAlreadyCompletedError (R13)."""
        await (await self._open()).claim_run(thread_id, run_id)

    async def mark_run_complete(self, thread_id: str, run_id: str) -> None:
        """Complete a run. Do nothing if the run has completed. Raises RunNotClaimedError, RunAlreadyClaimedError (R13)."""
        await (await self._open()).mark_run_complete(thread_id, run_id)

    async def snapshot(self, thread_id: str, *, after_run_id: str) -> list[Message]:
        """Return the messages that a fork after the run would have. Raises ThreadNotFoundError, RunNotCompletedError."""
        return await (await self._open()).snapshot(thread_id, after_run_id=after_run_id)

    async def fork(
        self,
        src_thread_id: str,
        new_thread_id: str,
        *,
        after_run_id: str,
        metadata: JsonObject | None = None,
        **options: Unpack[ForkOptions],
    ) -> None:
        """Fork the thread after a completed run (F1, F4).

        ``options``: ``title``, ``tags``, ``agent`` and ``reset_usage`` of the new thread. They have the meaning of the same
        arguments of :meth:`runyard.Client.fork`.

        Raises ThreadNotFoundError, RunNotCompletedError, ThreadAlreadyExistsError.
        """
        checkpointer = await self._open()
        await checkpointer.fork(src_thread_id, new_thread_id, after_run_id=after_run_id, metadata=metadata, **options)

    async def save_requests(self, thread_id: str, requests: Sequence[HitlRequest], *, run_id: str) -> None:
        """Add the requests of a run. If the run already has a request with the same id, the stored request stays unchanged.

        Raises InvalidInputError if another run or thread has the id of a request. In this case no request is stored.
        """
        await (await self._requests()).save_requests(thread_id, requests, run_id=run_id)

    async def load_requests(self, thread_id: str, *, run_id: str | None = None) -> list[HitlRequest]:
        """Return the pending and answered requests of a run, the oldest first.

        Without a run id, return the requests of the whole thread.
        """
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
        """Answer a request once. Raises the same errors as :meth:`runyard.Client.respond` (H3, H4)."""
        return await (await self._requests()).answer_request(
            thread_id, answer, request_id=request_id, response_id=response_id, answered_by=answered_by
        )

    async def abort_pending(self, thread_id: str, reason: str, *, run_id: str | None = None) -> Aborted:
        """Abort the run that waits for a human, like :meth:`runyard.Client.abort_pending` (H8)."""
        return await (await self._requests()).abort_pending(thread_id, reason, run_id=run_id)


class MemoryCheckpointer(_Connected):
    """Threads in the memory of this process. Checkpointers with the same ``name`` share their threads.

    The checkpointer can be used without ``async with``.
    """

    def __init__(self, name: str = "", *, tenant: str = "") -> None:
        super().__init__(f"memory://{name}", tenant=tenant)

    async def _open(self) -> Checkpointer:
        return await self._connect()


class SQLiteCheckpointer(_Connected):
    """Threads in a SQLite file, for agents on one machine. Several processes may use one file. Install ``runyard[sqlite]``.

    ``path``: the file. A missing file is created, with its tables. Use a checkpointer with ``async with``. ``async with``
    raises SchemaMismatch if the tables in the file are too old or too new for this code, BackendUnavailableError if the file
    cannot be used, and DataCorruptedError if the file is not a SQLite file. A write waits up to ten seconds for a write of
    another process. After ten seconds, the waiting write raises LockedError.
    """

    def __init__(self, path: str | os.PathLike[str], *, tenant: str = "") -> None:
        super().__init__(f"sqlite:///{quote(os.fspath(path))}", tenant=tenant)


class MySQLCheckpointer(_Connected):
    """Threads in MySQL or MariaDB, in the tables that ``runyard migrate`` makes. Install ``runyard[mysql]``.

    ``dsn``: ``mysql://user:password@host:3306/database``. ``min_pool_size``, ``max_pool_size``: bounds of the number of
    connections. Use a checkpointer with ``async with``. ``async with`` raises SchemaUninitialized, SchemaMismatch,
    BackendUnavailableError.
    """

    def __init__(
        self,
        dsn: str,
        *,
        min_pool_size: int = DEFAULT_MIN_POOL_CONNECTIONS,
        max_pool_size: int = DEFAULT_MAX_POOL_CONNECTIONS,
        tenant: str = "",
    ) -> None:
        super().__init__(dsn, tenant=tenant, min_pool_size=min_pool_size, max_pool_size=max_pool_size)


class PostgresCheckpointer(_Connected):
    """Threads in Postgres, in the schema that ``runyard migrate`` makes. Workers and clients read the same threads.

    ``dsn``: ``postgresql://…``. ``min_pool_size``, ``max_pool_size``: bounds of the number of connections. Use a checkpointer
    with ``async with``. ``async with`` raises SchemaUninitialized, SchemaMismatch, BackendUnavailableError.
    """

    def __init__(
        self,
        dsn: str,
        *,
        min_pool_size: int = DEFAULT_MIN_POOL_CONNECTIONS,
        max_pool_size: int = DEFAULT_MAX_POOL_CONNECTIONS,
        tenant: str = "",
    ) -> None:
        super().__init__(dsn, tenant=tenant, min_pool_size=min_pool_size, max_pool_size=max_pool_size)
