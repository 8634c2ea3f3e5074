"""The memory store is the specification; it has to pass the suite that it specifies."""

from collections.abc import AsyncIterator

import pytest

from runyard.errors import CapabilityMissingError
from runyard.models import Message
from runyard.ports.commands import AcceptRequest
from runyard.ports.stores import Backend
from runyard_backends.conformance import *  # noqa: F403
from runyard_backends.conformance.world import BackendFactory
from runyard_backends.memory import MemoryWorld, connect


@pytest.fixture
async def backend_factory() -> AsyncIterator[BackendFactory]:
    world = MemoryWorld()

    async def factory(tenant: str = "") -> Backend:
        return await connect(tenant=tenant, world=world)

    yield factory


async def test_no_transactions_of_a_host(backend_factory: BackendFactory) -> None:
    """R14: an optional method that is missing → CapabilityMissingError, the rest works."""
    backend = await backend_factory()
    request = AcceptRequest(thread_id="t", run_id="r", input=Message.user("x"))
    with pytest.raises(CapabilityMissingError):
        await backend.runs.accept(request, connection=object())
    assert (await backend.runs.accept(request)).created


async def test_named_worlds_are_shared() -> None:
    one, two, other = await connect("memory://shared"), await connect("memory://shared"), await connect("memory://")
    await one.threads.store_message("t", Message.user("x"))
    assert await two.threads.thread("t") is not None and await other.threads.thread("t") is None
