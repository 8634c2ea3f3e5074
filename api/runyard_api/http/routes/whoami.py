"""The route that returns the caller."""

from __future__ import annotations

from datetime import UTC, datetime

from fastapi import APIRouter, Response

from ..answers import StreamOf, WhoAmI
from .documentation import operation
from .replies import reply
from .route_access import Anyone, Route

router = APIRouter(tags=["access"], route_class=Route)


@router.get("/v1/whoami", **operation(s200=(WhoAmI, "The caller.")))
async def whoami(caller: Anyone) -> Response:
    """Return the tenant, the key or token, the scopes and the expiry of the caller."""
    thread_id, run_id = caller.only or (None, None)
    return reply(
        WhoAmI.model_construct(
            tenant=caller.tenant,
            id=caller.id,
            name=caller.name,
            key_id=caller.id if caller.key is not None else None,
            scopes=sorted(caller.scopes),
            expires_at=datetime.fromtimestamp(caller.expires, UTC) if caller.expires is not None else None,
            reads=StreamOf(thread_id=thread_id, run_id=run_id) if thread_id is not None else None,
        )
    )
