"""The checkpointer of runyard for an Agent of cubeloop or cubepi. This checkpointer replaces the framework's own
checkpointers.

::

    async with RunyardCheckpointer("postgresql://…") as cp:
        agent = Agent(model=…, checkpointer=cp, thread_id="t1")
        await agent.prompt("hello")

The threads are threads of runyard. A fork takes constant time. The client, the HTTP API and the command line can read the
threads. A run of such an agent is an external run (R17). The inbox shows the questions of the run, and a human may answer them
there (H10).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from ..client.client import Client
from ..domain.size_limits import JsonObject
from ..errors import InvalidInputError
from ..ports.stores import Backend
from ..support import backend_urls
from .cubeloop_framework import Framework, dumped, fields_of, framework, stored
from .cubeloop_requests import STATE, RequestLedger, answer_of, of_request

if TYPE_CHECKING:
    from cubeloop.checkpointer.base import CheckpointData
    from cubeloop.hitl.channel import HitlChannel
    from cubeloop.hitl.types import HitlRequest
    from cubeloop.providers.base import Message
    from cubeloop.types import StructuredValue

MESSAGES_PER_TURN: Final = 500
"""Number of messages to convert before the event loop may execute other tasks."""


class RunyardCheckpointer:
    """Threads of runyard, for an Agent of cubeloop (0.15) or cubepi (0.13).

    ``client``: a connected :class:`~runyard.Client`, or the URL of a deployment. With a URL, ``async with`` connects, and the
    end of the block disconnects. ``tenant`` and ``options``: the arguments of :meth:`runyard.Client.connect`, for a URL.
    ``package``: ``cubeloop`` or ``cubepi``. Only a program that imports both packages needs this argument.

    If the package has an error class for a case, the methods raise this class, for example ``ThreadNotFoundError`` of
    ``cubeloop.checkpointer.exceptions``. In all other cases the methods raise runyard's errors.
    """

    def __init__(self, client: Client | str, *, tenant: str = "", package: str | None = None, **options: Any) -> None:
        self.framework: Framework = framework(package)
        self._url = client if isinstance(client, str) else None
        self._tenant, self._options = tenant, options
        self._backend: Backend | None = None
        if isinstance(client, Client):
            if tenant or options:
                raise InvalidInputError("a client has a tenant and options; give these to Client.connect", field="client")
            self._backend = client.backend
        elif not isinstance(client, str):
            raise InvalidInputError(f"client must be a runyard Client or a URL, got {type(client).__name__}", field="client")

    async def __aenter__(self) -> Self:
        """Connect. Raises the package's schema errors and BackendUnavailableError. Raises InvalidInputError for an unknown
        scheme.
        """
        if self._url is not None and self._backend is None:
            with self.framework.translated():
                self._backend = await backend_urls.connect(self._url, tenant=self._tenant, **self._options)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._url is not None and self._backend is not None:
            backend, self._backend = self._backend, None
            await backend.close()

    @contextmanager
    def _open(self, thread_id: str) -> Iterator[Backend]:
        if self._backend is None:
            raise InvalidInputError("this RunyardCheckpointer is not open; use it inside `async with`")
        with self.framework.translated(thread_id):
            yield self._backend

    async def load(self, thread_id: str) -> CheckpointData | None:
        """Return the thread's messages, extra and parent thread, or None for an unknown thread.

        The messages are on the path of the head. The messages of runs that have not completed are included. Messages that other
        agents or clients stored are converted (:func:`.cubeloop_messages.decode`).
        """
        with self._open(thread_id) as backend:
            data = await backend.checkpointer.load(thread_id)
            if data is None:
                return None
            made: list[Message] = []
            for at in range(0, len(data.messages), MESSAGES_PER_TURN):
                made += self.framework.messages(data.messages[at : at + MESSAGES_PER_TURN])
                await asyncio.sleep(0)
            extra = {key: value for key, value in data.extra.items() if key != STATE}
            found: CheckpointData = self.framework.module("checkpointer.base").CheckpointData(
                messages=made, extra=extra, parent_thread_id=data.parent_thread_id
            )
            return found

    async def load_extra(self, thread_id: str) -> JsonObject | None:
        """Return the thread's extra without its messages, or None for an unknown thread."""
        with self._open(thread_id) as backend:
            thread = await backend.threads.thread(thread_id)
        return {key: value for key, value in thread.extra.items() if key != STATE} if thread is not None else None

    async def append(self, thread_id: str, messages: Sequence[Message]) -> None:
        """Store the messages in one transaction. The ``run_id`` of a message is the id of its run, or None if the message
        belongs to no run.

        A message that is already stored is skipped (:func:`.cubeloop_messages.stored_id`). A program that does not know the
        outcome of an append can therefore repeat the append.

        Raises RunAlreadyCompletedError if the run of a message has ended. Raises RunAlreadyClaimedError if the run of a message
        is a live run of workers, or if the thread was forked inside this run.
        """
        with self._open(thread_id) as backend:
            made = []
            for n, message in enumerate(messages, 1):
                made.append(stored(message))
                if n % MESSAGES_PER_TURN == 0:
                    await asyncio.sleep(0)
            if made:
                await backend.checkpointer.append(thread_id, made)

    async def save_extra(self, thread_id: str, extra: JsonObject) -> None:
        """Merge ``extra`` into the thread's extra at the top level."""
        with self._open(thread_id) as backend:
            given = dumped({key: value for key, value in extra.items() if key != STATE})
            assert isinstance(given, dict)
            await backend.checkpointer.save_extra(thread_id, given)

    async def claim_run(self, thread_id: str, run_id: str) -> None:
        """Claim a run. Raises RunAlreadyClaimedError, RunAlreadyCompletedError."""
        with self._open(thread_id) as backend:
            await backend.checkpointer.claim_run(thread_id, run_id)

    async def mark_run_complete(self, thread_id: str, run_id: str) -> None:
        """Complete a run. Do nothing if the run has completed. Raises RunNotClaimedError."""
        with self._open(thread_id) as backend:
            await RequestLedger(backend).forget(thread_id, run_id)  # before the completion, which copies the extra for forks
            await backend.checkpointer.mark_run_complete(thread_id, run_id)

    async def snapshot(self, thread_id: str, *, after_run_id: str) -> list[Message]:
        """Return the messages that :meth:`fork` gives to a fork after this run.

        Raises ThreadNotFoundError, RunNotCompletedError.
        """
        with self._open(thread_id) as backend:
            return self.framework.messages(await backend.checkpointer.snapshot(thread_id, after_run_id=after_run_id))

    async def fork(
        self, src_thread_id: str, new_thread_id: str, *, after_run_id: str, metadata: JsonObject | None = None
    ) -> None:
        """Fork the thread after a completed run, in constant time. No message is copied.

        Raises ThreadNotFoundError, RunNotCompletedError, ThreadAlreadyExistsError.
        """
        with self._open(src_thread_id) as backend:
            await backend.checkpointer.fork(src_thread_id, new_thread_id, after_run_id=after_run_id, metadata=metadata)

    async def save_pending_request(self, thread_id: str, request: HitlRequest | None, *, run_id: str | None = None) -> None:
        """Store the thread's pending request and its run id. The inbox shows the request.

        If ``request`` is None, clear the pending request and its run id.
        """
        with self._open(thread_id) as backend:
            ledger = RequestLedger(backend)
            if request is None:
                await ledger.clear(thread_id)
            else:
                await ledger.save(thread_id, fields_of(request), run_id)

    async def load_pending(self, thread_id: str) -> tuple[HitlRequest, str | None] | None:
        """Return the pending request and its run id, or None.

        A request with a stored answer stays pending until the agent clears the request, as in cubeloop's own checkpointers. An
        agent that crashed after the answer can therefore be resumed. :meth:`answered` returns such an answer.
        """
        with self._open(thread_id) as backend:
            found = await RequestLedger(backend).pending(thread_id)
            fields = of_request(found[0]) if found is not None else None
            if found is None or fields is None:
                return None
            return self.framework.request(fields), found[1]

    async def load_pending_request(self, thread_id: str) -> HitlRequest | None:
        """Return the pending request, or None."""
        found = await self.load_pending(thread_id)
        return found[0] if found is not None else None

    async def load_pending_run_id(self, thread_id: str) -> str | None:
        """Return the run id of the pending request, or None."""
        found = await self.load_pending(thread_id)
        return found[1] if found is not None else None

    async def clear_pending_request_if_matches(self, thread_id: str, *, question_id: str, run_id: str) -> bool:
        """Clear the pending request if it is this question of this run. Return whether this call cleared the request."""
        with self._open(thread_id) as backend:
            return await RequestLedger(backend).clear_if(thread_id, question_id, run_id)

    async def save_hitl_answer(
        self, thread_id: str, question_id: str, answer: StructuredValue, *, run_id: str | None = None
    ) -> None:
        """Store the answer to a question. A second call with the same answer changes nothing.

        Raises ``HitlStaleAnswer`` if the question already has another answer, for example from the inbox. The earlier answer is
        not replaced. Raises ``HitlError`` for an answer that does not fit the request.
        """
        with self._open(thread_id) as backend:
            await RequestLedger(backend).save_answer(thread_id, question_id, dumped(answer), run_id)

    async def load_hitl_answer(self, thread_id: str, question_id: str, *, run_id: str | None = None) -> StructuredValue | None:
        """Return the answer to a question, or None. The answer may come from the program or from the inbox."""
        with self._open(thread_id) as backend:
            answer: StructuredValue = await RequestLedger(backend).answer(thread_id, question_id, run_id)
            return answer

    async def clear_hitl_answers(
        self, thread_id: str, question_ids: Iterable[str] | None = None, *, run_id: str | None = None
    ) -> None:
        """Clear the answers of a run, or only the answers to ``question_ids``.

        The answer to the pending request is not cleared. :meth:`load_hitl_answer` no longer returns a cleared answer. The store
        keeps a cleared answer with its request, and lists of answered requests still show it.
        """
        with self._open(thread_id) as backend:
            await RequestLedger(backend).clear_answers(thread_id, question_ids, run_id)

    async def answered(self, thread_id: str) -> tuple[str, StructuredValue] | None:
        """Return the question id and the answer of the pending request. Return None if the request has no answer.

        A human may have answered the request in the inbox.

        ::

            if found := await cp.answered("t1"):
                await agent.respond(question_id=found[0], answer=found[1])
        """
        with self._open(thread_id) as backend:
            found = await RequestLedger(backend).pending(thread_id)
            fields = of_request(found[0]) if found is not None else None
            if found is None or fields is None or found[0].answered_at is None:
                return None
            answer = answer_of(found[0])
            if found[0].kind == "approval":  # cubepi 0.13 does not read an approval's JSON when it resumes
                answer = self.framework.module("hitl.types").ApproveAnswer.model_validate(answer)
            return str(fields["question_id"]), answer

    async def deliver(self, thread_id: str, channel: HitlChannel, *, every: float = 1.0) -> bool:
        """Wait until the open question of ``channel`` is answered in the inbox, and give the channel the answer.

        Call this method in a task beside ``agent.prompt``. ``every``: seconds between two reads. Return False if the channel
        has no open question. Also return False if the question ends without an answer from the inbox.
        """
        while (asked := channel.pending) is not None:
            found = await self.answered(thread_id)
            if found is not None and found[0] == asked.question_id and channel.pending is asked:
                await channel.answer(*found)
                return True
            await asyncio.sleep(every)
        return False
