"""The scripts of ``lua/``, and their calls."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Final, NamedTuple

_INCLUDE: Final = re.compile(r"^-- include (\w+)\.lua$", re.MULTILINE)
_ALLOW_OOM: Final = re.compile(r"^-- allow-oom$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Script:
    """A file of ``lua/``."""

    source: str
    sha: str


class Call(NamedTuple):
    """One execution of ``script`` with its only key and its arguments (strings, bytes or numbers)."""

    script: Script
    key: str
    args: Sequence[Any]


def _source(name: str) -> str:
    return resources.files(__package__).joinpath("lua", f"{name}.lua").read_text("utf-8")


@cache
def script(name: str) -> Script:
    """Load the script ``lua/<name>.lua`` with the files that it includes. If the script has the line ``-- allow-oom``, Redis
    executes it even when its memory is full."""
    source = _INCLUDE.sub(lambda line: _source(line[1]), _source(name))
    if _ALLOW_OOM.search(source):
        source = f"#!lua flags=allow-oom\n{source}"
    return Script(source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())
