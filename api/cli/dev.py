"""dev: everything on one machine, until Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from runner.client import Client
from runner.errors import BackendUnavailableError, InvalidInputError

from . import discovery, migrate, output, session
from .beside import beside
from .companion import Companion
from .crew import Crew, ready
from .output import escape
from .servers import forget, private_servers

AppArg = Annotated[str, typer.Argument(envvar="RUNYARD_APP", metavar="[MODULE:APP]", help="The App to serve.")]

CommandArg = Annotated[
    list[str] | None,
    typer.Argument(metavar="[-- COMMAND...]", help="A program to run beside, with the servers in its environment."),
]


def dev(
    context: typer.Context,
    app: AppArg = "app:app",
    command: CommandArg = None,
    workers: Annotated[int, typer.Option(envvar="RUNYARD_WORKERS", min=1, max=64, help="Worker processes.")] = 1,
    reload: Annotated[
        bool, typer.Option("--reload", envvar="RUNYARD_RELOAD", help="Restart workers when a file changes.")
    ] = False,
    port: Annotated[
        int, typer.Option(envvar="RUNYARD_API_PORT", min=0, max=65535, help="The HTTP API's, if it is free.")
    ] = 8000,
    reset: Annotated[bool, typer.Option("--reset", envvar="RUNYARD_RESET", help="Delete this project's data first.")] = False,
) -> None:
    """Start private servers (or use the configured ones), migrate, serve an app and the HTTP API; data stays in .runyard/.

    With a command after `--`, that runs beside the workers, and all ends when it does.
    """
    folder = Path.cwd() / discovery.FOLDER
    console = output.console()
    _check_free(folder)
    _check_app(app)
    if reset and folder.exists():
        forget(folder)
    folder.mkdir(mode=0o700, exist_ok=True)
    with ExitStack() as stack:
        stack.enter_context(_terminable())
        if not (os.environ.get("RUNYARD_POSTGRES_URL") and os.environ.get("RUNYARD_REDIS_URL")):
            console.print("[bright_black]○ starting Postgres and Redis …[/]")
        postgres_url, redis_url = stack.enter_context(private_servers(folder))
        migrate.run(postgres_url)
        discovery.write(folder, discovery.Deployment(os.getpid(), postgres_url, redis_url, app))
        stack.callback(discovery.remove, folder)
        crew = stack.enter_context(Crew(app, workers, postgres_url, redis_url))
        api = stack.enter_context(Companion(postgres_url, redis_url, port))
        _wait_for(crew, console, postgres_url, redis_url)
        crowd = output.count(workers, "worker", "workers")
        console.print(f"[green]●[/] serving [bold]{escape(app)}[/] with {crowd}; Ctrl-C stops")
        if not command:
            console.print('[bright_black]  in a second terminal, in this folder: runyard prompt t1 "hello" --wait[/]')
        console.print(f"[bright_black]  HTTP API, for programs of this machine: {api.url}[/]")
        program = stack.enter_context(beside(command or (), postgres_url, redis_url))
        code = 0
        try:
            code = _watch(crew, api, program, console, reload=reload)
        except KeyboardInterrupt:
            console.print("\n[bright_black]stopping; the data stays in .runyard/[/]")
    raise typer.Exit(code)


def _wait_for(crew: Crew, console: Console, postgres_url: str, redis_url: str) -> None:
    """Say so if the workers do not come up; with the app mended, the watch starts them again."""

    async def go() -> None:
        async with Client.connect(postgres_url, redis=redis_url) as client:
            await ready(client, crew)

    try:
        session.wait(go())
    except BackendUnavailableError as error:
        console.print(f"[red]●[/] {escape(error.message)}")


def _watch(crew: Crew, api: Companion, program: subprocess.Popen[bytes] | None, console: Console, *, reload: bool) -> int:
    """Until Ctrl-C, or the end of ``program``, whose exit code is returned: replace what died, and all workers when a file
    changed."""
    pause = 0.0
    for changed in _changes(reload):
        if program is not None and (code := program.poll()) is not None:
            return code if code >= 0 else 128 - code
        if changed:
            console.print(f"[yellow]↻[/] {escape(', '.join(changed))} changed; restarting the workers")
            crew.replace()
            pause = 0.0
            continue
        if (ended := api.revive()) is not None:
            console.print(f"[red]●[/] the HTTP API ended with code {ended}; started again")
        if codes := crew.dead():
            pause = min(pause * 2 or 0.5, 10.0)
            again = "when a file changes" if reload else f"in {pause:g} s"
            console.print(f"[red]●[/] a worker ended with code {codes[0]}; starting it again {again}")
        if not reload and len(crew.processes) < crew.count:
            time.sleep(pause)
            crew.start()
    raise AssertionError("changes are looked for without end")


def _changes(reload: bool) -> Iterator[list[str]]:
    """Names of changed files, or an empty list about twice a second."""
    if not reload:
        while True:
            time.sleep(0.5)
            yield []
    from watchfiles import PythonFilter, watch

    here = Path.cwd()
    ignore = PythonFilter(ignore_paths=[here / discovery.FOLDER])
    for changes in watch(here, watch_filter=ignore, rust_timeout=500, yield_on_timeout=True, raise_interrupt=True):
        yield sorted({os.path.relpath(path, here) for _, path in changes})


def _check_free(folder: Path) -> None:
    running = discovery.read(folder)
    if running is not None:
        raise InvalidInputError(f"`runyard dev` runs here already (process {running.pid}); stop it first")


def _check_app(app: str) -> None:
    """Say at once what is wrong with the app, before any server is started; a process of its own keeps this one clean."""
    probe = "import sys; from runner.app import load_app; from runner.errors import RunyardError\ntry: load_app(sys.argv[1])\n"
    probe += "except RunyardError as error: sys.exit(error.message)\n"
    done = subprocess.run([sys.executable, "-P", "-c", probe, app], capture_output=True, text=True, check=False)
    if done.returncode:
        raise InvalidInputError((done.stderr.strip().splitlines() or ["the app cannot be loaded"])[-1])


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM ends the command like Ctrl-C does: workers drain, servers stop."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
