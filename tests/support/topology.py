"""The services of docker-compose.yml as processes on this machine, without a container engine (Linux only).

Docker Compose itself reads the file: it checks it against the schema of the compose specification, fills in the variables and
resolves profiles. Each container becomes a process with the command, the environment, the files and the health check of its
service. It starts when the conditions of ``depends_on`` hold. A container has an address of its own in 127.0.0.0/8, which Linux
accepts without set-up. In commands, variables and files, these addresses replace the names of services, and the names of a
container's own addresses (``localhost``, ``0.0.0.0``). Ports stay as they are.

Not there are the limits of a container (read-only file system, networks), restarts and DNS. The image of a service gives its
program: the project's image the installed command line, Valkey and Postgres the servers from wheels, Prometheus the program on
the PATH.

::

    async with Topology(["api", "worker", "prometheus"], ["monitoring"]) as deployment:
        await deployment.ready("api", "worker")
        key = await deployment.run("api", "keys", "create", "test")
        url = f"http://{deployment.address('prometheus')}:9090"
        deployment.containers["worker"][0].kill()
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import asyncpg
import yaml

from runyard_backends.embedded import EmbeddedPostgres
from runyard_backends.embedded.binaries import find_postgres, find_redis

ROOT: Final = Path(__file__).parents[2]
COMPOSE: Final = ROOT / "docker-compose.yml"
BIN: Final = Path(sys.executable).parent
START_SECONDS: Final = 60.0
"""Seconds for which a container may take to become healthy or to end."""
WORK: Final = "/app"
"""The working directory of the project's image. A container's place stands for it."""
ITSELF: Final = ("localhost", "127.0.0.1", "0.0.0.0")
"""Names that a container has for its own addresses."""
PRCTL: Final = ctypes.CDLL(None).prctl
PR_SET_PDEATHSIG: Final = 1
HOST: Final = "host.docker.internal"
"""The name that a container has for the machine."""
SECRETS: Final = ("POSTGRES_PASSWORD", "VALKEY_PASSWORD", "GRAFANA_PASSWORD", "RUNYARD_API_TOKEN_SECRET")
"""The variables that docker-compose.yml demands."""
VALKEY_CLI: Final = """#!{python}
import os, sys, redis
_, host, command = sys.argv[1:]
assert command == "ping"
print("PONG" if redis.Redis(host=host, password=os.environ["REDISCLI_AUTH"]).ping() else "no answer")
"""
"""``valkey-cli -h HOST ping``: no wheel has the program."""


class TopologyError(Exception):
    """The file is refused, or a container does not become what its dependants wait for."""


def resolve(
    text: str, variables: Mapping[str, str], profiles: Iterable[str] = (), override: str = "services: {}"
) -> dict[str, Any]:
    """Return a compose file as Docker Compose reads it. ``variables``: its environment. ``override``: a file that changes it.

    Raises TopologyError if a file does not fit the schema or a variable is missing.
    """
    chosen = [part for profile in profiles for part in ("--profile", profile)]
    command = [BIN / "docker-compose", "--project-directory", ROOT, "--env-file", os.devnull, *chosen]
    with tempfile.TemporaryDirectory() as place:
        for name, content in (("compose.yml", text), ("override.yml", override)):
            (Path(place) / name).write_text(content, "utf-8")
            command += ["-f", Path(place) / name]
        done = subprocess.run(
            [*command, "config", "--format", "json"],
            env={"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), **variables},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise TopologyError(done.stderr.strip())
    found: dict[str, Any] = json.loads(done.stdout)
    return found


class _ServicePostgres(EmbeddedPostgres):
    """Postgres at a given address and port."""

    def __init__(self, address: str, port: int) -> None:
        super().__init__(durable=False)
        self._address, self._port = address, port

    @property
    def url(self) -> str:
        return super().url.replace("127.0.0.1", self._address)

    def _command(self) -> tuple[list[str], Path]:
        command, place = super()._command()
        return [part.replace("listen_addresses=127.0.0.1", f"listen_addresses={self._address}") for part in command], place


@dataclass
class Container:
    """One container of a service. ``place``: the directory of its files; its log is ``place / "log"``."""

    service: str
    address: str
    place: Path
    process: asyncio.subprocess.Process | None = None
    server: EmbeddedPostgres | None = None

    @property
    def log(self) -> str:
        """What the container has written."""
        return (self.place / "log").read_text("utf-8", errors="replace")

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to the container's processes."""
        os.killpg(self.pid, number)


@dataclass
class Topology:
    """The containers of a compose file.

    ``services``: those to start, with what they depend on; None: all. ``variables``: values of the file's variables, beside
    secrets that are made at random. ``override``: the text of a file that changes the first. ``programs``: the directory
    of ``runyard`` and ``python``, by default that of this environment. ``scrape_seconds``: the time between two reads of
    Prometheus, and between two evaluations of alerts.
    """

    services: Sequence[str] | None = None
    profiles: Sequence[str] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    override: str = "services: {}"
    programs: Path = BIN
    scrape_seconds: float = 1.0
    text: str = field(default_factory=lambda: COMPOSE.read_text("utf-8"))

    async def __aenter__(self) -> Self:
        self.secrets = {name: secrets.token_hex(32) for name in SECRETS}
        self.model = resolve(self.text, {**self.secrets, **self.variables}, self.profiles, self.override)
        self.place = Path(tempfile.mkdtemp(prefix="runyard-topology-"))
        self.containers: dict[str, list[Container]] = {}
        net = f"127.{secrets.randbelow(200) + 20}.{secrets.randbelow(250) + 1}"
        numbers = iter(range(2, 250))
        for name, service in self.model["services"].items():
            count = service.get("deploy", {}).get("replicas", 1)
            self.containers[name] = [Container(name, f"{net}.{next(numbers)}", self._place(name, n)) for n in range(count)]
        self._make_servers()
        try:
            for name in self._in_order(self.services or self.model["services"]):
                await self._start(name)
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop()

    def address(self, service: str, number: int = 0) -> str:
        """Return the address of a container."""
        return self.containers[service][number].address

    def variables_of(self, service: str) -> dict[str, str]:
        """Return the variables of a service as a process outside it has to use them."""
        return {name: self._outside(value) for name, value in self.model["services"][service]["environment"].items()}

    async def run(self, service: str, *arguments: str) -> str:
        """``docker compose run --rm SERVICE ARGUMENTS``: return what the command prints. Raises TopologyError if it fails."""
        container = Container(service, self.address(service), self._place(service, 1000))
        command = [*self._entrypoint(service), *arguments]
        process = await asyncio.create_subprocess_exec(
            *command, **self._surroundings(container), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        async with asyncio.timeout(START_SECONDS):
            printed, told = await process.communicate()
        if process.returncode:
            raise TopologyError(f"{' '.join(command)}: {told.decode()}")
        return printed.decode().strip()

    async def healthy(self, container: Container) -> bool:
        """Run the health check of a container."""
        kind, *check = self.model["services"][container.service]["healthcheck"]["test"]
        command = [self._inside(container, part) for part in check]
        if kind == "CMD-SHELL":
            command = ["/bin/sh", "-c", *command]
        quiet = asyncio.subprocess.DEVNULL
        process = await asyncio.create_subprocess_exec(*command, **self._surroundings(container), stdout=quiet, stderr=quiet)
        return await process.wait() == 0

    def _place(self, service: str, number: int) -> Path:
        place = self.place / f"{service}-{number}"
        place.mkdir(exist_ok=True)
        return place

    def _make_servers(self) -> None:
        """Make the directory with the programs of the images of servers, which comes first on the PATH of containers."""
        self._servers = self.place / "bin"
        self._servers.mkdir()
        (self._servers / "valkey-server").symlink_to(find_redis())
        (self._servers / "pg_isready").symlink_to(find_postgres().bin / "pg_isready")
        client = self._servers / "valkey-cli"
        client.write_text(VALKEY_CLI.format(python=sys.executable))
        client.chmod(0o755)

    def _in_order(self, names: Iterable[str], above: tuple[str, ...] = ()) -> Iterator[str]:
        """Yield services, each after those that it depends on."""
        for name in names:
            assert name not in above, f"{name} depends on itself"
            yield from self._in_order(self.model["services"][name].get("depends_on", ()), (*above, name))
            yield name

    async def _start(self, name: str) -> None:
        """Start the containers of a service, unless they run, when the conditions of the service hold."""
        for other, dependency in self.model["services"][name].get("depends_on", {}).items():
            await asyncio.gather(*(self._reach(container, dependency["condition"]) for container in self.containers[other]))
        for container in self.containers[name]:
            if container.process is None and container.server is None:
                await self._launch(container)

    async def _launch(self, container: Container) -> None:
        service = self.model["services"][container.service]
        if service["image"].startswith("postgres:"):
            await self._launch_postgres(container, service["environment"])
            return
        command = [*self._entrypoint(container.service), *(service["command"] or ())]
        if shutil.which(command[0], path=self._path) is None:
            raise TopologyError(f"{container.service}: install {command[0]}, the program of {service['image']}")
        with (container.place / "log").open("wb") as log:
            container.process = await asyncio.create_subprocess_exec(
                *(self._inside(container, part) for part in command),
                **self._surroundings(container),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_end_with_this_process,
            )

    async def _launch_postgres(self, container: Container, variables: Mapping[str, str]) -> None:
        """Start Postgres with the role, the password and the database that the variables of its image name."""
        container.server = _ServicePostgres(container.address, 5432)
        await asyncio.to_thread(container.server.start)
        admin = await asyncpg.connect(container.server.url)
        try:
            role, database = variables["POSTGRES_USER"], variables["POSTGRES_DB"]
            await admin.execute(f"CREATE ROLE {role} SUPERUSER LOGIN PASSWORD '{variables['POSTGRES_PASSWORD']}'")
            await admin.execute(f"CREATE DATABASE {database} OWNER {role}")
        finally:
            await admin.close()

    async def _reach(self, container: Container, condition: str) -> None:
        """Wait until a container has the state that a dependant needs."""
        process = container.process
        try:
            async with asyncio.timeout(START_SECONDS):
                if condition == "service_completed_successfully":
                    assert process is not None
                    if await process.wait() != 0:
                        raise TopologyError(f"{container.service} failed:\n{container.log}")
                while condition == "service_healthy" and not await self.healthy(container):
                    if process is not None and process.returncode is not None:
                        raise TopologyError(f"{container.service} ended:\n{container.log}")
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise TopologyError(f"{container.service} is not {condition}:\n{container.log}") from None

    async def ready(self, *services: str) -> None:
        """Wait until the containers of these services are healthy."""
        await asyncio.gather(*(self._reach(found, "service_healthy") for name in services for found in self.containers[name]))

    async def _stop(self) -> None:
        for container in (found for group in self.containers.values() for found in group):
            if container.process is not None and container.process.returncode is None:
                container.kill(signal.SIGCONT)
                container.kill()
                await container.process.wait()
            if container.server is not None:
                container.server.stop()
        shutil.rmtree(self.place, ignore_errors=True)

    def _entrypoint(self, name: str) -> list[str]:
        """Return the entry point of a service: its own, that of the project's image, or that of Prometheus' image."""
        service = self.model["services"][name]
        if service["entrypoint"]:
            return list(service["entrypoint"])
        if "build" in service:
            [text] = re.findall(r"^ENTRYPOINT (\[.*\])$", (ROOT / service["build"]["dockerfile"]).read_text(), re.MULTILINE)
            return list(json.loads(text))
        return ["prometheus"] if "/prometheus:" in service["image"] else []

    @property
    def _path(self) -> str:
        return os.pathsep.join((str(self._servers), str(self.programs), os.environ["PATH"]))

    def _surroundings(self, container: Container) -> dict[str, Any]:
        """Return the directory and the variables of the container's processes: of this process it has the PATH only."""
        own = {
            name: self._inside(container, value)
            for name, value in self.model["services"][container.service].get("environment", {}).items()
        }
        return {"cwd": container.place, "env": {"PATH": self._path, "HOME": str(container.place), **own}}

    def _inside(self, container: Container, text: str) -> str:
        """Return a text of the compose file as the container's process has to read it."""
        return self._named(container, _replaced(text, self._files(container)))

    def _named(self, container: Container, text: str) -> str:
        return self._outside(_replaced(text, ((name, container.address) for name in ITSELF)))

    def _outside(self, text: str) -> str:
        """Replace the names of services in URLs by the address of their first container."""
        addresses = {name: found[0].address for name, found in self.containers.items()} | {HOST: "127.0.0.1"}
        for name, address in addresses.items():
            text = re.sub(rf"(?<=[@/]){re.escape(name)}(?=[:/]|$)", address, text)
        return text

    def _files(self, container: Container) -> Iterator[tuple[str, Path]]:
        """Yield each path inside the container that the file mounts, and the path that stands for it."""
        service = self.model["services"][container.service]
        mounts = [(mount["target"], self._mounted(container, mount)) for mount in service.get("volumes", ())]
        yield from mounts
        for entry in service.get("configs", ()):
            path = container.place / Path(entry["target"]).name
            path.write_text(self._named(container, _replaced(self.model["configs"][entry["source"]]["content"], mounts)))
            yield entry["target"], path

    def _mounted(self, container: Container, mount: Mapping[str, Any]) -> Path:
        if mount["type"] == "volume":
            volume = container.place / "volumes" / mount["source"]
            volume.mkdir(parents=True, exist_ok=True)
            return volume
        source = Path(mount["source"])
        if mount["target"].startswith(f"{WORK}/"):
            place = container.place / Path(mount["target"]).relative_to(WORK)
            if not place.exists():
                place.symlink_to(source)
            return place
        return self._prometheus_file(container, source) if source.name == "prometheus.yml" else source

    def _prometheus_file(self, container: Container, source: Path) -> Path:
        """Write a configuration of Prometheus that lists the containers whose addresses DNS would return."""
        found = yaml.safe_load(source.read_text("utf-8"))
        mounts = self.model["services"][container.service]["volumes"]
        sources = {mount["target"]: mount["source"] for mount in mounts if mount["type"] == "bind"}
        every = f"{self.scrape_seconds * 1000:.0f}ms"
        found["global"] |= {"scrape_interval": every, "scrape_timeout": every, "evaluation_interval": every}
        found["rule_files"] = [sources[path] for path in found.get("rule_files", ())]
        for job in found["scrape_configs"]:
            job["static_configs"] = [
                {"targets": [f"{each.address}:{names['port']}" for name in names["names"] for each in self.containers[name]]}
                for names in job.pop("dns_sd_configs", ())
            ]
        path = container.place / "prometheus.yml"
        path.write_text(yaml.safe_dump(found))
        return path


def _end_with_this_process() -> None:
    PRCTL(PR_SET_PDEATHSIG, signal.SIGKILL)


def _replaced(text: str, pairs: Iterable[tuple[str, object]]) -> str:
    """Replace each name or path of ``pairs`` where it stands alone in ``text``."""
    for name, other in pairs:
        text = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w.-])", str(other), text)
    return text
