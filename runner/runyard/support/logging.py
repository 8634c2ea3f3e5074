"""Log configuration of a process: JSON for machines, coloured text for people."""

from __future__ import annotations

import logging
import sys
from io import StringIO
from typing import Any, Literal, TextIO

import structlog
from structlog.types import EventDict, ExcInfo, Processor

from ..domain.quoting import legible, one_line
from . import tracing


def configure(level: str = "info", format: Literal["json", "console", "auto"] = "auto", stream: TextIO = sys.stderr) -> None:
    """Send the records of structlog and of logging to ``stream``.

    If ``format`` is ``auto``, the format is ``console`` on a terminal, and ``json`` in all other cases.
    """
    console = format == "console" or (format == "auto" and stream.isatty())
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    ending: list[Processor] = (
        [_console(stream)]
        if console
        else [_add_trace_ids, structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    )
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(stream)
    remove = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=[remove, *ending]))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


def plain_tracebacks() -> None:
    """Make structlog print tracebacks without the values of variables. By default structlog prints these values.

    The values can contain secrets and the text of conversations. The output of large values can block the event loop for
    seconds. Other settings of the program's structlog stay unchanged.
    """
    *before, last = structlog.get_config()["processors"]
    if isinstance(last, structlog.dev.ConsoleRenderer) and getattr(last.exception_formatter, "show_locals", False):
        structlog.configure(processors=[*before, _console(sys.stdout)])


def _console(stream: TextIO) -> Processor:
    render = structlog.dev.ConsoleRenderer(colors=stream.isatty(), exception_formatter=_traceback)

    def console(logger: Any, name: str, event: EventDict) -> str:
        """Render an event. The values are escaped, so that they cannot control the terminal or forge a line."""
        kept = {one_line(key): one_line(value) if isinstance(value, str) else value for key, value in event.items()}
        kept |= {key: legible(event[key]) for key in ("stack", "exception") if isinstance(event.get(key), str)}
        return str(render(logger, name, kept))

    return console


def _add_trace_ids(logger: Any, name: str, event: EventDict) -> EventDict:
    """Add ``trace_id`` and ``span_id`` of the current span (T5)."""
    for key, value in tracing.log_fields().items():
        event.setdefault(key, value)
    return event


def _traceback(stream: TextIO, failure: ExcInfo) -> None:
    text = StringIO()
    structlog.dev.plain_traceback(text, failure)
    stream.write(legible(text.getvalue()))
