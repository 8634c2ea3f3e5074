"""Children in ``threads lineage`` and ``threads tree``, on the memory store (K3)."""

from __future__ import annotations

import asyncio
import json
import os
import re

import pytest

from runyard import Client, Message, new_id
from runyard.ports.commands import AcceptRequest
from runyard.ports.refs import AttemptToken, RunRef
from runyard.ports.stores import Backend
from runyard.ports.workers import WorkerInfo
from runyard_api.cli.main import main
from runyard_api.cli.view import thread_tree


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> str:
    for name in [name for name in os.environ if name.startswith("RUNYARD_")]:
        monkeypatch.delenv(name)
    url = f"memory://{new_id()}"
    monkeypatch.setenv("RUNYARD_POSTGRES_URL", url)
    return url


async def family(url: str, width: int = 2) -> Backend:
    """A run that waits for ``width`` children, of which the first has a child of its own."""
    client = await Client.connect(url)
    backend = client.backend
    await backend.workers.register(WorkerInfo(worker_id="hand", queues=["default"]))
    await client.enqueue("top", "plan a trip", "r1")
    top = await claim(backend, "top", "r1")
    for n in range(width):
        await start_child(backend, top, f"child-{n}", f"c{n}")
    await start_child(backend, await claim(backend, "child-0", "c0"), "deep", "g")
    return backend


async def claim(backend: Backend, thread_id: str, run_id: str) -> AttemptToken:
    """Claim a run, and answer with its id."""
    key = await backend.threads.thread_key(thread_id)
    assert key is not None
    attempt = (await backend.runs.claim("hand", [RunRef(key, run_id)]))[0].attempt
    assert attempt is not None
    await backend.runs.append(attempt, [Message.assistant(f"of {run_id}")], first_event=3)
    return attempt


async def start_child(backend: Backend, attempt: AttemptToken, thread_id: str, run_id: str) -> None:
    request = AcceptRequest(thread_id=thread_id, run_id=run_id, input=Message.user(f"task {run_id}"), job=attempt.ref)
    await backend.runs.start_child(attempt, request)


def runyard(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[str, str]:
    assert main(list(arguments)) == 0
    return capsys.readouterr()


def test_lineage_lists_children_level_by_level(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    world = asyncio.run(family(url))
    found = json.loads(runyard(capsys, "threads", "lineage", "top", "--json")[0])["child_runs"]
    assert [(each["depth"], each["run_id"], each["started_by_run_id"]) for each in found["items"]] == [
        (1, "c0", "r1"),
        (1, "c1", "r1"),
        (2, "g", "c0"),
    ]
    assert found["truncated"] is False
    out, err = runyard(capsys, "threads", "lineage", "top", "--limit", "1")
    assert "c0" in out and "c1" not in out and "r1 on top" in out and "--limit" in err
    assert runyard(capsys, "threads", "lineage", "deep")[0].count("CHILD") == 0
    assert world.tenant == ""


def test_tree_draws_children_from_the_turn_that_started_them(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    world = asyncio.run(family(url))
    out, err = runyard(capsys, "threads", "tree", "top")
    lines = [re.sub(r"[^\w‹›-]+", " ", line).strip() for line in out.splitlines()]
    assert [line for line in lines if line] == [
        "‹top› plan a trip of r1 running",
        "‹child-0› task c0 of c0 running child",
        "‹child-1› empty",
        "‹deep› empty",
    ]
    turns = json.loads(runyard(capsys, "threads", "tree", "top", "--json")[0])
    of_run = {turn["run_id"]: turn for turn in turns["turns"]}
    assert of_run["c0"]["parent"] == of_run["r1"]["key"] and of_run["c0"]["started_by"] == ["top", "r1"]
    assert {thread["thread_id"] for thread in turns["threads"]} == {"top", "child-0", "child-1", "deep"}
    assert not err and turns["more_children"] is False and world.tenant == ""


def test_tree_reads_a_bounded_number_of_children(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thread_tree, "MAX_CHILD_THREADS", 2)
    world = asyncio.run(family(url, 5))
    out, err = runyard(capsys, "threads", "tree", "top", "--json")
    assert len(json.loads(out)["threads"]) == 3 and json.loads(out)["more_children"] is True
    assert "more children" in runyard(capsys, "threads", "tree", "top")[1] and world.tenant == "" and not err
