"""The processor time of processes, from /proc."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

TICKS: Final = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """Return the processor time of a process, of its children, and of its children that have ended."""
    total = 0
    for process in Path("/proc").glob("[0-9]*"):
        fields = _fields(process)
        if fields is None:
            continue
        if process.name == str(pid):
            total += sum(map(int, fields[11:15]))
        elif fields[1] == str(pid):
            total += int(fields[11]) + int(fields[12])
    return total / TICKS


def parent_of(pid: int) -> int | None:
    """Return the process id of the parent of a process, or None if the process does not exist on this machine."""
    fields = _fields(Path(f"/proc/{pid}"))
    return None if fields is None else int(fields[1])


def _fields(process: Path) -> list[str] | None:
    """Return the fields of ``stat`` from the state of the process on, or None if the process has ended."""
    try:
        return (process / "stat").read_text().rsplit(") ", 1)[1].split()
    except OSError:
        return None
