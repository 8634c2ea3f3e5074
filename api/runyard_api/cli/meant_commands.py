"""The commands that a user may have meant by a name that is no command."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import typer
from typer.core import TyperGroup

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


class Commands(TyperGroup):
    """A group of commands whose error about an unknown command names the command that was meant."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except UsageError as error:
            if args and (meant := meant_by(args[0], ctx.find_root().command)) is not None:
                known = getattr(error, "message", "").partition(" Did you mean")[0].rstrip(".")
                error.message = f"{known}; did you mean `{ctx.find_root().command_path} {meant}`?"  # type: ignore[attr-defined]
            raise


def meant_by(name: str, root: Any) -> str | None:
    """Return the command that a user may have meant by ``name``, without ``runyard``, or None. SYNONYMS comes before the
    commands of groups that have this name. ``root``: the group of all commands."""
    if name in SYNONYMS:
        return SYNONYMS[name]
    return next((path for path in _paths(root.commands) if path.split(" ")[-1] == name), None)


def _paths(commands: Mapping[str, Any]) -> Iterator[str]:
    for name, command in commands.items():
        yield name
        yield from (f"{name} {path}" for path in _paths(getattr(command, "commands", {})))
