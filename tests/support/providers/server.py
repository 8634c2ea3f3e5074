"""The servers: four protocols under one address, in a thread of the test or in a process of their own.

A scenario is the model. Requests that a provider would refuse are refused before it is asked. Faults are answers that a
provider gives on bad days. Nothing is remembered between requests but the log, so that a server can be restarted.
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
    """What goes wrong with one request.

    ``status``: answered at once as an error of the protocol, with ``retry_after`` (seconds) as a header. ``cut``: the
    connection is closed after so many tokens of a stream; an answer in one piece has two. ``hang``: after so many tokens
    nothing more comes, until the client gives up; 0 for not even a status.
    """

    status: int | None = None
    retry_after: float | None = None
    cut: int | None = None
    hang: int | None = None


@dataclass
class Received:
    """A request as it came. ``status`` and ``message`` are what it was answered; ``conversation`` is None if it was refused."""

    protocol: str
    path: str
    body: Body
    at: float
    conversation: Conversation | None = None
    status: int | None = None
    message: str = ""
    fault: Fault | None = None


def hello(conversation: Conversation) -> Reply:
    """The scenario of servers that were given none."""
    return Reply("Hello.")


Trouble: TypeAlias = Callable[[Received], Fault | None]


@dataclass
class Providers:
    """The servers of a test.

    ``scenario`` is the model; ``speed``: tokens per second, None for at once; ``requests``: all that came, in order;
    ``trouble`` decides about each good request, after the faults that were queued by :meth:`fail` are used up.
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
        """Variables with which the SDKs of a process find the servers."""
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
        """What was wrong with the requests that were refused."""
        return [received.message for received in self.requests if received.status in range(400, 429)]

    def fail(self, *faults: Fault) -> None:
        """The next good requests meet these faults, one each."""
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
        """The servers, in a thread of this process. What a scenario raised is raised at the end."""
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL + 1)  # a cut connection is no mishap here
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
    """An answer that is not streamed; it breaks in its middle."""
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
    """Until the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
