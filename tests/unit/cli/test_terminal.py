"""What others wrote does not drive the terminal that shows it: every command, fed with text that means harm."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import re
import sqlite3
import sys
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import structlog
import typer

from runyard import Client, Message, new_id
from runyard.domain.api_keys import ApiKey
from runyard.domain.quoting import legible, legible_json, one_line
from runyard.domain.states import RunStatus
from runyard.domain.webhooks import DeliveryOutcome, Webhook
from runyard.models import ErrorInfo, HitlRequest, ToolCallPart, ToolResultPart
from runyard.ports.commands import Write
from runyard.ports.refs import RunRef
from runyard.ports.stores import Backend
from runyard.ports.workers import WorkerInfo
from runyard.support.logging import configure
from runyard_api.cli.commands import workers
from runyard_api.cli.main import app, main
from runyard_api.cli.view import output
from runyard_backends.memory import MemoryBackend

TITLE = "\x1b]0;owned\x07"
EVIL = f"{TITLE}\x1b[2J\x9b31m\x85\x7f\r\u202eabc\u2066d\u2069"
MARKUP = "[red]m[/red][link=https://evil.example]l[/link]:skull:"
FORGED = "\nFORGED LINE"
HOSTILE = f"x{EVIL}{MARKUP}{FORGED}\\"
ID = f"x{EVIL}{MARKUP}"
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
COLOURS = re.compile(r"\x1b\[[0-9;]*m")

SHOW: dict[str, list[str]] = {
    "prompt": [ID, "hi", "--run-id", "done", "--wait"],
    "enqueue": ["prompts.jsonl"],
    "respond": [ID, HOSTILE, "--request", "open"],
    "signal": [ID, HOSTILE, HOSTILE],
    "regenerate": [ID, HOSTILE],
    "abort": [ID, HOSTILE],
    "cancel": [ID, "queued"],
    "fork": [ID, f"{ID}fork", "--title", HOSTILE],
    "fork-once": [ID, HOSTILE, "--wait-timeout", "0.01"],
    "fork-many": [ID, HOSTILE, "--wait-timeout", "0.01"],
    "threads list": [],
    "threads show": [ID],
    "threads update": [ID, "--title", HOSTILE],
    "threads messages": [ID],
    "threads tree": [ID],
    "threads branches": [ID],
    "threads label": [ID, "label"],
    "threads store": [ID, HOSTILE],
    "threads lineage": [f"{ID}2"],
    "threads diff": [ID, f"{ID}2"],
    "threads delete": [ID, "--cancel"],
    "threads export": [ID],
    "threads import": [HOSTILE],
    "runs list": [],
    "runs show": [ID, "failed"],
    "runs watch": [ID, "done"],
    "runs explain": [ID, "queued"],
    "runs attempts": [ID, "failed"],
    "runs candidates": [ID, "failed"],
    "runs dead": [],
    "runs redrive": [ID, "failed"],
    "runs cancel": ["queued", "failed"],
    "runs delete": [ID, "failed"],
    "requests": [],
    "feed": [],
    "usage": ["--agent", ID],
    "keys create": ["name"],
    "keys list": [],
    "keys revoke": [HOSTILE],
    "workers list": [],
    "workers drain": [ID],
    "workers stacks": [ID],
    "queues list": [],
    "queues pause": [f"q{ID}"],
    "queues resume": [f"q{ID}"],
    "doctor": [],
    "import cubepi": ["sqlite:///threads.db"],
    "limits list": [],
    "limits set": ["running-per-agent", "3", "--for", HOSTILE],
    "limits clear": ["running-per-tenant", "--for", HOSTILE],
    "webhooks add": ["https://hooks.example/x"],
    "webhooks list": [],
    "webhooks show": [HOSTILE],
    "webhooks remove": [HOSTILE],
    "webhooks secret": [HOSTILE],
    "webhooks rotate": [HOSTILE],
    "webhooks deliveries": [],
    "webhooks redeliver": [HOSTILE],
}
"""The arguments of each command that shows what is stored, or what it was given."""
SILENT = {"init", "dev", "demo", "worker", "api", "migrate"}
"""These start processes, or write files, and show nothing of the store."""


ANSWERS = {"prompt", "runs watch"}
"""These print an answer as it is: its lines are its own."""


def commands() -> Iterator[str]:
    """Those of the command line's own registry."""

    def walk(group: Any, path: tuple[str, ...]) -> Iterator[str]:
        for name, command in group.commands.items():
            yield from walk(command, (*path, name)) if hasattr(command, "commands") else [" ".join((*path, name))]

    return walk(typer.main.get_command(app), ())


def test_every_command_has_a_case() -> None:
    assert set(commands()) == set(SHOW) | SILENT


@pytest.fixture
def hostile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Backend]:
    """A store with such text wherever a store has text. SQL accepts ids that the client refuses, so it has such ids too."""
    for name in [name for name in os.environ if name.startswith("RUNYARD_")]:
        monkeypatch.delenv(name)
    for module in [module for name, module in sys.modules.items() if name.startswith(("runyard.", "runyard_backends.memory"))]:
        if hasattr(module, "check_id"):
            monkeypatch.setattr(module, "check_id", lambda value, *_: value)
    monkeypatch.chdir(tmp_path)
    url = f"memory://{new_id()}"
    monkeypatch.setenv("RUNYARD_POSTGRES_URL", url)
    monkeypatch.setenv("RUNYARD_WEBHOOK_SECRET", "whsec_" + "A" * 44)
    source(tmp_path / "threads.db")
    (tmp_path / "prompts.jsonl").write_text(
        "".join(f"{json.dumps(line)}\n" for line in ({"thread_id": HOSTILE, "message": "x"}, {HOSTILE: HOSTILE}, HOSTILE))
    )
    yield asyncio.run(fill(url))


def source(path: Path) -> None:
    """A database of another program with such ids, and with a row that cannot be read."""
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE messages (id INTEGER PRIMARY KEY, thread_id TEXT, message_json TEXT)")
        db.execute("CREATE TABLE thread_extra (thread_id TEXT, extra_json TEXT)")
        db.executemany("INSERT INTO thread_extra VALUES (?, '{}')", [(HOSTILE,), (ID,)])
        db.execute("INSERT INTO messages (thread_id, message_json) VALUES ('t', ?)", (json.dumps({"role": HOSTILE}),))
        db.commit()


async def fill(url: str) -> Backend:
    client = await Client.connect(url)
    backend = client.backend
    await backend.workers.register(
        WorkerInfo(worker_id=ID, queues=["default", ID], agents={ID: ID}, app_version=HOSTILE, address=None)
    )
    await client.create_thread(ID, title=HOSTILE, tags={"a": HOSTILE}, agent=ID)
    key = await backend.threads.thread_key(ID)
    assert key is not None

    async def start(run_id: str, **how: Any) -> Any:
        await client.enqueue(ID, HOSTILE, run_id, **how)
        [claim] = await backend.runs.claim(ID, [RunRef(key, run_id)])
        return claim.attempt

    call = ToolCallPart(id="1", name=HOSTILE, arguments={HOSTILE: HOSTILE})
    said = [
        Message(role="assistant", content=[call]),
        Message(role="tool", content=[ToolResultPart(call_id="1", name=HOSTILE, content=HOSTILE)]),
        Message.assistant(f"\x1b[2J{HOSTILE}"),
    ]
    await backend.runs.complete([Write(attempt=await start("done"), messages=said, first_event=3)])
    error = ErrorInfo(code=HOSTILE, message=HOSTILE)
    await backend.runs.fail(Write(attempt=await start("failed", agent=ID), first_event=3), error)
    await client.fork(ID, f"{ID}2", "done", title=HOSTILE)
    await backend.webhooks.add(Webhook(webhook_id=ID, tenant="", url=f"https://x.example/{HOSTILE}", events=["run.completed"]))
    await client.enqueue("other", "x", "told", webhook="https://hooks.example/")
    other = await backend.threads.thread_key("other")
    assert other is not None
    [claim] = await backend.runs.claim(ID, [RunRef(other, "told")])
    assert claim.attempt is not None
    await backend.runs.complete([Write(attempt=claim.attempt, messages=[Message.assistant("x")], first_event=3)])
    for posting in await backend.webhooks.take(busy={}):
        await backend.webhooks.settle(posting, DeliveryOutcome("failed", error=HOSTILE))
    await backend.keys.create_key(ApiKey(key_id="0" * 16, name=HOSTILE), b"x" * 32)
    await client.set_limit("running_per_tenant", 9, subject=HOSTILE)
    attempt = await start("asks", agent=ID)
    request = HitlRequest(request_id="open", payload={"question": HOSTILE}, thread_id=ID, run_id="asks", agent=ID)
    odd = HitlRequest(request_id=ID, kind="approval", payload={HOSTILE: HOSTILE}, thread_id=ID, run_id="asks")
    await backend.runs.suspend(Write(attempt=attempt, first_event=3), [request, odd])
    await client.enqueue(ID, HOSTILE, "queued", queue=f"q{ID}")
    kill(backend)
    return backend


def kill(backend: Backend) -> None:
    """One run that is dead for a reason that an agent wrote."""
    assert isinstance(backend, MemoryBackend)
    for thread in backend.world.db.threads.values():
        for run in thread.runs.values():
            if run.id == "told":
                dead = {"status": RunStatus.DEAD, "error": ErrorInfo(code=HOSTILE, message=HOSTILE)}
                run.run = run.run.model_copy(update=dead)


Shown = Callable[[str], str]


@pytest.fixture
def shown(hostile: Backend, capsys: pytest.CaptureFixture[str]) -> Shown:
    def run(command: str, *more: str) -> str:
        with contextlib.suppress(SystemExit):
            main([*command.split(), *SHOW[command], *more])
        out, err = capsys.readouterr()
        return out + err

    return run


@pytest.mark.parametrize("command", SHOW)
def test_stored_text_never_drives_the_terminal(shown: Shown, command: str) -> None:
    """And no line is forged: what is one thing stays on one line; the further lines of a message are set in."""
    text = shown(command)
    assert text and not OBEYED.findall(text), text
    assert command in ANSWERS or not re.search(r"^FORGED", text, re.MULTILINE), text


@pytest.mark.parametrize("command", SHOW)
def test_nor_on_a_terminal_with_colours(shown: Shown, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only this program's own colours are left, no link and no emoji; markup of others stays text."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    text = shown(command)
    plain = COLOURS.sub("", text)
    assert not OBEYED.findall(plain), text
    assert "💀" not in plain
    assert plain.count("[red]m[/red]") == plain.count("m[/red]"), text
    assert plain.count("[link=https://evil.example]l") == plain.count("evil.example]"), text


@pytest.mark.parametrize(
    "command",
    [
        "threads show",
        "threads list",
        "threads lineage",
        "threads diff",
        "runs show",
        "requests",
        "feed",
        "runs watch",
        "workers list",
    ],
)
def test_json_stays_json(shown: Shown, command: str) -> None:
    """With escapes of its own, and the same text for programs."""
    text = shown(command, "--json")
    assert text.strip() and not OBEYED.findall(text), text
    lines = text.splitlines() if command in ("feed", "runs watch") else [text]
    found = [json.loads(line) for line in lines]
    assert any(EVIL in value for value in strings(found))


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, each in value.items():
            yield from (name, *strings(each))
    elif isinstance(value, list):
        for each in value:
            yield from strings(each)


def test_stacks_of_another_process(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "stacks_of", lambda _: f"File {HOSTILE}\n")
    assert not OBEYED.findall(shown("workers stacks"))


def test_control_characters_are_shown_as_signs() -> None:
    assert legible("a\x1b[2J\tb\n\x7f\x9b\u202e\ud800") == "a␛[2J\tb\n␡���"
    assert one_line("a\nb") == "a␊b"
    text = json.dumps(HOSTILE + "\ud800", ensure_ascii=False)
    assert json.loads(legible_json(text)) == HOSTILE + "\ud800" and not OBEYED.findall(legible_json(text))


@pytest.mark.parametrize("columns", ["80", "30"])
def test_a_long_last_cell_leaves_the_other_columns_whole(
    columns: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a pipe and on a narrow terminal, only the last column is shortened."""
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr(output, "PIPE_COLUMNS", int(columns))
    output.table(
        ("AT", "TOOK", "WHAT", "STATUS", "DETAIL"), [("08:34:21", "0.2 s", "candidate:1", "done", "long " * 100)], empty=""
    )
    head, row = capsys.readouterr().out.splitlines()
    assert head.split() == ["AT", "TOOK", "WHAT", "STATUS", "DETAIL"]
    assert row.split()[:5] == ["08:34:21", "0.2", "s", "candidate:1", "done"] and row.rstrip().endswith("…")


def test_only_one_place_writes() -> None:
    """A console of another make would show what it is given."""
    folder = Path(workers.__file__).parents[1]
    for file in folder.rglob("*.py"):
        if file.name != "output.py":
            source = file.read_text(encoding="utf-8")
            assert not re.search(r"(?<!Terminal)(?<!\w)Console\(|rich\.markup|^\s*print\(", source, re.MULTILINE), file.name


@pytest.mark.parametrize("colours", [True, False])
def test_log_lines(colours: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of structlog and of the standard library, values and tracebacks."""
    before = structlog.get_config(), logging.getLogger().handlers[:], logging.getLogger().level
    stream = StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: colours)
    try:
        configure("info", "console", stream)
        log = structlog.get_logger("test")
        try:
            raise ValueError(HOSTILE)
        except ValueError:
            log.exception(HOSTILE, name=HOSTILE, **{"k\x1b[2J": [HOSTILE]})
            logging.getLogger("other").exception("said %s", HOSTILE)
    finally:
        structlog.configure(**before[0])
        logging.getLogger().handlers[:], level = before[1], before[2]
        logging.getLogger().setLevel(level)
    text = COLOURS.sub("", stream.getvalue())
    assert text.count("FORGED LINE") >= 4 and "Traceback" in text
    assert not OBEYED.findall(text), text
    lines = [line for line in text.splitlines() if line.startswith("FORGED")]
    assert len(lines) <= 4, "only a traceback has lines of its own"
