"""examples/orders_django: the order and its run are one transaction."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from runyard import Client, errors
from tests.examples.programs import BOUND, example


async def test_orders_example_commits_and_rolls_back_with_its_host(tmp_path: Path, postgres_url: str, redis_url: str) -> None:
    """R1: committed together; rolled back, neither was."""
    async with (
        example("orders_django/web.py", tmp_path, postgres_url, redis_url) as program,
        httpx.AsyncClient(base_url=program.url, timeout=BOUND) as web,
        Client.connect(postgres_url, redis=redis_url) as client,
    ):
        await program.said("Quit the server")
        placed = await web.post("/orders", data={"item": "a blue cup"})
        assert (placed.status_code, placed.json()) == (201, {"order": 1})
        confirmed = (await web.get("/orders/1")).json()
        assert confirmed["status"] == "completed"
        assert confirmed["words"] == "Thank you! Order 1: a blue cup. It leaves our workshop on Monday."

        assert (await web.post("/orders", data={"item": "a vase", "fail": "yes"})).status_code == 500
        assert (await web.get("/orders/2")).status_code == 404
        with pytest.raises(errors.RunNotFoundError):
            await client.run("order-2", "confirm-2")
        assert len((await client.runs()).items) == 1
