"""The driver's connection beneath a connection of Django, for ``enqueue(…, connection=…)``."""

from __future__ import annotations

from typing import Any

from ..support.class_origins import is_of


def opened(connection: Any) -> Any:
    """Return the driver's connection of ``django.db.connection``. Return any other value unchanged.

    ``connection`` may also belong to the database engine of another package, if its class is derived from Django's. Call this
    function in the thread that uses the connection, because Django has a separate connection for each thread. If the connection
    is not open, this function opens it. Django refuses to open a connection inside an event loop.
    """
    if not is_of(connection, "django"):
        return connection
    if connection.connection is None:
        connection.ensure_connection()
    return connection.connection
