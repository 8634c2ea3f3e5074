"""Errors about signals."""

from __future__ import annotations

from .stores import CheckpointerError


class SignalConflictError(CheckpointerError):
    """The thread already has another signal with this id: its name or value differs.

    ``details["differs"]`` names the fields that differ.
    """

    code = "signal_conflict"


class TooManySignalsError(CheckpointerError):
    """The thread has too many signals that no run has taken. Send the signal again when runs have taken some of them."""

    code = "too_many_signals"


class SignalInvalidError(CheckpointerError):
    """A run took a signal whose value does not fit the schema of the wait. No other wait can take this signal."""

    code = "signal_invalid"
    http_status = 422


class SignalTimeoutError(CheckpointerError, TimeoutError):
    """No signal came before the timeout of the wait."""

    code = "signal_timeout"
    http_status = 408
