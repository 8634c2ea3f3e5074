"""The protocol for reading and writing a thread branch by branch. Threads are exported and imported by it."""

from __future__ import annotations

from typing import Protocol

from ..domain.messages import Message


class ImportLock(Protocol):
    """The lock of a tenant's imports. Its connection or its process holds it. ``check``: raise BackendUnavailableError if the
    lock was lost. Call it at least every ten seconds. ``release``: release the lock."""

    async def check(self) -> None: ...
    async def release(self) -> None: ...


class BranchStore(Protocol):
    """Optional methods of a thread store (R14). They raise ThreadNotFoundError.

    ``branch_keys``: return the keys of the thread's branches, in the order in which they were opened. ``branch_messages``:
    return up to ``limit`` messages that the branch has itself, of all runs, after the number ``after``, in order. They have
    about PAGE_BYTES together. An empty list is the end. ``set_head``: make the branch that ends at a message the head. If no
    branch ends there, open one. ROOT_ID is the place before the first message. Raises MessageNotFoundError.

    ``lock_imports``: take the lock of the tenant's imports. Raises LockedError if another import holds it.
    """

    async def branch_keys(self, thread_id: str) -> list[int]: ...
    async def branch_messages(self, thread_id: str, branch: int, *, after: int = 0, limit: int = 500) -> list[Message]: ...
    async def set_head(self, thread_id: str, message_id: str) -> None: ...
    async def lock_imports(self) -> ImportLock: ...
