"""The protocol for reading and writing a thread branch by branch. The export and the import of threads use this protocol."""

from __future__ import annotations

from typing import Protocol

from ..domain.messages import Message


class ImportLock(Protocol):
    """The lock of a tenant's imports. A connection or a process holds the lock.

    ``check``: raise BackendUnavailableError if the lock was lost. The holder must call ``check`` at least every ten seconds.
    ``release``: release the lock.
    """

    async def check(self) -> None: ...
    async def release(self) -> None: ...


class BranchStore(Protocol):
    """Optional methods of a thread store (R14). All these methods raise ThreadNotFoundError.

    ``branch_keys``: return the keys of the thread's branches, in the order in which the branches were opened. ``branch_at``:
    return the key at the index ``place`` of ``branch_keys``, and the number of branches. The key is None if the list is
    shorter. ``branch_messages``: return at most ``limit`` messages that are stored on the branch, in order, after the message
    number ``after``. Messages of all runs are included, and inherited messages are not. The result has about PAGE_BYTES at
    most. An empty list means the end. ``set_head``: find the branch that ends at a message, and make this branch the head. If
    no branch ends at the message, open a branch there. ROOT_ID is the place before the first message. ``set_head`` raises
    MessageNotFoundError.

    ``lock_imports``: take the lock of the tenant's imports. This method raises LockedError if another import holds the lock.
    """

    async def branch_keys(self, thread_id: str) -> list[int]: ...
    async def branch_at(self, thread_id: str, place: int) -> tuple[int | None, int]: ...
    async def branch_messages(self, thread_id: str, branch: int, *, after: int = 0, limit: int = 500) -> list[Message]: ...
    async def set_head(self, thread_id: str, message_id: str) -> None: ...
    async def lock_imports(self) -> ImportLock: ...
