"""Errors about runs. A store raises some of these errors to refuse a call. The others are causes of a failed run."""

from __future__ import annotations

from .stores import CheckpointerError


class RunError(CheckpointerError):
    """Base class of errors about a run."""


class RunNotFoundError(RunError):
    """The thread has no such run."""

    code = "run_not_found"
    http_status = 404


class RunAmbiguousError(RunError):
    """The ids of several runs begin with the given text. ``details["runs"]`` has the thread ids and run ids of some of them."""

    code = "run_ambiguous"


class RunConflictError(RunError):
    """Another run, with a different request, has this run id. ``details["differs"]`` names the fields and options that differ.

    ``details["values"]`` has two values for each of these options: the value of the run and the value of the request.
    """

    code = "run_conflict"


class RunNotCompletedError(RunError):
    """The run has not completed. A fork can be cut only after a completed run."""

    code = "run_not_completed"


class CutRunNotFoundError(RunNotCompletedError):
    """A fork names a run as its cut, and the source of the fork has no such run."""

    code = "cut_run_not_found"
    http_status = 404


class RunAlreadyClaimedError(RunError):
    """Another process has claimed the run, and the run has not ended."""

    code = "run_already_claimed"


class RunAlreadyCompletedError(RunError):
    """The run has ended, and accepts no further messages."""

    code = "run_already_completed"


class RunNotClaimedError(RunError):
    """The call needs a claimed run, but nobody has claimed this run."""

    code = "run_not_claimed"


class RunEndedError(RunError):
    """The run has ended, and the call is not possible in the run's status."""

    code = "run_ended"


class RunInUseError(RunError):
    """The run cannot be deleted: it has not ended, later runs see its messages, or another run continues from its messages."""

    code = "run_in_use"


class NothingToRunError(RunError):
    """The last message of the branch needs no answer."""

    code = "nothing_to_run"


class StaleFenceError(RunError):
    """Another attempt has claimed the run. This attempt must stop (I2)."""

    code = "stale_fence"


class CancelRequestedError(RunError):
    """A cancel of the run was requested. The store refuses further writes of the run (I8)."""

    code = "cancel_requested"


class IncompleteToolCycleError(RunError):
    """A tool call has no result directly after it, or a result has no call (R5)."""

    code = "incomplete_tool_cycle"


class ResultExpiredError(RunError):
    """The result was deleted, because the retention of a fork job's result has passed, or because the run was deleted."""

    code = "result_expired"
    http_status = 410


class AgentNotFoundError(RunError):
    """The App has no such agent."""

    code = "agent_not_found"
    http_status = 404


class StepUnknownError(RunError):
    """The outcome of the step is unknown: an earlier attempt started the step and did not finish it."""

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
    """The agent cancelled its own task, or the prompt of an in-process ``Agent`` was aborted."""

    code = "agent_cancelled"
    http_status = 500


class VersionMismatchError(RunError):
    """Another version of the app began the run, and the App refuses to continue the run with this version."""

    code = "version_mismatch"


class BudgetExceededError(RunError):
    """The run or its thread has used up a budget. ``details`` has the budget, its limit and the used amount."""

    code = "budget_exceeded"


class ChildFailedError(RunError):
    """A child did not complete, or its thread was deleted.

    The traceback names the line of the child's code, if the error of the child has a traceback.
    ``details["status"]`` is the status of the child, or None if its thread was deleted.
    """

    code = "child_failed"


class ChildDeadlockError(RunError):
    """A child would wait for a run that waits for the child."""

    code = "child_deadlock"


class TooManyChildrenError(RunError):
    """The run has too many children, or its child would be at a level that is too deep."""

    code = "too_many_children"


class QueueFullError(RunError):
    """A limit on queued runs is reached. ``details["retry_after"]``: seconds to wait."""

    code = "queue_full"
    http_status = 429
