"""The servers: four protocols under one address, in a thread of the test or in a process of their own.

A scenario plays the model. Before it calls the scenario, the server refuses a request that the provider would refuse. Faults
are errors that a provider may have. Between requests the server keeps only the log of requests, so that it can be restarted.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import TypeAlias

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from tests.support.providers import anthropic_messages, google_gemini, openai_chat, openai_responses
from tests.support.providers.conversation import Ask, Body, Conversation, Event, Refused, Reply, Scenario

KEY = "a-key-for-tests"
PROTOCOLS: dict[str, ModuleType] = {
    "openai-chat": openai_chat,
    "openai-responses": openai_responses,
    "anthropic": anthropic_messages,
    "gemini": google_gemini,
}


@dataclass(frozen=True)
class Fault:
    """A fault of one request.

    ``status``: answer at once with this error of the protocol, and with ``retry_after`` (seconds) as a header. ``cut``: close
    the connection after this number of tokens; an answer in one piece counts as two. ``hang``: send nothing after this number
    of tokens, until the client disconnects; with 0, send no status either.
    """

    status: int | None = None
    retry_after: float | None = None
    cut: int | None = None
    hang: int | None = None


@dataclass
class Received:
    """A request. ``status`` and ``message``: those of its answer. ``conversation``: None if the request was refused."""

    protocol: str
    path: str
    body: Body
    at: float
    conversation: Conversation | None = None
    status: int | None = None
    message: str = ""
    fault: Fault | None = None


def hello(conversation: Conversation) -> Reply:
    """The default scenario."""
    return Reply("Hello.")


Trouble: TypeAlias = Callable[[Received], Fault | None]


@dataclass
class Providers:
    """The servers of a test.

    ``scenario``: the model. ``speed``: tokens per second; None for no delay. ``requests``: all requests, in order.
    ``trouble``: returns the fault of a valid request, when the faults of :meth:`fail` are used up.
    """

    scenario: Scenario = hello
    speed: float | None = None
    trouble: Trouble | None = None
    requests: list[Received] = field(default_factory=list)
    url: str = ""
    _faults: deque[Fault] = field(default_factory=deque)
    _mishaps: list[Exception] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables by which SDKs find the servers."""
        return {
            "OPENAI_BASE_URL": f"{self.url}/openai/v1",
            "OPENAI_API_KEY": KEY,
            "ANTHROPIC_BASE_URL": f"{self.url}/anthropic",
            "ANTHROPIC_API_KEY": KEY,
            "GOOGLE_GEMINI_BASE_URL": f"{self.url}/gemini",
            "GOOGLE_API_KEY": KEY,
        }

    @property
    def refused(self) -> list[str]:
        """The faults of the refused requests."""
        return [received.message for received in self.requests if received.status in range(400, 429)]

    def fail(self, *faults: Fault) -> None:
        """Give each of the next valid requests one of these faults, in order."""
        self._faults.extend(faults)

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                self._route("/openai/v1/chat/completions", "openai-chat"),
                self._route("/openai/v1/responses", "openai-responses"),
                self._route("/anthropic/v1/messages", "anthropic"),
                self._route("/gemini/{version}/models/{model}:{verb}", "gemini"),
            ]
        )

    def _route(self, path: str, protocol: str) -> Route:
        async def answer(request: Request) -> Response:
            return await self._answer(request, protocol)

        return Route(path, answer, methods=["POST"])

    async def _answer(self, request: Request, protocol: str) -> Response:
        speaks = PROTOCOLS[protocol]
        received = Received(protocol, request.url.path, {}, time.monotonic())
        self.requests.append(received)
        try:
            ask = await self._read(request, received)
            received.conversation = ask.conversation
            received.fault = self._faults.popleft() if self._faults else self.trouble and self.trouble(received)
            if received.fault and received.fault.status:
                raise Refused("The server is out of order, as the test wants it.", received.fault.status)
            reply = self.scenario(ask.conversation)
            reply = await reply if inspect.isawaitable(reply) else reply
        except Refused as refused:
            received.status, received.message = refused.status, refused.message
            after = received.fault.retry_after if received.fault else None
            headers = {"retry-after": f"{after:g}"} if after is not None else {}
            return JSONResponse(speaks.error(refused), refused.status, headers)
        except Exception as mishap:
            self._mishaps.append(mishap)
            raise
        received.status = 200
        events = speaks.events(ask, reply) if ask.stream else one_piece(speaks.whole(ask, reply))
        kind = "text/event-stream" if ask.stream else "application/json"
        return Told(events, kind, self.speed, received.fault or Fault())

    async def _read(self, request: Request, received: Received) -> Ask:
        speaks = PROTOCOLS[received.protocol]
        speaks.authorised(dict(request.headers), KEY)
        raw = await request.body()
        try:
            received.body = json.loads(raw)
        except ValueError:
            raise Refused("We could not parse the JSON body of your request.") from None
        verb = request.path_params.get("verb")
        if verb not in (None, "generateContent", "streamGenerateContent"):
            raise Refused(f"{verb} is not found", 404)
        read: Ask = speaks.read(raw, received.body, request.path_params.get("model"), verb == "streamGenerateContent")
        return read

    @contextmanager
    def serving(self) -> Iterator[Providers]:
        """Run the servers in a thread of this process. Raise an exception of a scenario at the end."""
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL + 1)  # tests cut connections on purpose
        server = uvicorn.Server(uvicorn.Config(self.app(), log_config=None, access_log=False, timeout_graceful_shutdown=1))
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            thread = threading.Thread(target=server.run, args=([listener],))
            thread.start()
            try:
                yield self
            finally:
                server.should_exit = server.force_exit = True
                thread.join()
        if self._mishaps:
            raise ExceptionGroup("the servers failed", self._mishaps)


def one_piece(body: Body) -> Iterator[Event]:
    """Yield an answer that is not streamed, in two pieces, so that a fault can cut it in its middle."""
    data = json.dumps(body).encode()
    yield Event(data[: len(data) // 2], token=True)
    yield Event(data[len(data) // 2 :], token=True)


class Told(Response):
    """An answer at the speed of its server, with its fault."""

    def __init__(self, events: Iterator[Event], media_type: str, speed: float | None, fault: Fault) -> None:
        super().__init__(media_type=media_type)
        del self.headers["content-length"]
        self.events, self.speed, self.fault = events, speed, fault

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.fault.hang == 0:
            await gone(receive)
            return
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        told, due = 0, time.monotonic()
        for event in self.events:
            if event.token:
                if told == self.fault.hang:
                    await gone(receive)
                if told in (self.fault.hang, self.fault.cut):
                    return  # without an end: the server closes the connection
                told += 1
                if self.speed is not None:
                    due += 1 / self.speed
                    await asyncio.sleep(due - time.monotonic())
            await send({"type": "http.response.body", "body": event.data, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def gone(receive: Receive) -> None:
    """Wait until the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass
