"""Watch the processes of ``runyard dev``. A process that ends is restarted. When a Python file of the app changes, all workers
are restarted."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from runyard.support import dev_file

from ..view.output import escape
from .api_process import ApiProcess
from .app_files import AppFiles
from .processes import OwnedProcess
from .worker_processes import WorkerProcesses


def watch(
    pool: WorkerProcesses, api: ApiProcess, program: OwnedProcess | None, console: Console, *, files: AppFiles | None
) -> int:
    """Replace processes that end, until Ctrl-C or the end of ``program``. When one of ``files`` changes, replace all workers.
    ``files``: None to watch no files.

    Returns the exit code of ``program``.
    """
    pause = 0.0
    for changed in _changes(files):
        if program is not None and (code := program.exit_code) is not None:
            return code if code >= 0 else 128 - code
        if files is not None and changed:
            console.print(f"[yellow]↻[/] {escape(', '.join(changed))} changed; restarting the workers")
            pool.replace()
            files.refresh()
            pause = 0.0
            continue
        if (ended := api.revive()) is not None:
            console.print(f"[red]●[/] the HTTP API ended with code {ended}; started again")
        if codes := pool.dead():
            pause = min(pause * 2 or 0.5, 10.0)
            killed = all(code < 0 for code in codes)  # by a signal; any other end is an error that a change may correct
            again = f"in {pause:g} s" if files is None or killed else "when a file changes"
            console.print(f"[red]●[/] a worker ended with code {codes[0]}; starting it again {again}")
            if files is None or killed:
                time.sleep(pause)
                pool.start()
    raise AssertionError("the iterator over changes ended")


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
