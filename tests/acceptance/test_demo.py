"""The demo is its own test: it checks what it shows, and its exit code tells."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from runyard import RunStatus, default_model
from runyard.testing import Harness
from tests.support.providers.conversation import Call, Conversation, Reply
from tests.support.providers.server import Providers

CHAPTERS = ("Three prompts at once", "A fork", "An approval", "A probe", "A crash", "The family", "Figures")
OF_THE_CALLER = ("RUNYARD_", "OPENAI_", "ANTHROPIC_", "GOOGLE_")
DEFAULTS = {"OPENAI": "openai:gpt-5.4-mini", "ANTHROPIC": "anthropic:claude-haiku-5-5"}


def demo(folder: Path, offered: Mapping[str, str]) -> str:
    """What the demo shows in an environment that offers only this."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(OF_THE_CALLER)}
    done = subprocess.run(
        [sys.executable, "-P", "-m", "runyard_api.cli", "demo", "--picture", str(folder / "demo.svg")],
        cwd=folder,
        env={**kept, **offered},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "✗ " not in done.stdout.replace("✗ worker", "")
    assert [chapter for chapter in CHAPTERS if chapter not in done.stdout] == []
    return done.stdout


def test_the_demo_holds(tmp_path: Path) -> None:
    assert "follows a script" in demo(tmp_path, {})
    assert (tmp_path / "demo.svg").read_text(encoding="utf-8").startswith("<svg")


def desk(conversation: Conversation) -> Reply:
    """A model as the demo's desk: books and pays by its tools, and has a word for everything."""
    calls = {
        "Book the sleeper": Call("book", {"train": "sleeper", "euros": 120}),
        "Settle the bill": Call("pay", {"euros": 120}),
    }
    if conversation.prompt in calls and not conversation.results:
        return Reply(calls=(calls[conversation.prompt],))
    return Reply(f"As for “{conversation.prompt}”: gladly.")


def offered(providers: Providers, provider: str) -> dict[str, str]:
    return {name: value for name, value in providers.environment.items() if name.startswith(f"{provider}_")}


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An environment that offers nothing yet."""
    for name in [name for name in os.environ if name.startswith(OF_THE_CALLER)]:
        monkeypatch.delenv(name)
    return monkeypatch


def test_the_demo_holds_on_a_model(providers: Providers, tmp_path: Path) -> None:
    """With a key in the environment, its provider is asked: for each answer, and after the crash once more."""
    providers.scenario = desk
    assert f"is {DEFAULTS['OPENAI']}." in demo(tmp_path, offered(providers, "OPENAI"))
    assert not providers.refused
    assert {received.protocol for received in providers.requests} == {"openai-responses"}
    paid = [
        received
        for received in providers.requests
        if received.conversation and received.conversation.prompt == "Settle the bill"
    ]
    assert len(paid) in (2, 3)


@pytest.mark.parametrize("provider", DEFAULTS)
async def test_the_desk_speaks_to_each_provider(provider: str, providers: Providers, only: pytest.MonkeyPatch) -> None:
    """The key chooses the provider and its default model."""
    from runyard_api.cli.demo.desk import desk as agent

    providers.scenario = desk
    for name, value in offered(providers, provider).items():
        only.setenv(name, value)
    model = default_model()
    assert model == DEFAULTS[provider]
    async with Harness(agent(model, 0.0)) as harness:
        run = await harness.prompt("t1", "Book the sleeper")
        assert run.status is RunStatus.SUSPENDED
        run = await run.respond(True)
        assert run.ok and run.text == "As for “Book the sleeper”: gladly."
    assert not providers.refused


def test_a_model_that_is_named_wins_and_without_a_key_there_is_none(only: pytest.MonkeyPatch) -> None:
    assert default_model() is None
    only.setenv("ANTHROPIC_API_KEY", "a")
    assert default_model() == DEFAULTS["ANTHROPIC"]
    only.setenv("OPENAI_API_KEY", "o")
    assert default_model() == DEFAULTS["OPENAI"]
    only.setenv("RUNYARD_MODEL", "groq:any")
    assert default_model() == "groq:any"
