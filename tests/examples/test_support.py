"""examples/support: a refund waits for its approval, and is paid once."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from runyard import Client, RunStatus
from runyard.testing import Harness, ScriptedModel, crash_everywhere
from tests.examples.programs import BOUND, example

BROKEN = "Order A-7 arrived broken. Please refund it."
PAID = "12.90 € for order A-7 were refunded. It will be on your account in two or three days."


def service(refunds: dict[str, object]) -> Starlette:
    """A payment service that keeps its refunds by idempotency key."""

    async def refund(request: Request) -> JSONResponse:
        refunds.setdefault(request.headers["idempotency-key"], await request.json())
        return JSONResponse({})

    return Starlette(routes=[Route("/refunds", refund, methods=["POST"])])


@contextmanager
def serving(app: Starlette) -> Iterator[str]:
    """The address of ``app``."""
    server = uvicorn.Server(uvicorn.Config(app, log_config=None))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = server.force_exit = True
            thread.join()


async def test_support_example_pays_only_after_approval(tmp_path: Path, postgres_url: str, redis_url: str) -> None:
    """H5: an approval belongs to its call; refused, nothing is paid."""
    refunds: dict[str, object] = {}
    with serving(service(refunds)) as url:
        async with (
            example("support/app.py", tmp_path, postgres_url, redis_url, {"PAYMENTS_URL": url}) as program,
            Client.connect(postgres_url, redis=redis_url) as client,
        ):
            await program.said("serving")
            run = await client.enqueue("t1", BROKEN)
            asked = await run.result(BOUND)
            assert asked.status is RunStatus.SUSPENDED and not refunds
            await client.respond("t1", True)
            assert (await run.result(BOUND)).text == PAID
            assert list(refunds.values()) == [{"order": "A-7", "cents": 1290}]

            other = await client.enqueue("t2", BROKEN)
            await other.result(BOUND)
            await client.respond("t2", {"approved": False, "reason": "it was not broken"})
            assert (await other.result(BOUND)).ok and len(refunds) == 1


async def test_support_example_pays_once_whichever_write_crashes(
    load: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    """R9: before and after each write of its worker."""
    support, refunds = load("support/app.py"), dict[str, object]()
    transport = httpx.ASGITransport(service(refunds))

    async def scenario(harness: Harness) -> None:
        refunds.clear()
        run = await harness.prompt("t1", BROKEN, "r1")
        assert run.status is RunStatus.SUSPENDED
        run = await run.respond(True)
        assert run.ok and run.text == PAID and len(refunds) == 1

    async with httpx.AsyncClient(transport=transport, base_url="http://payments") as payments:
        monkeypatch.setattr(support, "payments", payments)
        with support.agent.override(model=ScriptedModel(support.script)):
            assert await crash_everywhere(support.app, scenario) >= 14
