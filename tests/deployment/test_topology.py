"""docker-compose.yml as processes: runs survive the death of a worker, and Prometheus reads every container."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from tests.support.fleet import scrape, total, until
from tests.support.topology import Topology

RUNS, THREADS = 200, 50
WORDS = "say one two three | tool add 1 2 | sleep 0.2"
MESSAGES_PER_RUN = 5
"""The prompt, the first text, the call of the tool, its result, and the last text."""

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("topology")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def deployment() -> AsyncIterator[Topology]:
    async with Topology(["api", "worker", "prometheus"], ["monitoring"]) as found:
        await found.ready("api", "worker")
        yield found


async def test_prometheus_reads_every_container(deployment: Topology) -> None:
    async with httpx.AsyncClient(base_url=f"http://{deployment.address('prometheus')}:9090") as prometheus:

        async def query(expression: str) -> list[dict[str, Any]]:
            reply = await prometheus.get("/api/v1/query", params={"query": expression})
            found: list[dict[str, Any]] = reply.json()["data"]["result"]
            return found

        async def all_up() -> bool:
            targets = await query("up == 1")
            return Counter(found["metric"]["job"] for found in targets) == {"worker": 2, "api": 1}

        async def one_leads() -> bool:
            return [found["value"][1] for found in await query("sum(runyard_leading)")] == ["1"]

        await until(all_up, 60)
        assert {found["metric"]["namespace"] for found in await query("up")} == {"compose"}
        await until(one_leads, 60)


async def test_200_runs_complete_while_a_worker_is_killed(deployment: Topology) -> None:
    """R2, R9: on the schema that the one-shot migration made, each run ends once, and the other worker takes the runs over."""
    key = await deployment.run("api", "keys", "create", "test")
    headers = {"Authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(base_url=f"http://{deployment.address('api')}:8000", headers=headers, timeout=30) as http:
        for n in range(RUNS):
            reply = await http.post(f"/v1/threads/t{n % THREADS}/runs", json={"run_id": f"r{n}", "message": WORDS})
            assert reply.status_code == 202, reply.text
            if n == RUNS // 2:
                deployment.containers["worker"][0].kill()
        statuses: Counter[str] = Counter()

        async def ended() -> bool:
            page = (await http.get("/v1/runs", params={"limit": 1000})).json()
            statuses.clear()
            statuses.update(run["status"] for run in page["items"])
            return statuses.total() == RUNS and not statuses.keys() & {"queued", "running"}

        await until(ended, 60)
        assert statuses == {"completed": RUNS}
        for thread in range(THREADS):
            messages = (await http.get(f"/v1/threads/t{thread}/messages", params={"limit": 1000})).json()["items"]
            assert len(messages) == MESSAGES_PER_RUN * RUNS // THREADS
    survivor = scrape(f"http://{deployment.address('worker', 1)}:9100/metrics")
    assert total(survivor, "runyard_takeovers_total", {}) > 0
    doctor = json.loads(await deployment.run("worker", "doctor", "--json"))
    assert doctor["ok"], doctor
