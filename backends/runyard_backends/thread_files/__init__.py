"""Files of threads: the export of a thread with its ancestors and forks, and the import into any store."""

from __future__ import annotations

from typing import BinaryIO, Final

from runyard.errors import InvalidInputError
from runyard.ports.stores import Backend

from ..import_report import Report
from .checks import check_file
from .exporter import Export, Exported
from .importer import FileImport
from .new_ids import Ids
from .records import VERSION, copy_lines, lines

__all__ = ["ALWAYS", "Exported", "Report", "copy_lines", "export_threads", "import_threads"]

ALWAYS: Final = (
    "The times of messages, runs and threads.",
    "Inputs, results, usage, options, attempts and steps of runs. The imported runs are external runs.",
    "Message numbers and completion numbers. An import gives new numbers, in the same order on each branch.",
    "The extra that a thread had after each of its runs. An import gives each run the thread's extra at the export.",
    "Checkpoints of graphs, events, webhooks and the feed.",
)
"""Data that an export never writes to a file."""


async def export_threads(backend: Backend, thread_id: str, file: BinaryIO, *, forks: bool = False) -> Exported:
    """Write a thread and its ancestors to ``file`` as JSON Lines. ``forks``: True to write also the forks of the thread, the
    forks of these forks, and so on.

    Raises InvalidInputError if the threads exceed the bounds of a file. Raises CapabilityMissingError for a store without
    branches. Raises ThreadNotFoundError, DataCorruptedError, BackendUnavailableError.
    """
    return await Export(backend, file).family(thread_id, forks=forks)


async def import_threads(backend: Backend, file: BinaryIO, *, new_ids: bool = False, dry_run: bool = False) -> Report:
    """Import the threads of ``file``, which must be seekable, into the tenant of ``backend``.

    The whole file is checked first. ``new_ids``: True to give all threads, runs, messages and requests new ids, which are
    derived from the export. ``dry_run``: True to write nothing. An import can be repeated. The numbers of the report count the
    entries that this call has added, or would add.

    Raises InvalidInputError before anything is written, for a file that is not seekable or has an invalid ``line``. Raises
    LockedError while another import into the tenant runs. Raises BackendUnavailableError or LockedError for a store that
    cannot be used. After such an error, repeat the call to continue the import. Any other error of the store ends only the
    import of one thread, and the report has a note about it.
    """
    if not file.seekable():
        raise InvalidInputError("an import reads its file twice; copy a pipe to a file first", field="file")
    file.seek(0)
    family = check_file(file)
    report = Report(dry_run, VERSION)
    file.seek(0)
    ids = Ids(family.export_id if new_ids else None)
    await FileImport(backend, family.export_id, ids, report).run(lines(file))
    return report
