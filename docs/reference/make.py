"""Write the generated parts of this folder: ``python docs/reference/make.py``; ``--check`` fails if one is out of date."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from prometheus_client.metrics import MetricWrapperBase

from api.cli import exits
from api.http.app import asgi_app
from api.http.document import operations
from api.http.problems import EVERYWHERE, MEDIA_TYPE
from backends.memory import MemoryBackend, MemoryWorld
from runner import metrics
from runner.errors import BY_CODE
from runner.models import EVENT_TYPES

HERE = Path(__file__).parent

EVENTS = {
    "run.queued": "it was accepted or redriven, and waits for a worker; `attempt`",
    "run.started": "the first attempt began; `attempt`",
    "run.suspended": "it waits for a human; `status`, `request_ids`",
    "run.resumed": "an attempt began after an answer; `attempt`, `message_id`",
    "run.completed": "its messages count from here on; `status`",
    "run.failed": "it ended without counting; `status`, `error`",
    "run.cancelled": "it was cancelled; `status`",
    "run.dead": "it took down its workers too often; `status`, `error`",
    "run.rewound": "an attempt began after a crash or an error: drop uncompleted text; `attempt`, `message_id` (last stored)",
    "message.started": "a message is being made; `message_id`, `role`",
    "message.delta": "a piece of it; `message_id` and `text`, `thinking`, or `arguments` of a `tool_call` (`id`, `name`)",
    "message.completed": "a message is stored; `message_id`, `message`",
    "tool.started": "a tool is called; `call_id`, `name`, `arguments`",
    "tool.completed": "a tool returned; `call_id`, `name`, `is_error`",
    "hitl.requested": "a question or approval is stored; `request`",
    "hitl.answered": "an attempt took up an answer; `request_id`, `answer`",
    "gap": "events were lost here; what is stored follows",
}


def table(head: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def parts() -> dict[str, tuple[str, str]]:
    """File → marker and text."""
    codes = table(("code", "name", "meaning"), ((int(code), code.name.lower(), what) for code, what in exits.MEANING.items()))
    types = table(("type", "meaning and `data`"), ((f"`{name}`", EVENTS[name]) for name in EVENT_TYPES))
    tree = table(
        ("code", "class", "HTTP", "exit", "when"),
        (
            (
                f"`{code}`",
                f"`{cls.__name__}`",
                cls.http_status,
                int(exits.of_error(cls(""))),
                (cls.__doc__ or "").splitlines()[0].replace("``", "`"),
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
    return {
        "http.md": ("routes", routes()),
        "metrics.md": ("metrics", counted),
        "cli.md": ("exit codes", codes),
        "events.md": ("event types", types),
        "errors.md": ("errors", tree),
    }


def routes() -> str:
    """Every route of the HTTP API, from its OpenAPI document."""
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
    return table(("route", "operation", "scope", "what it does", "refuses with"), rows)


def refusals(made: dict[str, Any], described: dict[str, Any]) -> Iterator[str]:
    """The codes with which an operation may refuse."""
    for answer in described["responses"].values():
        if name := answer.get("$ref", "").rpartition("/")[2]:
            answer = made["components"]["responses"][name]
        yield from answer.get("content", {}).get(MEDIA_TYPE, {}).get("examples", {})


def render(name: str, marker: str, text: str) -> str:
    """The file with the table after its marker replaced."""
    current = (HERE / name).read_text(encoding="utf-8")
    return re.sub(rf"<!-- {marker} -->\n*(\|.*\n)*", lambda _: f"<!-- {marker} -->\n\n{text}\n", current)


def main() -> int:
    stale = []
    for name, (marker, text) in parts().items():
        made = render(name, marker, text)
        if made != (HERE / name).read_text(encoding="utf-8"):
            stale.append(name)
            if "--check" not in sys.argv:
                (HERE / name).write_text(made, encoding="utf-8")
    if stale and "--check" in sys.argv:
        sys.stderr.write(f"out of date: {' '.join(stale)}; run python docs/reference/make.py\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
