"""The command line on the memory store: what it prints, and with which code it ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import typer
from structlog.testing import capture_logs

from runyard import App, Client, Message, Prompt, RunHandle, errors, new_id
from runyard.domain.states import RunStatus
from runyard.models import ROOT_ID, ErrorInfo, HitlRequest
from runyard.ports import commands
from runyard.ports.commands import AcceptRequest, Write
from runyard.ports.queries import RunFilter
from runyard.ports.refs import RunRef
from runyard.ports.stores import Backend
from runyard.ports.workers import BlockedLoop, WorkerInfo
from runyard.support import backend_urls, dev_file
from runyard.support.settings import Settings
from runyard.testing.scripted_agent import scripted
from runyard_api.cli import exit_codes
from runyard_api.cli.commands import enqueue
from runyard_api.cli.dev import servers
from runyard_api.cli.dev.app_files import AppFiles
from runyard_api.cli.main import app, main
from runyard_api.cli.view import graph, waiting
from runyard_api.http.settings import ApiSettings
from runyard_api.worker.process import warn_about_agents
from runyard_backends.memory.runs import MemoryRunStore

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def url() -> str:
    return f"memory://{new_id()}"


@pytest.fixture
def world(url: str) -> Iterator[Backend]:
    """The database that the commands of one test share: it lives as long as somebody holds it."""

    async def connect() -> Client:
        return await Client.connect(url)

    yield asyncio.run(connect()).backend


@pytest.fixture
def runyard(
    world: Backend, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, url: str
) -> Command:
    """Run a command; returns its exit code, standard output and standard error."""
    for name in [name for name in os.environ if name.startswith("RUNYARD_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RUNYARD_POSTGRES_URL", url)

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(list(arguments))
        out, err = capsys.readouterr()
        return code, out, err

    return run


def _messages(runyard: Command) -> list[dict[str, Any]]:
    """The messages of the thread ``t``."""
    items: list[dict[str, Any]] = json.loads(runyard("threads", "messages", "t")[1])["items"]
    return items


def serve(world: Backend, thread_id: str, text: str | None = "hi", *, ask: str | None = None) -> None:
    """Play a worker for the next run of a thread: answer with ``text`` or, for None, with no message; or ask."""
    asyncio.run(answer(world, thread_id, text, ask=ask))


async def answer(world: Backend, thread_id: str, text: str | None, *, ask: str | None) -> None:
    await world.workers.register(WorkerInfo(worker_id="hand", queues=["default"]))
    key = await world.threads.thread_key(thread_id)
    assert key is not None
    queued = await world.runs.runs(RunFilter(thread_id=thread_id, status=RunStatus.QUEUED))
    for run in reversed(queued.items):
        [claim] = await world.runs.claim("hand", [RunRef(key, run.run_id)])
        if claim.attempt is None:
            continue
        if ask:
            request = HitlRequest(payload={"question": ask}, thread_id=thread_id, run_id=run.run_id)
            await world.runs.suspend(Write(attempt=claim.attempt, first_event=3), [request])
        else:
            await world.runs.complete(
                [Write(attempt=claim.attempt, messages=[Message.assistant(text)] if text else [], first_event=3)]
            )


def fail(world: Backend, thread_id: str, error: ErrorInfo) -> None:
    """Play a worker for the queued run of a thread: fail it."""

    async def work() -> None:
        await world.workers.register(WorkerInfo(worker_id="hand", queues=["default"]))
        key = await world.threads.thread_key(thread_id)
        assert key is not None
        [run] = (await world.runs.runs(RunFilter(thread_id=thread_id, status=RunStatus.QUEUED))).items
        [claim] = await world.runs.claim("hand", [RunRef(key, run.run_id)])
        assert claim.attempt is not None
        await world.runs.fail(Write(attempt=claim.attempt, first_event=3), error)

    asyncio.run(work())


class TestTracebacks:
    def test_runs_show_and_attempts_print_the_class_and_the_traceback(self, runyard: Command, world: Backend) -> None:
        trace = "Traceback (most recent call last):\n  File \"app.py\", line 7, in refund\nKeyError: 'name'\x1b[31m\n"
        runyard("prompt", "t", "hi", "--run-id", "r")
        fail(world, "t", ErrorInfo(code="agent_error", message="'name'", details={"type": "KeyError"}, traceback=trace))
        for command in ("show", "attempts"):
            out = runyard("runs", command, "t", "r")[1]
            assert "KeyError: 'name'" in out and 'File "app.py", line 7, in refund' in out and "\x1b" not in out
        assert json.loads(runyard("runs", "show", "t", "r", "--json")[1])["error"]["traceback"] == trace

    def test_tracebacks_are_headed_by_the_number_of_their_attempt(self, runyard: Command, world: Backend) -> None:
        """The number is the same on every page of attempts."""
        runyard("prompt", "t", "hi", "--run-id", "r")
        for n in (1, 2):
            fail(world, "t", ErrorInfo(code="agent_error", message="no", traceback=f"Traceback {n}"))
            runyard("runs", "redrive", "r")
        fences = [one["fence"] for one in json.loads(runyard("runs", "attempts", "r", "--json")[1])["items"]]
        heads = [f"attempt {n} (fence {fence}):" for n, fence in enumerate(fences, 1)]
        for command in ("show", "attempts"):
            lines = runyard("runs", command, "r")[1].splitlines()
            assert [line for line in lines if "(fence " in line] == heads
        cursor = json.loads(runyard("runs", "attempts", "r", "--limit", "1", "--json")[1])["next"]
        assert heads[1] in runyard("runs", "attempts", "r", "--cursor", cursor)[1].splitlines()

    def test_a_run_names_its_child_and_the_command_that_shows_its_frames(self, runyard: Command, world: Backend) -> None:
        """R24, K3: The error of a child is shown by `runs show` of the child."""
        runyard("prompt", "t", "hello", "--run-id", "r")

        async def start_children() -> None:
            await world.workers.register(WorkerInfo(worker_id="hand", queues=["default"]))
            key = await world.threads.thread_key("t")
            assert key is not None
            [claim] = await world.runs.claim("hand", [RunRef(key, "r")])
            assert claim.attempt is not None
            for name in ("bad", "good"):
                job = claim.attempt.ref
                await world.runs.start_child(
                    claim.attempt, AcceptRequest(thread_id=f"c-{name}", run_id=f"{name}-1", input=Message.user("go"), job=job)
                )

        asyncio.run(start_children())
        fail(world, "c-bad", ErrorInfo(code="agent_error", message="no luck"))
        serve(world, "c-good")
        out = runyard("runs", "show", "t", "r")[1]
        rows = [" ".join(line.split()) for line in out.splitlines()]
        assert any("child c-bad failed" in row and "run bad-1" in row for row in rows)
        assert any("child c-good completed" in row and "run good-1" in row for row in rows)
        assert [row for row in rows if "see: " in row] == ["child bad-1 on c-bad is failed; see: runyard runs show bad-1"]

    def test_a_run_is_shown_by_the_beginning_of_its_id(self, runyard: Command, world: Backend) -> None:
        """R24: `runs` commands need no thread. A text that several ids begin with is refused, and so is an unknown one."""
        for run_id in ("abc1", "abd2"):
            runyard("prompt", f"t-{run_id}", "What is it?", "--run-id", run_id)
        fail(
            world, "t-abc1", ErrorInfo(code="agent_error", message="'x'", details={"type": "KeyError"}, traceback="Traceback 7")
        )
        code, out, _ = runyard("runs", "show", "abc")
        lines = [" ".join(line.split()) for line in out.splitlines()]
        assert code == 0 and lines[0] == "abc1 on t-abc1 failed" and "KeyError: 'x'" in out and out.count("Traceback 7") == 1
        assert any(re.match(r"times queued \d.* s, ran \d.* s", line) for line in lines), out
        assert any("message user What is it?" in line for line in lines) and any(
            "attempt hand failed" in line for line in lines
        )
        shown = json.loads(runyard("runs", "show", "abc", "--json")[1])
        assert shown["status"] == "failed" and [e["type"] for e in shown["timeline"]["entries"]] == ["attempt", "message"]
        for command in ("explain", "attempts", "redrive"):
            assert runyard("runs", command, "abc")[0] == 0, command
        code, out, err = runyard("runs", "show", "ab")
        assert (code, out) == (exit_codes.Exit.CONFLICT, "") and "abc1 on t-abc1" in err and "abd2 on t-abd2" in err
        code, out, err = runyard("runs", "show", "x")
        assert (code, out) == (exit_codes.Exit.NOT_FOUND, "") and "'x'" in err
        assert runyard("runs", "show", "a", "b", "c")[0] == exit_codes.Exit.USAGE

    def test_an_app_that_cannot_be_imported_is_shown_with_its_traceback(self, runyard: Command, tmp_path: Path) -> None:
        (tmp_path / "broken_app_8.py").write_text("import os\n\nKEY = os.environ['MISSING_8']\n")
        code, out, err = runyard("worker", "broken_app_8:app")
        assert (code, out) == (exit_codes.Exit.APP, "")
        assert f'File "{tmp_path / "broken_app_8.py"}", line 3, in <module>' in err
        assert err.splitlines()[-1].startswith("runyard: the import of broken_app_8:app failed at ")
        assert err.splitlines()[-1].endswith("broken_app_8.py:3: KeyError: 'MISSING_8'")

    def test_dev_shows_it_before_it_starts_servers(self, runyard: Command, tmp_path: Path) -> None:
        (tmp_path / "broken_app_7.py").write_text("print('loading')\nimport missing_7\n")
        code, _, err = runyard("dev", "broken_app_7:app")
        assert code == exit_codes.Exit.APP and not (tmp_path / ".runyard").exists()
        assert 'broken_app_7.py", line 2, in <module>' in err and "No module named 'missing_7'" in err.splitlines()[-1]


class TestNothingToServe:
    def test_a_worker_needs_servers(self, runyard: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The HTTP API serves callers. A worker and an API process connect to the servers themselves."""
        monkeypatch.setenv("RUNYARD_POSTGRES_URL", "http://localhost:9")
        for command in (("worker", "app:app"), ("api",)):
            code, _, err = runyard(*command)
            assert code == exit_codes.Exit.USAGE and err.count("\n") == 1
            assert "RUNYARD_POSTGRES_URL" in err and "RUNYARD_REDIS_URL" in err and "http://localhost:9" in err

    def test_an_app_without_agents_is_named(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "bare_app.py").write_text("from runyard import App\n\napp = App()\n")
        monkeypatch.chdir(tmp_path)
        assert AppFiles("bare_app:app").agents == []
        with capture_logs() as logs:
            warn_about_agents(App())
            warn_about_agents(App({"one": scripted}))
        [warning] = logs
        assert warning["event"] == "app_without_agents" and warning["log_level"] == "warning" and "App(" in warning["do"]

    @pytest.mark.parametrize(("names", "namespace"), [(["b", "a"], ""), (["b", "a"], "shop"), (["a", "default"], "shop")])
    def test_a_default_agent_that_depends_on_the_order_is_named(self, names: list[str], namespace: str) -> None:
        """L1: The order of imports may change between releases. The warning names the agent and the remedy."""
        with capture_logs() as logs:
            warn_about_agents(App(dict.fromkeys(names, scripted), namespace=namespace))
        if "default" in names:
            assert logs == []
        else:
            [warning] = logs
            assert warning["event"] == "default_agent_by_order" and warning["log_level"] == "warning"
            assert warning["agent"].removeprefix(f"{namespace}/") == "b" and "'default'" in warning["do"]


class TestExitCodes:
    def test_every_error_has_one(self) -> None:
        for cls in errors.BY_CODE.values():
            internal = cls.http_status == 500 and cls is not errors.ConfigurationError  # exit code of usage
            expected = exit_codes.Exit.INTERNAL if internal else None
            code = exit_codes.of_error(cls("x"))
            assert code is expected if expected else code not in (exit_codes.Exit.OK, exit_codes.Exit.INTERNAL), cls

    def test_every_code_has_a_meaning(self) -> None:
        assert set(exit_codes.MEANING) == set(exit_codes.Exit)

    @pytest.mark.parametrize(
        ("arguments", "code"),
        [
            (["prompt"], exit_codes.Exit.USAGE),
            (["nonsense"], exit_codes.Exit.USAGE),
            (["prompt", "t", "hello", "--priority", "urgent"], exit_codes.Exit.USAGE),
            (["prompt", "t", "hello", "--run-at", "tomorrow"], exit_codes.Exit.USAGE),
            (["prompt", "t", "hello", "--delay", "x"], exit_codes.Exit.USAGE),
            (["--url", "nothing://here", "prompt", "t", "hello"], exit_codes.Exit.USAGE),
            (["--url", "postgresql://localhost/x", "requests"], exit_codes.Exit.USAGE),
            (["respond", "t"], exit_codes.Exit.USAGE),
            (["respond", "t", "yes", "--approve"], exit_codes.Exit.USAGE),
            (["respond", "t", "[" * 100_000 + "]" * 100_000], exit_codes.Exit.USAGE),
            (["runs", "list", "--status", "lost"], exit_codes.Exit.USAGE),
            (["fork", "t", "--tag", "no-equals"], exit_codes.Exit.USAGE),
            (["migrate"], exit_codes.Exit.USAGE),
            (["threads", "show", "nowhere"], exit_codes.Exit.NOT_FOUND),
            (["threads", "tree", "nowhere"], exit_codes.Exit.NOT_FOUND),
            (["runs", "list", "--thread", "nowhere"], exit_codes.Exit.NOT_FOUND),
            (["requests", "--thread", "nowhere"], exit_codes.Exit.NOT_FOUND),
            (["runs", "show", "t", "r"], exit_codes.Exit.NOT_FOUND),
            (["runs", "watch", "t", "r"], exit_codes.Exit.NOT_FOUND),
            (["cancel", "t", "r"], exit_codes.Exit.NOT_FOUND),
            (["respond", "nowhere", "yes"], exit_codes.Exit.NOT_FOUND),
            (["fork", "nowhere"], exit_codes.Exit.NOT_FOUND),
            (["runs", "attempts", "t", "r"], exit_codes.Exit.NOT_FOUND),
            (["workers", "drain", "nobody"], exit_codes.Exit.NOT_FOUND),
            (["workers", "stacks", "nobody"], exit_codes.Exit.NOT_FOUND),
            (["webhooks", "redeliver", "nothing"], exit_codes.Exit.NOT_FOUND),
            (["webhooks", "remove", "nothing"], exit_codes.Exit.NOT_FOUND),
            (["keys", "revoke", "its-name"], exit_codes.Exit.NOT_FOUND),
            (["queues", "pause", ""], exit_codes.Exit.USAGE),
        ],
    )
    def test_a_failure_is_one_line_on_stderr(self, runyard: Command, arguments: list[str], code: int) -> None:
        ended, out, err = runyard(*arguments)
        assert ended == code
        assert out == ""
        assert err.startswith("runyard: ")
        assert err.count("\n") == 1
        assert "Traceback" not in err

    def test_conflict(self, runyard: Command) -> None:
        assert runyard("prompt", "t", "one", "--run-id", "r")[0] == exit_codes.Exit.OK
        assert runyard("prompt", "t", "two", "--run-id", "r")[0] == exit_codes.Exit.CONFLICT

    def test_timeout_leaves_the_run(self, runyard: Command) -> None:
        code, _, err = runyard("prompt", "t", "one", "--wait", "--wait-timeout", "0.05")
        assert code == exit_codes.Exit.TIMEOUT
        assert err == "runyard: the wait timed out; the run continues: no live worker serves queue default\n"

    def test_a_wait_says_after_a_moment_why_the_run_waits(
        self, runyard: Command, world: Backend, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """R12: the sentence of ``explain``. The last line has the sentence at the time limit, also if it has not changed."""
        monkeypatch.setattr("runyard_api.cli.view.waiting.EXPLAIN_SECONDS", 0.0)
        asyncio.run(world.workers.register(WorkerInfo(worker_id="w", queues=["default"], agents={"writer": "default"})))
        code, _, err = runyard("prompt", "t", "one", "--agent", "nope", "--wait", "--wait-timeout", "0.2")
        sentence = "no live worker of queue default serves agent nope"
        assert code == exit_codes.Exit.TIMEOUT
        assert err.splitlines() == [sentence, f"runyard: the wait timed out; the run continues: {sentence}"]

    def test_the_apps_of_a_command_have_its_namespace(self, runyard: Command, monkeypatch: pytest.MonkeyPatch) -> None:
        """L4: an app that ``worker``, ``dev`` or ``api`` makes, also in a child process."""
        made = list[str]()
        monkeypatch.setattr("runyard.app.load_app", lambda path: made.append(App().namespace))
        monkeypatch.setattr("runyard_api.worker.process.run_worker", lambda *_: None)
        monkeypatch.setenv("RUNYARD_NAMESPACE", "env")
        runyard("--namespace", "shop", "worker", "app:app")
        runyard("--namespace", "", "worker", "app:app")
        runyard("worker", "app:app")
        assert made == ["shop", "", "env"] and os.environ["RUNYARD_NAMESPACE"] == "env"

    def test_an_invalid_namespace_does_not_stop_the_help(self) -> None:
        """L4: no command makes an app before it is called."""
        environment = {**os.environ, "RUNYARD_NAMESPACE": "a/b"}
        command = [sys.executable, "-c", "from runyard_api.cli.main import main; main(['--version'])"]
        done = subprocess.run(command, env=environment, capture_output=True, check=True, text=True)
        assert done.stdout.startswith("runyard ")

    def test_the_agent_of_a_run_is_shown(self, runyard: Command, world: Backend) -> None:
        """L1, L2, L4: in the answer of ``prompt``, in the lists, and after a change."""
        worker = WorkerInfo(worker_id="w", queues=["shop"], agents={"shop/clerk": "shop"}, default_agent="shop/clerk")
        asyncio.run(world.workers.register(worker))
        code, _, err = runyard("--namespace", "shop", "prompt", "t", "one", "--run-id", "r1")
        assert code == 0 and err == "queued on thread t for agent shop/clerk; add --wait for the answer\n"
        code, _, err = runyard("prompt", "u", "one")
        assert code == 0 and err == "queued on thread u; add --wait for the answer\n"
        heading, line = runyard("runs", "list", "--thread", "t")[1].splitlines()
        assert heading.split()[:4] == ["RUN", "THREAD", "AGENT", "STATUS"] and line.split()[:4] == [
            "r1",
            "t",
            "shop/clerk",
            "queued",
        ]
        assert runyard("--namespace", "shop", "runs", "list", "--agent", "clerk")[1].splitlines()[1].startswith("r1")
        assert "shop/clerk" in runyard("threads", "list")[1] and "agent shop/clerk" in runyard("threads", "show", "t")[1]
        unserved = "no live worker serves agent shop/writer\n"
        assert runyard("--namespace", "shop", "threads", "update", "t", "--agent", "writer") == (0, "changed t\n", unserved)
        assert runyard("--namespace", "shop", "threads", "update", "t", "--agent", "clerk") == (0, "changed t\n", "")
        runyard("--namespace", "shop", "threads", "update", "t", "--agent", "writer")
        code, _, err = runyard("prompt", "v", "one", "--agent", "a/b")
        assert code == 0 and err.splitlines()[1:] == ["no live worker serves agent a/b"]
        assert json.loads(runyard("threads", "update", "t", "--title", "one", "--json")[1])["agent"] == "shop/writer"
        code, _, err = runyard("threads", "update", "t")
        assert code == exit_codes.Exit.USAGE and "--agent" in err

    def test_an_unexpected_error_is_one_line_too(self, runyard: Command, monkeypatch: pytest.MonkeyPatch) -> None:
        async def broken(*_: object, **__: object) -> None:
            raise ZeroDivisionError("oops")

        monkeypatch.setattr("runyard.support.backend_urls.connect", broken)
        assert runyard("requests")[0::2] == (exit_codes.Exit.INTERNAL, "runyard: ZeroDivisionError: oops\n")

    @pytest.mark.parametrize("arguments", [["keys", "list", "--json"], ["keys", "list"], ["keys", "--help"]])
    def test_a_reader_of_a_pipe_may_leave_early(
        self, runyard: Command, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
    ) -> None:
        runyard("keys", "create", "k")
        reader, writer = os.pipe()
        os.close(reader)
        with monkeypatch.context() as patch, contextlib.suppress(BrokenPipeError), os.fdopen(writer, "w", 1) as pipe:
            patch.setattr("sys.stdout", pipe)
            assert main(arguments) == exit_codes.Exit.OK

    def test_without_a_command_nothing_but_the_help_is_said(self, runyard: Command) -> None:
        code, out, err = runyard()
        assert (code, err) == (exit_codes.Exit.USAGE, "") and "Usage" in out
        assert runyard("runs")[::2] == (exit_codes.Exit.USAGE, "")

    def test_no_deployment_names_the_way_out(self, runyard: Command, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("RUNYARD_POSTGRES_URL")
        code, _, err = runyard("requests")
        assert code == exit_codes.Exit.USAGE
        assert "runyard dev" in err
        assert "RUNYARD_POSTGRES_URL" in err


class TestPrompt:
    def test_prints_the_id_only_so_that_it_can_be_piped(self, runyard: Command) -> None:
        assert runyard("prompt", "t", "hello", "--run-id", "mine")[1] == "mine\n"
        assert json.loads(runyard("prompt", "t", "hello", "--run-id", "mine", "--json")[1])["created"] is False

    def test_wait_prints_the_answer(self, runyard: Command, world: Backend) -> None:
        runyard("prompt", "t", "hello", "--run-id", "r")
        serve(world, "t", "hi [there]")
        code, out, _ = runyard("prompt", "t", "hello", "--run-id", "r", "--wait")
        assert (code, out) == (exit_codes.Exit.OK, "hi [there]\n")
        assert runyard("prompt", "t", "hello", "--run-id", "r", "--stream")[1] == "hi [there]\n"
        assert json.loads(runyard("prompt", "t", "hello", "--run-id", "r", "--wait", "--json")[1])["text"] == "hi [there]"

    def test_a_run_without_an_answer_says_so(self, runyard: Command, world: Backend) -> None:
        """An agent that only returns a value appends no message."""
        runyard("prompt", "t", "hello", "--run-id", "r")
        serve(world, "t", None)
        assert runyard("prompt", "t", "hello", "--run-id", "r", "--wait") == (0, "", "the run completed without an answer\n")
        assert json.loads(runyard("prompt", "t", "hello", "--run-id", "r", "--wait", "--json")[1])["text"] == ""
        assert runyard("prompt", "t", "hello", "--run-id", "r", "--stream")[2].endswith("the run completed without an answer\n")

    def test_a_suspended_run_says_what_it_asks(self, runyard: Command, world: Backend) -> None:
        """H10: and the inbox which agent asks."""
        prompt = ("prompt", "t", "hello", "--run-id", "r", "--agent", "planner")
        runyard(*prompt)
        serve(world, "t", ask="really?")
        code, out, err = runyard(*prompt, "--wait")
        assert (code, out) == (exit_codes.Exit.SUSPENDED, "")
        assert "really?" in err
        assert "runyard respond t" in err
        [request] = json.loads(runyard("requests", "--json")[1])["items"]
        assert request["payload"] == {"question": "really?"}
        listed = runyard("requests")[1]
        assert "planner" in listed and "really?" in listed
        assert runyard("respond", "t", "yes", "--request", request["request_id"])[0] == exit_codes.Exit.OK
        assert runyard("respond", "t", "no", "--request", request["request_id"])[0] == exit_codes.Exit.CONFLICT

    def test_h8_abort_gives_up_what_waits(self, runyard: Command, world: Backend) -> None:
        runyard("prompt", "t", "hello", "--run-id", "r")
        assert runyard("abort", "t", "too late")[:2] == (exit_codes.Exit.OK, "nothing waits\n")
        serve(world, "t", ask="really?")
        assert runyard("abort", "t", "too late")[:2] == (exit_codes.Exit.OK, "aborted r\n")
        assert json.loads(runyard("abort", "t", "too late", "--json")[1]) is None

    def test_a_cancelled_run_is_a_failed_one(self, runyard: Command) -> None:
        runyard("prompt", "t", "hello", "--run-id", "r")
        assert runyard("cancel", "t", "r")[1] == "cancelled\n"
        assert runyard("prompt", "t", "hello", "--run-id", "r", "--wait")[0] == exit_codes.Exit.FAILED_RUN

    def test_runs_cancel_cancels_several_runs_by_the_beginnings_of_their_ids(self, runyard: Command, world: Backend) -> None:
        """R10: Runs of several threads are cancelled. A run that has ended is reported, and changes nothing for the others."""
        for run_id in ("first", "second", "third"):
            runyard("prompt", f"t-{run_id}", "hello", "--run-id", run_id)
        code, out, _ = runyard("runs", "cancel", "first", "sec", "second")
        assert (code, out) == (exit_codes.Exit.OK, "first  cancelled\nsecond  cancelled\n")
        serve(world, "t-third")
        runyard("prompt", "t-fourth", "hello", "--run-id", "fourth")
        code, out, _ = runyard("runs", "cancel", "third", "fourth")
        assert code == exit_codes.Exit.CONFLICT
        assert re.fullmatch(r"third  not cancelled: .*completed.*\nfourth  cancelled\n", out)
        shown = json.loads(runyard("runs", "cancel", "third", "fourth", "--json")[1])
        assert [(run["run_id"], run["status"]) for run in shown] == [("third", "completed"), ("fourth", "cancelled")]

    def test_runs_cancel_with_an_unknown_id_cancels_nothing(self, runyard: Command) -> None:
        runyard("prompt", "t", "hello", "--run-id", "known")
        assert runyard("runs", "cancel", "known", "absent")[0] == exit_codes.Exit.NOT_FOUND
        assert json.loads(runyard("runs", "list", "--json")[1])["items"][0]["status"] == "queued"

    def test_runs_cancel_keeps_the_messages_if_asked(self, runyard: Command, world: Backend) -> None:
        runyard("prompt", "t", "hello", "--run-id", "r")
        serve(world, "t", ask="really?")
        assert runyard("runs", "cancel", "r", "--keep")[:2] == (exit_codes.Exit.OK, "r  cancelled\n")
        assert [message["content"][0]["text"] for message in _messages(runyard)] == ["hello"]

    def test_a_prompt_has_metadata_and_a_webhook(self, runyard: Command, world: Backend) -> None:
        """R11: Pairs and objects of --metadata are one object. `runs show` prints it."""
        given = ["--metadata", "order=4711", "--metadata", '{"size": {"cm": 5}}', "--metadata", "note=a=b"]
        hook = "https://hooks.example/x"
        code, *_ = runyard("prompt", "t", "hello", "--run-id", "r", *given, "--webhook", hook)
        assert code == exit_codes.Exit.OK
        run = asyncio.run(world.runs.run("t", "r"))
        assert run is not None and run.options.webhook == hook
        assert run.metadata == {"order": "4711", "size": {"cm": 5}, "note": "a=b"}
        assert "4711" in runyard("runs", "show", "r")[1]

    @pytest.mark.parametrize(
        ("given", "words"),
        [
            (["--metadata", "order"], "--metadata takes KEY=VALUE; got 'order'"),
            (["--metadata", "=1"], "--metadata takes KEY=VALUE"),
            (["--metadata", '{"a": '], "--metadata takes a JSON object"),
            (["--metadata", "a=1", "--metadata", '{"a": 2}'], "--metadata has 'a' twice; give each key once"),
            (["--webhook", "ftp://hooks.example"], "http"),
        ],
    )
    def test_bad_metadata_and_webhooks_are_refused(self, runyard: Command, given: list[str], words: str) -> None:
        code, _, err = runyard("prompt", "t", "hello", *given)
        assert code == exit_codes.Exit.USAGE and words in err

    def test_the_environment_gives_settings_and_no_options_of_one_call(
        self, runyard: Command, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("RUNYARD_RUN_ID", "from-env")
        monkeypatch.setenv("RUNYARD_TENANT", "b")
        assert runyard("prompt", "t", "hello", "--run-id", "r")[1] == "r\n"
        assert runyard("prompt", "u", "hello")[1] != "from-env\n"
        monkeypatch.delenv("RUNYARD_TENANT")
        assert runyard("runs", "show", "t", "r")[0] == exit_codes.Exit.NOT_FOUND


class TestForkWithAPrompt:
    """`fork --message … --wait` ends like `prompt --wait`."""

    @pytest.fixture
    def fork(self, runyard: Command, world: Backend, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str, str]]:
        """Fork a thread with a prompt and wait, while a worker answers with ``text`` or asks a question."""
        runyard("prompt", "t", "hi", "--run-id", "r1")
        serve(world, "t", "hello")
        follow = waiting.follow

        def command(*options: str, text: str | None = "forked", ask: str | None = None) -> tuple[int, str, str]:
            async def served(*arguments: Any, **named: Any) -> None:
                await answer(world, "t2", text, ask=ask)
                await follow(*arguments, **named)

            monkeypatch.setattr(waiting, "follow", served)
            return runyard("fork", "t", "t2", "--message", "and then?", "--wait", *options)

        return command

    def test_the_answer_is_printed(self, fork: Callable[..., tuple[int, str, str]]) -> None:
        code, out, err = fork()
        assert (code, out) == (exit_codes.Exit.OK, "forked\n") and "t2" in err

    def test_json_is_that_of_prompt(self, fork: Callable[..., tuple[int, str, str]]) -> None:
        code, out, _ = fork("--json", "--run-id", "f1")
        found = json.loads(out)
        assert code == exit_codes.Exit.OK and set(found) == {"run", "text", "messages", "requests"}
        assert (found["text"], found["run"]["thread_id"], found["run"]["run_id"]) == ("forked", "t2", "f1")

    def test_a_suspended_run_says_what_it_asks(self, fork: Callable[..., tuple[int, str, str]]) -> None:
        code, out, err = fork(ask="really?")
        assert (code, out) == (exit_codes.Exit.SUSPENDED, "") and "really?" in err and "runyard respond t2" in err

    def test_the_wait_for_the_cut_has_a_time_limit(self, runyard: Command) -> None:
        runyard("prompt", "t", "hi", "--run-id", "r1")
        code, out, err = runyard("fork", "t", "t2", "--after", "r1", "--wait", "--message", "m", "--wait-timeout", "0.05")
        assert (code, out) == (exit_codes.Exit.TIMEOUT, "") and "run at the cut" in err and err.count("\n") == 1

    def test_the_wait_for_the_answer_has_the_rest_of_the_time(self, runyard: Command, world: Backend) -> None:
        runyard("prompt", "t", "hi")
        serve(world, "t", "hello")
        code, out, err = runyard("fork", "t", "t2", "--message", "m", "--wait", "--wait-timeout", "0.2")
        assert (code, out) == (exit_codes.Exit.TIMEOUT, "") and "waiting for a free worker" in err.splitlines()[-1]

    def test_without_a_message_the_id_is_printed(self, runyard: Command, world: Backend) -> None:
        runyard("prompt", "t", "hi", "--run-id", "r1")
        serve(world, "t", "hello")
        assert runyard("fork", "t", "t2", "--wait")[:2] == (exit_codes.Exit.OK, "t2\n")
        assert runyard("fork", "t", "t3", "--message", "m")[:2] == (exit_codes.Exit.OK, "t3\n")


class TestReads:
    def test_m3_messages_are_printed_in_a_format_with_what_it_lacks(self, runyard: Command, world: Backend) -> None:
        """M1, M3: and an unknown format is refused."""
        message = Message.user("hi", metadata={"a": 1})
        asyncio.run(world.threads.store_message("t", message))
        code, printed, _ = runyard("threads", "messages", "t", "--format", "openai")
        assert code == 0
        assert json.loads(printed) == {
            "items": [{"role": "user", "content": "hi"}],
            "message_ids": [message.id],
            "losses": [
                {
                    "format": "native",
                    "path": "/metadata",
                    "what": "the format has no metadata of a message",
                    "dropped": True,
                    "message_id": message.id,
                }
            ],
            "next": None,
        }
        assert runyard("threads", "messages", "t", "--format", "odd")[0] != 0

    def test_every_read_speaks_json(self, runyard: Command, world: Backend) -> None:
        runyard("prompt", "t", "hello", "--run-id", "r")
        serve(world, "t")
        runyard("fork", "t", "f", "--title", "a fork", "--tag", "k=v")
        for arguments, found in (
            (("threads", "list"), lambda data: {item["thread_id"] for item in data["items"]} == {"t", "f"}),
            (("threads", "list", "--parent", "t"), lambda data: data["items"][0]["tags"]["k"] == "v"),
            (("threads", "show", "f"), lambda data: [one["role"] for one in data["messages"]] == ["user", "assistant"]),
            (("threads", "tree", "f"), lambda data: len(data["turns"]) == 1 and len(data["threads"]) == 2),
            (("runs", "list"), lambda data: data["items"][0]["run_id"] == "r"),
            (("runs", "show", "t", "r"), lambda data: data["status"] == "completed"),
            (("runs", "explain", "t", "r"), lambda data: isinstance(data["explanation"], str)),
            (("requests",), lambda data: data["items"] == []),
            (("runs", "attempts", "t", "r"), lambda data: [one["outcome"] for one in data["items"]] == ["completed"]),
            (("runs", "dead"), lambda data: data["items"] == []),
            (("workers", "list"), lambda data: data["items"][0]["state"] in ("live", "silent")),
            (("queues", "list"), lambda data: data["items"][0]["workers"] == 1),
            (
                ("doctor",),
                lambda data: data["ok"] and {one["source"] for one in data["settings"]} >= {"environment", "default"},
            ),
        ):
            code, out, err = runyard(*arguments, "--json")
            assert (code, err) == (exit_codes.Exit.OK, ""), arguments
            assert found(json.loads(out)), arguments

    def test_watch_as_json_is_a_line_per_event(self, runyard: Command, world: Backend) -> None:
        runyard("prompt", "t", "hello", "--run-id", "r")
        serve(world, "t")
        code, out, _ = runyard("runs", "watch", "t", "r", "--json")
        assert code == exit_codes.Exit.OK
        assert [json.loads(line)["type"] for line in out.splitlines()][-1] == "run.completed"

    def test_lists_say_when_they_are_empty(self, runyard: Command) -> None:
        assert runyard("threads", "list")[2] == "no threads\n"
        assert runyard("requests")[2] == "no requests wait for a human\n"

    def test_list_continues_after_its_cursor(self, runyard: Command) -> None:
        for n in range(3):
            runyard("prompt", f"t{n}", "hello")
        first = json.loads(runyard("threads", "list", "--limit", "2", "--json")[1])
        rest = json.loads(runyard("threads", "list", "--limit", "2", "--cursor", first["next"], "--json")[1])
        assert len(first["items"]) == 2
        assert len(rest["items"]) == 1

    def test_show_marks_the_turn_under_way(self, runyard: Command, world: Backend) -> None:
        """B2: the messages of a run that waits for a human are shown, with its status."""
        runyard("prompt", "t", "hello")
        serve(world, "t", "hi")
        runyard("prompt", "t", "which colour?")
        serve(world, "t", ask="colour?")
        lines = [" ".join(line.split()) for line in runyard("threads", "show", "t")[1].splitlines()]
        assert lines == ["t", "user hello", "assistant hi", "user (suspended) which colour?"]
        shown = json.loads(runyard("threads", "messages", "t")[1])["items"]
        assert [message["run_status"] for message in shown] == ["completed", "completed", "suspended"]
        assert "which colour? suspended" in runyard("threads", "tree", "t")[1]

    def test_tree_draws_forks_and_branches(self, runyard: Command, world: Backend) -> None:
        for n, text in enumerate(("one", "two", "three")):
            runyard("prompt", "t", text, "--run-id", f"r{n}")
            serve(world, "t", text.upper())
        runyard("fork", "t", "f", "--after", "r0")
        runyard("prompt", "f", "else")
        serve(world, "f", "ELSE")
        lines = [re.sub(r"\s+", " ", line).strip() for line in runyard("threads", "tree", "f")[1].splitlines()]
        assert lines == [
            "● one → ONE",
            "├─╮",
            "● │ two → TWO",
            "● │ ‹t› three → THREE",
            "● ‹f› else → ELSE",
        ]

    def test_store_and_branches(self, runyard: Command) -> None:
        """B1, B2, B3: messages without a run, on branches, and their paths in both directions."""
        one, two = (runyard("threads", "store", "t", text)[1].strip() for text in ("one", "two"))
        assert runyard("threads", "store", "t", "late", "--expected-leaf", one)[0] == exit_codes.Exit.CONFLICT
        blob = json.dumps({"role": "assistant", "content": "side"})
        side = runyard("threads", "store", "t", blob, "--format", "openai", "--parent", one)[1].strip()
        leaves = json.loads(runyard("threads", "branches", "t", "--json")[1])["items"]
        assert [(leaf["message_id"], leaf["depth"], leaf["head"], leaf["trunk"]) for leaf in leaves] == [
            (two, 2, False, True),
            (side, 2, True, False),
        ]
        assert "head" in runyard("threads", "branches", "t")[1]
        assert "no labelled branches" in runyard("threads", "branches", "t", "--labelled")[2]
        assert runyard("threads", "label", "t", "side")[0] == runyard("threads", "label", "t", "main", "--message", one)[0] == 0
        assert runyard("threads", "label", "t", "side", "--remove")[0] == 0
        labelled = json.loads(runyard("threads", "branches", "t", "--labelled", "--json")[1])["items"]
        assert [(leaf["message_id"], leaf["labels"]) for leaf in labelled] == [(two, ["main"])]
        assert "main" in runyard("threads", "branches", "t")[1]
        assert runyard("threads", "label", "t", "x", "--message", one, "--remove")[0] == exit_codes.Exit.USAGE
        for arguments, expected in (((), [one, side]), (("--leaf", two, "--newest-first"), [two, one])):
            found = json.loads(runyard("threads", "messages", "t", *arguments)[1])
            assert found["message_ids"] == expected
        assert "side" in runyard("threads", "show", "t")[1]
        assert runyard("threads", "store", "t", "x", "--role", "robot")[0] == exit_codes.Exit.USAGE
        assert runyard("threads", "store", "t", "{", "--format", "openai")[0] == exit_codes.Exit.USAGE

    def test_regenerate_edit_and_retry(self, runyard: Command, world: Backend) -> None:
        """B5: one command each, for the first message of the thread too."""
        runyard("prompt", "t", "one", "--run-id", "r1")
        serve(world, "t", "ONE")
        assert runyard("regenerate", "t", "--run-id", "r2")[1] == "r2\n"
        serve(world, "t", "EINS")
        assert [m["content"][0]["text"] for m in _messages(runyard)] == ["one", "EINS"]
        runyard("regenerate", "t", "two")
        serve(world, "t", "TWO")
        assert [m["content"][0]["text"] for m in _messages(runyard)] == ["two", "TWO"]
        assert runyard("regenerate", "none")[0] == exit_codes.Exit.NOT_FOUND

    def test_lineage_and_diff(self, runyard: Command) -> None:
        """F6, F7, F12: a fork at a number with options; its ancestors and forks, and the messages in which threads differ."""
        for text in ("one", "two"):
            runyard("threads", "store", "t", text)
        options = ("--at-seq", "1", "--metadata", '{"why": "test"}', "--keep-usage", "--title", "T", "--tag", "k=v")
        assert runyard("fork", "t", "f", *options)[0] == exit_codes.Exit.OK
        runyard("threads", "store", "f", "else")
        found = json.loads(runyard("threads", "lineage", "f", "--json")[1])
        assert [one["thread_id"] for one in found["ancestors"]] == ["t"]
        fork = found["thread"]
        assert (fork["extra"], fork["title"], fork["tags"]) == ({"fork": {"why": "test"}}, "T", {"k": "v", "title": "T"})
        rows = [line.split()[:2] for line in runyard("threads", "lineage", "t")[1].splitlines()[1:]]
        assert rows == [["thread", "t"], ["fork", "f"]]
        lines = [" ".join(line.split()) for line in runyard("threads", "diff", "t", "f")[1].splitlines()]
        assert lines == ["common ancestor: t", "t", "user two", "f", "user else"]
        assert json.loads(runyard("threads", "diff", "t", "f", "--json")[1])["common_ancestor"] == "t"
        for wrong in ("[]", "{"):
            assert runyard("fork", "t", "g", "--metadata", wrong)[0] == exit_codes.Exit.USAGE

    def test_lineage_says_how_to_read_on(self, runyard: Command) -> None:
        """F12: the cursor of the forks is one of `threads list`, and further ancestors are those of the next ancestor."""
        runyard("threads", "store", "t", "one")
        for source, fork in (("t", "f"), ("f", "g"), ("g", "h"), ("f", "i")):
            assert runyard("fork", source, fork, "--at-seq", "1")[0] == exit_codes.Exit.OK
        code, _, notes = runyard("threads", "lineage", "g", "--limit", "1")
        assert code == exit_codes.Exit.OK and "more: threads lineage t" in notes
        continued = re.search("more: (threads list .*)", runyard("threads", "lineage", "f", "--limit", "1")[2])
        assert continued is not None
        [last] = json.loads(runyard(*continued[1].split(), "--json")[1])["items"]
        assert last["thread_id"] == "i"

    def test_tree_draws_several_first_messages(self, runyard: Command, world: Backend) -> None:
        """B5: an edited first message begins a line of its own."""
        runyard("prompt", "t", "one")
        serve(world, "t", "ONE")
        assert runyard("prompt", "t", "two", "--parent", ROOT_ID)[0] == exit_codes.Exit.OK
        serve(world, "t", "TWO")
        lines = [re.sub(r"\s+", " ", line).strip() for line in runyard("threads", "tree", "t")[1].splitlines()]
        assert lines == ["● one → ONE", "● ‹t› two → TWO"]


class TestOperations:
    def test_pause_explain_resume(self, runyard: Command, world: Backend) -> None:
        """R12."""
        assert runyard("queues", "pause", "default")[1].startswith("paused since ")
        runyard("prompt", "t", "hello", "--run-id", "r")
        serve(world, "t")
        assert "queue default is paused since" in runyard("runs", "explain", "t", "r")[1]
        assert "paused since" in runyard("queues", "list")[1]
        assert runyard("queues", "resume", "default")[1] == "resumed\n"
        assert runyard("queues", "resume", "default")[1] == "the queue was not paused\n"
        serve(world, "t")
        assert json.loads(runyard("runs", "show", "t", "r", "--json")[1])["status"] == "completed"

    def test_drain_by_part_of_an_id(self, runyard: Command, world: Backend) -> None:
        for worker in ("host-1-aa", "host-2-bb"):
            asyncio.run(world.workers.register(WorkerInfo(worker_id=worker, queues=["default"], slots=5)))
        assert runyard("workers", "drain", "host")[0] == exit_codes.Exit.USAGE
        assert runyard("workers", "drain", "bb")[1] == "host-2-bb\n"
        states = {one["worker_id"]: one["state"] for one in json.loads(runyard("workers", "list", "--json")[1])["items"]}
        assert states == {"host-1-aa": "live", "host-2-bb": "draining"}
        assert "0/5" in runyard("workers", "list")[1]

    def test_a_dead_worker_has_the_troubles_of_its_end(self, runyard: Command, world: Backend) -> None:
        """A worker that was declared dead is neither blocked nor without Redis any more."""

        async def bury() -> None:
            await world.workers.register(WorkerInfo(worker_id="w", queues=["default"]))
            await world.workers.report_block("w", BlockedLoop(30.4, "app.py:10", "Stack"))
            await world.workers.report_redis("w", "no answer in time")
            (worker,) = await world.workers.workers()
            assert worker.heartbeat_at is not None
            assert await world.workers.mark_dead("w", worker.heartbeat_at)

        asyncio.run(bury())
        lines = runyard("workers", "list")[1].splitlines()
        assert "dead" in lines[1]
        assert lines[2:] == [
            "w: main loop was blocked at app.py:10 when it was declared dead",
            "w: did not reach Redis when it was declared dead: no answer in time",
        ]

    def test_a_worker_without_a_port_says_how_to_get_its_stacks(self, runyard: Command, world: Backend) -> None:
        asyncio.run(world.workers.register(WorkerInfo(worker_id="host-1-aa", queues=["default"])))
        code, _, err = runyard("workers", "stacks", "aa")
        assert code == exit_codes.Exit.UNAVAILABLE
        assert "RUNYARD_METRICS_PORT" in err and "SIGUSR1" in err

    def test_the_history_of_a_run(self, runyard: Command, world: Backend) -> None:
        runyard("prompt", "t", "hello", "--run-id", "r")
        assert runyard("runs", "attempts", "t", "r")[2] == "no worker has taken it yet\n"
        serve(world, "t")
        head, line = runyard("runs", "attempts", "t", "r")[1].splitlines()
        assert head.split() == ["ATTEMPT", "FENCE", "OUTCOME", "STARTED", "LASTED", "WORKER", "ERROR"]
        assert line.split()[0] == "1"
        assert "completed" in line and "hand" in line

    def test_the_doctor_fails_without_workers(self, runyard: Command) -> None:
        code, out, _ = runyard("doctor")
        assert code == exit_codes.Exit.FAILED_RUN
        assert "✗ workers" in out and "runyard worker MODULE:APP" in out

    def test_the_doctor_names_a_setting_that_is_wrong(self, runyard: Command, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("RUNYARD_SLOTS", "many")
        code, out, _ = runyard("doctor")
        assert code == exit_codes.Exit.FAILED_RUN
        assert "✗ settings" in out and "RUNYARD_SLOTS" in out


class TestTroubleOfDev:
    """A `runyard dev` that has lost its worker records the reason in its file. Commands that use the file say it."""

    TROUBLE = "the worker of `runyard dev` ended with code 8: the import of app:app failed at app.py:3: KeyError: 'K'"
    SHARED = "shared-memory://x"

    @pytest.fixture
    def _dev(self, runyard: Command, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        async def connect(_: str, *, tenant: str, redis: str = "") -> Backend:
            return (await Client.connect(url, tenant=tenant)).backend

        backend_urls.register(self.SHARED.partition(":")[0], connect)
        monkeypatch.delenv("RUNYARD_POSTGRES_URL")
        folder = tmp_path / dev_file.FOLDER
        folder.mkdir(mode=0o700)
        with dev_file.locked(folder):
            dev_file.write(folder, dev_file.Deployment(os.getpid(), self.SHARED, "redis://x", "app:app", self.TROUBLE))
            yield

    @pytest.mark.usefixtures("_dev")
    def test_commands_that_explain_a_run_say_it(self, runyard: Command, world: Backend) -> None:
        sentence = f"no live worker serves queue default; {self.TROUBLE}"
        _, _, err = runyard("prompt", "t", "hi", "--run-id", "r", "--wait", "--wait-timeout", "0.05")
        assert err == f"runyard: the wait timed out; the run continues: {sentence}\n"
        assert runyard("runs", "explain", "r")[1] == f"{sentence}\n"
        assert json.loads(runyard("runs", "explain", "r", "--json")[1])["explanation"] == sentence
        assert f"\n{sentence}\n" in runyard("runs", "show", "r")[1]
        serve(world, "t")
        assert "runyard dev" not in runyard("runs", "explain", "r")[1]

    @pytest.mark.usefixtures("_dev")
    @pytest.mark.parametrize("command", [("runs", "explain"), ("runs", "show"), ("prompt", "t", "hi", "--run-id"), ("doctor",)])
    def test_its_text_does_not_drive_the_terminal(
        self, runyard: Command, world: Backend, tmp_path: Path, command: tuple[str, ...]
    ) -> None:
        """It has the message of an error of the app."""
        trouble = "ended\x1b]0;owned\x07\x1b[2J\nFORGED \u202e[red]x[/red]\ud800"
        deployment = dev_file.Deployment(os.getpid(), self.SHARED, "redis://x", "app:app", trouble)
        dev_file.write(tmp_path / dev_file.FOLDER, deployment)
        runyard("prompt", "t", "hi", "--run-id", "r")
        ids = () if command == ("doctor",) else ("r",)
        waits = ("--wait", "--wait-timeout", "0.05") if command[0] == "prompt" else ()
        _, out, err = runyard(*command, *ids, *waits)
        assert "[red]x[/red]" in out + err and "ended" in out + err
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\ud800-\udfff]|^FORGED", out + err, re.MULTILINE)

    @pytest.mark.usefixtures("_dev")
    def test_a_dev_that_stops_meanwhile_does_not_hide_the_sentence(
        self, runyard: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        runyard("prompt", "t", "hi", "--run-id", "r")
        explain = MemoryRunStore.explain

        async def last(self: MemoryRunStore, thread_id: str, run_id: str) -> str:
            dev_file.remove(tmp_path / dev_file.FOLDER)
            return await explain(self, thread_id, run_id)

        monkeypatch.setattr(MemoryRunStore, "explain", last)
        assert runyard("runs", "explain", "r") == (0, "no live worker serves queue default\n", "")

    @pytest.mark.usefixtures("_dev")
    def test_a_wait_that_times_out_reads_the_run_once_after_its_time(
        self, runyard: Command, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        reads = list[str]()
        for name in ("run", "explain"):
            read = getattr(MemoryRunStore, name)

            async def counted(self: MemoryRunStore, *ids: str, name: str = name, read: Any = read) -> Any:
                reads.append(name)
                return await read(self, *ids)

            monkeypatch.setattr(MemoryRunStore, name, counted)
        assert self.TROUBLE in runyard("prompt", "t", "hi", "--wait", "--wait-timeout", "0.05")[2]
        assert reads[reads.index("explain") :] == ["explain"]

    @pytest.mark.usefixtures("_dev")
    def test_the_doctor_fails(self, runyard: Command, tmp_path: Path) -> None:
        code, out, _ = runyard("doctor")
        assert code == exit_codes.Exit.FAILED_RUN and self.TROUBLE in out and "correct the app" in out
        dev_file.write(tmp_path / dev_file.FOLDER, dev_file.Deployment(os.getpid(), self.SHARED, "redis://x", "app:app"))
        assert "ended with code" not in runyard("doctor")[1]

    @pytest.mark.usefixtures("_dev")
    def test_another_deployment_is_not_concerned(self, runyard: Command, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("RUNYARD_POSTGRES_URL", f"memory://{new_id()}")
        assert "ended with code" not in runyard("doctor")[1]


class TestGraph:
    @staticmethod
    def turn(key: str, parent: str | None = None, thread: str = "t", status: str = "completed") -> graph.Turn:
        made = datetime(2030, 1, 1, tzinfo=UTC) + timedelta(seconds=int(key))
        return graph.Turn(key=key, thread_id=thread, created_at=made, parent=parent, status=status)

    def lanes(self, *turns: graph.Turn, full: bool = True) -> list[str]:
        return [row.lanes for row in graph.draw(turns, full=full)]

    def test_graph_of_one_conversation_has_one_lane(self) -> None:
        assert self.lanes(self.turn("1"), self.turn("2", "1")) == ["●", "●"]

    def test_three_heirs_and_a_crossing(self) -> None:
        turns = [
            self.turn("1"),
            self.turn("2", "1"),
            self.turn("3", "1", "f"),
            self.turn("4", "1", "g"),
            self.turn("5", "2"),
            self.turn("6", "2", "h"),
            self.turn("7", "3", "f"),
            self.turn("8", "4", "g"),
        ]
        assert self.lanes(*turns) == [
            "●",
            "├─┬─╮",
            "● │ │",
            "├─┼─┼─╮",
            "│ ● │ │",
            "│ │ ● │",
            "● │ │ │",
            "  │ │ ●",
            "  ● │",
            "    ●",
        ]

    def test_a_lane_that_ended_is_used_again(self) -> None:
        turns = [self.turn("1"), self.turn("2", "1", "f"), self.turn("3", "1"), self.turn("4", "3"), self.turn("5", "3", "g")]
        assert self.lanes(*turns) == ["●", "├─╮", "│ ●", "●", "├─╮", "● │", "  ●"]

    def test_a_failed_turn_is_a_side_leaf(self) -> None:
        turns = [self.turn("1"), self.turn("2", "1", status="failed"), self.turn("3", "1")]
        assert self.lanes(*turns) == ["●", "├─╮", "│ ✗", "●"]

    def test_long_stretches_are_shortened(self) -> None:
        turns = [self.turn("0"), *(self.turn(str(n), str(n - 1)) for n in range(1, 30))]
        rows = graph.draw(turns)
        assert sum(row.hidden for row in rows) + sum(row.turn is not None for row in rows) == 30
        assert len(rows) == 8
        assert len(graph.draw(turns, full=True)) == 30

    def test_a_turn_whose_parent_is_unknown_starts_a_line(self) -> None:
        assert self.lanes(self.turn("5", "gone")) == ["●"]


class TestDelete:
    def test_a_thread_with_a_live_run_is_deleted_only_with_cancel(self, runyard: Command) -> None:
        runyard("prompt", "t", "hello")
        assert runyard("threads", "delete", "t")[0] == exit_codes.Exit.CONFLICT
        assert runyard("threads", "delete", "t", "--cancel")[:2] == (exit_codes.Exit.OK, "deleted\n")
        assert runyard("threads", "show", "t")[0] == exit_codes.Exit.NOT_FOUND
        assert runyard("threads", "delete", "t")[0] == exit_codes.Exit.NOT_FOUND

    def test_forks_stay_unless_they_are_named_and_show_what_is_not_erased(self, runyard: Command, world: Backend) -> None:
        for source, option, left in (("a", "", "secret"), ("b", "--erase", ""), ("c", "--forks", None)):
            runyard("prompt", source, "secret")
            serve(world, source)
            runyard("fork", source, f"{source}2")
            assert runyard("threads", "delete", source, *([option] if option else []))[0] == exit_codes.Exit.OK
            code, out, _ = runyard("threads", "show", f"{source}2", "--json")
            assert code == (exit_codes.Exit.NOT_FOUND if left is None else exit_codes.Exit.OK)
            assert ("secret" in out) == bool(left)
        assert runyard("threads", "delete", "a2", "--forks", "--erase")[0] == exit_codes.Exit.USAGE


class TestInit:
    def test_makes_a_project_that_loads(self, runyard: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        assert runyard("init", "shop")[0] == exit_codes.Exit.OK
        written = {path.name: path.read_text() for path in (tmp_path / "shop").iterdir()}
        assert written.keys() == {
            "app.py",
            "README.md",
            "requirements.txt",
            "Dockerfile",
            ".dockerignore",
            ".env.example",
            ".gitignore",
        }
        assert not [name for name, text in written.items() if re.search(r"\{(project|version)\}", text)]
        variables = re.findall(r"^#? ?(RUNYARD_\w+)=", written[".env.example"], re.MULTILINE)
        assert {"RUNYARD_POSTGRES_URL", "RUNYARD_REDIS_URL"} <= set(variables), variables
        known = {f"RUNYARD_{name.upper()}" for name in (*Settings.model_fields, *ApiSettings.model_fields)}
        assert set(variables) <= known | {"RUNYARD_WEBHOOK_SECRET"}
        assert re.fullmatch(r"runyard\[http\]==\d+\.\d+\S*\n", written["requirements.txt"])
        assert {".env", ".runyard/"} <= set(written[".dockerignore"].split()), "secrets and data stay out of the image"
        from runyard.app import App

        space: dict[str, object] = {"__name__": "starter"}
        exec(compile((tmp_path / "shop" / "app.py").read_text(), "app.py", "exec"), space)
        assert isinstance(space["app"], App)

    def test_overwrites_nothing(self, runyard: Command, tmp_path: Path) -> None:
        (tmp_path / "app.py").write_text("mine")
        assert runyard("init", ".")[0] == exit_codes.Exit.USAGE
        assert (tmp_path / "app.py").read_text() == "mine"
        (tmp_path / "file").write_text("")
        assert runyard("init", "file")[0] == exit_codes.Exit.USAGE


class TestDevServers:
    def test_servers_of_another_machine_need_a_word(self, runyard: Command, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without --configured and without a terminal, nothing is migrated and nothing is served."""
        monkeypatch.setenv("RUNYARD_POSTGRES_URL", "postgresql://u:secret@db.example/prod")
        code, _, err = runyard("dev")
        assert code == exit_codes.Exit.USAGE and "secret" not in err
        assert "RUNYARD_POSTGRES_URL=postgresql://u:***@db.example/prod names a server on another machine" in err
        assert "--configured" in err

    def test_the_demo_takes_no_servers_of_another_machine(self, runyard: Command, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("RUNYARD_REDIS_URL", "redis://db.example")
        code, _, err = runyard("demo")
        assert code == exit_codes.Exit.USAGE and "names a server on another machine" in err

    def test_a_host_of_the_environment_counts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert servers.is_local("postgresql:///x")
        monkeypatch.setenv("PGHOST", "db.example")
        assert not servers.is_local("postgresql:///x") and servers.is_local("postgresql://localhost/x")

    @pytest.mark.parametrize(
        ("url", "local"),
        [
            ("postgresql:///x?service=prod", False),
            ("postgresql://u:p@127.0.0.1:5432/x", True),
            ("postgresql:///x?host=/tmp/socket", True),
            ("redis://localhost", True),
            ("unix:///tmp/redis", True),
            ("redis://[::1]:6379", True),
            ("memory://x", True),
            ("postgresql://db/x", False),
            ("postgresql://u@/x?host=db", False),
            ("postgresql://127.0.0.1,10.0.0.1/x", False),
            ("redis+sentinel://localhost:1,h2/x", False),
        ],
    )
    def test_which_servers_are_of_this_machine(self, url: str, local: bool) -> None:
        assert servers.is_local(url) is local


class TestHelp:
    COMMANDS = (
        "init dev demo worker workers queues doctor migrate prompt respond cancel fork fork-once requests threads runs",
        "list show tree",
        "list show watch explain attempts dead redrive delete",
        "list drain stacks",
        "list pause resume",
    )

    def test_lists_every_command(self, runyard: Command) -> None:
        for group, names in zip(((), ("threads",), ("runs",), ("workers",), ("queues",)), self.COMMANDS, strict=True):
            out = runyard(*group, "--help")[1]
            assert all(name in out for name in names.split())

    def test_version_is_printed(self, runyard: Command) -> None:
        assert re.fullmatch(r"runyard \d+\.\d+.*\n", runyard("--version")[1])

    def test_only_settings_have_an_environment_variable(self) -> None:
        commands = dict(_commands(typer.main.get_command(app)))
        variables = {str(option.envvar) for command in commands.values() for option in command.params if option.envvar}
        worker = {
            "RUNYARD_POSTGRES_URL",
            "RUNYARD_REDIS_URL",
            "RUNYARD_TENANT",
            "RUNYARD_SLOTS",
            "RUNYARD_QUEUES",
            "RUNYARD_GRACE",
        }
        api = {"RUNYARD_API_HOST", "RUNYARD_API_PORT", "RUNYARD_API_AUTH", "RUNYARD_API_COMPAT", "RUNYARD_API_CONSOLE"}
        assert variables == {"RUNYARD_APP", "RUNYARD_API_KEY", "RUNYARD_NAMESPACE"} | worker | api
        assert {name.removeprefix("RUNYARD_").lower() for name in worker} <= Settings.model_fields.keys()
        assert {name.removeprefix("RUNYARD_API_").lower() for name in api} <= ApiSettings.model_fields.keys()


def _commands(command: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from _commands(inner, f"{path} {name}")


class TestOperate:
    def test_limits_are_set_listed_and_cleared(self, runyard: Command) -> None:
        assert runyard("limits", "set", "queued-per-tenant", "5") == (
            exit_codes.Exit.OK,
            "queued_per_tenant for each is 5\n",
            "",
        )
        told = runyard("limits", "set", "queued_per_tenant", "7", "--for", "acme")[1]
        assert told == 'queued_per_tenant for "acme" is 7\n'
        _, out, _ = runyard("limits", "list", "--json")
        assert [(found["subject"], found["most"]) for found in json.loads(out)] == [(None, 5), ("acme", 7)]
        runyard("limits", "set", "queued", "9")
        listed = [line.split() for line in runyard("limits", "list")[1].splitlines()]
        assert listed[1:] == [["queued", "9"], ["queued_per_tenant", "each", "5"], ["queued_per_tenant", '"acme"', "7"]]
        assert runyard("limits", "clear", "queued_per_tenant", "--for", "acme")[2] == ""
        assert "not set" in runyard("limits", "clear", "queued_per_tenant", "--for", "acme")[2]
        for wrong in (("queues", "5"), ("queued", "5", "--for", "acme")):
            code, _, err = runyard("limits", "set", *wrong)
            assert code == exit_codes.Exit.USAGE and "running_per_agent" in err

    def test_a_full_queue_is_worth_another_try(self, runyard: Command) -> None:
        runyard("limits", "set", "queued", "0")
        code, _, err = runyard("prompt", "t", "hi")
        assert code == exit_codes.Exit.UNAVAILABLE and "queued" in err

    def test_feed_is_printed_and_continued(self, runyard: Command, world: Backend) -> None:
        for thread in ("one", "two"):
            runyard("prompt", thread, "hi")
            serve(world, thread)
        code, out, err = runyard("feed", "--limit", "1")
        assert code == exit_codes.Exit.OK and "run.completed" in out and "--cursor" in err
        lines = [json.loads(line) for line in runyard("feed", "--json")[1].splitlines()]
        assert [(line["type"], line["thread_id"]) for line in lines] == [("run.completed", "one"), ("run.completed", "two")]
        [last] = runyard("feed", "--json", "--cursor", lines[0]["cursor"])[1].splitlines()
        assert json.loads(last) == lines[1]
        assert runyard("feed", "--cursor", "x")[0] == exit_codes.Exit.USAGE

    def test_usage_is_printed_by_day(self, runyard: Command, world: Backend) -> None:
        day = datetime.now(UTC).date()
        assert "no run ended" in runyard("usage")[2]
        runyard("prompt", "one", "hi")
        serve(world, "one")
        code, out, err = runyard("usage", "--since", str(day - timedelta(days=1)))
        assert code == exit_codes.Exit.OK and "complete until" in err
        head, *days, total = out.splitlines()
        assert head.startswith("DAY") and len(days) == 1 and total.split()[:2] == ["total", "1"]
        found = json.loads(runyard("usage", "--json")[1])
        assert (found["total"]["runs"], len(found["days"])) == (1, 30)
        assert json.loads(runyard("usage", "--agent", "nobody", "--json")[1])["total"]["runs"] == 0
        for wrong in (["--since", "yesterday"], ["--since", "2024-01-01", "--until", "2025-01-01"]):
            assert runyard("usage", *wrong)[0] == exit_codes.Exit.USAGE


class TestEnqueue:
    """``runyard enqueue``: the prompts of a file."""

    def test_each_line_is_a_prompt(self, runyard: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(commands, "MAX_PROMPTS_PER_CALL", 20)
        lines = [{"thread_id": f"t{n % 3}", "message": "hi", "run_id": f"r{n}", "metadata": {"n": n}} for n in range(50)]
        (tmp_path / "runs.jsonl").write_text("\n".join(json.dumps(line) for line in lines) + "\n\n")
        code, out, err = runyard("enqueue", "runs.jsonl")
        assert (code, out, err) == (0, "accepted 50 runs; 0 existed before; 0 lines were refused\n", "")
        assert runyard("enqueue", "runs.jsonl")[1].startswith("accepted 0 runs; 50 existed before")
        shown = json.loads(runyard("runs", "show", "t1", "r1", "--json")[1])
        assert shown["metadata"] == {"n": 1} or shown["run"]["metadata"] == {"n": 1}

    def test_a_refused_line_spares_the_others(self, runyard: Command, tmp_path: Path) -> None:
        lines = [
            '{"thread_id": "t", "message": "a", "run_id": "r"}',
            "no JSON",
            '{"thread_id": "t", "message": 7}',
            '{"thread_id": "t", "message": "b", "run_id": "r"}',
            '{"thread_id": "t", "message": "c", "tenant": "x"}',
            '["thread_id"]',
            '{"thread_id": "t", "message": {"role": "user", "content": [{"type": "text", "text": "d"}]}, "priority": "high"}',
        ]
        (tmp_path / "runs.jsonl").write_text("\n".join(lines))
        code, out, err = runyard("enqueue", "runs.jsonl")
        assert code == exit_codes.Exit.USAGE and out == "accepted 2 runs; 0 existed before; 5 lines were refused\n"
        assert [line.split(":")[0] for line in err.splitlines()] == [f"line {n}" for n in (2, 3, 4, 5, 6)]
        code, out, _ = runyard("enqueue", "runs.jsonl", "--json")
        found = [json.loads(line) for line in out.splitlines()]
        assert [one["line"] for one in found] == list(range(1, 8))
        assert found[0] == {"line": 1, "thread_id": "t", "run_id": "r", "created": False}
        assert found[3]["error"]["code"] == "run_conflict"

    def test_bytes_bound_a_line_and_a_part(self, runyard: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A longer line is refused alone, and is never read whole. A line with too many values is not parsed."""
        monkeypatch.setattr(enqueue, "MAX_LINE_BYTES", 150_000)
        monkeypatch.setattr(enqueue, "PART_BYTES", 200)
        sizes = []
        enqueue_many = Client.enqueue_many

        async def counted(client: Client, prompts: Iterable[Prompt]) -> list[RunHandle | errors.RunyardError]:
            sizes.append(len(found := list(prompts)))
            return await enqueue_many(client, found)

        monkeypatch.setattr(Client, "enqueue_many", counted)
        small = [f'{{"thread_id": "t", "message": "{n:50}"}}' for n in range(5)]
        many = '{"thread_id": "t", "message": "x", "metadata": {"a": [' + "0," * 60_000 + "0]}}"
        lines = ["\ufeff" + small[0], '"' + "x" * 400_000, *small[1:3], many, *small[3:]]
        (tmp_path / "runs.jsonl").write_text("\n".join(lines), encoding="utf-8")
        code, out, err = runyard("enqueue", "runs.jsonl")
        assert code == exit_codes.Exit.USAGE and out.startswith("accepted 5 runs"), err
        first, second = err.splitlines()
        assert first.startswith("line 2: invalid_input: the line has more than 150000 bytes")
        assert second.startswith("line 5:") and "more than 50000 values" in second
        assert len(sizes) > 2

    def test_the_words_of_a_refusal_name_no_class(self, runyard: Command, tmp_path: Path) -> None:
        retry = ", ".join(f'"k{n}": 1' for n in range(1001))
        lines = ['"x"', '{"thread_id": "t", "message": "x", "retry": {' + retry + "}}"]
        (tmp_path / "runs.jsonl").write_text("\n".join(lines))
        err = runyard("enqueue", "runs.jsonl")[2].splitlines()
        assert err == [
            "line 1: invalid_input: the line: Input should be an object",
            "line 2: invalid_input: retry: at most 1000 entries are allowed here",
        ]

    def test_the_server_decides_about_webhooks(self, runyard: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A wrong setting of this machine does not matter, and no network that it does not allow."""
        monkeypatch.setenv("RUNYARD_SLOTS", "none")
        (tmp_path / "runs.jsonl").write_text('{"thread_id": "t", "message": "x", "webhook": "http://10.0.0.1/"}')
        assert runyard("enqueue", "runs.jsonl")[:2] == (0, "accepted 1 runs; 0 existed before; 0 lines were refused\n")

    @pytest.mark.parametrize("as_json", [True, False])
    def test_after_an_outage_no_line_is_sent(
        self, runyard: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_json: bool
    ) -> None:
        """R3: A later line could overtake an earlier line of its thread."""
        monkeypatch.setattr(commands, "MAX_PROMPTS_PER_CALL", 2)
        asked = []

        async def gone(client: Client, prompts: Iterable[Prompt]) -> list[RunHandle | errors.RunyardError]:
            asked.append(len(found := list(prompts)))
            return [errors.BackendUnavailableError("gone") for _ in found]

        monkeypatch.setattr(Client, "enqueue_many", gone)
        (tmp_path / "runs.jsonl").write_text('{"thread_id": "t", "message": "x"}\n' * 10)
        code, _, err = runyard("enqueue", "runs.jsonl", *(["--json"] if as_json else []))
        assert code == exit_codes.Exit.UNAVAILABLE and asked == [2]
        assert "no line after line 2 was sent" in err

    def test_a_file_that_cannot_be_read_is_refused(self, runyard: Command, tmp_path: Path) -> None:
        assert runyard("enqueue", "missing.jsonl")[0] == exit_codes.Exit.USAGE
        assert runyard("enqueue", str(tmp_path))[0] == exit_codes.Exit.USAGE
