"""The rights of the role with which workers, API processes and clients connect.

The role that migrates owns the schema. The other role calls functions that have the rights of their owner, and reads the
tables. It writes to tables only through functions, except for the few tables that statements of ``queries.sql`` write.
"""

from __future__ import annotations

from runyard.errors import InvalidInputError

from .connecting import Connector, split_url
from .database import Connection, statements
from .driver_errors import translated

GRANT_CONNECTION = "runyard-grant"
"""Name under which Postgres lists the connection that grants rights."""


async def revoke_public_rights(connection: Connection) -> None:
    """Take the rights of everybody (``PUBLIC``) in the schema. ``connection``: of the owner of the schema."""
    for row in await connection.fetch(statements()["public_rights"]):
        await connection.execute(row["statement"])


async def grant(url: str, role: str) -> None:
    """Give ``role`` the rights that workers, API processes and clients need in the schema, and take its other rights there,
    also those of everybody (``PUBLIC``).

    ``url``: connects as the owner of the schema. Repeat the call after each migration, because a migration may add tables.
    Raises InvalidInputError if there is no such role. Raises InvalidInputError for the owner or a superuser, who have all
    rights anyway. Raises BackendUnavailableError.
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
