"""The compatible APIs, by the names that ``runyard api --compat`` accepts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from runyard.domain.quoting import brief
from runyard.errors import InvalidInputError

from .acontext import ACONTEXT
from .events import EVENTS
from .layer import Compat
from .openhands import OPENHANDS

COMPATS: Final[Mapping[str, Compat]] = {"acontext": ACONTEXT, "events": EVENTS, "openhands": OPENHANDS}


def named(names: Iterable[str]) -> list[Compat]:
    """Return the compatible APIs that ``names`` lists, each once. Raises InvalidInputError for an unknown name."""
    found = {}
    for name in names:
        if name not in COMPATS:
            known = ", ".join(COMPATS)
            raise InvalidInputError(f"there is no compatible API {brief(name)}; choose from: {known}", field="compat")
        found[name] = COMPATS[name]
    return list(found.values())
