"""`runyard api` and `runyard keys` as an operator meets them: processes, real servers, kill."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from acontext import AcontextClient

from runyard import Client
from runyard.models import STREAM_ENDS
from tests.http.test_tokens import OF_THREAD, RUN, STREAM, THREAD, under_a_digest
from tests.support import event_log
from tests.support.api_server import Frame, frames
from tests.support.fleet import Fleet, free_port, until
from tests.support.forked import ForkedProcess, completed

BOUND = 60.0


def environment(fleet: Fleet, **more: str) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("RUNYARD_")}
    servers = {"RUNYARD_POSTGRES_URL": fleet.postgres, "RUNYARD_REDIS_URL": fleet.redis}
    return {**own, **servers, "RUNYARD_API_TOKEN_SECRET": "s" * 32, **more}


async def runyard(fleet: Fleet, *arguments: str, code: int = 0, **more: str) -> str:
    """Run a command and check its exit code. Return its standard output, or what it says on standard error if it fails."""
    ended, out, error = await completed(arguments, environment(fleet, **more), seconds=BOUND)
    assert ended == code, error
    return out if code == 0 else error


@asynccontextmanager
async def api(
    fleet: Fleet, *arguments: str, output: Path | None = None, **more: str
) -> AsyncIterator[tuple[str, ForkedProcess]]:
    """A process of `runyard api` that is ready, and its URL. ``output``: the directory for its files ``out`` and ``err``."""
    port = free_port()
    process = await ForkedProcess.command(["api", "--port", str(port), *arguments], environment(fleet, **more), output)
    url = f"http://127.0.0.1:{port}"
    try:
        async with httpx.AsyncClient(base_url=url) as http:

            async def ready() -> bool:
                assert process.returncode is None
                try:
                    return (await http.get("/readyz")).status_code == 200
                except httpx.TransportError:
                    return False

            await until(ready, BOUND)
        yield url, process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_keys_are_made_used_and_revoked(fleet: Fleet) -> None:
    """A1: the key is printed once; a revoked one opens nothing in any process within seconds."""
    key = (await runyard(fleet, "--tenant", "acme", "keys", "create", "web", "--scope", "read", "--days", "30")).strip()
    [listed] = json.loads(await runyard(fleet, "--tenant", "acme", "keys", "list", "--json"))
    assert (listed["name"], listed["scopes"], listed["tenant"]) == ("web", ["read"], "acme") and listed["expires_at"]
    assert key not in json.dumps(listed) and listed["key_id"] in await runyard(fleet, "--tenant", "acme", "keys", "list")
    assert (await runyard(fleet, "keys", "list", "--json")).strip() == "[]"
    assert "scopes are" in await runyard(fleet, "keys", "create", "x", "--scope", "root", code=2)
    async with api(fleet) as (url, _), httpx.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {key}"}) as http:
        assert (await http.get("/v1/threads")).json() == {"items": [], "next": None}
        assert (await http.post("/v1/threads/t/runs", json={"message": "x"})).status_code == 403
        await runyard(fleet, "--tenant", "acme", "keys", "revoke", listed["key_id"])

        async def refused() -> bool:
            return (await http.get("/v1/threads")).status_code == 401

        await until(refused, 20)


async def test_a_second_port_serves_metrics_and_nothing_else(fleet: Fleet, tmp_path: Path) -> None:
    """A Prometheus needs no key of a tenant; the port of the API goes on to ask for one."""
    port = free_port()
    async with api(fleet, output=tmp_path, RUNYARD_API_METRICS_PORT=str(port)) as (url, _), httpx.AsyncClient() as http:
        line = json.loads((tmp_path / "err").read_text().splitlines()[0])
        assert line["event"] == "api_listening" and (line["url"], line["console_url"]) == (url, f"{url}/console")
        assert line["metrics_url"] == f"http://0.0.0.0:{port}/metrics"
        metrics = await http.get(f"http://127.0.0.1:{port}/metrics")
        assert metrics.status_code == 200 and "\nrunyard_http_request_seconds_count{" in metrics.text
        for path in ("/", "/livez", "/stacks", "/v1/threads"):
            assert (await http.get(f"http://127.0.0.1:{port}{path}")).status_code == 404
        assert (await http.get(f"{url}/metrics")).status_code == 401
        taken = await runyard(fleet, "api", "--port", "0", code=5, RUNYARD_API_METRICS_PORT=str(port))
        assert "cannot listen on 0.0.0.0" in taken


async def test_without_keys_only_on_loopback(fleet: Fleet) -> None:
    assert "127.0.0.1" in await runyard(fleet, "api", "--auth", "off", "--host", "0.0.0.0", code=2)


async def test_the_command_line_mounts_compatible_apis(fleet: Fleet) -> None:
    """A5: by the option or by the setting; an unknown name is refused before the server listens."""
    assert "choose from: acontext, events" in await runyard(fleet, "api", "--compat", "acontext,nonsense", code=2)
    assert "choose from: acontext, events" in await runyard(fleet, "api", code=2, RUNYARD_API_COMPAT="nonsense")
    key = (await runyard(fleet, "--tenant", "acme", "keys", "create", "sdk")).strip()
    async with api(fleet, "--compat", "acontext") as (one, _), api(fleet, RUNYARD_API_COMPAT="acontext") as (two, _):

        def use() -> None:
            with AcontextClient(api_key=key, base_url=f"{one}/api/v1") as first:
                session = first.sessions.create(configs={"n": 1})
                ids = [first.sessions.store_message(session.id, blob={"role": "user", "content": "M1"}).id]
                for n in range(2, 9):
                    body = {"blob": {"role": "user", "content": f"M{n}"}, "parent_id": ids[1] if n == 7 else None}
                    ids.append(first.request("POST", f"/session/{session.id}/messages", json_data=body)["id"])
            with AcontextClient(api_key=key, base_url=f"{two}/api/v1") as second:
                leaves = second.request("GET", f"/session/{session.id}/branches")["leaves"]
                assert [(leaf["message_id"], leaf["depth"]) for leaf in leaves] == [(ids[5], 6), (ids[7], 4)]
                assert second.sessions.get_messages(session.id).ids == [ids[0], ids[1], ids[6], ids[7]]
                assert second.sessions.patch_configs(session.id, configs={"m": 2}) == {"n": 1, "m": 2}
                assert [each.project_id for each in second.sessions.list().items] == ["acme"]
                second.sessions.delete(session.id)

        await asyncio.to_thread(use)


async def test_forks_of_openhands_on_real_servers(fleet: Fleet) -> None:
    """F4, F7, F8: of two forks with one id one wins, and the fork remembers what its source was told."""
    await fleet.start()
    key = (await runyard(fleet, "--tenant", "acme", "keys", "create", "sdk")).strip()
    taken = "0198c0de-0000-7000-8000-000000000001"
    async with (
        api(fleet, "--compat", "openhands,acontext") as (url, _),
        httpx.AsyncClient(base_url=url, headers={"X-Session-API-Key": key}, timeout=BOUND) as http,
        httpx.AsyncClient(base_url=url, headers={"X-Api-Key": key}, timeout=BOUND) as native,
    ):
        assert (await http.get("/health")).json() == {"status": "ok"}
        assert (await http.post("/api/conversations/s/fork")).status_code == 404
        told = await native.post("/v1/threads/s/runs/wait?wait=30", json={"message": "set color blue | say blue"})
        assert told.json()["run"]["status"] == "completed"
        body = {"id": taken, "title": "T", "tags": {"purpose": "a/b"}, "reset_metrics": False}
        replies = await asyncio.gather(*(http.post("/api/conversations/s/fork", json=body) for _ in range(10)))
        assert sorted(reply.status_code for reply in replies) == [201] + [409] * 9
        [made] = [reply.json() for reply in replies if reply.status_code == 201]
        assert (made["tags"], made["execution_status"]) == ({"purpose": "a/b", "title": "T"}, "idle")
        assert (await native.get(f"/v1/threads/{taken}")).json()["extra"] == {"color": "blue"}
        assert (await http.post("/api/conversations/s/fork", json={"title": "\0"})).status_code == 400
        assert (await http.get("/v1/threads")).status_code == 401


@pytest.mark.parametrize("secret", ["", "short"])
async def test_without_a_secret_for_tokens_it_does_not_start(fleet: Fleet, secret: str) -> None:
    """A1: and says how to make one."""
    assert "openssl rand -hex 32" in await runyard(fleet, "api", "--port", "0", code=2, RUNYARD_API_TOKEN_SECRET=secret)


async def test_a_token_of_one_process_opens_a_stream_of_another(fleet: Fleet) -> None:
    """A1: and none of a process with another secret."""
    key = (await runyard(fleet, "keys", "create", "web")).strip()
    async with api(fleet) as (one, _), api(fleet) as (two, _), api(fleet, RUNYARD_API_TOKEN_SECRET="t" * 32) as (other, _):
        async with httpx.AsyncClient(headers={"X-Api-Key": key}, timeout=BOUND) as http:
            assert (await http.post(f"{one}/v1/threads", json={"thread_id": "t"})).status_code == 201
            made = await http.post(f"{one}/v1/stream_tokens", json={"thread_id": "t"})
        async with httpx.AsyncClient(params={"token": made.json()["token"]}, timeout=BOUND) as browser:
            assert [(await browser.get(f"{url}/v1/whoami")).status_code for url in (one, two, other)] == [200, 200, 401]


async def test_a_key_opens_no_stream_of_another_tenant(fleet: Fleet) -> None:
    """A1: with a token that its holder signed, or of its own that names the other's thread."""
    await fleet.start()
    alpha, beta = [(await runyard(fleet, "--tenant", tenant, "keys", "create", "web")).strip() for tenant in ("alpha", "beta")]
    async with api(fleet) as (url, _), httpx.AsyncClient(base_url=url, timeout=BOUND) as http:
        prompt = {"message": "say nobody else may read this", "run_id": RUN}
        made = await http.post(f"/v1/threads/{THREAD}/runs/wait", json=prompt, headers={"X-Api-Key": alpha})
        assert made.json()["text"] == "nobody else may read this"
        body = {"thread_id": THREAD, "run_id": RUN}
        own = [await http.post("/v1/stream_tokens", json=body, headers={"X-Api-Key": key}) for key in (alpha, beta)]
        assert [reply.status_code for reply in own] == [201, 404]
        assert "nobody else" in (await http.get(STREAM, params={"token": own[0].json()["token"]})).text
        for tenant in ("alpha", "beta"):
            assert (await http.get(STREAM, params={"token": under_a_digest(beta, tenant, RUN)})).status_code == 401
            assert (await http.get(OF_THREAD, params={"token": under_a_digest(beta, tenant, None)})).status_code == 401


async def test_a_run_goes_on_while_servers_die(fleet: Fleet) -> None:
    """E1, I1: accepted by one process, which is killed; the stream goes on at another from the last event, nothing missed."""
    await fleet.start()
    async with api(fleet, "--auth", "off") as (one, first), api(fleet, "--auth", "off") as (two, _):
        seen: list[Frame] = []
        body = {"message": "say a b c | sleep 1 | say d e f", "run_id": "r"}
        async with httpx.AsyncClient(base_url=one, timeout=BOUND) as http:
            with pytest.raises(httpx.TransportError):
                async with http.stream("POST", "/v1/threads/t/runs/stream", json=body) as reply:
                    async for frame in frames(reply):
                        if not frame.comment:
                            seen.append(frame)
                        if frame.type == "message.delta":
                            first.send_signal(signal.SIGKILL)
        async with httpx.AsyncClient(base_url=two, timeout=BOUND) as http:
            assert (await http.post("/v1/threads/t/runs", json=body)).status_code == 200
            headers = {"Last-Event-ID": seen[-1].id or ""}
            async with asyncio.timeout(BOUND), http.stream("GET", "/v1/threads/t/runs/r/stream", headers=headers) as reply:
                seen += [frame async for frame in frames(reply) if not frame.comment]
            async with http.stream("GET", "/v1/threads/t/runs/r/stream") as reply:
                whole = [frame async for frame in frames(reply) if not frame.comment]
        assert seen == whole and seen[-1].type == "run.completed"


async def test_sigterm_ends_streams_and_the_process(fleet: Fleet) -> None:
    await fleet.start()
    async with api(fleet, "--auth", "off") as (url, process), httpx.AsyncClient(base_url=url, timeout=BOUND) as http:
        await http.post("/v1/threads/t/runs", json={"message": "sleep 5", "run_id": "r"})
        async with asyncio.timeout(BOUND), http.stream("GET", "/v1/threads/t/runs/r/stream") as reply:
            types = []
            async for frame in frames(reply):
                types.append(frame.type)
                if frame.type == "run.started":
                    process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
        assert "run.started" in types and not set(types) & STREAM_ENDS
    assert (await fleet.client.handle("t", "r").result(BOUND)).ok


async def test_api_process_feeds_all_streams_from_one_redis_connection(fleet: Fleet) -> None:
    """E3: however many readers there are."""
    await fleet.client.enqueue("t", "x", "r")
    async with (
        api(fleet, "--auth", "off") as (url, _),
        httpx.AsyncClient(base_url=url, timeout=BOUND) as http,
        asyncio.TaskGroup() as readers,
    ):
        begun = asyncio.Semaphore(0)

        async def read() -> None:
            async with http.stream("GET", "/v1/threads/t/runs/r/stream") as reply:
                async for frame in frames(reply):
                    if frame.type == "run.queued":
                        begun.release()

        for _ in range(50):
            readers.create_task(read())
        async with asyncio.timeout(BOUND):
            for _ in range(50):
                await begun.acquire()
        connections = await subscribed(fleet)
        await fleet.client.cancel("t", "r")
    assert connections == 1


async def subscribed(fleet: Fleet) -> int:
    """How many connections of API processes Redis has in subscribed mode."""
    from redis.asyncio import Redis

    async with Redis.from_url(fleet.redis) as redis:
        listed = await redis.client_list(_type="pubsub")
        return len([one for one in listed if one["name"] == "runyard-api"])


async def test_readiness_follows_the_schema(empty_postgres_url: str, redis_url: str, tmp_path: Path) -> None:
    """A3: not ready without a schema that this code can run on, alive all the same; ready once it is there."""
    from runyard_api.http.app import asgi_app
    from runyard_backends.postgres.migrate import migrate
    from tests.http.conftest import transport

    app = asgi_app(postgres=empty_postgres_url, redis=redis_url, auth="off")
    async with httpx.AsyncClient(transport=transport(app), base_url="http://localhost") as http:
        reply = await http.get("/readyz")
        assert reply.status_code == 503 and "runyard migrate" in reply.json()["reasons"][0]
        assert (await http.get("/livez")).status_code == 200
        refused = await http.get("/v1/threads")
        assert (refused.status_code, refused.json()["code"]) == (503, "schema_uninitialized") and refused.headers["retry-after"]
        await migrate(empty_postgres_url)
        assert (await http.get("/readyz")).json() == {"ready": True, "reasons": [], "degraded": []}
        assert (await http.get("/v1/threads")).status_code == 200
    await app.state.service.close()


async def test_without_redis_it_accepts_and_says_so(postgres_url: str) -> None:
    """O1: Redis down at accept: 202, queued in Postgres."""
    from runyard_api.http.app import asgi_app
    from tests.http.conftest import transport

    app = asgi_app(postgres=postgres_url, redis="redis://127.0.0.1:1/0", auth="off")
    async with httpx.AsyncClient(transport=transport(app), base_url="http://localhost", timeout=BOUND) as http:
        ready = await http.get("/readyz")
        assert ready.status_code == 200 and ready.json()["degraded"]
        assert (await http.post("/v1/threads/t/runs", json={"message": "x", "run_id": "r"})).status_code == 202
    async with Client.connect(postgres_url) as client:
        assert (await client.run("t", "r")).status == "queued"
    await app.state.service.close()


async def test_event_logs_on_real_servers(fleet: Fleet) -> None:
    """B4, B6, F1, F8: the walk-through of a fork at event 9, and nested forks, by the command line's API and a worker."""
    await fleet.start(app="tests.support.agents.remembering:app")
    key = (await runyard(fleet, "--tenant", "acme", "keys", "create", "log")).strip()
    headers = {"Authorization": f"Bearer {key}"}
    async with (
        api(fleet, "--compat", "events,acontext") as (url, _),
        httpx.AsyncClient(base_url=url, headers=headers, timeout=BOUND) as http,
    ):
        thread = await event_log.create(http)
        await event_log.send(http, thread, "I am devansh")
        for n in range(2, 7):
            await event_log.send(http, thread, f"thing {n}")
        branch = await event_log.fork(http, thread, 9)
        assert await event_log.send(http, branch, "what is my name") == "You are devansh."
        whole = await event_log.history(http, branch)
        assert whole[:9] == (await event_log.history(http, thread))[:9] and [text for _, text in whole[9:]] == [
            "what is my name",
            "You are devansh.",
        ]
        *path, last = await event_log.nested(http, event_log.DEPTH)
        assert len(path) == event_log.DEPTH + 1
        for parent, child in zip(path, [*path[1:], last], strict=True):
            assert [each["thread_id"] for each in await event_log.items(http, f"/threads/{parent}/branches")] == [child]
        assert (await http.get("/api/v1/session/none/messages")).json()["error"] == "thread_not_found"
