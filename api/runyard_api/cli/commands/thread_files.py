"""The commands ``threads export`` and ``threads import``."""

from __future__ import annotations

import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from runyard.errors import InvalidInputError

from ... import quantities
from .. import deployment, options
from ..view import import_report, output

if TYPE_CHECKING:
    from runyard_backends.thread_files import Exported, Report


def export(
    context: typer.Context,
    thread: options.ThreadArg,
    file: Annotated[str, typer.Argument(metavar="FILE", help="File to write, or - for standard output.")] = "-",
    forks: Annotated[bool, typer.Option("--forks", help="Also export the forks of the thread, and their forks.")] = False,
    as_json: options.Json = False,
) -> None:
    """Write a thread and its ancestors to a file of JSON Lines."""
    from runyard_backends.thread_files import export_threads

    async def go(target: BinaryIO) -> Exported:
        async with deployment.connect(context) as client:
            return await export_threads(client.backend, thread, target, forks=forks)

    with _written(file) as target:
        done = deployment.wait(go(target))
    if as_json and file != "-":
        output.print_json(asdict(done))
        return
    numbers = (
        quantities.count(done.threads, "thread", "threads"),
        quantities.count(done.messages, "message", "messages"),
        quantities.count(done.runs, "run", "runs"),
        quantities.count(done.requests, "request", "requests"),
    )
    output.say(f"exported {', '.join(numbers)}")
    for thread_id, what in done.notes[: import_report.NOTES_SHOWN]:
        output.say(f"not exported: {thread_id}: {what}")


def import_(
    context: typer.Context,
    file: Annotated[str, typer.Argument(metavar="FILE", help="File of `threads export`, or - for standard input.")],
    new_ids: Annotated[
        bool,
        typer.Option(
            "--new-ids", help="Give threads, runs, messages and requests new ids. The ids are derived from the export."
        ),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only check the file and print the report.")] = False,
    as_json: options.Json = False,
) -> int:
    """Import the threads of a file of `threads export`. You can repeat the command, also after an interruption."""
    from runyard_backends.thread_files import ALWAYS, import_threads

    async def go(source: BinaryIO) -> Report:
        async with deployment.connect(context) as client:
            return await import_threads(client.backend, source, new_ids=new_ids, dry_run=dry_run)

    with _opened(file) as source:
        report = deployment.wait(go(source))
    return import_report.show(report, f"file version {report.version}", ALWAYS, as_json=as_json)


@contextmanager
def _written(name: str) -> Iterator[BinaryIO]:
    """Yield a temporary file to write. When it is complete, it is renamed to ``name``."""
    if name == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    path = Path(name)
    try:
        if path.is_symlink() or (path.exists() and not path.is_file()):
            raise InvalidInputError(f"{name!r} is not a regular file; use - for standard output", field="file")
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            try:
                yield file  # type: ignore[misc]
                file.flush()
                os.fsync(file.fileno())
                Path(file.name).replace(path)
            except BaseException:
                Path(file.name).unlink(missing_ok=True)
                raise
    except OSError as error:
        raise InvalidInputError(f"cannot write {name!r}: {error.strerror}", field="file") from None


@contextmanager
def _opened(name: str) -> Iterator[BinaryIO]:
    """Yield a regular file, because an import reads it twice. Standard input is copied to a file first."""
    from runyard_backends.thread_files import copy_lines

    try:
        with tempfile.TemporaryFile() if name == "-" else open(name, "rb", opener=_without_waiting) as file:
            if name == "-":
                copy_lines(sys.stdin.buffer, file)
            elif not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise InvalidInputError(f"{name!r} is not a regular file; use - for standard input", field="file")
            yield file
    except OSError as error:
        raise InvalidInputError(f"cannot read {name!r}: {error.strerror}", field="file") from None


def _without_waiting(name: str, flags: int) -> int:
    """Open a file. For a FIFO, do not wait for the writer."""
    return os.open(name, flags | getattr(os, "O_NONBLOCK", 0))
