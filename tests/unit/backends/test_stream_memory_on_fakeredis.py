"""The memory of event streams on fakeredis: the suite of the real server."""

from tests.support.suites.stream_memory import *  # noqa: F403
