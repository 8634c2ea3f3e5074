"""Settings of a process, from the environment (``RUNYARD_…``) or a ``.env`` file.

``ports/*.py`` and ``domain/webhooks.py`` define some of the defaults. Other modules read ``RUNYARD_APP``
(``cli/commands/worker.py``), ``RUNYARD_NAMESPACE`` (``location.py``), ``RUNYARD_MODEL`` (``agents/default_model.py``),
``RUNYARD_FAILPOINTS`` (``backend_urls.py``) and the settings of the API (``http/settings.py``). The times of heartbeats, leases
and locks are constants without a setting: ``worker/heartbeat.py``, ``worker/failure_detector.py``, ``ports/scheduling.py``.
"""

from __future__ import annotations

import base64
import binascii
from datetime import timedelta
from ipaddress import IPv4Network, IPv6Network
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, ModelWrapValidatorHandler, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    DotEnvSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from ..domain.webhooks import WebhookPolicy
from ..errors import ConfigurationError
from ..ports.results import PAGE_BYTES
from ..ports.scheduling import StreamLimits
from ..ports.stores import DEFAULT_MAX_POOL_CONNECTIONS, DEFAULT_MIN_POOL_CONNECTIONS
from ..ports.worker_defaults import (
    DEFAULT_ARQ_RESULT_SECONDS,
    DEFAULT_GRACE_SECONDS,
    DEFAULT_HISTORY_CACHE_BYTES,
    DEFAULT_SLOTS,
    DEFAULT_WATCHDOG_SECONDS,
    MAX_ARQ_RESULT_SECONDS,
)
from ..ports.workers import Retention
from . import env_file

RETENTION: Final = Retention()
STREAMS: Final = StreamLimits()
WEBHOOKS: Final = WebhookPolicy()
NO_FILE_GIVEN: Final = ()
"""The value of ``env_file`` if the argument ``_env_file`` is missing. With this value, pydantic-settings itself reads no
file."""


class EnvFileSettings(BaseSettings):
    """Settings. A value comes from the first of these sources that has it: an argument, the environment, ``.env``.

    The argument ``_env_file`` names another file. If ``_env_file`` is None, no file is read. Raises ConfigurationError for an
    invalid value, and InvalidInputError if ``.env`` cannot be read (:func:`runyard.support.env_file.read`).
    """

    model_config = SettingsConfigDict(env_file=NO_FILE_GIVEN, env_file_encoding="utf-8", allow_inf_nan=False)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return the sources of the values."""
        assert isinstance(dotenv_settings, DotEnvSettingsSource)
        if dotenv_settings.env_file != NO_FILE_GIVEN:
            return init_settings, env_settings, dotenv_settings
        file = env_file.ENV_FILE if env_file.read() is not None else None
        return init_settings, env_settings, DotEnvSettingsSource(settings_cls, env_file=file, env_file_encoding="utf-8")

    @model_validator(mode="wrap")
    @classmethod
    def _with_typed_errors(cls, values: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            return handler(values)
        except ValidationError as error:
            raise _configuration_error(cls, error) from None  # the cause would show the values

    @classmethod
    def variable(cls, name: str) -> str:
        """Return the environment variable of the setting ``name``."""
        return f"{cls.model_config['env_prefix']}{name}".upper()


def _configuration_error(settings: type[EnvFileSettings], error: ValidationError) -> ConfigurationError:
    """Return the error that names the variable of each invalid value and says what to set."""
    faults: dict[str, str] = {}
    for fault in error.errors(include_url=False, include_input=False):
        text = fault["msg"].removeprefix("Value error, ").removeprefix("Input ")
        faults.setdefault(settings.variable(str(fault["loc"][0])), text[:1].lower() + text[1:])
    text = "; ".join(f"{variable} has an invalid value: {fault}" for variable, fault in faults.items())
    return ConfigurationError(f"{text}; set {', '.join(faults)} to a valid value", variables=list(faults))


class FetchSettings(EnvFileSettings):
    """Permissions to fetch URLs in messages, for workers and for in-process agents (M5).

    ``fetch_hosts``: the exact names of the hosts (comma-separated) from which files of messages may be fetched. The default is
    no host. ``fetch_private``: whether the hosts of ``fetch_hosts`` may have addresses that are not public.
    """

    model_config = SettingsConfigDict(env_prefix=env_file.PREFIX, extra="ignore")

    fetch_hosts: Annotated[list[str], NoDecode] = Field(default_factory=list)
    fetch_private: bool = False

    @field_validator("fetch_hosts", mode="before")
    @classmethod
    def _are_hosts(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        hosts = {host.strip().lower().rstrip(".") for host in value.split(",") if host.strip()}
        if not all(set(host).isdisjoint("/:@*?#\\ ") for host in hosts):
            raise ValueError("must be names of hosts without scheme, port, path or wildcard")
        return sorted(hosts)


class Settings(FetchSettings):
    """Settings of a worker or a server. Durations are in seconds.

    ``postgres_url``: the Postgres server. ``redis_url``: the Redis server. ``listen_url``: a direct Postgres address for
    LISTEN, if ``postgres_url`` is a transaction pooler. ``tenant``: the tenant of the command line. Runs of an arq queue also
    belong to this tenant if ``arq_queues`` names no tenant for the queue. ``queues``: the queues to serve (comma-separated), by
    default the queues of the app's agents. ``arq_queues``: queues of arq whose jobs become runs (comma-separated). Write
    ``NAME=TENANT`` if the runs of a queue belong to another tenant than ``tenant``. ``arq_redis_url``: the Redis server with
    the queues of ``arq_queues``, by default ``redis_url``. ``arq_keep_result``: the time for which Redis keeps the results of
    the jobs of arq. ``slots``: the maximum number of runs that a worker executes at the same time. ``grace``: the maximum time
    for which a worker waits for its runs to end after SIGTERM. ``watchdog``: the maximum time for which a worker with a blocked
    main loop keeps its runs. After this time other workers take over the runs. ``heartbeat_process``: whether a second process
    sends a worker's heartbeats while native code holds the interpreter (Linux only). ``feed_retention``: the time for which
    entries of the feed are kept. Set the same time in every worker. ``result_retention``: the time for which results of fork
    jobs are kept. Set the same time in every worker. ``stream_events``: the approximate maximum number of events in the stream
    of one run. Set the same stream settings in every process. ``stream_bytes``: the approximate maximum number of bytes in the
    stream of one run. ``stream_retention``: the time for which the stream of a run is kept after its last event.
    ``stopped_stream_retention``: the time for which the stream of a stopped run is kept after its last event. A stopped run has
    ended or waits for a human. ``total_stream_bytes``: the maximum number of bytes of all streams together, by default half of
    the ``maxmemory`` of Redis. ``min_pool_size``: the minimum number of connections to Postgres for the calls of one process.
    ``max_pool_size``: the maximum number of connections to Postgres for the calls of one process. ``page_bytes``: the maximum
    number of bytes in one page of a list of the HTTP API. A larger entry has a page without other entries.
    ``history_cache_bytes``: the maximum number of bytes of the histories that a worker keeps in memory. With 0 a worker keeps
    no history. ``log_level``: the lowest level of the lines that are logged. ``log_format``: ``json``, ``console``, or
    ``auto``, which is ``console`` on a terminal. ``metrics_port``: the port on which a worker serves health checks and metrics.
    Port 0 means any free port. Without a port, a worker serves no health checks and metrics. ``metrics_host``: the address on
    which a worker, and the second port of the API, serve metrics. ``remote_stacks``: whether the worker's port also shows
    stacks to other machines. ``trace_content``: whether spans of models and tools contain messages, arguments and results.
    ``webhook_secret``: the secret (``whsec_…``) from which the secrets that sign webhooks are derived. Set the same secret in
    every worker. During a rotation, set several comma-separated secrets. ``webhook_tries``: the maximum number of tries of a
    webhook delivery. ``webhook_timeout``: the maximum time of one try of a webhook delivery. ``webhook_backoff``: the pause
    between the first and the second try of a webhook delivery. ``webhook_allow_private``: networks (comma-separated) that are
    not public and may receive webhooks. Set the same networks in workers and API processes.
    """

    postgres_url: str = "postgresql://localhost:5432/runyard"
    redis_url: str = "redis://localhost:6379/0"
    listen_url: str | None = None
    tenant: str = ""
    queues: Annotated[list[str] | None, NoDecode] = None
    arq_queues: Annotated[list[str], NoDecode] = Field(default_factory=list)
    arq_redis_url: str | None = None
    arq_keep_result: float = Field(DEFAULT_ARQ_RESULT_SECONDS, gt=0, le=MAX_ARQ_RESULT_SECONDS)
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
    history_cache_bytes: int = Field(DEFAULT_HISTORY_CACHE_BYTES, ge=0)
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["json", "console", "auto"] = "auto"
    metrics_port: int | None = Field(None, ge=0, le=65535)
    metrics_host: str = "0.0.0.0"
    remote_stacks: bool = False
    trace_content: bool = False
    webhook_secret: SecretStr | None = None
    webhook_tries: int = Field(WEBHOOKS.tries, ge=1)
    webhook_timeout: float = Field(WEBHOOKS.timeout, gt=0, le=60)
    webhook_backoff: float = Field(WEBHOOKS.backoff, gt=0)
    webhook_allow_private: Annotated[list[IPv4Network | IPv6Network], NoDecode] = Field(default_factory=list)

    @property
    def retention(self) -> Retention:
        """The retention of the data that the leader prunes."""
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
            raise ValueError(
                'must be "whsec_" followed by the base64 of 24 to 64 bytes, for example the output of `openssl rand -base64 32`'
            )
        return SecretStr(",".join(secrets))

    @property
    def arq_tenants(self) -> dict[str, str]:
        """The queues of arq → the tenants of their runs."""
        parts = (entry.partition("=") for entry in self.arq_queues)
        return {name: tenant if sign else self.tenant for name, sign, tenant in parts}

    @field_validator("arq_queues")
    @classmethod
    def _are_named_once(cls, value: list[str]) -> list[str]:
        names = [entry.partition("=")[0] for entry in value]
        if not all(names) or len(set(names)) < len(names):
            raise ValueError("must be NAME or NAME=TENANT for each queue, separated by commas, with each name once")
        return value

    @field_validator("queues", "arq_queues", "webhook_allow_private", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return [name.strip() for name in value.split(",") if name.strip()] if isinstance(value, str) else value


def _bytes_of(secret: str) -> int:
    """Return the number of bytes of a webhook's secret, or 0 if the secret is invalid."""
    try:
        return len(base64.b64decode(secret.removeprefix("whsec_"), validate=True))
    except binascii.Error:
        return 0
