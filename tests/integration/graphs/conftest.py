"""A worker that serves an app of graphs on Postgres and Redis, or in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TypeAlias

import pytest

from runyard import App, Client
from runyard.adapters.langgraph_agent import adapt
from runyard.support import agent_adapters, backend_urls
from runyard.testing import deployment
from runyard.testing.in_process import _serving
from runyard.worker.worker import Worker
from tests.support.agents.graph import EFFECTS

Serve: TypeAlias = Callable[[App], AbstractAsyncContextManager[Client]]


@pytest.fixture(autouse=True)
def adapter() -> None:
    agent_adapters.register("langgraph", adapt)


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of the effects of ``tests/support/agents/graph.py``."""
    monkeypatch.setenv(EFFECTS, str(tmp_path / "effects"))
    return tmp_path / "effects"


@pytest.fixture(params=["memory", "postgres"])
def serve(request: pytest.FixtureRequest) -> Serve:
    """Serve an app, and return a client, for the time of a block."""
    if request.param == "memory":
        return deployment
    return request.getfixturevalue("postgres_serve")  # type: ignore[no-any-return]


@pytest.fixture
def postgres_serve(postgres_url: str, redis_url: str) -> Serve:
    """As ``serve``, on Postgres and Redis."""

    @asynccontextmanager
    async def served(app: App) -> AsyncIterator[Client]:
        backend = await backend_urls.connect(postgres_url, redis=redis_url)
        try:
            async with _serving(Worker(app, backend, grace=0.0)):
                yield Client(backend, app_version=app.version)
        finally:
            await backend.close()

    return served
