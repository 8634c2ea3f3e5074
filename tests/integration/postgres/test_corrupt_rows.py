"""Rows that no code of ours wrote: the error names the thread and the row, and no driver's or library's error gets out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Any

import asyncpg
import httpx
import pytest

from runyard import Client
from runyard.domain.states import RunStatus
from runyard.domain.webhooks import Webhook, WebhookPolicy, WebhookReply
from runyard.errors import BackendUnavailableError, DataCorruptedError
from runyard.models import FEED_TYPES, ErrorInfo, HitlRequest, Message, RunOptions, Usage
from runyard.ports.commands import AcceptRequest, Cut, FanOut, ForkRequest, Write
from runyard.ports.queries import PageRequest, RunFilter
from runyard.ports.refs import AttemptToken
from runyard.ports.results import Ended, Page
from runyard.ports.stores import Backend
from runyard.ports.workers import Retention, WorkerInfo
from runyard.worker.webhook_dispatcher import WebhookDispatcher
from runyard_api.cli.main import main
from runyard_api.http.app import asgi_app
from runyard_backends.postgres import checkpointer
from runyard_backends.postgres.backend import connect
from tests.support.receiver import new_secret

MESSAGES = {
    "no msgpack": b"\xc1",
    "cut short": b"\x81\xa7content\x92",
    "no object": b"\x07",
    "no content": b"\x80",
    "another content": b"\x81\xa7content\x07",
    "no JSON": b"{nope",
    "a list": b"\x90",
}


@pytest.fixture
async def backend(postgres_url: str) -> AsyncIterator[Backend]:
    backend = await connect(postgres_url)
    yield backend
    await backend.close()


async def execute(url: str, statement: str, *args: object) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(statement, *args)
    finally:
        await connection.close()


@pytest.mark.parametrize("payload", MESSAGES.values(), ids=MESSAGES)
async def test_a_message_that_cannot_be_decoded(backend: Backend, postgres_url: str, payload: bytes) -> None:
    """R15: the thread and the message are named, whoever reads it; other threads are read as before."""
    cp = backend.checkpointer
    messages = [Message.user("a"), Message.user("b"), Message.user("c")]
    await cp.append("t", messages)
    await cp.claim_run("t", "x")
    await cp.mark_run_complete("t", "x")
    await cp.append("other", [Message.user("fine")])
    await execute(postgres_url, "UPDATE runyard.messages SET payload = $1 WHERE message_id = $2", payload, messages[1].id)
    reads: list[Callable[[], Awaitable[object]]] = [
        lambda: cp.load("t"),
        lambda: cp.snapshot("t", after_run_id="x"),
        lambda: backend.threads.messages("t"),
        lambda: backend.threads.cut_messages("t", Cut(after_run_id="x")),
    ]
    for read in reads:
        with pytest.raises(DataCorruptedError, match=messages[1].id) as refused:
            await read()
        assert refused.value.details["message_id"] == messages[1].id
        assert refused.value.details["thread_id"] == "t"
    loaded = await cp.load("other")
    assert loaded is not None and loaded.messages[0].text == "fine"


async def test_other_rows_that_cannot_be_decoded(backend: Backend, postgres_url: str) -> None:
    """R15: a run, a request and a thread are named too."""
    accepted = await backend.runs.accept(AcceptRequest(thread_id="t", run_id="r", input=Message.user("hello")))
    await backend.workers.register(WorkerInfo(worker_id="w", queues=["default"]))
    [claim] = await backend.runs.claim("w", [accepted.effects.jobs[0].ref])
    assert claim.attempt is not None
    await backend.runs.suspend(Write(attempt=claim.attempt), [HitlRequest(request_id="q")])
    await execute(postgres_url, "UPDATE runyard.hitl_requests SET body = '\\xc1'")
    with pytest.raises(DataCorruptedError) as refused:
        await backend.runs.request("q")
    assert (refused.value.details["thread_id"], refused.value.details["request_id"]) == ("t", "q")
    await execute(postgres_url, "UPDATE runyard.runs SET result = '\\xc1'")
    with pytest.raises(DataCorruptedError) as refused:
        await backend.runs.run("t", "r")
    assert (refused.value.details["thread_id"], refused.value.details["run_id"]) == ("t", "r")
    await execute(postgres_url, "UPDATE runyard.threads SET tags = '[]'")
    with pytest.raises(DataCorruptedError) as refused:
        await backend.threads.thread("t")
    assert refused.value.details == {"thread_id": "t"}


@pytest.mark.parametrize("most", [0, 200], ids=["long thread", "short thread"])
@pytest.mark.parametrize("values", ["extra = '[]'", "extra = '7'", "config = 'null'", 'config = \'{"a": 1' + "0" * 5000 + "}'"])
async def test_a_thread_whose_extra_or_config_cannot_be_decoded(
    backend: Backend, postgres_url: str, monkeypatch: pytest.MonkeyPatch, values: str, most: int
) -> None:
    """R15: the thread is named."""
    monkeypatch.setattr(checkpointer, "SHORT_MESSAGES", most)
    await backend.checkpointer.append("t", [Message.user("a")])
    await execute(postgres_url, f"UPDATE runyard.threads SET {values}")
    with pytest.raises(DataCorruptedError) as refused:
        await backend.checkpointer.load("t")
    assert refused.value.details == {"thread_id": "t"}


async def test_a_run_that_cannot_be_decoded_fails_when_it_is_claimed(backend: Backend, postgres_url: str) -> None:
    """I1: no worker could ever execute it. Its neighbours in the batch are claimed, and its lane goes on."""
    await backend.workers.register(WorkerInfo(worker_id="w", queues=["default"]))
    refs = []
    for thread_id in ("bad", "fine"):
        accepted = await backend.runs.accept(AcceptRequest(thread_id=thread_id, run_id="r", input=Message.user("hello")))
        refs.append(accepted.effects.jobs[0].ref)
    await backend.runs.accept(AcceptRequest(thread_id="bad", run_id="next", input=Message.user("hello")))
    await execute(
        postgres_url, """UPDATE runyard.runs SET options = '{"timeout": -1}' WHERE thread_id = 'bad' AND run_id = 'r'"""
    )
    bad, fine = sorted(await backend.runs.claim("w", refs), key=lambda claim: refs.index(claim.ref))
    assert (bad.outcome, fine.outcome) == ("ended", "claimed")
    assert [job.run_id for job in bad.effects.jobs] == ["next"]
    [event] = bad.effects.events
    assert (event.type, event.data["status"]) == ("run.failed", "failed")
    connection = await asyncpg.connect(postgres_url)
    try:
        status, code = await connection.fetchrow(
            "SELECT status, error->>'code' FROM runyard.runs WHERE thread_id = 'bad' AND run_id = 'r'"
        )
    finally:
        await connection.close()
    assert (status, code) == ("failed", "data_corrupted")


async def test_w4_a_run_that_cannot_be_failed_does_not_lose_the_claims_of_its_batch(
    backend: Backend, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker has no task for the run, and releases it."""
    await backend.workers.register(WorkerInfo(worker_id="w", queues=["default"]))
    refs = []
    for thread_id in ("bad", "fine"):
        accepted = await backend.runs.accept(AcceptRequest(thread_id=thread_id, run_id="r", input=Message.user("hello")))
        refs.append(accepted.effects.jobs[0].ref)
    await execute(postgres_url, """UPDATE runyard.runs SET options = '{"timeout": -1}' WHERE thread_id = 'bad'""")

    async def away(*_: object) -> None:
        raise BackendUnavailableError("away")

    monkeypatch.setattr(backend.runs, "fail", away)
    assert {claim.ref: claim.outcome for claim in await backend.runs.claim("w", refs)} == {refs[0]: "ended", refs[1]: "claimed"}


RUNS = {
    "result = '\\xc1'": ["result"],
    "input = '\\xc1'": ["input"],
    "options = '[]'": ["options"],
    "error = '[]'": ["error"],
    'usage = \'{"requests": "x"}\'': ["usage"],
    "metadata = '7'": ["metadata"],
    "options = '{\"timeout\": -1}', metadata = '[]', result = '\\x91'": ["metadata", "options", "result"],
}


async def one_by_one(ask: Callable[..., Awaitable[Page[Any]]]) -> list[Any]:
    """All items of a list, each from a page of its own."""
    found: list[Any] = []
    cursor = None
    while True:
        page = await ask(page=PageRequest(limit=1, cursor=cursor))
        found += page.items
        if (cursor := page.next) is None:
            return found


async def three(backend: Backend) -> None:
    """Three threads with a run each."""
    for thread_id in ("a", "bad", "c"):
        await backend.runs.accept(
            AcceptRequest(thread_id=thread_id, run_id="r", input=Message.user("hello"), metadata={"of": thread_id})
        )


@pytest.mark.parametrize("damage", RUNS)
async def test_a_list_shows_a_run_that_cannot_be_decoded(backend: Backend, postgres_url: str, damage: str) -> None:
    """A2: its fields that cannot be read are named and empty; all else is as usual, and pages go on past it."""
    await three(backend)
    await execute(postgres_url, f"UPDATE runyard.runs SET {damage} WHERE thread_id = 'bad'")
    found = await one_by_one(backend.runs.runs)
    assert [(run.thread_id, run.run_id, run.status, run.damaged) for run in found] == [
        ("c", "r", "queued", []),
        ("bad", "r", "queued", RUNS[damage]),
        ("a", "r", "queued", []),
    ]
    whole = [run for run in found if not run.damaged]
    assert [run.metadata for run in whole] == [{"of": "c"}, {"of": "a"}]
    assert all(run.input is not None and run.input.text == "hello" for run in whole)
    if RUNS[damage] == ["input"]:
        assert (await backend.runs.run("bad", "r") or found[0]).damaged == ["input"]
        return
    with pytest.raises(DataCorruptedError) as refused:
        await backend.runs.run("bad", "r")
    assert refused.value.details == {"thread_id": "bad", "run_id": "r"}


@pytest.mark.parametrize("damage", RUNS)
async def test_run_that_cannot_be_decoded_is_explained_and_can_be_cancelled(
    backend: Backend, postgres_url: str, damage: str
) -> None:
    """R12: why it does not run, and what of it cannot be read. A cancel takes effect and answers."""
    await three(backend)
    await execute(postgres_url, f"UPDATE runyard.runs SET {damage} WHERE thread_id = 'bad'")
    sentence = await backend.runs.explain("bad", "r")
    assert sentence.startswith("no live worker serves queue default")
    assert sentence.endswith(f"; its {', '.join(RUNS[damage])} cannot be read (data_corrupted)")
    changed = await backend.runs.cancel("bad", "r")
    assert (changed.run.status, changed.run.damaged) == ("cancelled", [name for name in RUNS[damage] if name != "error"])


async def test_a_list_shows_a_request_that_cannot_be_decoded(backend: Backend, postgres_url: str) -> None:
    """H10: the inbox shows the others, and of this one that it waits; pages go on past it."""
    await three(backend)
    await backend.workers.register(WorkerInfo(worker_id="w", queues=["default"]))
    waiting = (await backend.workers.waiting(unchanged=timedelta(0))).jobs
    for claim in sorted(await backend.runs.claim("w", [job.ref for job in waiting]), key=lambda claim: claim.ref.thread_key):
        assert claim.attempt is not None and claim.run is not None
        request = HitlRequest(request_id=f"q-{claim.run.thread_id}", payload={"question": "why?"})
        await backend.runs.suspend(Write(attempt=claim.attempt), [request])
    body = ["payload", "answer_schema", "on_deadline"]
    for damage, damaged in {
        "body = '\\xc1'": body,
        "body = '\\x81a707'": body,
        "body = '\\x90', kind = 'guess'": [*body, "kind"],
    }.items():
        await execute(postgres_url, f"UPDATE runyard.hitl_requests SET {damage} WHERE request_id = 'q-bad'")
        found = await one_by_one(backend.runs.requests)
        assert [(request.request_id, request.thread_id, request.run_id, request.damaged) for request in found] == [
            ("q-a", "a", "r", []),
            ("q-bad", "bad", "r", sorted(damaged)),
            ("q-c", "c", "r", []),
        ]
        assert [request.payload for request in found] == [{"question": "why?"}, {}, {"question": "why?"}]
    with pytest.raises(DataCorruptedError) as refused:
        await backend.runs.respond("an answer", request_id="q-bad")
    assert refused.value.details == {"thread_id": "bad", "run_id": "r", "request_id": "q-bad"}


@pytest.mark.parametrize("damage", ["tags = '[]'", "extra = '[]'", "config = '7'", "usage = '{\"cost\": []}'"])
async def test_a_list_shows_a_thread_that_cannot_be_decoded(backend: Backend, postgres_url: str, damage: str) -> None:
    """A2: the field that cannot be read is named; pages go on past the thread."""
    await three(backend)
    await execute(postgres_url, f"UPDATE runyard.threads SET {damage} WHERE thread_id = 'bad'")
    found = await one_by_one(backend.threads.threads)
    assert [(thread.thread_id, thread.damaged) for thread in found] == [("a", []), ("bad", [damage.split()[0]]), ("c", [])]
    with pytest.raises(DataCorruptedError):
        await backend.threads.thread("bad")


@pytest.mark.parametrize("damage", ["extra = '[]'", "extra = '7'"])
async def test_a_thread_that_cannot_be_decoded_spares_the_claims_of_others(
    backend: Backend, postgres_url: str, damage: str
) -> None:
    """I1: its run fails when it is claimed; the others of the batch are claimed."""
    await three(backend)
    await backend.workers.register(WorkerInfo(worker_id="w", queues=["default"]))
    await execute(postgres_url, f"UPDATE runyard.threads SET {damage} WHERE thread_id = 'bad'")
    waiting = (await backend.workers.waiting(unchanged=timedelta(0))).jobs
    claims = await backend.runs.claim("w", [job.ref for job in waiting])
    assert sorted(claim.outcome for claim in claims) == ["claimed", "claimed", "ended"]


async def test_a_thread_that_cannot_be_counted_spares_the_admissions_of_others(backend: Backend, postgres_url: str) -> None:
    """I1: the leader admits over all tenants; what ends meanwhile is added to a damaged sum by leaving it alone."""
    connection = await asyncpg.connect(postgres_url)
    try:
        for thread_id in ("bad", "fine"):
            accepted = await backend.runs.accept(AcceptRequest(thread_id=thread_id, run_id="r", input=Message.user("hello")))
            await backend.workers.register(WorkerInfo(worker_id="w", queues=["default"]))
            [claim] = await backend.runs.claim("w", [accepted.effects.jobs[0].ref])
            assert claim.attempt is not None
            await backend.runs.suspend(Write(attempt=claim.attempt, usage=Usage(requests=1)), [HitlRequest()])
        await execute(postgres_url, "UPDATE runyard.threads SET usage = '[]' WHERE thread_id = 'bad'")
        for thread_id in ("bad", "fine"):
            options = RunOptions(multitask_strategy="interrupt")
            request = AcceptRequest(thread_id=thread_id, run_id="next", input=Message.user("hello"), options=options)
            await backend.runs.accept(request, connection=connection)
    finally:
        await connection.close()
    admitted = await backend.runs.admit()
    assert [job.run_id for job in admitted.effects.jobs] == ["next", "next"]
    threads = (await backend.threads.threads()).items
    assert {thread.thread_id: thread.damaged for thread in threads} == {"bad": ["usage"], "fine": []}


@pytest.mark.parametrize("usage", ['"x"', "[1]", '{"cost": "much"}', '{"cost": {"a": 1}}', '{"seconds": true}', "null"])
async def test_a_redriven_run_with_a_damaged_usage_ends(backend: Backend, postgres_url: str, usage: str) -> None:
    """I1: what it used since is counted from what can be read. Its neighbours in the batch are claimed."""
    await backend.workers.register(WorkerInfo(worker_id="w", queues=["default"]))
    refs = []
    for thread_id in ("bad", "fine"):
        accepted = await backend.runs.accept(AcceptRequest(thread_id=thread_id, run_id="r", input=Message.user("hello")))
        refs.append(accepted.effects.jobs[0].ref)
    [claim] = await backend.runs.claim("w", refs[:1])
    assert claim.attempt is not None
    await backend.runs.fail(Write(attempt=claim.attempt), ErrorInfo(code="agent_error", message="no"))
    await execute(postgres_url, "UPDATE runyard.runs SET usage = $1::text::jsonb WHERE thread_id = 'bad'", usage)
    await backend.runs.redrive("bad", "r")
    claims = {claim.ref: claim for claim in await backend.runs.claim("w", refs)}
    assert claims[refs[1]].outcome == "claimed"
    bad = claims[refs[0]]
    if bad.attempt is not None:
        [ended] = await backend.runs.complete([Write(attempt=bad.attempt)])
        assert isinstance(ended, Ended)
    else:
        assert bad.outcome == "ended"


async def test_attempts_whose_error_cannot_be_decoded(backend: Backend, postgres_url: str) -> None:
    """A2: the attempt is shown, and that its error cannot be read."""
    accepted = await backend.runs.accept(AcceptRequest(thread_id="t", run_id="r", input=Message.user("hello")))
    await backend.workers.register(WorkerInfo(worker_id="w", queues=["default"]))
    [claim] = await backend.runs.claim("w", [accepted.effects.jobs[0].ref])
    assert claim.attempt is not None
    await backend.runs.release(claim.attempt, error=ErrorInfo(code="x", message="y"))
    await execute(postgres_url, "UPDATE runyard.attempts SET error = '[]'")
    [attempt] = (await backend.runs.attempts("t", "r")).items
    assert (attempt.outcome, attempt.error, attempt.damaged) == ("retried", None, ["error"])


@pytest.mark.parametrize(
    "damage",
    [
        "outbox SET type = 'run.guessed'",
        "webhooks SET events = '{run.guessed}'",
        "webhook_deliveries SET type = 'run.guessed'",
    ],
)
async def test_unknown_event_is_refused_by_feed_and_webhook_tables(backend: Backend, postgres_url: str, damage: str) -> None:
    """E5: their rows hold plain columns only, and the database refuses an event that no list could show."""
    await backend.webhooks.add(Webhook(webhook_id="w", tenant="", url="http://x", events=["run.cancelled"]))
    await three(backend)
    await backend.runs.cancel("a", "r")
    await backend.webhooks.take(busy={})
    with pytest.raises(asyncpg.CheckViolationError):
        await execute(postgres_url, f"UPDATE runyard.{damage}")
    for known in FEED_TYPES:
        await execute(postgres_url, "SELECT $1::runyard.feed_type", known)


async def test_a_webhook_is_told_of_a_run_that_cannot_be_decoded(backend: Backend, postgres_url: str) -> None:
    """Its receiver hears that the run ended; what cannot be read is null. Other deliveries go out as usual."""
    told: list[dict[str, Any]] = []

    class Hearing:
        async def send(self, url: str, headers: Mapping[str, str], body: bytes, *, timeout: float) -> WebhookReply:
            told.append(json.loads(body))
            return WebhookReply(status=200)

        async def close(self) -> None:
            """Nothing is open."""

    await backend.webhooks.add(Webhook(webhook_id="w", tenant="", url="http://x.example", events=["run.cancelled"]))
    await three(backend)
    for thread_id in ("a", "bad"):
        await backend.runs.cancel(thread_id, "r")
    await execute(postgres_url, "UPDATE runyard.runs SET metadata = '[]' WHERE thread_id = 'bad'")
    policy = WebhookPolicy(secret=new_secret())
    dispatcher = WebhookDispatcher(backend, Hearing(), lambda: True, policy)
    assert await dispatcher.step() == 2
    await asyncio.gather(*dispatcher._flights)
    assert sorted((event["thread_id"], event["run"]["status"], event["run"]["metadata"]) for event in told) == [
        ("a", "cancelled", {"of": "a"}),
        ("bad", "cancelled", None),
    ]
    assert {delivery.status for delivery in (await backend.webhooks.deliveries()).items} == {"delivered"}


async def test_the_api_and_the_command_line_show_what_cannot_be_decoded(
    backend: Backend, postgres_url: str, redis_url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A2: lists over HTTP answer 200 in the document's shape, and its client gives what the direct one does."""
    await three(backend)
    await execute(postgres_url, "UPDATE runyard.runs SET metadata = '[]', input = '\\xc1' WHERE thread_id = 'bad'")
    await execute(postgres_url, "UPDATE runyard.threads SET tags = '[]' WHERE thread_id = 'bad'")
    app = asgi_app(backend, auth="off")
    async with Client.connect("http://localhost", transport=httpx.ASGITransport(app=app)) as remote:
        for client in (remote, Client(backend)):
            assert [run.damaged for run in (await client.runs()).items] == [[], ["input", "metadata"], []]
            assert [thread.damaged for thread in (await client.threads()).items] == [[], ["tags"], []]
            assert (await client.explain("bad", "r")).endswith("its input, metadata cannot be read (data_corrupted)")
            with pytest.raises(DataCorruptedError) as refused:
                await client.run("bad", "r")
            assert refused.value.details == {"thread_id": "bad", "run_id": "r"}
    monkeypatch.setenv("RUNYARD_POSTGRES_URL", postgres_url)
    monkeypatch.setenv("RUNYARD_REDIS_URL", redis_url)
    assert await asyncio.to_thread(main, ["runs", "list"]) == 0
    [line] = [line for line in capsys.readouterr().out.splitlines() if " bad " in line]
    assert line.rstrip().endswith("cannot be read: input, metadata")
    assert await asyncio.to_thread(main, ["threads", "list"]) == 0
    [line] = [line for line in capsys.readouterr().out.splitlines() if "bad " in line]
    assert "cannot be read: tags" in line


async def test_damaged_rows_of_one_tenant_stop_no_pass_for_others(backend: Backend, postgres_url: str) -> None:
    """I1, A2: each JSON and each encoded value of a tenant at once, in runs of every state."""
    bad, fine = backend.for_tenant("bad"), backend.for_tenant("fine")
    await backend.workers.register(WorkerInfo(worker_id="w", queues=["default"]))
    await backend.webhooks.add(Webhook(webhook_id="w", tenant="bad", url="http://x", events=["run.completed", "run.failed"]))

    async def begin(thread_id: str, **fields: Any) -> AttemptToken:
        request = AcceptRequest(thread_id=thread_id, run_id="r", input=Message.user("hello"), **fields)
        accepted = await bad.runs.accept(request)
        [claim] = await backend.runs.claim("w", [accepted.effects.jobs[0].ref])
        assert claim.attempt is not None
        return claim.attempt

    for n, damage in enumerate(
        ("[]", "7", "null", '{"a": [], "fan": 7, "cut": {"at_seq": "x"}, "timeout": "x", "expires_in": []}')
    ):
        retried = await begin(f"ended-{n}", options=RunOptions(webhook="http://x/"))
        await backend.runs.start_step(retried, "s")
        await backend.runs.release(retried, error=ErrorInfo(code="x", message="x"), usage=Usage(requests=1))
        [again] = await backend.runs.claim("w", [retried.ref])
        assert again.attempt is not None
        await backend.runs.complete([Write(attempt=again.attempt, messages=[Message.assistant("x")], usage=Usage(requests=1))])
        await backend.runs.suspend(Write(attempt=await begin(f"suspended-{n}")), [HitlRequest(timeout=0.0)])
        await begin(f"running-{n}")
        fork = ForkRequest(src=f"ended-{n}", new="f", cut=Cut(), fan=FanOut(messages=[Message.user("?")], max_parallel=1))
        await bad.runs.accept(AcceptRequest(thread_id=f"ended-{n}", run_id="job", kind="fork_many", fork=fork))
        await execute(postgres_url, "SELECT runyard.accept($1, 'hi', run_id => 'hosted', tenant => 'bad')", f"hosted-{n}")
        queued = await bad.runs.accept(AcceptRequest(thread_id=f"queued-{n}", run_id="r", input=Message.user("hello")))
        await execute(postgres_url, _DAMAGE.replace("DAMAGE", damage.replace("'", "''")))
        lists: list[Callable[[], Awaitable[Any]]] = [
            bad.runs.runs,
            lambda: bad.runs.runs(RunFilter(status=RunStatus.COMPLETED)),
            bad.threads.threads,
            lambda: bad.runs.requests(pending=False),
            lambda thread_id=f"ended-{n}": bad.runs.attempts(thread_id, "r"),
            bad.feed.read,
            bad.usage.report,
            bad.webhooks.deliveries,
            lambda: backend.webhooks.take(busy={}),
            backend.webhooks.oldest,
            backend.usage.count,
            lambda: backend.workers.waiting(unchanged=timedelta(0)),
            lambda: backend.workers.orphans(),
            lambda: backend.workers.prune(Retention()),
            backend.limits.review_limits,
            backend.queues.queues,
            backend.runs.admit,
        ]
        for read in lists:
            await read()
        other = await fine.runs.accept(AcceptRequest(thread_id=f"t-{n}", run_id="r", input=Message.user("hello")))
        refs = [queued.effects.jobs[0].ref, other.effects.jobs[0].ref]
        claims = {claim.ref: claim for claim in await backend.runs.claim("w", refs)}
        assert claims[refs[1]].outcome == "claimed"


_DAMAGE = """
UPDATE runyard.runs SET options = 'DAMAGE', metadata = 'DAMAGE', extra = 'DAMAGE', usage = 'DAMAGE', error = 'DAMAGE', usage_before = 'DAMAGE',
    fork = CASE WHEN fork IS NOT NULL THEN 'DAMAGE'::jsonb END, input = '\\xc1', result = '\\xc1', candidates = '{}' WHERE tenant = 'bad';
UPDATE runyard.threads SET tags = 'DAMAGE', base_extra = 'DAMAGE', extra = 'DAMAGE', config = 'DAMAGE', usage = 'DAMAGE' WHERE tenant = 'bad';
UPDATE runyard.hitl_requests SET kind = 'guess', body = '\\xc1', otherwise = '\\xc1', answer = '\\xc1' WHERE tenant = 'bad';
UPDATE runyard.outbox SET usage = 'DAMAGE' WHERE tenant = 'bad';
UPDATE runyard.attempts SET error = 'DAMAGE';
UPDATE runyard.steps SET result = '\\xc1';
UPDATE runyard.messages SET payload = '\\xc1';
"""  # noqa: E501
