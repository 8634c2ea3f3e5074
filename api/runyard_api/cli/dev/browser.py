"""Opens the page of ``runyard dev`` in the browser of the user who started the command."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress


def has_terminal() -> bool:
    """Return True if a person sees the output of this process and can type."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def open_page(url: str) -> None:
    """Open ``url`` in the browser of the user. Without a browser, nothing happens.

    The environment variable BROWSER can name another browser. A browser for terminals is not given the terminal, because it
    would take the terminal from this process.
    """
    command = [sys.executable, "-P", "-m", "webbrowser", url]
    nowhere = subprocess.DEVNULL
    with suppress(OSError):
        subprocess.Popen(command, stdin=nowhere, stdout=nowhere, stderr=nowhere, start_new_session=True)
