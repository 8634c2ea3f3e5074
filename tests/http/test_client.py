"""``Client.connect("http://…")``: the calls of a direct client, over a real connection where that shows."""

from __future__ import annotations

import asyncio
import inspect
import json
from datetime import UTC, datetime, timedelta
from io import BytesIO
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from runyard import Client, Message, RunStatus, errors
from runyard.models import Usage, new_id
from runyard.ports import stores
from runyard.ports.commands import AcceptRequest
from runyard.ports.refs import RunRef
from runyard.ports.streams import Streams
from runyard.ports.workers import WorkerInfo
from runyard.support import tracing
from runyard.worker.worker import Worker
from runyard_api.http import problems
from runyard_api.http.app import asgi_app
from runyard_api.http.settings import ApiSettings
from runyard_backends.http.backend import HttpFeed, HttpWorkerStore
from runyard_backends.http.runs import HttpRunStore
from runyard_backends.http.streams import HttpStreams
from runyard_backends.http.threads import HttpThreadStore
from runyard_backends.http.webhooks import HttpWebhookStore
from runyard_backends.memory import MemoryWorld
from runyard_backends.memory import connect as memory
from runyard_backends.thread_files import export_threads
from runyard_backends.thread_files.exporter import BranchStore
from tests.http.conftest import BOUND, ask, transport
from tests.support.fault_proxy import FaultProxy
from tests.support.receiver import new_secret


@pytest.mark.parametrize(
    ("half", "port"),
    [
        (HttpRunStore, stores.RunStore),
        (HttpThreadStore, stores.ThreadStore),
        (HttpFeed, stores.Feed),
        (HttpWorkerStore, stores.WorkerStore),
        (HttpWebhookStore, stores.WebhookStore),
        (HttpStreams, Streams),
    ],
)
def test_the_calls_are_those_of_the_ports(half: type, port: type) -> None:
    """One surface: what takes a call over HTTP takes what the store takes, argument by argument."""
    verbs = {name: verb for name, verb in vars(half).items() if not name.startswith("_")}
    assert verbs
    for name, verb in verbs.items():
        found = port if hasattr(port, name) else BranchStore
        assert inspect.signature(verb) == inspect.signature(getattr(found, name)), name


async def test_every_call_of_a_client_is_answered_or_names_what_it_needs(remote: Client) -> None:
    """R14: nothing of a client fails for a reason of the transport's."""
    with pytest.raises(errors.CapabilityMissingError, match="connection="):
        await remote.enqueue("t", "x", connection=object())
    with pytest.raises(errors.CapabilityMissingError, match="app_version="):
        await Client(remote.backend, app_version="1").enqueue("t", "x")
    with pytest.raises(errors.CapabilityMissingError, match="webhook="):
        await remote.enqueue_fork("t", webhook="https://example.org/")
    with pytest.raises(errors.CapabilityMissingError, match="usage"):
        await remote.store_message("t", Message.assistant("x", usage=Usage()))
    with pytest.raises(errors.CapabilityMissingError):
        remote.backend.for_tenant("other")
    await remote.backend.check()


async def test_the_webhook_secret_of_the_tenant(remote: Client, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNYARD_WEBHOOK_SECRET", new_secret())
    assert await remote.webhook_secret() == await client.webhook_secret()
    rotated = await remote.rotate_webhook_secret(overlap=60)
    assert rotated == await client.webhook_secret() and rotated is not None and rotated.version == 2


async def test_a_conversation(remote: Client, client: Client, worker: Worker) -> None:
    """R1 to R4, H3, F1, F9, F11, B5, F12: as through a direct client, object for object."""
    run = await remote.enqueue("t", "say hello", "r1", metadata={"a": 1}, delay=0, webhook="https://example.org/")
    assert run.created and not (await remote.enqueue("t", "say hello", "r1")).created
    with pytest.raises(errors.RunConflictError) as conflict:
        await remote.enqueue("t", "other words", "r1")
    assert conflict.value.details["differs"] == ["message"]
    result = await run.result(BOUND)
    assert result.run.options.webhook == "https://example.org/" and result.run.metadata == {"a": 1}
    assert (result.ok, result.text, result.run) == (True, "hello", await client.run("t", "r1"))
    assert result == await client.handle("t", "r1").result(BOUND)
    assert [event async for event in run.stream()] == [event async for event in client.stream("t", "r1")]

    asking = await remote.enqueue("t", "color?", "r2")
    [request] = (await asking.result(BOUND)).requests
    assert (await remote.requests()).items == [request]
    with pytest.raises(errors.InvalidInputError, match="on_behalf_of"):
        await remote.respond("t", "red", answered_by="me")
    answered = await remote.respond("t", "red", on_behalf_of="me")
    assert (answered.answered_by, answered.on_behalf_of) == ("test", "me")
    assert (await asking.result(BOUND)).text == "color? red"

    fork = await remote.fork("t", "f", "r1", title="Fork", tags={"k": "v"}, message="say more")
    assert (fork.parent_thread_id, fork.title) == ("t", "Fork")
    assert (await remote.threads(tags={"k": "v", "title": "Fork"})).items == [await client.thread("f")]
    assert [thread.thread_id for thread in (await remote.threads(newest_first=True)).items] == ["f", "t"]
    job = await remote.enqueue_fork("t", "g", "job", after_run_id="r1")
    assert (await job.result(BOUND)).value == {"thread_id": "g"} and not (
        await remote.enqueue_fork("t", "g", "job", after_run_id="r1")
    ).created
    prompted = {"after_run_id": "r1", "message": "say forked", "prompt_run_id": "own"}
    job = await remote.enqueue_fork("t", "h", "job2", **prompted)
    assert (await job.result(BOUND)).value == {"thread_id": "h", "run_id": "own"}
    assert (await remote.handle("h", "own").result(BOUND)).text == "forked"
    assert not (await remote.enqueue_fork("t", "h", "job2", **prompted)).created
    for other in ({"message": "say other"}, {"prompt_run_id": "other"}):
        with pytest.raises(errors.RunConflictError):
            await remote.enqueue_fork("t", "h", "job2", **prompted | other)
    probe = await remote.fork_once("t", "say if", "r1", run_id="probe", wait=BOUND)
    assert probe == await client.fork_once("t", "say if", "r1", run_id="probe", wait=BOUND)
    assert probe == await remote.fork_once("t", "say if", "r1", run_id="probe", wait=BOUND)
    tried = await remote.fork_many("t", "r1", messages=["say a", "fail"], run_id="many", wait=BOUND)
    assert [candidate.ok for candidate in tried.results] == [True, False] and tried.results[0].text == "a"
    assert tried == await client.fork_many("t", "r1", messages=["say a", "fail"], run_id="many", wait=BOUND)
    assert not (await remote.enqueue_fork_many("t", "many", after_run_id="r1", messages=["say a", "fail"])).created
    with pytest.raises(errors.RunConflictError):
        await remote.enqueue_fork_many("t", "many", after_run_id="r1", messages=["say b", "fail"])

    again = await remote.regenerate("t", message="say bye")
    assert (await again.result(BOUND)).text == "bye" and len((await remote.branches("t")).items) == 2
    assert await remote.messages("t", limit=2) == await client.messages("t", limit=2)
    assert (await remote.messages("t", newest_first=True)).items == (await client.messages("t", newest_first=True)).items
    assert await remote.lineage("f") == await client.lineage("f") and await remote.diff("t", "f") == await client.diff("t", "f")
    assert await remote.feed() == await client.feed()
    assert (await remote.usage(agent="scripted")).days == (await client.usage(agent="scripted")).days
    assert await remote.runs("t") == await client.runs("t") and await remote.attempts("t", "r1") == await client.attempts(
        "t", "r1"
    )
    assert await remote.explain("t", "r1") == await client.explain("t", "r1")
    shown = await remote.timeline("t", "r1")
    assert shown == await client.timeline("t", "r1") and [entry.type for entry in shown.entries][:2] == ["attempt", "message"]
    rest = await remote.timeline("t", "r1", limit=1, cursor=(await remote.timeline("t", "r1", limit=1)).next)
    assert rest.entries == shown.entries[1:2]
    assert await remote.find_run("pro") == await client.find_run("probe") == await client.run("t", "probe")
    for caller in (remote, client):
        with pytest.raises(errors.RunNotFoundError):
            await caller.find_run("nothing")
        with pytest.raises(errors.RunAmbiguousError) as refused:
            await caller.find_run("r")
        assert {"thread_id": "t", "run_id": "r1"} in refused.value.details["runs"]
    [there], [here] = await remote.workers(), await client.workers()
    assert (there.worker_id, dict(there.agents)) == (here.worker_id, dict(here.agents))
    await remote.delete_thread("t", descendants=True)
    assert (await client.threads()).items == []


async def test_a_job_that_was_cancelled_is_found_as_it_ended(remote: Client, client: Client) -> None:
    """F11, R2: enqueued again, a job answers with itself and not with why it did not complete."""
    await ask(client, "t", "asks")
    await remote.cancel("t", "asks")
    await remote.enqueue("t", "x", "r")
    for created in (True, False):
        job = await remote.enqueue_fork_many("t", "job", after_run_id="r", messages=["a"])
        assert job.created is created
        await job.cancel()
    assert (await job.result(BOUND)).status is RunStatus.CANCELLED


async def test_lists_of_a_thread_by_time(remote: Client, client: Client) -> None:
    """A page is full as long as there is more, whatever the times leave out."""
    for n in range(6):
        await remote.enqueue("t", "x", f"r{n}")
    moments = [(await client.run("t", f"r{n}")).accepted_at for n in range(6)]
    found, cursor = [], None
    while True:
        page = await remote.runs("t", since=moments[1], before=moments[4], limit=2, cursor=cursor)
        found += [run.run_id for run in page.items]
        if (cursor := page.next) is None:
            break
    assert found == ["r3", "r2", "r1"]
    assert [run.run_id for run in (await remote.runs(since=datetime.now(UTC) + timedelta(days=1))).items] == []


async def test_an_unknown_thread_is_told_from_an_empty_one(remote: Client) -> None:
    await remote.create_thread("empty")
    for asked in (remote.runs, remote.requests):
        assert (await asked("empty")).items == []
        with pytest.raises(errors.ThreadNotFoundError):
            await asked("nowhere")


@pytest.mark.parametrize("odd", ["a/b", "...", "%2F", "a b?c#d", "ü", "'\"<>"])
async def test_ids_of_any_printable_text(far: Client, odd: str) -> None:
    """A2: over a real connection, where paths are taken apart."""
    await far.enqueue(odd, "x", odd)
    assert (await far.run(odd, odd)).run_id == odd and (await far.thread(odd)).thread_id == odd


async def test_text_that_looks_like_the_end_of_a_line(far: Client, worker: Worker) -> None:
    """E1: separators of lines stand in texts, and no frame breaks at them."""
    odd = "say a\u2028b\x85c\u2029d"
    run = await far.enqueue("t", odd, "r")
    events = [event async for event in run.stream()]
    assert events[-1].type == "run.completed" and (await run.result(BOUND)).messages[0].text == odd


class TestRefusals:
    async def test_errors_are_the_same_types(self, remote: Client, client: Client) -> None:
        """A: problems are turned back into what a direct client raises, with their details."""
        await remote.enqueue("t", "x", "r")
        for call in (
            lambda any: any.run("t", "no"),
            lambda any: any.thread("no"),
            lambda any: any.messages("no"),
            lambda any: any.messages("t", cursor="no"),
            lambda any: any.respond("t", 1),
            lambda any: any.fork("t", "f", "no"),
            lambda any: any.delete_thread("t"),
            lambda any: any.redrive("t", "r"),
            lambda any: any.stream_thread("no").__anext__(),
            lambda any: any.stream("t", "no").__anext__(),
        ):
            with pytest.raises(errors.RunyardError) as there:
                await call(remote)
            with pytest.raises(errors.RunyardError) as here:
                await call(client)
            assert type(there.value) is type(here.value)
            assert {**there.value.details, "retry_after": None} == {**here.value.details, "retry_after": None}

    @pytest.mark.parametrize("cls", errors.BY_CODE.values())
    async def test_every_error_comes_back_as_itself(self, cls: type[errors.RunyardError]) -> None:
        """A: with its words and details, whatever they are."""
        said = cls("what was wrong", thread_id="t", status="queued", code="x", retry_after=0.5, ids=["a"])

        async def refuse(request: httpx.Request) -> httpx.Response:
            if request.url.path == "/readyz":
                return httpx.Response(200, json={"ready": True})
            answer = problems.response(said, new_id())
            return httpx.Response(answer.status_code, headers=dict(answer.headers), content=bytes(answer.body))

        async with Client.connect("http://api", patience=0, transport=httpx.MockTransport(refuse)) as client:
            with pytest.raises(errors.RunyardError) as refused:
                await client.threads()
        assert (type(refused.value), refused.value.to_dict()) == (cls, said.to_dict())

    async def test_fields_are_named(self, remote: Client) -> None:
        with pytest.raises(errors.InvalidRequestError) as refused:
            await remote.threads(limit=5000)
        assert refused.value.details["errors"][0]["pointer"] == "limit"
        with pytest.raises(errors.InvalidInputError):
            await remote.enqueue("t", "x", metadata={"a": float("nan")})

    async def test_a_key_that_opens_nothing(self, app: FastAPI) -> None:
        """A1."""
        for key in ("ry_" + "0" * 16 + "_" + "0" * 64, "x", None):
            async with Client.connect("http://api", api_key=key, transport=transport(app)) as stranger:
                with pytest.raises(errors.UnauthenticatedError):
                    await stranger.threads()
        with pytest.raises(errors.InvalidInputError, match="tenant"):
            await Client.connect("http://api", tenant="t")
        with pytest.raises(errors.InvalidInputError, match="key"):
            await Client.connect("http://api", api_key="a\nb")

    async def test_client_refuses_a_url_that_serves_no_api(self) -> None:
        with pytest.raises(errors.BackendUnavailableError):
            await Client.connect("http://127.0.0.1:1")
        with pytest.raises(errors.InvalidInputError):
            await Client.connect("http://")
        for url in ("https://me:s3cret@example.org", "https://me:s3cret@example.org:99999"):
            with pytest.raises(errors.InvalidInputError) as refused:
                await Client.connect(url, api_key="ry_x")
            assert "s3cret" not in str(refused.value), "a password is not shown, and not sent in the place of the key"
        elsewhere = httpx.MockTransport(lambda request: httpx.Response(200, text="<html>"))
        with pytest.raises(errors.RunyardError, match="is it the URL of a runyard API"):
            await Client.connect("https://example.org", transport=elsewhere)

    @pytest.mark.parametrize(
        ("status", "content", "expected"),
        [
            (502, b'{"code": "bad_gateway", "details": "upstream"}', errors.BackendUnavailableError),
            (503, b'{"code": "run_conflict", "details": ["x"]}', errors.BackendUnavailableError),
            (504, b'{"code": 14, "message": "upstream", "details": []}', errors.BackendUnavailableError),
            (524, b"<html>a timeout occurred</html>", errors.BackendUnavailableError),
            (429, b"<html>Too Many Requests</html>", errors.RateLimitedError),
            (413, b"<html>Request Entity Too Large</html>", errors.RequestTooLargeError),
            (403, b'{"code": "waf"}', errors.RunyardError),
            (307, b"", errors.RunyardError),
        ],
    )
    async def test_answers_of_a_proxy_become_errors_and_are_retried_if_safe(
        self, status: int, content: bytes, expected: type[Exception]
    ) -> None:
        """A: proxies answer for themselves, in HTML or in JSON of their own; what may be repeated is."""
        asked: list[str] = []

        async def proxy(request: httpx.Request) -> httpx.Response:
            if request.url.path == "/readyz":
                return httpx.Response(200, json={"ready": True})
            asked.append(request.url.path)
            return httpx.Response(status, content=content, headers={"Retry-After": "0"})

        async with Client.connect("http://api", patience=0.2, transport=httpx.MockTransport(proxy)) as client:
            with pytest.raises(errors.RunyardError) as refused:
                await client.threads()
        assert type(refused.value) is expected
        assert (len(asked) > 1) is issubclass(expected, errors.BackendUnavailableError | errors.RateLimitedError)

    async def test_a_stream_that_is_none(self) -> None:
        """A page where events should be is told, not asked for without end."""
        page = httpx.MockTransport(lambda request: httpx.Response(200, json={}))
        async with Client.connect("http://api", transport=page) as client:
            with pytest.raises(errors.RunyardError, match="is it the URL of a runyard API"):
                async with asyncio.timeout(BOUND):
                    await client.stream("t", "r").__anext__()

    async def test_client_refuses_an_id_that_fits_no_url(self, remote: Client) -> None:
        for leaf in ("x" * 70_000, "\ud800"):
            with pytest.raises(errors.InvalidInputError):
                await remote.messages("t", leaf)

    async def test_an_api_that_is_not_ready_says_why(self, empty_postgres_url: str, redis_url: str) -> None:
        """A3."""
        app = asgi_app(postgres=empty_postgres_url, redis=redis_url, auth="off")
        with pytest.raises(errors.BackendUnavailableError, match="runyard migrate"):
            await Client.connect("http://localhost", transport=transport(app))
        await app.state.service.close()


async def test_a_trace_reaches_the_run(remote: Client) -> None:
    """T1: the run is accepted as part of the caller's trace."""
    trace = f"00-{'a' * 32}-{'b' * 16}-00"
    with tracing.within(trace):
        run = await remote.enqueue("t", "x")
    assert (await run.run()).trace_context == trace


async def test_tenants_never_meet(app: FastAPI, world: MemoryWorld, remote: Client) -> None:
    """A1: a key sees its own tenant."""
    await remote.enqueue("t", "x", "r")
    _, other = await Client(await memory(world=world, tenant="b")).create_key("b")
    async with Client.connect("http://api", api_key=other, transport=transport(app)) as stranger:
        assert (await stranger.threads()).items == []
        with pytest.raises(errors.RunNotFoundError):
            await stranger.run("t", "r")


async def test_a_newer_server(app: FastAPI, key: str) -> None:
    """Servers are upgraded first: what they say beside what this client knows is passed over, however deep it stands."""
    inner = transport(app)

    def newer(value: Any) -> Any:
        if isinstance(value, dict):
            known = {name: newer(item) for name, item in value.items()}
            return known if "id" in known or not known else {**known, "newer": {}}
        return [newer(item) for item in value] if isinstance(value, list) else value

    async def answer(request: httpx.Request) -> httpx.Response:
        reply = await inner.handle_async_request(request)
        return httpx.Response(reply.status_code, json=newer(json.loads(await reply.aread())))

    async with Client.connect("http://api", api_key=key, transport=httpx.MockTransport(answer)) as old:
        run = await old.enqueue("t", "x", "r", timeout=5)
        assert (await run.run()).options.timeout == 5
        assert (await old.thread("t")).usage.requests == 0
        await old.store_message("u", "hello")
        assert [message.text for message in (await old.messages("u")).items] == ["hello"]
        assert [entry.type for entry in (await old.feed()).items] == ["message.stored"]


async def test_mounted_under_a_path(client: Client, settings: ApiSettings, key: str) -> None:
    host = FastAPI()
    host.mount("/agents", asgi_app(client, settings=settings))
    async with Client.connect("http://api/agents", api_key=key, transport=transport(host)) as mounted:
        assert (await mounted.enqueue("t", "x", "r")).created


async def test_without_an_event_loop(proxy: FaultProxy, key: str, worker: Worker) -> None:
    def program() -> tuple[str, list[str]]:
        with Client.sync(f"http://127.0.0.1:{proxy.port}", api_key=key) as client:
            run = client.enqueue("t", "say hello", "r")
            return run.result(BOUND).text, [event.type for event in run.stream()]

    text, types = await asyncio.to_thread(program)
    assert text == "hello" and types[-1] == "run.completed"


async def test_a_list_of_ancestors_keeps_to_its_limit(remote: Client, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """F12, A2: A list of ancestors that takes several requests has at most ``limit`` of them, and the id of the next one."""
    monkeypatch.setattr("runyard_backends.http.threads.PAGE_SIZE", 3)
    await client.create_thread("t0")
    await client.store_message("t0", "x")
    for n in range(1, 11):
        message = (await client.messages(f"t{n - 1}")).items[-1]
        await client.fork(f"t{n - 1}", f"t{n}", at_message_id=message.id)
    for limit in range(1, 12):
        found = await remote.backend.threads.ancestors("t10", limit)
        assert found == await client.backend.threads.ancestors("t10", limit)
        assert len(found.items) == min(limit, 10)


async def test_lineage_has_the_children_of_runs(remote: Client, client: Client) -> None:
    """K3, F12: as through a direct client, with the same bound."""
    backend = client.backend
    await backend.workers.register(WorkerInfo(worker_id="hand", queues=["default"]))
    await client.enqueue("t", "x", "r1")
    key = await backend.threads.thread_key("t")
    assert key is not None
    attempt = (await backend.runs.claim("hand", [RunRef(key, "r1")]))[0].attempt
    assert attempt is not None
    for n in range(3):
        child = AcceptRequest(thread_id=f"t{n}", run_id=f"c{n}", input=Message.user("x"), job=attempt.ref)
        await backend.runs.start_child(attempt, child)
    for limit in (2, 3):
        found = await remote.lineage("t", limit=limit)
        assert found == await client.lineage("t", limit=limit)
        assert [child.run_id for child in found.child_runs.items] == ["c0", "c1", "c2"][:limit]
        assert found.child_runs.truncated == (limit == 2)
        assert await remote.child_runs("t", limit=limit) == found.child_runs


async def test_an_export_over_http_is_the_export_of_the_store(
    remote: Client, client: Client, worker: Worker, app: FastAPI
) -> None:
    """Branches, failed runs, answered and pending questions, forks: each line is the same, also if the server has small
    pages."""
    app.state.service.settings.max_page = 2

    async def done(thread: str, text: str, run: str, **options: Any) -> None:
        await (await client.enqueue(thread, text, run, **options)).result(BOUND)

    await done("t", "say hello", "r1")
    await done("t", "fail", "r2")
    await done("t", "say one | tool add 1 2", "r3")
    await (await client.regenerate("t", message="say bye")).result(BOUND)
    await done("t", "say beside", "r4", parallel=True)
    await done("t", "color?", "r5")
    await client.respond("t", "red")
    await client.handle("t", "r5").result(BOUND)
    await client.set_label("t", "here")
    await client.fork("t", "f", "r1", title="Fork", tags={"k": "v"})
    await client.fork("t", "g", at_seq=2, message="say more", run_id="r6")
    await client.handle("g", "r6").result(BOUND)
    await done("f", "color?", "r7")
    for thread, forks in (("t", True), ("g", False), ("f", False)):
        lines = []
        for each in (client, remote):
            file = BytesIO()
            report = await export_threads(each.backend, thread, file, forks=forks)
            first, *rest = file.getvalue().splitlines()
            lines.append((report, rest))
            assert b'"export_id"' in first
        assert lines[0] == lines[1] and len(lines[0][1]) > 5
