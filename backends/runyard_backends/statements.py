"""Named SQL statements in a file."""

from __future__ import annotations

import re
from importlib.resources import files


def named_statements(package: str) -> dict[str, str]:
    """Return the statements of ``queries.sql`` of ``package`` by name, without their comments. A line ``-- name:`` begins a
    statement."""
    text = files(package).joinpath("queries.sql").read_text(encoding="utf-8")
    parts = re.split(r"^-- name: (\w+)$", text, flags=re.MULTILINE)
    return {
        name: re.sub(r"^--.*\n", "", part.strip(), flags=re.MULTILINE)
        for name, part in zip(parts[1::2], parts[2::2], strict=True)
    }
