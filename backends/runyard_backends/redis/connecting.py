"""Open connections to the Redis server that a URL names, with or without TLS.

===========================================  ==================================================================================
URL                                          server
===========================================  ==================================================================================
``redis://USER:PASSWORD@HOST:PORT/DB``       the server at one address. The host name may later lead to another server.
``unix://USER:PASSWORD@/PATH?db=DB``         the server at a socket of this machine
``redis+sentinel://…@HOST:PORT,…/NAME/DB``   the primary that the sentinels at these addresses know as ``NAME``
``redis+cluster://…@HOST:PORT,…``            the cluster to which the servers at these addresses belong
``fakeredis://NAME``                         a server inside this process, for tests (:mod:`runyard_backends.redis.fake`)
===========================================  ==================================================================================

``rediss`` in place of ``redis`` means TLS. Parameters of the URL are arguments of the driver's connections: ``ssl_ca_certs``,
``ssl_certfile`` and ``ssl_keyfile`` are paths of files. User and password belong to the servers. If the sentinels have their
own password, set the parameters ``sentinel_username`` and ``sentinel_password``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, Protocol
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit, urlunsplit

from redis.asyncio.connection import AbstractConnection, ConnectionPool, SSLConnection
from redis.asyncio.sentinel import Sentinel
from redis.exceptions import RedisError

from runyard.errors import InvalidInputError
from runyard.support.optional_imports import load

NEXT_SENTINEL_SECONDS: Final = 0.5
"""Seconds to wait for the answer of a sentinel before the next sentinel is asked."""
SENTINEL_PORT: Final = 26379
PORT: Final = 6379
FORMS: Final = (
    "redis://USER:PASSWORD@HOST:PORT/DATABASE, redis+sentinel://USER:PASSWORD@HOST:PORT,HOST:PORT/NAME, "
    "redis+cluster://USER:PASSWORD@HOST:PORT,HOST:PORT"
)
SENTINEL_LOGIN: Final = {"sentinel_username": "username", "sentinel_password": "password"}
"""Parameters of the URL that only the sentinels use, and the driver's names of these parameters."""

Address = tuple[str, int]


class Connector(Protocol):
    """Opens connections to a server that takes writes. :meth:`close` closes only the connections that the connector uses
    itself."""

    async def __call__(self) -> AbstractConnection: ...
    async def close(self) -> None: ...


def connector(url: str, timeout: float, name: str) -> Connector:
    """Return a connector to ``url``. ``timeout``: seconds for one connection. ``name``: the name under which the server lists
    the connections. Raises InvalidInputError if ``url`` is not a URL of Redis, or if its files for TLS cannot be used."""
    if url.startswith("fakeredis://"):
        return PoolConnector(load(f"{__package__}.fake").connections(url, name))
    with _parsing():
        parts = urlsplit(url)
        if parts.scheme in ("redis+sentinel", "rediss+sentinel"):
            return _sentinel_connector(parts, timeout, name)
        return PoolConnector(pool(url, timeout, name))


@contextmanager
def _parsing() -> Iterator[None]:
    """Replace the errors of a URL that cannot be parsed. The texts of these errors contain parts of the URL and can contain
    the password. The errors that the driver raises for some values of parameters are also replaced.
    """
    try:
        yield
    except InvalidInputError:
        raise
    except (ValueError, TypeError, NameError):
        raise InvalidInputError(f"not a Redis URL; expected {FORMS}", field="redis") from None


def pool(url: str, timeout: float, name: str) -> ConnectionPool:
    """Return a pool that makes connections to ``url``. The pool has no open connection. Raises ValueError,
    InvalidInputError."""
    # The driver gets no socket timeout, because with a timeout it starts a task for each write. RedisServer has one timeout for
    # a whole round trip.
    made = ConnectionPool.from_url(url, socket_timeout=None, socket_connect_timeout=timeout, client_name=name)
    options = made.connection_kwargs
    if issubclass(made.connection_class, SSLConnection):
        # By default the driver would accept a certificate for any host.
        options.setdefault("ssl_check_hostname", options.get("ssl_cert_reqs") != "none")
    try:
        connection = made.make_connection()  # type: ignore[no-untyped-call]
        if isinstance(connection, SSLConnection):
            connection.ssl_context.get()
    except TypeError as error:  # an unknown parameter; the text of the error has its name but not its value
        raise InvalidInputError(f"a parameter of the URL of Redis is unknown: {error}", field="redis") from None
    except OSError as error:
        files = [
            f"{option} {options[option]}" for option in ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile") if option in options
        ]
        raise InvalidInputError(
            f"the TLS files of the URL of Redis cannot be used ({error}): {', '.join(files)}", field="redis"
        ) from None
    except RedisError as error:
        raise InvalidInputError(f"the URL of Redis cannot be used: {error}", field="redis") from None
    return made


class PoolConnector:
    """Opens connections of the pool ``made``. ``address``: the address to use in place of the pool's own address."""

    def __init__(self, made: ConnectionPool, address: Address | None = None) -> None:
        self._class = made.connection_class
        self._options = {**made.connection_kwargs, **({} if address is None else {"host": address[0], "port": address[1]})}

    async def __call__(self) -> AbstractConnection:
        connection: AbstractConnection = self._class(**self._options)
        await connection.connect()  # type: ignore[no-untyped-call]
        return connection

    async def close(self) -> None:
        """Do nothing, because the connections belong to the caller."""


class SentinelConnector:
    """Opens connections to the current primary. The connector asks a sentinel for the primary. If the sentinel names no primary
    or does not answer, it asks the next sentinel.

    The driver's own class for such connections is not used. After the reply READONLY, that class closes only one connection,
    and keeps the other connections to the same replica.
    """

    def __init__(self, sentinels: Sequence[Address], service: str, made: ConnectionPool, login: Mapping[str, str]) -> None:
        tls = {name: value for name, value in made.connection_kwargs.items() if name.startswith("ssl_")}
        options = {"ssl": issubclass(made.connection_class, SSLConnection), **tls, **login}
        limit = {"socket_timeout": NEXT_SENTINEL_SECONDS, "socket_connect_timeout": NEXT_SENTINEL_SECONDS}
        self._sentinel = Sentinel(sentinels, sentinel_kwargs=options | limit)  # type: ignore[no-untyped-call]
        self._service = service
        self._made = made

    async def __call__(self) -> AbstractConnection:
        address = await self._sentinel.discover_master(self._service)
        return await PoolConnector(self._made, address)()

    async def close(self) -> None:
        """Close the connections to the sentinels."""
        for client in self._sentinel.sentinels:
            await client.aclose()


class ClusterUrl:
    """A URL of a cluster. ``seeds``: the addresses in the URL. Raises InvalidInputError if ``url`` is no URL of a cluster.
    Raises InvalidInputError if ``url`` names a database, because a cluster has only one database."""

    def __init__(self, url: str, timeout: float, name: str) -> None:
        with _parsing():
            parts = urlsplit(url)
            self.seeds = addresses(parts, PORT)
            self._made = pool(server_url(parts, ""), timeout, name)
        if parts.path not in ("", "/", "/0"):
            raise InvalidInputError(f"a cluster of Redis has database 0 only; the URL names {parts.path[1:]!r}", field="redis")

    def connector(self, address: Address) -> PoolConnector:
        """Return a connector to the server at ``address``."""
        return PoolConnector(self._made, address)


def is_cluster(url: str) -> bool:
    """Return True if ``url`` is a URL of a cluster."""
    return url.partition(":")[0].lower() in ("redis+cluster", "rediss+cluster")


def _sentinel_connector(parts: SplitResult, timeout: float, name: str) -> SentinelConnector:
    """Return the connector of a URL of sentinels. Raises ValueError, InvalidInputError."""
    service, _, database = parts.path.removeprefix("/").partition("/")
    if not service:
        raise InvalidInputError(f"the URL of the sentinels has no name of a primary; expected {FORMS}", field="redis")
    if database and not database.isdecimal():
        raise ValueError
    query = parse_qsl(parts.query)
    login = {SENTINEL_LOGIN[name]: value for name, value in query if name in SENTINEL_LOGIN}
    rest = urlencode([(name, value) for name, value in query if name not in SENTINEL_LOGIN])
    made = pool(server_url(parts._replace(query=rest), f"/{database}"), timeout, name)
    return SentinelConnector(addresses(parts, SENTINEL_PORT), service, made, login)


def server_url(parts: SplitResult, path: str) -> str:
    """Return a URL with the login and the parameters of ``parts`` and with ``path``, but without a host and port. The scheme
    loses the part after ``+``."""
    login, at, _ = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(scheme=parts.scheme.partition("+")[0], netloc=f"{login}{at}", path=path))


def addresses(parts: SplitResult, port: int) -> list[Address]:
    """Return the addresses of ``parts``. ``port``: the port of an address without a port. Raises ValueError for an address
    without a host."""
    found = []
    for address in parts.netloc.rpartition("@")[2].split(","):
        one = urlsplit(f"//{address}")
        if not one.hostname:
            raise ValueError
        found.append((one.hostname, one.port or port))
    return found
