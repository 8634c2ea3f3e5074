"""The paths in URLs of SQLite files. This module needs no driver."""

from __future__ import annotations

from pathlib import Path
from typing import Final
from urllib.parse import unquote

from runyard.errors import InvalidInputError

_SCHEME: Final = "sqlite:///"


def path_of(url: str) -> Path:
    """Return the path in ``sqlite:///relative.db`` or ``sqlite:////absolute.db``. Raises InvalidInputError for other URLs."""
    path = unquote(url.removeprefix(_SCHEME))
    if not url.startswith(_SCHEME) or not path or "?" in url or "#" in url:
        raise InvalidInputError(
            "the URL of a SQLite file is sqlite:///relative/path.db or sqlite:////absolute/path.db, without ? and #",
            field="url",
        )
    if path == ":memory:":
        raise InvalidInputError(
            "a SQLite store needs a file; for a store in memory, use memory:// or MemoryCheckpointer", field="url"
        )
    if "\0" in path:
        raise InvalidInputError("a path has no NUL character", field="url")
    return Path(path)
