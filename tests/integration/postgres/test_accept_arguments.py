"""The two ways in, the client and SQL's accept: both refuse a value, naming the same argument, or both accept it."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Final

import asyncpg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import runyard_backends.postgres
from runyard import Client
from runyard.errors import RunyardError
from runyard.models import Run, new_id
from runyard.ports.stores import Backend
from runyard_backends.postgres.backend import connect
from runyard_backends.postgres.driver_errors import translated

PRINTABLE: Final = Path(runyard_backends.postgres.__file__).parent / "functions" / "printable.sql"
OPTIONS: Final = frozenset({"timeout", "expires_in", "max_attempts", "parallel", "multitask_strategy", "webhook"})
SQL: Final = (
    "SELECT runyard.accept($1, $2, run_id => $3, agent => $4, queue => $5, priority => $6, run_at => $7,"
    " metadata => $8::text::jsonb, options => $9::text::jsonb)"
)


@dataclass
class Ways:
    """A host's connection, and the client on it. Each call has a savepoint of its own."""

    backend: Backend
    host: asyncpg.Connection

    async def client(self, arguments: dict[str, Any]) -> tuple[str, Any] | Run:
        asked = {"thread_id": "t", "message": "hello", "run_id": new_id()} | arguments
        try:
            async with self.host.transaction():
                await Client(self.backend).enqueue(**asked, connection=self.host)
        except RunyardError as error:
            return error.code, error.details.get("field")
        return await self._found(asked["thread_id"], asked["run_id"])

    async def sql(self, arguments: dict[str, Any]) -> tuple[str, Any] | Run:
        asked = {"thread_id": "t", "message": "hello", "run_id": new_id()} | arguments
        named = [asked.get(name) for name in ("thread_id", "message", "run_id", "agent", "queue")]
        options = {name: value for name, value in asked.items() if name in OPTIONS}
        metadata = json.dumps(asked.get("metadata", {}))
        rest = (asked.get("priority", "normal"), asked.get("run_at"), metadata, json.dumps(options))
        try:
            with translated():
                async with self.host.transaction():
                    await self.host.execute(SQL, *named, *rest)
        except RunyardError as error:
            return error.code, error.details.get("field")
        return await self._found(asked["thread_id"], asked["run_id"])

    async def _found(self, thread_id: str, run_id: str) -> Run:
        run = await self.backend.runs.run(thread_id, run_id)
        assert run is not None
        return run

    async def same(self, arguments: dict[str, Any]) -> None:
        """Both ways refuse with the same code and field, or both accept a run that can be decoded and has the same values."""
        by_client, by_sql = await self.client(arguments), await self.sql(arguments)
        if isinstance(by_client, Run) and isinstance(by_sql, Run):
            assert _values(by_client) == _values(by_sql)
        else:
            assert by_client == by_sql


def _values(run: Run) -> dict[str, Any]:
    assert run.input is not None
    names = ("agent", "queue", "priority", "run_at", "options", "metadata")
    return {"text": run.input.text, **{name: getattr(run, name) for name in names}}


@pytest.fixture
async def ways(module_postgres_url: str) -> AsyncIterator[Ways]:
    backend = await connect(module_postgres_url)
    host = await asyncpg.connect(module_postgres_url)
    yield Ways(backend, host)
    await host.close()
    await backend.close()


def nested(levels: int, inner: Any = 1) -> dict[str, Any]:
    for _ in range(levels):
        inner = {"k": inner}
    found: dict[str, Any] = inner
    return found


REFUSED: Final[list[tuple[str, Any]]] = [
    *((name, value) for name in ("thread_id", "run_id", "agent", "queue") for value in (
        "", ".", "..", "x" * 256, "a\nb", "a\x7f", "a\xa0b", "\u2028", "\u202e", "\ufeff", "\ue000", "\u0378", "\u08e2",
        "\ufdd0", "\U000110bd", "\U0001d173", "\U000e0001", "\U000f0000", "\U0010ffff", "\U00040000"
    )),
    *(("priority", value) for value in ("", "urgent", "HIGH", "normal ")),
    *(("run_at", value) for value in (
        datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC), datetime(1970, 1, 1, tzinfo=timezone(timedelta(hours=14))),
        datetime(9000, 1, 1, tzinfo=UTC), datetime(8999, 12, 31, 23, tzinfo=timezone(timedelta(hours=-12))),
        datetime(9999, 12, 31, tzinfo=UTC), datetime(1, 1, 1, tzinfo=UTC),
    )),
    *(("metadata", value) for value in (
        {"k": 2**64}, {"k": -(2**63) - 1}, {"k": [{"k": 10**400}]}, nested(101), nested(600), {"k": "x" * 262144},
        {"x" * 262145: 1}, {"k": ["x" * 100] * 2700}, {"k": [1] * 25000}, {str(n): n for n in range(25001)},
    )),
    *(("timeout", value) for value in (0, -1, -0.0, -1e-300)),
    *(("expires_in", value) for value in (0, -1, 315360001, 1e300, 10**400)),
    *(("max_attempts", value) for value in (0, -1, 1001, 1.5, 2**64, 1e300)),
    *(("multitask_strategy", value) for value in ("", "queue", "ENQUEUE")),
    *(("webhook", value) for value in (
        "", "x", "ftp://a", "http://", "http:///a", "http://:80", "http://a:0", "http://a:00", "http://a:65536", "http://a:x",
        "http://a:80:90", "http://u@a", "http://u:p@a", "http://a#b", "http://a\\b", "http://a b", "http://ä", "http://a\n",
        "http://[::1", "http://::1]", "http://[x]", "http://[1.2.3.4]", "http://" + "a" * 2042, "//a", "http:a",
        "http://a]b", " http://a",
    )),
]  # fmt: skip

ACCEPTED: Final[list[tuple[str, Any]]] = [
    *((name, value) for name in ("thread_id", "run_id", "agent", "queue") for value in (
        "x" * 255, "a b", " ", "ünï-ço/dé", "线程", "مرحبا", "😀", "a!\"#$%&'()*+,:;<=>?@[]^_`{|}~\\", "ก็", "...", "\U000e0100"
    )),
    *(("message", value) for value in (
        "", "\x01\x1f\x7f", "\ud7ff\ue000\ufffe\uffff\U0010ffff", '{"content": 1}', "\\u0000", "x" * 10**6,
    )),
    *(("priority", value) for value in ("high", "normal", "low")),
    *(("run_at", value) for value in (
        datetime(1970, 1, 1, tzinfo=UTC), datetime(8999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
        datetime(1969, 12, 31, 12, tzinfo=timezone(timedelta(hours=-12))),
        datetime(9000, 1, 1, 13, tzinfo=timezone(timedelta(hours=14))),
    )),
    *(("metadata", value) for value in (
        {"k": 2**64 - 1}, {"k": -(2**63)}, {"k": 0.1}, {"k": 1e-320}, {"k": -1.5e18}, {"k": None}, {"": {}}, nested(100),
        {"k": "x" * 262143}, {"k": ["x" * 97] * 2700}, {"k": "\x01" * 200000}, {"k": [1] * 24999},
        {"k": [0.1234567890123456] * 24999}, {"\\u0000": "\\u0000"},
    )),
    *(("timeout", value) for value in (1, 0.5, 1e-300, 5e-324, 1e300, 1.7976931348623157e308, None)),
    *(("expires_in", value) for value in (1, 5e-324, 315360000, None)),
    *(("max_attempts", value) for value in (1, 1000, 3.0)),
    *(("parallel", value) for value in (True, False)),
    *(("multitask_strategy", value) for value in ("enqueue", "reject", "interrupt", "rollback")),
    *(("webhook", value) for value in (
        "http://a", "HTTPS://A/b?c=d", "http://a:", "http://a:1", "http://a:065535/", "http://[::1]:80/x",
        "https://[2001:db8::1]", "http://a?b@c", "http://a/@", "http://a{b}'\"<>^`|", "http://" + "a" * 2041,
        "http://a/%20", None,
    )),
]  # fmt: skip


@pytest.mark.parametrize("name", dict(REFUSED))
async def test_both_ways_refuse(ways: Ways, name: str) -> None:
    """I1, A2: a run that no worker can decode would never end."""
    for value in [value for refused, value in REFUSED if refused == name]:
        outcomes = await ways.client({name: value}), await ways.sql({name: value})
        assert outcomes == (("invalid_input", name), ("invalid_input", name)), value


async def test_both_ways_accept(ways: Ways) -> None:
    """I1: the run can be decoded, and has the same values."""
    for name, value in ACCEPTED:
        by_client, by_sql = await ways.client({name: value}), await ways.sql({"thread_id": "t2", name: value})
        assert isinstance(by_client, Run) and isinstance(by_sql, Run), (name, value, by_client, by_sql)
        assert _values(by_client) == _values(by_sql), (name, value)


ONLY_SQL: Final[list[tuple[str, str]]] = [
    *((f"{n} => NULL", n) for n in ("thread_id", "message", "run_id", "priority", "metadata", "options", "tenant")),
    ("metadata => '[]'", "metadata"),
    ("metadata => '7'", "metadata"),
    ("metadata => 'null'", "metadata"),
    ("metadata => '{\"n\": 1e100}'", "metadata"),
    ("metadata => '{\"n\": [-1e5000]}'", "metadata"),
    ("""metadata => ('{"k": 1' || repeat('0', 5000) || '}')::jsonb""", "metadata"),
    (
        "metadata => (SELECT jsonb_object_agg(n, ('.' || repeat('1', 16000))::numeric) FROM generate_series(1, 300) n)",
        "metadata",
    ),
    ("options => '[]'", "options"),
    ("options => 'null'", "options"),
    ("""options => '{"unknown": 1}'""", "unknown"),
    ("""options => '{"timeout": "1"}'""", "timeout"),
    ("""options => '{"timeout": 1e-400}'""", "timeout"),
    ("""options => '{"timeout": 1e400}'""", "timeout"),
    ("""options => ('{"timeout": 1' || repeat('0', 5000) || '}')::jsonb""", "timeout"),
    ("""options => '{"expires_in": 1e-400}'""", "expires_in"),
    ("""options => '{"expires_in": "soon"}'""", "expires_in"),
    ("""options => '{"max_attempts": "3"}'""", "max_attempts"),
    ("""options => '{"max_attempts": null}'""", "max_attempts"),
    ("""options => '{"max_attempts": 1e-400}'""", "max_attempts"),
    ("""options => '{"parallel": 1}'""", "parallel"),
    ("""options => '{"parallel": null}'""", "parallel"),
    ("""options => '{"multitask_strategy": null}'""", "multitask_strategy"),
    ("""options => '{"webhook": 1}'""", "webhook"),
    ("run_at => 'infinity'", "run_at"),
    ("run_at => '-infinity'", "run_at"),
    ("run_at => '20000-01-01'", "run_at"),
    ("run_at => '294276-12-31'", "run_at"),
    ("run_at => '0044-03-15 BC'", "run_at"),
]


async def test_sql_refuses_what_only_sql_can_express(ways: Ways) -> None:
    """I1: a column that is NULL reaches it from a trigger, and Postgres has numbers and times that Python has not."""
    before = await ways.host.fetchval("SELECT count(*) FROM runyard.runs")
    for argument, name in ONLY_SQL:
        key, value = argument.split(" => ", 1)
        named = ", ".join(
            f"{key} => {text}" for key, text in ({"thread_id": "'t'", "message": "'hello'"} | {key: value}).items()
        )
        with pytest.raises(asyncpg.PostgresError) as error:
            await ways.host.execute(f"SELECT runyard.accept({named})")
        assert (error.value.sqlstate, error.value.hint) == ("RY000", "invalid_input"), argument
        assert json.loads(error.value.detail or "{}")["field"] == name
    assert await ways.host.fetchval("SELECT count(*) FROM runyard.runs") == before


@pytest.mark.parametrize(
    "arguments",
    [
        r"""'t', 'm', metadata => '{"k": "\u0000"}'""",
        r"""'t', 'm', metadata => '{"k": "\ud800"}'""",
        "'t', chr(0)",
        r"'t', E'\uD800'",
    ],
)
async def test_postgres_itself_refuses_text_that_it_cannot_hold(ways: Ways, arguments: str) -> None:
    with pytest.raises(asyncpg.PostgresError):
        await ways.host.execute(f"SELECT runyard.accept({arguments})")


def test_printable_characters_are_those_of_the_oldest_python() -> None:
    """A character that a later version of Unicode assigns is printable for a later Python only."""
    table = "".join(re.findall(r"^ +'(\\[^']*)'$", PRINTABLE.read_text("utf-8"), re.MULTILINE))
    refused = set[int]()
    for first, last in re.findall(r"\\[uU]([0-9a-f]+)(?:-\\[uU]([0-9a-f]+))?", table):
        refused |= set(range(int(first, 16), int(last or first, 16) + 1))
    characters = [*range(1, 0xD800), *range(0xE000, 0x110000)]
    assert [n for n in characters if n not in refused and not chr(n).isprintable()] == []
    later = [n for n in characters if n in refused and chr(n).isprintable()]
    assert later == [] or unicodedata.unidata_version > "14"


async def test_each_end_of_a_range_of_characters(ways: Ways) -> None:
    ends = {
        n + step
        for a, b in re.findall(r"\\[uU]([0-9a-f]+)(?:-\\[uU]([0-9a-f]+))?", PRINTABLE.read_text("utf-8"))
        for n in (int(a, 16), int(b or a, 16))
        for step in (-1, 0, 1)
    }
    asked = sorted(n for n in ends if 0 < n < 0x110000 and not 0xD800 <= n < 0xE000)
    found = await ways.host.fetch("SELECT n, runyard.unprintable('a' || chr(n)) AS refused FROM unnest($1::int[]) n", asked)
    assert [hex(n) for n, refused in found if not refused and not chr(n).isprintable()] == []
    later = [hex(n) for n, refused in found if refused and chr(n).isprintable()]
    assert later == [] or unicodedata.unidata_version > "14"


TEXTS = st.text(st.characters(exclude_characters="\0"), max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**65), 2**65) | st.floats(-1e15, 1e15) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
IDS = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs", "Cn")), max_size=6) | st.text("x.", max_size=260)
ZONES = st.integers(-14, 14).map(lambda hours: timezone(timedelta(hours=hours)))
NUMBERS = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-5, 2000)
ARGUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "thread_id": IDS,
        "agent": st.none() | IDS,
        "queue": st.none() | IDS,
        "message": TEXTS,
        "priority": st.sampled_from(["high", "low", "none"]),
        "run_at": st.datetimes(timezones=ZONES),
        "metadata": st.dictionaries(TEXTS, JSON, max_size=4),
        "timeout": NUMBERS,
        "expires_in": NUMBERS,
        "max_attempts": st.integers(-1, 1002),
        "parallel": st.booleans(),
        "webhook": st.from_regex(r"https?://[a-z:.@0-9]{1,8}(/[a-z#?]{0,4})?", fullmatch=True),
    },
)


async def test_any_arguments_have_the_same_fate(ways: Ways) -> None:
    """I1, A2: each argument by itself, so that both ways name the same."""
    examples: list[dict[str, Any]] = []

    @settings(max_examples=60, database=None)
    @given(ARGUMENTS)
    def draw(arguments: dict[str, Any]) -> None:
        examples.append(arguments)

    draw()  # hypothesis calls no coroutine functions
    for arguments in examples:
        for name, value in arguments.items():
            await ways.same({name: value})
