"""Imports of optional dependencies. The error for a missing package names the package and the pip extra that installs it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Final

from ..errors import ExtraMissingError

EXTRAS: Final = {
    "pydantic_ai": "agents",
    "cubeloop": "cubeloop",
    "agents": "openai-agents",
    "fastapi": "http",
    "uvicorn": "http",
    "httpx": "client",
    "fakeredis": "testing",
    "lupa": "testing",
    "aiosqlite": "sqlite",
    "asyncmy": "mysql",
}
"""Top-level module → the extra of the distribution that installs it."""


@contextmanager
def needed_by(name: str) -> Iterator[None]:
    """Wrap the imports of the module ``name``. Raise ExtraMissingError if an import needs an extra that is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in EXTRAS:
            raise
        extra = EXTRAS[missing]
        raise ExtraMissingError(
            f"{name} needs {missing.replace('_', '-')}; run: pip install 'runyard[{extra}]'", module=missing, extra=extra
        ) from error


def load(name: str) -> ModuleType:
    """Import the module ``name``. Raise ExtraMissingError if it needs an extra that is not installed."""
    with needed_by(name):
        return import_module(name)
