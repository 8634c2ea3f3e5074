"""The secrets that sign webhooks: derived from the deployment's, so that no store holds one.

HKDF with SHA-256 (RFC 5869): who receives for one tenant, or for one subscription, can sign for no other. A backup of the
database holds versions, which are no secrets.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Iterable

_PURPOSE = "runyard webhook"


def expanded(root: bytes, info: bytes) -> bytes:
    """32 bytes for ``info``: the first block of HKDF without a salt."""
    return hmac.digest(hmac.digest(b"", root, hashlib.sha256), info + b"\x01", hashlib.sha256)


def derived(deployment: str, tenant: str, webhook_id: str | None, versions: Iterable[int]) -> list[str]:
    """The secrets of a subscription, or of the URLs of a tenant's runs (``webhook_id`` None), as ``whsec_…``.

    ``deployment``: RUNYARD_WEBHOOK_SECRET; while that is rotated several with commas between them, the current one first.
    ``versions``: the current one first. A subscription is one thing over all tenants that it hears: ``tenant`` is not part of
    its secret.
    """
    owner = ("tenant", tenant) if webhook_id is None else ("subscription", webhook_id)
    roots = [base64.b64decode(one.strip().removeprefix("whsec_")) for one in deployment.split(",")]
    return [
        # NUL keeps the parts apart: no name that Postgres stores has one.
        "whsec_" + base64.b64encode(expanded(root, "\0".join((_PURPOSE, *owner, str(version))).encode())).decode()
        for version in versions
        for root in roots
    ]
