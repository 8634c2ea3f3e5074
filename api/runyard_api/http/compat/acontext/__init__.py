"""The sessions and messages of Acontext's API, version 1. A session is a thread.

The paths, bodies and answers are those of the packages ``acontext`` (Python) and ``@acontext/acontext`` (TypeScript). This API
adds ``parent_id``, ``leaf_id`` and ``branches`` for the message tree.
"""

from __future__ import annotations

from typing import Final

from ..layer import Compat
from . import messages, sessions
from .envelope import failure

ACONTEXT: Final = Compat(
    tag="acontext",
    description="Sessions and messages for clients of Acontext. A session is a thread.",
    prefix="/api/v1/",
    routers=(sessions.router, messages.router, messages.uploads),
    shape=failure,
)
