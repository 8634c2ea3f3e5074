"""The error that a run records: nested groups take bounded time and space."""

from __future__ import annotations

from itertools import count

from runyard.domain.size_limits import MAX_TRACEBACK_BYTES
from runyard.execution.end_records import MAX_ERROR_CHARACTERS, describe

LEVELS = 9
"""Groups inside each other. Without a bound, 3 ** LEVELS texts are made."""


class Counted(Exception):
    """Counts the texts that are made of it."""

    texts = count()

    def __str__(self) -> str:
        next(self.texts)
        return "counted"


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


def nested(levels: int) -> BaseException:
    """Return a group of three equal groups of three equal groups …"""
    error = raised(Counted())
    for _ in range(levels):
        error = raised(BaseExceptionGroup("group", [error] * 3))
    return error


def test_nested_groups_are_described_in_bounded_time() -> None:
    Counted.texts = count()
    info = describe(nested(LEVELS), None)
    assert next(Counted.texts) < 100
    assert len(info.message) <= MAX_ERROR_CHARACTERS + 2 and info.message.startswith(
        "group (3 sub-exceptions): ExceptionGroup: group"
    )
    assert info.traceback is not None and len(info.traceback.encode()) <= MAX_TRACEBACK_BYTES
    assert info.traceback.count("ExceptionGroup: group (3 sub-exceptions)") == 4


def test_a_group_shows_its_errors_with_their_notes() -> None:
    inner = raised(ValueError("inner"))
    inner.add_note("a note of the error")
    group = BaseExceptionGroup("outer", [inner, raised(BaseExceptionGroup("middle", [raised(KeyError("deep"))]))])
    group.add_note("a note of the group")
    info = describe(raised(group), None)
    assert (
        info.message
        == "outer (2 sub-exceptions): ValueError: inner; ExceptionGroup: middle (1 sub-exception): KeyError: 'deep'"
    )
    assert info.traceback is not None
    for text in ("ExceptionGroup: outer (2 sub-exceptions)\na note of the group\n", "ValueError: inner\na note of the error"):
        assert text in info.traceback


def test_an_error_that_is_its_own_cause_is_described() -> None:
    one, two = raised(ValueError("one")), raised(ValueError("two"))
    one.__context__, two.__context__ = two, one
    info = describe(one, None)
    assert info.traceback is not None and info.traceback.count("ValueError: ") == 2


def test_a_deep_context_of_groups_is_described_in_bounded_time() -> None:
    Counted.texts = count()
    error = raised(ValueError("last"))
    error.__context__ = nested(LEVELS)
    info = describe(error, None)
    assert next(Counted.texts) < 100 and info.traceback is not None and "ValueError: last" in info.traceback
