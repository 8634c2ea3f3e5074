"""webhooks add | list | remove | secret | rotate | deliveries | redeliver."""

from __future__ import annotations

from typing import Annotated, cast

import typer

from runner.calls.webhooks import OVERLAP
from runner.models import FEED_TYPES, FeedType
from runner.webhooks.models import DeliveryStatus, WebhookDelivery, WebhookSecret

from . import exits, options, output, session
from .output import escape

app = typer.Typer(help="URLs that are told of what is committed.", no_args_is_help=True)

STYLES = {"pending": "yellow", "delivered": "green", "failed": "red"}

WebhookArg = Annotated[str, typer.Argument(help="The webhook's id.", show_default=False)]


@app.command()
def add(
    context: typer.Context,
    url: Annotated[str, typer.Argument(help="An http or https URL.", show_default=False)],
    events: Annotated[
        list[str] | None,
        typer.Option(
            "--event", envvar="RUNYARD_EVENTS", help=f"What to tell of, any of {', '.join(FEED_TYPES)}; default: all of runs."
        ),
    ] = None,
    all_tenants: Annotated[
        bool, typer.Option("--all-tenants", envvar="RUNYARD_ALL_TENANTS", help="Of every tenant, not only this one.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Tell a URL of what is committed from here on. Prints the secret that signs it, if RUNYARD_WEBHOOK_SECRET is set here."""

    async def go() -> None:
        async with session.connect(context) as client:
            asked = [cast(FeedType, event) for event in events] if events else None
            webhook = await client.subscribe_webhook(url, asked, all_tenants=all_tenants)
        if as_json:
            output.print_json(webhook)
            return
        output.console().print(f"{escape(webhook.webhook_id)}  {escape(webhook.url)}")
        if webhook.secret is not None:
            output.console().print(f"secret  {webhook.secret}")
        else:
            where = f"`runyard webhooks secret {webhook.webhook_id}` where RUNYARD_WEBHOOK_SECRET is set shows its secret"
            output.notes().print(f"[bright_black]{where}[/]")

    session.wait(go())


@app.command("list")
def list_(context: typer.Context, as_json: options.Json = False) -> None:
    """List the webhooks of the tenant, and those of all tenants together."""

    async def go() -> None:
        async with session.connect(context) as client:
            found = await client.webhooks()
        if as_json:
            output.print_json({"items": found})
            return
        rows = (
            (
                escape(webhook.webhook_id),
                "all" if webhook.tenant is None else escape(f'"{webhook.tenant}"'),
                f"[red]disabled {output.clock(webhook.disabled_at)}[/]" if webhook.disabled_at else "[green]active[/]",
                ", ".join(webhook.events),
                escape(webhook.url),
            )
            for webhook in found
        )
        output.table(("WEBHOOK", "TENANT", "STATE", "EVENTS", "URL"), rows, empty="no webhooks")

    session.wait(go())


@app.command()
def remove(context: typer.Context, webhook_id: WebhookArg) -> None:
    """Tell a URL nothing more."""

    async def go() -> None:
        async with session.connect(context) as client:
            if not await client.remove_webhook(webhook_id):
                raise exits.MissingError(f"there is no webhook {webhook_id}; `runyard webhooks list` shows those that are")

    session.wait(go())


OptionalWebhook = Annotated[str | None, typer.Argument(help="Of this webhook; default: of the URLs of the tenant's runs.")]


@app.command()
def secret(context: typer.Context, webhook_id: OptionalWebhook = None, as_json: options.Json = False) -> None:
    """Print what a receiver verifies with. It is derived from RUNYARD_WEBHOOK_SECRET, which must be set as for the workers."""

    async def go() -> WebhookSecret | None:
        async with session.connect(context) as client:
            return await client.webhook_secret(webhook_id)

    _tell(session.wait(go()), webhook_id, as_json=as_json)


@app.command()
def rotate(
    context: typer.Context,
    webhook_id: OptionalWebhook = None,
    overlap: Annotated[
        float, typer.Option(envvar="RUNYARD_OVERLAP", min=0, help="Seconds for which the one before signs too; 0 after a leak.")
    ] = OVERLAP,
    as_json: options.Json = False,
) -> None:
    """Let another secret sign from here on, and print it."""

    async def go() -> WebhookSecret | None:
        async with session.connect(context) as client:
            return await client.rotate_webhook_secret(webhook_id, overlap=overlap)

    _tell(session.wait(go()), webhook_id, as_json=as_json)


def _tell(found: WebhookSecret | None, webhook_id: str | None, *, as_json: bool) -> None:
    if found is None:
        raise exits.MissingError(f"there is no webhook {webhook_id}; `runyard webhooks list` shows those that are")
    if as_json:
        output.print_json(found)
        return
    output.print_line(found.secret)
    both = f"; version {found.version - 1} signs too until {output.clock(found.both_until)}" if found.both_until else ""
    output.notes().print(f"[bright_black]version {found.version}{both}[/]")


@app.command()
def deliveries(
    context: typer.Context,
    failed: Annotated[bool, typer.Option("--failed", envvar="RUNYARD_FAILED", help="Only those that were given up.")] = False,
    pending: Annotated[bool, typer.Option("--pending", envvar="RUNYARD_PENDING", help="Only those under way.")] = False,
    limit: options.Limit = 100,
    cursor: options.Cursor = None,
    as_json: options.Json = False,
) -> None:
    """List what was told, and what is to be, the newest first."""
    if failed and pending:
        raise typer.BadParameter("give --failed or --pending, not both")
    status: DeliveryStatus | None = "failed" if failed else "pending" if pending else None

    async def go() -> None:
        async with session.connect(context) as client:
            page = await client.webhook_deliveries(status=status, limit=limit, cursor=cursor)
        if as_json:
            output.print_json({"items": page.items, "next": page.next})
            return
        heads = ("DELIVERY", "STATE", "TRIES", "TYPE", "THREAD", "RUN", "ANSWER", "URL")
        output.table(heads, map(_row, page.items), empty="no deliveries")
        output.more(page.next)

    session.wait(go())


def _row(delivery: WebhookDelivery) -> tuple[str, ...]:
    return (
        escape(delivery.delivery_id),
        f"[{STYLES[delivery.status]}]{delivery.status}[/]",
        str(delivery.tries),
        delivery.type,
        escape(delivery.thread_id),
        escape(delivery.run_id or ""),
        escape(delivery.error or str(delivery.http_status or "")),
        escape(delivery.url),
    )


@app.command()
def redeliver(
    context: typer.Context, delivery_id: Annotated[str, typer.Argument(help="The delivery's id.", show_default=False)]
) -> None:
    """Send once more what failed or arrived."""

    async def go() -> None:
        async with session.connect(context) as client:
            if not await client.redeliver_webhook(delivery_id):
                raise exits.MissingError("there is no such delivery that is over, or its webhook is gone")

    session.wait(go())
