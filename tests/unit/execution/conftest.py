"""The run that the tests of this folder execute attempt by attempt."""

from collections.abc import Callable

import pytest

from runyard.events.writer import EventWriter
from runyard_backends.memory import connect
from tests.support.attempt_lab import Lab


@pytest.fixture
async def lab(monkeypatch: pytest.MonkeyPatch) -> Lab:
    backend = await connect()
    lab = Lab(backend, EventWriter(backend.events))
    for verb in ("append", "complete", "suspend", "fail", "release", "start_step"):
        original = getattr(backend.runs, verb)

        def noted(*args: object, verb: str = verb, original: Callable[..., object] = original, **kwargs: object) -> object:
            lab.commits.append(verb)
            return original(*args, **kwargs)

        monkeypatch.setattr(backend.runs, verb, noted)
    await lab.accept()
    return lab
