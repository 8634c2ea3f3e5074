"""Optional dependencies: what needs one is imported here, so that a missing one is named together with its extra."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Final

from .errors import ExtraMissingError

EXTRAS: Final = {"pydantic_ai": "agents", "fastapi": "http", "uvicorn": "http", "httpx": "client"}
"""Top-level modules that only an extra of the distribution installs."""


@contextmanager
def needed_by(name: str) -> Iterator[None]:
    """Around imports that the module ``name`` needs. Raises ExtraMissingError if one belongs to an extra that is not
    installed."""
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
    """Import the module ``name``. Raises ExtraMissingError if it needs an extra that is not installed."""
    with needed_by(name):
        return import_module(name)
