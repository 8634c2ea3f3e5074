"""Export and import of families that were made by random operations (F1, F2, B2, B3)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from runyard.domain.states import LIVE
from runyard.errors import RunyardError
from runyard.models import HitlRequest, Message, RunOptions, new_id
from runyard.ports.queries import RunFilter
from runyard.ports.stores import Backend
from runyard_backends.conformance.world import World, call, said, user
from runyard_backends.memory import connect
from runyard_backends.thread_files import import_threads
from tests.support.thread_families import exported, shown


class Maker:
    """Makes a family. Each operation does one thing to a random thread. An operation that the store refuses does nothing."""

    def __init__(self, backend: Backend, random: Random) -> None:
        self.world, self.random = World(backend, lambda *_: None), random  # type: ignore[arg-type, return-value]
        self.backend, self.threads, self.number = backend, ["t"], 0

    async def do(self, operation: str) -> None:
        self.number += 1
        thread, name = self.random.choice(self.threads), f"r{self.number}"
        with suppress(RunyardError, AssertionError):  # a World asserts that it can claim its runs
            await getattr(self, operation)(thread, name)

    async def turn(self, thread: str, name: str) -> None:
        await self.world.turn(name, thread=thread, extra={name: 1})

    async def turn_at(self, thread: str, name: str) -> None:
        await self.world.turn(name, thread=thread, parent_id=await self.message(thread))

    async def parallel(self, thread: str, name: str) -> None:
        await self.world.turn(name, thread=thread, options=RunOptions(parallel=True))

    async def failed(self, thread: str, name: str) -> None:
        await self.world.failed(name, thread=thread)

    async def live(self, thread: str, name: str) -> None:
        await self.world.runs.append(await self.world.start(name, f"{name}?", thread=thread), [said("…")])

    async def queued(self, thread: str, name: str) -> None:
        await self.world.accept(name, thread=thread)

    async def waiting(self, thread: str, name: str) -> None:
        await self.world.suspended(name, thread=thread)

    async def answered(self, thread: str, name: str) -> None:
        request_id = await self.world.suspended(name, thread=thread)
        await self.world.runs.respond(1, thread_id=thread, request_id=request_id)
        await self.world.finish(await self.world.take(name, thread=thread), said(f"{name}!"))

    async def stopped(self, thread: str, name: str) -> None:
        await self.world.suspended(name, thread=thread)
        await self.world.runs.cancel(thread, name, keep=self.random.random() < 0.5)

    async def deleted(self, thread: str, name: str) -> None:
        runs = (await self.world.runs.runs(RunFilter(thread_id=thread))).items
        await self.world.runs.delete_run(thread, self.random.choice(runs).run_id if runs else name)

    async def external(self, thread: str, name: str) -> None:
        await self.backend.checkpointer.claim_run(thread, name)
        calls = [call(name).model_copy(update={"run_id": name})] if self.random.random() < 0.3 else []
        await self.backend.checkpointer.append(thread, [user(f"{name}?", run_id=name), *calls])
        if self.random.random() < 0.4:
            requests: Any = self.backend.checkpointer
            await requests.save_requests(thread, [HitlRequest(request_id=new_id())], run_id=name)

    async def more(self, thread: str, name: str) -> None:
        await self.backend.checkpointer.append(thread, [said("more", run_id=await self.open_run(thread))])

    async def completed(self, thread: str, name: str) -> None:
        await self.backend.checkpointer.mark_run_complete(thread, await self.open_run(thread) or name)

    async def cancelled(self, thread: str, name: str) -> None:
        await self.world.runs.cancel(thread, await self.open_run(thread) or name)

    async def legacy(self, thread: str, name: str) -> None:
        await self.backend.checkpointer.append(thread, [user(name)])

    async def stored(self, thread: str, name: str) -> None:
        await self.world.store(name, await self.message(thread), thread=thread)

    async def head(self, thread: str, name: str) -> None:
        await self.backend.threads.set_head(thread, await self.message(thread))  # type: ignore[attr-defined]

    async def label(self, thread: str, name: str) -> None:
        await self.backend.threads.set_label(thread, f"label {self.random.randrange(3)}", await self.message(thread))

    async def fork_at(self, thread: str, name: str) -> None:
        await self.world.fork(name, thread, at_message_id=await self.message(thread), repair=True)
        self.threads.append(name)

    async def fork_after(self, thread: str, name: str) -> None:
        runs = (await self.world.runs.runs(RunFilter(thread_id=self.random.choice(self.threads)))).items
        await self.world.fork(name, thread, after_run_id=self.random.choice(runs).run_id if runs else name)
        self.threads.append(name)

    async def values(self, thread: str, name: str) -> None:
        await self.backend.threads.update_thread(thread, title=name, config={name: 1}, tags={name: "x"})

    async def asked(self, thread: str, name: str) -> None:
        await self.backend.checkpointer.save_pending_request(thread, HitlRequest(request_id=new_id()))

    async def message(self, thread: str) -> str:
        """Return a random message of a random path of the thread."""
        leaves = await self.world.leaves(thread)
        path = await self.world.messages(thread, self.random.choice(leaves).message_id) if leaves else []
        return self.random.choice(path).id if path else new_id()

    async def open_run(self, thread: str) -> str | None:
        runs = (await self.world.runs.runs(RunFilter(thread_id=thread))).items
        found = [run.run_id for run in runs if run.kind == "external" and not run.ended]
        return self.random.choice(found) if found else None


OPERATIONS = [
    name
    for name, value in vars(Maker).items()
    if isinstance(value, Callable) and name not in ("__init__", "do", "message", "open_run")  # type: ignore[arg-type]
]
LOSSES = ("not in the file: run ", "not in the file: the run ", "not in the file: the error ", "not in the file: the status ")
CLOSED = "which was closed without an answer"
LINEAGE = "not in the file: the lineage "


async def visible(backend: Backend, thread: str) -> list[str]:
    """Return the ids of the messages on the head's path, without those of a run that executes."""
    found = await backend.threads.thread(thread)
    messages: list[Message] = (await backend.threads.messages(thread)).items
    assert found is not None
    inherited = found.forked_at_seq or 0
    return [m.id for m in messages if m.run_status not in LIVE or (m.seq or 0) <= inherited]


def renamed(ids: dict[str, str], value: Any) -> Any:
    if isinstance(value, list):
        return [renamed(ids, each) for each in value]
    return ids.get(value, value) if isinstance(value, str) else value


async def compare(source: Backend, target: Backend, thread: str, *, flat: bool) -> None:
    expected, found = await shown(source, thread), await shown(target, thread)
    ids = dict(zip(await closing_ids(source, thread), await closing_ids(target, thread), strict=True))
    paths = {renamed(ids, leaf): [path[0], renamed(ids, path[-1])] for leaf, path in expected["paths"].items()}
    assert {leaf: [path[0], path[-1]] for leaf, path in found["paths"].items()} == paths
    labels = {renamed(ids, leaf): path[1] for leaf, path in expected["paths"].items()}
    if not any(path[1] and path[4] in LIVE for path in expected["paths"].values()):  # such a label moves to a visible message
        assert {leaf: path[1] for leaf, path in found["paths"].items()} == labels
    assert renamed(ids, await visible(source, thread)) == await visible(target, thread)
    assert found["tags"] == expected["tags"]
    assert found["thread"][:4] == expected["thread"][:4]
    if not flat:
        assert found["thread"][4:] == expected["thread"][4:]
        kept = {run: renamed(ids, snapshot) for run, snapshot in expected["snapshots"].items()}
        assert found["snapshots"] == kept


async def closing_ids(backend: Backend, thread: str) -> list[str]:
    """Return the ids of the messages that repaired the thread's fork, and those of its ancestors."""
    found = []
    for leaf in (await backend.threads.branches(thread)).items:
        path = await World(backend, lambda *_: None).messages(thread, leaf.message_id)  # type: ignore[arg-type, return-value]
        found += [m.id for m in path if m.tool_results and m.run_id is None]
    return list(dict.fromkeys(found))


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@example(["label", "parallel", "turn"], 5, False)  # the parallel run continues the message on which the labelled branch ends
@given(st.lists(st.sampled_from(sorted(OPERATIONS)), min_size=3, max_size=40), st.integers(0, 2**16), st.booleans())
def test_an_export_can_be_imported(operations: list[str], seed: int, orphans: bool) -> None:
    """F2, B3: An import accepts what an export wrote, whatever the threads have, and the readers see the same."""

    async def go() -> None:
        random = Random(seed)
        source = await connect(f"memory://{new_id()}")
        maker = Maker(source, random)
        await maker.do("turn")
        for operation in operations:
            await maker.do(operation)
        if orphans:
            with suppress(RunyardError):
                await source.threads.delete_thread("t", cancel=True)
        present = {thread.thread_id: thread for thread in (await source.threads.threads()).items}
        for thread in present:
            parent = present.get(present[thread].parent_thread_id or "")
            if parent is not None and random.random() < 0.7:
                continue
            target = await connect(f"memory://{new_id()}")
            file = await exported(source, thread, forks=True)
            report = await import_threads(target, file)
            other = [
                note.what for note in report.notes if not note.what.startswith((*LOSSES, LINEAGE)) and CLOSED not in note.what
            ]
            assert report.complete and other == [], other
            for found in (await target.threads.threads()).items:
                flat = present[found.thread_id].parent_thread_id not in (None, found.parent_thread_id)
                await compare(source, target, found.thread_id, flat=flat)
            again = await import_threads(target, await exported(source, thread, forks=True))
            assert again.complete and (again.messages, again.runs, again.requests, again.answers) == (0, 0, 0, 0)
            for found in (await target.threads.threads()).items:
                flat = present[found.thread_id].parent_thread_id not in (None, found.parent_thread_id)
                await compare(source, target, found.thread_id, flat=flat)

    asyncio.run(go())
