"""The command ``dev``: servers, workers and the HTTP API on one machine, until Ctrl-C."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from runyard import Client
from runyard.errors import BackendUnavailableError
from runyard.support import dev_file, location

from ... import quantities
from .. import deployment
from ..dev.api_process import ApiProcess
from ..dev.app_files import AppFiles
from ..dev.browser import has_viewer, open_page
from ..dev.interruption import terminable
from ..dev.servers import check_servers, forget, named_servers, private_servers
from ..dev.user_program import user_program
from ..dev.watch import watch
from ..dev.worker_processes import WorkerProcesses, ready
from ..options import ArqQueues
from ..view import output
from ..view.output import escape, without_password
from . import migrate

AppArg = Annotated[str, typer.Argument(envvar="RUNYARD_APP", metavar="[MODULE:APP]", help="App to serve.")]

CommandArg = Annotated[
    list[str] | None,
    typer.Argument(metavar="[-- COMMAND...]", help="Program to run beside the workers. Its environment has the servers' URLs."),
]


def dev(
    context: typer.Context,
    app: AppArg = "app:app",
    command: CommandArg = None,
    workers: Annotated[int, typer.Option(min=1, max=64, help="Number of worker processes.")] = 1,
    arq_queues: ArqQueues = None,
    reload: Annotated[
        bool, typer.Option("--reload", help="Restart the workers after a change of a Python file that the app imports.")
    ] = False,
    port: Annotated[
        int,
        typer.Option(
            envvar="RUNYARD_API_PORT",
            min=0,
            max=65535,
            help="Port of the HTTP API. If the port is 0 or in use, any free port is used.",
        ),
    ] = 8000,
    no_open: Annotated[bool, typer.Option("--no-open", help="Do not open the console in the browser.")] = False,
    reset: Annotated[bool, typer.Option("--reset", help="Before the start, delete the data in .runyard/.")] = False,
    configured: Annotated[
        bool,
        typer.Option("--configured", help="Do not ask before using servers on other machines that the environment names."),
    ] = False,
) -> None:
    """Serve an app and the HTTP API on private servers. The command migrates the schema. Data stays in .runyard/.

    If RUNYARD_POSTGRES_URL or RUNYARD_REDIS_URL is set in the environment, `dev` uses the server of this URL instead of a
    private one. If such a server is on another machine, `dev` asks before it uses the server. With --configured, `dev` does not
    ask. `dev` migrates the schema on the server and serves the runs there with this app. A COMMAND after `--` runs beside the
    workers. `dev` ends when this command ends. Without a COMMAND, in a terminal on a machine with a display, `dev` opens the
    console in the browser.
    """
    folder = Path.cwd() / dev_file.FOLDER
    console = output.console()
    dev_file.check(folder)
    check_servers(configured=configured)
    with ExitStack() as stack:
        stack.enter_context(terminable())
        files = stack.enter_context(AppFiles(app, lambda note: console.print(f"[yellow]▲[/] {escape(note)}")))
        folder.mkdir(mode=0o700, exist_ok=True)
        stack.enter_context(dev_file.locked(folder))
        if reset:
            forget(folder)
        if not (os.environ.get("RUNYARD_POSTGRES_URL") and os.environ.get("RUNYARD_REDIS_URL")):
            console.print("[bright_black]○ starting Postgres and Redis …[/]")
        postgres_url, redis_url = stack.enter_context(private_servers(folder))
        migrate.run(postgres_url)
        announced = dev_file.Deployment(os.getpid(), postgres_url, redis_url, app)
        dev_file.write(folder, announced)
        stack.callback(dev_file.remove, folder)
        pool = stack.enter_context(WorkerProcesses(app, workers, postgres_url, redis_url, arq_queues=arq_queues))
        api = stack.enter_context(ApiProcess(postgres_url, redis_url, port))
        _wait_for(pool, console, postgres_url, redis_url)
        listens = api.listens()
        count = quantities.count(workers, "worker", "workers")
        console.print(f"[green]●[/] serving [bold]{escape(app)}[/] with {count}; Ctrl-C stops")
        if not files.agents:
            console.print(
                "[yellow]▲[/] the app has no agents, so no prompt gets an answer; register one: App({'assistant': assistant})"
            )
        if not command:
            console.print('[bright_black]  in a second terminal, in this folder: runyard prompt t1 "hello" --wait[/]')
        console.print(f"[bright_black]  HTTP API, for programs of this machine: {api.url}[/]")
        console.print(f"[bright_black]  console: {api.url}/console[/]")
        for line in _server_lines(postgres_url, redis_url):
            console.print(f"[bright_black]  {escape(line)}[/]")
        if listens and not command and not no_open and has_viewer():
            open_page(f"{api.url}/console")
        program = stack.enter_context(user_program(command or (), postgres_url, redis_url))
        code = 0
        try:
            record = partial(_record, folder, announced)
            code = watch(pool, api, program, console, files=files, reload=reload, record=record)
        except KeyboardInterrupt:
            where = (
                "the data stays on the servers that the environment names" if named_servers() else "the data stays in .runyard/"
            )
            console.print(f"\n[bright_black]stopping; {where}[/]")
    raise typer.Exit(code)


def _record(folder: Path, announced: dev_file.Deployment, trouble: str) -> None:
    """Write the outcome of a worker to the file of ``dev``. If the disk refuses the file, ``dev`` continues without the
    record."""
    with suppress(OSError):
        dev_file.write(folder, replace(announced, trouble=trouble))


def _server_lines(postgres_url: str, redis_url: str) -> Iterator[str]:
    """Yield a line about each server. The line has the URL without passwords. After the URL, the line has the word ``private``
    or the name of the variable with the URL."""
    named = named_servers()
    for what, variable, url in (("Postgres", location.URL, postgres_url), ("Redis", location.REDIS, redis_url)):
        yield f"{what}: {without_password(url)} ({f'of {variable}' if variable in named else 'private, in .runyard/'})"


def _wait_for(pool: WorkerProcesses, console: Console, postgres_url: str, redis_url: str) -> None:
    """Wait until the workers have registered. If a worker does not register, print the reason and continue."""

    async def go() -> None:
        async with Client.connect(postgres_url, redis=redis_url) as client:
            await ready(client, pool)

    try:
        deployment.wait(go())
    except BackendUnavailableError as error:
        console.print(f"[red]●[/] {escape(error.message)}")
