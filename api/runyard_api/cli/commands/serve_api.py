"""The command ``api``: serve the HTTP API."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import Annotated, Any

import typer

from runyard.support import optional_imports

from .. import deployment
from .worker import stop_with_owner


def api(
    context: typer.Context,
    host: Annotated[str | None, typer.Option(envvar="RUNYARD_API_HOST", help="Address to listen on.")] = None,
    port: Annotated[
        int | None, typer.Option(envvar="RUNYARD_API_PORT", min=0, max=65535, help="Port to listen on. 0: any free port.")
    ] = None,
    auth: Annotated[
        str | None,
        typer.Option(
            envvar="RUNYARD_API_AUTH",
            help="`keys`: callers need an API key. `off`: only callers on this machine, without a key.",
        ),
    ] = None,
    compat: Annotated[
        str | None,
        typer.Option(
            envvar="RUNYARD_API_COMPAT",
            help="APIs of other systems that are also served, comma-separated. Known: `acontext`, `events`, `openhands`.",
        ),
    ] = None,
    console: Annotated[
        str | None,
        typer.Option(envvar="RUNYARD_API_CONSOLE", help="`on`: serve the console at /console. `off`: do not serve it."),
    ] = None,
    owned: Annotated[bool, typer.Option("--owned", hidden=True, help="Stop when standard input ends.")] = False,
) -> None:
    """Serve the HTTP API until SIGTERM or Ctrl-C. Any number of processes may serve the API. `runyard keys create` makes a
    key. The log line `api_listening` has the addresses."""
    for needed in ("fastapi", "uvicorn"):
        optional_imports.load(needed)
    from runyard.support import metrics
    from runyard.support.logging import configure
    from runyard.support.settings import Settings
    from runyard.worker.health_server import serving_metrics

    from ... import trace_export
    from ...http.app import asgi_app
    from ...http.serve import addresses_of, listen, serve, url_of
    from ...http.settings import ApiSettings

    target = deployment.target(context)
    found = deployment.locate_servers(context)
    given: dict[str, Any] = {"host": host, "port": port, "auth": auth, "compat": compat, "console": console}
    settings = ApiSettings(**{name: value for name, value in given.items() if value is not None})
    general = Settings()
    if owned:
        threading.Thread(target=stop_with_owner, name="runyard-owner", daemon=True).start()
    configure(general.log_level, general.log_format)
    metrics.own_registry()
    trace_export.set_up(trace_export.API, content=general.trace_content)
    app = asgi_app(postgres=found.url, redis=found.redis, tenant=target.tenant, settings=settings)
    listening = listen(settings)
    listens = addresses_of(listening, console=settings.console == "on")
    with ExitStack() as stack:
        if settings.metrics_port is not None:
            port = stack.enter_context(serving_metrics(settings.metrics_port, general.metrics_host))
            listens["metrics_url"] = f"{url_of(general.metrics_host, port)}/metrics"
        serve(app, listening, listens)
