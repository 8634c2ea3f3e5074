"""What is left of a webhook's URL for those who may not see it: paths and queries of such URLs are often secrets."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

HIDE_WEBHOOKS: Final = "hide_webhooks"
"""Key of a serialization context: with it, the webhook in a run's options is masked."""


def masked(url: str) -> str:
    """``url`` as ``https://host/…``."""
    try:
        parts = urlsplit(url)
    except ValueError:  # half an IPv6 address, from a host's own transaction
        return "…"
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}/…" if parts.scheme and parts.netloc else "…"
