"""The file by which commands in a second terminal find what ``runyard dev`` started: ``.runyard/dev.json``, readable by its
owner only.

It holds passwords of the private servers, so it is made with mode 0600 from its first byte, and it is trusted only while the
process that wrote it lives.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

FOLDER: Final = ".runyard"
FILE: Final = "dev.json"


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
    """What is announced in ``folder`` and still lives."""
    try:
        deployment = Deployment(**json.loads((folder / FILE).read_text()))
    except (FileNotFoundError, NotADirectoryError, PermissionError, ValueError, TypeError):
        return None
    return deployment if deployment.alive else None


def find(start: Path | None = None) -> Deployment | None:
    """The nearest deployment announced in ``start`` or a folder above it."""
    here = (start or Path.cwd()).resolve()
    return next((found for folder in (here, *here.parents) if (found := read(folder / FOLDER))), None)


def remove(folder: Path) -> None:
    """Withdraw this process's announcement."""
    deployment = read(folder)
    if deployment is not None and deployment.pid == os.getpid():
        (folder / FILE).unlink(missing_ok=True)
