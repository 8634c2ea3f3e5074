"""Two stores under one sequence of verbs: how they are called together, and what of them is compared."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from hypothesis import event

from runyard.domain.waits import Signal, Wait
from runyard.errors import RunyardError
from runyard.models import ErrorInfo, HitlRequest, Message, Run
from runyard.ports.commands import Cut
from runyard.ports.queries import PageRequest, PathRequest, RunFilter
from runyard.ports.refs import AttemptToken
from runyard.ports.results import Forked
from runyard.ports.scheduling import Effects
from runyard.ports.stores import Backend

Key = tuple[str, str]
Connect = Callable[[str], Awaitable[Backend]]

OUTCOME_FIELDS = (
    "kind",
    "status",
    "attempt",
    "error_count",
    "crash_count",
    "completion_seq",
    "result",
    "worker_id",
    "waiting_for",
)
REQUEST_FIELDS = ("agent", "queue", "priority", "lane", "parent_id", "after_run_id")


@dataclass
class Side:
    """One store: a backend per tenant, and the attempts that it handed out."""

    name: str
    backends: dict[str, Backend]
    attempts: dict[tuple[Key, str], list[AttemptToken]] = field(default_factory=dict)


class Sides:
    """The two stores under comparison, in one event loop."""

    runner: ClassVar[asyncio.Runner]
    left: ClassVar[Callable[[], Connect]]
    right: ClassVar[Callable[[], Connect]]


def difference(left: Any, right: Any, where: str = "") -> str:
    """Where the two part first."""
    if isinstance(left, dict) and isinstance(right, dict) and left.keys() == right.keys():
        return "".join(difference(left[key], right[key], f"{where}.{key}") for key in left if left[key] != right[key])
    if isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        return "".join(difference(a, b, f"{where}[{n}]") for n, (a, b) in enumerate(zip(left, right, strict=True)) if a != b)
    return f"\n{where}: {left!r} here, {right!r} there"


class TwoStores:
    """Calls both sides and compares. ``seen``: what each thread showed last, by tenant and thread id."""

    sides: list[Side]
    seen: dict[Key, dict[str, Any]]
    chosen: set[str]
    runs_of_interest: tuple[str, ...] = ()

    def both(self, verb: Callable[[Side], Awaitable[Any]], *touched: Key) -> Any:
        """Do it on both sides; the outcomes must be alike. Returns the left one's value, None after an error."""

        async def outcome(side: Side) -> tuple[Any, Any]:
            try:
                value = await verb(side)
            except RunyardError as error:
                return None, type(error).__name__
            return value, self.plain(value)

        async def run() -> list[tuple[Any, Any]]:
            return [await outcome(side) for side in self.sides]

        (value, left), (_, right) = Sides.runner.run(run())
        assert left == right, difference(left, right)
        if isinstance(left, str):
            event(left)
        for key in touched:
            self.compare(key)
        return value

    def plain(self, value: Any) -> Any:
        """A value without what may differ between stores: times, fences, keys, ids that a store made."""
        match value:
            case Exception():
                return type(value).__name__
            case Message():
                parts = [part.model_dump() for part in value.content]
                if self.name(value.id) == "made":
                    parts.sort(key=str)
                return [
                    self.name(value.id),
                    value.role,
                    value.run_id,
                    self.name(value.parent_id),
                    value.seq,
                    parts,
                    value.metadata,
                    value.run_status,
                ]
            case Run():
                facts = {name: getattr(value, name) for name in (*OUTCOME_FIELDS, *REQUEST_FIELDS)}
                times = [
                    name for name in Run.model_fields if name.endswith("_at") and name != "run_at" and getattr(value, name)
                ]
                return facts | {"times": times, "error": value.error and value.error.code, "usage": value.usage.input_tokens}
            case HitlRequest():
                return [value.request_id, value.run_id, value.thread_id, value.answer, value.answered_at is not None]
            case Wait():
                return [
                    value.wait_id,
                    value.kind,
                    value.name,
                    value.due_at is None,
                    value.ended_at is None,
                    value.signal_id,
                    value.value,
                ]
            case Signal():
                return [value.signal_id, value.thread_id, value.name, value.value, value.run_id]
            case Effects():
                jobs = sorted((job.run_id, job.lane, job.kind, job.delay > 0) for job in value.jobs)
                events = sorted(e.type + e.ref.run_id for e in value.events)
                return [
                    jobs,
                    events,
                    sorted(r.run_id for r in value.cancels),
                    sorted((job.run_id, job.lane) for job in value.withdrawn),
                    len(value.deleted),
                ]
            case ErrorInfo():
                return value.code
            case Forked():
                return [value.created, value.thread.forked_after_run_id, value.thread.forked_at_seq]
            case list() | tuple():
                return [self.plain(item) for item in value]
            case dict():
                return {key: self.plain(item) for key, item in value.items()}
        if hasattr(value, "effects"):
            names = (
                "run",
                "created",
                "outcome",
                "status",
                "extra",
                "takeover",
                "alone",
                "request",
                "leaf_id",
                "error",
                "signal",
                "next",
            )
            return {name: self.plain(getattr(value, name)) for name in (*names, "effects") if hasattr(value, name)}
        return value

    def name(self, message_id: str | None) -> str | None:
        return message_id if message_id is None or message_id in self.chosen else "made"

    async def view(self, side: Side, key: Key) -> dict[str, Any]:
        """All that a thread shows."""
        tenant, thread_id = key
        backend = side.backends[tenant]
        thread = await backend.threads.thread(thread_id)
        if thread is None:
            return {"thread": None}
        data = await backend.checkpointer.load(thread_id)
        leaves = (await backend.threads.branches(thread_id, PageRequest(limit=1000))).items
        paths = [await backend.threads.messages(thread_id, PathRequest(leaf_id=leaf.message_id)) for leaf in leaves]
        assert data is not None
        runs = (await backend.runs.runs(RunFilter(thread_id=thread_id), PageRequest(limit=999))).items
        page = PageRequest(limit=999)
        requests = (await backend.runs.requests(thread_id=thread_id, pending=False, page=page)).items
        own = {run.run_id for run in runs}  # what became of an inherited run since the cut is no part of the fork
        return {
            "thread": thread.model_dump(exclude={"created_at", "updated_at"}),
            "head": self.plain((await backend.threads.messages(thread_id)).items),
            "load": self.plain(data.messages),
            "leaves": sorted(
                [self.name(b.message_id) or "", b.depth, b.run_id, b.labels, b.run_status if b.run_id in own else None]
                for b in leaves
            ),
            "paths": sorted(self.plain([path.items for path in paths]), key=str),
            "runs": {run.run_id: self.plain(run) for run in runs},
            "requests": sorted(self.plain(requests)),
            "pending": self.plain(await backend.checkpointer.load_pending(thread_id)),
        }

    def compare(self, key: Key) -> None:
        async def run() -> list[dict[str, Any]]:
            return [await self.view(side, key) for side in self.sides]

        left, right = Sides.runner.run(run())
        assert left == right, f"{key}: {difference(left, right)}"
        self.seen[key] = left
        self.check(left)

    def check(self, view: dict[str, Any]) -> None:
        """What holds whatever the store: numbers grow along every path, and no leaf is listed twice (B3, B6)."""
        if view["thread"] is None:
            return
        for path in [view["head"], *view["paths"]]:
            numbers = [message[4] for message in path]
            assert numbers == sorted(set(numbers))
        ids = [leaf[0] for leaf in view["leaves"] if leaf[0] != "made"]
        assert len(ids) == len(set(ids))

    async def cuts(self, side: Side, key: Key) -> dict[str, Any]:
        """Every fork that could be made of the thread."""
        tenant, thread_id = key
        store = side.backends[tenant].threads
        ids = {message[0] for path in self.seen[key]["paths"] for message in path if message[0] != "made"}
        cuts = [Cut(), *(Cut(after_run_id=run) for run in self.runs_of_interest), *(Cut(at_message_id=m) for m in sorted(ids))]
        found = {}
        for cut in cuts:
            try:
                found[str(cut)] = self.plain(list(await store.cut_messages(thread_id, cut)))
            except RunyardError as error:
                found[str(cut)] = [type(error).__name__, *(self.name(error.details.get(end)) for end in ("before", "after"))]
        return found

    def compare_everything(self) -> None:
        for key in list(self.seen):
            self.compare(key)
            if self.seen[key]["thread"] is not None:

                async def run(key: Key = key) -> list[dict[str, Any]]:
                    return [await self.cuts(side, key) for side in self.sides]

                left, right = Sides.runner.run(run())
                assert left == right, f"{key}: {difference(left, right)}"
