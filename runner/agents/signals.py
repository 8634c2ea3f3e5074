"""Control flow that user code cannot swallow by ``except Exception``: why an attempt unwinds before its agent is done."""

from __future__ import annotations

from collections.abc import Iterator

from ..errors import RunyardError


class ControlSignal(BaseException):
    """Base of the signals; they leave an agent only to be caught by the executor."""


class Suspend(ControlSignal):
    """The attempt ends here; the run waits for a human."""


class Deferred(ControlSignal):
    """A tool waits for a human. The tools beside it finish before the attempt ends."""


class AttemptLost(ControlSignal):
    """A write was refused: another attempt holds the run, or it was cancelled. ``error`` is the refusal."""

    def __init__(self, error: RunyardError) -> None:
        super().__init__(str(error))
        self.error = error


def signals_in(error: BaseException) -> Iterator[ControlSignal]:
    """The signals in ``error``, also those that a TaskGroup wrapped."""
    if isinstance(error, ControlSignal):
        yield error
    elif isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from signals_in(inner)


def unwrap(error: BaseException) -> BaseException:
    """The error itself where a TaskGroup wrapped a single one, for a readable reason in the run."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
