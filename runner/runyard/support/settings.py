"""Settings of a process, from the environment (``RUNYARD_…``) or a ``.env`` file.

Some default numbers are in the modules that they limit (``ports/*.py``, ``domain/webhooks.py``). Not here: ``RUNYARD_APP``
(``cli/commands/worker.py``), ``RUNYARD_MODEL`` (``agents/default_model.py``), ``RUNYARD_FAILPOINTS`` (``backend_urls.py``) and
the settings of the API (``http/settings.py``).
"""

from __future__ import annotations

import base64
import binascii
from datetime import timedelta
from ipaddress import IPv4Network, IPv6Network
from typing import Annotated, Final, Literal

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from ..domain.webhooks import WebhookPolicy
from ..ports.results import PAGE_BYTES
from ..ports.scheduling import StreamLimits
from ..ports.stores import DEFAULT_MAX_POOL_CONNECTIONS, DEFAULT_MIN_POOL_CONNECTIONS
from ..ports.workers import DEFAULT_GRACE_SECONDS, DEFAULT_SLOTS, DEFAULT_WATCHDOG_SECONDS, Retention

RETENTION: Final = Retention()
STREAMS: Final = StreamLimits()
WEBHOOKS: Final = WebhookPolicy()


class FetchSettings(BaseSettings):
    """Permissions to fetch URLs in messages, for workers and for in-process agents (M5).

    ``fetch_hosts``: the exact names of the allowed hosts (comma-separated), by default none. ``fetch_private``: allow these
    hosts to have addresses that are not public.
    """

    model_config = SettingsConfigDict(
        env_prefix="RUNYARD_",
        env_file=".env",
        env_file_encoding="utf-8",
        extra="ignore",
        hide_input_in_errors=True,  # otherwise the log would contain a refused secret
    )

    fetch_hosts: Annotated[list[str], NoDecode] = Field(default_factory=list)
    fetch_private: bool = False

    @field_validator("fetch_hosts", mode="before")
    @classmethod
    def _are_hosts(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        hosts = {host.strip().lower().rstrip(".") for host in value.split(",") if host.strip()}
        if wrong := sorted(host for host in hosts if not set(host).isdisjoint("/:@*?#\\ ")):
            raise ValueError(f"must be names of hosts without scheme, port, path or wildcard, not {', '.join(wrong)}")
        return sorted(hosts)


class Settings(FetchSettings):
    """Settings of a worker or a server. Durations are in seconds.

    ``postgres_url`` and ``redis_url``: the servers. ``listen_url``: a direct Postgres address for LISTEN, if ``postgres_url``
    is a transaction pooler. ``queues``: the queues to serve (comma-separated), by default those of the app's agents. ``slots``:
    the most runs at once. ``grace``: the time in which a stopping worker lets its runs finish. ``watchdog``: the time of a
    blocked main loop after which the worker gives up its runs. ``heartbeat_process``: a second process sends a worker's
    heartbeats while native code holds the interpreter (Linux only). ``feed_retention`` and ``result_retention``: the time for
    which entries of the feed and results of fork jobs are kept, the same in every worker. The settings of streams are the same
    in every process. ``stream_events`` and ``stream_bytes``: about the most events and bytes that the stream of one run keeps.
    ``stream_retention``: the time after its last event for which a stream is kept. ``stopped_stream_retention``: the same for a
    run that ended or waits for a human. ``total_stream_bytes``: the most bytes of all streams together, by default half of the
    memory of Redis. ``metrics_port`` and ``metrics_host``: the address at which a worker serves health checks and metrics. Port
    0 is any free port. Without a port a worker serves neither. ``remote_stacks``: also show stacks at this address to other
    machines. ``webhook_secret``: the secret (``whsec_…``) from which the secrets that sign webhooks are derived, the same in
    every worker. During a rotation it holds several comma-separated secrets. ``webhook_tries``: the most tries of a delivery.
    ``webhook_timeout``: the time for one try. ``webhook_backoff``: the pause between the first and the second try.
    ``webhook_allow_private``: networks (comma-separated) that are not public and may receive webhooks. ``page_bytes``: the most
    bytes in one page of a list of the HTTP API. A larger entry is a page by itself.
    """

    postgres_url: str = "postgresql://localhost:5432/runyard"
    redis_url: str = "redis://localhost:6379/0"
    listen_url: str | None = None
    tenant: str = ""
    queues: Annotated[list[str] | None, NoDecode] = None
    slots: int = Field(DEFAULT_SLOTS, ge=1)
    grace: float = Field(DEFAULT_GRACE_SECONDS, ge=0)
    watchdog: float = Field(DEFAULT_WATCHDOG_SECONDS, gt=0)
    heartbeat_process: bool = True
    feed_retention: float = Field(RETENTION.feed.total_seconds(), gt=0)
    result_retention: float = Field(RETENTION.results.total_seconds(), gt=0)
    stream_events: int = Field(STREAMS.events, ge=1)
    stream_bytes: int = Field(STREAMS.bytes, ge=1)
    stream_retention: float = Field(STREAMS.running, gt=0)
    stopped_stream_retention: float = Field(STREAMS.stopped, gt=0)
    total_stream_bytes: int | None = Field(None, ge=1)
    min_pool_size: int = Field(DEFAULT_MIN_POOL_CONNECTIONS, ge=0)
    max_pool_size: int = Field(DEFAULT_MAX_POOL_CONNECTIONS, ge=1)
    page_bytes: int = Field(PAGE_BYTES, ge=1)
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["json", "console", "auto"] = "auto"
    metrics_port: int | None = Field(None, ge=0, le=65535)
    metrics_host: str = "0.0.0.0"
    remote_stacks: bool = False
    webhook_secret: SecretStr | None = None
    webhook_tries: int = Field(WEBHOOKS.tries, ge=1)
    webhook_timeout: float = Field(WEBHOOKS.timeout, gt=0, le=60)
    webhook_backoff: float = Field(WEBHOOKS.backoff, gt=0)
    webhook_allow_private: Annotated[list[IPv4Network | IPv6Network], NoDecode] = Field(default_factory=list)

    @property
    def retention(self) -> Retention:
        """The retention of data that the leader prunes."""
        return Retention(feed=timedelta(seconds=self.feed_retention), results=timedelta(seconds=self.result_retention))

    @property
    def stream_limits(self) -> StreamLimits:
        """The limits of the event streams."""
        return StreamLimits(
            events=self.stream_events,
            bytes=self.stream_bytes,
            running=self.stream_retention,
            stopped=self.stopped_stream_retention,
            total_bytes=self.total_stream_bytes,
        )

    @property
    def webhooks(self) -> WebhookPolicy:
        """The settings of webhooks."""
        return WebhookPolicy(
            secret=self.webhook_secret.get_secret_value() if self.webhook_secret else None,
            timeout=self.webhook_timeout,
            tries=self.webhook_tries,
            backoff=self.webhook_backoff,
        )

    @field_validator("webhook_secret")
    @classmethod
    def _is_a_secret(cls, value: SecretStr | None) -> SecretStr | None:
        if not value:
            return None
        secrets = [secret.strip() for secret in value.get_secret_value().split(",")]
        if not all(24 <= _bytes_of(secret) <= 64 for secret in secrets):
            raise ValueError('must be "whsec_" and 24 to 64 bytes as base64, for example of `openssl rand -base64 32`')
        return SecretStr(",".join(secrets))

    @field_validator("queues", "webhook_allow_private", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return [name.strip() for name in value.split(",") if name.strip()] if isinstance(value, str) else value


def _bytes_of(secret: str) -> int:
    """Return the number of bytes of a webhook's secret, or 0 if the secret is invalid."""
    try:
        return len(base64.b64decode(secret.removeprefix("whsec_"), validate=True))
    except binascii.Error:
        return 0
