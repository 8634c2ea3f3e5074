"""Execute ``fork_many``: one job that tries several messages on the same snapshot (F11).

Probes are executed in the slot of the job. The job records each finished probe. A later attempt executes only the others. With
``threads``, each candidate is a fork with a run (:mod:`runyard.execution.fan_out_candidates`). The job holds no worker while
these runs are executed. ``client/fan_out.py`` has the limits (``MAX_CANDIDATES``).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final

from pydantic import TypeAdapter

from ..domain.derived_ids import candidate_id
from ..domain.messages import Message
from ..domain.runs import Candidate, ForkManyResult, ForkOnceResult, Run
from ..domain.size_limits import JsonObject, JsonValue
from ..errors import HitlNotAllowedError, RunyardError
from ..ports.results import Claim, Ledger
from ..ports.stores import Backend
from ..support.store_retries import patiently
from . import fork_runs
from .end_records import describe
from .fan_out_candidates import Later, ThreadCandidates, key_of
from .retries import UNSERVED_RETRY_SECONDS

if TYPE_CHECKING:
    from ..app import AgentSpec, App

JUDGE: Final = "judge"
"""The key of the step that records the judge's answer."""
ASSIGNMENT: Final = (
    "Several messages were tried as the next one of the conversation above. Choose the best answer. "
    "Reply with its number only.\n"
)


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    """The outcome of a probe.

    ``written``: the prompt and the agent's messages. ``error``: the agent's error, or None. ``value``: the agent's result.
    """

    written: list[Message]
    error: BaseException | None = None
    value: JsonValue = None


Ask = Callable[["AgentSpec", Run, Sequence[Message], JsonObject, "asyncio.Future[None]"], Awaitable[ProbeAnswer]]
"""Executes an agent on a snapshot (messages, extra) until the agent ends or the future is done."""


class FanOutJob:
    """One attempt of a job. ``stopped``: a future that is done when the attempt must end early."""

    def __init__(
        self,
        app: App,
        backend: Backend,
        claim: Claim,
        spec: AgentSpec,
        ledger: Ledger,
        ask: Ask,
        stopped: asyncio.Future[None],
    ) -> None:
        assert claim.run is not None and claim.attempt is not None
        self._app, self._backend, self._claim, self._spec, self._ask = app, backend, claim, spec, ask
        self._run, self._attempt, self._ledger, self._stopped = claim.run, claim.attempt, ledger, stopped
        self._request = fork_runs.request_of(claim)
        fan = self._request.fan
        if fan is None:
            raise RunyardError("the store returned a fork_many job without its candidates")
        self._fan = fan

    async def run(self) -> JsonValue | Later:
        """Execute the job as far as possible. Return its result, or :class:`Later`.

        Raises HitlNotAllowedError if a probe or the judge may ask a human (F9). This check comes before any read.
        """
        judge = self._app.agents.get(self._fan.judge) if self._fan.judge is not None else None
        if self._fan.judge is not None and judge is None:
            return Later(delay=UNSERVED_RETRY_SECONDS)
        for spec in (judge, None if self._fan.threads else self._spec):
            if spec is not None:
                fork_runs.refuse_asking(spec)
        found = await (
            ThreadCandidates(self._backend, self._claim, self._ledger).advance() if self._fan.threads else self._probe()
        )
        if isinstance(found, Later):
            return found
        candidates, winner = found
        verdict = None
        good = [n for n, candidate in enumerate(candidates) if candidate.ok]
        if judge is not None and len(good) > 1:
            verdict, winner = await self._judged(judge, candidates, good)
        elif judge is not None and good:
            winner = good[0]
        result: JsonValue = _results().dump_python(ForkManyResult(candidates, winner, verdict), mode="json")
        return result

    async def _probe(self) -> tuple[list[Candidate], int | None]:
        """Execute one probe per message, ``max_parallel`` at once.

        Return all candidates, and the number of the winner or None.
        """
        recorded = {n: self._recorded(key_of(n)) for n in range(len(self._fan.messages))}
        found = {n: _candidates().validate_python(value, extra="ignore") for n, value in recorded.items() if value is not None}
        first = self._fan.stop == "first"
        won = [n for n, candidate in found.items() if candidate.ok] if first else []
        missing = [n for n in recorded if n not in found]
        if missing and not won:
            snapshot, extra = await self._snapshot()
            room = asyncio.Semaphore(self._fan.max_parallel)
            enough = asyncio.get_running_loop().create_future()
            _follow(self._stopped, enough)

            async def ask(n: int) -> None:
                async with room:
                    if enough.done():
                        return
                    try:
                        candidate = await self._one(n, snapshot, extra, enough)
                    except BaseException:
                        _finish(enough)
                        raise
                    if candidate is not None:
                        found[n] = candidate
                        if first and candidate.ok:
                            won.append(n)
                            _finish(enough)

            outcomes = await asyncio.gather(*map(ask, missing), return_exceptions=True)
            for outcome in outcomes:
                if isinstance(outcome, BaseException):
                    raise outcome
            if self._stopped.done() and not won and len(found) < len(recorded):
                raise RunyardError("the probes were stopped")
        return [found.get(n, _CUT_SHORT) for n in recorded], won[0] if won else None

    async def _one(
        self, n: int, snapshot: Sequence[Message], extra: JsonObject, enough: asyncio.Future[None]
    ) -> Candidate | None:
        """Execute the probe of candidate ``n``, and record its answer.

        Return None if the probe was stopped before its answer.
        """
        own = {"run_id": candidate_id(self._run.thread_id, self._run.run_id, n), "input": self._fan.messages[n]}
        answer = await self._ask(self._spec, self._run.model_copy(update=own), snapshot, extra, enough)
        outcome = fork_runs.probe_outcome(answer.written, None)
        if answer.error is None:
            found = Candidate(outcome.text, outcome.messages, outcome.stop_reason)
        elif enough.done():
            return None
        elif isinstance(answer.error, HitlNotAllowedError):
            raise answer.error
        else:
            found = Candidate(outcome.text, outcome.messages, "error", describe(answer.error, self._app.traceback_filter))
        await self._record(key_of(n), _candidates().dump_python(found, mode="json"))
        return found

    async def _judged(
        self, judge: AgentSpec, candidates: Sequence[Candidate], good: Sequence[int]
    ) -> tuple[ForkOnceResult, int | None]:
        """Return the judge's answer and the number of the candidate that the judge chose.

        ``good``: the numbers of the candidates that succeeded. The returned number is None if the judge failed or chose no
        candidate.
        """
        recorded = self._recorded(JUDGE)
        if isinstance(recorded, dict):
            return _verdicts().validate_python(recorded["verdict"], extra="ignore"), _winner(recorded["winner"], good)
        snapshot, extra = await self._snapshot()
        own = {
            "run_id": candidate_id(self._run.thread_id, self._run.run_id, len(candidates)),
            "input": self._assignment(candidates, good),
        }
        answer = await self._ask(judge, self._run.model_copy(update=own), snapshot, extra, self._stopped)
        if self._stopped.done() and answer.error is not None:
            raise RunyardError("the judge was stopped")
        if isinstance(answer.error, HitlNotAllowedError):
            raise answer.error
        outcome = fork_runs.probe_outcome(answer.written, None)
        if answer.error is not None:
            error = describe(answer.error, self._app.traceback_filter)
            return ForkOnceResult(outcome.text or error.message, outcome.messages, "error", error), None
        winner = _winner(answer.value if answer.value is not None else outcome.text, good)
        await self._record(JUDGE, {"verdict": _verdicts().dump_python(outcome, mode="json"), "winner": winner})
        return outcome, winner

    def _assignment(self, candidates: Sequence[Candidate], good: Sequence[int]) -> Message:
        """Return the message to the judge. A model reads its text. A function reads ``metadata["candidates"]``."""
        shown = [f"## {n}\nMessage: {self._fan.messages[n].text}\nAnswer: {candidates[n].text}\n" for n in good]
        described = [{"number": n, **_candidates().dump_python(candidates[n], mode="json")} for n in good]
        return Message.user("\n".join([ASSIGNMENT, *shown]), metadata={"candidates": described})

    async def _snapshot(self) -> tuple[list[Message], JsonObject]:
        return await self._backend.for_tenant(self._claim.tenant).threads.cut_messages(self._request.src, self._request.cut)

    def _recorded(self, key: str) -> JsonValue:
        step = self._ledger.steps.get(key)
        return step.result if step is not None and step.done else None

    async def _record(self, key: str, value: JsonValue) -> None:
        await patiently(lambda: self._backend.runs.finish_step(self._attempt, key, value))


_CUT_SHORT: Final = Candidate("", [], "cancelled")


def _winner(value: JsonValue, good: Sequence[int]) -> int | None:
    """Return the number in a judge's answer: an integer, ``{"winner": …}``, or the first number in a text."""
    if isinstance(value, dict):
        value = value.get("winner")
    if isinstance(value, str):
        found = re.search(r"\d+", value)
        value = int(found[0]) if found else None
    return value if isinstance(value, int) and not isinstance(value, bool) and value in good else None


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _follow(one: asyncio.Future[None], other: asyncio.Future[None]) -> None:
    """Finish ``other`` when ``one`` is done."""
    one.add_done_callback(lambda _: _finish(other))


@cache
def _results() -> TypeAdapter[ForkManyResult]:
    return TypeAdapter(ForkManyResult)


@cache
def _candidates() -> TypeAdapter[Candidate]:
    return TypeAdapter(Candidate)


@cache
def _verdicts() -> TypeAdapter[ForkOnceResult]:
    return TypeAdapter(ForkOnceResult)
