"""Settings of a process, from the environment (``RUNYARD_…``) or a ``.env`` file."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Literal

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from .exchange import Retention


class Settings(BaseSettings):
    """How a worker (or a server) runs. Durations are in seconds.

    ``postgres_url`` and ``redis_url``: the servers; ``listen_url``: a direct Postgres address for LISTEN where ``postgres_url``
    is a transaction pooler. ``queues``: the queues to serve (comma-separated), by default those of the app's agents. ``slots``:
    runs at once. ``grace``: how long a stopping worker lets its runs finish. ``watchdog``: how long the main loop may be
    blocked before the worker gives its runs up. ``feed_retention`` and ``result_retention``: how long entries of the feed and
    results of fork jobs are kept, the same in every worker. ``metrics_port`` and ``metrics_host``: where a worker serves its
    probes and metrics (0: any free port; None: not at all). ``remote_stacks``: show stacks there to other machines too.
    """

    model_config = SettingsConfigDict(env_prefix="RUNYARD_", env_file=".env", env_file_encoding="utf-8", extra="ignore")

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
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["json", "console", "auto"] = "auto"
    metrics_port: int | None = Field(None, ge=0, le=65535)
    metrics_host: str = "0.0.0.0"
    remote_stacks: bool = False

    @property
    def retention(self) -> Retention:
        """How long to keep what the leader prunes."""
        return Retention(feed=timedelta(seconds=self.feed_retention), results=timedelta(seconds=self.result_retention))

    @field_validator("queues", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return [name.strip() for name in value.split(",") if name.strip()] if isinstance(value, str) else value
