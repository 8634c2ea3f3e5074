"""The processor time of processes, from /proc."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

TICKS: Final = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """Return the processor time of a process, of its children, and of its children that have ended."""
    total = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(") ", 1)[1].split()
        except OSError:  # the process ended
            continue
        if stat.parent.name == str(pid):
            total += sum(map(int, fields[11:15]))
        elif fields[1] == str(pid):
            total += int(fields[11]) + int(fields[12])
    return total / TICKS
