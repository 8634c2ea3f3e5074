"""The settings of webhooks, and the pauses between tries."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from backends.webhooks.sender import HttpSender
from runner.registry import connect
from runner.settings import Settings
from runner.webhooks.dispatcher import LONGEST, Dispatcher
from runner.webhooks.models import WebhookPolicy, new_secret


def settings(**given: Any) -> Settings:
    return Settings(_env_file=None, **given)


def test_what_signs_and_where_it_may_go(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = new_secret()
    monkeypatch.setenv("RUNYARD_WEBHOOK_SECRET", secret)
    monkeypatch.setenv("RUNYARD_WEBHOOK_ALLOW_PRIVATE", "10.1.0.0/16, fd00::/8,127.0.0.1")
    found = settings()
    assert found.webhooks.secret == secret and secret not in repr(found) and secret not in repr(found.webhooks)
    assert [str(network) for network in found.webhook_allow_private] == ["10.1.0.0/16", "fd00::/8", "127.0.0.1/32"]


@pytest.mark.parametrize("secret", ["whsec_", "whsec_short", "whsec_????????????????????????????????????????????", "x" * 200])
def test_what_is_no_secret(secret: str) -> None:
    """Found when a worker starts, not when the first webhook is due."""
    with pytest.raises(ValidationError, match="openssl rand"):
        settings(webhook_secret=secret)
    assert settings(webhook_secret="").webhooks.secret is None, "a variable without a value is none"


@pytest.mark.parametrize("networks", ["10.0.0.1/8", "everything", "10.0.0.0/33"])
def test_what_is_no_network(networks: str) -> None:
    with pytest.raises(ValidationError):
        settings(webhook_allow_private=networks)


async def test_the_pauses_grow_to_a_bound() -> None:
    """R11: exponential with jitter; the tries of a delivery take most of a day."""
    sender = HttpSender()
    dispatcher = Dispatcher(await connect("memory://"), sender, lambda: True, WebhookPolicy())
    for tries, middle in ((1, 5), (2, 15), (5, 405), (12, LONGEST), (5000, LONGEST)):
        assert 0.8 * middle <= dispatcher.pause(tries) <= 1.2 * middle
    assert len({dispatcher.pause(1) for _ in range(10)}) > 1
    await sender.close()
