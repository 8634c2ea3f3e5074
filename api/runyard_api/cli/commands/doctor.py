"""The command ``doctor``: check a deployment and report problems."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import typer

from runyard import Client
from runyard.errors import ConfigurationError, RunyardError
from runyard.support.location import Location
from runyard.support.settings import Settings

from ...diagnosis import checks
from ...diagnosis.checks import Finding
from ...diagnosis.deployment import of_deployment, of_queues, of_webhooks
from .. import deployment, exit_codes, options
from ..view import output
from ..view.output import escape, without_password

OF_CLIENTS: Final = ("postgres_url", "namespace")
"""The settings that a client over HTTP uses. The client does not know the values that all other settings have in the
deployment."""

OVER_HTTP: Final = (
    "over HTTP: workers and queues were checked; `runyard doctor` with a direct connection also checks Postgres, Redis and the "
    "settings"
)

_SIGN: Final = {"ok": "[green]●[/]", "warn": "[yellow]▲[/]", "fail": "[red]✗[/]"}


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting and its value. ``source``: ``environment``, ``.env``, ``option``, ``runyard dev`` or ``default``."""

    name: str
    value: str
    source: str


def doctor(context: typer.Context, as_json: options.Json = False) -> None:
    """Check settings, servers, workers and queues. The command prints each problem with its solution. It exits with 1 if a
    check fails."""
    target = deployment.target(context)
    found: list[Finding] = []
    try:
        settings = Settings()
    except ConfigurationError as error:
        variables = ", ".join(error.details["variables"])
        found.append(Finding("fail", "settings", error.message, f"correct {variables}"))
        settings = Settings.model_construct()
    place = target.locate()
    found += deployment.wait(_examine(place, target.tenant, settings))
    if trouble := deployment.trouble_of_dev(context):
        found.append(Finding("fail", "dev", trouble, "correct the app; the terminal of `runyard dev` has the traceback"))
    shown = in_force(settings, place, target)
    if as_json:
        output.print_json({"ok": not _failed(found), "findings": found, "settings": shown})
    else:
        _print(found, shown, over_http=is_http(place))
    raise typer.Exit(int(exit_codes.Exit.FAILED_RUN if _failed(found) else exit_codes.Exit.OK))


async def _examine(place: Location, tenant: str, settings: Settings) -> list[Finding]:
    """Check Redis and Postgres. If this code can run on the schema, also check workers and queues. Over HTTP, check only
    workers and queues."""
    url, redis = place.url, place.redis
    if not url.startswith("postgres"):
        async with Client.connect(url, tenant=tenant, api_key=place.api_key) as client:
            return await of_deployment(client)
    from runyard_backends.postgres import health as postgres
    from runyard_backends.redis import health as valkey

    found: list[Finding] = []
    schedule = None
    if redis is not None:
        try:
            servers = await valkey.diagnose(redis)
            schedule = servers[0]
            found += [finding for facts in servers for finding in checks.of_redis(facts)]
        except RunyardError as error:
            found.append(
                Finding("fail", "redis", error.message, "start Redis or correct RUNYARD_REDIS_URL; no run starts until then")
            )
    try:
        facts = await postgres.diagnose(url)
    except RunyardError as error:
        return [Finding("fail", "postgres", error.message, "start Postgres or correct RUNYARD_POSTGRES_URL"), *found]
    found = [*checks.of_postgres(facts), *found, checks.of_clocks(facts, schedule)]
    if facts.schema_trouble is None and not facts.in_recovery:
        async with Client.connect(url, tenant=tenant, max_pool_size=1) as client:
            workers, queues, webhooks = await client.workers(), await of_queues(client), await of_webhooks(client)
        found.append(checks.of_feed(facts))
        found.append(checks.of_connections(facts, workers, settings.max_pool_size))
        found += [*checks.of_workers(workers, facts.leader), *queues, *webhooks]
    return found


def is_http(place: Location) -> bool:
    """Return whether the deployment is reached over the HTTP API."""
    return place.url.startswith(("http://", "https://"))


def in_force(settings: Settings, place: Location, target: deployment.Target) -> list[Setting]:
    """Return the settings that a worker on this machine would have, each with its source. Passwords are replaced.

    Over HTTP, return only the settings in OF_CLIENTS. A client does not know the other settings of the deployment.
    """
    shown = []
    for name in Settings.model_fields:
        if is_http(place) and name not in OF_CLIENTS:
            continue
        value, source = getattr(settings, name), _source(settings, name)
        if name in ("postgres_url", "redis_url"):
            value = without_password(place.url if name == "postgres_url" else place.redis or "none")
            named = target.url if name == "postgres_url" else target.redis
            source = place.source if named is None else source if source != "default" else "option"
        elif name in ("listen_url", "arq_redis_url") and value is not None:
            value = without_password(value)
        shown.append(
            Setting(
                name, ", ".join(map(str, value)) if isinstance(value, list) else "" if value is None else str(value), source
            )
        )
    return shown


def _source(settings: Settings, name: str) -> str:
    if f"RUNYARD_{name}".upper() in {variable.upper() for variable in os.environ}:
        return "environment"
    return ".env" if name in settings.model_fields_set else "default"


def _failed(found: Sequence[Finding]) -> bool:
    return any(finding.level == "fail" for finding in found)


def _print(found: Sequence[Finding], shown: Sequence[Setting], *, over_http: bool) -> None:
    console = output.console()
    for finding in found:
        console.print(f"{_SIGN[finding.level]} {finding.about:<12} {escape(finding.says)}")
        if finding.do:
            console.print(f"  {'':<12} [bright_black]→[/] {escape(finding.do)}")
    console.print("\n[bold]settings[/]")
    for setting in (one for one in shown if one.source != "default"):
        console.print(f"  {setting.name:<16} {escape(setting.value)}  [bright_black]{setting.source}[/]")
    defaults = ", ".join(f"{one.name} {one.value}".strip() for one in shown if one.source == "default" and one.value)
    if over_http:
        console.print(f"  [bright_black]{OVER_HTTP}[/]")
    elif defaults:
        console.print(f"  [bright_black]by default: {escape(defaults)}[/]")
    counts = {level: sum(finding.level == level for finding in found) for level in _SIGN}
    console.print(f"\n{counts['ok']} ok, {counts['warn']} warnings, {counts['fail']} failed")
