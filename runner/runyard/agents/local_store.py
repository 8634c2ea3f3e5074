"""The store of an in-process Agent: the checkpointer of the Agent, the checkpointer of its channel, a file, or memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import TYPE_CHECKING

from ..checkpointer import MemoryCheckpointer
from ..domain.validation import check_id, new_id
from ..errors import CapabilityMissingError
from .default_file import DefaultFile
from .local_thread import LocalThread

if TYPE_CHECKING:
    from ..ports.stores import Checkpointer


class LocalStore:
    """The threads of an in-process Agent.

    ``checkpointer``, ``thread_id``: the arguments of the Agent, or None. A thread id without a checkpointer names a thread of
    the default file. Without a thread id, the thread of the Agent is in memory, even if the Agent has a checkpointer.
    """

    def __init__(self, checkpointer: Checkpointer | None, thread_id: str | None) -> None:
        self._checkpointer, self._thread_id = checkpointer, thread_id
        self._file: DefaultFile | None = None
        self._local_thread: LocalThread | None = None

    @asynccontextmanager
    async def own_thread(self) -> AsyncIterator[LocalThread]:
        """Yield the thread of the Agent. The thread's file is open until the ``with`` block ends.

        Raises the errors of :meth:`.default_file.DefaultFile.in_use`.
        """
        if self._local_thread is None:
            own = MemoryCheckpointer() if self._thread_id is None else self._stored()
            self._local_thread = LocalThread(own, self._thread_id or new_id())
        async with _in_use(self._local_thread.checkpointer):
            yield self._local_thread

    @asynccontextmanager
    async def source(self, thread_id: str | None) -> AsyncIterator[tuple[Checkpointer, str]]:
        """Yield the checkpointer and the id of the thread from which a fork or a probe starts. ``thread_id``: None for the
        thread of the Agent.

        Raises CapabilityMissingError if neither the caller nor the Agent names a thread, and the errors of :meth:`own_thread`.
        """
        source = thread_id if thread_id is not None else self._thread_id
        if source is None and self._checkpointer is None:
            raise CapabilityMissingError(
                "an agent without a thread_id stores nothing that can be forked; give it a thread_id, or give src_thread_id",
                backend=None,
                method="fork",
            )
        checked = check_id(source, "src_thread_id")
        checkpointer = self._stored()
        async with _in_use(checkpointer):
            yield checkpointer, checked

    def _stored(self) -> Checkpointer:
        if self._checkpointer is not None:
            return self._checkpointer
        self._file = self._file or DefaultFile()
        return self._file


def _in_use(checkpointer: Checkpointer) -> AbstractAsyncContextManager[None]:
    return checkpointer.in_use() if isinstance(checkpointer, DefaultFile) else nullcontext()
