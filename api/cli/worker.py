"""worker: serve the agents of an app."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Annotated, Any

import typer

from . import session

AppArg = Annotated[str, typer.Argument(envvar="RUNYARD_APP", metavar="MODULE:APP", help="The App to serve, e.g. app:app.")]


def worker(
    context: typer.Context,
    app: AppArg,
    slots: Annotated[int | None, typer.Option(envvar="RUNYARD_SLOTS", min=1, help="Runs at once.")] = None,
    queues: Annotated[str | None, typer.Option(envvar="RUNYARD_QUEUES", help="Queues to serve, separated by commas.")] = None,
    grace: Annotated[
        float | None, typer.Option(envvar="RUNYARD_GRACE", min=0, help="Seconds for runs to finish at SIGTERM.")
    ] = None,
    owned: Annotated[bool, typer.Option("--owned", hidden=True, help="Stop when standard input ends: with the owner.")] = False,
) -> None:
    """Serve an app's agents until SIGTERM or Ctrl-C: then no more claims, and what does not finish in time is handed over."""
    from backends.redis.arq_worker import run_worker
    from runner.app import load_app
    from runner.logging import configure
    from runner.settings import Settings

    url, redis = session.target(context).resolve()
    given: dict[str, Any] = {"postgres_url": url, "redis_url": redis, "tenant": session.target(context).tenant}
    given |= {"slots": slots, "queues": queues, "grace": grace}
    settings = Settings(**{name: value for name, value in given.items() if value is not None})
    if owned:
        threading.Thread(target=stop_with_owner, name="runyard-owner", daemon=True).start()
    configure(settings.log_level, settings.log_format)
    run_worker(load_app(app), settings)


def stop_with_owner() -> None:
    """Standard input is a pipe whose other end dies with the owner, however that ends: no worker outlives it."""
    while os.read(sys.stdin.fileno(), 1024):  # not through the buffer: its lock would be held when the interpreter ends
        pass
    os.kill(os.getpid(), signal.SIGTERM)
