"""Retries of calls to a store that does not answer, for a limited time.

Only a call that raised BackendUnavailableError is repeated. The modules ``driver_errors`` of the backends convert errors of a
driver to BackendUnavailableError.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from ..errors import BackendUnavailableError, LockedError

T = TypeVar("T")

RETRY_LIMIT_SECONDS: Final = 30.0
"""Seconds for which a write of an attempt is repeated. After this time the attempt ends."""


LOCKED_SECONDS: Final = 10.0
"""Maximum number of seconds for which a call waits for a row lock."""
MAX_LOCKED_PAUSE_SECONDS: Final = 0.1
"""Maximum pause in seconds between two tries of a call that needs a row lock."""


def jittered(seconds: float) -> float:
    """Return ``seconds`` ± 50 %, so that many callers do not retry at the same time."""
    return seconds * random.uniform(0.5, 1.5)


async def patiently(
    call: Callable[[], Awaitable[T]],
    *,
    bound: float = RETRY_LIMIT_SECONDS,
    on_failure: Callable[[BackendUnavailableError], object] = lambda error: None,
) -> T:
    """Repeat ``call`` until the store answers, for at most ``bound`` seconds.

    Use this function only for calls that may be repeated. ``on_failure``: a function that is called with each error before a
    repetition. An error of ``on_failure`` ends the repetitions and is raised. Raises BackendUnavailableError after ``bound``
    seconds.
    """
    loop = asyncio.get_running_loop()
    give_up = loop.time() + bound
    delay = 0.05
    while True:
        try:
            return await call()
        except BackendUnavailableError as error:
            if loop.time() + delay > give_up:
                raise
            on_failure(error)
        await asyncio.sleep(jittered(delay))
        delay = min(delay * 2, 2.0)


async def until_unlocked(call: Callable[[], Awaitable[T]], places: asyncio.Semaphore, *, bound: float) -> T:
    """Repeat ``call`` while it raises LockedError, for at most LOCKED_SECONDS and at most ``bound`` seconds.

    ``places``: a semaphore that limits the number of calls that are repeated at the same time. A call that waits for the
    semaphore or for its next try holds no connection. Raises the last LockedError.
    """
    loop = asyncio.get_running_loop()
    give_up = loop.time() + min(LOCKED_SECONDS, bound)
    pause = 0.005
    try:
        return await call()
    except LockedError as error:
        locked = error
    while loop.time() + pause < give_up:
        await asyncio.sleep(jittered(pause))
        pause = min(pause * 2, MAX_LOCKED_PAUSE_SECONDS)
        try:
            async with asyncio.timeout_at(give_up):
                await places.acquire()
        except TimeoutError:
            break
        try:
            return await call()
        except LockedError as error:
            locked = error
        finally:
            places.release()
    raise locked
