"""The answers of humans to the questions of a graph. Each answer belongs to the question that the human saw (H5)."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from typing import Any, Final

from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.config import get_config
from langgraph.types import Interrupt, interrupt

from ..domain.derived_ids import digest
from ..domain.size_limits import JsonValue
from ..errors import InvalidInputError
from .json_values import json_of

UNANSWERED: Final = object()


class Answers:
    """The answers of the humans of one run.

    ``lookup``: a function that returns the answer to the question with a key, or :data:`UNANSWERED`. A key contains the task,
    the value of ``interrupt()``, and the number of earlier questions of the task with this value.
    """

    def __init__(self, lookup: Callable[[str], JsonValue | object]) -> None:
        self._lookup = lookup
        self._given: dict[tuple[str, str], int] = {}

    def of_task(self, serde: SerializerProtocol) -> list[Any]:
        """Return the answers of one task in LangGraph's form. ``serde``: the serializer of the store."""
        return _TaskAnswers(self, serde)

    def find(self, task: str, value: str, place: int) -> JsonValue | object:
        """Return the answer to a question, or :data:`UNANSWERED`.

        ``place``: the number of earlier calls with the same question.
        """
        answer = self._lookup(_key(task, value, place))
        if answer is not UNANSWERED:
            self._given[task, value] = place + 1
        return copy.deepcopy(answer) if answer is not UNANSWERED else answer

    def key(self, waiting: Interrupt, stopped: bool) -> str | None:
        """Return the key of the question that a pending interrupt asks.

        Return None if the question has an answer, and the task gets this answer when this attempt executes the task.

        ``stopped``: whether this attempt has executed the task up to the interrupt. If False, this attempt will execute the
        task, and the task may ask again. Raises InvalidInputError if the question has an answer that LangGraph did not give to
        the task.
        """
        task, value = waiting.id, digest(json_of(waiting.value))
        if not stopped:
            key = _key(task, value, 0)
            return key if self._lookup(key) is UNANSWERED else None
        place = 0
        while self._lookup(_key(task, value, place)) is not UNANSWERED:
            place += 1
        if place > self._given.get((task, value), 0):
            raise InvalidInputError(
                "the graph asked a question again and did not take the answer, because this version of LangGraph reads answers "
                "in a way that runyard does not know; install a version that runyard supports",
                field="graph",
            )
        return _key(task, value, place)


class _TaskAnswers(list[Any]):
    """The list that LangGraph calls the resume values of a task.

    LangGraph gives the n-th value to the n-th call of ``interrupt()`` in the task, and does not compare the questions.
    ``interrupt()`` compares the length of this list with the number of the call. During this comparison, the list reads the
    question from the frame of ``interrupt()``. The list has a value at this number only if the question has an answer. Without
    a value, LangGraph asks the question.
    """

    def __init__(self, answers: Answers, serde: SerializerProtocol) -> None:
        super().__init__()
        self._answers, self._serde = answers, serde
        self._asked: dict[int, tuple[str, str]] = {}
        self._found: dict[int, Any] = {}

    def __len__(self) -> int:
        frame = sys._getframe(1)
        if frame.f_code is not interrupt.__code__ or not {"idx", "value"} <= set(frame.f_locals):
            return 0  # LangGraph then asks an answered question again, and Answers.key raises an error
        number: int = frame.f_locals["idx"]
        asked = self._asked[number] = self._question(frame.f_locals["value"])
        before = sum(self._asked.get(n) == asked for n in range(number))
        self._found[number] = self._answers.find(*asked, before)
        return 0 if self._found[number] is UNANSWERED else number + 1

    def __getitem__(self, number: Any) -> Any:
        return [] if isinstance(number, slice) else self._found[number]

    def _question(self, value: object) -> tuple[str, str]:
        """Return the task that calls ``interrupt(value)``, and the digest of the stored form of the value."""
        stored = self._serde.loads_typed(self._serde.dumps_typed(value))
        return Interrupt.from_ns(value, get_config()["configurable"]["checkpoint_ns"]).id, digest(json_of(stored))


def _key(task: str, value: str, place: int) -> str:
    return f"interrupt:{task}:{place}:{value}"
