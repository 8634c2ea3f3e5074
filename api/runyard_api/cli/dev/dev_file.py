"""The file by which commands in a second terminal find what ``runyard dev`` started: ``.runyard/dev.json``, readable by its
owner only.

It holds passwords of the private servers, so it is made with mode 0600 from its first byte, and it is trusted only while the
process that wrote it lives. What another user made, or could change, is not followed: prompts would go to their server.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from runyard.errors import InvalidInputError

FOLDER: Final = ".runyard"
FILE: Final = "dev.json"
MAX_CHARACTERS: Final = 65_536
"""Characters that are read of it."""


@dataclass(frozen=True)
class Deployment:
    """Where a running ``runyard dev`` keeps its servers."""

    pid: int
    postgres_url: str
    redis_url: str
    app: str

    @property
    def alive(self) -> bool:
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return True


def write(folder: Path, deployment: Deployment) -> Path:
    """Announce ``deployment`` in ``folder``; readers see the old file or the whole new one."""
    draft = folder / f"{FILE}.{os.getpid()}"
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump(asdict(deployment), file, indent=2)
    return draft.replace(folder / FILE)


def read(folder: Path) -> Deployment | None:
    """What is announced in ``folder`` and still lives. Raises InvalidInputError if it is not the caller's alone."""
    check(folder)
    file = folder / FILE
    try:
        opened = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        why = "is a link" if error.errno == errno.ELOOP else f"cannot be read ({error.strerror})"
        raise _not_followed(file, why, "remove it") from None
    with os.fdopen(opened, errors="replace") as source:
        _check_owner(file, os.fstat(opened))
        try:
            found = json.loads(source.read(MAX_CHARACTERS))
            deployment = Deployment(**found)
        except (ValueError, TypeError, RecursionError, OSError):
            return None
    fits = isinstance(found.pop("pid"), int) and all(isinstance(value, str) for value in found.values())
    return deployment if fits and deployment.alive else None


def check(folder: Path) -> None:
    """Raise InvalidInputError if ``folder`` is there and is not the caller's alone."""
    try:
        found = folder.lstat()
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return
    if stat.S_ISLNK(found.st_mode):
        raise _not_followed(folder, "is a link", "remove it")
    _check_owner(folder, found)


def _check_owner(path: Path, found: os.stat_result) -> None:
    if found.st_uid != os.geteuid():
        raise _not_followed(path, f"belongs to another user (id {found.st_uid})", "remove it")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise _not_followed(path, "can be changed by others", f"run `chmod go-w {path}` if it is yours")


def _not_followed(path: Path, why: str, do: str) -> InvalidInputError:
    return InvalidInputError(f"{path} {why} and is not followed: {do}, or set RUNYARD_POSTGRES_URL and RUNYARD_REDIS_URL")


def find(start: Path | None = None) -> Deployment | None:
    """The nearest deployment announced in ``start`` or a folder above it: up to the home folder, and on one file system.

    Raises InvalidInputError for one on the way that is not the caller's alone.
    """
    here = (start or Path.cwd()).resolve()
    device, home = _device(here), Path.home()
    for folder in (here, *here.parents):
        if _device(folder) != device:
            return None
        if (found := read(folder / FOLDER)) is not None or folder == home:
            return found
    return None


def _device(folder: Path) -> int:
    return folder.stat().st_dev


def remove(folder: Path) -> None:
    """Withdraw this process's announcement."""
    deployment = read(folder)
    if deployment is not None and deployment.pid == os.getpid():
        (folder / FILE).unlink(missing_ok=True)
