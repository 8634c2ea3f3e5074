"""What a store refuses about a run, and how runs fail."""

from __future__ import annotations

from .stores import CheckpointerError


class RunError(CheckpointerError):
    """Base class of errors about a run."""


class RunNotFoundError(RunError):
    """The thread has no such run."""

    code = "run_not_found"
    http_status = 404


class RunConflictError(RunError):
    """A different request has this run id; ``details["differs"]`` names the fields that differ."""

    code = "run_conflict"


class RunNotCompletedError(RunError):
    """The run is unknown, is still open, or ended without completing, so a fork cannot be cut after it."""

    code = "run_not_completed"


class RunAlreadyClaimedError(RunError):
    """Another process has claimed the run, which is not finished."""

    code = "run_already_claimed"


class RunAlreadyCompletedError(RunError):
    """The run is finished; nothing can be added to it."""

    code = "run_already_completed"


class RunNotClaimedError(RunError):
    """The run was never claimed."""

    code = "run_not_claimed"


class RunEndedError(RunError):
    """The run has ended, so the requested transition is not possible."""

    code = "run_ended"


class RunInUseError(RunError):
    """The run cannot be deleted: it has not ended, it is part of a context, or another run continues from its messages."""

    code = "run_in_use"


class NothingToRunError(RunError):
    """The leaf has no message that needs an answer."""

    code = "nothing_to_run"


class StaleFenceError(RunError):
    """Another attempt has the run; this one must stop (I2)."""

    code = "stale_fence"


class CancelRequestedError(RunError):
    """A cancel of the run was requested; no more of its writes are accepted (I8)."""

    code = "cancel_requested"


class IncompleteToolCycleError(RunError):
    """A tool call has no result directly after it, or a result has no call (R5)."""

    code = "incomplete_tool_cycle"


class ResultExpiredError(RunError):
    """The result is deleted: the retention of a job's result has passed, or the run was deleted."""

    code = "result_expired"
    http_status = 410


class AgentNotFoundError(RunError):
    """The App has no such agent."""

    code = "agent_not_found"
    http_status = 404


class StepUnknownError(RunError):
    """An earlier attempt started the step and did not finish it, so its outcome is unknown."""

    code = "step_unknown"


class RunExpiredError(RunError):
    """The run did not start within its ``expires_in`` or the limit ``queued_seconds``."""

    code = "run_expired"
    http_status = 504


class RunTimeoutError(RunError):
    """An attempt took longer than the run's ``timeout``."""

    code = "run_timeout"
    http_status = 504


class AgentCancelledError(RunError):
    """The agent ended by a cancellation that was not requested."""

    code = "agent_cancelled"
    http_status = 500


class VersionMismatchError(RunError):
    """Another version of the app began the run, and the App refuses to continue it with this version."""

    code = "version_mismatch"


class BudgetExceededError(RunError):
    """The run or its thread has used up a budget; ``details`` have the budget, its limit and the amount used."""

    code = "budget_exceeded"


class QueueFullError(RunError):
    """A limit on queued runs is reached; ``details["retry_after"]``: seconds to wait."""

    code = "queue_full"
    http_status = 429
