"""What the tests of the examples share."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from types import ModuleType

import pytest

from tests.examples.programs import EXAMPLES


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """Imports an example's module, without a provider."""
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "RUNYARD_MODEL"):
        monkeypatch.delenv(name, raising=False)
    loaded: list[str] = []

    def load(path: str) -> ModuleType:
        name = "examples_" + path.removesuffix(".py").replace("/", "_")
        spec = importlib.util.spec_from_file_location(name, EXAMPLES / path)
        assert spec is not None and spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        loaded.append(name)
        spec.loader.exec_module(module)
        return module

    yield load
    for name in loaded:
        del sys.modules[name]
