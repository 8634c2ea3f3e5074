"""Mutants of the plain path of accept_many, claim, complete and write_interim, and of write_interim itself."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant, mutant

PLAIN: Final = "backends/runyard_backends/postgres/functions/plain_runs.sql"
THREADS: Final = "backends/runyard_backends/postgres/functions/threads.sql"
BATCHES: Final = "tests/conformance/test_postgres_batches.py"
POSTGRES: Final = "tests/conformance/test_postgres.py"
APPENDS: Final = "backends/runyard_backends/postgres/functions/plain_appends.sql"
WRITES: Final = "backends/runyard_backends/postgres/functions/interim_writes.sql"
INTERIM: Final = "tests/integration/postgres/test_interim_writes.py"
PLAIN_TESTS: Final = "tests/integration/postgres/test_plain_runs.py"

PLAIN_RUNS: Final[tuple[Mutant, ...]] = (
    mutant(
        "a batch of accepts takes its requests for plain", PLAIN,
        "AND t.thread_id <> ALL (special)", "",
        BATCHES,
    ),
    mutant(
        "a batch of accepts overtakes runs that are not admitted", PLAIN,
        "AND unadmitted.one IS NULL", "",
        PLAIN_TESTS, "-k", "overtake",
    ),
    mutant(
        "a batch of accepts takes inherited run ids", PLAIN,
        "t.parent_thread_id IS NULL AND t.deleted_at IS NULL", "t.deleted_at IS NULL",
        BATCHES, "-k", "Inheritance",
    ),
    mutant(
        "a batch of accepts forgets the agent of the thread", PLAIN,
        "AND (runyard.is_agent(t.agent) OR t.agent IS NULL AND t.thread_id <> ALL (named))", "",
        PLAIN_TESTS, "-k", "agent",
    ),
    mutant(
        "a batch of accepts offers runs of busy lanes", PLAIN,
        "CASE WHEN NOT t.busy AND", "CASE WHEN",
        BATCHES, "-k", "Lanes",
    ),
    mutant(
        "a batch of claims overtakes in a lane", PLAIN,
        "AND head.accept_no = r.accept_no ", "",
        POSTGRES, "-k", "Lanes",
    ),
    mutant(
        "a batch of claims stores a taken message", PLAIN,
        "AND taken.one IS NULL AND early.one IS NULL", "AND early.one IS NULL",
        POSTGRES,
    ),
    mutant(
        "a batch of claims loses early messages", PLAIN,
        "AND taken.one IS NULL AND early.one IS NULL", "AND taken.one IS NULL",
        POSTGRES, "-k", "External or unclaimed or Checkpointer",
    ),
    mutant(
        "a batch of claims ignores paused queues", PLAIN,
        "AND x.queue <> ALL (paused)", "",
        POSTGRES, "-k", "pause",
    ),
    mutant(
        "a batch of claims ignores what a worker serves", PLAIN,
        "AND runyard.serves(claimant, a.agent)\n", "\n",
        POSTGRES, "-k", "TestWorkers",
    ),
    mutant(
        "a claim is in no table of live runs", PLAIN,
        "UPDATE runyard.live_runs l SET status = 'running', worker_id = claimant.worker_id",
        "UPDATE runyard.live_runs l SET status = 'queued', worker_id = claimant.worker_id",
        "tests/integration/postgres/test_live_runs.py",
    ),
    mutant(
        "a batch of completions takes any fence", PLAIN,
        "AND x.fence = w.fence AND x.status = 'running' AND x.kind = 'prompt'\n"
        "                  AND x.lane = '' AND x.attempt = 1 AND",
        "AND x.status = 'running' AND x.kind = 'prompt'\n                  AND x.lane = '' AND",
        POSTGRES, "-k", "stale_writes_of_a_batch",
    ),
    mutant(
        "a batch of completions ignores cancels", PLAIN,
        "AND x.event_id IS NULL AND x.cancel_requested_at IS NULL", "AND x.event_id IS NULL",
        POSTGRES, "-k", "cancel",
    ),
    mutant(
        "a batch of completions leaves tool calls open", PLAIN,
        "WHERE m.calls IS NOT NULL OR m.results IS NOT NULL OR taken.one IS NOT NULL", "WHERE taken.one IS NOT NULL",
        POSTGRES, "-k", "tool_cycle",
    ),
    mutant(
        "a batch of completions stores a message twice", PLAIN,
        "(SELECT count(DISTINCT m.message_id) FROM unnest(w.messages) m) = cardinality(w.messages)", "true",
        POSTGRES, "-k", "twice_in_the_last_write",
    ),
    mutant(
        "a batch of completions wakes no fork job", PLAIN,
        "AND special.one IS NULL AND waits.one IS NULL", "AND special.one IS NULL",
        POSTGRES,
    ),
    mutant(
        "a batch of completions starts no next run", PLAIN,
        "CASE WHEN p.job IS NOT NULL THEN", "CASE WHEN false THEN",
        POSTGRES, "-k", "Lanes",
    ),
    mutant(
        "usual runs take the long way", PLAIN,
        "AND w.same = 1 AND", "AND w.same = 0 AND",
        PLAIN_TESTS,
    ),
    mutant(
        "a batch of appends ignores a cancel", APPENDS,
        " AND x.cancel_requested_at IS NULL AND x.branch_id IS NOT NULL", " AND x.branch_id IS NOT NULL",
        INTERIM, "-k", "refused",
    ),
    mutant(
        "a batch of appends ignores the fence", APPENDS,
        "AND x.fence = w.fence AND x.status = 'running'", "AND x.status = 'running'",
        INTERIM, "-k", "refused",
    ),
    mutant(
        "a batch of appends stores a taken message", APPENDS,
        "AND taken.one IS NULL AND pg_column_size", "AND pg_column_size",
        INTERIM, "-k", "repeated",
    ),
    mutant(
        "a batch of appends overtakes a write of its run", APPENDS,
        "AND w.same = 1 AND w.messages <> '{}'", "AND w.messages <> '{}'",
        INTERIM, "-k", "order or repeated",
    ),
    mutant(
        "a batch of writes ignores the fence", WRITES,
        "WHEN 'stale_fence' THEN 'stale_fence' ", "",
        INTERIM, "-k", "refused",
    ),
    mutant(
        "a batch of writes changes the order of a run's writes", WRITES,
        "ORDER BY x.thread_key, x.place LOOP", "ORDER BY x.thread_key, x.place DESC LOOP",
        INTERIM, "-k", "order",
    ),
    mutant(
        "a refused prompt of a batch makes a thread", PLAIN,
        " AND special = '{}'; --", "; --",
        PLAIN_TESTS, "-k", "refused_prompt",
    ),
    mutant(
        "a batch makes a thread that has runs of a host", THREADS,
        " OR unadmitted.one IS NOT NULL", "",
        PLAIN_TESTS, "-k", "runs_of_a_host",
    ),
    mutant(
        "a batch makes a thread whose predecessor is being removed", THREADS,
        "removed.one IS NOT NULL OR ", "",
        PLAIN_TESTS, "-k", "removal",
    ),
)  # fmt: skip
