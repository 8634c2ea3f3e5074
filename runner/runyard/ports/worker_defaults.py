"""The defaults of a worker: the number of its slots, its time to stop, the time for which user code may block it, and the
memory for its histories.

``support/settings.py`` has the environment variables that change them. ``Retention`` (``workers.py``) has the times for which
data is kept.
"""

from typing import Final

DEFAULT_SLOTS: Final = 1000
"""Number of runs that a worker executes at once."""
DEFAULT_GRACE_SECONDS: Final = 20.0
"""Seconds for which a stopping worker lets its runs continue."""
DEFAULT_WATCHDOG_SECONDS: Final = 30.0
"""Seconds for which user code may block a worker's main loop."""
DEFAULT_HISTORY_CACHE_BYTES: Final = 64 * 2**20
"""Maximum number of bytes of the histories that a worker keeps in memory."""
DEFAULT_ARQ_RESULT_SECONDS: Final = 3600.0
"""Seconds for which Redis keeps the results of the jobs of arq's producers. The number is arq's own default."""
MAX_ARQ_RESULT_SECONDS: Final = 10.0**9
"""Maximum number of seconds for which Redis keeps the results of the jobs of arq's producers. Redis counts an expiry in 64-bit
milliseconds since 1970."""
