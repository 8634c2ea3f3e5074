"""What the doctor makes of what it sees: each thing that can be wrong is found, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from runyard.domain.states import RunStatus
from runyard.domain.webhooks import NO_SECRET, WebhookDelivery
from runyard.models import Run
from runyard.ports.workers import BlockedLoop, FeedDelay, QueueInfo, RedisOutage, WorkerInfo
from runyard_api.cli.view.output import without_password
from runyard_api.diagnosis import checks
from runyard_api.diagnosis.checks import Finding
from runyard_backends.postgres.health import PostgresFacts
from runyard_backends.redis.health import RedisFacts

POSTGRES = PostgresFacts(
    version="17.2",
    in_recovery=False,
    fsync="on",
    synchronous_commit="on",
    max_connections=97,
    connections=9,
    clock_ahead=0.001,
    round_trip=0.0004,
    no_timeout=[],
    schema=10,
    schema_trouble=None,
    edited=(),
    leader="w",
    feed_delay=FeedDelay(),
)
REDIS = RedisFacts("Valkey 8.1", "master", None, 0, "noeviction", True, -0.002, 0.0002)
WORKER = WorkerInfo(worker_id="w", queues=["default"], app_version="1", slots=9, silent_for=0.4)
NOW = datetime.now(UTC)


def levels(found: Finding | Iterable[Finding]) -> dict[str, str]:
    return {one.about: one.level for one in ([found] if isinstance(found, Finding) else found)}


def test_functions_and_triggers_that_were_edited_by_hand_are_named() -> None:
    [finding] = [
        finding for finding in checks.of_postgres(replace(POSTGRES, edited=("admit", "tagged"))) if finding.level != "ok"
    ]
    assert (finding.level, finding.about) == ("fail", "schema") and "admit, tagged" in finding.says
    assert "runyard migrate" in finding.do


def test_healthy_deployment_has_no_findings() -> None:
    found = [
        *checks.of_postgres(POSTGRES),
        *checks.of_redis(REDIS),
        checks.of_clocks(POSTGRES, REDIS),
        checks.of_feed(POSTGRES),
        checks.of_connections(POSTGRES, [WORKER], 10),
        *checks.of_workers([WORKER], "w"),
        *checks.of_queues([QueueInfo(queue="default", queued=3, oldest=2.0, workers=1)]),
    ]
    assert set(levels(found).values()) == {"ok"}
    assert not any(finding.do for finding in found)


@pytest.mark.parametrize(
    ("found", "about", "level"),
    [
        (checks.of_postgres(replace(POSTGRES, in_recovery=True)), "postgres", "fail"),
        (checks.of_postgres(replace(POSTGRES, schema=9, schema_trouble="too old")), "schema", "fail"),
        (checks.of_postgres(replace(POSTGRES, fsync="off")), "durability", "warn"),
        (checks.of_postgres(replace(POSTGRES, synchronous_commit="off")), "durability", "warn"),
        (checks.of_feed(replace(POSTGRES, feed_delay=FeedDelay(61.0, "pid 7"))), "feed", "warn"),
        (checks.of_postgres(replace(POSTGRES, no_timeout=["lock_timeout"])), "timeouts", "warn"),
        (checks.of_redis(replace(REDIS, refuses_writes="NOREPLICAS")), "redis", "fail"),
        (checks.of_connections(POSTGRES, [WORKER] * 6, 10), "connections", "warn"),
        (checks.of_connections(POSTGRES, [WORKER] * 8, 10), "connections", "fail"),
        (checks.of_redis(replace(REDIS, role="slave")), "redis", "fail"),
        (checks.of_redis(replace(REDIS, eviction="allkeys-lru", maxmemory=2**30)), "eviction", "warn"),
        (checks.of_clocks(replace(POSTGRES, clock_ahead=-3.0), REDIS), "clocks", "warn"),
        (checks.of_clocks(POSTGRES, replace(REDIS, clock_ahead=3.0)), "clocks", "warn"),
        (checks.of_workers([], None), "workers", "fail"),
        (checks.of_workers([replace(WORKER, dead_at=NOW)], None), "workers", "fail"),
        (checks.of_workers([WORKER], None), "leader", "fail"),
        (checks.of_workers([replace(WORKER, silent_for=9.0)], "w"), "workers", "warn"),
        (checks.of_workers([WORKER, replace(WORKER, app_version="2")], "w"), "versions", "warn"),
        (checks.of_queues([QueueInfo(queue="gpu", queued=1, oldest=1.0)]), "queues", "fail"),
        (checks.of_queues([QueueInfo(queue="gpu", queued=1, oldest=1.0, paused_at=NOW)]), "queues", "warn"),
        (checks.of_queues([QueueInfo(queue="a", queued=1, oldest=61.0, workers=1)]), "oldest run", "warn"),
    ],
)
def test_each_problem_is_found_with_its_remedy(found: Finding | Iterable[Finding], about: str, level: str) -> None:
    listed = [found] if isinstance(found, Finding) else list(found)
    [trouble] = [one for one in listed if one.about == about and one.level != "ok"]
    assert trouble.level == level and trouble.do


@pytest.mark.parametrize(("queued", "says"), [(1, "1 run waits"), (2, "2 runs wait")])
@pytest.mark.parametrize("paused_at", [None, NOW])
def test_a_count_agrees_with_its_noun(queued: int, says: str, paused_at: datetime | None) -> None:
    [finding, _] = checks.of_queues([QueueInfo(queue="gpu", queued=queued, oldest=1.0, paused_at=paused_at)])
    assert says in finding.says


def test_a_worker_without_redis_is_named_with_the_reason() -> None:
    lost = replace(WORKER, redis_outage=RedisOutage(NOW, "wrong password"))
    [finding] = [finding for finding in checks.of_workers([lost], "w") if finding.level != "ok"]
    assert (finding.level, finding.about) == ("fail", "redis") and "w does not reach Redis since" in finding.says
    assert finding.says.endswith("wrong password")


def test_a_blocked_worker_explains_that_there_is_no_leader() -> None:
    blocked = replace(WORKER, worker_id="b", blocked=BlockedLoop(7.0, "app.py:63", ""))
    for workers, says in (
        ([blocked], "there is no leader while the main loop of every worker is blocked: b"),
        (
            [blocked, WORKER],
            "there is no leader yet: the main loop of b is blocked; another worker becomes the leader within seconds",
        ),
    ):
        [finding] = [finding for finding in checks.of_workers(workers, None) if finding.about == "leader"]
        assert (finding.level, finding.says) == ("warn", says) and finding.do


def test_programs_that_share_a_default_agent_are_told_to_take_a_namespace() -> None:
    """L3: workers of two namespaces, or of one default agent, are fine."""
    names = ["writer", "reader", "shop/clerk", "blog/clerk", "shop/clerk", None]
    workers = [replace(WORKER, worker_id=f"w{n}", default_agent=name) for n, name in enumerate(names)]
    [finding] = [finding for finding in checks.of_workers(workers, "w0") if finding.level != "ok"]
    assert (finding.level, finding.about) == ("warn", "agents")
    assert finding.says == "reader, writer are default agents of apps without a namespace; one of them gets all new threads"
    assert not [finding for finding in checks.of_workers(workers[1:], "w1") if finding.level != "ok"]


def test_queued_runs_that_no_worker_takes_are_counted_by_agent_and_by_version() -> None:
    worker = replace(WORKER, agents={"writer": "default"}, on_version_mismatch="wait", app_version="2")

    def queued(agent: str | None, **fields: object) -> Run:
        said = {
            "thread_id": "t",
            "run_id": "r",
            "status": RunStatus.QUEUED,
            "agent": agent,
            "accepted_at": NOW,
            "admitted_at": NOW,
        }
        return Run.model_validate(said | fields)

    runs = [
        queued("writer"),
        queued(None),
        queued("nope"),
        queued("nope"),
        queued("x", queue="unserved"),
        queued("nope", admitted_at=None),
    ]
    began = [queued("writer", attempt=1, app_version="1"), queued("writer", attempt=0, app_version="1")]
    found = [(one.level, one.about, one.says) for one in checks.of_waiting_runs([*runs, *began], [worker])]
    assert found == [
        ("fail", "agents", "no live worker of queue default serves agent nope, 2 runs wait"),
        ("fail", "versions", "no live worker of queue default has version 1, 1 run waits for it"),
    ]
    shop = replace(WORKER, queues=["shop"], agents={"shop/clerk": "shop"}, default_agent="shop/clerk")
    runs = [queued(None), queued("blog/", queue="blog"), queued("shop/", queue="x")]
    assert [one.says for one in checks.of_waiting_runs(runs, [shop])] == [
        "1 run waits for an agent without a namespace; live workers have the namespaces shop",
        "1 run waits for an agent of namespace blog; live workers have the namespaces shop",
    ]
    assert list(checks.of_waiting_runs(runs, [])) == []


def test_dead_workers_hold_no_connections() -> None:
    assert levels(checks.of_connections(POSTGRES, [replace(WORKER, dead_at=NOW)] * 99, 10)) == {"connections": "ok"}


def test_passwords_are_not_shown() -> None:
    assert without_password("postgresql://me:secret@host:5432/db?x=1") == "postgresql://me:***@host:5432/db?x=1"
    assert without_password("redis://:secret@host/0") == "redis://:***@host/0"
    assert without_password("redis://host/0") == "redis://host/0"


def test_a_blocked_main_loop_is_named_with_its_line() -> None:
    worker = WorkerInfo(worker_id="w", queues=["default"], blocked=BlockedLoop(12.3, "app.py:26", "Stack"))
    found = [finding for finding in checks.of_workers([worker], "w") if finding.about == "main loop"]
    assert [(finding.level, finding.says) for finding in found] == [("warn", "w: main loop blocked for 12 s at app.py:26")]
    assert "to_thread" in found[0].do


def test_a_dead_worker_is_not_blocked_any_more() -> None:
    """``doctor`` says which code blocked the main loop of a worker that was declared dead, also if it was the only worker."""
    dead = WorkerInfo(worker_id="w", queues=["default"], blocked=BlockedLoop(30.4, "app.py:26", "Stack"), dead_at=NOW)
    for others in ([], [replace(WORKER, worker_id="v")]):
        found = [finding for finding in checks.of_workers([dead, *others], "v") if finding.about == "main loop"]
        says = "w: main loop was blocked at app.py:26 when it was declared dead"
        assert [(finding.level, finding.says) for finding in found] == [("warn", says)]
        assert "to_thread" in found[0].do


def test_webhooks_that_the_workers_cannot_sign_are_named() -> None:
    """A worker without RUNYARD_WEBHOOK_SECRET sends nothing, and its deliveries wait. Those that failed do not name the workers
    of now."""
    fields: dict[str, Any] = {
        "webhook_id": None,
        "url": "https://x",
        "type": "run.completed",
        "thread_id": "t",
        "created_at": NOW,
    }
    unsigned = [
        WebhookDelivery(delivery_id=str(n), status=status, error=NO_SECRET, **fields)
        for n, status in enumerate(("pending", "failed"))
    ]
    other = WebhookDelivery(delivery_id="9", status="failed", error="timeout", **fields)
    [finding] = checks.of_deliveries([*unsigned, other])
    assert (finding.level, finding.about) == ("fail", "webhooks") and finding.says.startswith("1 delivery")
    assert "RUNYARD_WEBHOOK_SECRET" in finding.do
    assert list(checks.of_deliveries([unsigned[1], other])) == []
