"""What a mutant is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Edit:
    """In ``file``, ``old`` (found exactly once) becomes ``new``."""

    file: str
    old: str
    new: str

    def apply(self, root: Path) -> None:
        """Make the change below ``root``. ValueError if the text is not there exactly once."""
        path = root / self.file
        text = path.read_text("utf-8")
        if text.count(self.old) != 1:
            raise ValueError(f"{self.file} has {text.count(self.old)} times what a mutant replaces: {self.old!r}")
        path.write_text(text.replace(self.old, self.new), "utf-8")


@dataclass(frozen=True, slots=True)
class Mutant:
    """One guard removed. ``tests``: arguments for pytest."""

    name: str
    tests: tuple[str, ...]
    edits: tuple[Edit, ...]


def mutant(name: str, file: str, old: str, new: str, *tests: str) -> Mutant:
    """In ``file``, ``old`` becomes ``new``."""
    return Mutant(name, tests, (Edit(file, old, new),))
