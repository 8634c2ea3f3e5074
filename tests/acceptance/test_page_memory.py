"""Whoever lists what is large gets a part, and the API's memory stays what it was (A2)."""

from __future__ import annotations

import asyncio
import resource

import asyncpg
import httpx
import pytest

from runyard.ports.results import PAGE_BYTES
from runyard_api.http.app import asgi_app
from runyard_api.http.settings import ApiSettings
from runyard_backends.postgres.backend import connect

LARGE = """
WITH random AS MATERIALIZED (SELECT string_agg(gen_random_uuid()::text, '') AS x FROM generate_series(1, 30000))
INSERT INTO runyard.threads (tenant, thread_id, head_branch, extra, config)
SELECT '', 't' || n, nextval('runyard.branch_numbers'), jsonb_build_object('x', repeat('x', 5000000)),
       jsonb_build_object('x', random.x)
FROM generate_series(1, 40) n, random
"""
MESSAGES = """
INSERT INTO runyard.messages (branch_id, seq, message_id, role, payload)
SELECT t.head_branch, n, gen_random_uuid(), 'user',
       convert_to('{"content": [{"type": "text", "text": "' || repeat('x', 5000000) || '"}]}', 'UTF8')
FROM runyard.threads t, generate_series(1, 40) n WHERE t.thread_id = 't1'
"""
BRANCH = "INSERT INTO runyard.branches (branch_id, thread_key, lane) SELECT head_branch, thread_key, '' FROM runyard.threads"
MOST = 150 * 2**20
"""Bytes by which the process may grow, with four answers at once, and the client that reads them in the same process."""

pytestmark = pytest.mark.xdist_group("page memory")


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@pytest.fixture(scope="module")
def filled(module_postgres_url: str) -> str:
    async def fill() -> None:
        connection = await asyncpg.connect(module_postgres_url)
        for statement in (LARGE, BRANCH, MESSAGES):
            await connection.execute(statement)
        await connection.close()

    asyncio.run(fill())
    return module_postgres_url


@pytest.mark.parametrize("path", ["/v1/threads", "/v1/threads/t1/messages", "/v1/threads/t1/lineage"])
async def test_a_page_of_large_values_is_bounded(filled: str, path: str) -> None:
    backend = await connect(filled)
    app = asgi_app(backend, auth="off", settings=ApiSettings(_env_file=None))
    transport = httpx.ASGITransport(app, client=("127.0.0.1", 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        assert (await client.get(path, params={"limit": 1})).status_code == 200
        before = peak()
        answers = await asyncio.gather(*(client.get(path, params={"limit": 1000}) for _ in range(4)))
        assert peak() - before <= MOST
        for answer in answers:
            assert answer.status_code == 200 and len(answer.content) <= PAGE_BYTES
            if path == "/v1/threads":
                assert [item["omitted"] for item in answer.json()["items"]] == [["extra", "config"]] * 40
    await backend.close()
