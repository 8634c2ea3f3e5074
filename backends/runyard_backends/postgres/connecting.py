"""Open connections to the Postgres server that takes writes, and set the timeouts of their sessions.

A URL may name several hosts. While one host does not answer, the other hosts are tried. A server that is read-only or a standby
is refused, because its data can be old. An example is the old primary after a failover.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from contextvars import Context
from typing import Any, Final
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit, urlunsplit

import asyncpg
import structlog

from runyard.errors import InvalidInputError
from runyard.support.connect_pause import ConnectPause

from .driver_errors import DRIVER_ERRORS

NEXT_HOST_SECONDS: Final = 0.3
"""Seconds to wait for the answer of a host. After this time, the next host of the URL is also tried."""
IDLE_IN_TRANSACTION_SECONDS: Final = 10.0
"""Seconds after which Postgres ends a transaction whose client sends nothing. Without this limit, a frozen client would hold
locks."""
LOCK_WAIT_SECONDS: Final = 0.1
"""Seconds for which a statement waits for a lock. Then the statement is undone, and its connection is free for other calls."""
MARGIN_SECONDS: Final = 1.0
"""Seconds by which the timeout of Postgres is longer than the caller's time limit. The caller therefore cancels a late
statement before Postgres does."""
TARGET: Final = "target_session_attrs"
TAKES_WRITES: Final = ("read-write", "primary")
"""Values of TARGET for a server that takes writes. A Connector also selects such a server if the URL has no TARGET."""
CACHE_SIZE: Final = "statement_cache_size"

FORM: Final = "postgresql://USER:PASSWORD@HOST:PORT,HOST:PORT/DATABASE"
TLS_FILES: Final = ("sslrootcert", "sslcert", "sslkey", "sslcrl")
"""Parameters of the URL that are paths of files."""
SYSTEM: Final = "system"
"""Value of ``sslrootcert`` for the certificate authorities of the system."""

TAKES_NO_WRITES: Final = """
    SELECT pg_catalog.pg_is_in_recovery() OR pg_catalog.current_setting('default_transaction_read_only')::bool
"""
"""Returns true if the server takes no writes. asyncpg's own check reads the parameter ``in_hot_standby``. Through PgBouncer,
this parameter can have the value of an earlier server."""

log = structlog.get_logger("runyard.postgres")


def session_timeouts(command_timeout: float) -> dict[str, str]:
    """Return the timeouts of a session. ``command_timeout``: the time limit of a call in seconds. The timeouts limit the waits
    for locks. If a caller has vanished, they end its statements and release its locks."""
    seconds = {
        "lock_timeout": LOCK_WAIT_SECONDS,
        "statement_timeout": command_timeout + MARGIN_SECONDS,
        "idle_in_transaction_session_timeout": IDLE_IN_TRANSACTION_SECONDS,
    }
    return {name: f"{value * 1000:.0f}" for name, value in seconds.items()}


class Connector:
    """Opens connections to ``url``. An instance can be the argument ``connect`` of asyncpg's pool.

    ``name``: the name under which Postgres lists the connections. ``timeouts``: settings of the session. A parameter of the URL
    with the same name takes precedence. ``target_session_attrs`` in the URL selects the servers. ``read-write`` and ``primary``
    are the default. With another value, asyncpg tries the hosts one after another, and may accept a server that takes no
    writes.
    """

    def __init__(self, url: str, name: str, timeouts: Mapping[str, str]) -> None:
        url, target = _without_target(url)
        parts = urlsplit(url)
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        self._any_server = target not in (None, *TAKES_WRITES)
        self._hosts = [url] if self._any_server else hosts(url)
        self.servers = tuple(self._hosts)
        # asyncpg itself parses hosts in the query of the URL. With this parameter, asyncpg connects to a host that takes
        # writes.
        self._target = {TARGET: target} if self._any_server else {TARGET: "read-write"} if "," in query.get("host", "") else {}
        self._name = name
        self._timeouts = {setting: value for setting, value in timeouts.items() if setting not in query}
        self._pause = ConnectPause()

    async def __call__(self, *_: object, **options: Any) -> asyncpg.Connection:
        """Open a connection. ``options``: arguments of asyncpg.connect. Raises the errors of asyncpg, OSError, TimeoutError."""
        self._pause.check()
        try:
            return await self._first({**self._target, **options})
        except TimeoutError:  # calls that end at a time limit do not flood the server
            raise
        except DRIVER_ERRORS as error:
            self._pause.failed(str(error))
            raise

    def refuse(self, error: Exception) -> None:
        """Open no connection for a short time, because an open connection can no longer be used."""
        self._pause.failed(str(error))

    async def _first(self, options: Mapping[str, Any]) -> asyncpg.Connection:
        """Return a connection to the first host that takes writes. If there is none, raise the error of the last host."""
        left = list(self._hosts)
        trying: set[asyncio.Task[asyncpg.Connection]] = set()
        try:
            while True:
                if left:
                    # The task gets an empty context. A connection stays open after the run that opened it, and must not keep
                    # the run's context.
                    trying.add(asyncio.create_task(self._open(left.pop(0), options), context=Context()))
                done, trying = await asyncio.wait(
                    trying, timeout=NEXT_HOST_SECONDS if left else None, return_when=asyncio.FIRST_COMPLETED
                )
                opened = [task.result() for task in done if task.exception() is None]
                for spare in opened[1:]:
                    spare.terminate()
                if opened:
                    return opened[0]
                if not left and not trying:
                    return done.pop().result()  # raises the error
        finally:
            for task in trying:
                task.cancel()
            for connection in await asyncio.gather(*trying, return_exceptions=True):
                if isinstance(connection, asyncpg.Connection):
                    connection.terminate()

    async def _open(self, url: str, options: Mapping[str, Any]) -> asyncpg.Connection:
        connection = await self._with_timeouts(url, dict(options))
        if self._any_server or TARGET in options:
            return connection
        try:
            refused = await connection.fetchval(TAKES_NO_WRITES)
        except BaseException:
            connection.terminate()
            raise
        if refused:
            connection.terminate()
            raise asyncpg.ReadOnlySQLTransactionError(f"{urlsplit(url).netloc.rpartition('@')[2]} is a standby or read-only")
        return connection

    async def _with_timeouts(self, url: str, options: dict[str, Any]) -> asyncpg.Connection:
        given = options.pop("server_settings", None) or {}
        named = {"application_name": self._name, **given}
        try:
            return await asyncpg.connect(url, server_settings={**self._timeouts, **named}, **options)
        except asyncpg.ProtocolViolationError as error:
            if not self._timeouts:
                raise
            # PgBouncer refuses parameters that it does not know.
            self._timeouts = {}
            log.info(
                "session_timeouts_refused",
                error=str(error),
                effect="the session has the timeouts of its role; set the timeouts of the role with ALTER ROLE",
            )
            return await asyncpg.connect(url, server_settings=named, **options)


def hosts(url: str) -> list[str]:
    """Return a URL for each host of ``url``, in the order of the hosts."""
    parts = urlsplit(url)
    login, at, names = parts.netloc.rpartition("@")
    if "," not in names:
        return [url]
    return [urlunsplit(parts._replace(netloc=f"{login}{at}{name}")) for name in names.split(",")]


def _without_target(url: str) -> tuple[str, str | None]:
    """Remove ``target_session_attrs`` from ``url``. Return the URL and the value."""
    parts = urlsplit(url)
    query = parse_qsl(parts.query, keep_blank_values=True)
    targets = [value for name, value in query if name == TARGET]
    if not targets:
        return url, None
    rest = urlencode([(name, value) for name, value in query if name != TARGET])
    return urlunsplit(parts._replace(query=rest)), targets[-1]


def split_url(url: str) -> tuple[str, dict[str, Any]]:
    """Remove ``statement_cache_size`` from ``url``. Return the URL, and the setting as an argument of asyncpg's pool.

    Processes behind PgBouncer need this setting. The setting is in the URL, because these processes read only the URL from the
    environment. asyncpg would send the setting to the server. The setting is therefore removed here. Raises InvalidInputError
    if the setting is not a number, if the URL cannot be parsed, or if a file of the URL cannot be read.
    """
    parts = _parts(url)
    query = parse_qsl(parts.query, keep_blank_values=True)
    unreadable = [
        f"{name} {path}" for name, path in query if name in TLS_FILES and path != SYSTEM and not os.access(path, os.R_OK)
    ]
    if unreadable:
        raise InvalidInputError(f"the TLS files of the URL of Postgres cannot be read: {', '.join(unreadable)}", field="url")
    sizes = [value for name, value in query if name == CACHE_SIZE]
    if not sizes:
        return url, {}
    if not sizes[-1].isdecimal():
        raise InvalidInputError(f"{CACHE_SIZE} in the URL must be a number, got {sizes[-1]!r}", field="url")
    rest = urlencode([(name, value) for name, value in query if name != CACHE_SIZE])
    return urlunsplit(parts._replace(query=rest)), {CACHE_SIZE: int(sizes[-1])}


def _parts(url: str) -> SplitResult:
    """Return the parts of ``url``. Raises InvalidInputError. The message of this error does not contain ``url``, because the
    URL can contain a password. (The driver's error would contain it.)"""
    try:
        parts = urlsplit(url)
        for address in parts.netloc.rpartition("@")[2].split(","):
            _ = urlsplit(f"//{address}").port  # raises ValueError
    except ValueError:
        raise InvalidInputError(
            f"not a Postgres URL; expected {FORM}; in the password, write / ? # [ ] @ : % as % and two hexadecimal digits",
            field="url",
        ) from None
    return parts
