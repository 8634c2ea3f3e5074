"""Errors about signals."""

from __future__ import annotations

from .stores import CheckpointerError


class SignalConflictError(CheckpointerError):
    """The thread has a signal with this id and another name or value. ``details["differs"]`` names the fields that differ."""

    code = "signal_conflict"


class TooManySignalsError(CheckpointerError):
    """The thread has too many signals that no run has taken. Send the signal again when runs have taken some of them."""

    code = "too_many_signals"


class SignalInvalidError(CheckpointerError):
    """A run took a signal whose value does not fit the schema of the wait. The signal is used up."""

    code = "signal_invalid"
    http_status = 422


class SignalTimeoutError(CheckpointerError, TimeoutError):
    """No signal came before the timeout of the wait."""

    code = "signal_timeout"
    http_status = 408
