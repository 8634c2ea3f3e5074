"""The secrets that sign webhooks. These secrets are derived from the deployment's secret, and are not stored.

:mod:`runyard.worker.signed_webhook` signs with these secrets. The derivation is HKDF with SHA-256 (RFC 5869). A receiver with
the secret of one tenant or subscription cannot sign for another tenant or subscription. A backup of the database contains the
version numbers of secrets, but no secret.
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
    """Return the secrets of a subscription, as ``whsec_…``. ``webhook_id``: the id of the subscription, or
    None for the URLs in the runs of ``tenant``.

    ``deployment``: the value of RUNYARD_WEBHOOK_SECRET. While this secret is
    being rotated, the value is a comma-separated list of secrets, the current secret first. ``versions``: version numbers, the
    current version first. The secret of a subscription does not depend on ``tenant``, because a subscription may cover all
    tenants.
    """
    owner = ("tenant", tenant) if webhook_id is None else ("subscription", webhook_id)
    roots = [base64.b64decode(one.strip().removeprefix("whsec_")) for one in deployment.split(",")]
    return [
        # NUL separates the parts: Postgres cannot store it in a name.
        "whsec_" + base64.b64encode(expanded(root, "\0".join((_PURPOSE, *owner, str(version))).encode())).decode()
        for version in versions
        for root in roots
    ]
