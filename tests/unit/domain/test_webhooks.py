"""The settings of webhooks, and the pauses between tries."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
from standardwebhooks import Webhook

from runyard.domain.webhook_secrets import derived, expanded
from runyard.domain.webhooks import Posting, WebhookPolicy, WebhookReply
from runyard.errors import ConfigurationError
from runyard.models import RunOptions
from runyard.ports.stores import WebhookSender
from runyard.support.backend_urls import connect
from runyard.support.settings import Settings
from runyard.worker.signed_webhook import WebhookEvent, body_of, signed
from runyard.worker.webhook_dispatcher import MAX_BACKOFF_SECONDS, WebhookDispatcher
from runyard_backends.conformance.world import World
from runyard_backends.webhooks.sender import HttpSender
from tests.support.receiver import new_secret


def settings(**given: Any) -> Settings:
    return Settings(_env_file=None, **given)


def test_webhook_settings_give_secret_and_private_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = new_secret()
    monkeypatch.setenv("RUNYARD_WEBHOOK_SECRET", secret)
    monkeypatch.setenv("RUNYARD_WEBHOOK_ALLOW_PRIVATE", "10.1.0.0/16, fd00::/8,127.0.0.1")
    found = settings()
    assert found.webhooks.secret == secret and secret not in repr(found) and secret not in repr(found.webhooks)
    assert [str(network) for network in found.webhook_allow_private] == ["10.1.0.0/16", "fd00::/8", "127.0.0.1/32"]


def test_a_secret_that_takes_the_place_of_another() -> None:
    """Both sign, so that a receiver can change over when it likes."""
    old, new = new_secret(), new_secret()
    found = settings(webhook_secret=f"{new}, {old}").webhooks.secret
    assert found is not None
    headers = signed("msg_1", b"{}", derived(found, "a", None, (1,)), datetime.now(UTC))
    for root in (old, new):
        (secret,) = derived(root, "a", None, (1,))
        assert Webhook(secret).verify(b"{}", headers) == {}
    with pytest.raises(ConfigurationError, match="openssl rand") as refused:
        settings(webhook_secret=f"{new},whsec_short")
    assert "whsec_short" not in str(refused.value), "the log would have the good one too"


def test_the_derivation_is_hkdf() -> None:
    """RFC 5869, the third test of its appendix A."""
    okm = "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d"
    assert expanded(b"\x0b" * 22, b"").hex() == okm


def test_no_two_owners_and_no_two_versions_share_a_secret() -> None:
    root = new_secret()
    owners = [("", None), ("a", None), ("a\n1", None), ("hook", None), ("", "hook"), ("", "a")]
    found = [secret for tenant, hook in owners for secret in derived(root, tenant, hook, (1, 2, 11))]
    assert len({root, *found}) == 1 + len(found) == 19
    assert derived(root, "a", "hook", (1,)) == derived(root, "b", "hook", (1,)), "one subscription hears many tenants"
    assert derived(f"{root},{new_secret()}", "a", None, (2, 1))[0] == derived(root, "a", None, (2,))[0], "the current one first"


@pytest.mark.parametrize("secret", ["whsec_", "whsec_short", "whsec_????????????????????????????????????????????", "x" * 200])
def test_webhook_secret_that_is_none_is_refused(secret: str) -> None:
    """Found when a worker starts, not when the first webhook is due."""
    with pytest.raises(ConfigurationError, match="openssl rand"):
        settings(webhook_secret=secret)
    assert settings(webhook_secret="").webhooks.secret is None, "a variable without a value is none"


@pytest.mark.parametrize("networks", ["10.0.0.1/8", "everything", "10.0.0.0/33"])
def test_private_network_that_is_none_is_refused(networks: str) -> None:
    with pytest.raises(ConfigurationError):
        settings(webhook_allow_private=networks)


async def test_the_pauses_grow_to_a_bound() -> None:
    """R11: exponential with jitter; the tries of a delivery take most of a day."""
    sender = HttpSender()
    dispatcher = WebhookDispatcher(await connect("memory://"), sender, lambda: True, WebhookPolicy())
    for tries, middle in ((1, 5), (2, 15), (5, 405), (12, MAX_BACKOFF_SECONDS), (5000, MAX_BACKOFF_SECONDS)):
        assert 0.8 * middle <= dispatcher.pause(tries) <= 1.2 * middle
    assert len({dispatcher.pause(1) for _ in range(10)}) > 1
    await sender.close()


class Hanging(WebhookSender):
    """Receivers whose names begin with h answer nothing until they are let go; others at once."""

    def __init__(self) -> None:
        self.held: list[asyncio.Future[WebhookReply]] = []

    async def send(self, url: str, headers: Mapping[str, str], body: bytes, *, timeout: float) -> WebhookReply:
        if "//h" not in url:
            return WebhookReply(204)
        self.held.append(asyncio.get_running_loop().create_future())
        return await self.held[-1]

    def give_up(self) -> int:
        for reply in self.held:
            reply.set_result(WebhookReply(error="no answer"))
        count, self.held = len(self.held), []
        return count


async def test_many_receivers_that_hang_leave_room_for_others() -> None:
    """R11: ten of them would hold every place for as long as a try may take, and again after it."""
    backend, sender = await connect("memory://"), Hanging()
    world = World(backend, None)  # type: ignore[arg-type]
    for n in range(16):
        for host in range(10):
            await world.turn(f"h{host}-{n}", options=RunOptions(webhook=f"https://h{host}.example/"))
    dispatcher = WebhookDispatcher(backend, sender, lambda: True, WebhookPolicy(secret=new_secret(), backoff=3600))

    async def looks(count: int) -> None:
        for _ in range(count):
            await dispatcher.step()
            for _ in range(10):
                await asyncio.sleep(0)

    await looks(2)
    assert sender.give_up() == 64, "nothing is known of them yet"
    await looks(2)
    assert sender.give_up() <= 48
    await looks(2)
    assert 10 <= len(sender.held) <= 32
    for n in range(40):
        await world.turn(f"r{n}", options=RunOptions(webhook="https://answers.example/"))
    await looks(10)
    assert len((await backend.webhooks.deliveries(status="delivered")).items) == 40
    sender.give_up()
    await looks(1)


async def test_delivery_to_an_invalid_url_is_given_up_at_once() -> None:
    """A host's own transaction may hold what no client accepts."""
    backend = await connect("memory://")
    world = World(backend, None)  # type: ignore[arg-type]
    await world.turn("r1", options=RunOptions(webhook="https://b\u00fccher.example/"))
    dispatcher = WebhookDispatcher(backend, Hanging(), lambda: True, WebhookPolicy(secret=new_secret()))
    assert await dispatcher.step() == 1
    await asyncio.sleep(0.01)
    (failed,) = (await backend.webhooks.deliveries(status="failed")).items
    assert failed.tries == 1 and "URL" in (failed.error or "")


async def test_numbers_that_json_has_not() -> None:
    """What is sent can be read by any parser."""
    backend = await connect("memory://")
    world = World(backend, None)  # type: ignore[arg-type]
    await world.turn("r1")
    run = (await world.run("r1", "t")).model_copy(update={"result": {"score": float("nan")}})
    posting = Posting(
        number=1, delivery_id="msg_1", tenant="", webhook_id=None, versions=(1,), url="https://x.example/", endpoint="https://x.example",
        type="run.completed", thread_id="t", run_id="r1", created_at=datetime.now(UTC), tries=1,
    )  # fmt: skip
    WebhookEvent.model_validate_json(body_of(posting, run))  # what the API's document says
    told = json.loads(body_of(posting, run), parse_constant=pytest.fail)
    assert told["run"]["result"] == {"score": None}
