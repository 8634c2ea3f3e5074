"""Map errors of a MySQL or MariaDB server to errors of runyard."""

from __future__ import annotations

from typing import Final

from asyncmy import errors

from runyard.errors import BackendUnavailableError, InvalidInputError, SchemaMismatch, SchemaUninitialized

from .database import DuplicateKeyError

_UNDONE: Final = frozenset({1020, 1205, 1213})
"""Codes of errors after which a verb may be tried again: another transaction changed a row, the wait for a lock was too long,
or there was a deadlock."""
_DUPLICATE: Final = 1062
_NO_TABLE: Final = 1146
_NO_COLUMN: Final = 1054
_REFUSED_VALUES: Final = frozenset({1264, 1366, 1406, 1690})
_TOO_LARGE: Final = 1153
_UNAVAILABLE: Final = frozenset(
    {
        *(1040, 1044, 1045, 1049, 1053, 1129, 1130, 1158, 1159, 1160, 1161, 1184, 1203, 1226, 1290, 1317, 1698, 1792, 1836),
        *(1927, 1969, 2003, 2006, 2013, 2014, 2055, 3024, 3032, 3159),
    }
)
"""Codes of errors of connections, accounts, read-only servers and killed statements."""
BROKEN: Final = (OSError, EOFError, TimeoutError, errors.InterfaceError, errors.InternalError)
"""Classes of the errors after which a connection can no longer be used."""


class UndoneError(Exception):
    """The server rolled back a transaction because of other transactions. The transaction may be tried again."""


def translate(error: BaseException) -> Exception | None:
    """For an error of the driver, return the error of runyard, UndoneError or DuplicateKeyError. Return None for an error that
    shows a defect. The caller raises such an error unchanged."""
    code = error.args[0] if isinstance(error, errors.MySQLError) and error.args else None
    if code in _UNDONE:
        return UndoneError(str(error))
    if code == _DUPLICATE:
        return DuplicateKeyError()
    if code == _NO_TABLE:
        return SchemaUninitialized("the database has no runyard schema; run `runyard migrate`")
    if code == _NO_COLUMN:
        return SchemaMismatch("the database schema is older than this code; run `runyard migrate`")
    if code in _REFUSED_VALUES:
        return InvalidInputError(f"a value cannot be stored: {error.args[1]}")
    if code == _TOO_LARGE:
        return too_large()
    if code in _UNAVAILABLE or isinstance(error, BROKEN):
        why = str(error) or "no answer in time"
        return BackendUnavailableError(f"the MySQL server cannot be reached or refuses the call: {why}")
    return None


def too_large() -> InvalidInputError:
    return InvalidInputError("a message is larger than the server's max_allowed_packet; set it to 64M or store less")
