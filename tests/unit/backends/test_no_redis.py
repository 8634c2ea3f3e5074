"""A connection without Redis has every part of a backend, and loses latency only (E4)."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any, cast, get_type_hints

import httpx
import pytest
from structlog.testing import capture_logs

from runyard import Client
from runyard.client.apply_effects import apply_effects
from runyard.errors import BackendUnavailableError
from runyard.models import Event
from runyard.ports import scheduling
from runyard.ports.refs import RunRef
from runyard.ports.scheduling import Effects, Job, OutsideEvent
from runyard.ports.stores import Backend
from runyard_backends.conformance.world import World
from runyard_backends.http.backend import HttpBackend
from runyard_backends.http.transport import Transport
from runyard_backends.memory import MemoryBackend, MemoryWorld
from runyard_backends.postgres.backend import PostgresBackend
from runyard_backends.postgres.unconfigured_redis import NoEventLog, NoScheduler

REF = RunRef(1, "r")
DATABASE: Any = None
"""No call of these tests reaches Postgres."""


def without_redis() -> Backend:
    return PostgresBackend(DATABASE, None, "", "")


@pytest.mark.parametrize(
    "backend",
    [without_redis(), MemoryBackend(MemoryWorld(), ""), HttpBackend(Transport(httpx.AsyncClient(), 0.0))],
    ids=["postgres without redis", "memory", "http"],
)
def test_every_backend_has_every_attribute(backend: object) -> None:
    assert set(get_type_hints(Backend)) <= set(vars(backend))


@pytest.mark.parametrize(("absent", "port"), [(NoScheduler, scheduling.Scheduler), (NoEventLog, scheduling.EventLog)])
def test_absent_parts_take_the_calls_of_their_ports(absent: type, port: type) -> None:
    verbs = {name: verb for name, verb in vars(port).items() if inspect.isfunction(verb) and not name.startswith("_")}
    for name, verb in verbs.items():
        assert inspect.signature(getattr(absent, name)).parameters == inspect.signature(verb).parameters, name


async def test_effects_without_redis_are_reported_and_refuse_nothing() -> None:
    effects = Effects([Job(1, "r")], [OutsideEvent(REF, "t", "1-1", "run.dead")], [REF])
    with capture_logs() as logs:
        assert not await apply_effects(effects, without_redis())
        assert await apply_effects(Effects(cancels=[REF]), without_redis())
    assert [(entry["effect"], entry["log_level"]) for entry in logs] == [("submit", "warning")]
    assert "without Redis" in logs[0]["error"]


async def test_readers_without_redis_get_what_the_store_proves() -> None:
    backend = MemoryBackend(MemoryWorld(), "")
    backend.events = NoEventLog()
    world = World(cast(Backend, backend), lambda: None)  # type: ignore[arg-type, return-value]
    await world.finish(await world.start("r"))
    async with asyncio.timeout(10):
        seen: list[Event] = [event async for event in Client(cast(Backend, backend)).stream("t", "r")]
    assert seen[-1].type == "run.completed"


async def test_the_scheduler_names_what_is_missing() -> None:
    with pytest.raises(BackendUnavailableError, match=r"connected without Redis.*pass redis="):
        await without_redis().scheduler.ping()
