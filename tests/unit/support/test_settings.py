"""Errors of settings: the variables that they name, and the values that they do not contain."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from runyard.errors import ConfigurationError
from runyard.support.settings import EnvFileSettings, FetchSettings, Settings
from runyard_api.http.settings import ApiSettings

VALUE = "7f3a91"
"""A text that is in no error."""


@pytest.mark.parametrize(
    ("settings", "variable", "remedy"),
    [
        (Settings, "RUNYARD_SLOTS", "valid integer"),
        (Settings, "RUNYARD_LOG_LEVEL", "'debug', 'info', 'warning' or 'error'"),
        (Settings, "RUNYARD_WEBHOOK_SECRET", "openssl rand"),
        (Settings, "RUNYARD_WEBHOOK_ALLOW_PRIVATE", "network"),
        (Settings, "RUNYARD_HEARTBEAT_PROCESS", "boolean"),
        (FetchSettings, "RUNYARD_FETCH_HOSTS", "names of hosts"),
        (ApiSettings, "RUNYARD_API_PORT", "valid integer"),
        (ApiSettings, "RUNYARD_API_AUTH", "'keys' or 'off'"),
        (ApiSettings, "RUNYARD_API_CORS_ORIGINS", "https://app.example"),
    ],
)
def test_an_error_names_the_variable_and_the_remedy(
    settings: type[EnvFileSettings], variable: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, f"{VALUE}:/")
    with pytest.raises(ConfigurationError) as refused:
        settings(_env_file=None)
    assert refused.value.details == {"variables": [variable]}
    assert variable in str(refused.value) and remedy in str(refused.value)
    assert VALUE not in str(refused.value) and refused.value.__cause__ is None and refused.value.__suppress_context__
    assert pickle.loads(pickle.dumps(refused.value)).details == refused.value.details


def test_an_error_names_every_wrong_variable_once(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong: dict[str, Any] = {"RUNYARD_SLOTS": "0", "RUNYARD_GRACE": "-1", "RUNYARD_WEBHOOK_ALLOW_PRIVATE": "a,b"}
    for name, value in wrong.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError) as refused:
        Settings(_env_file=None)
    assert refused.value.details == {"variables": list(wrong)}
    assert "greater than or equal to 1" in str(refused.value)


@pytest.mark.parametrize("secret", ["", " , "])
def test_an_empty_secret_of_tokens_is_refused(secret: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNYARD_API_TOKEN_SECRET", secret)
    with pytest.raises(ConfigurationError, match=r"RUNYARD_API_TOKEN_SECRET.*must not be empty"):
        ApiSettings(_env_file=None)


def test_origins_are_those_that_browsers_send(monkeypatch: pytest.MonkeyPatch) -> None:
    origins = ["*", "https://app.example", "http://localhost:3000", "http://[::1]:9", "tauri://localhost"]
    monkeypatch.setenv("RUNYARD_API_CORS_ORIGINS", ",".join(origins))
    assert ApiSettings(_env_file=None).cors_origins == origins
    for wrong in ("[", "app.example", "https://app.example/", "https://app.example/x", "https://a b"):
        monkeypatch.setenv("RUNYARD_API_CORS_ORIGINS", wrong)
        with pytest.raises(ConfigurationError, match="RUNYARD_API_CORS_ORIGINS"):
            ApiSettings(_env_file=None)
