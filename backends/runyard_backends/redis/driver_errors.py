"""Which errors of redis-py are transient, and which error of runyard replaces an error of redis-py.

A transient error becomes BackendUnavailableError, which :mod:`runyard.support.store_retries` repeats. A refused command becomes
RunyardError. Some replies mean that no connection to the server is of use: see :func:`cannot_serve`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from redis.exceptions import BusyLoadingError, OutOfMemoryError, ReadOnlyError, RedisError, ResponseError

from runyard.errors import BackendUnavailableError, RunyardError

# The driver removes the code from the text of the errors that have a class. A server before Redis 7 writes the code of an error
# inside a script behind ": -".
_CANNOT_SERVE: Final = re.compile(r"(?:^|: -)(?:READONLY|NOREPLICAS|MISCONF|LOADING|MASTERDOWN|CLUSTERDOWN|UNBLOCKED)\b")
_REFUSES_WRITES: Final = re.compile(r"(?:^|: -)(?:NOREPLICAS|MISCONF)\b")
_FULL: Final = re.compile(r": -OOM\b")


def cannot_serve(error: RedisError) -> bool:
    """Return True if the server that replied ``error`` is not the one to use, or not yet.

    It is a replica (READONLY, and UNBLOCKED to a waiting pop), has lost its replicas (NOREPLICAS) or its primary (MASTERDOWN),
    cannot save (MISCONF), is starting (LOADING), or belongs to a cluster without a majority (CLUSTERDOWN). Another server may
    have its name by now. A server without free memory (OOM) is the right one.
    """
    return isinstance(error, ReadOnlyError | BusyLoadingError) or _CANNOT_SERVE.search(str(error)) is not None


def refuses_writes(error: RedisError) -> bool:
    """Return True if the server that replied ``error`` is a primary that takes no writes. Subscribers still receive its
    messages, unless another server has its name by now."""
    return _REFUSES_WRITES.search(str(error)) is not None


@contextmanager
def translated() -> Iterator[None]:
    """Turn the driver's errors into runyard's."""
    try:
        yield
    except ResponseError as error:
        if isinstance(error, OutOfMemoryError) or _FULL.search(str(error)) or cannot_serve(error):
            raise BackendUnavailableError(f"Redis cannot take writes: {error}") from error
        raise RunyardError(f"Redis refused a command: {error}") from error
    except (RedisError, OSError) as error:  # OSError includes TimeoutError
        reason = str(error) or "no answer in time"
        raise BackendUnavailableError(f"Redis is unreachable ({reason}); repeat the call with the same ids") from error
