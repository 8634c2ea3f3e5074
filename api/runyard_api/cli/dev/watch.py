"""Watch the processes of ``runyard dev``. A process that ends is restarted. When a Python file of the app changes, all workers
are restarted."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rich.console import Console

from runyard.domain.quoting import one_line
from runyard.errors import RunyardError
from runyard.support import dev_file

from ..exit_codes import Exit
from ..view.output import escape
from .api_process import ApiProcess
from .app_files import AppFiles
from .processes import OwnedProcess
from .worker_processes import WorkerProcesses


def watch(
    pool: WorkerProcesses,
    api: ApiProcess,
    program: OwnedProcess | None,
    console: Console,
    *,
    files: AppFiles,
    reload: bool,
    record: Callable[[str], None],
) -> int:
    """Replace processes that end, until Ctrl-C or the end of ``program``.

    With ``reload``, replace all workers when one of ``files`` changes. With ``reload``, a worker that ended with an error is
    not replaced before such a change. Otherwise a worker that ended is replaced after a pause.

    ``record``: gets how a worker ended, and an empty text when workers are started.

    Returns the exit code of ``program``.
    """
    pause, start_at = 0.0, math.inf
    lost: list[int] = []  # the exit codes of workers that have not been replaced
    for changed in _changes(files if reload else None):
        if program is not None and (code := program.exit_code) is not None:
            return code if code >= 0 else 128 - code
        if note := files.note():
            console.print(f"[yellow]▲[/] {escape(note)}")
        if changed:
            console.print(f"[yellow]↻[/] {escape(', '.join(changed))} changed; restarting the workers")
            record("")
            pool.replace()
            files.refresh()
            pause, start_at, lost = 0.0, math.inf, []
            continue
        if (ended := api.revive()) is not None:
            console.print(f"[red]●[/] the HTTP API ended with code {ended}; started again")
        if codes := pool.dead():
            pause = min(pause * 2 or 0.5, 10.0)
            failed = [code for code in codes if code > 0]
            lost = failed or codes
            if Exit.APP in failed and not reload:
                files.refresh()  # the error of the import is the reason of the end
            record(_trouble(lost, files.error))
            if failed and reload:
                left = "" if pool.processes else "; `runyard dev` has no worker"
                console.print(f"[red]●[/] a worker ended with code {failed[0]}{left}; correct the app and save it to get one")
                continue
            how = f"ended with code {codes[0]}; starting it again" if any(codes) else "was drained; starting another"
            console.print(f"[{'red' if any(codes) else 'yellow'}]●[/] a worker {how} in {pause:g} s")
            start_at = time.monotonic() + pause
        if files.ended() and lost:
            record(_trouble(lost, files.error))
        if time.monotonic() >= start_at:
            pool.start()
            record("")
            start_at, lost = math.inf, []
    raise AssertionError("the iterator over changes ended")


def _trouble(codes: Sequence[int], error: RunyardError | None) -> str:
    """Return how a worker ended, as one line. ``error``: the error of the app's import, which explains a positive exit code, or
    None."""
    why = f": {one_line(error.message)}" if error is not None and codes[0] > 0 else ""
    return f"the worker of `runyard dev` ended with code {codes[0]}{why}"


def _changes(files: AppFiles | None) -> Iterator[list[str]]:
    """Yield the names of the app's files when they change. Yield an empty list about twice a second."""
    if files is None:
        while True:
            time.sleep(0.5)
            yield []
    from watchfiles import PythonFilter
    from watchfiles import watch as watch_files

    here = Path.cwd()
    ignore = PythonFilter(ignore_paths=[here / dev_file.FOLDER])
    for changes in watch_files(here, watch_filter=ignore, rust_timeout=500, yield_on_timeout=True, raise_interrupt=True):
        yield [os.path.relpath(path, here) for path in files.among({Path(path) for _, path in changes})]
