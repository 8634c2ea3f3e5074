"""What the codec sends as one value has the attributes of its SQL type, in their order: they are bound by position."""

from __future__ import annotations

from typing import Any

import asyncpg
import pytest

from runyard_backends.postgres import codec

ATTRIBUTES = """
SELECT attname FROM pg_attribute
WHERE attrelid = ('runyard.' || $1)::regclass AND attnum > 0 AND NOT attisdropped
ORDER BY attnum
"""


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("request", codec.RunRequest),
        ("new_message", codec.NewMessage),
        ("new_request", codec.NewRequest),
        ("attempt_write", codec.AttemptWrite),
        ("interim_write", codec.InterimWrite),
    ],
)
async def test_the_fields_are_those_of_the_type(postgres_url: str, name: str, kind: Any) -> None:
    connection = await asyncpg.connect(postgres_url)
    try:
        rows = await connection.fetch(ATTRIBUTES, name)
    finally:
        await connection.close()
    assert [row["attname"] for row in rows] == list(kind._fields)
