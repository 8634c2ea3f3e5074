"""Settings of a process, from the environment (``RUNYARD_…``) or a ``.env`` file."""

from __future__ import annotations

import base64
import binascii
from datetime import timedelta
from ipaddress import IPv4Network, IPv6Network
from typing import Annotated, Literal

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from .exchange import PAGE_BYTES, Retention
from .webhooks.models import WebhookPolicy


class FetchSettings(BaseSettings):
    """What may be fetched from URLs in messages, by workers and by agents without one (semantics: M5).

    ``fetch_hosts``: names of hosts (comma-separated), each exact, by default none. ``fetch_private``: also where these are at
    addresses that are not public.
    """

    model_config = SettingsConfigDict(
        env_prefix="RUNYARD_",
        env_file=".env",
        env_file_encoding="utf-8",
        extra="ignore",
        hide_input_in_errors=True,  # a secret that is refused would be in the log
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
            raise ValueError(f"are names of hosts without scheme, port, path or wildcard, not {', '.join(wrong)}")
        return sorted(hosts)


class Settings(FetchSettings):
    """How a worker (or a server) runs. Durations are in seconds.

    ``postgres_url`` and ``redis_url``: the servers; ``listen_url``: a direct Postgres address for LISTEN where ``postgres_url``
    is a transaction pooler. ``queues``: the queues to serve (comma-separated), by default those of the app's agents. ``slots``:
    runs at once. ``grace``: how long a stopping worker lets its runs finish. ``watchdog``: how long the main loop may be
    blocked before the worker gives its runs up. ``feed_retention`` and ``result_retention``: how long entries of the feed and
    results of fork jobs are kept, the same in every worker. ``metrics_port`` and ``metrics_host``: where a worker serves its
    probes and metrics (0: any free port; None: not at all). ``remote_stacks``: show stacks there to other machines too.
    ``webhook_secret`` (``whsec_…``, the same in every worker; comma-separated while one takes the place of another): the
    secrets that sign webhooks are derived from it; ``webhook_tries``, ``webhook_timeout`` and ``webhook_backoff``: how often,
    for how long, and after which first pause a webhook is told; ``webhook_allow_private``: networks (comma-separated) that are
    not public and may be told all the same. ``page_bytes``: of one page of a list of the
    HTTP API, but for a single entry.
    """

    postgres_url: str = "postgresql://localhost:5432/runyard"
    redis_url: str = "redis://localhost:6379/0"
    listen_url: str | None = None
    tenant: str = ""
    queues: Annotated[list[str] | None, NoDecode] = None
    slots: int = Field(1000, ge=1)
    grace: float = Field(20.0, ge=0)
    watchdog: float = Field(30.0, gt=0)
    feed_retention: float = Field(7 * 86400.0, gt=0)
    result_retention: float = Field(7 * 86400.0, gt=0)
    min_pool_size: int = Field(1, ge=0)
    max_pool_size: int = Field(10, ge=1)
    page_bytes: int = Field(PAGE_BYTES, ge=1)
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["json", "console", "auto"] = "auto"
    metrics_port: int | None = Field(None, ge=0, le=65535)
    metrics_host: str = "0.0.0.0"
    remote_stacks: bool = False
    webhook_secret: SecretStr | None = None
    webhook_tries: int = Field(12, ge=1)
    webhook_timeout: float = Field(10.0, gt=0, le=60)
    webhook_backoff: float = Field(5.0, gt=0)
    webhook_allow_private: Annotated[list[IPv4Network | IPv6Network], NoDecode] = Field(default_factory=list)

    @property
    def retention(self) -> Retention:
        """How long to keep what the leader prunes."""
        return Retention(feed=timedelta(seconds=self.feed_retention), results=timedelta(seconds=self.result_retention))

    @property
    def webhooks(self) -> WebhookPolicy:
        """How to deliver webhooks."""
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
            raise ValueError('is "whsec_" and 24 to 64 bytes as base64, for example of `openssl rand -base64 32`')
        return SecretStr(",".join(secrets))

    @field_validator("queues", "webhook_allow_private", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return [name.strip() for name in value.split(",") if name.strip()] if isinstance(value, str) else value


def _bytes_of(secret: str) -> int:
    """How many a webhook's secret has; 0 if it is none."""
    try:
        return len(base64.b64decode(secret.removeprefix("whsec_"), validate=True))
    except binascii.Error:
        return 0
