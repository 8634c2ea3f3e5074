"""Execute ``fork_many``: one fork job that tries several messages on the same snapshot (F11).

Probes are executed in the slot of the fork job. The fork job records each finished probe. A later attempt executes only the
probes without a record. A candidate with a thread is a fork with a separate run (:mod:`runyard.execution.fan_out_candidates`).
The fork job holds no worker while these runs are executed. The store keeps the messages and the answers of the candidates, and
the fork job reads them in pages. ``domain/fan_outs.py`` has the limits (``MAX_CANDIDATES``).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Final

from pydantic import TypeAdapter

from ..domain.derived_ids import candidate_id
from ..domain.fan_outs import JUDGE, CandidateStatus, key_of, outcome_of
from ..domain.list_entries import json_bytes
from ..domain.messages import Message, Usage
from ..domain.runs import ErrorInfo, ForkOnceResult, Run
from ..domain.size_limits import JsonObject, JsonValue, check_value
from ..errors import HitlNotAllowedError, InvalidInputError, MessageTooLargeError, RunyardError
from ..ports.fan_outs import ProbeEnd
from ..ports.queries import PageRequest
from ..ports.results import PAGE_BYTES, Claim, Ledger
from ..ports.stores import Backend
from ..support.store_retries import patiently
from . import fork_runs
from .end_records import describe
from .fan_out_candidates import Later, Settled, ThreadCandidates, ended_in
from .probe_usage import ProbeUsage
from .retries import UNSERVED_RETRY_SECONDS

if TYPE_CHECKING:
    from ..app import AgentSpec, App

JUDGED_BYTES: Final = PAGE_BYTES
"""Maximum number of bytes of the JSON that a judge reads. If the candidates have more, the judge is not asked, and there is no
winner."""
JUDGED_TEXT_BYTES: Final = JUDGED_BYTES // 2
"""Maximum number of bytes of the text that a judge reads. The verdict contains this text and the judge's answer."""
MAX_DIGITS: Final = 20
"""Maximum number of digits of the number in a judge's answer. Python refuses to convert very long numbers."""
ASSIGNMENT: Final = (
    "Several messages were tried as the next one of the conversation above. Choose the best answer. "
    "Reply with its number only.\n"
)


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    """The outcome of a probe.

    ``written``: the prompt and the agent's messages. ``error``: the agent's error, or None. ``value``: the agent's result.
    ``usage``: the usage of the agent.
    """

    written: list[Message]
    error: BaseException | None = None
    value: JsonValue = None
    usage: Usage = field(default_factory=Usage)


Ask = Callable[["AgentSpec", Run, Sequence[Message], JsonObject, "asyncio.Future[None]"], Awaitable[ProbeAnswer]]
"""A function that executes an agent on a snapshot (messages, extra) until the agent ends or the future is done."""


class FanOutJob:
    """One attempt of a fork job. ``stopped``: a future that is done when the attempt must end early.

    ``usage``: the unrecorded usage of the probes and of the judge. ``tell``: a function that emits an event of the fork job.
    """

    def __init__(
        self,
        app: App,
        backend: Backend,
        claim: Claim,
        spec: AgentSpec,
        ledger: Ledger,
        ask: Ask,
        stopped: asyncio.Future[None],
        usage: ProbeUsage,
        tell: Callable[[str, JsonObject], None],
    ) -> None:
        assert claim.run is not None and claim.attempt is not None
        self._app, self._backend, self._claim, self._spec, self._ask = app, backend, claim, spec, ask
        self._run, self._attempt, self._ledger, self._stopped = claim.run, claim.attempt, ledger, stopped
        self._usage, self._tell = usage, tell
        self._request = fork_runs.request_of(claim)
        fan = self._request.fan
        if fan is None:
            raise RunyardError("the store returned a fork_many job without its candidates")
        self._fan = fan

    async def run(self) -> JsonValue | Later:
        """Execute the fork job as far as possible. Return its result, or :class:`Later` if it must continue later.

        Raises HitlNotAllowedError if a probe or the judge may ask a human (F9). This check is made before any read.
        """
        judge = self._app.agents.get(self._fan.judge) if self._fan.judge is not None else None
        if self._fan.judge is not None and judge is None:
            return Later(delay=UNSERVED_RETRY_SECONDS)
        for spec in (judge, None if self._fan.threads else self._spec):
            if spec is not None:
                fork_runs.refuse_asking(spec)
        found = await (
            ThreadCandidates(self._backend, self._claim, self._ledger, self._announce).advance()
            if self._fan.threads
            else self._probe()
        )
        if isinstance(found, Later):
            return found
        good, winner, verdict = found.good, found.winner, None
        if judge is not None and len(good) > 1:
            verdict, winner = await self._judged(judge, good)
        elif judge is not None and good:
            winner = good[0]
        said = _verdicts().dump_python(verdict, mode="json") if verdict is not None else None
        return {"winner": winner, "verdict": said}

    async def _probe(self) -> Settled:
        """Execute one probe per message, at most ``max_parallel`` probes at the same time. Return the numbers of the probes
        that succeeded, and the number of the winner or None."""
        ended = ended_in(self._ledger)
        first = self._fan.stop == "first"
        won = [n for n, outcome in ended.items() if outcome == "completed"] if first else []
        missing = [n for n in range(self._fan.total) if n not in ended]
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
                        outcome = await self._one(n, snapshot, extra, enough)
                    except BaseException:
                        _finish(enough)
                        raise
                    if outcome is not None:
                        ended[n] = outcome
                        self._announce(n, outcome, len(ended))
                        if first and outcome == "completed":
                            won.append(n)
                            _finish(enough)

            outcomes = await asyncio.gather(*map(ask, missing), return_exceptions=True)
            for outcome in outcomes:
                if isinstance(outcome, BaseException):
                    raise outcome
            if self._stopped.done() and not won and len(ended) < self._fan.total:
                raise RunyardError("the probes were stopped")
        return Settled(sorted(n for n, outcome in ended.items() if outcome == "completed"), won[0] if won else None)

    async def _one(
        self, n: int, snapshot: Sequence[Message], extra: JsonObject, enough: asyncio.Future[None]
    ) -> CandidateStatus | None:
        """Execute the probe of candidate ``n`` and record its answer.

        Return None if the probe was stopped before its answer.
        """
        asked = (await patiently(lambda: self._backend.fan_outs.messages(self._attempt, [n])))[n]
        await patiently(lambda: self._backend.fan_outs.begin(self._attempt, [n]))
        probe = self._probe_of(n, asked)
        answer = await self._ask(self._spec, probe, snapshot, extra, enough)
        outcome = fork_runs.probe_outcome(answer.written, None)
        error: ErrorInfo | None = None
        if answer.error is not None:
            if enough.done():
                return None
            if isinstance(answer.error, HitlNotAllowedError):
                raise answer.error
            error = self._describe(answer.error)
        found = ForkOnceResult(outcome.text, outcome.messages, "error" if error is not None else outcome.stop_reason, error)
        value = _verdicts().dump_python(found, mode="json")
        try:
            check_value(value, "result")
        except InvalidInputError as refused:
            found = ForkOnceResult("", [], "error", self._describe(refused))
            value = _verdicts().dump_python(found, mode="json")
        status = outcome_of(found.stop_reason)
        await self._record(probe.run_id, key_of(n), status, answer.usage, value)
        return status

    async def _judged(self, judge: AgentSpec, good: Sequence[int]) -> tuple[ForkOnceResult, int | None]:
        """Return the judge's answer and the number of the candidate that the judge chose.

        ``good``: the numbers of the candidates that succeeded. The returned number is None if the judge failed or chose no
        candidate.
        """
        step = self._ledger.steps.get(JUDGE)
        if step is not None and step.done and isinstance(step.result, dict):
            recorded = step.result
            return _verdicts().validate_python(recorded["verdict"], extra="ignore"), _winner(recorded["winner"], good)
        try:
            assignment = await self._assignment()
        except MessageTooLargeError as error:
            return ForkOnceResult(error.message, [], "error", self._describe(error)), None
        snapshot, extra = await self._snapshot()
        probe = self._probe_of(self._fan.total, assignment)
        answer = await self._ask(judge, probe, snapshot, extra, self._stopped)
        if self._stopped.done() and answer.error is not None:
            raise RunyardError("the judge was stopped")
        if isinstance(answer.error, HitlNotAllowedError):
            raise answer.error
        verdict, winner = self._verdict(answer, assignment, good)
        said: JsonObject = {"verdict": _verdicts().dump_python(verdict, mode="json"), "winner": winner}
        await self._record(probe.run_id, JUDGE, None, answer.usage, said)
        return verdict, winner

    def _verdict(self, answer: ProbeAnswer, assignment: Message, good: Sequence[int]) -> tuple[ForkOnceResult, int | None]:
        """Return the verdict in the answer of the judge, and the number of the chosen candidate or None.

        The verdict contains ``assignment``, the message that the judge got. The metadata of this message are left out, because
        they repeat the text.
        """
        bare = assignment.model_copy(update={"metadata": {}})
        written = [bare.model_copy(update={"run_id": m.run_id}) if m.id == bare.id else m for m in answer.written]
        outcome = fork_runs.probe_outcome(written, None)
        error, winner = answer.error, None
        if error is None:
            try:
                winner = _winner(answer.value if answer.value is not None else outcome.text, good)
            except InvalidInputError as refused:
                error = refused
        if error is not None:
            info = self._describe(error)
            outcome = ForkOnceResult(outcome.text or info.message, outcome.messages, "error", info)
        try:
            check_value({"verdict": _verdicts().dump_python(outcome, mode="json"), "winner": winner}, "result")
        except InvalidInputError as refused:
            return ForkOnceResult(refused.message, [], "error", self._describe(refused)), None
        return outcome, winner

    async def _assignment(self) -> Message:
        """Return the message that the judge gets. A judge that is a model reads the text. A judge that is a function can read
        ``metadata["candidates"]``.

        Raises MessageTooLargeError if the candidates that succeeded have more than JUDGED_BYTES or JUDGED_TEXT_BYTES.
        """
        shown, described, size, cursor = [ASSIGNMENT], list[JsonValue](), 0, None
        left = JUDGED_TEXT_BYTES
        store = self._backend.for_tenant(self._claim.tenant).fan_outs
        while True:
            page = await store.candidates(self._run.thread_id, self._run.run_id, PageRequest(cursor=cursor))
            for candidate in filter(lambda one: one.ok, page.items):
                asked = candidate.messages[0].text if candidate.messages else ""
                shown.append(f"## {candidate.number}\nMessage: {asked}\nAnswer: {candidate.text}\n")
                described.append(candidate.model_dump(mode="json", include=_JUDGED))
                left -= json_bytes(shown[-1])
                size += json_bytes(described[-1])
                if size > JUDGED_BYTES or left < 0 or candidate.omitted:
                    message = (
                        f"the answers to judge have more than {JUDGED_BYTES} bytes, or their text has more than "
                        f"{JUDGED_TEXT_BYTES}; try fewer messages at once"
                    )
                    raise MessageTooLargeError(message, most=JUDGED_BYTES, most_text=JUDGED_TEXT_BYTES)
            if (cursor := page.next) is None:
                return Message.user("\n".join(shown), metadata={"candidates": described})

    def _probe_of(self, n: int, message: Message) -> Run:
        """Return the run that the agent of the ``n``-th probe sees.

        The judge has the number after the last candidate.
        """
        own = {"run_id": candidate_id(self._run.thread_id, self._run.run_id, n), "input": message}
        return self._run.model_copy(update=own)

    async def _snapshot(self) -> tuple[list[Message], JsonObject]:
        return await self._backend.for_tenant(self._claim.tenant).threads.cut_messages(self._request.src, self._request.cut)

    async def _record(self, probe_id: str, key: str, outcome: CandidateStatus | None, usage: Usage, value: JsonObject) -> None:
        end = ProbeEnd(key, outcome, usage, value)
        self._usage.sent(probe_id, key)
        await patiently(lambda: self._backend.fan_outs.end(self._attempt, [end]))
        self._usage.recorded(probe_id)

    def _describe(self, error: BaseException) -> ErrorInfo:
        return describe(error, self._app.traceback_filter)

    def _announce(self, number: int, status: CandidateStatus, ended: int) -> None:
        """Emit the event of a candidate's end. ``ended``: the number of candidates that have ended."""
        self._tell("candidate.ended", {"number": number, "status": status, "ended": ended, "total": self._fan.total})


_JUDGED: Final = {"number", "text", "messages", "stop_reason", "error", "thread_id"}
"""The fields of a candidate that a judge reads."""


def _winner(value: JsonValue, good: Sequence[int]) -> int | None:
    """Return the number in a judge's answer: an integer, ``{"winner": …}``, or the first number in a text.

    Return None if no successful candidate has this number. Raises InvalidInputError for a number that is too long.
    """
    if isinstance(value, dict):
        value = value.get("winner")
    if isinstance(value, str):
        found = re.search(r"\d+", value)
        if found is not None and len(found[0]) > MAX_DIGITS:
            raise InvalidInputError(f"the judge answered with a number of {len(found[0])} digits; no candidate has this number")
        value = int(found[0]) if found is not None else None
    return value if isinstance(value, int) and not isinstance(value, bool) and value in good else None


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _follow(one: asyncio.Future[None], other: asyncio.Future[None]) -> None:
    """Give the future ``other`` a result when the future ``one`` is done."""
    one.add_done_callback(lambda _: _finish(other))


@cache
def _verdicts() -> TypeAdapter[ForkOnceResult]:
    return TypeAdapter(ForkOnceResult)
