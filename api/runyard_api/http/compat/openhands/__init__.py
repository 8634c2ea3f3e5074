"""The route of OpenHands' agent server that forks a conversation. A conversation is a thread.

The path, the body and the answer are those of ``RemoteConversation.fork`` in the package ``openhands-sdk``. Errors are problem
documents, because the client reads only their status.
"""

from __future__ import annotations

from typing import Final

from ..layer import Compat
from . import conversations

OPENHANDS: Final = Compat(
    tag="openhands",
    description="The fork of a conversation for clients of OpenHands. A conversation is a thread. The header "
    "`X-Session-API-Key` may have the API key.",
    prefix="/api/conversations/",
    routers=(conversations.router,),
    key_header="X-Session-API-Key",
    open_paths=frozenset({conversations.HEALTH}),
)
