"""Which errors of redis-py are transient, and which error of runyard replaces an error of redis-py.

A transient error becomes BackendUnavailableError, which :mod:`runyard.support.store_retries` repeats. A refused command becomes
RunyardError.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from redis.exceptions import OutOfMemoryError, ReadOnlyError, RedisError, ResponseError

from runyard.errors import BackendUnavailableError, RunyardError

# The errors of a server that is reachable but cannot write, because it is a replica (during a failover) or out of memory.
_UNABLE = (ReadOnlyError, OutOfMemoryError)


@contextmanager
def translated() -> Iterator[None]:
    """Turn the driver's errors into runyard's."""
    try:
        yield
    except _UNABLE as error:
        raise BackendUnavailableError(f"Redis cannot take writes: {error}") from error
    except ResponseError as error:
        raise RunyardError(f"Redis refused a command: {error}") from error
    except (RedisError, OSError) as error:  # OSError includes TimeoutError
        reason = str(error) or "no answer in time"
        raise BackendUnavailableError(f"Redis is unreachable ({reason}); repeat the call with the same ids") from error
