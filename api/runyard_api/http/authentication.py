"""Authentication of callers (A1): API keys, stream tokens, the host's own function, or no authentication if ``auth`` is off.

The result is a principal. A route gets only a client that is bound to the principal's tenant
(:mod:`runyard_api.http.tenant_client`). :mod:`runyard_api.http.routes.route_access` checks which routes the principal may call.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import replace
from ipaddress import ip_address
from typing import Final, Literal, TypeAlias
from urllib.parse import urlsplit

from pydantic import ValidationError
from starlette.requests import HTTPConnection

from runyard.domain.api_keys import SCOPES, Scope
from runyard.errors import ConfigurationError, ForbiddenError, InvalidInputError, UnauthenticatedError
from runyard.ports.stores import KeyStore

from .failures import Authenticate, Failures, OwnScheme
from .keyring import Keyring
from .principal import Principal
from .settings import ApiSettings
from .tokens import VERSION, ByAnyone, ByHost, ByKey, Claims, Tokens

READ: Final[frozenset[Scope]] = frozenset({"read"})

Auth: TypeAlias = Literal["keys", "off"] | Authenticate

ANYONE: Final = Principal("", frozenset(SCOPES), "anyone")


class Gate:
    """Authenticates requests. ``tenant``: the tenant of callers without a key, if ``auth`` is off.

    Raises ConfigurationError if ``auth`` is not off and ``settings`` have no secret for stream tokens. The process cannot
    generate the secret itself, because all processes must have the same secret.
    """

    def __init__(self, auth: Auth, settings: ApiSettings, *, tenant: str) -> None:
        self.auth = auth
        self._nobody = replace(ANYONE, tenant=tenant)
        self._origins = settings.cors_origins
        self._failures = Failures(settings.failures_per_second, settings.failure_burst)
        self._keyring = Keyring(self._failures)
        self._own = OwnScheme(auth, self._failures) if callable(auth) else None
        found = settings.token_secrets()
        if not found and auth != "off":
            variable = settings.variable("token_secret")
            raise ConfigurationError(
                f"{variable} is not set. It signs stream tokens and must be the same in every API process; "
                "`openssl rand -hex 32` makes a secret",
                variables=[variable],
            )
        self._tokens = Tokens(found or [secrets.token_hex(32)], settings.token_lifetime)

    async def admit(self, request: HTTPConnection, keys: KeyStore) -> Principal:
        """Return the principal of ``request``. Raises UnauthenticatedError, ForbiddenError, RateLimitedError."""
        if self.auth == "off":
            self._check_local(request)
        if token := request.query_params.get("token"):
            return await self._of_token(token, keys, request)
        if self.auth == "off":
            return self._nobody
        if self.auth == "keys":
            text = _bearer(request)
            if text is None:
                raise UnauthenticatedError("send an API key: Authorization: Bearer ry_…; `runyard keys create` makes one")
            return await self._keyring.open(text, keys, request)
        assert self._own is not None
        return await self._own.admit(request)

    async def still_admits(self, principal: Principal, keys: KeyStore) -> bool:
        """Return False if ``principal`` has expired, or if its API key was revoked, has expired or has lost a scope."""
        if principal.expires is not None and principal.expires <= time.time():
            return False
        if principal.key is None:
            return True
        holder = await self._keyring.find(principal.id, keys)
        return (
            holder is not None
            and (holder.key, holder.tenant) == (principal.key, principal.tenant)
            and all(holder.has(scope) for scope in principal.scopes)
        )

    def forget(self) -> None:
        """Forget every key. The next request with a key looks up the key again."""
        self._keyring.forget()

    def _check_local(self, request: HTTPConnection) -> None:
        """If ``auth`` is off, refuse callers on other machines and web pages of other sites."""
        if request.client is None or not _is_loopback(request.client.host):
            raise UnauthenticatedError("this server uses no keys and answers only callers on its own machine")
        if not _is_loopback(_host(f"//{request.headers.get('host', '')}")):
            raise ForbiddenError("this server uses no keys and answers only under a loopback name, such as localhost")
        origin = request.headers.get("origin")
        if origin is not None and origin not in self._origins and not _is_loopback(_host(origin)):
            raise ForbiddenError("this server uses no keys and does not answer pages of other sites", origin=origin)

    def issue(self, principal: Principal, thread_id: str, run_id: str | None, lifetime: float) -> tuple[str, float]:
        """Return a stream token and its expiry in seconds of Unix time.

        The token opens the stream of the run. If ``run_id`` is None, it opens all streams of the thread. ``lifetime``: maximum
        seconds for which the token is valid. The token expires with ``principal`` at the latest. Raises ForbiddenError,
        InvalidInputError.
        """
        principal.require("read")
        expires = time.time() + lifetime
        if principal.expires is not None:
            expires = min(expires, principal.expires)
        opens: dict[str, object] = {
            "version": VERSION,
            "thread_id": thread_id,
            "run_id": run_id,
            "expires": int(expires * 1000),
        }
        try:
            return self._tokens.issue(self._claims(principal, opens)), expires
        except ValidationError as error:
            what = error.errors()[0]
            where = what["loc"][0] if what["loc"] else "principal"
            raise InvalidInputError(f"{where} cannot be put into a stream token: {what['msg']}", field=str(where)) from None

    def _claims(self, principal: Principal, opens: dict[str, object]) -> Claims:
        if self.auth == "keys":
            return ByKey.model_validate({"key_id": principal.id, **opens})
        if self.auth == "off":
            return ByAnyone.model_validate(opens)
        return ByHost.model_validate({"tenant": principal.tenant, "id": principal.id, "name": principal.name, **opens})

    async def _of_token(self, text: str, keys: KeyStore, request: HTTPConnection) -> Principal:
        claims = self._tokens.read(text)
        if claims is None:
            self._failures.count(request)
        owner = await self._owner(claims, keys) if claims is not None and self._tokens.is_current(claims) else None
        if claims is None or owner is None:
            raise UnauthenticatedError("the stream token is not valid or has expired; create another one")
        owner.require("read")
        return replace(owner, scopes=READ, only=(claims.thread_id, claims.run_id), expires=claims.expires / 1000)

    async def _owner(self, claims: Claims, keys: KeyStore) -> Principal | None:
        """Return the principal that created a token. Return None in two cases: the token's API key is unknown, or the token was
        created with another setting of ``auth``."""
        match claims:
            case ByKey() if self.auth == "keys":
                return await self._keyring.find(claims.key_id, keys)
            case ByHost() if callable(self.auth):
                return Principal(claims.tenant, READ, claims.id, claims.name)
            case ByAnyone() if self.auth == "off":
                return self._nobody
        return None


def _bearer(request: HTTPConnection) -> str | None:
    scheme, _, text = request.headers.get("authorization", "").partition(" ")
    return text.strip() if scheme.lower() == "bearer" and text else request.headers.get("x-api-key")


def _host(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:  # an incomplete IPv6 address
        return ""


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
