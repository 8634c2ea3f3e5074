"""The commands ``webhooks add``, ``list``, ``show``, ``remove``, ``secret``, ``rotate``, ``deliveries`` and ``redeliver``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, cast

import typer

from runyard.client.webhooks import DEFAULT_OVERLAP_SECONDS
from runyard.domain.webhooks import DeliveryStatus, Webhook, WebhookDelivery, WebhookSecret
from runyard.models import FEED_TYPES, FeedType

from ... import quantities
from .. import deployment, exit_codes, options
from ..view import output
from ..view.output import escape

app = typer.Typer(help="Manage webhooks: URLs to which events are sent.", no_args_is_help=True)

STYLES = {"pending": "yellow", "delivered": "green", "failed": "red"}

WebhookArg = Annotated[str, typer.Argument(help="Id of the webhook.", show_default=False)]


@app.command()
def add(
    context: typer.Context,
    url: Annotated[str, typer.Argument(help="URL to send events to, http or https.", show_default=False)],
    events: Annotated[
        list[str] | None,
        typer.Option("--event", help=f"Event to send: {', '.join(FEED_TYPES)}; may be repeated. Default: all events of runs."),
    ] = None,
    all_tenants: Annotated[bool, typer.Option("--all-tenants", help="Send the events of all tenants.")] = False,
    as_json: options.Json = False,
) -> None:
    """Add a webhook, which sends later events to a URL. If RUNYARD_WEBHOOK_SECRET is set here (over HTTP: at the server), print
    the secret."""

    async def go() -> None:
        async with deployment.connect(context) as client:
            asked = [cast(FeedType, event) for event in events] if events else None
            webhook = await client.subscribe_webhook(url, asked, all_tenants=all_tenants)
        if as_json:
            output.print_json(webhook)
            return
        output.console().print(f"{escape(webhook.webhook_id)}  {escape(webhook.url)}")
        if webhook.secret is not None:
            output.console().print(f"secret  {webhook.secret}")
        else:
            where = f"where RUNYARD_WEBHOOK_SECRET is set, `runyard webhooks secret {webhook.webhook_id}` prints its secret"
            output.notes().print(f"[bright_black]{escape(where)}[/]")

    deployment.wait(go())


@app.command("list")
def list_(
    context: typer.Context, limit: options.Limit = 100, cursor: options.Cursor = None, as_json: options.Json = False
) -> None:
    """List the webhooks of the tenant. Without a tenant, also list the webhooks that receive the events of all tenants."""

    async def go() -> None:
        async with deployment.connect(context) as client:
            page = await client.webhooks(limit=limit, cursor=cursor)
        if as_json:
            output.print_json({"items": page.items, "next": page.next})
            return
        _table(page.items)
        output.more(page.next)

    deployment.wait(go())


@app.command()
def show(context: typer.Context, webhook_id: WebhookArg, as_json: options.Json = False) -> None:
    """Show one webhook."""

    async def go() -> None:
        async with deployment.connect(context) as client:
            found = await client.webhook(webhook_id)
        if found is None:
            raise _missing(webhook_id)
        if as_json:
            output.print_json(found)
        else:
            _table([found])

    deployment.wait(go())


def _table(webhooks: Sequence[Webhook]) -> None:
    rows = (
        (
            escape(webhook.webhook_id),
            "all" if webhook.tenant is None else escape(f'"{webhook.tenant}"'),
            f"[red]disabled {quantities.clock(webhook.disabled_at)}[/]" if webhook.disabled_at else "[green]active[/]",
            ", ".join(webhook.events),
            escape(webhook.url),
        )
        for webhook in webhooks
    )
    output.table(("WEBHOOK", "TENANT", "STATE", "EVENTS", "URL"), rows, empty="no webhooks")


def _missing(webhook_id: str | None) -> exit_codes.MissingError:
    return exit_codes.MissingError(f"there is no webhook {webhook_id}; `runyard webhooks list` lists them")


@app.command()
def remove(context: typer.Context, webhook_id: WebhookArg) -> None:
    """Remove a webhook and its pending deliveries."""

    async def go() -> None:
        async with deployment.connect(context) as client:
            if not await client.remove_webhook(webhook_id):
                raise _missing(webhook_id)
        output.print_line(f"removed {webhook_id}")

    deployment.wait(go())


OptionalWebhook = Annotated[
    str | None, typer.Argument(help="Id of the webhook. Default: the URLs that are set on runs of the tenant.")
]


@app.command()
def secret(context: typer.Context, webhook_id: OptionalWebhook = None, as_json: options.Json = False) -> None:
    """Print the secret. A receiver needs it to verify signatures.

    The secret is derived from RUNYARD_WEBHOOK_SECRET. This variable must have the same value here (over HTTP: at the server) as
    for the workers.
    """

    async def go() -> WebhookSecret | None:
        async with deployment.connect(context) as client:
            return await client.webhook_secret(webhook_id)

    _tell(deployment.wait(go()), webhook_id, as_json=as_json)


@app.command()
def rotate(
    context: typer.Context,
    webhook_id: OptionalWebhook = None,
    overlap: Annotated[
        float, typer.Option(min=0, help="Seconds for which the old secret also signs. Give 0 after a leak.")
    ] = DEFAULT_OVERLAP_SECONDS,
    as_json: options.Json = False,
) -> None:
    """Replace the secret of a webhook, and print the new secret."""

    async def go() -> WebhookSecret | None:
        async with deployment.connect(context) as client:
            return await client.rotate_webhook_secret(webhook_id, overlap=overlap)

    _tell(deployment.wait(go()), webhook_id, as_json=as_json)


def _tell(found: WebhookSecret | None, webhook_id: str | None, *, as_json: bool) -> None:
    if found is None:
        raise _missing(webhook_id)
    if as_json:
        output.print_json(found)
        return
    output.print_line(found.secret)
    both = f"; version {found.version - 1} also signs until {quantities.clock(found.both_until)}" if found.both_until else ""
    output.notes().print(f"[bright_black]version {found.version}{both}[/]")


@app.command()
def deliveries(
    context: typer.Context,
    failed: Annotated[bool, typer.Option("--failed", help="List only failed deliveries, which are not tried again.")] = False,
    pending: Annotated[bool, typer.Option("--pending", help="List only deliveries that are not sent yet.")] = False,
    limit: options.Limit = 100,
    cursor: options.Cursor = None,
    as_json: options.Json = False,
) -> None:
    """List all deliveries, the newest first."""
    if failed and pending:
        raise typer.BadParameter("give --failed or --pending, not both")
    status: DeliveryStatus | None = "failed" if failed else "pending" if pending else None

    async def go() -> None:
        async with deployment.connect(context) as client:
            page = await client.webhook_deliveries(status=status, limit=limit, cursor=cursor)
        if as_json:
            output.print_json({"items": page.items, "next": page.next})
            return
        heads = ("DELIVERY", "STATE", "TRIES", "TYPE", "THREAD", "RUN", "ANSWER", "URL")
        output.table(heads, map(_row, page.items), empty="no deliveries")
        output.more(page.next)

    deployment.wait(go())


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
    context: typer.Context, delivery_id: Annotated[str, typer.Argument(help="Id of the delivery.", show_default=False)]
) -> None:
    """Repeat a delivery that has failed or arrived."""

    async def go() -> None:
        async with deployment.connect(context) as client:
            if not await client.redeliver_webhook(delivery_id):
                raise exit_codes.MissingError(
                    f"delivery {delivery_id} cannot be sent again: it does not exist, is pending, or its webhook was removed"
                )

    deployment.wait(go())
