"""Unknown environment variables are named at the start of a command, without their values."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from runyard_api.cli import variables
from runyard_api.cli.main import main

VALUE = "7f3a91"
"""A text that is in no output."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith("RUNYARD_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("RUNYARD_POSTGRESS", "RUNYARD_POSTGRES_URL"),
        ("RUNYARD_REDIS", "RUNYARD_REDIS_URL"),
        ("RUNYARD_QUEUE", "RUNYARD_QUEUES"),
        ("runyard_slot", "RUNYARD_SLOTS"),
        ("RUNYARD_API_PROT", "RUNYARD_API_PORT"),
        ("RUNYARD_NAMESPACES", "RUNYARD_NAMESPACE"),
        ("RUNYARD_ZZZ", None),
    ],
)
def test_an_unknown_variable_is_named_with_the_nearest_one(
    name: str, meant: str | None, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    sentence = f"the variable {name} is unknown and has no effect" + (f"; did you mean {meant}?" if meant else "")
    monkeypatch.setenv(name, VALUE)
    assert list(variables.unknown()) == [sentence]
    monkeypatch.delenv(name)
    (folder / ".env").write_text(f"OTHER=x\n{name}={VALUE}\nRUNYARD_SLOTS=5\n")
    assert list(variables.unknown()) == [sentence]
    monkeypatch.setenv(name, VALUE)
    assert list(variables.unknown()) == [sentence]


def test_a_known_variable_is_not_named(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """The variables of settings, of other readers, of runyard's tests, and of the services of Kubernetes are known."""
    for settings in variables.SETTINGS:
        for name in settings.model_fields:
            monkeypatch.setenv(settings.variable(name), VALUE)
            monkeypatch.setenv(settings.variable(name).lower(), VALUE)
    for name in variables.OTHER:
        monkeypatch.setenv(name, VALUE)
    (folder / ".env").write_text("".join(f"{name}={VALUE}\n" for name in os.environ if name.startswith("RUNYARD_")))
    of_service = ("SERVICE_HOST", "SERVICE_PORT", "PORT", "PORT_80_TCP_ADDR")
    for name in ("TEST_RUNS", "GROWTH_PARKED", "BENCH_BOARD", *(f"PG_{part}" for part in of_service)):
        monkeypatch.setenv(f"RUNYARD_{name}", VALUE)
    monkeypatch.setenv("_RUNYARD_COMPLETE", VALUE)
    assert list(variables.unknown()) == []
    monkeypatch.setenv("RUNYARD_PGS", VALUE)
    assert len(list(variables.unknown())) == 1


@pytest.mark.parametrize("name", ["RUNYARD_APP", "RUNYARD_API_KEY", "RUNYARD_NAMESPACE", "RUNYARD_MODEL"])
def test_the_case_of_a_variable_without_a_setting_matters(name: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Only the names of settings are not case-sensitive."""
    sentence = f"the variable {name.lower()} is unknown and has no effect; did you mean {name}?"
    monkeypatch.setenv(name.lower(), VALUE)
    assert list(variables.unknown()) == [sentence]
    monkeypatch.delenv(name.lower())
    (folder / ".env").write_text(f"{name.lower()}={VALUE}\n")
    assert list(variables.unknown()) == [sentence]


@pytest.mark.parametrize("name", sorted(variables.OTHER.keys() - {"OTEL_…"}))
def test_a_variable_that_is_not_read_from_the_file_is_named(name: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """It has its effect if the environment sets it, too: some programs copy the file into the environment."""
    (folder / ".env").write_text(f"{name}={VALUE}\n")
    told = (
        [] if name in variables.IN_FILE else [f"runyard does not read the variable {name} from .env; set it in the environment"]
    )
    assert list(variables.unknown()) == told
    monkeypatch.setenv(name, VALUE)
    assert list(variables.unknown()) == []


def test_an_unreadable_file_names_no_variable(folder: Path) -> None:
    """The command itself reports the file, if it needs the file."""
    (folder / ".env").write_bytes(b"RUNYARD_QUEUE=\xff\n")
    assert list(variables.unknown()) == []


def test_a_command_says_it_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("RUNYARD_QUEUE", VALUE)
    for command in ("worker", "api", "dev", "migrate", "doctor"):
        main([command, "--help"])
        out, err = capsys.readouterr()
        assert err == "runyard: the variable RUNYARD_QUEUE is unknown and has no effect; did you mean RUNYARD_QUEUES?\n"
        assert VALUE not in out


@pytest.mark.parametrize("owned", [False, True])
def test_a_process_of_dev_leaves_it_to_dev(owned: bool) -> None:
    command = [sys.executable, "-P", "-m", "runyard_api.cli", "worker", "no.module:app", *(["--owned"] if owned else [])]
    servers = {"RUNYARD_POSTGRES_URL": "postgresql://h", "RUNYARD_REDIS_URL": "redis://h"}
    pipe = subprocess.PIPE
    environment = {**os.environ, **servers, "RUNYARD_QUEUE": VALUE}
    with subprocess.Popen(command, env=environment, stdin=pipe, stderr=pipe, text=True) as process:
        assert process.stderr is not None
        said = process.stderr.read()
    assert ("RUNYARD_QUEUE " in said) is not owned
    assert "no.module" in said and VALUE not in said


@pytest.mark.parametrize(
    "text",
    [
        f"RUNYARD_POSTGRES_URL:postgresql://u:{VALUE}@h/db\n",
        f"RUNYARD_X{VALUE}\n",
        f"RUNYARD_API_KEY='abc\nRUNYARD_{VALUE}=\n",
        f"RUNYARD_A {VALUE}=x\n",
    ],
)
def test_a_name_that_may_contain_a_value_is_not_named(text: str, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A2: a line without `=`, and a line of a value whose quote is not closed."""
    (folder / ".env").write_text(text)
    assert list(variables.unknown()) == []
    assert VALUE not in "".join(capfd.readouterr())


def test_a_service_of_kubernetes_hides_no_other_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SERVICE_HOST", "PORT", "SERVICE_PORT_HTTP", "PORT_80_TCP_ADDR", "QUEUE"):
        monkeypatch.setenv(f"RUNYARD_{name}", VALUE)
    assert [sentence.split()[2] for sentence in variables.unknown()] == ["RUNYARD_QUEUE"]


@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full", "2>&{pipe}"])
def test_an_unreadable_standard_error_changes_nothing(redirection: str, folder: Path) -> None:
    """The command still does its work, and its standard output has only its answer."""
    reader, writer = os.pipe()
    os.close(reader)
    command = f"exec {sys.executable} -P -m runyard_api.cli init project {redirection.format(pipe=writer)}"
    environment = {**os.environ, "RUNYARD_QUEUE": VALUE}
    try:
        done = subprocess.run(
            ["bash", "-c", command], env=environment, stdout=subprocess.PIPE, text=True, check=True, pass_fds=(writer,)
        )
    finally:
        os.close(writer)
    assert (folder / "project" / "app.py").exists() and "is unknown" not in done.stdout
