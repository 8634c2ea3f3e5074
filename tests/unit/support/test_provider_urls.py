"""What becomes of files by URL with each protocol: they are passed on, or refused, and never fetched (M5)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic_ai import Agent, ToolReturn
from pydantic_ai.messages import AudioUrl, DocumentUrl, FileUrl, ImageUrl, VideoUrl

from runyard.agents.engine import serve
from runyard.models import ImagePart, Message, TextPart
from runyard.support import fetch_hosts
from tests.support.lure import Private, private
from tests.support.model_lab import Lab
from tests.support.providers.conversation import MODELS, Call, Conversation, Reply
from tests.support.providers.server import Providers

REFUSED = "fetch_not_allowed"
KINDS: dict[type[FileUrl], str] = {
    ImageUrl: "image/png",
    AudioUrl: "audio/wav",
    DocumentUrl: "application/pdf",
    VideoUrl: "video/mp4",
}


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> Iterator[Private]:
    monkeypatch.delenv("RUNYARD_FETCH_HOSTS", raising=False)
    fetch_hosts.from_environment.cache_clear()
    with private() as server:
        yield server


async def outcome(lab: Lab, agent: Agent[Any, Any], run_id: str = "r") -> str:
    """``completed``, or the code of the error."""
    ended = await lab.attempt(serve(agent), run_id)
    assert ended is not None
    return ended.error.code if ended.error is not None else ended.status


def passed(providers: Providers, url: str) -> int:
    """In how many requests the provider was sent the URL."""
    return sum(json.dumps(received.body).count(url) > 0 for received in providers.requests)


@pytest.mark.parametrize("protocol", MODELS)
async def test_m5_a_picture_of_a_caller_is_passed_on_or_refused(protocol: str, providers: Providers, target: Private) -> None:
    """Gemini takes no URL but its own; the run fails before anything is asked, and the next one goes on without the picture."""
    lab, agent = await Lab.open(), Agent(MODELS[protocol])
    picture = Message.user([TextPart(text="see"), ImagePart(url=target.url)])
    await lab.accept("r", picture)
    lab.started.add("r")
    found = await outcome(lab, agent)
    assert target.reached == []
    if protocol == "gemini":
        assert (found, passed(providers, target.url), len(providers.requests)) == (REFUSED, 0, 0)
    else:
        assert (found, passed(providers, target.url)) == ("completed", 1)
    assert await outcome(lab, agent, "after") == "completed"
    assert providers.refused == []


@pytest.mark.parametrize("protocol", MODELS)
async def test_m5_files_of_an_agents_own_code_are_not_fetched_either(
    protocol: str, providers: Providers, target: Private
) -> None:
    """Each kind, however a tool gives it, whatever it says of downloads; and in the attempt that takes over from a crash."""
    gives: list[Any] = []
    agent = Agent(MODELS[protocol])

    @agent.tool_plain
    def look() -> Any:
        return gives[-1]

    def model(conversation: Conversation) -> Reply:
        return Reply("done") if any(turn.results for turn in conversation.turns) else Reply(calls=(Call("look"),))

    providers.scenario = model
    found: dict[tuple[str, Any, str], str] = {}
    for kind, media in KINDS.items():
        for force in (False, True, "allow-local"):
            file: Any = kind(target.url, media_type=media, force_download=force)  # type: ignore[abstract]
            for how, given in {"result": [file], "beside it": ToolReturn("see", content=["look", file])}.items():
                gives.append(given)
                lab = await Lab.open()
                if force is True:
                    await lab.crash(serve(agent), appends=2)
                found[kind.kind, force, how] = await outcome(lab, agent)
    assert target.reached == []
    assert all(code == REFUSED for (_, force, _), code in found.items() if force)
    expected = {"openai-chat": "completed", "openai-responses": "completed", "anthropic": "completed", "gemini": REFUSED}
    assert {code for (kind, force, _), code in found.items() if kind == "image-url" and not force} == {expected[protocol]}
