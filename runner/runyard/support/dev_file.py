"""The file ``.runyard/dev.json``. Commands in a second terminal read the servers of ``runyard dev`` from this file.

The file has the passwords of the private servers. The mode of the file is 0600, so that only the owner of the file can read it.
A ``runyard dev`` takes the lock of its folder (flock on ``dev.lock``) before it changes the folder. The lock is released at the
end of the process, even if the process is killed. Commands use the file only while a process holds the lock. Commands refuse a
file or folder that another user owns or can change, because prompts could then go to a server of the other user.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from ..errors import InvalidInputError

FOLDER: Final = ".runyard"
FILE: Final = "dev.json"
LOCK: Final = "dev.lock"
INSTEAD: Final = "set RUNYARD_POSTGRES_URL and RUNYARD_REDIS_URL"
"""The remedy in the error about a refused file."""
LOCK_SECONDS: Final = 1.0
"""Seconds to wait for the lock. A command that only checks the lock holds it for a moment."""
MAX_CHARACTERS: Final = 65_536
"""Maximum number of characters to read from the file."""
MAX_TROUBLE_CHARACTERS: Final = 2_000
"""Maximum number of characters of ``Deployment.trouble`` that are written and read."""


@dataclass(frozen=True)
class Deployment:
    """The URLs of a running ``runyard dev``. ``pid``: its process id. ``app``: the app that it serves, as ``module:app``.

    ``trouble``: how the last worker ended, if ``dev`` has not replaced this worker. The text is empty if ``dev`` has all its
    workers.
    """

    pid: int
    postgres_url: str
    redis_url: str
    app: str
    trouble: str = ""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of ``folder`` inside the ``with`` block. First remove the file of an earlier ``runyard dev``.

    Raises InvalidInputError if a ``runyard dev`` holds the lock, or if the folder or the lock's file cannot be trusted.
    """
    check(folder)
    with _opened_lock(folder, os.O_CREAT) as lock:
        deadline = time.monotonic() + LOCK_SECONDS
        while not try_lock(lock):
            if time.monotonic() > deadline:
                running = read(folder)
                process = f" (process {running.pid})" if running else ""
                raise InvalidInputError(f"`runyard dev` runs here already{process}; stop it first")
            time.sleep(0.02)
        remove(folder)
        yield


@contextmanager
def _opened_lock(folder: Path, flags: int = 0) -> Iterator[int]:
    opened = _open(folder / LOCK, os.O_RDWR | flags)
    try:
        check_owner(folder / LOCK, os.fstat(opened))
        yield opened
    finally:
        os.close(opened)


def try_lock(opened: int, kind: int = fcntl.LOCK_EX) -> bool:
    """Lock the open file ``opened`` until it is closed. Return whether the lock was free."""
    try:
        fcntl.flock(opened, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_locked(folder: Path) -> bool:
    """Return whether a ``runyard dev`` holds the lock of ``folder``."""
    try:
        with _opened_lock(folder) as lock:
            return not try_lock(lock, fcntl.LOCK_SH)
    except FileNotFoundError:
        return False


def _open(file: Path, flags: int) -> int:
    """Open ``file``. Raises FileNotFoundError, NotADirectoryError, or InvalidInputError for a link, a folder or a pipe."""
    try:
        opened = os.open(file, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        why = "is a link" if error.errno == errno.ELOOP else f"cannot be opened ({error.strerror})"
        raise _not_followed(file, why, "remove it") from None
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise _not_followed(file, "is not a file", "remove it")
    return opened


def write(folder: Path, deployment: Deployment) -> Path:
    """Write ``deployment`` to the file in ``folder``. Return the path. Readers see the old file or the complete new file.

    An empty ``trouble`` is not written, because releases without this field refuse the file.
    """
    fields = asdict(deployment)
    if trouble := fields.pop("trouble"):
        fields["trouble"] = trouble[:MAX_TROUBLE_CHARACTERS]
    draft = folder / f"{FILE}.{os.getpid()}"
    draft.unlink(missing_ok=True)
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(fields, file, indent=2)
        return draft.replace(folder / FILE)
    finally:
        draft.unlink(missing_ok=True)


def read(folder: Path) -> Deployment | None:
    """Return the deployment in ``folder``. Return None if there is no valid file, or if no ``runyard dev`` holds the lock.

    Fields that this release does not know are ignored.

    Raises InvalidInputError if the folder or the file is a link, belongs to another user, or can be changed by another user.
    """
    check(folder)
    file = folder / FILE
    try:
        opened = _open(file, os.O_RDONLY)
    except (FileNotFoundError, NotADirectoryError):
        return None
    with os.fdopen(opened, errors="replace") as source:
        check_owner(file, os.fstat(opened))
        try:
            deployment = _deployment(json.loads(source.read(MAX_CHARACTERS)))
        except (ValueError, RecursionError, OSError):
            return None
    return deployment if deployment is not None and _is_locked(folder) else None


def _deployment(found: Any) -> Deployment | None:
    """Return the deployment that a JSON document describes, or None if a field is missing or has a wrong type."""
    if not isinstance(found, dict) or type(found.get("pid")) is not int:
        return None
    postgres_url, redis_url, app, trouble = (found.get(name) for name in ("postgres_url", "redis_url", "app", "trouble"))
    if not (isinstance(postgres_url, str) and isinstance(redis_url, str) and isinstance(app, str)):
        return None
    trouble = trouble[:MAX_TROUBLE_CHARACTERS] if isinstance(trouble, str) else ""
    return Deployment(found["pid"], postgres_url, redis_url, app, trouble)


def check(folder: Path) -> None:
    """Raise InvalidInputError if ``folder`` is a link, belongs to another user, or can be changed by another user.

    A missing folder is accepted.
    """
    try:
        found = folder.lstat()
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return
    if stat.S_ISLNK(found.st_mode):
        raise _not_followed(folder, "is a link", "remove it")
    check_owner(folder, found)


def check_owner(path: Path, found: os.stat_result, *, root: bool = False, instead: str = INSTEAD) -> None:
    """Raise InvalidInputError if another user owns the file or folder ``path``, or can change it.

    ``found``: the result of ``os.stat`` for ``path``. ``root``: whether root may own ``path``. ``instead``: a second remedy for
    the text of the error.
    """
    if found.st_uid != os.geteuid() and not (root and found.st_uid == 0):
        raise _not_followed(path, f"belongs to another user (id {found.st_uid})", "remove it", instead)
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise _not_followed(path, "can be changed by others", f"run `chmod go-w {path}` if it is yours", instead)


def _not_followed(path: Path, why: str, do: str, instead: str = INSTEAD) -> InvalidInputError:
    return InvalidInputError(f"{path} {why} and is not used: {do}, or {instead}")


def find(start: Path | None = None) -> Deployment | None:
    """Return the nearest deployment in ``start`` or a folder above it. Search up to the home folder, on one file system.

    If the user has no home folder, search up to the root of the file system. Raises InvalidInputError if a file or folder on
    the way is a link, belongs to another user, or can be changed by another user.
    """
    here = (start or Path.cwd()).resolve()
    device, home = _device(here), _home()
    for folder in (here, *here.parents):
        if _device(folder) != device:
            return None
        if (found := read(folder / FOLDER)) is not None or folder == home:
            return found
    return None


def _home() -> Path | None:
    """Return the user's home folder, or None if the user has none."""
    try:
        return Path.home()
    except RuntimeError:
        return None


def _device(folder: Path) -> int:
    return folder.stat().st_dev


def remove(folder: Path) -> None:
    """Remove the file in ``folder``. The caller holds the folder's lock."""
    (folder / FILE).unlink(missing_ok=True)
