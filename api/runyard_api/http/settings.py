"""Settings of the HTTP API, from the environment (``RUNYARD_API_…``) or a ``.env`` file."""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import NoDecode, SettingsConfigDict

from runyard.errors import ConfigurationError
from runyard.support.settings import EnvFileSettings

MIN_SECRET_CHARACTERS: Final = 32
"""Minimum number of characters of a secret."""
_ORIGIN: Final = re.compile(r"\*|[a-z][a-z0-9+.-]*://(\[[0-9a-f:.]+\]|[^/?#@\s\[\]:]+)(:[0-9]+)?")
"""An origin as browsers send it: the scheme, the host and a port that is not the scheme's own."""


class ApiSettings(EnvFileSettings):
    """Settings of the API (A1, A2). Durations are in seconds, sizes in bytes.

    ``host``: the address on which ``runyard api`` listens. ``port``: the port on which ``runyard api`` listens.
    ``metrics_port``: a second port that serves ``/metrics`` without a key, for a Prometheus in the same network. On the main
    port, ``/metrics`` needs a key with the scope ``metrics`` or ``admin``. ``auth``: with ``keys``, each request needs an API
    key or a token. With ``off``, the API serves only callers on the same machine, and they need no key. ``cors_origins``: the
    origins (comma-separated) whose pages may call the API. ``compat``: the names (comma-separated) of the APIs of other systems
    that are also served (:mod:`runyard_api.http.compat.registry`). ``console``: whether the console is served at ``/console``,
    ``on`` or ``off``. ``max_body``: the maximum size of the body of a request. ``max_headers``: the maximum number of headers
    of a request. ``max_header_bytes``: the maximum size of the headers and the query of a request together. ``bodies_per_key``:
    the maximum total size of the bodies of a key's requests in one process. Answered requests do not count. ``body_timeout``:
    the maximum time in which the headers of a request must arrive, and then the maximum time in which the body must arrive.
    ``idle_timeout``: the maximum time between two requests of a connection. ``max_connections``: the maximum number of open
    connections of one process. The maximum is lower if the system allows fewer descriptors. ``requests_per_second``: the number
    of requests per second that are allowed for one key in one process. ``burst``: the number of requests that are allowed at
    once for one key after a pause. ``streams_per_key``: the maximum number of open streams of one key in one process. A request
    that waits for a run counts as a stream. ``heartbeat``: the time without an event after which a stream sends a comment.
    ``max_stream``: the maximum duration of one stream. The reader then reconnects, to any process. ``max_wait``: the maximum
    time for which a request may wait for a run. ``max_page``: the maximum number of entries of one page.
    ``failures_per_second``: the number of invalid keys, tokens and logins per second that are allowed for one address in one
    process. ``failure_burst``: the number of invalid keys, tokens and logins that are allowed at once for one address after a
    pause. ``token_lifetime``: the maximum time for which a stream token is valid. ``token_secret``: the secret that signs
    stream tokens. Set the same secret in every process. No secret is needed if ``auth`` is off. To replace a secret, give the
    new and the old secret, comma-separated. The first one signs tokens. All of them verify tokens. ``trust_traceparent``: if
    true, the sampler of OpenTelemetry gets the ``traceparent`` of a caller, and may follow it when it decides whether the trace
    is recorded. If false, the sampler treats the request like a request without this header (T2).
    """

    model_config = SettingsConfigDict(env_prefix="RUNYARD_API_", extra="ignore")

    host: str = "127.0.0.1"
    port: int = Field(8000, ge=0, le=65535)
    metrics_port: int | None = Field(None, ge=0, le=65535)
    auth: Literal["keys", "off"] = "keys"
    cors_origins: Annotated[list[str], NoDecode] = Field(default_factory=list)
    compat: Annotated[list[str], NoDecode] = Field(default_factory=list)
    console: Literal["on", "off"] = "on"
    max_body: int = Field(10 * 2**20, ge=1)
    bodies_per_key: int = Field(64 * 2**20, ge=1)
    max_headers: int = Field(100, ge=10)
    max_header_bytes: int = Field(32 * 2**10, ge=1024)
    body_timeout: float = Field(30.0, gt=0)
    idle_timeout: float = Field(5.0, gt=0)
    max_connections: int = Field(10_000, ge=1)
    requests_per_second: float = Field(200.0, gt=0)
    burst: int = Field(400, ge=1)
    streams_per_key: int = Field(2000, ge=1)
    failures_per_second: float = Field(10.0, gt=0)
    failure_burst: int = Field(200, ge=1)
    heartbeat: float = Field(15.0, gt=0)
    max_stream: float = Field(3600.0, gt=0)
    max_wait: float = Field(60.0, ge=0)
    max_page: int = Field(1000, ge=1, le=1000)
    token_lifetime: float = Field(3600.0, gt=0)
    token_secret: SecretStr | None = None
    trust_traceparent: bool = False

    def token_secrets(self) -> list[str]:
        """Return the secrets of ``token_secret``. The first one signs. Raises ConfigurationError for a short secret."""
        given = self.token_secret.get_secret_value() if self.token_secret else ""
        found = [secret.strip() for secret in given.split(",") if secret.strip()]
        if any(len(secret) < MIN_SECRET_CHARACTERS for secret in found):
            variable = self.variable("token_secret")
            raise ConfigurationError(
                f"{variable} has fewer than {MIN_SECRET_CHARACTERS} characters; `openssl rand -hex 32` makes a secret",
                variables=[variable],
            )
        return found

    @field_validator("cors_origins")
    @classmethod
    def _are_origins(cls, value: list[str]) -> list[str]:
        if not all(_ORIGIN.fullmatch(origin) for origin in value):
            raise ValueError("must be origins such as https://app.example, separated by commas, or *")
        return value

    @field_validator("token_secret")
    @classmethod
    def _has_a_secret(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and not value.get_secret_value().strip(" ,"):
            raise ValueError("must not be empty; remove it, or set a secret of `openssl rand -hex 32`")
        return value

    @field_validator("cors_origins", "compat", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return [name.strip() for name in value.split(",") if name.strip()] if isinstance(value, str) else value
