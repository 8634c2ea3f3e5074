"""The driver's connection beneath a connection of Django, for ``enqueue(…, connection=…)``."""

from __future__ import annotations

from typing import Any

from ..support.class_origins import is_of


def opened(connection: Any) -> Any:
    """Return the driver's connection of a connection of Django (``django.db.connection``), and any other value unchanged.

    The database engine may be from another package that derives it from Django's. Call this function in the thread that uses
    the connection, because Django has a connection for each thread. A connection that is not open is opened. Django refuses to
    open a connection inside an event loop.
    """
    if not is_of(connection, "django"):
        return connection
    if connection.connection is None:
        connection.ensure_connection()
    return connection.connection
