"""Mutants of chains: the completion of a run claims the next run of its lane."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant, mutant

CLAIM_NEXT: Final = "backends/runyard_backends/postgres/functions/complete_and_claim.sql"
CRASHES: Final = "backends/runyard_backends/postgres/functions/crashes.sql"
LOCKS: Final = "backends/runyard_backends/redis/lua/lane_locks.lua"
CLAIM_LOOP: Final = "runner/runyard/worker/claim_loop.py"
SLOTS: Final = "runner/runyard/worker/slots.py"
WRITER: Final = "runner/runyard/events/writer.py"
CONFORMANCE: Final = "tests/conformance/test_postgres.py"
WORKER: Final = "tests/unit/worker/test_chains.py"
RACES: Final = "tests/integration/postgres/test_chains.py"
SCHEDULER: Final = "tests/unit/backends/test_scheduler_on_fakeredis.py"

CHAINS: Final[tuple[Mutant, ...]] = (
    mutant(
        "a draining worker goes on with the lane", CLAIM_NEXT,
        "AND x.dead_at IS NULL AND NOT x.draining LIMIT 1", "AND x.dead_at IS NULL LIMIT 1",
        CONFORMANCE, "-k", "TestChains and draining",
    ),
    mutant(
        "a worker that died between two statements loses the end of its run", CLAIM_NEXT,
        "EXCEPTION WHEN OTHERS THEN", "EXCEPTION WHEN division_by_zero THEN",
        RACES, "-k", "declared_dead",
    ),
    mutant(
        "a chain ignores limits on running runs", CLAIM_NEXT,
        "WHERE l.limit_name IN ('running_per_agent', 'running_per_tenant'))", "WHERE false)",
        CONFORMANCE, "-k", "TestChains and may_not_claim",
    ),
    mutant(
        "a chain claims runs of queues that the worker does not serve", CLAIM_NEXT,
        "AND x->>'queue' = ANY (w.queues) LIMIT 1", "LIMIT 1",
        CONFORMANCE, "-k", "TestChains and may_not_claim",
    ),
    mutant(
        "every completion of a batch claims the next run", CLAIM_NEXT,
        "WHERE n.thread_key = e.thread_key AND n.run_id = e.run_id)", ")",
        CONFORMANCE, "-k", "TestChains and each_lane_of_a_batch",
    ),
    mutant(
        "a completion claims the next runs of all lanes of its thread", CLAIM_NEXT,
        "WHERE n.thread_key = e.thread_key AND n.run_id = e.run_id)", "WHERE n.thread_key = e.thread_key)",
        CONFORMANCE, "-k", "TestChains and each_lane_of_a_thread",
    ),
    mutant(
        "nobody stops a run whose claim arrives after the handover", CLAIM_LOOP,
        "elif self._handing_over:", "elif False:",
        WORKER, "-k", "test_w6",
    ),
    mutant(
        "an attempt that had not begun is blamed for a crash", CRASHES,
        "AND l.chained_fence = r.fence)", "AND false)",
        CONFORMANCE, "-k", "TestCrashesOfChains",
    ),
    mutant(
        "no crash after a chain is counted", CRASHES,
        "AND l.chained_fence = r.fence)", "AND l.chained_fence IS NOT NULL)",
        CONFORMANCE, "-k", "TestCrashesOfChains",
    ),
    mutant(
        "a stopping worker goes on with the lane", CLAIM_LOOP,
        "        if self.stopping or not self._registered.is_set() or self._late():\n"
        "            return False\n"
        "        return self._slots.may_pass_on",
        "        if not self._registered.is_set() or self._late():\n"
        "            return False\n"
        "        return self._slots.may_pass_on",
        WORKER, "-k", "stops",
    ),
    mutant(
        "a worker that may be declared dead goes on with the lane", CLAIM_LOOP,
        "if self.stopping or not self._registered.is_set() or self._late():",
        "if self.stopping or not self._registered.is_set():",
        WORKER, "-k", "late_heartbeat",
    ),
    mutant(
        "a long lane keeps the last slot", SLOTS,
        "return self.free > 0 or slot.runs < CHAIN_RUNS", "return True",
        WORKER, "-k", "other_tenants",
    ),
    mutant(
        "a long lane stays with its worker", SLOTS,
        " or time.monotonic() - slot.taken_at >= CHAIN_SECONDS:", ":",
        WORKER, "-k", "short_time",
    ),
    mutant(
        "a slot is passed on under another id of the worker", SLOTS,
        "slot is None or slot.worker_id != worker_id or", "slot is None or",
        WORKER, "-k", "another_id",
    ),
    mutant(
        "a lock that was lost is passed on", SLOTS,
        "replace(slot.again or slot.delivery, job=job)", "replace(slot.delivery, job=job)",
        WORKER, "-k", "newest_lock",
    ),
    mutant(
        "a lock is another lock of its worker", LOCKS,
        "owner == wanted and token == number", "owner == wanted",
        SCHEDULER, "-k", "passes_to_the_next_run",
    ),
    mutant(
        "a chained run is not announced as queued", WRITER,
        "deque([] if queued is None else [_Slot(0, queued)])", "deque([])",
        WORKER, "-k", "all_its_events",
    ),
)  # fmt: skip
