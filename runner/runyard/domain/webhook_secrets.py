"""The secrets that sign webhooks. They are derived from the deployment's secret, so no store holds them.

HKDF with SHA-256 (RFC 5869): a receiver that knows one tenant's or one subscription's secret cannot sign for another. A backup
of the database holds versions of secrets, which are not secret.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Iterable

_PURPOSE = "runyard webhook"


def expanded(root: bytes, info: bytes) -> bytes:
    """Return 32 bytes for ``info``: the first block of HKDF without a salt."""
    return hmac.digest(hmac.digest(b"", root, hashlib.sha256), info + b"\x01", hashlib.sha256)


def derived(deployment: str, tenant: str, webhook_id: str | None, versions: Iterable[int]) -> list[str]:
    """Return the secrets of a subscription, or of the URLs of a tenant's runs (``webhook_id`` None), as ``whsec_…``.

    ``deployment``: RUNYARD_WEBHOOK_SECRET; during its rotation several secrets with commas between them, the current one first.
    ``versions``: the current one first. A subscription may cover all tenants, so ``tenant`` is not part of its secret.
    """
    owner = ("tenant", tenant) if webhook_id is None else ("subscription", webhook_id)
    roots = [base64.b64decode(one.strip().removeprefix("whsec_")) for one in deployment.split(",")]
    return [
        # NUL separates the parts: Postgres cannot store it in a name.
        "whsec_" + base64.b64encode(expanded(root, "\0".join((_PURPOSE, *owner, str(version))).encode())).decode()
        for version in versions
        for root in roots
    ]
