"""Webhooks as their receivers see them: signed, retried, at least once, and never where they must not go (R11, E5)."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import ip_network
from pathlib import Path

import asyncpg
import pytest
from prometheus_client import REGISTRY
from standardwebhooks import Webhook, WebhookVerificationError

from runyard import Client, RunStatus, errors
from runyard.domain.webhook_secrets import derived
from runyard.domain.webhooks import DeliveryStatus, WebhookDelivery, WebhookPolicy
from runyard.models import RunOptions
from runyard.worker.webhook_dispatcher import WebhookDispatcher
from runyard_api.cli import exit_codes
from runyard_api.cli.main import main
from runyard_backends.conformance.world import World
from runyard_backends.postgres.backend import connect
from runyard_backends.webhooks.sender import HttpSender
from tests.support.fleet import Fleet, until
from tests.support.receiver import Received, Receiver, answering, new_secret

SECRET = new_secret()
(OF_RUNS,) = derived(SECRET, "", None, (1,))
POLICY = WebhookPolicy(secret=SECRET, timeout=1.0, tries=3, backoff=0.01)
HOW_TO = Path(__file__).parents[2] / "docs" / "how-to" / "webhooks.md"


@pytest.fixture(autouse=True)
def deployment_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNYARD_WEBHOOK_SECRET", SECRET)


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with Receiver().serving() as running:
        yield running


@pytest.fixture
async def world(postgres_url: str) -> AsyncIterator[World]:
    async def factory(tenant: str = "") -> World:
        raise AssertionError("one is enough")

    backend = await connect(postgres_url, max_pool_size=8)
    yield World(backend, factory)  # type: ignore[arg-type]
    await backend.close()


@asynccontextmanager
async def dispatching(world: World, policy: WebhookPolicy = POLICY) -> AsyncIterator[WebhookDispatcher]:
    """The dispatcher of a worker that leads, allowed to reach this machine."""
    sender = HttpSender([ip_network("127.0.0.0/8")])
    dispatcher = WebhookDispatcher(world.backend, sender, lambda: True, policy)
    task = asyncio.create_task(dispatcher.run())
    try:
        yield dispatcher
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await sender.close()


async def reached(receiver: Receiver, count: int) -> bool:
    return len(receiver.received) == count


async def settled(world: World, count: int, status: DeliveryStatus) -> list[WebhookDelivery]:
    """The deliveries, once so many have this status."""
    client = Client(world.backend)

    async def enough() -> bool:
        return len((await client.webhook_deliveries(status=status)).items) >= count

    await until(enough)
    return (await client.webhook_deliveries(status=status)).items


def own(receiver: Receiver, path: str = "/hook") -> RunOptions:
    return RunOptions(webhook=receiver.url(path))


def tried(outcome: str) -> float:
    return REGISTRY.get_sample_value("runyard_webhook_deliveries_total", {"outcome": outcome}) or 0.0


async def test_receiver_gets_a_signed_event_with_the_end_of_the_run(world: World, receiver: Receiver) -> None:
    """R11: who, what, how it ended; signed as standard-webhooks says, with the secret of the tenant or the subscription."""
    client = Client(world.backend)
    webhook = await client.subscribe_webhook(receiver.url("/all"), ["run.failed"])
    await world.turn("r1", options=own(receiver), metadata={"order": 7})
    await world.failed("r2")
    before = tried("delivered")
    async with dispatching(world):
        await settled(world, 2, "delivered")
    assert tried("delivered") == before + 2
    by_path = {request.path: request for request in receiver.received}
    completed, failed = by_path["/hook"], by_path["/all"]
    assert webhook.secret is not None
    for request, secret in ((completed, OF_RUNS), (failed, webhook.secret)):
        assert Webhook(secret).verify(request.body, dict(request.headers))["id"] == request.id
        signed = f"{request.id}.{request.headers['webhook-timestamp']}.".encode() + request.body
        mac = hmac.new(base64.b64decode(secret.removeprefix("whsec_")), signed, hashlib.sha256).digest()
        assert request.headers["webhook-signature"] == f"v1,{base64.b64encode(mac).decode()}"
        assert request.headers["content-type"] == "application/json"
    with pytest.raises(WebhookVerificationError):
        Webhook(OF_RUNS).verify(failed.body, dict(failed.headers))
    told = completed.json
    assert {name: told[name] for name in ("type", "tenant", "thread_id", "run_id")} == {
        "type": "run.completed",
        "tenant": "",
        "thread_id": "t",
        "run_id": "r1",
    }
    assert (told["id"], told["run"]["status"], told["run"]["metadata"]) == (completed.id, "completed", {"order": 7})
    assert told["created_at"] and told["run"]["error"] is None and told["run"]["finished_at"]
    assert (failed.json["run"]["status"], failed.json["run"]["error"]["code"]) == ("failed", "x")


def verifies(secret: str, request: Received) -> bool:
    try:
        Webhook(secret).verify(request.body, dict(request.headers))
    except WebhookVerificationError:
        return False
    return True


async def test_secret_of_one_tenant_signs_for_no_other(world: World, receiver: Receiver, postgres_url: str) -> None:
    """R11: neither the secret of another tenant, nor the deployment's, nor one of a subscription; and no table holds one."""
    alpha, beta = (World(world.backend.for_tenant(name), world.factory) for name in ("alpha", "beta"))
    (mine, theirs) = [await Client(each.backend).webhook_secret() for each in (alpha, beta)]
    hooks = [await Client(each.backend).subscribe_webhook(receiver.url(f"/sub{each.backend.tenant}")) for each in (alpha, beta)]
    everything = await Client(world.backend).subscribe_webhook(receiver.url("/all"), all_tenants=True)
    assert mine is not None and theirs is not None and mine.secret not in repr(mine)
    await alpha.turn("r1", options=own(receiver))
    async with dispatching(world):
        await settled(alpha, 2, "delivered")
        await settled(world, 1, "delivered")
    secrets = {
        "/hook": mine.secret, "/subalpha": hooks[0].secret, "/all": everything.secret,
        "beta": theirs.secret, "/subbeta": hooks[1].secret, "deployment": SECRET,
    }  # fmt: skip
    for request in receiver.received:
        assert [name for name, secret in secrets.items() if secret and verifies(secret, request)] == [request.path]
    connection = await asyncpg.connect(postgres_url)
    try:
        tables = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'runyard'")
        rows = [await connection.fetch(f"SELECT x::text FROM runyard.{name} x") for (name,) in tables]
    finally:
        await connection.close()
    backup = "\n".join(row[0] for found in rows for row in found)
    assert everything.webhook_id in backup
    for secret in secrets.values():
        assert secret is not None and secret.removeprefix("whsec_") not in backup


async def test_a_rotation(world: World, receiver: Receiver) -> None:
    """R11: both sign while receivers change over; what is tried again is signed by what is current at the try."""
    client = Client(world.backend)
    first = await client.webhook_secret()
    receiver.answers(500)
    await world.turn("r1", options=own(receiver))
    async with dispatching(world, WebhookPolicy(secret=SECRET, tries=3, backoff=3600.0)):
        (waiting,) = await settled(world, 1, "pending")
        await until(lambda: reached(receiver, 1))
        second = await client.rotate_webhook_secret()
        await until(lambda: tried_once(client))
        connection = world.backend.db  # type: ignore[attr-defined]
        await connection.pool.execute("UPDATE runyard.webhook_deliveries SET next_at = now()")
        await settled(world, 1, "delivered")
        third = await client.rotate_webhook_secret(overlap=0.0)
        assert await client.redeliver_webhook(waiting.delivery_id)
        await until(lambda: reached(receiver, 3))
    assert first is not None and second is not None and third is not None
    assert (first.version, second.version, third.version) == (1, 2, 3)
    assert second.both_until is not None and third.both_until is None
    signed_by = [[key.version for key in (first, second, third) if verifies(key.secret, one)] for one in receiver.received]
    assert signed_by == [[1], [1, 2], [3]]
    with pytest.raises(errors.InvalidInputError):
        await client.rotate_webhook_secret(overlap=-1.0)
    assert await client.rotate_webhook_secret("no-such-webhook") is None


async def tried_once(client: Client) -> bool:
    return (await client.webhook_deliveries()).items[0].http_status == 500


async def test_process_without_the_deployments_secret_subscribes_and_shows_no_secret(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A web backend need not know it: it subscribes, and who knows it reads the secret."""
    client = Client(world.backend)
    monkeypatch.delenv("RUNYARD_WEBHOOK_SECRET")
    webhook = await client.subscribe_webhook("https://example.com/")
    assert webhook.secret is None
    for call in (client.webhook_secret, client.rotate_webhook_secret):
        with pytest.raises(errors.CapabilityMissingError, match="RUNYARD_WEBHOOK_SECRET"):
            await call(webhook.webhook_id)
    monkeypatch.setenv("RUNYARD_WEBHOOK_SECRET", SECRET)
    found = await client.webhook_secret(webhook.webhook_id)
    assert found is not None and found.version == 1, "nothing was rotated that could not be told"


async def test_delivery_describes_the_run_at_the_time_of_its_event(world: World, receiver: Receiver) -> None:
    """A run that goes on before its suspension was told is not told as completed under another type; one that was deleted
    is told by its ids."""
    await Client(world.backend).subscribe_webhook(receiver.url())
    request = await world.suspended("r1")
    await world.runs.respond("yes", thread_id="t", request_id=request)
    await world.finish(await world.take("r1"), result={"sum": 3})
    await world.turn("r2", thread="gone")
    await world.threads.delete_thread("gone")
    async with dispatching(world):
        await settled(world, 3, "delivered")
    stories = {(r.json["type"], r.json["run_id"]): r.json["run"] for r in receiver.received}
    suspended, completed = stories["run.suspended", "r1"], stories["run.completed", "r1"]
    assert (suspended["status"], suspended["result"], suspended["finished_at"]) == ("suspended", None, None)
    assert (completed["status"], completed["result"]) == ("completed", {"sum": 3})
    assert stories["run.completed", "r2"]["status"] == "completed" and stories["run.completed", "r2"]["metadata"] is None


async def test_a_large_result_is_left_out(world: World, receiver: Receiver) -> None:
    await world.finish(await world.start("r1", options=own(receiver)), result="x" * 100_000)
    async with dispatching(world):
        await settled(world, 1, "delivered")
    assert (receiver.received[0].json["run"]["result"], receiver.received[0].json["run"]["result_omitted"]) == (None, True)


async def test_delivery_that_fails_is_sent_again_until_it_arrives(world: World, receiver: Receiver) -> None:
    """R11: retried; the id stays, so that a receiver can tell a repetition."""
    receiver.answers(500, 302)
    await world.turn("r1", options=own(receiver))
    async with dispatching(world):
        (delivery,) = await settled(world, 1, "delivered")
    assert (delivery.tries, delivery.http_status, delivery.error) == (3, 204, None)
    assert [request.path for request in receiver.received] == ["/hook"] * 3
    assert {request.id for request in receiver.received} == {delivery.delivery_id}


async def test_delivery_is_given_up_after_its_tries_and_can_be_sent_again(world: World, receiver: Receiver) -> None:
    receiver.answers(500, 500, 503)
    await world.turn("r1", options=own(receiver))
    async with dispatching(world):
        (failed,) = await settled(world, 1, "failed")
        assert (failed.tries, failed.http_status, failed.error) == (3, 503, "answered 503")
        assert len(receiver.received) == 3
        assert await Client(world.backend).redeliver_webhook(failed.delivery_id)
        await settled(world, 1, "delivered")
    assert len({request.id for request in receiver.received}) == 1


async def test_receiver_that_answers_410_gets_nothing_more(world: World, receiver: Receiver) -> None:
    """410: nothing more is sent there."""
    receiver.answers(410)
    client = Client(world.backend)
    await client.subscribe_webhook(receiver.url())
    await world.turn("r1")
    async with dispatching(world):
        (failed,) = await settled(world, 1, "failed")
        await world.turn("r2")
        await world.turn("r3", options=own(receiver, "/own"))
        await settled(world, 1, "delivered")
    assert failed.http_status == 410 and [request.path for request in receiver.received] == ["/hook", "/own"]
    (webhook,) = (await client.webhooks()).items
    assert webhook.disabled_at is not None


async def test_receivers_that_hang_hold_up_nobody_else(world: World, receiver: Receiver) -> None:
    """A bounded number at once for each endpoint; the rest goes on while they hang."""
    let_go = asyncio.Event()

    async def hang(_: Received) -> bytes:
        await let_go.wait()
        return answering(204)

    async with Receiver(answer=hang).serving() as hanging:
        for n in range(20):
            await world.turn(f"h{n}", options=own(hanging))
        await world.turn("r1", options=own(receiver))
        async with dispatching(world, WebhookPolicy(secret=SECRET, timeout=30.0)) as dispatcher:
            await settled(world, 1, "delivered")
            await until(lambda: reached(hanging, 8))
            assert await dispatcher.step() == 0 and len(hanging.received) == 8
            let_go.set()
            await settled(world, 21, "delivered")
    assert len(hanging.received) == 20


async def test_a_receiver_that_does_not_answer_in_time(world: World, receiver: Receiver) -> None:
    async def hang(_: Received) -> bytes:
        await asyncio.Event().wait()
        return b""

    receiver.answer = hang
    await world.turn("r1", options=own(receiver))
    async with dispatching(world, WebhookPolicy(secret=SECRET, timeout=0.2, tries=2, backoff=0.01)):
        (failed,) = await settled(world, 1, "failed")
    assert (failed.tries, failed.http_status) == (2, None) and "no answer within" in (failed.error or "")


@pytest.mark.parametrize("host", ["10.0.0.1", "169.254.169.254", "[::1]", "[::ffff:10.0.0.1]"])
async def test_webhook_with_a_private_address_is_not_called(world: World, host: str) -> None:
    """At once: another try would change nothing."""
    await world.turn("r1", options=RunOptions(webhook=f"http://{host}:9/"))
    async with dispatching(world):
        (failed,) = await settled(world, 1, "failed")
    assert failed.tries == 1 and "RUNYARD_WEBHOOK_ALLOW_PRIVATE" in (failed.error or "")


async def test_worker_without_a_secret_sends_no_webhook(world: World, receiver: Receiver) -> None:
    await world.turn("r1", options=own(receiver))
    async with dispatching(world, WebhookPolicy(tries=2, backoff=0.01)):
        (failed,) = await settled(world, 1, "failed")
    assert "RUNYARD_WEBHOOK_SECRET" in (failed.error or "") and receiver.received == []


async def test_only_the_leader_sends(world: World, receiver: Receiver) -> None:
    await world.turn("r1", options=own(receiver))
    sender = HttpSender([ip_network("127.0.0.0/8")])
    assert await WebhookDispatcher(world.backend, sender, lambda: False, POLICY).step() == 0
    assert receiver.received == []
    await sender.close()


@pytest.mark.parametrize(
    "url",
    [
        *("", "hook", "/hook", "ftp://example.com/", "file:///etc/passwd", "http://", "https:///x", "javascript:alert(1)"),
        *("https://user:pass@example.com/", "https://example.com/#part", "https://example.com/a b", "https://exa\nmple.com/"),
        *("https://example.com:99999/", "https://[::1/", "https://bücher.example/", "https://example.com/" + "x" * 2048),
        "https://example.com\\@127.0.0.1/",
    ],
)
async def test_urls_that_are_none(world: World, url: str) -> None:
    client = Client(world.backend)
    with pytest.raises(errors.InvalidInputError):
        await client.subscribe_webhook(url)
    with pytest.raises(errors.InvalidInputError) as caught:
        await client.enqueue("t", "hi", webhook=url)
    assert caught.value.details["field"] == "webhook"


async def test_events_that_are_none(world: World) -> None:
    client = Client(world.backend)
    for events in ([], ["run.exploded"], ["run.failed", ""]):
        with pytest.raises(errors.InvalidInputError):
            await client.subscribe_webhook("https://example.com/", events)  # type: ignore[arg-type]
    with pytest.raises(errors.InvalidInputError):
        await client.webhook_deliveries(status="lost")  # type: ignore[arg-type]


async def test_a_hosts_own_transaction(world: World, receiver: Receiver, postgres_url: str) -> None:
    """R11 through SQL alone, and the same check of what is no URL."""
    connection = await asyncpg.connect(postgres_url)
    try:
        for wrong in ("7", '"ftp://x/"', '"http://a@b/"', '"http:///x"'):
            with pytest.raises(asyncpg.PostgresError, match="option webhook"):
                await connection.execute("SELECT runyard.accept('t', 'hi', options => $1::jsonb)", f'{{"webhook": {wrong}}}')
        options = json.dumps({"webhook": receiver.url()})
        await connection.execute("SELECT runyard.accept('t', 'hi', run_id => 'r1', options => $1::jsonb)", options)
    finally:
        await connection.close()
    await world.runs.admit()
    await world.finish(await world.take("r1"))
    async with dispatching(world):
        await settled(world, 1, "delivered")
    assert receiver.received[0].json["run_id"] == "r1"


async def test_documented_receiver_accepts_what_is_sent_and_nothing_else(world: World, receiver: Receiver) -> None:
    """What the how-to tells a receiver to do accepts what is sent, and nothing else."""
    _, found, rest = HOW_TO.read_text(encoding="utf-8").partition("```python\nfrom standardwebhooks")
    assert found
    names: dict[str, object] = {}
    exec("from standardwebhooks" + rest.partition("```")[0].replace("whsec_…", OF_RUNS), names)
    receive = names["receive"]
    assert callable(receive)
    await world.turn("r1", options=own(receiver))
    async with dispatching(world):
        await settled(world, 1, "delivered")
    (request,) = receiver.received
    assert receive(dict(request.headers), request.body) == 204
    assert receive(dict(request.headers), request.body.replace(b"completed", b"cancelled")) == 400


async def test_kill_9_of_the_dispatcher(fleet: Fleet, receiver: Receiver) -> None:
    """E5: what was in flight is sent again by the next leader, under the same id; what had arrived is not; nothing is lost."""
    fleet.environment = {"RUNYARD_WEBHOOK_SECRET": SECRET, "RUNYARD_WEBHOOK_ALLOW_PRIVATE": "127.0.0.0/8"}
    settings = {"webhook_timeout": 1.0, "webhook_backoff": 0.1}
    hung: list[Received] = []
    hanging = asyncio.Event()

    async def answer(request: Received) -> bytes:
        if request.json["thread_id"] == "hangs" and not hung:
            hung.append(request)
            hanging.set()
            await asyncio.Event().wait()
        return answering(204)

    receiver.answer = answer
    for _ in range(2):
        await fleet.start(**settings)
    handles = [await fleet.client.enqueue(f"t{n}", "say hi", webhook=receiver.url()) for n in range(5)]
    job = await fleet.client.enqueue_fork("t0", "fork", after_run_id=handles[0].id, webhook=receiver.url())
    assert [(await handle.result(20)).status for handle in (*handles, job)] == [RunStatus.COMPLETED] * 6

    async def arrived(count: int) -> bool:
        return len((await fleet.client.webhook_deliveries(status="delivered")).items) == count

    await until(lambda: arrived(6))
    last = await fleet.client.enqueue("hangs", "say hi", webhook=receiver.url())
    await asyncio.wait_for(hanging.wait(), 20)
    leading = await fleet.metric("runyard_leading")
    (leader,) = [pid for pid, leads in leading.items() if leads]
    fleet.processes[leader].send_signal(signal.SIGKILL)
    await until(lambda: arrived(7), 40)
    ids = [request.id for request in receiver.received]
    repeated = {id_ for id_ in ids if ids.count(id_) > 1}
    assert repeated == {hung[0].id} and ids.count(hung[0].id) == 2
    assert {request.json["run_id"] for request in receiver.received} == {handle.id for handle in (*handles, job, last)}


async def test_the_command_line(
    postgres_url: str, receiver: Receiver, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNYARD_POSTGRES_URL", postgres_url)
    monkeypatch.setenv("RUNYARD_REDIS_URL", "redis://127.0.0.1:1/0")  # not asked for anything

    async def runyard(*arguments: str) -> str:
        capsys.readouterr()  # the dispatcher's log
        assert await asyncio.to_thread(main, arguments) == exit_codes.Exit.OK
        return capsys.readouterr().out

    made = json.loads(await runyard("webhooks", "add", receiver.url(), "--event", "run.failed", "--json"))
    assert made["secret"].startswith("whsec_") and made["events"] == ["run.failed"]
    of_hook = json.loads(await runyard("webhooks", "secret", made["webhook_id"], "--json"))
    assert of_hook == {"secret": made["secret"], "version": 1, "both_until": None}
    assert (await runyard("webhooks", "secret")).strip() == OF_RUNS
    assert (await runyard("--tenant", "beta", "webhooks", "secret")).strip() == derived(SECRET, "beta", None, (1,))[0]
    assert (await runyard("--tenant", "beta", "webhooks", "rotate")).strip() == derived(SECRET, "beta", None, (2,))[0]
    rotated = json.loads(await runyard("webhooks", "rotate", made["webhook_id"], "--overlap", "0", "--json"))
    assert rotated["version"] == 2 and rotated["secret"] != made["secret"] and rotated["both_until"] is None
    listed = await runyard("webhooks", "list", "--json")
    assert made["webhook_id"] in listed and made["secret"] not in listed
    async with Client.connect(postgres_url) as client:
        backend = client.backend
        world = World(backend, None)  # type: ignore[arg-type]
        receiver.answers(500)
        await world.failed("r1")
        async with dispatching(world, WebhookPolicy(secret=SECRET, tries=1)):
            (failed,) = await settled(world, 1, "failed")
            assert json.loads(await runyard("webhooks", "deliveries", "--failed", "--json"))["items"][0]["http_status"] == 500
            assert "answered 500" in await runyard("webhooks", "deliveries")
            await runyard("webhooks", "redeliver", failed.delivery_id)
            await settled(world, 1, "delivered")
    await runyard("webhooks", "remove", made["webhook_id"])
    assert json.loads(await runyard("webhooks", "list", "--json")) == {"items": [], "next": None}
