"""A client over a wire that breaks: what it sends again, and streams that outlive their connections."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from urllib.parse import urlsplit

import httpx
import pytest
from fastapi import FastAPI
from prometheus_client import REGISTRY

from runyard import Client, Event, HitlRequest, RunStatus, errors
from runyard.models import STREAM_ENDS
from runyard.worker.worker import Worker
from runyard_api.http.settings import ApiSettings
from tests.http.conftest import BOUND, ask, transport
from tests.http.shared_routes import asgi_app
from tests.support.api_server import serving
from tests.support.fault_proxy import FaultProxy
from tests.support.fleet import until


def open_streams() -> float:
    return REGISTRY.get_sample_value("runyard_http_streams") or 0.0


class TestRepetition:
    async def test_an_answer_that_is_lost_is_asked_for_again(self, far: Client, proxy: FaultProxy) -> None:
        """R2, I4: one run, one thread, one fork, whatever became of the answers."""
        for call in (
            lambda: far.enqueue("t", "x", "r"),
            lambda: far.create_thread("made", title="x"),
            lambda: far.runs("t"),
            lambda: far.cancel("t", "r"),
            lambda: far.store_message("m", "once"),
        ):
            proxy.lose_replies(2)
            await call()
        assert [run.run_id for run in (await far.runs("t")).items] == ["r"]
        assert (await far.run("t", "r")).status is RunStatus.CANCELLED
        assert [message.text for message in (await far.messages("m")).items] == ["once"]

    async def test_a_lost_answer_is_for_the_question_that_waited(
        self, app: FastAPI, key: str, client: Client, worker: Worker
    ) -> None:
        """H3, I6: sent again, it does not answer the question that came meanwhile."""
        inner = transport(app)
        second: list[HitlRequest] = []

        async def lose(request: httpx.Request) -> httpx.Response:
            reply = await inner.handle_async_request(request)
            if request.url.path.endswith("/respond") and not second:
                second.extend((await client.handle("t", "r").result(BOUND)).requests)
                raise httpx.ReadError("lost")
            return reply

        async with Client.connect("http://api", api_key=key, transport=httpx.MockTransport(lose)) as losing:
            run = await losing.enqueue("t", "color? | size?", "r")
            [first] = (await run.result(BOUND)).requests
            answered = await losing.respond("t", "red")
        assert (answered.request_id, answered.answer) == (first.request_id, "red")
        assert (await client.requests()).items == second and second[0].request_id != first.request_id

    async def test_waits_are_shorter_than_the_timeout(self, app: FastAPI, key: str, client: Client, worker: Worker) -> None:
        """An answer that a server holds back on request is not taken for one that was lost."""
        waits: list[tuple[float, float]] = []

        async def note(request: httpx.Request) -> httpx.Response:
            if request.url.path.endswith("/wait"):
                waits.append((float(request.url.params["wait"]), request.extensions["timeout"]["read"]))
            return await transport(app).handle_async_request(request)

        run = await client.enqueue("t", "say done", "r")
        await run.result(BOUND)
        for timeout in (2.0, 60.0):
            how = {"timeout": timeout, "transport": httpx.MockTransport(note)}
            async with Client.connect("http://api", api_key=key, **how) as remote:
                assert (await remote.handle("t", run.id).result(BOUND)).text == "done"
        assert len(waits) == 2 and all(wait < timeout for wait, timeout in waits)

    async def test_call_that_is_not_idempotent_is_not_repeated(self, far: Client, proxy: FaultProxy) -> None:
        """The caller is told, and looks: by the second time, another thread may have the id."""
        await far.create_thread("t")
        proxy.lose_replies()
        with pytest.raises(errors.BackendUnavailableError) as lost:
            await far.delete_thread("t")
        assert lost.value.details.get("sent") is not False
        with pytest.raises(errors.ThreadNotFoundError):
            await far.thread("t")

    async def test_a_server_that_is_away_is_waited_for(self, key: str, app: FastAPI) -> None:
        """503, a proxy's 502, too many requests: again after what Retry-After says; others at once."""
        inner, answers = transport(app), [503, 502, 429, 500]

        async def refuse(request: httpx.Request) -> httpx.Response:
            if request.url.path == "/readyz" or not answers:
                return await inner.handle_async_request(request)
            status = answers.pop(0)
            codes = {503: "backend_unavailable", 429: "rate_limited", 500: "internal_error"}
            if status not in codes:
                return httpx.Response(status, text="<html>Bad Gateway</html>")
            details = {"retry_after": 0.01} if status == 429 else {}
            return httpx.Response(status, json={"code": codes[status], "detail": "x", "details": details})

        async with Client.connect("http://api", api_key=key, transport=httpx.MockTransport(refuse)) as client:
            with pytest.raises(errors.RunyardError) as failed:
                await client.enqueue("t", "x", "r")
            assert type(failed.value) is errors.RunyardError and not answers
            answers.append(429)
            await client.store_message("t2", "refused for its rate, so it was not stored")
            answers += [503]
            with pytest.raises(errors.BackendUnavailableError):
                await client.delete_thread("t2")

    async def test_patience_ends(self, far: Client, proxy: FaultProxy, key: str) -> None:
        async with Client.connect(f"http://127.0.0.1:{proxy.port}", api_key=key, patience=0.2, timeout=2.0) as hasty:
            proxy.hold()
            with pytest.raises(errors.BackendUnavailableError):
                await hasty.threads()
            proxy.heal()
            await hasty.threads()


class TestStreams:
    async def test_a_stream_outlives_its_connections(
        self, far: Client, proxy: FaultProxy, client: Client, worker: Worker
    ) -> None:
        """E1, E2: cut wherever it may be, each event comes once."""
        words = " | ".join(f"say w{n} | sleep 0.05" for n in range(6))
        run = await far.enqueue("t", words, "r")
        seen: list[Event] = []
        async with asyncio.timeout(BOUND):
            async for event in run.stream():
                seen.append(event)
                if len(seen) % 3 == 0 and event.type not in STREAM_ENDS:
                    proxy.cut()
        assert seen == [event async for event in client.stream("t", "r")]
        assert (await run.result(BOUND)).ok

    async def test_a_wait_outlives_them_too(self, far: Client, proxy: FaultProxy, worker: Worker) -> None:
        run = await far.enqueue("t", "sleep 0.5 | say done", "r")
        waiting = asyncio.create_task(run.result(BOUND))
        async with aclosing(run.stream()) as events:
            async for event in events:
                if event.type == "run.started":
                    proxy.cut()
        assert (await waiting).text == "done"

    async def test_thread_stream_reconnects_until_its_thread_is_deleted(
        self, far: Client, proxy: FaultProxy, client: Client, worker: Worker
    ) -> None:
        """Until the thread is deleted."""
        await client.pause_queue("default")
        await far.enqueue("t", "say a", "r0")
        ends: list[str] = []
        seen: list[str | None] = []
        async with asyncio.timeout(BOUND):
            async for _, event in far.stream_thread("t"):
                if event.type == "run.queued":
                    await client.resume_queue("default")
                    continue
                seen.append(event.id)
                if event.type == "run.completed":
                    ends.append(event.run_id)
                    proxy.cut()
                    if len(ends) < 3:
                        await far.enqueue("t", "say a", f"r{len(ends)}")
                    else:
                        await far.delete_thread("t")
        assert ends == ["r0", "r1", "r2"] and len(seen) == len(set(seen))

    async def test_a_cursor_of_a_thread_is_where_its_stream_begins(self, far: Client, client: Client, worker: Worker) -> None:
        """E3: over HTTP and directly alike, what came after the cursor and nothing before it."""
        with pytest.raises(errors.ThreadNotFoundError):
            await far.thread_cursor("t")
        await (await client.enqueue("t", "say before", "r0")).result(BOUND)
        cursors = [await reader.thread_cursor("t") for reader in (far, client)]
        await (await client.enqueue("t", "say after", "r1")).result(BOUND)
        for reader, cursor in zip((client, far), cursors, strict=True):
            async with asyncio.timeout(BOUND), aclosing(reader.stream_thread("t", cursor)) as events:
                _, event = await anext(events)
                assert (event.run_id, event.type) == ("r1", "run.queued")

    async def test_a_stream_of_a_quiet_thread_misses_nothing(
        self, client: Client, settings: ApiSettings, worker: Worker
    ) -> None:
        """E1, E3: what began and ended while nobody was connected, before there was any event to come back with."""
        short = asgi_app(client, auth="off", settings=settings.model_copy(update={"max_stream": 0.3}))
        before = open_streams()
        async with (
            serving(short) as url,
            FaultProxy("127.0.0.1", urlsplit(url).port or 0) as proxy,
            Client.connect(f"http://127.0.0.1:{proxy.port}") as far,
            aclosing(far.stream_thread("t")) as events,
        ):
            await (await far.enqueue("t", "say before", "r0")).result(BOUND)
            arriving = asyncio.ensure_future(anext(events))
            for count in (before + 1, before):

                async def reached(count: float = count) -> bool:
                    return open_streams() == count

                await until(reached)
            proxy.hold()
            await (await client.enqueue("t", "say meanwhile", "r1")).result(BOUND)
            proxy.heal()
            async with asyncio.timeout(BOUND):
                seen = [(await arriving).event]
                while seen[-1].type != "run.completed":
                    seen.append((await anext(events)).event)
        assert seen == [event async for event in client.stream("t", "r1")]

    async def test_a_suspended_run_ends_its_stream(self, remote: Client, client: Client) -> None:
        """E2: and a reader who saw that gets nothing more."""
        await ask(client, "t", "r")
        events = [event async for event in remote.stream("t", "r")]
        assert events[-1].type == "run.suspended"
        assert [event async for event in remote.stream("t", "r", events[-1].id)] == []
        lost, *_ = [event async for event in remote.stream("t", "r", "nö\n")]
        assert lost.type == "gap"
