"""The command ``demo``: show the guarantees of runyard, and check each of them."""

from __future__ import annotations

import asyncio
import secrets
import signal
import statistics
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.panel import Panel
from rich.table import Table

from runyard import Client

from ..demo import agents
from ..demo import chapters as tour
from ..demo.furniture import furnish
from ..dev.api_process import ApiProcess
from ..dev.interruption import terminable
from ..dev.servers import check_servers, named_servers, private_servers
from ..dev.worker_processes import WorkerProcesses, ready
from ..exit_codes import Exit
from ..view import thread_tree
from ..view.output import Terminal, escape, is_terminal
from . import migrate, threads

APP: Final = "runyard_api.cli.demo.agents:app"
WORKERS: Final = 2
CAST: Final = (
    "The travel desk follows a script. With OPENAI_API_KEY or ANTHROPIC_API_KEY set, a real model answers."
    if agents.MODEL is None
    else f"The travel desk is {agents.MODEL}."
)


@dataclass
class Stage:
    """The output of the demo: headings, sentences, checks and figures."""

    console: Console
    failures: list[str] = field(default_factory=list)
    figures: dict[str, tuple[str, str]] = field(default_factory=dict)
    chapters: int = 0

    def chapter(self, title: str, words: str) -> None:
        self.chapters += 1
        self.console.print(f"\n[bold cyan]{self.chapters}  {title}[/]  [bright_black]{words}[/]")

    def say(self, markup: str) -> None:
        self.console.print(f"   {markup}")

    def check(self, holds: bool, what: str) -> None:
        """Print ``what`` with the mark of a passed or failed check. After a failed check, the demo exits with 1."""
        self.console.print(f"   [green]✓[/] {what}" if holds else f"   [bold red]✗ {what}[/]")
        if not holds:
            self.failures.append(what)

    def figure(self, name: str, seconds: list[float], note: str) -> None:
        """Keep the median of ``seconds`` for the table at the end."""
        value = statistics.median(seconds)
        text = f"{value * 1000:.1f} ms" if value < 1 else f"{value:.1f} s"
        self.figures[name] = (text, f"{note}, median of {len(seconds)}" if len(seconds) > 1 else note)


def demo(
    picture: Annotated[Path | None, typer.Option(help="Also save the output to this file, as SVG.")] = None,
    console: Annotated[
        bool, typer.Option("--console", help="Keep servers and workers after the demo. Serve the console until Ctrl-C.")
    ] = False,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of the console. If the port is 0 or in use, any free port is used.")
    ] = 8000,
) -> None:
    """Show order, forks, approvals and recovery, and check each of them. The demo uses private servers and takes less than a
    minute.

    By default a script answers. If RUNYARD_MODEL names a model, this model answers. Without RUNYARD_MODEL, OPENAI_API_KEY
    selects openai:gpt-5.4-mini, and ANTHROPIC_API_KEY selects anthropic:claude-haiku-5-5.
    """
    check_servers()
    # On servers that the environment names, the demo has a tenant of its own, because there may be other tenants. On private
    # servers, the console has no tenant, so that it can also operate the deployment.
    tenant = "" if console and not named_servers() else f"demo-{secrets.token_hex(4)}"
    wide = None if is_terminal(sys.stdout) and not picture else 108
    stage = Stage(Terminal(file=sys.stdout, width=wide, record=picture is not None))
    began = time.monotonic()
    stage.console.print(Panel.fit("[bold]runyard[/]  agent conversations as durable, distributed jobs", border_style="cyan"))
    with tempfile.TemporaryDirectory(prefix="runyard-demo-") as folder, private_servers(None) as (postgres_url, redis_url):
        migrate.run(postgres_url)
        log = Path(folder) / "workers.log"
        with WorkerProcesses(APP, WORKERS, postgres_url, redis_url, log=log) as pool:
            try:
                asyncio.run(_play(stage, pool, postgres_url, redis_url, tenant, furnished=console))
                if console:
                    _serve(stage, ApiProcess(postgres_url, redis_url, port, tenant))
            except BaseException:
                stage.console.print(f"[red]end of the workers' log:[/]\n{escape(_tail(log))}")
                raise
    stage.console.print()
    if picture is not None:
        picture.write_text(stage.console.export_svg(title="runyard demo"), encoding="utf-8")
    if stage.failures:
        stage.console.print(f"[bold red]{len(stage.failures)} of the checks failed.[/]")
        raise typer.Exit(int(Exit.FAILED_RUN))
    stage.console.print(
        f"[bold green]All checks passed.[/] [bright_black]{time.monotonic() - began:.0f} s in all. Next:[/] runyard init app"
    )


def _serve(stage: Stage, process: ApiProcess) -> None:
    """Serve the API and its console until Ctrl-C."""
    with suppress(KeyboardInterrupt), terminable(), process as api:
        if not api.listens():
            stage.check(False, "the API serves the console")
            return
        stage.console.print(f"\n   the console: [bold]{api.url}/console[/]; Ctrl-C stops")
        while True:
            signal.pause()


async def _play(
    stage: Stage, pool: WorkerProcesses, postgres_url: str, redis_url: str, tenant: str, *, furnished: bool
) -> None:
    async with Client.connect(postgres_url, redis=redis_url, tenant=tenant, namespace="") as client:
        await ready(client, pool)
        stage.say(f"Postgres, Redis and {WORKERS} worker processes are up.")
        stage.say(f"[bright_black]{escape(CAST)}[/]")
        await tour.prompt(stage, client)
        await tour.order(stage, client)
        await tour.fork(stage, client)
        await tour.approval(stage, client)
        await tour.probe(stage, client)
        await tour.measure(stage, client)
        await tour.crash(stage, client, pool)
        stage.chapter("The family", "runyard threads tree trip")
        for line in threads.tree_lines(await thread_tree.collect(client, tour.THREAD)):
            stage.console.print(f"   {line}", no_wrap=True, overflow="ellipsis")
        _figures(stage)
        if furnished:
            await furnish(client)


def _figures(stage: Stage) -> None:
    stage.chapter("Figures", "on this machine, just now")
    table = Table(box=None, padding=(0, 3, 0, 0), show_header=False, pad_edge=False)
    for name, (value, note) in stage.figures.items():
        table.add_row(f"   {name}", f"[bold]{value}[/]", f"[bright_black]{note}[/]")
    stage.console.print(table)


def _tail(log: Path, lines: int = 8) -> str:
    return "\n".join(line[:400] for line in log.read_text(errors="replace").splitlines()[-lines:]) if log.exists() else "(none)"
