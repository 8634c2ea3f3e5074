"""A project with modules named `api`, `backends` and `runner` uses an installed runyard: the wheel, and an editable install."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import sysconfig
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from runyard_api.cli.dev.servers import forget
from tests.support.long_form import LONG

ROOT = Path(__file__).parents[2]
TIMEOUT_SECONDS = 600.0
UNUSED = "agents.*,anthropic.*,django.*,fastmcp.*,langgraph.*,mcp.*,openai.*,pydantic_ai.*,sqlalchemy.*"
SKIPPED = "" if LONG else f"[mypy-{UNUSED}]\nfollow_imports = skip\n"
"""What mypy does not read in the short form: packages of agents and of hosts, which the project does not use."""
PROJECT = {
    "api/__init__.py": 'CURRENCY = "€"\n',
    "backends/__init__.py": "",
    "backends/prices.py": """
def price_of(article: str) -> int:
    return {"tea": 4, "coffee": 5}[article]
""",
    "runner.py": 'GREETING = "Welcome"\n',
    "app.py": '''
"""A desk that says what an article costs."""

import asyncio
import os

from api import CURRENCY
from backends.prices import price_of
from runner import GREETING
from runyard import App, Client, Message, RunContext, RunStatus, step
from runyard.testing import Harness

app = App(version="1")


@step
async def look_up(article: str) -> int:
    return price_of(article)


@app.agent
async def desk(ctx: RunContext) -> None:
    article = ctx.input.text if ctx.input else "nothing"
    price = await look_up(article)
    await ctx.append(Message.assistant(f"{GREETING}! One {article} is {price} {CURRENCY}."))


async def answer_of(client: Client, article: str) -> str | None:
    handle = await client.enqueue("counter", article)
    events = [event.type async for event in handle.stream()]
    result = await handle.result()
    return result.text if result.run.status is RunStatus.COMPLETED and "run.completed" in events else None


async def rehearse(article: str) -> str | None:
    async with Harness(app) as harness:
        return (await harness.prompt("counter", article)).text


async def main() -> None:
    async with Client.connect(os.environ["RUNYARD_POSTGRES_URL"], redis=os.environ["RUNYARD_REDIS_URL"]) as client:
        print(await answer_of(client, "tea"))


if __name__ == "__main__":
    asyncio.run(main())
''',
    "test_app.py": """
from app import rehearse


async def test_desk_knows_the_price() -> None:
    assert await rehearse("tea") == "Welcome! One tea is 4 €."
""",
    "pytest.ini": "[pytest]\naddopts = -p pytest_asyncio.plugin -p no:cacheprovider\nasyncio_mode = auto\n",
    "mypy.ini": "[mypy]\nstrict = true\n" + SKIPPED,
    "pyrightconfig.json": '{"typeCheckingMode": "strict"}\n',
}
ANSWER = "Welcome! One tea is 4 €."
MYPY_CACHE = ROOT / ".mypy_cache" / "consumer"
"""Has what mypy knows of the packages that runyard needs, which takes most of the time. `make clean` removes it."""
BUILD_EDITABLE = "import sys; from hatchling.build import build_editable; build_editable(sys.argv[1])"

pytestmark = [pytest.mark.timeout(2 * TIMEOUT_SECONDS), pytest.mark.xdist_group("consumer")]


@dataclass(frozen=True)
class Consumer:
    """The ``project`` folder of a user and the ``environment`` folder in which runyard is installed as ``kind``."""

    kind: str
    project: Path
    environment: Path

    @property
    def python(self) -> str:
        return str(self.environment / "bin" / "python")

    @property
    def runyard(self) -> str:
        return str(self.environment / "bin" / "runyard")

    def variables(self, **more: str) -> dict[str, str]:
        """The environment of the user's commands: neither this repository nor a deployment of the caller is in it."""
        mine = ("RUNYARD_", "PYTHON", "PYTEST_", "MYPY")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(mine)}
        return {**inherited, "PYTHONUNBUFFERED": "1", **more}

    def run(self, *command: str, **variables: str) -> str:
        """Run a command in the project. Returns what it printed; fails unless it exits with 0."""
        done = subprocess.run(
            command,
            cwd=self.project,
            env=self.variables(**variables),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{' '.join(command)} exited with {done.returncode}:\n{done.stdout}"
        return done.stdout

    @asynccontextmanager
    async def running(self, *command: str, until: str = "", **variables: str) -> AsyncIterator[str]:
        """Run a command while the block lasts, which begins when it has printed ``until``. Interrupts it at the end.

        Gives what the command printed so far.
        """
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=self.project,
            env=self.variables(**variables),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        assert process.stdout is not None
        printed = ""
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                while until not in printed:
                    line = (await process.stdout.readline()).decode()
                    printed += line
                    assert line, f"{' '.join(command)} ended before it printed {until!r}:\n{printed}"
            yield printed
        finally:
            if process.returncode is None:
                process.send_signal(signal.SIGINT)
                async with asyncio.timeout(TIMEOUT_SECONDS):
                    await process.communicate()


def make_environment(folder: Path, distribution: Path) -> None:
    """Make an environment with ``distribution`` (a wheel) installed.

    The packages that runyard needs are those of the environment that runs the tests. A line of a `.pth` file appends their
    folder to the path without processing the `.pth` files in it, so the runyard that is under test there is not found.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    pip = [sys.executable, "-m", "pip", "--python", folder / "bin" / "python"]
    subprocess.run([*pip, "install", "--quiet", "--no-deps", "--no-index", distribution], check=True)
    [site] = (folder / "lib").glob("python3*/site-packages")
    (site / "packages_of_the_tests.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")


@pytest.fixture(scope="module", params=["wheel", "editable"])
def consumer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Consumer]:
    folder = tmp_path_factory.mktemp(request.param)
    dist = folder / "dist"
    dist.mkdir()
    build = {"wheel": ["-m", "hatchling", "build", "-t", "wheel", "-d"], "editable": ["-c", BUILD_EDITABLE]}[request.param]
    subprocess.run([sys.executable, *build, dist], cwd=ROOT, check=True, capture_output=True)
    make_environment(folder / "environment", next(dist.glob("runyard-*.whl")))
    for name, text in PROJECT.items():
        file = folder / "project" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text.lstrip("\n"), encoding="utf-8")
    yield Consumer(request.param, folder / "project", folder / "environment")
    with suppress(OSError):
        forget(folder / "project" / ".runyard")


def test_installed_packages_are_imported_from_where_they_were_installed(consumer: Consumer) -> None:
    code = (
        "import runyard, runyard_backends, runyard_api, api; print(runyard.__file__, runyard_backends.__file__, api.__file__)"
    )
    *installed, own = consumer.run(consumer.python, "-c", code).split()
    place = consumer.environment if consumer.kind == "wheel" else ROOT
    assert all(Path(file).is_relative_to(place) for file in installed), installed
    assert Path(own).is_relative_to(consumer.project)


def test_tests_of_the_project_pass(consumer: Consumer) -> None:
    printed = consumer.run(consumer.python, "-m", "pytest", "-q", PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    assert "1 passed" in printed


async def test_dev_answers_a_prompt(consumer: Consumer, postgres_url: str, redis_url: str) -> None:
    """With the wheel `dev` starts servers of its own; an editable install uses those of the test, which is faster."""
    servers = {} if consumer.kind == "wheel" else {"RUNYARD_POSTGRES_URL": postgres_url, "RUNYARD_REDIS_URL": redis_url}
    dev = [consumer.runyard, "dev", "app:app", "--port", "0"]
    async with consumer.running(*dev, until="http://127.0.0.1:", **servers) as printed:
        [port] = re.findall(r"http://127\.0\.0\.1:(\d+)", printed)
        assert int(port) > 0
        prompt = [consumer.runyard, "prompt", "counter", "tea", "--wait"]
        assert (await asyncio.to_thread(consumer.run, *prompt, **servers)).strip() == ANSWER


async def test_worker_serves_a_run_of_the_programs_own_client(consumer: Consumer, postgres_url: str, redis_url: str) -> None:
    servers = {"RUNYARD_POSTGRES_URL": postgres_url, "RUNYARD_REDIS_URL": redis_url}
    async with consumer.running(consumer.runyard, "worker", "app:app", **servers):
        assert (await asyncio.to_thread(consumer.run, consumer.python, "app.py", **servers)).strip() == ANSWER


def test_mypy_strict_finds_nothing(consumer: Consumer) -> None:
    options = ["--python-executable", consumer.python, "--cache-dir", str(MYPY_CACHE)]
    assert "no issues found" in consumer.run(sys.executable, "-m", "mypy", *options, ".")


def test_pyright_strict_finds_nothing(consumer: Consumer) -> None:
    printed = consumer.run(sys.executable, "-m", "basedpyright", "--pythonpath", consumer.python)
    assert "0 errors, 0 warnings, 0 notes" in printed
