"""The error about an unknown command: it names the command that was meant, and never a dangerous one by a guess."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from runyard_api.cli.exit_codes import Exit
from runyard_api.cli.main import app, main
from runyard_api.cli.meant_commands import STOPPING, SYNONYMS, meant_by

ROOT: Any = typer.main.get_command(app)
HARMLESS = (
    "select",
    "remote",
    "invoke",
    "evoke",
    "about",
    "clean",
    "resolve",
    "dry",
    "train",
    "cancelled",
    "complete",
    "cause",
)
"""Words of no command that are similar to the names of commands that delete or stop something."""


def commands(group: Any = ROOT, path: str = "") -> Iterator[str]:
    for name, command in group.commands.items():
        yield f"{path}{name}"
        yield from commands(command, f"{path}{name} ") if hasattr(command, "commands") else ()


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run a command that does not exist. Return its line on standard error."""
    assert main(list(arguments)) == Exit.USAGE
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("runyard: ") and err.count("\n") == 1
    return err


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        ("explain RUN", "`runyard runs explain`"),
        ("runs timeline RUN", "`runyard runs show`"),
        ("timeline RUN", "`runyard runs show`"),
        ("drain w", "`runyard workers drain`"),
        ("list", "`runyard threads list`"),
        ("delete t", "`runyard threads delete` or `runyard runs delete`"),
        ("threads fork t", "`runyard fork`"),
        ("promt t hi", "`runyard prompt`"),
        ("runs explian RUN", "`runyard runs explain`"),
        ("--tenant delete explain RUN", "`runyard runs explain`"),
        ("-- explain RUN", "`runyard runs explain`"),
    ],
)
def test_the_error_names_the_command_that_was_meant(capsys: pytest.CaptureFixture[str], arguments: str, meant: str) -> None:
    err = refused(capsys, *arguments.split())
    assert err.startswith("runyard: No such command ") and f"; did you mean {meant}; see `runyard" in err


@pytest.mark.parametrize("arguments", ["keys show k", "keys delete k", "workers status w", "queues start q", "webhooks export"])
def test_commands_that_concern_other_objects_are_not_meant(capsys: pytest.CaptureFixture[str], arguments: str) -> None:
    """A user who names a key does not mean a thread."""
    group, name, *_ = arguments.split()
    assert f"No such command '{name}'; see `runyard {group} --help`" in refused(capsys, *arguments.split())


def test_a_similar_word_does_not_mean_a_command_that_deletes_or_stops() -> None:
    groups = [ROOT, *(command for command in ROOT.commands.values() if hasattr(command, "commands"))]
    names = {path.split()[-1] for path in commands()}
    words = {*HARMLESS, *(f"{name[:-1]}x" for name in STOPPING), *(f"x{name}" for name in STOPPING)} - names
    found = {path for group in groups for word in words for path in meant_by(word, ROOT, group)}
    assert not {path for path in found if path.split()[-1] in STOPPING}


def test_synonyms_and_stopping_commands_exist() -> None:
    assert set(SYNONYMS.values()) <= set(commands())
    assert {path.split()[-1] for path in commands()} >= STOPPING
    assert not {path for path in SYNONYMS.values() if path.split()[-1] in STOPPING}


@pytest.mark.parametrize(
    "name", ["", " ", "x\x1b]0;owned\x07\nFORGED", "\u202e[red]x[/]", "d" * 100_000, "\udcff", "x Did you mean"]
)
def test_a_hostile_name_is_shown_short_and_does_nothing(capsys: pytest.CaptureFixture[str], name: str) -> None:
    for arguments in ([name], ["threads", name], ["--", name], [name, "--help"]):
        err = refused(capsys, *arguments)
        assert len(err) < 400 and "did you mean" not in err
        assert not any(ord(character) < 32 or ord(character) in (127, 0x202E) for character in err.rstrip("\n"))


@pytest.mark.parametrize(
    "arguments", [["--nothing", "delete"], ["--", "--nothing"], ["-x"], ["threads", "--nothing", "delete"]]
)
def test_an_unknown_option_means_no_command(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    err = refused(capsys, *arguments)
    assert "No such option" in err and "did you mean" not in err.lower()


def test_bytes_that_are_no_text_are_refused() -> None:
    command = [sys.executable, "-P", "-m", "runyard_api.cli", b"\xff\x1b[2J"]
    done = subprocess.run(command, capture_output=True, env={**os.environ, "LC_ALL": "C"}, check=False, timeout=60)
    assert done.returncode == Exit.USAGE and done.stdout == b""
    assert done.stderr.startswith(b"runyard: No such command ") and b"\x1b" not in done.stderr and b"\xff" not in done.stderr
