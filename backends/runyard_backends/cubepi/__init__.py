"""Import of the databases that cubepi's and cubeloop's own checkpointers made (``runyard import cubepi``)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from runyard.errors import InvalidInputError, ThreadNotFoundError
from runyard.ports.stores import Backend

from ..import_report import Note, Report
from .importer import Import
from .source import Source

__all__ = ["ALWAYS", "Note", "Report", "import_threads", "open_source"]

ALWAYS: Final = (
    "The times at which rows were written and at which runs were claimed and completed. A message keeps its own time.",
    "Prompts as inputs of runs. The imported runs are external runs. The prompt is the first message of such a run.",
    "The completion numbers of a fork's own runs. The runs get higher numbers than the parent's runs, in the same order.",
)
"""Data that is never imported."""


async def open_source(url: str) -> Source:
    """Open the database at ``url``: ``sqlite:///file.db`` or ``postgresql://…``.

    Raises InvalidInputError, BackendUnavailableError, SchemaUninitialized, SchemaMismatch.
    """
    scheme = url.partition(":")[0]
    if scheme == "sqlite":
        from .sqlite import SqliteSource

        return await SqliteSource.open(url)
    if scheme in ("postgresql", "postgres"):
        from .postgres import PostgresSource

        return await PostgresSource.open(url)
    raise InvalidInputError(
        f"import from sqlite:///file.db or postgresql://…; the scheme {scheme} is not supported", field="url"
    )


async def import_threads(url: str, backend: Backend, *, threads: Iterable[str] = (), dry_run: bool = False) -> Report:
    """Import the threads of the database at ``url`` into ``backend``, by default all threads.

    ``threads``: import only these threads and their ancestors. ``dry_run``: True to read the database and only return the
    report. An import can be repeated. Data that was imported before stays unchanged.

    Raises the errors of :func:`open_source`, and BackendUnavailableError. Raises ThreadNotFoundError if the database lacks one
    of ``threads``. A thread that cannot be imported raises no error. The report has a note about it.
    """
    source = await open_source(url)
    try:
        work = Import(source, backend, Report(dry_run, source.version))
        wanted = list(dict.fromkeys(threads))
        for thread_id in wanted:
            if await source.thread(thread_id) is None:
                raise ThreadNotFoundError(f"the database has no thread {thread_id!r}", thread_id=thread_id)
        for thread_id in wanted:
            await work.one(thread_id)
        if not wanted:
            await work.all()
        return work.report
    finally:
        await source.close()
