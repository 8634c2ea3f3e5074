"""What a database's URL says to us and not to the server."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from runner.errors import InvalidInputError

CACHE_SIZE: Final = "statement_cache_size"


def split_url(url: str) -> tuple[str, dict[str, Any]]:
    """``url`` without ``statement_cache_size``, which asyncpg would send to the server, and that as an argument.

    It is in the URL because behind PgBouncer every process needs it that reads the URL from its environment.
    """
    parts = urlsplit(url)
    query = parse_qsl(parts.query, keep_blank_values=True)
    sizes = [value for name, value in query if name == CACHE_SIZE]
    if not sizes:
        return url, {}
    if not sizes[-1].isdecimal():
        raise InvalidInputError(f"{CACHE_SIZE} in the URL must be a number, got {sizes[-1]!r}", field="url")
    rest = urlencode([(name, value) for name, value in query if name != CACHE_SIZE])
    return urlunsplit(parts._replace(query=rest)), {CACHE_SIZE: int(sizes[-1])}
