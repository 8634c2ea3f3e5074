"""``runyard import cubepi`` with databases of cubepi and cubeloop: schema 3 to 5, SQLite and Postgres (F1, F2, F10, H6)."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest

from runyard import Client
from runyard.adapters.cubeloop_checkpointer import RunyardCheckpointer
from runyard.errors import (
    BackendUnavailableError,
    InvalidInputError,
    RunNotCompletedError,
    SchemaMismatch,
    SchemaUninitialized,
    ThreadNotFoundError,
)
from runyard.models import Message
from runyard_backends.cubepi import Report, import_threads
from runyard_backends.cubepi.marks import TAG
from tests.support.cubeloop_databases import converse, downgrade, execute, own_checkpointer
from tests.support.cubeloop_packages import Package
from tests.support.long_form import LONG

if TYPE_CHECKING:
    from tests.conftest import Databases

THREADS = ("t", "fork", "fork2", "asking", "empty")


@dataclass
class Made:
    """A database that a package's agent made, with the data that its checkpointer loads, and the agent's provider."""

    url: str
    package: Package
    provider: Any
    loaded: dict[str, Any]


COMBINATIONS = ("sqlite-cubepi-postgres", "postgres-cubepi-postgres", "sqlite-cubeloop-memory", "postgres-cubeloop-memory")
"""The kind of the source database, the package that made it, and the target store."""


@pytest.fixture(params=COMBINATIONS)
def combination(request: pytest.FixtureRequest) -> list[str]:
    return str(request.param).split("-")


@pytest.fixture
def package(combination: list[str]) -> Package:
    return Package(combination[1])


@pytest.fixture
def server(combination: list[str], request: pytest.FixtureRequest) -> "tuple[Databases, str] | None":
    if combination[2] == "memory":
        return None
    return request.getfixturevalue("databases"), request.getfixturevalue("migrated_template")


@pytest.fixture
def source_server(combination: list[str], request: pytest.FixtureRequest) -> "Databases | None":
    return None if combination[0] == "sqlite" else request.getfixturevalue("databases")


@pytest.fixture
async def source_url(source_server: "Databases | None", tmp_path: Path) -> AsyncIterator[str]:
    if source_server is None:
        yield f"sqlite:///{tmp_path / 'threads.db'}"
        return
    url = await source_server.create()
    yield url
    await source_server.drop(url)


@pytest.fixture
async def made(source_url: str, package: Package) -> Made:
    async with await own_checkpointer(package, source_url) as cp:
        provider = await converse(package, cp)
        loaded = {thread_id: await cp.load(thread_id) for thread_id in THREADS}
    return Made(source_url, package, provider, loaded)


def state(client: Client, package: Package) -> RunyardCheckpointer:
    return RunyardCheckpointer(client, package=package.name)


async def everything(client: Client) -> Any:
    """Return all data of the deployment that a reader sees."""
    found: dict[str, Any] = {}
    for thread in (await client.threads()).items:
        name = thread.thread_id
        found[name] = [
            (await client.thread(name)).model_dump(),
            [message.model_dump() for message in (await client.messages(name)).items],
            [run.model_dump() for run in (await client.runs(name)).items],
            [request.model_dump() for request in (await client.requests(name, pending=False)).items],
        ]
    return found


async def test_everything_is_carried_over(made: Made, client: Client) -> None:
    """Messages keep all fields. NULL runs, completion order, extra, lineage, the pending request and answers are imported."""
    report = await import_threads(made.url, client.backend)
    assert report.outcomes == {"imported": 5} and report.complete and report.notes == []
    assert (report.version, report.forks, report.requests, report.answers) == (5, 2, 1, 1)
    cp = state(client, made.package)
    for thread_id in THREADS:
        ours, theirs = await cp.load(thread_id), made.loaded[thread_id]
        assert ours is not None
        assert [m.model_dump() for m in ours.messages] == [m.model_dump() for m in theirs.messages], thread_id
        assert (ours.extra, ours.parent_thread_id) == (theirs.extra, theirs.parent_thread_id)
    path = (await client.messages("t")).items
    assert [m.run_id for m in path] == [None] * 2 + ["r1"] * 4 + ["r2"] * 2
    assert [m.parent_id for m in path] == [None, *(m.id for m in path[:-1])], "each run saw the completed ones before it"
    runs = {run.run_id: run.completion_seq for run in (await client.runs("t")).items}
    assert runs == {"r1": 1, "r2": 2, "open": None}
    assert (await client.thread("fork2")).parent_thread_id == "fork"
    assert (await client.runs("fork")).items[0].completion_seq == 3, "above all numbers of the source"
    with pytest.raises(RunNotCompletedError):
        await client.backend.checkpointer.snapshot("t", after_run_id="open")
    pending = await cp.load_pending("asking")
    assert pending is not None and pending[1] == "q" and pending[0].payload.questions[0].prompt == "Which?"
    assert await cp.load_hitl_answer("asking", "earlier", run_id="q") == {"k": "v"}
    [asked] = (await client.requests()).items
    assert (asked.thread_id, asked.run_id) == ("asking", "q")


async def test_the_agent_goes_on(made: Made, client: Client) -> None:
    """An imported conversation continues with a prompt, a fork, and the answer to another process's question."""
    await import_threads(made.url, client.backend)
    package, provider, cp = made.package, made.provider, state(client, made.package)
    agent = package.agent(package.says("four"), provider=provider, checkpointer=cp, thread_id="t")
    run = await agent.prompt("and 2 + 2?")
    assert agent.state.error_message is None and len(agent.state.messages) == 11
    await agent.fork("t", "new", after_run_id="r2")
    fork = await cp.load("new")
    assert fork is not None and len(fork.messages) == 8 and fork.extra["colour"] == "blue"
    assert (await client.run("t", run)).completion_seq == 3
    channel = package.hitl.CheckpointedChannel(checkpointer=cp, thread_id="asking", run_id="q")
    tools = [package.hitl.ask_user_tool(channel)]
    other = package.agent(
        package.says("thanks"), provider=provider, tools=tools, checkpointer=cp, thread_id="asking", channel=channel
    )
    await other.respond(answer={"k": "blue"})
    assert other.state.messages[-1].content[0].text == "thanks" and await cp.load_pending("asking") is None
    assert (await client.run("asking", "q")).completion_seq == 1


async def test_a_second_import_changes_nothing(made: Made, client: Client) -> None:
    await import_threads(made.url, client.backend)
    cp = state(client, made.package)
    await cp.save_extra("t", {"colour": "green"})
    await client.store_message("fork", "new here")
    before = await everything(client)
    report = await import_threads(made.url, client.backend)
    assert report.outcomes == {"unchanged": 5} and await everything(client) == before
    assert (await import_threads(made.url, client.backend, dry_run=True)).outcomes == {"unchanged": 5}


async def test_new_messages_of_the_source_are_added(made: Made, client: Client) -> None:
    """A repeated import adds new runs and messages of the source. Changes by the deployment stay."""
    await import_threads(made.url, client.backend)
    cp = state(client, made.package)
    await cp.save_extra("t", {"colour": "green"})
    async with await own_checkpointer(made.package, made.url) as theirs:
        await theirs.append("t", [made.package.user("landed", run_id="open")])
        await theirs.mark_run_complete("t", "open")
        await theirs.append("t", [made.package.user("later")])
        await theirs.save_extra("t", {"colour": "red"})
        expected = await theirs.load("t")
    report = await import_threads(made.url, client.backend)
    assert report.outcomes == {"unchanged": 4, "added": 1}
    loaded = await cp.load("t")
    assert loaded is not None and [m.model_dump() for m in loaded.messages] == [m.model_dump() for m in expected.messages]
    assert loaded.extra["colour"] == "green" and (await client.run("t", "open")).completion_seq == 3


async def test_h6_a_second_import_carries_over_what_was_asked_meanwhile(made: Made, client: Client) -> None:
    """H6: The old agent asked, answered and saved extra after the first import. Nothing of this is lost."""
    async with await own_checkpointer(made.package, made.url) as theirs:
        asked = await theirs.load_pending("asking")
        await theirs.save_pending_request("asking", None)
    await import_threads(made.url, client.backend)
    cp = state(client, made.package)
    assert asked is not None and await cp.load_pending("asking") is None
    async with await own_checkpointer(made.package, made.url) as theirs:
        await theirs.save_pending_request("asking", asked[0], run_id=asked[1])
        await theirs.save_extra("asking", {"colour": "red"})
    report = await import_threads(made.url, client.backend)
    assert report.outcomes == {"unchanged": 4, "added": 1} and report.requests == 1
    found, loaded = await cp.load_pending("asking"), await cp.load("asking")
    assert found is not None and found[0].question_id == asked[0].question_id and found[1] == asked[1]
    assert loaded is not None and loaded.extra["colour"] == "red"


@pytest.mark.parametrize("version", [3, 4])
async def test_earlier_schemas(made: Made, client: Client, version: int) -> None:
    """F10: Without runs every message is a legacy message. After one prompt the thread can be forked."""
    await downgrade(made.url, version)
    report = await import_threads(made.url, client.backend)
    cp = state(client, made.package)
    loaded = await cp.load("t")
    assert (report.version, report.answers, report.complete) == (version, 0, True) and loaded is not None
    assert len(loaded.messages) == 9 and await cp.load_pending("asking") is not None
    if version == 4:
        assert (await client.thread("fork")).parent_thread_id == "t"
        return
    assert {message.run_id for message in loaded.messages} == {None}
    with pytest.raises(made.package.errors.RunNotCompletedError):
        await cp.snapshot("t", after_run_id="r1")
    agent = made.package.agent(made.package.says("yes"), checkpointer=cp, thread_id="t")
    run = await agent.prompt("new")
    assert len(await cp.snapshot("t", after_run_id=run)) == 11


async def test_some_threads_and_a_dry_run(made: Made, client: Client) -> None:
    """``threads`` imports these threads and their ancestors. A dry run writes no data and returns the same counts."""
    planned = await import_threads(made.url, client.backend, dry_run=True)
    assert (await client.threads()).items == []
    with pytest.raises(ThreadNotFoundError, match="nowhere"):
        await import_threads(made.url, client.backend, threads=["fork2", "nowhere"])
    report = await import_threads(made.url, client.backend, threads=["fork2"])
    assert {thread.thread_id for thread in (await client.threads()).items} == {"t", "fork", "fork2"}
    assert report.outcomes == {"imported": 3}
    rest = await import_threads(made.url, client.backend)
    assert rest.outcomes == {"imported": 2, "unchanged": 3}
    for name in ("messages", "runs", "forks", "requests", "answers"):
        both = getattr(report, name) + getattr(rest, name)
        assert getattr(planned, name) == both, name


@pytest.mark.parametrize("combination", [["sqlite", "cubepi", "memory"], ["sqlite", "cubepi", "postgres"]], ids="-".join)
async def test_an_import_that_is_interrupted_anywhere_goes_on(made: Made, client: Client) -> None:
    """Each write of an import fails once, before or after it takes effect. The next import completes the same state."""
    await import_threads(made.url, client.backend)
    whole = _timeless(await everything(client))
    step, broken = (1 if LONG else 8), 0
    for kind, number in (("before", 0), ("after", step // 2)):
        while True:
            tenant = f"{kind}{number}"
            backend = client.backend.for_tenant(tenant)
            if not await _interrupted(made.url, backend, number, kind):
                break
            report = await import_threads(made.url, backend)
            assert report.complete and _timeless(await everything(Client(backend))) == whole, tenant
            broken, number = broken + 1, number + step
    assert broken * step > 60


class Interrupted(BaseException):
    pass


async def _interrupted(url: str, backend: Any, number: int, kind: str) -> bool:
    """Import, and die at the write with this number. Return False if the import has fewer writes."""
    left = number
    ports = {
        "checkpointer": ("append", "claim_run", "mark_run_complete", "save_extra", "save_pending_request", "answer_request")
    }
    ports["threads"] = ("create_thread", "fork", "update_thread")

    def dying(method: Any) -> Any:
        async def call(*args: Any, **named: Any) -> Any:
            nonlocal left
            here, left = left == 0, left - 1
            if here and kind == "before":
                raise Interrupted
            result = await method(*args, **named)
            if here:
                raise Interrupted
            return result

        return call

    async with AsyncExitStack() as stack:
        for port, names in ports.items():
            for name in names:
                target = getattr(backend, port)
                stack.enter_context(patch.object(target, name, dying(getattr(target, name))))
        try:
            await import_threads(url, backend)
        except Interrupted:
            return True
    return False


def _timeless(found: Any) -> Any:
    """Return ``found`` without times, and without numbers that depend on the time of a write."""
    gone = {
        "created_at",
        "updated_at",
        "accepted_at",
        "admitted_at",
        "started_at",
        "finished_at",
        "fence",
        "answered_at",
        "event_id",
    }
    text = json.dumps(found, default=str, sort_keys=True)

    def cut(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: cut(inner) for key, inner in value.items() if key not in gone}
        return [cut(inner) for inner in value] if isinstance(value, list) else value

    return cut(json.loads(text))


async def test_what_cannot_be_carried_over_is_reported(made: Made, client: Client) -> None:
    """The report has another thread with the id, an unreadable row and a fork whose parent changed. The rest is imported."""
    await client.store_message("empty", Message.user("mine"))
    before = await client.thread("empty")
    if made.url.startswith("sqlite"):
        await execute(
            made.url,
            "UPDATE messages SET message_json = '{\"role\": 1}' WHERE thread_id = 'asking'",
            "DELETE FROM messages WHERE thread_id = 't' AND run_id IS NULL",
        )
    else:
        await execute(
            made.url,
            "UPDATE cubepi_messages SET payload = '\\xc1' WHERE thread_id = 'asking'",
            "DELETE FROM cubepi_messages WHERE thread_id = 't' AND run_id IS NULL",
        )
    report = await import_threads(made.url, client.backend)
    assert report.outcomes == {"imported": 3, "refused": 1, "failed": 1} and not report.complete
    notes = {note.thread_id: note.what for note in report.notes}
    assert set(notes) == {"empty", "asking", "fork"} and "lineage to thread t" in notes["fork"]
    assert await client.thread("empty") == before
    cp = state(client, made.package)
    loaded = await cp.load("fork")
    assert loaded is not None and loaded.parent_thread_id is None
    assert [m.model_dump() for m in loaded.messages] == [m.model_dump() for m in made.loaded["fork"].messages]
    assert (await client.thread("fork2")).parent_thread_id == "fork"


@pytest.mark.parametrize("combination", [["sqlite", "cubepi", "memory"]], ids="-".join)
async def test_a_thread_of_another_database_is_refused(made: Made, client: Client) -> None:
    """R2: The messages of two databases are not mixed under one id."""
    await import_threads(made.url, client.backend)
    before = await everything(client)
    await execute(
        made.url,
        "UPDATE messages SET message_json = json_set(message_json, '$.content[0].text', 'other') WHERE thread_id = 'asking'",
    )
    report = await import_threads(made.url, client.backend, threads=["asking"])
    assert report.outcomes["refused"] == 1
    assert await everything(client) == before


HOSTILE = {
    "deep": "INSERT INTO messages (thread_id, message_json) "
    "VALUES ('a', '{\"role\": ' || replace(hex(zeroblob(100000)), '0', '['))",
    "deep extra": "INSERT INTO thread_extra (thread_id, extra_json) VALUES ('a', replace(hex(zeroblob(100000)), '0', '['))",
    "number": "INSERT INTO runs (thread_id, run_id, completed_at, completion_seq) "
    "VALUES ('a', 'r', 1, 'abc'), ('a', 's', 1, 2)",
    "kind": "INSERT INTO thread_pending_request (thread_id, request_json) VALUES "
    '(\'a\', \'{"question_id": "q", "payload": {"kind": ["x"]}}\')',
    "parent": "INSERT INTO thread_extra (thread_id, parent_thread_id) VALUES ('a', x'ff')",
    "text": "INSERT INTO messages (thread_id, message_json) VALUES ('a', cast(x'7bff7d' as text))",
    "id": "INSERT INTO messages (thread_id, message_json) SELECT cast(x'ff' as text), message_json FROM messages LIMIT 1",
}


@pytest.mark.parametrize("combination", [["sqlite", "cubepi", "memory"]], ids="-".join)
@pytest.mark.parametrize("row", HOSTILE)
async def test_a_row_that_nobody_foresaw_fails_its_thread_only(made: Made, client: Client, row: str) -> None:
    await execute(made.url, HOSTILE[row])
    await client.create_thread("empty", tags={TAG: "0:zzz"})
    report = await import_threads(made.url, client.backend)
    assert report.outcomes.get("refused", 0) + report.outcomes.get("failed", 0) == 2
    assert {thread.thread_id for thread in (await client.threads()).items} >= {"t", "fork", "fork2", "asking"}


@pytest.mark.parametrize("combination", [["sqlite", "cubepi", "memory"]], ids="-".join)
async def test_sources_that_are_none(tmp_path: Path, client: Client, postgres_url: str, empty_postgres_url: str) -> None:
    empty = tmp_path / "empty.db"
    empty.touch()
    text = tmp_path / "text.db"
    text.write_text("no database at all, but a long text" * 100)
    for url, error in (
        (f"sqlite:///{tmp_path / 'absent.db'}", InvalidInputError),
        (f"sqlite:///{empty}", SchemaUninitialized),
        (f"sqlite:///{text}", BackendUnavailableError),
        ("mysql://host/db", InvalidInputError),
        (postgres_url, SchemaUninitialized),
        ("postgresql://user:secret@127.0.0.1:1/db", BackendUnavailableError),
    ):
        with pytest.raises(error) as caught:
            await import_threads(url, client.backend)
        assert "secret" not in str(caught.value)
    async with await own_checkpointer(Package("cubepi"), empty_postgres_url):
        await execute(empty_postgres_url, "UPDATE cubepi_schema_version SET version = 2")
    with pytest.raises(SchemaMismatch, match="version 2"):
        await import_threads(empty_postgres_url, client.backend)


def command(store_url: str, *arguments: str) -> tuple[list[str], dict[str, str]]:
    env = {**os.environ, "RUNYARD_POSTGRES_URL": store_url, "RUNYARD_REDIS_URL": "redis://127.0.0.1:1/0"}
    return [sys.executable, "-m", "runyard_api.cli", "import", "cubepi", *arguments], env


async def test_the_command(tmp_path: Path, postgres_url: str) -> None:
    """The command reports in text and JSON, and continues after a kill -9. The exit code shows missing threads."""
    package, url = Package("cubepi"), f"sqlite:///{tmp_path / 'threads.db'}"
    async with await own_checkpointer(package, url) as cp:
        await converse(package, cp)
        for n in range(100):
            await cp.claim_run("long", f"r{n}")
            await cp.append("long", [package.user(f"{n}", run_id=f"r{n}")])
            await cp.mark_run_complete("long", f"r{n}")
    line, env = command(postgres_url, url, "--json")
    killed = await asyncio.create_subprocess_exec(*line, env=env, stdout=subprocess.DEVNULL)
    async with Client.connect(postgres_url) as client:
        while not [t for t in (await client.threads()).items if t.thread_id == "long"]:
            assert killed.returncode is None
            await asyncio.sleep(0.01)
        killed.kill()
        await killed.wait()
        done = await asyncio.to_thread(subprocess.run, line, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        said = json.loads(done.stdout)
        assert said["complete"] and sum(said["outcomes"].values()) == 6
        assert [m.text for m in (await client.messages("long")).items] == [str(n) for n in range(100)]
        assert (await client.thread("long")).tags[TAG].startswith("0:")
        await client.delete_thread("empty")
        await client.store_message("empty", "taken")
    line, env = command(postgres_url, url)
    done = await asyncio.to_thread(subprocess.run, line, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 4 and "empty: not imported" in done.stdout and "5 unchanged" in done.stdout
    assert isinstance(Report(True, 5).complete, bool)
