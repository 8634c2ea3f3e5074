"""The protocol of a store's fan-outs: the verbs for an attempt of the fork job, and the reads of clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ..domain.fan_outs import Candidate, CandidateStatus, FanOutProgress
from ..domain.messages import Message, Usage
from ..domain.size_limits import JsonObject
from .queries import FIRST_PAGE, PageRequest
from .refs import AttemptToken
from .results import Page


@dataclass(frozen=True, slots=True)
class ProbeEnd:
    """The end of a candidate of a fan-out, or of the judge, as a step of the fork job.

    ``key``: the key of the step. ``outcome``: the status of a candidate, None for the judge. ``usage``: the usage of the
    candidate or the judge. ``value``: the result of the step.
    """

    key: str
    outcome: CandidateStatus | None
    usage: Usage
    value: JsonObject


class FanOutStore(Protocol):
    """Fan-outs of one tenant. The verbs of an attempt use the tenant of the fork job.

    ``messages``: return the messages of candidates, by number. Raises StaleFenceError. ``begin``: record that the attempt has
    begun candidates. ``end``: record the ends of candidates and of the judge in one transaction. If an end is recorded
    already, the earlier record stays. The usage of each probe and of the judge is added once to the usage of the fork job
    (F14). ``begin`` and ``end`` raise StaleFenceError and CancelRequestedError.

    ``progress``: count the candidates. ``candidates``: return a page of the candidates in the order of their messages. A page
    has at most ``limit`` candidates and about PAGE_BYTES bytes. A larger candidate is alone on its page. The page then has
    only the last messages of the candidate, as many as fit into PAGE_BYTES. ``progress`` and ``candidates`` raise
    RunNotFoundError and ThreadNotFoundError. Both methods raise InvalidInputError for a run that is not a fan-out, and
    ResultExpiredError if the result or the content of the fork job was deleted. ``candidates`` raises InvalidCursorError.
    """

    async def messages(self, attempt: AttemptToken, numbers: Sequence[int]) -> dict[int, Message]: ...
    async def begin(self, attempt: AttemptToken, numbers: Sequence[int]) -> None: ...
    async def end(self, attempt: AttemptToken, ends: Sequence[ProbeEnd]) -> None: ...
    async def progress(self, thread_id: str, run_id: str) -> FanOutProgress: ...
    async def candidates(self, thread_id: str, run_id: str, page: PageRequest = FIRST_PAGE) -> Page[Candidate]: ...
