"""The command ``usage``: show the tokens, cost and time of runs by day."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer

from runyard.domain.usage_report import UsageReport, UsageTotal

from ... import quantities
from .. import deployment, options
from ..view import output

_DAY = {"formats": ["%Y-%m-%d"], "metavar": "DAY"}


def usage(
    context: typer.Context,
    since: Annotated[datetime | None, typer.Option(**_DAY, help="First day. Default: 30 days are shown.")] = None,
    until: Annotated[datetime | None, typer.Option(**_DAY, help="Last day. Default: today.")] = None,
    agent: options.Agent = None,
    as_json: options.Json = False,
) -> None:
    """Show the usage of the tenant's runs by the day on which they ended, in UTC. Only --json lists days without a run."""

    async def go() -> UsageReport:
        async with deployment.connect(context) as client:
            return await client.usage(since and since.date(), until and until.date(), agent=agent)

    found = deployment.wait(go())
    if as_json:
        output.print_json(found)
        return
    rows = [(str(each.day), *_amounts(each)) for each in found.days if each.runs or each.requests]
    if rows:
        rows.append(("total", *_amounts(found.total)))
    output.table(
        ("DAY", "RUNS", "REQUESTS", "INPUT TOKENS", "OUTPUT TOKENS", "COST", "TIME"),
        rows,
        empty=f"no run ended from {found.since} to {found.until}",
    )
    until_when = quantities.clock(found.counted_until) or "no time, because no worker has counted the usage yet"
    output.notes().print(f"[bright_black]complete until {until_when}[/]")


def _amounts(used: UsageTotal) -> tuple[str, ...]:
    return (
        f"{used.runs:,}",
        f"{used.requests:,}",
        f"{used.input_tokens:,}",
        f"{used.output_tokens:,}",
        f"${used.cost:,.2f}",
        quantities.duration(used.seconds),
    )
