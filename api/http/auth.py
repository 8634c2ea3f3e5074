"""Who asks: API keys, a host's own scheme, stream tokens, or nobody where that is allowed (semantics: A1)."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Final, Literal, TypeAlias
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection

from runner.errors import ForbiddenError, UnauthenticatedError
from runner.keys import SCOPES, Scope, Secret
from runner.ports import KeyStore

REMEMBERED: Final = 5.0
"""Seconds for which a key that was found is not looked up again; a revoked one passes for that long."""
FORGOTTEN: Final = 10_000
"""Keys that are remembered at most."""


@dataclass(frozen=True)
class Principal:
    """Who asks, for which tenant, with which scopes. ``id`` is what limits count by; ``name`` is noted with answers.

    ``only``: a stream token's (thread id, run id or None); nothing else may be read with it. ``key``: the digest of the API key
    that was shown, or that asked for the token.
    """

    tenant: str
    scopes: frozenset[Scope]
    id: str
    name: str | None = None
    only: tuple[str, str | None] | None = None
    key: bytes | None = field(default=None, repr=False)

    def require(self, scope: Scope) -> None:
        """Raises ForbiddenError without ``scope``; ``admin`` includes all."""
        if scope not in self.scopes and "admin" not in self.scopes:
            has = ", ".join(sorted(self.scopes)) or "none"
            raise ForbiddenError(f"this needs the scope {scope}, the key has {has}", scope=scope)


Authenticate: TypeAlias = Callable[[HTTPConnection], Awaitable[Principal | None]]
"""A host's own scheme: who asks, or None if that cannot be told (401). Raises ForbiddenError to refuse."""
Auth: TypeAlias = Literal["keys", "off"] | Authenticate

ANYONE: Final = Principal("", frozenset(SCOPES), "anyone")


class Gate:
    """Authenticates requests. ``keys``: where API keys are; ``secret``: signs stream tokens of callers without one."""

    def __init__(self, auth: Auth, *, tenant: str, secret: str | None, origins: tuple[str, ...] = ()) -> None:
        self.auth = auth
        self._nobody = Principal(tenant, ANYONE.scopes, ANYONE.id)
        self._secret = secret.encode() if secret else secrets.token_bytes(32)
        self._origins = origins
        self._known: OrderedDict[str, tuple[float, Principal]] = OrderedDict()

    async def admit(self, request: HTTPConnection, keys: KeyStore) -> Principal:
        """Who asks. Raises UnauthenticatedError, ForbiddenError."""
        if token := request.query_params.get("token"):
            return await self._of_token(token, keys)
        if self.auth == "off":
            self._check_local(request)
            return self._nobody
        if self.auth == "keys":
            return await self._of_key(_bearer(request), keys)
        found = await self.auth(request)
        if found is None:
            raise UnauthenticatedError("the request does not say who asks, or that is not valid")
        return found

    async def _of_key(self, text: str | None, keys: KeyStore) -> Principal:
        if text is None:
            raise UnauthenticatedError("send an API key: Authorization: Bearer ry_…; `runyard keys create` makes one")
        secret = Secret.parse(text)
        principal = await self._lookup(secret.key_id, keys) if secret else None
        if secret is None or principal is None or not hmac.compare_digest(principal.key or b"", secret.digest):
            raise UnauthenticatedError("the API key is not valid: unknown, expired or revoked")
        return principal

    async def _lookup(self, key_id: str, keys: KeyStore) -> Principal | None:
        now = time.monotonic()
        if (known := self._known.get(key_id)) and now - known[0] < REMEMBERED:
            return known[1]
        self._known.pop(key_id, None)
        found = await keys.find_key(key_id)
        if found is None:
            return None
        key, digest = found
        principal = Principal(key.tenant, frozenset(key.scopes), key.key_id, key.name, key=digest)
        self._known[key_id] = (now, principal)
        if len(self._known) > FORGOTTEN:
            self._known.popitem(last=False)
        return principal

    async def still_admits(self, principal: Principal, keys: KeyStore) -> bool:
        """False once the API key is revoked or expired by which ``principal`` was admitted."""
        if principal.key is None:
            return True
        found = await self._lookup(principal.id, keys)
        return found is not None and found.key == principal.key

    def forget(self) -> None:
        """Look every key up again."""
        self._known.clear()

    def _check_local(self, request: HTTPConnection) -> None:
        """Without keys only programs of this machine may ask, and no page that a browser here shows."""
        if request.client is None or not _is_loopback(request.client.host):
            raise UnauthenticatedError("this server takes no keys and answers only to its own machine")
        if not _is_loopback(_host(f"//{request.headers.get('host', '')}")):
            raise ForbiddenError("this server takes no keys and answers only under a loopback name, such as localhost")
        origin = request.headers.get("origin")
        if origin is not None and origin not in self._origins and not _is_loopback(_host(origin)):
            raise ForbiddenError("this server takes no keys and answers to no page of another site", origin=origin)

    def issue(self, principal: Principal, thread_id: str, run_id: str | None, lifetime: float) -> tuple[str, float]:
        """A token with which the streams of one run, or of one thread, can be read for ``lifetime`` seconds, and when it
        expires. It is signed with what the server knows of the caller's key, so that it ends with the key."""
        expires = time.time() + lifetime
        own = principal.id if principal.key else None
        claims = [own, principal.tenant, principal.id, thread_id, run_id, int(expires)]
        payload = json.dumps(claims).encode()
        return f"{_text(payload)}.{_text(self._sign(payload, principal.key))}", expires

    def _sign(self, payload: bytes, key: bytes | None) -> bytes:
        return hmac.new(b"stream token " + (key or self._secret), payload, hashlib.sha256).digest()

    async def _of_token(self, token: str, keys: KeyStore) -> Principal:
        refused = UnauthenticatedError("the stream token is not valid, or has expired; ask for another one")
        try:
            payload, signature = (_bytes(part) for part in token.split("."))
            key_id, tenant, id, thread_id, run_id, expires = json.loads(payload)
        except (ValueError, TypeError, RecursionError):
            raise refused from None
        known = isinstance(key_id, str) and key_id.isascii() and key_id.isalnum()
        owner = await self._lookup(key_id, keys) if known else None
        if key_id is not None and owner is None:
            raise refused
        if not hmac.compare_digest(signature, self._sign(payload, owner.key if owner else None)) or expires < time.time():
            raise refused
        return Principal(tenant, frozenset({"read"}), id, only=(thread_id, run_id), key=owner.key if owner else None)


def _bearer(request: HTTPConnection) -> str | None:
    scheme, _, text = request.headers.get("authorization", "").partition(" ")
    return text.strip() if scheme.lower() == "bearer" and text else request.headers.get("x-api-key")


def _host(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:  # half an IPv6 address
        return ""


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _bytes(text: str) -> bytes:
    return base64.urlsafe_b64decode(text.encode() + b"=" * (-len(text) % 4))
