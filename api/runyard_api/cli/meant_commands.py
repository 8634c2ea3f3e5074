"""The commands that a user may have meant by a name that is no command."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Final

import typer
from typer.core import TyperGroup

from runyard.domain.quoting import brief

UsageError: Final[type[Exception]] = next(cls for cls in typer.BadParameter.__mro__ if cls.__name__ == "ClickException")
"""The base class of typer's usage errors. Some versions of typer contain a copy of click, and others depend on click."""

SYNONYMS: Final = {
    "timeline": "runs show",
    "trace": "runs show",
    "status": "runs show",
    "logs": "runs watch",
    "retry": "runs redrive",
    "list": "threads list",
    "show": "threads show",
    "messages": "threads messages",
    "tree": "threads tree",
    "export": "threads export",
    "ask": "prompt",
    "send": "prompt",
    "run": "prompt",
    "answer": "respond",
    "approve": "respond",
    "inbox": "requests",
    "start": "dev",
    "serve": "api",
    "server": "api",
    "check": "doctor",
}
"""Name of no command → command, without ``runyard``."""

STOPPING: Final = frozenset({"abort", "cancel", "clear", "delete", "drain", "pause", "remove", "revoke", "rotate"})
"""The names of commands that delete or stop something. Only the same name may mean such a command, not a similar one."""
MAX_SIMILAR_CHARACTERS: Final = 40
"""Maximum length of a name that is compared with the names of commands."""


SIMILARITY: Final = 0.75
"""Minimum similarity of a name and the name of a command: 0 to 1, as in difflib."""


class Commands(TyperGroup):
    """A group of commands. Its error about an unknown command names the command that the user may have meant."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0]
        try:
            return super().resolve_command(ctx, args)
        except UsageError as error:
            if not name.startswith("-"):
                root = ctx.find_root()
                meant = " or ".join(f"`{root.command_path} {path}`" for path in meant_by(name, root.command, self))
                suggestion = f"; did you mean {meant}?" if meant else ""
                error.message = f"No such command {brief(name)}{suggestion}"  # type: ignore[attr-defined]
            raise


def meant_by(name: str, root: Any, group: Any) -> list[str]:
    """Return the commands that a user may have meant by ``name``, without ``runyard``. ``root``: the group of all commands.
    ``group``: the group that has no command of this name.

    A synonym comes first, then commands with this name, then commands of ``group`` with a similar name. In a group other than
    ``root``, commands of other groups are not meant, because they concern other objects.
    """
    of_group = "" if group is root else next(f"{key} " for key, command in root.commands.items() if command is group)
    if (path := SYNONYMS.get(name, "")) and path.startswith(of_group):
        return [path]
    if same := [path for path in _paths(root.commands) if path == name or (not of_group and path.endswith(f" {name}"))]:
        return same
    if len(name) > MAX_SIMILAR_CHARACTERS:
        return []
    return [f"{of_group}{similar}" for similar in get_close_matches(name, group.commands.keys() - STOPPING, cutoff=SIMILARITY)]


def _paths(commands: Mapping[str, Any]) -> Iterator[str]:
    for name, command in commands.items():
        yield name
        yield from (f"{name} {path}" for path in _paths(getattr(command, "commands", {})))
