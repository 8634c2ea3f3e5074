"""The file ``.env`` of the current folder. The file may belong to another program."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from ..errors import InvalidInputError

ENV_FILE: Final = ".env"
"""The file with variables. It is read from the current folder only."""
PREFIX: Final = "RUNYARD_"
"""The prefix of runyard's environment variables."""


def read(name: str = PREFIX) -> tuple[str, os.stat_result] | None:
    """Return the text of the file and its ``os.stat`` result. Return None if there is no file, or if the file does not contain
    ``name``.

    Raises InvalidInputError if the file cannot be opened, or if the file contains ``name`` and is not UTF-8.
    """
    file = Path(ENV_FILE)
    try:
        if not file.is_file():
            return None
        with file.open("rb") as opened:
            content, status = opened.read(), os.fstat(opened.fileno())
        return (content.decode(), status) if name.lower().encode() in content.lower() else None
    except OSError as error:
        raise InvalidInputError(f"{file} cannot be read ({error.strerror}); repair or remove it") from None
    except UnicodeDecodeError:
        raise InvalidInputError(f"{file} is not UTF-8; save it as UTF-8 or remove it") from None
