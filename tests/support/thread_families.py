"""A family of threads with everything that a file of threads carries, and what readers see of it."""

from __future__ import annotations

import io
from typing import Any

from runyard.models import HitlRequest, Message, ToolCallPart
from runyard.ports.commands import Cut, ForkRequest, ThreadRequest
from runyard.ports.queries import PathRequest, RunFilter
from runyard.ports.stores import Backend
from runyard_backends.thread_files import export_threads

FAMILY = ("t", "inside", "after-fast", "repaired", "of-deleted", "deep", "deeper")


async def turn(backend: Backend, thread: str, run: str, *texts: str, extra: dict[str, Any] | None = None) -> list[Message]:
    await backend.checkpointer.claim_run(thread, run)
    messages = [Message.user(text, run_id=run) for text in (texts or (f"{run}?", f"{run}!"))]
    await backend.checkpointer.append(thread, messages)
    if extra is not None:
        await backend.checkpointer.save_extra(thread, extra)
    await backend.checkpointer.mark_run_complete(thread, run)
    return messages


async def fork(backend: Backend, src: str, new: str, **cut: Any) -> None:
    await backend.threads.fork(ForkRequest(src=src, new=new, cut=Cut(**cut), title=f"title of {new}"))


async def furnish(backend: Backend) -> None:
    """Make a family with everything that a file carries."""
    cp, threads = backend.checkpointer, backend.threads
    await threads.create_thread(ThreadRequest(thread_id="t", agent="support", config={"policy": "ask"}, tags={"k": "v"}))
    await cp.append("t", [Message.user("legacy 1"), Message.assistant("legacy 2")])
    await turn(backend, "t", "r1", extra={"colour": "blue", "none": None})
    await cp.append("t", [Message.user("between")])
    for run in ("slow", "fast"):  # two runs whose messages are interleaved
        await cp.claim_run("t", run)
    parts = [Message.assistant(f"{run} {n}", run_id=run) for n in (1, 2) for run in ("slow", "fast")]
    await cp.append("t", parts)
    await fork(backend, "t", "inside", at_message_id=parts[2].id)  # a part of an open run
    await cp.mark_run_complete("t", "fast")
    await fork(backend, "t", "after-fast", after_run_id="fast")
    await cp.append("t", [Message.user("before the slow end")])
    await cp.mark_run_complete("t", "slow")
    await cp.append("t", [Message.user("x", run_id="unclaimed")])
    call = Message.assistant([ToolCallPart(id="c1", name="look", arguments={})], run_id="open")
    await cp.claim_run("t", "open")
    await cp.append("t", [Message.user("open?", run_id="open"), call])
    await fork(backend, "t", "repaired", at_message_id=call.id, repair=True)
    await cp.claim_run("t", "stopped")
    await cp.append("t", [Message.user("stopped?", run_id="stopped")])
    await backend.runs.cancel("t", "stopped")
    await cp.claim_run("t", "gone")
    shown_by_fork = [Message.user(f"gone {n}", run_id="gone") for n in (1, 2)]
    await cp.append("t", shown_by_fork)
    await fork(backend, "t", "of-deleted", at_message_id=shown_by_fork[0].id)
    await backend.runs.cancel("t", "gone")
    await backend.runs.delete_run("t", "gone")
    await cp.claim_run("t", "silent")
    await cp.mark_run_complete("t", "silent")
    await turn(backend, "after-fast", "own", extra={"colour": "red"})
    await fork(backend, "after-fast", "deep", after_run_id="own")
    await fork(backend, "deep", "deeper", after_run_id="r1")
    await turn(backend, "deeper", "fast")  # the id is free in a fork that does not inherit the run
    path = (await threads.messages("t")).items
    await threads.store_message("t", Message.user("another way"), path[2].id)
    await turn(backend, "t", "on the side")
    await threads.set_label("t", "side")
    await threads.store_message("t", Message.user("another tree"), "00000000-0000-0000-0000-000000000000")
    await threads.store_message("t", Message.user("the head"), path[-1].id)
    store: Any = cp
    asked = [HitlRequest(request_id=f"q{n}", payload={"question": n}, answer_schema={"type": "integer"}) for n in range(3)]
    await store.save_requests("t", asked, run_id="open")
    await backend.runs.respond(7, thread_id="t", request_id="q1", response_id="a1", answered_by="me", on_behalf_of="you")
    await cp.save_pending_request("deep", HitlRequest(request_id="own", payload={"question": "?"}))


async def shown(backend: Backend, thread: str) -> dict[str, Any]:
    """Return what readers see of a thread, without times and numbers."""
    found = await backend.threads.thread(thread)
    assert found is not None
    leaves = (await backend.threads.branches(thread)).items
    paths = {}
    for leaf in leaves:
        path = (await backend.threads.messages(thread, PathRequest(leaf_id=leaf.message_id))).items
        fields = ("id", "role", "run_id", "content", "metadata")
        paths[leaf.message_id] = [
            *(leaf.depth, sorted(leaf.labels), leaf.head, leaf.run_id, leaf.run_status),
            [[getattr(message, name) for name in fields] for message in path],
        ]
    loaded = await backend.checkpointer.load(thread)
    assert loaded is not None
    runs = (await backend.runs.runs(RunFilter(thread_id=thread))).items
    snapshots = {}
    for run in sorted(runs, key=lambda run: run.run_id):
        if run.completion_seq is not None:
            snapshot = await backend.checkpointer.snapshot(thread, after_run_id=run.run_id)
            snapshots[run.run_id] = [message.id for message in snapshot]
    requests = {}
    for request in (await backend.runs.requests(thread_id=thread, pending=False)).items:
        fields = ("run_id", "kind", "payload", "answer", "response_id", "answered_by", "on_behalf_of")
        requests[request.request_id] = [getattr(request, name) for name in fields]
    return {
        "thread": [found.agent, found.title, found.extra, found.config, found.parent_thread_id, found.forked_after_run_id],
        "tags": {name: value for name, value in found.tags.items() if name != "runyard.import"},
        "paths": paths,
        "loaded": [message.id for message in loaded.messages],
        "runs": {run.run_id: str(run.status) for run in runs},
        "snapshots": snapshots,
        "requests": requests,
    }


async def exported(backend: Backend, thread: str, **options: Any) -> io.BytesIO:
    file = io.BytesIO()
    await export_threads(backend, thread, file, **options)
    return file
