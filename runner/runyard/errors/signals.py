"""Errors about signals."""

from __future__ import annotations

from .stores import CheckpointerError


class SignalConflictError(CheckpointerError):
    """The thread has a signal with this id and another name or value. ``details["differs"]`` names what differs."""

    code = "signal_conflict"


class TooManySignalsError(CheckpointerError):
    """The thread has too many signals for which no run has waited. Send the signal again when runs have taken some."""

    code = "too_many_signals"


class SignalInvalidError(CheckpointerError):
    """The value of the signal that a run took does not fit the schema for which the run waits. The signal is used up."""

    code = "signal_invalid"
    http_status = 422


class SignalTimeoutError(CheckpointerError, TimeoutError):
    """No signal came before the timeout of the wait."""

    code = "signal_timeout"
    http_status = 408
