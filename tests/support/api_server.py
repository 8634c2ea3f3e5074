"""A real HTTP server for an app, in the event loop of the test, for tests that need a connection."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import uvicorn


@asynccontextmanager
async def serving(app: Any, certificate: Path | None = None) -> AsyncIterator[str]:
    """Serve ``app`` with uvicorn, over HTTPS if there is a ``certificate`` with its key. Yield its URL."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        server = uvicorn.Server(
            uvicorn.Config(app, log_config=None, lifespan="on", timeout_graceful_shutdown=2, ssl_certfile=certificate)
        )
        running = asyncio.create_task(server.serve([listening]))
        while not server.started:
            assert not running.done()
            await asyncio.sleep(0.01)
        try:
            yield f"{'http' if certificate is None else 'https'}://127.0.0.1:{port}"
        finally:
            if hasattr(app, "state"):
                app.state.service.streams.close()
            server.should_exit = True
            await running


@dataclass
class Frame:
    """One event of a stream. A comment has no type."""

    id: str | None = None
    type: str | None = None
    data: Any = None
    comment: bool = False


async def frames(reply: httpx.Response) -> AsyncIterator[Frame]:
    """Yield the events and comments of a stream as they arrive."""
    frame = Frame()
    async for line in reply.aiter_lines():
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match name:
            case "id":
                frame.id = value
            case "event":
                frame.type = value
            case "data":
                frame.data = json.loads(value)
            case "" if line:
                frame.comment = True
            case "":
                if frame.comment or frame.type is not None:
                    yield frame
                frame = Frame()
