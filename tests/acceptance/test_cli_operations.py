"""What an operator types against real workers and servers."""

from __future__ import annotations

import asyncio
import json
import os
import re

import pytest

from runyard_api.cli import exit_codes
from runyard_api.cli.main import main
from tests.support.fleet import Fleet, until


@pytest.fixture
def deployment(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> Fleet:
    """The fleet, named by the environment."""
    for name in [name for name in os.environ if name.startswith("RUNYARD_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("RUNYARD_POSTGRES_URL", fleet.postgres)
    monkeypatch.setenv("RUNYARD_REDIS_URL", fleet.redis)
    return fleet


async def runyard(*arguments: str) -> int:
    return await asyncio.to_thread(main, arguments)


async def test_stacks_show_the_code_that_blocks_a_worker(deployment: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    pid = await deployment.start()
    handle = await deployment.client.enqueue("t", "say one | tool add 1 2 | spin 30")
    await deployment.holder("t", handle.id, 3)
    assert await runyard("workers", "stacks", f"{pid}-") == exit_codes.Exit.OK
    assert "in _spin" in capsys.readouterr().out


async def test_doctor_names_the_line_that_blocks_the_only_worker(deployment: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    await deployment.start()
    await deployment.client.enqueue("t", "say one | tool add 1 2 | spin 30")

    async def named() -> bool:
        await runyard("doctor", "--json")
        found = json.loads(capsys.readouterr().out)["findings"]
        says = [one["says"] for one in found if one["about"] == "main loop" and one["level"] == "warn"]
        return any(re.search(r"main loop blocked for \d+ s at \S+\.py:\d+$", line) for line in says)

    await until(named, 60)


async def test_drain_waits_for_the_end(deployment: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    pid = await deployment.start()
    handle = await deployment.client.enqueue("t", "say one | tool add 1 2 | sleep 1")
    await deployment.holder("t", handle.id, 3)
    assert await runyard("workers", "drain", f"{pid}-", "--wait") == exit_codes.Exit.OK
    assert (await handle.result(30)).run.attempt == 1
    assert await asyncio.wait_for(deployment.processes[pid].wait(), 30) == 0


async def test_doctor(deployment: Fleet, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every part is looked at; a server that does not answer fails, and the rest is told all the same."""
    assert await runyard("doctor", "--json") == exit_codes.Exit.FAILED_RUN
    found = json.loads(capsys.readouterr().out)
    assert {one["about"] for one in found["findings"] if one["level"] == "fail"} == {"workers"}
    assert not any("@" in one["value"] and ":***@" not in one["value"] for one in found["settings"])
    await deployment.start()
    assert await runyard("doctor", "--json") == exit_codes.Exit.OK
    found = {one["about"] for one in json.loads(capsys.readouterr().out)["findings"]}
    assert found >= {"postgres", "schema", "durability", "redis", "eviction", "persistence", "clocks", "connections", "leader"}
    monkeypatch.setenv("RUNYARD_REDIS_URL", "redis://127.0.0.1:1/0")
    assert await runyard("doctor") == exit_codes.Exit.FAILED_RUN
    out = capsys.readouterr().out
    assert "✗ redis" in out and "● leader" in out


async def test_doctor_without_a_schema(
    empty_postgres_url: str, redis_url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNYARD_POSTGRES_URL", empty_postgres_url)
    monkeypatch.setenv("RUNYARD_REDIS_URL", redis_url)
    assert await runyard("doctor") == exit_codes.Exit.FAILED_RUN
    out = capsys.readouterr().out
    assert "✗ schema" in out and "runyard migrate" in out and "● redis" in out


async def test_respond_streams_what_follows_the_question(deployment: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    """E1: `prompt --stream` has printed the messages before the question."""
    await deployment.start()
    assert await runyard("prompt", "t", "say first | color? | say second", "--stream") == exit_codes.Exit.SUSPENDED
    assert "first" in capsys.readouterr().out
    assert await runyard("respond", "t", "red", "--stream") == exit_codes.Exit.OK
    out = capsys.readouterr().out
    assert "first" not in out and out.index("color? red") < out.index("second")
