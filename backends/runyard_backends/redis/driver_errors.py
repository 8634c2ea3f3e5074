"""Map errors of redis-py to errors of runyard, and decide which of them are transient.

A transient error becomes BackendUnavailableError, and :mod:`runyard.support.store_retries` repeats the call. A refused command
becomes RunyardError. After some replies, no connection to the server can be used: see :func:`cannot_serve`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from redis.exceptions import AuthenticationError, BusyLoadingError, OutOfMemoryError, ReadOnlyError, RedisError, ResponseError

from runyard.errors import BackendUnavailableError, LoginRefusedError, RunyardError

# The driver removes the code from the text of an error for which it has a class. Servers older than Redis 7 write the code of
# an error inside a script after ": -".
_CANNOT_SERVE: Final = re.compile(r"(?:^|: -)(?:READONLY|NOREPLICAS|MISCONF|LOADING|MASTERDOWN|CLUSTERDOWN|MOVED|UNBLOCKED)\b")
_REFUSES_WRITES: Final = re.compile(r"(?:^|: -)(?:NOREPLICAS|MISCONF)\b")
_MOVED: Final = "MOVED "
_MOVES: Final = ("ASK ", "TRYAGAIN ")
_FULL: Final = re.compile(r": -OOM\b")


def cannot_serve(error: RedisError) -> bool:
    """Return True if the server that replied ``error`` cannot be used at present.

    The replies have these meanings. READONLY: the server is a replica. UNBLOCKED for a waiting pop: the server has become a
    replica. NOREPLICAS: the server has lost its replicas. MASTERDOWN: the server has lost its primary. MISCONF: the server
    cannot save its data. LOADING: the server is starting. CLUSTERDOWN: its cluster has no majority. MOVED: another server holds
    the hash slot of the key. A new connection to the same name can lead to another server. A server without free memory (OOM)
    can be used.
    """
    return isinstance(error, ReadOnlyError | BusyLoadingError) or _CANNOT_SERVE.search(str(error)) is not None


def refuses_writes(error: RedisError) -> bool:
    """Return True if the server that replied ``error`` is a primary that takes no writes. Its subscribers still receive
    messages."""
    return _REFUSES_WRITES.search(str(error)) is not None


def has_moved(reply: object) -> bool:
    """Return True if ``reply`` is the error MOVED. This error means that another server of the cluster holds the hash slot of
    the call."""
    return isinstance(reply, ResponseError) and str(reply).startswith(_MOVED)


def _is_busy(error: ResponseError) -> bool:
    """Return True if the refused call may succeed later. The server refused it because it has no free memory, or because the
    hash slot of the call is being moved."""
    return isinstance(error, OutOfMemoryError) or _FULL.search(str(error)) is not None or str(error).startswith(_MOVES)


@contextmanager
def translated() -> Iterator[None]:
    """Replace the driver's errors by errors of runyard."""
    try:
        yield
    except ResponseError as error:
        if _is_busy(error) or cannot_serve(error):
            raise BackendUnavailableError(f"Redis cannot take writes: {error}") from error
        raise RunyardError(f"Redis refused a command: {error}") from error
    except AuthenticationError as error:
        raise LoginRefusedError(f"Redis refuses the user, the password or the database of its URL: {error}") from error
    except (RedisError, OSError) as error:  # OSError includes TimeoutError
        reason = str(error) or "no answer in time"
        raise BackendUnavailableError(f"Redis is unreachable ({reason}); repeat the call with the same ids") from error
