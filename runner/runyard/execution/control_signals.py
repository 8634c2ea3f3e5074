"""Signals that end the agent's code early. The signals derive from BaseException, so that ``except Exception`` does not catch
them."""

from __future__ import annotations

from collections.abc import Iterator

from ..errors import HitlNotAllowedError, RunyardError


class ControlSignal(BaseException):
    """Base class of the signals. The executor catches all signals."""


class Suspend(ControlSignal):
    """Ends the attempt, because the run waits."""


class Deferred(ControlSignal):
    """Ends one tool call, because the tool waits for an answer. Parallel tool calls finish before the attempt ends."""


class AttemptLost(ControlSignal):
    """Ends the attempt after a refused write. The store refused the write because another attempt has the run, or because the
    run was cancelled.

    ``error``: the error of the write.
    """

    def __init__(self, error: RunyardError) -> None:
        super().__init__(str(error))
        self.error = error


class QuestionRefused(ControlSignal):
    """Ends a probe that asks a human or waits (F9). ``error``: the error for the caller of the probe."""

    def __init__(self, error: HitlNotAllowedError) -> None:
        super().__init__(str(error))
        self.error = error


def signals_in(error: BaseException) -> Iterator[ControlSignal]:
    """Yield the signals in ``error``. Signals that a TaskGroup wrapped are included."""
    if isinstance(error, ControlSignal):
        yield error
    elif isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from signals_in(inner)


def unwrap(error: BaseException) -> BaseException:
    """If one or several nested TaskGroups wrapped a single error in ``error``, return the single error. Otherwise return
    ``error``."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def probe_error(signal: ControlSignal | None, error: BaseException | None) -> BaseException | None:
    """Return the error of a probe, or None.

    ``signal``: the signal in the probe's context. It is there even if the agent has caught it.
    ``error``: the error that the agent raised.
    """
    found = [signal, *(signals_in(error) if error is not None else ())]
    refused = next((each for each in found if isinstance(each, QuestionRefused)), None)
    if refused is not None:
        return refused.error
    return unwrap(error) if error is not None else None
