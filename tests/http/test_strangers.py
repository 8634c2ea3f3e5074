"""Keys that do not exist cost no query each, and refuse nobody whose key is known (A1, A2)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.requests import HTTPConnection

from runyard import Client
from runyard.domain.api_keys import ApiKey, Scope, Secret
from runyard.errors import BackendUnavailableError, ForbiddenError, UnauthenticatedError
from runyard_api.http.principal import Principal
from runyard_api.http.settings import ApiSettings
from tests.http.conftest import SECRET, ask
from tests.http.shared_routes import asgi_app
from tests.http.test_tokens import claims_of, signed

BURST = 10


@pytest.fixture
def settings() -> ApiSettings:
    return ApiSettings(_env_file=None, token_secret=SECRET, failures_per_second=0.001, failure_burst=BURST)


class Counted:
    """The key store, and what it was asked for."""

    def __init__(self, keys: Any) -> None:
        self._find = keys.find_key
        self.asked: list[str] = []
        self.away = False

    async def find_key(self, key_id: str) -> tuple[ApiKey, bytes] | None:
        self.asked.append(key_id)
        await asyncio.sleep(0.01)  # so that those who come at once do
        if self.away:
            raise BackendUnavailableError("away")
        found: tuple[ApiKey, bytes] | None = await self._find(key_id)
        return found


@pytest.fixture
def store(client: Client, monkeypatch: pytest.MonkeyPatch) -> Counted:
    counted = Counted(client.backend.keys)
    monkeypatch.setattr(client.backend.keys, "find_key", counted.find_key)
    return counted


class Place:
    """Callers at one address."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http

    async def ask(self, key: object) -> int:
        """The status for who shows ``key``."""
        self.last = await self.http.get("/v1/threads", headers={"Authorization": f"Bearer {key}"})
        return self.last.status_code


@pytest.fixture
async def place(app: FastAPI) -> AsyncIterator[Any]:
    async with AsyncExitStack() as stack:

        async def make(host: str) -> Place:
            transport = httpx.ASGITransport(app=app, client=(host, 1))
            return Place(await stack.enter_async_context(httpx.AsyncClient(transport=transport, base_url="http://api")))

        yield make


async def key_of(client: Client) -> str:
    return (await client.create_key("k"))[1]


async def test_a_key_that_is_none_is_looked_up_once(place: Any, store: Counted, client: Client) -> None:
    one, key = await place("10.0.0.1"), Secret.new()
    assert [await one.ask(key) for _ in range(BURST)] == [401] * BURST
    assert store.asked == [key.key_id]
    assert await one.ask(key) == 429 and int(one.last.headers["retry-after"]) > 1
    assert one.last.json()["code"] == "rate_limited" and "10.0.0.1" in one.last.json()["detail"]


async def test_a_flood_of_keys_is_few_queries(place: Any, store: Counted, client: Client) -> None:
    """Also of those that come at once. Another address is not concerned, nor is a key that this process has met."""
    one, other = await place("10.0.0.1"), await place("10.0.0.2")
    known, late = [await key_of(client) for _ in range(2)]
    assert await one.ask(known) == 200
    store.asked.clear()
    statuses = await asyncio.gather(*(one.ask(Secret.new()) for _ in range(5 * BURST)))
    assert sorted(statuses) == [401] * BURST + [429] * 4 * BURST and len(store.asked) == BURST
    assert (await one.ask(known), await one.ask(late), await other.ask(late), await one.ask(late)) == (200, 429, 200, 200)
    assert await one.ask(f"{known[:-1]}{'1' if known[-1] == '0' else '0'}") == 429  # its id is known, and it is not the key


async def test_a_known_key_is_asked_for_again_in_a_flood(
    app: FastAPI, place: Any, store: Counted, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stays known, and is refused once it was revoked."""
    one, key = await place("10.0.0.1"), await key_of(client)
    assert await one.ask(key) == 200
    for _ in range(2 * BURST):
        await one.ask(Secret.new())
    monkeypatch.setattr("runyard_api.http.keyring.FOUND_SECONDS", 0.0)
    assert [await one.ask(key) for _ in range(3)] == [200] * 3
    assert store.asked.count(key[3:19]) == 4
    [made] = await client.keys()
    await client.revoke_key(made.key_id)
    assert [await one.ask(key) for _ in range(2)] == [401, 429]
    assert store.asked.count(key[3:19]) == 5


async def test_valid_keys_do_not_count(place: Any, store: Counted, client: Client) -> None:
    """Nor does a store that is away."""
    one = await place("10.0.0.1")
    assert [await one.ask(await key_of(client)) for _ in range(2 * BURST)] == [200] * 2 * BURST
    store.away = True
    assert [await one.ask(Secret.new()) for _ in range(2 * BURST)] == [503] * 2 * BURST
    store.away = False
    assert await one.ask(Secret.new()) == 401


async def test_callers_at_once_with_one_key_share_a_query(place: Any, store: Counted, client: Client) -> None:
    one, key = await place("10.0.0.1"), await key_of(client)
    assert set(await asyncio.gather(*(one.ask(key) for _ in range(BURST)))) == {200}
    assert len(store.asked) == 1


async def test_a_cold_start_refuses_no_valid_key(place: Any, store: Counted, client: Client) -> None:
    """However many come at once: one failure may be counted for each look-up, not for each request."""
    one, keys = await place("10.0.0.1"), [await key_of(client) for _ in range(BURST // 2)]
    statuses = await asyncio.gather(*(one.ask(key) for key in keys * 10))
    assert set(statuses) == {200} and len(store.asked) == len(keys)
    assert [await one.ask("nonsense") for _ in range(BURST + 1)] == [401] * BURST + [429]


async def test_callers_who_share_a_failed_query_are_each_counted(place: Any, store: Counted, client: Client) -> None:
    """Whether there is no such key, or its id is known and the rest is guessed."""
    key = await key_of(client)
    guesses = [f"{key[:-2]}{n:02x}" for n in range(5 * BURST) if f"{n:02x}" != key[-2:]]
    for host, shown in (("10.0.0.1", [str(Secret.new())] * 5 * BURST), ("10.0.0.2", guesses)):
        store.asked.clear()
        one = await place(host)
        statuses = sorted(await asyncio.gather(*(one.ask(each) for each in shown)))
        assert statuses == [401] * BURST + [429] * (len(shown) - BURST) and len(store.asked) == 1
        assert await one.ask("nonsense") == 429


async def test_tokens_take_the_same_way(place: Any, store: Counted, client: Client) -> None:
    """Forged ones are asked of nobody; those of a key that is gone once. One that has expired is nobody's attack."""
    one, two, key = await place("10.0.0.1"), await place("10.0.0.2"), Secret.new()

    async def show(at: Place, token: str) -> int:
        return (await at.http.get("/v1/threads/t/stream", params={"token": token})).status_code

    forged = [signed(claims_of(Secret.new().key_id), "x" * 32) for _ in range(BURST + 1)]
    assert [await show(one, token) for token in forged] == [401] * BURST + [429]
    assert store.asked == []
    assert [await show(two, signed(claims_of(key.key_id, expires=n))) for n in range(2 * BURST)] == [401] * 2 * BURST
    assert store.asked == []
    assert [await show(two, signed(claims_of(key.key_id, run_id=f"r{n}"))) for n in range(2 * BURST)] == [401] * 2 * BURST
    assert store.asked == [key.key_id]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("2001:db8:1:2::1", "2001:db8:1:2:ffff::9", True),
        ("2001:db8:1:2::1", "2001:db8:1:3::1", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("::ffff:10.0.0.1", "::ffff:10.0.0.2", False),
        ("fe80::1%eth0", "fe80::2", True),
        ("", "", True),
        ("unix:", "10.0.0.1", False),
    ],
)
async def test_address_of_a_caller_is_its_ipv4_or_64_bits_of_ipv6(
    place: Any, client: Client, one: str, other: str, same: bool
) -> None:
    """Of IPv6 what one customer has: 64 bits."""
    here, there = await place(one), await place(other)
    assert [await here.ask("nonsense") for _ in range(BURST + 1)] == [401] * BURST + [429]
    assert await there.ask("nonsense") == (429 if same else 401)


async def test_caller_without_a_key_is_told_what_to_send_and_not_counted(app: FastAPI, place: Any) -> None:
    """However often: that is no guess."""
    one = await place("10.0.0.1")
    assert {(await one.http.get("/v1/threads")).status_code for _ in range(3 * BURST)} == {401}


async def test_one_key_more_than_the_bound_evicts_another(
    place: Any, store: Counted, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a process keeps of keys is bounded, of those that there are and those that there are not."""
    monkeypatch.setattr("runyard_api.http.keyring.MAX_KEYS", 2)
    one, keys = await place("10.0.0.1"), [await key_of(client) for _ in range(3)]
    for key in (*keys, *keys[1:], keys[0]):
        assert await one.ask(key) == 200
    assert len(store.asked) == 4
    store.asked.clear()
    unknown = [Secret.new() for _ in range(3)]
    for key in (*unknown, *unknown[1:], unknown[0]):
        assert await one.ask(key) == 401
    assert len(store.asked) == 4


class Sessions:
    """A host's own scheme: who shows a session that is open. ``asked``: how often."""

    def __init__(self) -> None:
        self.open = {"Bearer alice"}
        self.asked = 0
        self.scopes: frozenset[Scope] = frozenset({"read"})
        self.error: Exception | None = None
        self.header = "authorization"

    async def __call__(self, request: HTTPConnection) -> Principal | None:
        self.asked += 1
        await asyncio.sleep(0.01)
        if self.error is not None:
            raise self.error
        shown = request.headers.get(self.header, "")
        return Principal("", self.scopes, shown) if shown in self.open else None


class TestOwnScheme:
    """The failures of a host's own scheme are bounded like those of keys."""

    @pytest.fixture
    def sessions(self) -> Sessions:
        return Sessions()

    @pytest.fixture
    def app(self, client: Client, settings: ApiSettings, sessions: Sessions) -> FastAPI:
        return asgi_app(client, auth=sessions, settings=settings)

    async def test_a_flood_is_refused_without_asking(self, place: Any, sessions: Sessions) -> None:
        """Another address is not concerned, nor is who passed before from this one."""
        one, other = await place("10.0.0.1"), await place("10.0.0.2")
        assert await one.ask("alice") == 200
        sessions.open.add("Bearer late")
        sessions.asked = 0
        assert [await one.ask(f"guess {n}") for n in range(3 * BURST)] == [401] * BURST + [429] * 2 * BURST
        assert sessions.asked == BURST
        assert (await one.ask("alice"), await one.ask("late")) == (200, 429)
        assert "10.0.0.1" in one.last.json()["detail"] and int(one.last.headers["retry-after"]) > 1
        assert await other.ask("late") == 200

    async def test_guesses_that_come_at_once_are_owed(self, place: Any, settings: ApiSettings) -> None:
        """Each counts, so that as many take as long as if they had come one by one."""
        one = await place("10.0.0.1")
        assert set(await asyncio.gather(*(one.ask(f"guess {n}") for n in range(5 * BURST)))) == {401}
        assert await one.ask("guess") == 429
        assert int(one.last.headers["retry-after"]) > (4 * BURST) / settings.failures_per_second

    async def test_valid_callers_who_come_at_once_are_no_failures(self, place: Any, sessions: Sessions) -> None:
        one = await place("10.0.0.1")
        sessions.open = {f"Bearer {n}" for n in range(5 * BURST)}
        assert set(await asyncio.gather(*(one.ask(n) for n in range(5 * BURST)))) == {200}

    async def test_caller_whose_session_was_closed_is_refused(self, place: Any, sessions: Sessions) -> None:
        """A session that was closed is refused, and counts like any other from then on."""
        one = await place("10.0.0.1")
        assert await one.ask("alice") == 200
        for n in range(2 * BURST):
            await one.ask(f"guess {n}")
        sessions.open.clear()
        assert [await one.ask("alice") for _ in range(3)] == [401, 429, 429]
        sessions.asked = 0
        assert await one.ask("alice") == 429 and sessions.asked == 0

    async def test_caller_behind_a_proxy_is_known_by_its_lasting_headers(self, place: Any, sessions: Sessions) -> None:
        """Where a proxy says who asks: not by those that differ from one request to the next."""
        sessions.header = "x-forwarded-user"
        one = await place("10.0.0.1")

        async def ask(user: str, path: str = "/v1/threads", **more: str) -> int:
            headers = {"X-Forwarded-User": user} | {name.replace("_", "-"): value for name, value in more.items()}
            return (await one.http.get(path, headers=headers)).status_code

        assert await ask("Bearer alice", traceparent="a", x_request_id="1") == 200
        assert [await ask(f"guess {n}") for n in range(BURST + 1)] == [401] * BURST + [429]
        assert await ask("Bearer alice", "/v1/threads?limit=3", traceparent="b", accept="text/html") == 200
        assert (await one.http.get("/v1/threads")).status_code == 429

    async def test_refusal_of_a_known_caller_is_not_counted_as_a_failure(self, place: Any, sessions: Sessions) -> None:
        """Neither who is known and refused, nor a host that cannot say who asks."""
        one = await place("10.0.0.1")
        for error, status in ((ForbiddenError("not you"), 403), (BackendUnavailableError("away"), 503)):
            sessions.error = error
            assert {await one.ask("alice") for _ in range(2 * BURST)} == {status}
        sessions.error = UnauthenticatedError("expired")
        assert [await one.ask("alice") for _ in range(BURST + 1)] == [401] * BURST + [429]

    async def test_an_error_of_the_hosts_library_is_a_failure(self, place: Any, sessions: Sessions, app: FastAPI) -> None:
        """Else whoever sends what it cannot read guesses for ever."""
        sessions.error = ValueError("bad signature")
        transport = httpx.ASGITransport(app=app, client=("10.0.0.1", 1), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://api") as http:
            one = Place(http)
            assert [await one.ask(f"guess {n}") for n in range(BURST + 1)] == [500] * BURST + [429]

    async def test_answer_of_a_key_without_a_name_is_signed_with_its_id(
        self, place: Any, sessions: Sessions, client: Client
    ) -> None:
        """A1: who answered is what the server knows of the caller, never what the caller says."""
        await ask(client, "t", "r")
        sessions.scopes = frozenset({"respond"})
        reply = await (await place("10.0.0.1")).http.post(
            "/v1/threads/t/respond", json={"answer": "red", "on_behalf_of": "bob"}, headers={"Authorization": "Bearer alice"}
        )
        assert (reply.json()["answered_by"], reply.json()["on_behalf_of"]) == ("Bearer alice", "bob")

    async def test_remembered_callers_are_bounded(
        self, place: Any, sessions: Sessions, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("runyard_api.http.failures.MAX_PASSED_CALLERS", 2)
        one = await place("10.0.0.1")
        sessions.open = {"Bearer a", "Bearer b", "Bearer c"}
        assert {await one.ask(each) for each in "abc"} == {200}
        for n in range(2 * BURST):
            await one.ask(f"guess {n}")
        assert [await one.ask(each) for each in "abc"] == [429, 200, 200]
