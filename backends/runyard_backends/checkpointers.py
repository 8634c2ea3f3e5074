"""The methods that the checkpointers of all stores have in common (R13 to R15)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Protocol, Unpack

from runyard.errors import InvalidInputError
from runyard.ports.commands import Cut, ForkOptions, ForkRequest

if TYPE_CHECKING:
    from runyard.models import HitlRequest, JsonObject, Message
    from runyard.ports.results import Forked


def request_taken(request_id: str) -> InvalidInputError:
    """Return the error for a request id that a request of another run or thread has already."""
    message = f"request id {request_id!r} is taken by another run or thread; use another id"
    return InvalidInputError(message, request_id=request_id)


class Forks(Protocol):
    """The methods of a thread store that a checkpointer's snapshots and forks use."""

    async def cut_messages(self, thread_id: str, cut: Cut) -> tuple[list[Message], JsonObject]: ...
    async def fork(self, request: ForkRequest) -> Forked: ...


class StoredThreads(ABC):
    """Base class of a checkpointer of a store. A subclass implements the methods of
    :class:`~runyard.ports.stores.Checkpointer` that this class does not implement."""

    def __init__(self, threads: Forks) -> None:
        self._threads = threads

    @abstractmethod
    async def load_pending(self, thread_id: str) -> tuple[HitlRequest, str | None] | None:
        """Return the newest pending request of the thread with its run id, or None."""

    async def load_pending_request(self, thread_id: str) -> HitlRequest | None:
        """Return the pending request, or None."""
        pending = await self.load_pending(thread_id)
        return pending[0] if pending else None

    async def load_pending_run_id(self, thread_id: str) -> str | None:
        """Return the run id of the pending request. Return None if there is no pending request, or if the pending request has
        no run id."""
        pending = await self.load_pending(thread_id)
        return pending[1] if pending else None

    async def snapshot(self, thread_id: str, *, after_run_id: str) -> list[Message]:
        """Return the messages that a fork after the run would see. Raises ThreadNotFoundError, RunNotCompletedError."""
        messages, _ = await self._threads.cut_messages(thread_id, Cut(after_run_id=after_run_id))
        return messages

    async def fork(
        self,
        src_thread_id: str,
        new_thread_id: str,
        *,
        after_run_id: str,
        metadata: JsonObject | None = None,
        **options: Unpack[ForkOptions],
    ) -> None:
        """Fork after a completed run into a new thread (F1, F4, F7). Raises ThreadAlreadyExistsError."""
        cut = Cut(after_run_id=after_run_id)
        request = ForkRequest(src=src_thread_id, new=new_thread_id, cut=cut, metadata=metadata, **options)
        (await self._threads.fork(request)).require_new()
