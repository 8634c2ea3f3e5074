"""Channels, by which an in-process Agent asks a human.

Agents in a worker need no channel, because the worker stores their questions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from ..domain.requests import HitlRequest, check_answer
from ..domain.size_limits import JsonValue, check_value
from ..domain.validation import check_id
from ..errors import HitlAmbiguousError, HitlCancelledError, HitlNoPendingRequestError, HitlStaleAnswerError, HitlTimeoutError

if TYPE_CHECKING:
    from ..ports.stores import Checkpointer

Unsubscribe: TypeAlias = Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointedChannel:
    """A channel that stores questions in a checkpointer. Stored questions outlive the process.

    If a prompt asks a question, the call of :meth:`runyard.Agent.prompt` returns before the answer.

    The channel is bound to one run. ``run_id``: the id of that run. Give the same id to :meth:`runyard.Agent.prompt` (H2).
    ``default_timeout``: seconds to wait for an answer to a question without its own timeout. None waits without a limit.
    """

    checkpointer: Checkpointer
    thread_id: str
    run_id: str
    default_timeout: float | None = None

    def __post_init__(self) -> None:
        check_id(self.thread_id, "thread_id")
        check_id(self.run_id, "run_id")


@dataclass(slots=True)
class _Waiting:
    request: HitlRequest
    answer: asyncio.Future[JsonValue] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class InMemoryChannel:
    """A channel in the memory of this process. If a prompt asks a question, the call of :meth:`runyard.Agent.prompt` waits for
    the answer.

    ``default_timeout``: seconds to wait for an answer to a question without its own timeout. None waits without a limit.
    """

    def __init__(self, *, default_timeout: float | None = None) -> None:
        self.default_timeout = default_timeout
        self._waiting: dict[str, _Waiting] = {}
        self._listeners: dict[object, Callable[[HitlRequest], None]] = {}

    @property
    def pending(self) -> list[HitlRequest]:
        """The pending questions, the oldest first."""
        return [waiting.request for waiting in self._pending().values()]

    def subscribe(self, listener: Callable[[HitlRequest], None]) -> Unsubscribe:
        """Call ``listener`` with each question when it is asked. Return a function that ends the subscription."""
        key = object()
        self._listeners[key] = listener
        return lambda: self._listeners.pop(key, None) and None

    def answer(self, request_id: str | None, answer: JsonValue) -> HitlRequest:
        """Answer a question. The prompt that asked the question continues as soon as the event loop executes it.

        ``request_id``: the question's id, or None for the only pending question. Raises HitlNoPendingRequestError,
        HitlAmbiguousError and HitlStaleAnswerError. Raises HitlInvalidAnswerError if the answer does not fit the schema, and
        InvalidInputError if the answer is too large. After each of these two errors, the question stays pending (H3).
        """
        waiting = self._choose(request_id)
        check_value(answer, "answer")
        check_answer(waiting.request, answer)
        self._take(waiting).set_result(answer)
        return waiting.request

    def cancel(self, request_id: str | None, reason: str = "cancelled") -> HitlRequest:
        """Cancel a question. An approval is denied with ``reason``. The tool ``ask_user`` gets an error result with ``reason``.

        For any other question, the waiting call of :meth:`ask` raises HitlCancelledError.

        For an invalid ``request_id``, raises the errors of :meth:`answer`.
        """
        waiting = self._choose(request_id)
        request, future = waiting.request, self._take(waiting)
        if request.kind == "approval":
            future.set_result({"approved": False, "reason": reason})
        elif "questions" in request.payload:
            future.set_result({"cancelled": True, "reason": reason})
        else:
            future.set_exception(HitlCancelledError(f"the question was cancelled: {reason}", request_id=request.request_id))
        return request

    async def ask(self, request: HitlRequest) -> JsonValue:
        """Return the answer to ``request``. After the timeout, return the default answer in ``on_deadline`` (H7).

        Raises HitlTimeoutError after the timeout of a request without a default answer, and HitlCancelledError after
        :meth:`cancel`.
        """
        waiting = _Waiting(request)
        self._waiting[request.request_id] = waiting
        for listener in [*self._listeners.values()]:
            listener(request)
        try:
            async with asyncio.timeout(request.timeout):
                return await waiting.answer
        except TimeoutError:
            if waiting.answer.done() and not waiting.answer.cancelled():
                return waiting.answer.result()  # the answer was accepted just before the timeout
            choice = request.on_deadline or {}
            if "answer" in choice:
                return choice["answer"]
            raise HitlTimeoutError(
                f"request {request.request_id} was not answered within {request.timeout} s", request_id=request.request_id
            ) from None
        finally:
            self._waiting.pop(request.request_id, None)

    def _take(self, waiting: _Waiting) -> asyncio.Future[JsonValue]:
        """Remove the question from the pending questions, so that :meth:`answer` accepts no second answer."""
        del self._waiting[waiting.request.request_id]
        return waiting.answer

    def _choose(self, request_id: str | None) -> _Waiting:
        pending = self._pending()
        if not pending:
            raise HitlNoPendingRequestError("no request is pending on this channel", request_id=request_id)
        if request_id is None and len(pending) > 1:
            raise HitlAmbiguousError(f"{len(pending)} requests are pending; give a request_id", request_ids=[*pending])
        if request_id is None:
            return next(iter(pending.values()))
        if request_id not in pending:
            raise HitlStaleAnswerError(
                f"request {request_id} is not pending; pending: {', '.join(pending)}",
                request_id=request_id,
                pending=[*pending],
            )
        return pending[request_id]

    def _pending(self) -> dict[str, _Waiting]:
        """Return the questions whose askers wait. The question of a cancelled asker stays in ``_waiting`` until the asker's
        task runs."""
        return {request_id: waiting for request_id, waiting in self._waiting.items() if not waiting.answer.done()}


Channel: TypeAlias = InMemoryChannel | CheckpointedChannel
