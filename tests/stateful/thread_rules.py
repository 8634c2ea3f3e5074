"""The rules of the store machines that need no workers: messages, external runs, labels, forks and deletions."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import rule

from runyard.domain.states import RunStatus
from runyard.ports.commands import Cut, ForkRequest
from tests.stateful.choices import EXTERNALS, RUNS, THREADS, Choices
from tests.stateful.two_stores import Key, Side


class ThreadRules(Choices):
    """Verbs of threads and of checkpointers."""

    async def mark(self, side: Side, key: Key, run_id: str, complete: bool) -> None:
        checkpointer = side.backends[key[0]].checkpointer
        await (checkpointer.mark_run_complete if complete else checkpointer.claim_run)(key[1], run_id)

    @rule(data=st.data(), label=st.sampled_from(["x", "y"]), remove=st.integers(0, 4))
    def label(self, data: st.DataObject, label: str, remove: int) -> None:
        key = self.thread(data)
        message_id = self.known_message(data, key) if data.draw(st.integers(0, 3)) else None

        def change(side: Side) -> Any:
            threads = side.backends[key[0]].threads
            return threads.set_label(key[1], label, message_id) if remove else threads.remove_label(key[1], label)

        self.both(change, key)

    @rule(data=st.data())
    def store(self, data: st.DataObject) -> None:
        key = self.thread(data)
        parent = self.parent(data, key) if data.draw(st.booleans()) else None
        leaf = self.known_message(data, key) if data.draw(st.integers(0, 4)) == 0 else None
        message = self.said(data, data.draw(st.sampled_from(["user", "user", "call"])))
        self.both(lambda side: side.backends[key[0]].threads.store_message(key[1], message, parent, expected_leaf=leaf), key)

    @rule(data=st.data(), kinds=st.lists(st.sampled_from([None, None, *EXTERNALS, *RUNS[-4:]]), min_size=1, max_size=4))
    def append_plain(self, data: st.DataObject, kinds: list[str | None]) -> None:
        key = self.thread(data)
        messages = [self.said(data).model_copy(update={"run_id": run_id}) for run_id in kinds]
        self.both(lambda side: side.backends[key[0]].checkpointer.append(key[1], messages), key)

    @rule(data=st.data(), run_id=st.sampled_from([*EXTERNALS, *EXTERNALS, RUNS[0]]), complete=st.booleans())
    def external(self, data: st.DataObject, run_id: str, complete: bool) -> None:
        key = self.thread(data)

        self.both(lambda side: self.mark(side, key, run_id, complete), key)

    @rule(data=st.data(), extra=st.dictionaries(st.sampled_from(["p", "q", "fork"]), st.integers(0, 3), min_size=1))
    def save_extra(self, data: st.DataObject, extra: Any) -> None:
        key = self.thread(data)
        self.both(lambda side: side.backends[key[0]].checkpointer.save_extra(key[1], extra), key)

    @rule(
        data=st.data(),
        new=st.sampled_from(THREADS),
        how=st.sampled_from(["run", "run", "run", "message", "message", "repair", "last"]),
    )
    def fork(self, data: st.DataObject, new: str, how: str) -> None:
        key = self.thread(data)
        metadata: Any = data.draw(st.none() | st.just({"n": 1}))
        if how == "run":
            cut = Cut(after_run_id=data.draw(st.sampled_from([self.run_of(data, key, RunStatus.COMPLETED), *EXTERNALS[:2]])))
        elif how == "last":
            cut = Cut()
        else:
            cut = Cut(at_message_id=self.known_message(data, key), repair=how == "repair")
        request = ForkRequest(src=key[1], new=new, cut=cut, metadata=metadata, reset_usage=metadata is None)

        self.both(lambda side: side.backends[key[0]].threads.fork(request), key, (key[0], new))

    @rule(data=st.data(), cancel=st.booleans(), erase=st.booleans())
    def delete(self, data: st.DataObject, cancel: bool, erase: bool) -> None:
        key = self.thread(data)
        if data.draw(st.integers(0, 3)):
            return

        async def delete(side: Side) -> None:
            store = side.backends[key[0]].threads
            await (store.erase_thread if erase else store.delete_thread)(key[1], cancel=cancel)

        self.both(delete, key)
        if self.seen[key]["thread"] is None:
            # The result of a repeated complete depends on other threads that show the run. The conformance suite tests it.
            for side in self.sides:
                side.attempts = {of: attempts for of, attempts in side.attempts.items() if of[0] != key}
        for other in list(self.seen):
            self.compare(other)
