"""The tables of settings.md, from the classes of settings and their docstrings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, Literal, get_args, get_origin

from pydantic_core import PydanticUndefined
from pydantic_settings import BaseSettings

from runyard_api.cli.variables import OTHER, SETTINGS

_NAMED: Final = re.compile(r"``(\w+)``: ")


def rows(settings: type[BaseSettings]) -> Iterator[tuple[str, str, str, str]]:
    """Yield the variable, the kind of its value, its default and its meaning, in the order of the class."""
    meanings = meanings_of(settings)
    prefix = settings.model_config["env_prefix"].upper()
    for name, field in settings.model_fields.items():
        yield (
            f"`{prefix}{name.upper()}`",
            kind(field.annotation),
            default(field.get_default(call_default_factory=True)),
            meanings[name],
        )


def meanings_of(settings: type[BaseSettings]) -> dict[str, str]:
    """Return setting → its sentences in the docstrings of the class and its bases: ``name``: sentences, to the next name."""
    found: dict[str, str] = {}
    for cls in settings.__mro__:
        text = " ".join((cls.__doc__ or "").split()) if issubclass(cls, BaseSettings) and cls is not BaseSettings else ""
        marks = list(_NAMED.finditer(text))
        ends = [mark.start() for mark in marks[1:]] + [len(text)]
        for mark, end in zip(marks, ends[-len(marks) :], strict=False):
            meaning = text[mark.end() : end].strip().removesuffix(".")
            found.setdefault(mark[1], shown(meaning, settings))
    return found


def shown(meaning: str, settings: type[BaseSettings]) -> str:
    """Return a meaning in Markdown. Names of settings become those of their variables."""
    prefix = settings.model_config["env_prefix"].upper()
    return re.sub(
        r"``(.+?)``",
        lambda found: f"`{prefix}{found[1].upper()}`" if found[1] in settings.model_fields else f"`{found[1]}`",
        re.sub(r":\w+:`~?([\w.]+)`", r"`\1`", meaning),
    ).replace("|", "\\|")


def kind(annotation: Any) -> str:
    """Return the kind of a setting's value in words."""
    arguments = [each for each in get_args(annotation) if each is not type(None)]
    if get_origin(annotation) is Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if get_origin(annotation) is list or annotation is list:
        return "list"
    if arguments:
        return kind(arguments[0])
    return {bool: "`true`, `false`", int: "integer", float: "number"}.get(annotation, "text")


def default(value: Any) -> str:
    if value is None or value == [] or value is PydanticUndefined:
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{value:g}`" if isinstance(value, float) and value < 10**6 else f"`{value}`" if value != "" else ""


def other_rows() -> Iterator[tuple[str, str, str]]:
    for name, (readers, meaning) in OTHER.items():
        yield f"`{name}`", readers, meaning


TABLES: Final = dict(zip(("processes", "the API"), SETTINGS, strict=True))
"""Marker in settings.md → the class of its table."""
