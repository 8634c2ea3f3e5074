"""Which errors count as temporary errors of a provider, how often they are retried, and after which pause (R7, R11)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import httpx
import httpx2
import openai
import pytest
from google import genai
from google.genai import types
from google.genai.errors import ClientError, ServerError
from pydantic_ai.exceptions import ModelHTTPError

from runyard.app import AgentOptions, App
from runyard.domain.runs import RetryPolicy, RunOptions
from runyard.errors import InvalidInputError
from runyard.execution.context import RunContext
from runyard.execution.provider_outages import asked_pause, is_temporary, passes
from runyard.execution.retries import OUTAGE_ATTEMPTS, effective_options, retry_delay

REQUEST = httpx.Request("POST", "http://provider")


def answer(status: int, **headers: str) -> httpx.Response:
    return httpx.Response(status, headers=headers, request=REQUEST)


def of_openai(status: int, code: str | None = None) -> Exception:
    body = {"code": code} if code else None
    return openai.OpenAI(api_key="k")._make_status_error("no", body=body, response=answer(status))


def of_anthropic(status: int) -> Exception:
    return anthropic.Anthropic(api_key="k")._make_status_error("no", body=None, response=answer(status))


class Busy(openai.APIConnectionError):
    """An error of a program's own client."""


TEMPORARY = [
    Busy(request=REQUEST),
    *(of_openai(status) for status in (408, 429, 500, 503)),
    *(of_anthropic(status) for status in (429, 529)),
    openai.APITimeoutError(REQUEST),
    anthropic.APIConnectionError(request=REQUEST),
    ClientError(429, {}),
    ServerError(503, {}),
    ModelHTTPError(502, "m"),
]
LASTING = [
    *(of_openai(status) for status in (400, 401, 404, 422)),
    of_openai(429, "insufficient_quota"),
    of_anthropic(403),
    ClientError(400, {}),
    ConnectionError("of the user's own code"),
    httpx.ReadTimeout("of any other server"),
    ValueError("a bug"),
]


@pytest.mark.parametrize("error", TEMPORARY, ids=repr)
def test_a_temporary_error_is_retried_by_default(error: Exception) -> None:
    assert is_temporary(error)
    assert retry_delay(RunOptions(), 0, error) is not None
    assert retry_delay(RunOptions(), OUTAGE_ATTEMPTS - 1, error) is None
    assert retry_delay(RunOptions(max_attempts=1), 0, error) is None
    policy = RetryPolicy(errors={type(error).__name__: None})
    assert retry_delay(RunOptions(retry=policy), 0, error) is None


@pytest.mark.parametrize("error", LASTING, ids=repr)
def test_any_other_error_is_retried_only_on_request(error: Exception) -> None:
    assert not is_temporary(error)
    assert retry_delay(RunOptions(), 0, error) is None
    assert retry_delay(RunOptions(max_attempts=2), 0, error) is not None


class Broken(httpx2.AsyncByteStream):
    """The stream of an answer that ends with an error of the connection."""

    def __init__(self, data: bytes, error: Exception | None) -> None:
        self._data, self._error = data, error

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._data
        if self._error is not None:
            raise self._error


def client_of(data: bytes, error: Exception | None = None) -> httpx2.AsyncClient:
    headers = {"content-type": "text/event-stream"}
    return httpx2.AsyncClient(
        transport=httpx2.MockTransport(lambda _: httpx2.Response(200, headers=headers, stream=Broken(data, error)))
    )


async def ask_openai(client: httpx2.AsyncClient) -> None:
    model = openai.AsyncOpenAI(api_key="k", http_client=client)
    async for _ in await model.chat.completions.create(model="m", messages=[], stream=True):
        pass


async def ask_anthropic(client: httpx2.AsyncClient) -> None:
    model = anthropic.AsyncAnthropic(api_key="k", http_client=client)
    async for _ in await model.messages.create(model="m", messages=[], max_tokens=1, stream=True):
        pass


async def ask_google(client: httpx2.AsyncClient) -> None:
    options = types.HttpOptions(httpx_async_client=client)
    async for _ in await genai.Client(api_key="k", http_options=options).aio.models.generate_content_stream(
        model="m", contents="hi"
    ):
        pass


LOST = (httpx2.ReadError("lost"), httpx2.RemoteProtocolError("cut"), httpx2.ReadTimeout("late"))


@pytest.mark.parametrize("ask", [ask_openai, ask_anthropic, ask_google], ids=lambda each: each.__name__)
@pytest.mark.parametrize("lost", LOST, ids=repr)
async def test_a_stream_that_breaks_is_retried_by_default(ask: Any, lost: Exception) -> None:
    """R11: The SDKs do not replace an error of the HTTP client that comes while they read a stream."""
    with pytest.raises(Exception) as raised:
        await ask(client_of(b"", lost))
    assert is_temporary(raised.value), repr(raised.value)


@pytest.mark.parametrize(
    ("ask", "kind", "again"),
    [
        (ask_openai, "server_error", True),
        (ask_openai, "insufficient_quota", False),
        (ask_openai, "invalid_request_error", False),
        (ask_openai, {"name": "server_error"}, False),
        (ask_anthropic, "overloaded_error", True),
        (ask_anthropic, "invalid_request_error", False),
    ],
)
async def test_an_error_in_a_stream_has_no_status_of_its_own(ask: Any, kind: object, again: bool) -> None:
    """R11: The answer has the status 200, because it had begun."""
    event = {"type": "error", "error": {"type": kind, "message": "no"}}
    with pytest.raises((openai.APIError, anthropic.APIError)) as raised:
        await ask(client_of(f"event: error\ndata: {json.dumps(event)}\n\n".encode()))
    assert is_temporary(raised.value) is again


@pytest.mark.parametrize(
    ("code", "again"),
    [
        ("502", True),
        (502, True),
        (429, True),
        (400, False),
        ("404", False),
        (200, False),
        (True, False),
        (["502"], False),
        ({}, False),
    ],
)
async def test_a_numeric_code_in_a_stream_is_the_status(code: object, again: bool) -> None:
    """R11: Proxies of several providers send the status of the provider as the code."""
    data = {"error": {"code": code, "message": "no"}}
    with pytest.raises(openai.APIError) as raised:
        await ask_openai(client_of(f"data: {json.dumps(data)}\n\n".encode()))
    assert is_temporary(raised.value) is again
    assert passes(None, code) is again


async def test_a_lost_connection_of_the_users_code_is_no_outage_of_a_provider() -> None:
    async def ask() -> None:
        async with client_of(b"", httpx2.ReadError("lost")) as client:
            await client.get("http://elsewhere")

    with pytest.raises(httpx2.ReadError) as raised:
        await ask()
    assert not is_temporary(raised.value)


def test_an_error_may_declare_itself_temporary() -> None:
    error = ConnectionError("my own provider")
    error.temporary = True  # type: ignore[attr-defined]
    assert retry_delay(RunOptions(), 0, error) is not None


def test_the_provider_names_the_pause() -> None:
    limited = anthropic.RateLimitError("no", response=answer(429, **{"retry-after": "7"}), body=None)
    assert asked_pause(limited) == 7.0
    wrapped = ModelHTTPError(429, "m")
    wrapped.__cause__ = limited
    assert asked_pause(wrapped) == 7.0
    assert asked_pause(ValueError("no")) is None
    dated = openai.RateLimitError("no", response=answer(429, **{"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT"}), body=None)
    assert asked_pause(dated) is None
    delay = retry_delay(RunOptions(), 0, limited)
    assert delay is not None and delay >= 7.0


async def agent(ctx: RunContext) -> None: ...


class Served:
    options = AgentOptions(queue="served", timeout=5)

    async def __call__(self, ctx: RunContext) -> None: ...


def test_options_of_agents_have_an_order() -> None:
    """The decorator before the App's map before serve; options of a run before all of them."""
    app = App({"a": agent, "b": Served()}, options={"b": AgentOptions(timeout=9, max_attempts=3)})
    app.agent("c", max_attempts=2)(Served())
    options = {name: (spec.queue, spec.timeout, spec.max_attempts) for name, spec in app.agents.items()}
    assert options == {"a": ("default", None, None), "b": ("served", 9, 3), "c": ("served", 5, 2)}
    everywhere = App({"a": agent, "b": Served()}, options=AgentOptions(queue="all", max_attempts=4))
    assert [(spec.queue, spec.max_attempts) for spec in everywhere.agents.values()] == [("all", 4), ("served", 4)]
    assert effective_options(RunOptions(max_attempts=1), app.agents["b"]).max_attempts == 1
    assert effective_options(RunOptions(), app.agents["b"]).max_attempts == 3


def test_options_are_checked_at_registration() -> None:
    for make in (
        lambda: AgentOptions(max_attempts=0),
        lambda: AgentOptions(timeout=-1),
        lambda: AgentOptions(queue=""),
        lambda: App({"a": agent}, options={"b": AgentOptions()}),
        lambda: App().agent("x", max_attempts=1001)(agent),
    ):
        with pytest.raises(InvalidInputError):
            make()
