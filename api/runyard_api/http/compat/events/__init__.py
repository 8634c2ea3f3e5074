"""Threads as event logs. Commands append to a thread. Reads return its history, its head and its forks.

An event is a message. The number of the event is the message's ``seq``. A fork is a thread that begins with the history of its
parent up to an event. In the path ``branches`` and in the prefix of generated ids, the word “branch” means a fork.
"""

from __future__ import annotations

from typing import Final

from ..layer import Compat
from . import commands, reads

EVENTS: Final = Compat(
    tag="events",
    description="Threads as event logs. An event number is the `seq` of a message. `branches` lists the forks of a thread.",
    routers=(commands.router, reads.router),
)
