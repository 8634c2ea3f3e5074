"""A private Prometheus for tests: the machine's own ``prometheus``, which scrapes every second and keeps nothing."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import yaml

from tests.support.fleet import free_port
from tests.support.monitoring import ALERTS, program

START_SECONDS: Final = 60.0
INTERVAL: Final = "1s"

Series = list[dict[str, Any]]


class Prometheus:
    """A server that scrapes ``jobs`` (scrape configurations) and evaluates the chart's alerts, in ``directory``.

    The targets of a job with ``file_sd_configs`` may change while the server runs (:meth:`watch`).
    """

    def __init__(self, directory: Path, jobs: Sequence[Mapping[str, Any]]) -> None:
        self.directory, self.port = directory, free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._jobs = [
            *jobs,
            {"job_name": "watched", "file_sd_configs": [{"files": ["watched.json"], "refresh_interval": "1s"}]},
        ]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        configuration = {
            "global": {"scrape_interval": INTERVAL, "scrape_timeout": INTERVAL, "evaluation_interval": INTERVAL},
            "rule_files": [str(ALERTS)],
            "scrape_configs": self._jobs,
        }
        self.watch([])
        (self.directory / "prometheus.yml").write_text(yaml.safe_dump(configuration))
        command = [
            program("prometheus"),
            f"--config.file={self.directory / 'prometheus.yml'}",
            f"--storage.tsdb.path={self.directory / 'data'}",
            f"--web.listen-address=127.0.0.1:{self.port}",
            "--log.level=warn",
        ]
        self._process = subprocess.Popen(command)
        deadline = time.monotonic() + START_SECONDS
        while not self._ready():
            assert self._process.poll() is None and time.monotonic() < deadline, "prometheus did not start"
            time.sleep(0.05)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.wait(30)

    def watch(self, targets: Sequence[str], **labels: str) -> None:
        """Scrape ``targets`` (``host:port``) from the next second on, with ``labels``."""
        file = self.directory / "watched.json"
        unfinished = file.with_suffix(".new")
        unfinished.write_text(json.dumps([{"targets": [*targets], "labels": labels}]))
        unfinished.replace(file)

    def query(self, expr: str, at: float | None = None) -> Series:
        """Return the series of an instant query, now or at the time ``at``. An invalid query raises HTTPError."""
        result: Series = self._get("query", query=expr, **({} if at is None else {"time": at}))["result"]
        return result

    def query_range(self, expr: str, start: float, end: float, step: float) -> Series:
        """Return the series of a range query."""
        result: Series = self._get("query_range", query=expr, start=start, end=end, step=step)["result"]
        return result

    def value(self, expr: str) -> float:
        """Return the only value of an instant query, 0 if there is none."""
        found = self.query(expr)
        assert len(found) <= 1, found
        return float(found[0]["value"][1]) if found else 0.0

    def rules(self) -> list[dict[str, Any]]:
        """Return the alerts with their state and health."""
        return [rule for group in self._get("rules")["groups"] for rule in group["rules"]]

    def targets(self) -> list[dict[str, Any]]:
        """Return the targets with their health."""
        active: list[dict[str, Any]] = self._get("targets")["activeTargets"]
        return active

    def _get(self, what: str, **parameters: Any) -> Any:
        with urlopen(f"{self.url}/api/v1/{what}?{urlencode(parameters)}", timeout=30) as reply:
            return json.load(reply)["data"]

    def _ready(self) -> bool:
        try:
            with urlopen(f"{self.url}/-/ready", timeout=5) as reply:
                return bool(reply.status == 200)
        except (URLError, OSError):
            return False
