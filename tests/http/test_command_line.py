"""Every command over HTTPS with an API key: it works, or it says why it needs the servers themselves (A1)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import sqlite3
from pathlib import Path
from typing import Any, Final

import pytest
from fastapi import FastAPI

from runyard import Client
from runyard.worker.worker import Worker
from runyard_api.cli import exit_codes
from runyard_api.cli.main import main
from runyard_backends.thread_files import export_threads
from tests.http.conftest import BOUND
from tests.support.api_server import serving
from tests.support.certificates import Certificates
from tests.support.receiver import new_secret
from tests.unit.cli.test_terminal import commands

OVER_HTTP: Final[dict[str, list[str]]] = {
    "doctor": [],
    "prompt": ["t", "say hello", "--run-id", "r2", "--wait"],
    "enqueue": ["PROMPTS"],
    "regenerate": ["t", "--wait"],
    "respond": ["asking", "red"],
    "signal": ["t", "paid", "7"],
    "abort": ["aborted", "no longer needed"],
    "cancel": ["cancelled", "ask"],
    "fork": ["t", "f", "--after", "r1"],
    "fork-once": ["t", "say once"],
    "fork-many": ["t", "say one", "say two", "--run-id", "many"],
    "requests": [],
    "feed": [],
    "usage": [],
    "threads list": [],
    "threads show": ["t"],
    "threads messages": ["t"],
    "threads tree": ["t"],
    "threads branches": ["t"],
    "threads export": ["t"],
    "threads label": ["t", "here"],
    "threads store": ["t", "a note"],
    "threads lineage": ["t"],
    "threads diff": ["t", "f"],
    "runs list": [],
    "runs show": ["t", "r1"],
    "runs watch": ["t", "r1"],
    "runs explain": ["t", "r1"],
    "runs attempts": ["t", "r1"],
    "runs candidates": ["t", "many"],
    "runs dead": [],
    "runs redrive": ["failing", "fails"],
    "runs cancel": ["unwanted"],
    "runs delete": ["failing", "deleted"],
    "keys create": ["name"],
    "keys list": [],
    "keys revoke": ["KEY"],
    "workers list": [],
    "workers drain": ["WORKER"],
    "queues list": [],
    "queues pause": ["q"],
    "queues resume": ["q"],
    "limits list": [],
    "limits set": ["running-per-agent", "3"],
    "limits clear": ["running-per-agent"],
    "webhooks add": ["https://hooks.example/x", "--event", "message.stored"],
    "webhooks list": [],
    "webhooks show": ["WEBHOOK"],
    "webhooks secret": ["WEBHOOK"],
    "webhooks rotate": ["WEBHOOK"],
    "webhooks deliveries": [],
    "webhooks redeliver": ["msg_none"],
    "webhooks remove": ["WEBHOOK"],
    "threads update": ["t", "--title", "a title"],
    "threads delete": ["failing"],
}
"""The commands that work over HTTP, in an order in which they can follow each other."""
ENDS: Final = {"webhooks redeliver": exit_codes.Exit.NOT_FOUND}
"""The commands that name nothing here. Their exit code comes from the server's answer."""
DIRECT: Final[dict[str, tuple[list[str], str]]] = {
    "migrate": ([], "only a database has a schema"),
    "threads import": (["FILE", "--new-ids"], "HTTP API does not support|connect directly"),
    "import cubepi": (["SQLITE"], "HTTP API does not support|connect directly"),
    "workers stacks": (["WORKER"], "has no port|own machine"),
}
"""The commands that need the servers or the machine of a worker, and what they say."""
LOCAL: Final = {"init", "dev", "demo", "worker", "api"}
"""These write files, use private servers, or are the processes of the deployment."""


def cubepi(path: Path) -> None:
    """Write a database of cubepi with one message."""
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE messages (id INTEGER PRIMARY KEY, thread_id TEXT, message_json TEXT)")
        database.execute("CREATE TABLE thread_extra (thread_id TEXT, extra_json TEXT)")
        database.execute("CREATE TABLE thread_pending_request (thread_id TEXT, request_json TEXT)")
        message = json.dumps({"role": "user", "content": [{"type": "text", "text": "hi"}]})
        database.execute("INSERT INTO messages (thread_id, message_json) VALUES ('t2', ?)", (message,))
        database.commit()


def test_every_command_has_a_place() -> None:
    assert set(commands()) == set(OVER_HTTP) | set(DIRECT) | LOCAL


async def test_every_command_works_over_https_or_says_why_not(
    app: FastAPI,
    client: Client,
    worker: Worker,
    key: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A1: the key is all that a command needs."""
    for name in [name for name in os.environ if name.startswith("RUNYARD_")]:
        monkeypatch.delenv(name)
    certificates = Certificates.make(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates.authority))
    monkeypatch.setenv("RUNYARD_WEBHOOK_SECRET", new_secret())
    monkeypatch.chdir(tmp_path)
    for thread, run, text in (("t", "r1", "say hello"), ("failing", "fails", "fail"), ("failing", "deleted", "fail")):
        await (await client.enqueue(thread, text, run)).result(BOUND)
    for thread, run in (("asking", "ask"), ("aborted", "ask"), ("cancelled", "ask"), ("unwanted", "unwanted")):
        await (await client.enqueue(thread, "color?", run)).result(BOUND)
    names: dict[str, str] = {"WORKER": (await client.workers())[0].worker_id, "FILE": str(tmp_path / "t.jsonl")}
    names["PROMPTS"] = str(tmp_path / "prompts.jsonl")
    (tmp_path / "prompts.jsonl").write_text('{"thread_id": "many", "message": "say hello", "run_id": "m1"}\n')
    names["SQLITE"] = f"sqlite:///{tmp_path}/threads.db"
    cubepi(tmp_path / "threads.db")
    with (tmp_path / "t.jsonl").open("wb") as file:
        await export_threads(client.backend, "t", file)
    failed: dict[str, Any] = {}
    async with serving(app, certificates.server) as url:
        monkeypatch.setenv("RUNYARD_POSTGRES_URL", url)
        monkeypatch.setenv("RUNYARD_API_KEY", key)

        async def runyard(command: str, arguments: list[str]) -> tuple[int, str, str]:
            capsys.readouterr()
            given = [names.get(argument, argument) for argument in arguments]
            code = await asyncio.to_thread(main, [*command.split(), *given])
            out, err = capsys.readouterr()
            return code, out, err

        for command, (arguments, reason) in DIRECT.items():
            code, out, err = await runyard(command, arguments)
            if code == exit_codes.Exit.OK or re.search(reason, out + err) is None or "Traceback" in err:
                failed[command] = code, out[-500:], err[-500:]
        for command, arguments in OVER_HTTP.items():
            shown = ["--json"] if command in ("keys create", "webhooks add") else []
            code, out, err = await runyard(command, [*arguments, *shown])
            if code != ENDS.get(command, exit_codes.Exit.OK):
                failed[command] = code, out[-500:], err[-500:]
            elif shown:
                made, _ = json.JSONDecoder().raw_decode(out, out.index("{"))  # after the server's log
                names |= {"KEY": made.get("key_id", ""), "WEBHOOK": made.get("webhook_id", "")}
        assert not failed
