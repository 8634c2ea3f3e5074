"""Write the generated tables of this folder. With ``--check``, write nothing and exit with status 1 if one is out of date."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import python_pages
import settings_tables
from prometheus_client.metrics import MetricWrapperBase

from runyard.domain.runs import CODES_WITHOUT_CLASS
from runyard.errors import BY_CODE
from runyard.models import EVENT_TYPES
from runyard.support import metrics
from runyard_api.cli import exit_codes
from runyard_api.http.app import asgi_app
from runyard_api.http.document import operations
from runyard_api.http.problems import EVERYWHERE, MEDIA_TYPE
from runyard_backends.memory import MemoryBackend, MemoryWorld

HERE = Path(__file__).parent
RULE = re.compile(r"\b[A-Z]\d{1,2}\b")
"""The citation of a rule of rules.md in an error's docstring."""

EVENTS = {
    "run.queued": "the run was accepted or redriven; `attempt`",
    "run.started": "the first attempt began; `attempt`",
    "run.suspended": "the run waits for a human, a time, a signal or a child; `status`, `request_ids`",
    "run.resumed": (
        "an attempt began after an answer, or the attempt continues because the answer came before the suspension; "
        "`attempt`, `message_id`"
    ),
    "run.completed": "the run completed and its messages became part of the conversation; `status`",
    "run.failed": "the run failed; `status`, `error`",
    "run.cancelled": "the run was cancelled; `status`",
    "run.dead": "three attempts of the run in succession crashed their processes; `status`, `error`",
    "run.rewound": (
        "an attempt began after a crash or an error, so discard the text of messages that are not completed; "
        "`attempt`, `message_id` (of the last stored message), `takeover` (true if the worker of the previous attempt died), "
        "`error` (of the previous attempt, if it failed and the run is retried)"
    ),
    "message.started": "a message has begun; `message_id`, `role`",
    "message.delta": "part of a message; `message_id`, and `text`, `thinking`, or `arguments` of a `tool_call` (`id`, `name`)",
    "message.completed": "a message is stored; `message_id`, `message`",
    "tool.started": "a tool is called; `call_id`, `name`, `arguments`",
    "tool.completed": "a tool returned; `call_id`, `name`, `is_error`",
    "hitl.requested": "a HITL request is stored; `request`",
    "hitl.answered": "an attempt received an answer; `request_id`, `answer`",
    "candidate.ended": "a candidate of a fan-out ended; `number`, `status`, `ended` and `total` (numbers of candidates)",
    "gap": "events were lost here; events that are made from the state in Postgres follow",
}


def table(head: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def parts() -> Iterator[tuple[str, str, str]]:
    """Yield file name, marker and generated table. The marker is the text of the comment before the table."""
    codes = table(
        ("code", "name", "meaning"), ((int(code), code.name.lower(), what) for code, what in exit_codes.MEANING.items())
    )
    types = table(("type", "meaning; fields of `data`"), ((f"`{name}`", EVENTS[name]) for name in EVENT_TYPES))
    tree = table(
        ("code", "class", "HTTP", "exit", "meaning"),
        (
            (
                f"`{code}`",
                f"`{cls.__name__}`",
                cls.http_status,
                int(exit_codes.of_error(cls(""))),
                linked((cls.__doc__ or "").splitlines()[0].replace("``", "`")),
            )
            for code, cls in sorted(BY_CODE.items())
        ),
    )
    counted = table(
        ("metric", "type", "labels", "meaning"),
        (
            (f"`{name}`", metric._type, ", ".join(f"`{label}`" for label in metric._labelnames), metric._documentation)
            for name, metric in sorted(
                (metric._name + "_total" * (metric._type == "counter"), metric)
                for metric in vars(metrics).values()
                if isinstance(metric, MetricWrapperBase)
            )
        ),
    )
    yield "http.md", "routes", routes()
    yield "metrics.md", "metrics", counted
    yield "cli.md", "exit codes", codes
    yield "events.md", "event types", types
    yield "errors.md", "errors", tree
    alone = table(("code", "meaning"), ((f"`{code}`", what) for code, what in CODES_WITHOUT_CLASS.items()))
    yield "errors.md", "errors of runs", alone
    for marker, settings in settings_tables.TABLES.items():
        told = ((name, kind, default, linked(what)) for name, kind, default, what in settings_tables.rows(settings))
        yield "settings.md", marker, table(("variable", "value", "default", "meaning"), told)
    yield "settings.md", "others", table(("variable", "read by", "meaning"), settings_tables.other_rows())


def routes() -> str:
    """Return the table of the routes of the HTTP API, from its OpenAPI document."""
    made = asgi_app(MemoryBackend(MemoryWorld(), ""), auth="off").openapi()
    usual = {cls.code for cls in EVERYWHERE}
    rows = []
    for method, path, described in operations(made):
        scopes = [scope for each in described["security"] for scope in each.get("apiKey", ())]
        scope = ", ".join(scopes) or ("any" if described["security"] else "")
        codes = sorted(set(refusals(made, described)) - usual)
        what = " ".join(described["description"].split())
        shown = ", ".join(f"`{code}`" for code in codes)
        rows.append((f"`{method.upper()} {path}`", f"`{described['operationId']}`", scope, what, shown))
    return table(("route", "operation", "scope", "effect", "error codes"), rows)


def refusals(made: dict[str, Any], described: dict[str, Any]) -> Iterator[str]:
    """Yield the error codes of the operation ``described`` in the OpenAPI document ``made``."""
    for answer in described["responses"].values():
        if name := answer.get("$ref", "").rpartition("/")[2]:
            answer = made["components"]["responses"][name]
        yield from answer.get("content", {}).get(MEDIA_TYPE, {}).get("examples", {})


def linked(text: str, rules: str = "rules.md") -> str:
    """Return ``text`` with each citation of a rule as a link to that rule. ``rules``: the path to the page of the rules."""
    return RULE.sub(lambda found: f"[{found.group()}]({rules}#{found.group().lower()})", text)


def render(content: str, marker: str, text: str) -> str:
    """Return ``content`` with ``text`` in place of the table after the marker.

    One empty line separates the table from the text after it.
    """
    before, found, after = content.partition(f"<!-- {marker} -->\n")
    rest = re.sub(r"\A\n*(\|.*\n)*\n*", "", after)
    return f"{before}{found}\n{text}\n" + (f"\n{rest}" if rest else "")


def main() -> int:
    made: dict[str, str] = {}
    for name, marker, text in parts():
        made[name] = render(made.get(name) or (HERE / name).read_text(encoding="utf-8"), marker, text)
    for name, text in python_pages.pages():
        made[name] = linked(text, "../rules.md")
    stale = []
    for name, text in made.items():
        file = HERE / name
        if not file.exists() or text != file.read_text(encoding="utf-8"):
            stale.append(name)
            if "--check" not in sys.argv:
                file.parent.mkdir(exist_ok=True)
                file.write_text(text, encoding="utf-8")
    if stale and "--check" in sys.argv:
        sys.stderr.write(f"out of date: {' '.join(stale)}; run python docs/reference/make.py\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
