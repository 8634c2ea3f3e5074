"""Opens the page of ``runyard dev`` in the browser of the user who started the command."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import suppress
from typing import Final

from ..view.output import is_terminal

CONTAINER_FILES: Final[tuple[str, ...]] = ("/.dockerenv", "/run/.containerenv")
"""Files that exist in a container of Docker or Podman."""
CONTAINER_VARIABLES: Final = ("container", "KUBERNETES_SERVICE_HOST")
SSH_VARIABLES: Final = ("SSH_CONNECTION", "SSH_CLIENT", "SSH_TTY")
WSL: Final = "WSL_DISTRO_NAME"
"""The variable that the Windows Subsystem for Linux sets."""
WSL_OPENERS: Final = ("wslview", "explorer.exe")
"""Programs of this system that open a page in the browser of Windows."""


def has_viewer() -> bool:
    """Return True if a person uses this process in a terminal, and sees the window of a browser that this process opens.

    Nobody sees the window in CI, in a container, without a display, or over ssh without a forwarded display.
    """
    return (
        is_terminal(sys.stdin)
        and is_terminal(sys.stdout)
        and os.environ.get("CI", "").lower() in ("", "0", "false")
        and not any(map(os.environ.get, CONTAINER_VARIABLES))
        and not any(map(os.path.exists, CONTAINER_FILES))
        and _has_display()
    )


def _has_display() -> bool:
    display = os.environ.get("DISPLAY", "")
    if any(map(os.environ.get, SSH_VARIABLES)):
        return display.partition(":")[0] not in ("", "unix")  # a display without a host is at the other machine
    if sys.platform == "darwin" or os.environ.get(WSL):
        return True
    return bool(display or os.environ.get("WAYLAND_DISPLAY"))


def open_page(url: str) -> None:
    """Open ``url`` in the browser of the user. Without a browser, nothing happens.

    The environment variable BROWSER can name another browser. A browser that runs in a terminal does not get the terminal of
    this process, because this process needs the terminal.
    """
    nowhere = subprocess.DEVNULL
    with suppress(OSError):
        subprocess.Popen([*_opener(), url], stdin=nowhere, stdout=nowhere, stderr=nowhere, start_new_session=True)


def _opener() -> list[str]:
    """Return the command that opens a page."""
    if os.environ.get(WSL) and not os.environ.get("BROWSER"):
        for name in WSL_OPENERS:
            if (program := shutil.which(name)) is not None:
                return [program]
    return [sys.executable, "-P", "-m", "webbrowser"]
