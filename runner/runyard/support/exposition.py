"""The metrics of this process in the formats of Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from prometheus_client import REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.openmetrics import exposition as openmetrics

OPENMETRICS: Final = "application/openmetrics-text"
FORMATS: Final[Mapping[str, Callable[[CollectorRegistry], bytes]]] = {
    f"{OPENMETRICS}; version=1.0.0; charset=utf-8": openmetrics.generate_latest,
    CONTENT_TYPE_PLAIN_0_0_4: generate_latest,
}
"""Content types → functions that write a registry. Only OpenMetrics has exemplars."""


def content_type(accept: str) -> str:
    """Return the content type for a scraper with this ``Accept`` header.

    prometheus_client has a function with the same purpose. That function is not used, because it fails if the version in the
    header is not a number.
    """
    asked = {one.partition(";")[0].strip().lower() for one in accept.split(",")}
    return next(kind for kind in FORMATS if OPENMETRICS not in kind or OPENMETRICS in asked)


def exposed(kind: str) -> bytes:
    """Return the metrics of this process. ``kind``: a content type of FORMATS."""
    return FORMATS[kind](REGISTRY)
