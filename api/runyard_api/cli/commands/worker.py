"""The command ``worker``: serve the agents of an app."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Annotated, Any

import typer

from .. import deployment
from ..options import ArqQueues

AppArg = Annotated[str, typer.Argument(envvar="RUNYARD_APP", metavar="MODULE:APP", help="App to serve, for example app:app.")]


def worker(
    context: typer.Context,
    app: AppArg,
    slots: Annotated[
        int | None, typer.Option(envvar="RUNYARD_SLOTS", min=1, help="Maximum number of runs that the worker executes at once.")
    ] = None,
    queues: Annotated[
        str | None,
        typer.Option(envvar="RUNYARD_QUEUES", help="Queues to serve, separated by commas. Default: the agents' queues."),
    ] = None,
    arq_queues: ArqQueues = None,
    grace: Annotated[
        float | None, typer.Option(envvar="RUNYARD_GRACE", min=0, help="Grace time: seconds for runs to finish after SIGTERM.")
    ] = None,
    owned: Annotated[bool, typer.Option("--owned", hidden=True, help="Stop when standard input ends.")] = False,
) -> None:
    """Serve the agents of an app until SIGTERM or Ctrl-C.

    After the signal, the worker claims no more runs. At the end of the grace time, it releases runs that have not finished.
    """
    from runyard.app import load_app
    from runyard.support.logging import configure
    from runyard.support.settings import Settings

    from ...worker.process import run_worker

    target = deployment.target(context)
    found = deployment.locate_servers(context)
    given: dict[str, Any] = {"postgres_url": found.url, "redis_url": found.redis, "tenant": target.tenant}
    given |= {"slots": slots, "queues": queues, "grace": grace, "arq_queues": arq_queues or None}
    settings = Settings(**{name: value for name, value in given.items() if value is not None})
    if owned:
        threading.Thread(target=stop_with_owner, name="runyard-owner", daemon=True).start()
    configure(settings.log_level, settings.log_format)
    run_worker(load_app(app), settings)


def stop_with_owner() -> None:
    """Send SIGTERM to this process when standard input ends.

    Standard input is a pipe from the owner. The owner is the process that started this process. The pipe closes when the owner
    ends, even after SIGKILL.
    """
    while os.read(sys.stdin.fileno(), 1024):  # sys.stdin.read would hold a lock while the interpreter ends
        pass
    os.kill(os.getpid(), signal.SIGTERM)
