"""The steps of a run in memory."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

from runyard.domain.fan_outs import CandidateStatus
from runyard.ports.refs import AttemptToken
from runyard.ports.results import Step

from .state import RunState
from .values import check_json


def start(run: RunState, attempt: AttemptToken, key: str, now: datetime, input: str | None = None) -> Step | None:
    """Start the step ``key`` with the arguments ``input``. Return None if this attempt may execute the step. Return the step's
    record if the step is finished, or if an earlier attempt started it."""
    known = run.steps.get(key)
    if known is None or not known.done:
        if known is None or known.fence != attempt.fence:
            run.step_times[key] = (now, None)
        run.steps[key] = Step(key, False, fence=attempt.fence)
        run.step_inputs[key] = input
    return known if known and (known.done or known.fence != attempt.fence) else None


def finish(
    run: RunState, attempt: AttemptToken, key: str, result: Any, now: datetime, outcome: CandidateStatus | None = None
) -> bool:
    """Record the result of the step ``key``. The first result stays. Return True if this call recorded it.

    ``outcome``: the outcome of a candidate. A worker of the previous release records the start of a candidate as the result of
    the step. The outcome replaces such a record.
    """
    done = Step(key, True, check_json(result, "result"), attempt.fence, outcome)
    known = run.steps.get(key)
    first = known is None or not known.done or (known.outcome is None and outcome is not None)
    if first:
        run.step_times[key] = (run.step_times.get(key, (None, None))[0], now)
        run.steps[key] = done
    run.progress = True
    return first


def without_answers(run: RunState) -> dict[str, Step]:
    """Return the steps of a run by key, without the answers of the candidates of a fan-out."""
    return {key: step if step.outcome is None else replace(step, result=None) for key, step in run.steps.items()}
