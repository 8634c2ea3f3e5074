"""Parts that a backend does not have. Each call of such a part raises CapabilityMissingError (R14)."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, NoReturn

from runyard.errors import CapabilityMissingError


class Refusal:
    """The result of a call of a missing part. It raises ``error`` when the caller awaits it, iterates over it, or enters it
    with ``async with``."""

    def __init__(self, error: CapabilityMissingError) -> None:
        self._error = error

    def __await__(self) -> Generator[Any, None, NoReturn]:
        raise self._error
        yield

    def __aiter__(self) -> NoReturn:
        raise self._error

    async def __aenter__(self) -> NoReturn:
        raise self._error

    async def __aexit__(self, *_: object) -> None:
        """Do nothing, because nothing was entered."""


class Refusing:
    """The base class of a store that implements only some methods of its port. ``part``: the name of the backend's attribute
    that has the store, such as ``workers``. ``refuse``: a function that returns the error for a method that the store does not
    define, such as ``workers.drain``."""

    def __init__(self, part: str, refuse: Callable[[str], CapabilityMissingError]) -> None:
        self._part, self._refuse = part, refuse

    def __getattr__(self, name: str) -> Callable[..., Refusal]:
        if name.startswith("_"):
            raise AttributeError(name)
        error = self._refuse(f"{self._part}.{name}")
        return lambda *_, **__: Refusal(error)
