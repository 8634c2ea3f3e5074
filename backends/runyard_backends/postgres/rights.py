"""The rights of the role with which workers, API processes and clients connect.

The role that migrates owns the schema. Workers, API processes and clients have another role. Their role can read the tables and
call functions. These functions have the rights of their owner. Their role writes to most tables only through functions.
Statements of ``queries.sql`` write to a few tables directly.
"""

from __future__ import annotations

from runyard.errors import InvalidInputError

from .connecting import Connector, split_url
from .database import Connection, statements
from .driver_errors import translated

GRANT_CONNECTION = "runyard-grant"
"""Name under which Postgres lists the connection that grants rights."""


async def revoke_public_rights(connection: Connection) -> None:
    """Revoke the rights of ``PUBLIC`` in the schema. ``connection``: a connection of the schema's owner."""
    for row in await connection.fetch(statements()["public_rights"]):
        await connection.execute(row["statement"])


async def grant(url: str, role: str) -> None:
    """Give ``role`` the rights that workers, API processes and clients need in the schema. Revoke its other rights in the
    schema, and the rights of ``PUBLIC``.

    ``url``: a URL with the owner of the schema as its user. Repeat the call after each migration, because a migration may add
    tables. Raises InvalidInputError if the role does not exist. Raises InvalidInputError for the owner and for a superuser,
    because these roles have all rights. Raises BackendUnavailableError.
    """
    sql = statements()
    url, _ = split_url(url)
    with translated():
        connection = await Connector(url, GRANT_CONNECTION, {})(statement_cache_size=0)
        try:
            async with connection.transaction():
                found = await connection.fetchrow(sql["role_facts"], role)
                if found is None:
                    raise InvalidInputError(
                        f"there is no role {role!r}; make it with CREATE ROLE … LOGIN PASSWORD …", role=role
                    )
                if found["unlimited"]:
                    raise InvalidInputError(f"role {role!r} is a superuser or owns the schema; name another role", role=role)
                await revoke_public_rights(connection)
                for row in await connection.fetch(sql["grants"], role):
                    await connection.execute(row["statement"])
        finally:
            await connection.close()
