"""api: serve the HTTP API."""

from __future__ import annotations

import threading
from typing import Annotated, Any

import typer

from runner import extras

from . import output, session
from .worker import stop_with_owner


def api(
    context: typer.Context,
    host: Annotated[str | None, typer.Option(envvar="RUNYARD_API_HOST", help="The address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(envvar="RUNYARD_API_PORT", min=0, max=65535, help="0: any free one.")] = None,
    auth: Annotated[
        str | None, typer.Option(envvar="RUNYARD_API_AUTH", help="`keys`, or `off` for programs of this machine.")
    ] = None,
    owned: Annotated[bool, typer.Option("--owned", hidden=True, help="Stop when standard input ends: with the owner.")] = False,
) -> None:
    """Serve the HTTP API until SIGTERM or Ctrl-C. Run as many as you like; `runyard keys create` makes a key."""
    for needed in ("fastapi", "uvicorn"):
        extras.load(needed)
    from api.http.app import asgi_app
    from api.http.serve import listen, serve
    from api.http.settings import ApiSettings
    from runner.logging import configure
    from runner.settings import Settings

    target = session.target(context)
    url, redis = target.resolve()
    given: dict[str, Any] = {"host": host, "port": port, "auth": auth}
    settings = ApiSettings(**{name: value for name, value in given.items() if value is not None})
    general = Settings()
    if owned:
        threading.Thread(target=stop_with_owner, name="runyard-owner", daemon=True).start()
    configure(general.log_level, general.log_format)
    app = asgi_app(postgres=url, redis=redis, tenant=target.tenant, settings=settings)
    listening = listen(settings)
    address, number = listening.getsockname()[:2]
    shown = f"[{address}]" if ":" in address else address
    output.notes().print(f"the API listens on http://{shown}:{number}")
    serve(app, listening)
