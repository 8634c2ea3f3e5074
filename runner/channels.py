"""Channels: how the questions of an in-process Agent reach a human. In a worker the run's own store takes their place."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from .agents.answers import check_answer
from .bounds import check_value
from .errors import HitlAmbiguousError, HitlCancelledError, HitlNoPendingRequestError, HitlStaleAnswerError, HitlTimeoutError
from .models import HitlRequest, JsonValue, check_id

if TYPE_CHECKING:
    from .ports import Checkpointer

Unsubscribe: TypeAlias = Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointedChannel:
    """Questions are kept by a checkpointer and outlive the process; the prompt that asked one returns.

    It is bound to one run: ``run_id`` is the id to give to :meth:`runner.Agent.prompt` (semantics: H2). ``default_timeout``:
    seconds to wait for an answer where the question has no timeout of its own; None for ever.
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
    """Questions wait in this process, and the prompt that asked them with them. ``default_timeout`` as for
    :class:`CheckpointedChannel`."""

    def __init__(self, *, default_timeout: float | None = None) -> None:
        self.default_timeout = default_timeout
        self._waiting: dict[str, _Waiting] = {}
        self._listeners: dict[object, Callable[[HitlRequest], None]] = {}

    @property
    def pending(self) -> list[HitlRequest]:
        """The questions that wait, the oldest first."""
        return [waiting.request for waiting in self._waiting.values()]

    def subscribe(self, listener: Callable[[HitlRequest], None]) -> Unsubscribe:
        """Call ``listener`` with each question as it is asked. Returns what ends that."""
        key = object()
        self._listeners[key] = listener
        return lambda: self._listeners.pop(key, None) and None

    def answer(self, request_id: str | None, answer: JsonValue) -> HitlRequest:
        """Answer a question; None stands for the only one that waits. The prompt goes on when this returns control.

        Raises HitlNoPendingRequestError, HitlAmbiguousError, HitlStaleAnswerError; HitlInvalidAnswerError if the answer does
        not fit, InvalidInputError if it is nested too deep, and the question stays (semantics: H3).
        """
        waiting = self._choose(request_id)
        check_value(answer, "answer")
        check_answer(waiting.request, answer)
        self._take(waiting).set_result(answer)
        return waiting.request

    def cancel(self, request_id: str | None, reason: str = "cancelled") -> HitlRequest:
        """Say that nobody will answer: an approval is denied and ``ask_user`` gets an error result, both with ``reason``; any
        other asker gets HitlCancelledError. Raises as :meth:`answer`."""
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
        """Wait for the answer to ``request``; at its timeout its own choice applies (semantics: H7).

        Raises HitlTimeoutError if that is to fail, HitlCancelledError.
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
                return waiting.answer.result()  # it came in the same instant, and whoever gave it was told that it counts
            choice = request.on_deadline or {}
            if "answer" in choice:
                return choice["answer"]
            raise HitlTimeoutError(
                f"request {request.request_id} was not answered within {request.timeout} s", request_id=request.request_id
            ) from None
        finally:
            self._waiting.pop(request.request_id, None)

    def _take(self, waiting: _Waiting) -> asyncio.Future[JsonValue]:
        """From here on the question does not wait any more, so no second answer can reach it."""
        del self._waiting[waiting.request.request_id]
        return waiting.answer

    def _choose(self, request_id: str | None) -> _Waiting:
        if not self._waiting:
            raise HitlNoPendingRequestError("no question waits on this channel", request_id=request_id)
        if request_id is None and len(self._waiting) > 1:
            raise HitlAmbiguousError(f"{len(self._waiting)} questions wait; name one", request_ids=[*self._waiting])
        if request_id is None:
            return next(iter(self._waiting.values()))
        if request_id not in self._waiting:
            raise HitlStaleAnswerError(
                f"request {request_id} does not wait for an answer; {', '.join(self._waiting)} do",
                request_id=request_id,
                pending=[*self._waiting],
            )
        return self._waiting[request_id]


Channel: TypeAlias = InMemoryChannel | CheckpointedChannel
