"""The access to routes: the scope that a key needs for a route, and the stream that a stream token may read (A1).

Each route declares its access by the type of its parameter ``caller`` (for example in ``runs.py``): :data:`Reads`,
:data:`Writes`, :data:`Responds`, :data:`Administers`, :data:`Operates`, :data:`Measures`, :data:`Streams` or :data:`Anyone`.
:class:`Route` checks the declared scope, and puts it into the OpenAPI document.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Annotated, Any, Final

from fastapi import Depends, Request, Response
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from runyard.domain.api_keys import Scope
from runyard.errors import ForbiddenError

from ..field_types import webhook_networks
from ..parameters import Known
from ..paths import decoded
from ..principal import Principal
from ..request_state import state_of
from ..service import service_of
from ..tenant_client import Caller, caller_of
from .bodies import Body, check_body

shows_webhooks: Final = ContextVar("shows_webhooks", default=False)
"""True if the caller may see the webhook URLs of runs, because it has the scope write or admin."""


@dataclass(frozen=True, slots=True)
class Access:
    """The callers that a route admits.

    ``scope``: the scope that a key needs, or None for any key. ``token``: True if a stream token is accepted. ``operator``:
    True if the route concerns all tenants. A key for such a route must belong to no tenant.
    """

    scope: Scope | None
    token: bool = False
    operator: bool = False

    def check(self, principal: Principal) -> None:
        """Raise ForbiddenError if ``principal`` lacks the scope. On a route for operators, also raise it if ``principal``
        belongs to a tenant."""
        if self.scope is not None:
            principal.require(self.scope)
        if self.operator and principal.tenant:
            raise ForbiddenError(
                "this request concerns all tenants; use an admin key that belongs to no tenant", scope=self.scope
            )

    async def principal(self, request: Request) -> Principal:
        """Return the principal of ``request``. Raises ForbiddenError."""
        principal = _principal_of(request)
        self.check(principal)
        return principal

    async def caller(self, request: Request) -> Caller:
        """Return the caller of ``request``. Raises ForbiddenError, for example for the stream token of another stream."""
        principal = await self.principal(request)
        shows_webhooks.set(not principal.scopes.isdisjoint(("write", "admin")))
        if principal.only is not None:
            if not self.token:
                raise ForbiddenError("a stream token can only read streams")
            thread_id, run_id = principal.only
            asked = {name: decoded(value) for name, value in request.path_params.items()}
            if asked.get("thread_id") != thread_id or run_id not in (None, asked.get("run_id")):
                raise ForbiddenError("the stream token is for another stream")
        return await caller_of(principal, service_of(request), str(request.scope.get("root_path", "")))


Anyone = Annotated[Principal, Depends(Access(None, token=True).principal)]
Reads = Annotated[Caller, Depends(Access("read").caller)]
Writes = Annotated[Caller, Depends(Access("write").caller)]
Responds = Annotated[Caller, Depends(Access("respond").caller)]
Administers = Annotated[Caller, Depends(Access("admin").caller)]
Operates = Annotated[Caller, Depends(Access("admin", operator=True).caller)]
Measures = Annotated[Caller, Depends(Access("metrics").caller)]
Streams = Annotated[Caller, Depends(Access("read", token=True).caller)]


class Route(APIRoute):
    """A route that accepts only the callers that its parameters admit, and only JSON bodies.

    A route that needs no key has ``openapi_extra``. Any other route must have a parameter that names an access. Otherwise its
    definition raises TypeError.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs | {"generate_unique_id_function": lambda route: route.name})
        if accesses := _accesses(self.dependant):
            self.openapi_extra = {"security": _security(accesses)}
        elif self.openapi_extra is None:
            raise TypeError(f"the route {self.path} has no parameter that names its scope, such as caller: Reads")

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        known = Known(self)
        accesses = _accesses(self.dependant)

        async def route(request: Request) -> Response:
            for access in accesses:  # checked before the body is read
                access.check(_principal_of(request))
            known.check(request)
            webhook_networks.set(service_of(request).webhook_networks)
            return await handle(await self.readable(request))

        return route

    async def readable(self, request: Request) -> Request:
        """Return ``request`` with checked JSON for the handler. Raises UnsupportedMediaTypeError, a Refusal."""
        if self.body_field is not None:
            check_body(request)
        return Body(request.scope, request.receive)


def _principal_of(request: Request) -> Principal:
    principal = state_of(request.scope)["principal"]
    assert isinstance(principal, Principal)
    return principal


def _accesses(dependant: Dependant) -> set[Access]:
    """Return the accesses that the parameters of a route and of its dependencies name."""
    method_of = getattr(dependant.call, "__self__", None)
    own = {method_of} if isinstance(method_of, Access) else set()
    return own.union(*map(_accesses, dependant.dependencies))


def _security(accesses: Collection[Access]) -> list[dict[str, list[Scope]]]:
    """Return the scopes of a route and the ways to authenticate, in the form of the OpenAPI document."""
    scopes = sorted({access.scope for access in accesses if access.scope is not None})
    schemes: list[dict[str, list[Scope]]] = [{"apiKey": scopes}, {"apiKeyHeader": scopes}]
    return [*schemes, {"streamToken": []}] if all(access.token for access in accesses) else schemes
