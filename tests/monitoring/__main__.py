"""``make dashboards``: plays a deployment with a crash, draws each dashboard from a real Prometheus, and writes a table of all
queries and alerts."""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

from runyard import Client
from runyard_backends.embedded import EmbeddedPostgres, EmbeddedRedis
from runyard_backends.postgres.migrate import migrate
from tests.monitoring.answers import table
from tests.monitoring.pictures import draw
from tests.monitoring.scene import Scene, deployment
from tests.support import monitoring
from tests.support.fleet import Fleet

RUNS_PER_ROUND = 60
PAUSE_SECONDS = 1.0


async def play(scene: Scene, seconds: float) -> None:
    """Let rounds of runs follow each other. In the middle a worker is killed."""
    ends = time.monotonic() + seconds
    killed = False
    while time.monotonic() < ends:
        await scene.play(RUNS_PER_ROUND)
        if not killed and time.monotonic() > ends - seconds / 2:
            killed = True
            print(f"{await scene.kill_a_worker()} runs were taken over", flush=True)
        await asyncio.sleep(PAUSE_SECONDS)


async def main(seconds: float, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    with EmbeddedPostgres() as postgres, EmbeddedRedis() as redis, tempfile.TemporaryDirectory() as directory:
        await migrate(postgres.url)
        async with Client.connect(postgres.url, redis=redis.url) as client:
            fleet = Fleet(postgres.url, redis.url, client, client.backend)
            try:
                async with deployment(fleet, Path(directory)) as scene:
                    began = time.time()
                    await play(scene, seconds)
                    await scene.scraped()
                    (out / "queries.txt").write_text(table(scene.prometheus) + "\n")
                    for name in monitoring.dashboards():
                        file = out / f"{name}.png"
                        empty = draw(scene.prometheus, name, began, time.time(), file)
                        print(f"{file}" + (f", without data: {', '.join(empty)}" if empty else ""), flush=True)
            finally:
                await fleet.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.monitoring")
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--out", type=Path, default=Path("build/dashboards"))
    given = parser.parse_args()
    asyncio.run(main(given.seconds, given.out))
