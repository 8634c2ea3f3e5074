"""What the store machine may do next: ids that exist are preferred, so that most verbs succeed."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

from hypothesis import strategies as st

from runyard.domain.states import RunStatus
from runyard.models import ROOT_ID, Message, ToolCallPart, ToolResultPart, open_tool_calls
from runyard.ports.refs import AttemptToken
from tests.stateful.two_stores import Key, Side, TwoStores

THREADS = ["a", "b", "c", "d", "e"]
RUNS = [f"r{n}" for n in range(9)]
EXTERNALS = ["x0", "x1", "x2", "x3"]


class Choices(TwoStores):
    """Draws from small pools, so that ids collide."""

    tenants: list[str]
    made: Iterator[int]
    texts: Iterator[int]
    spoken: list[Message]

    def id(self) -> str:
        made = str(uuid.UUID(int=next(self.made)))
        self.chosen.add(made)
        return made

    def message(self, kind: str = "user", calls: list[str] | None = None) -> Message:
        """A new message."""
        self.spoken.append(self.words(kind, calls))
        return self.spoken[-1]

    def said(self, data: st.DataObject, kind: str = "user", calls: list[str] | None = None) -> Message:
        """A new message, or one of the latest again, whoever said it on whatever thread; or its id with other words."""
        if data.draw(st.integers(0, 4)):
            return self.message(kind, calls)
        again = data.draw(st.sampled_from(self.spoken[-12:]))
        return again if data.draw(st.booleans()) else self.words(kind, calls).model_copy(update={"id": again.id})

    def words(self, kind: str, calls: list[str] | None) -> Message:
        text = f"m{next(self.texts)}"
        if kind == "call":
            return Message(id=self.id(), role="assistant", content=[ToolCallPart(id=f"{text}{n}", name="f") for n in "ab"])
        if kind == "result" and calls:
            return Message.tool(*(ToolResultPart(call_id=call) for call in calls), id=self.id())
        return Message(id=self.id(), role="user" if kind == "user" else "assistant", content=text)

    def thread(self, data: st.DataObject) -> Key:
        live = [key for key, view in self.seen.items() if view["thread"] is not None]
        if live and data.draw(st.integers(0, 9)):
            return data.draw(st.sampled_from(live))
        return data.draw(st.sampled_from(self.tenants)), data.draw(st.sampled_from(THREADS))

    def thread_with(self, data: st.DataObject, *statuses: str) -> Key:
        """A thread with a run in one of these states."""
        fitting = [k for k, v in self.seen.items() if any(run["status"] in statuses for run in v.get("runs", {}).values())]
        return data.draw(st.sampled_from(fitting))

    def run_of(self, data: st.DataObject, key: Key, *statuses: RunStatus) -> str:
        runs = self.seen.get(key, {}).get("runs", {})
        fitting = [run_id for run_id, run in runs.items() if run["status"] in statuses and run["kind"] != "external"]
        return data.draw(st.sampled_from(fitting or RUNS))

    def known_message(self, data: st.DataObject, key: Key) -> str | None:
        view = self.seen.get(key, {})
        ids = {m[0] for path in view.get("paths", []) for m in path if m[0] != "made"}
        return data.draw(st.sampled_from(sorted(ids))) if ids else None

    def parent(self, data: st.DataObject, key: Key) -> str | None:
        return ROOT_ID if data.draw(st.integers(0, 7)) == 0 else self.known_message(data, key)

    def any_run(self, *statuses: str) -> bool:
        runs = [run for view in self.seen.values() for run in view.get("runs", {}).values()]
        return any(run["status"] in statuses and run["kind"] != "external" for run in runs)

    def with_attempt(self) -> list[tuple[Key, str]]:
        return sorted(self.sides[0].attempts)

    def attempt(self, data: st.DataObject) -> tuple[Key, str, Callable[[Side], AttemptToken]]:
        """An attempt that was handed out: mostly the latest of a running run."""
        running = [(k, r) for k, r in self.with_attempt() if self.seen[k].get("runs", {}).get(r, {}).get("status") == "running"]
        pool = running if running and data.draw(st.integers(0, 9)) else self.with_attempt()
        key, run_id = data.draw(st.sampled_from(pool))
        which = data.draw(st.sampled_from([-1, -1, -1, 0]))
        return key, run_id, lambda side: side.attempts[key, run_id][which]

    def open_calls(self, key: Key, run_id: str) -> list[str]:
        own = [m for path in self.seen[key].get("paths", []) for m in path if m[2] == run_id]
        unique = {m[4]: m for m in own}
        messages = [Message(role=m[1], content=m[5]) for _, m in sorted(unique.items())]
        return open_tool_calls(messages)

    def messages_for(self, data: st.DataObject, key: Key, run_id: str) -> list[Message]:
        if self.seen[key].get("runs", {}).get(run_id, {}).get("kind") == "fork":
            return []
        calls = self.open_calls(key, run_id)
        if calls:
            some = data.draw(st.sampled_from([calls, calls[:1]]))
            return [self.said(data, data.draw(st.sampled_from(["result", "result", "assistant"])), some)]
        return [
            self.said(data, kind)
            for kind in data.draw(st.sampled_from([[], ["assistant"], ["assistant"], ["assistant", "assistant"], ["call"]]))
        ]
