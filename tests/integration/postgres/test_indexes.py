"""Every index serves a statement of runyard, or refuses what no verb may do. Any other makes writes dearer for nothing."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import asyncpg
import pytest

import runyard_backends.postgres
from tests.support.many_runs import LONG, TENANT, fill

RUNS, THREADS = 3000, 150
PAGE = "50, 1000000"
KEY = f"(SELECT thread_key FROM runyard.threads WHERE tenant = '{TENANT}' AND thread_id = '{LONG}')"
EXTRAS = f"""
INSERT INTO runyard.limits (limit_name, most) VALUES ('running_per_agent', 1000), ('running_per_tenant', 1000),
    ('queued', 9000), ('queued_per_tenant', 9000);
INSERT INTO runyard.limits (limit_name, subject, most) VALUES ('running_per_agent', 'default', 100);
INSERT INTO runyard.workers (worker_id, queues) VALUES ('w', '{{default}}');
INSERT INTO runyard.permit_turns (permit, tenant) SELECT 'agent default', 'tenant-' || n FROM generate_series(1, 500) n;
INSERT INTO runyard.runs (tenant, thread_id, run_id, kind, status, queue, priority, request_hash, lane, lane_seq, admitted_at,
    waits_for_permit, place_in_line)
SELECT 'tenant-' || n, 't', 'r', 'prompt', 'queued', 'default', 'normal', '{{}}', '', n, now(), 'agent default', n
FROM generate_series(1, 500) n;
INSERT INTO runyard.runs (tenant, thread_id, run_id, kind, status, queue, priority, request_hash, run_at)
SELECT 'late', 'late-' || n, 'r', 'prompt', 'queued', 'default', 'normal', '{{}}', now() + interval '1 hour'
FROM generate_series(1, 500) n;
INSERT INTO runyard.webhook_deliveries (tenant, url, type, thread_id, next_at, delivered_at, failed_at)
SELECT '{TENANT}', 'https://example.com/hook', 'run.completed', 't', CASE n % 3 WHEN 0 THEN now() END,
       CASE n % 3 WHEN 1 THEN now() END, CASE n % 3 WHEN 2 THEN now() END FROM generate_series(1, 3000) n;
SELECT runyard.graph_put('{TENANT}', 0, 'g-' || n % 300, NULL, NULL, '', 'c-' || n, NULL, 'k', 'x',
    jsonb_build_object('run_id', 'r-' || n), '{{m}}', ARRAY[n::text],
    ARRAY[('m', n::text, 'list', NULL, '{{0,0,1}}', NULL, 0, '{{1}}', ARRAY['x'::bytea])::runyard.new_graph_value])
FROM generate_series(1, 3000) n;
SELECT runyard.graph_put_writes('{TENANT}', 0, 'g-' || n % 300, NULL, NULL, '', 'c-' || n, 'task', '',
    ARRAY[(0, 'm', 'k', 'x')::runyard.new_graph_write]) FROM generate_series(1, 3000) n;
SELECT runyard.graph_copy('{TENANT}', 'g-' || n, 'copy-' || n) FROM generate_series(1, 200) n;
INSERT INTO runyard.graph_lines (tenant, owner_key, graph_id, holder)
SELECT '{TENANT}', n, 'r', 'run-' || n % 9 FROM generate_series(1, 1000) n;
INSERT INTO runyard.graph_marks (thread_key, message_id, line_id, position)
SELECT n, gen_random_uuid(), n, 1 FROM generate_series(1, 2000) n;
SELECT runyard.fork('{TENANT}', '{{"src": "{LONG}", "new": "a-fork", "cut": {{}}, "tags": {{}}}}', 'hash')
"""
LIVE = f"SELECT * FROM runyard.list_runs('{TENANT}', NULL, '{{}}', NULL, NULL, NULL, NULL, NULL, {PAGE})"
RUNS_OF = f"SELECT * FROM runyard.list_runs('{TENANT}', {{}}, NULL, {{}}, NULL, NULL, NULL, NULL, {PAGE})"
THREADS_OF = "; ".join(
    f"SELECT * FROM runyard.list_threads_v2('{TENANT}', {{0}}, {{1}}, '{{2}}', NULL, {newest_first}, {PAGE})"
    for newest_first in ("false", "true")
)
REQUESTS_OF = f"SELECT * FROM runyard.list_requests('{TENANT}', {{}}, {{}}, NULL, NULL, {PAGE})"
DELIVERIES = f"SELECT * FROM runyard.list_deliveries('{TENANT}', {{}}, 9000000000, 50)"
ADMIT = "SELECT runyard.admit(100)"
PRUNE = "SELECT runyard.prune('0 s', '0 s', '0 s', 100)"
DELETE = f"SELECT runyard.delete_thread('{TENANT}', 'thread-77', true, NULL)"
A_QUEUED_RUN = f"FROM runyard.runs WHERE tenant = '{TENANT}' AND status = 'queued' LIMIT 1"
CANCEL = f"SELECT runyard.cancel('{TENANT}', thread_id, run_id, false) {A_QUEUED_RUN}"
ACCEPT = f"SELECT runyard.accept('{LONG}', 'hello', agent => 'default', tenant => '{TENANT}'); {ADMIT}"
CLAIM = f"SELECT runyard.claim('w', ARRAY[thread_key], ARRAY[run_id]) {A_QUEUED_RUN}"
HEAD = f"FROM runyard.threads WHERE thread_key = {KEY}"
SNAPSHOT = f"FROM runyard.known_snapshot('{TENANT}', '{LONG}') t"
A_RUN = f"FROM runyard.runs r WHERE r.thread_key = {KEY} AND r.run_id = 'run-4'"

GRAPH_LATEST = f"SELECT runyard.graph_latest('{TENANT}', 0, 'copy-7', '', NULL)"
GRAPH_DELETE = f"SELECT runyard.graph_delete('{TENANT}', 'copy-7')"
GRAPH_PUT = (
    f"SELECT runyard.graph_put('{TENANT}', 0, 'g-7', NULL, NULL, '', 'c', NULL, 'k', 'x', '{{}}', '{{m}}', '{{7}}', "
    "ARRAY[('m', '7', 'list', NULL, '{7,0,1}', 7, 1, NULL, NULL)::runyard.new_graph_value])"
)

SIGNAL = f"SELECT runyard.send_signal('{TENANT}', '{LONG}', 's', 'paid', '1', NULL, 1000)"

BATCH = json.dumps(
    {
        "thread_id": LONG, "run_id": "batched", "kind": "fork_many", "parallel": False,
        "fork": {"cut": {}, "fan": {"threads": True}, "batch": {"id": "00000000-0000-4000-8000-000000000001", "total": 1}},
    }
)  # fmt: skip
OPEN_BATCHES = f"SELECT runyard.begin_batch('{TENANT}', jsonb_populate_record(NULL::runyard.request, '{BATCH}'))"

LEAVES = f"SELECT runyard.list_leaves('{TENANT}', '{LONG}', false, NULL, NULL, 10)"

SERVES: dict[str, str] = {
    "labels_pkey": LEAVES,
    "threads_pkey": f"SELECT runyard.lock_run({KEY}, 'run-4')",
    "threads_id": f"SELECT runyard.known_snapshot('{TENANT}', '{LONG}')",
    "threads_list": THREADS_OF.format("NULL", "NULL", "{}"),
    "threads_list_of_agent": THREADS_OF.format("NULL", "'default'", "{}"),
    "threads_list_of_parent": THREADS_OF.format("'thread-2'", "NULL", "{}"),
    "thread_tags_pkey": THREADS_OF.format("NULL", "NULL", '{"env": "prod"}'),
    "branches_pkey": f"SELECT runyard.path_page('{TENANT}', '{LONG}', NULL, 0, 900000, 10, false, NULL)",
    "branches_thread": LEAVES,
    "levels_pkey": f"SELECT runyard.path_page('{TENANT}', '{LONG}', NULL, 0, 900000, 10, false, NULL)",
    "levels_ancestor": DELETE,
    "erasures_pkey": f"SELECT runyard.held_until(runyard.branch_view(head_branch), '[]') {HEAD}",
    "messages_pkey": f"SELECT runyard.path_page('{TENANT}', '{LONG}', NULL, 0, 900000, 10, false, NULL)",
    "messages_id": f"SELECT runyard.holder_of({KEY}, gen_random_uuid())",
    "messages_tools": f"SELECT runyard.open_calls(runyard.branch_view(head_branch)) {HEAD}",
    "runs_pkey": CANCEL,
    "runs_id": f"SELECT runyard.explain('{TENANT}', '{LONG}', 'run-4')",
    "runs_key": f"SELECT runyard.lock_run({KEY}, 'run-4')",
    "runs_search": f"SELECT runyard.find_runs('{TENANT}', 'run-4', 10)",
    "runs_unadmitted": f"SELECT runyard.admit_thread(t) {SNAPSHOT}",
    "runs_due": ADMIT,
    "runs_waiting": CANCEL,
    "runs_started_by": f"SELECT runyard.count_started_by(r) {A_RUN}",
    "runs_list": RUNS_OF.format("NULL", "NULL"),
    "runs_list_of_agent": RUNS_OF.format("NULL", "'default'"),
    "runs_list_of_thread": RUNS_OF.format(f"'{LONG}'", "NULL"),
    "runs_list_hosted": RUNS_OF.format(f"'{LONG}'", "NULL"),
    "live_runs_pkey": CANCEL,
    "live_runs_lane": CLAIM,
    "live_runs_expiring": ADMIT,
    "live_runs_worker": "SELECT * FROM runyard.orphans('', 100)",
    "live_runs_of_agent": "SELECT runyard.free_permits('agent default')",
    "live_runs_of_tenant": LIVE.format("suspended"),
    "live_runs_suspended": "SELECT * FROM runyard.queue_states()",
    "live_runs_queued": LIVE.format("queued"),
    "live_runs_waiting_since": "SELECT * FROM runyard.waiting('0 s', NULL, NULL, NULL, 100)",
    "live_runs_line": "SELECT runyard.next_for_permit('agent default')",
    "completions_pkey": f"SELECT runyard.last_completed(t) {SNAPSHOT}",
    "completions_with_extra": f"SELECT runyard.extra_at(runyard.branch_view(head_branch)) {HEAD}",
    "unsuccessful_runs_pkey": DELETE,
    "unsuccessful_runs_list": LIVE.format("failed"),
    "unsuccessful_runs_of_thread": LEAVES,
    "fork_results_pkey": DELETE,
    "fork_results_by_age": PRUNE,
    "unclaimed_pkey": f"SELECT runyard.claim_external('{TENANT}', '{LONG}', 'an-id')",
    "attempts_pkey": f"SELECT * FROM runyard.list_attempts('{TENANT}', '{LONG}', 'run-4', 0, {PAGE})",
    "steps_pkey": DELETE,
    "hitl_requests_pkey": f"SELECT runyard.request_for('{TENANT}', NULL, request_id, NULL) FROM runyard.hitl_requests "
    f"WHERE tenant = '{TENANT}' AND answered_at IS NULL LIMIT 1",
    "hitl_responses": f"SELECT * FROM runyard.requests WHERE thread_key = {KEY} AND response_id = 'r'",
    "hitl_run": CANCEL,
    "hitl_deadlines": ADMIT,
    "hitl_pending": REQUESTS_OF.format("NULL", "true"),
    "hitl_list": REQUESTS_OF.format("NULL", "false"),
    "hitl_list_of_thread": REQUESTS_OF.format(f"'{LONG}'", "false"),
    "hitl_pending_of_thread": REQUESTS_OF.format(f"'{LONG}'", "true"),
    "waits_pkey": f"SELECT runyard.put_waits(r, ARRAY[('w', 'sleep', NULL, NULL, 60)::runyard.new_wait]) {A_RUN}",
    "waits_due": ADMIT,
    "waits_open": SIGNAL,
    "signals_pkey": SIGNAL,
    "signals_open": SIGNAL,
    "removals_pkey": f"SELECT runyard.remove_step({KEY}, 10)",
    "removals_id": f"SELECT runyard.check_removed('{TENANT}', 'thread-77')",
    "workers_pkey": "SELECT runyard.beat('w')",
    "paused_queues_pkey": f"SELECT runyard.explain('{TENANT}', '{LONG}', 'run-4')",
    "agents_pkey": ACCEPT,
    "default_agents_pkey": "SELECT runyard.agent_of(NULL, NULL)",
    "leases_pkey": "SELECT runyard.lead('reconciler', 'w', 3)",
    "limits_limit_name_subject_key": "SELECT runyard.limit_of('running_per_agent', 'default')",
    "permit_turns_pkey": "SELECT runyard.take_turn('agent default', 'tenant-7')",
    "permit_turns_order": "SELECT runyard.first_in_line('agent default', 10)",
    "queue_sizes_pkey": "SELECT runyard.queue_size(NULL, 100, true)",
    "outbox_pkey": f"SELECT runyard.feed('{TENANT}', NULL, NULL, 100)",
    "pruned_pkey": f"SELECT runyard.feed('{TENANT}', 1, 1, 100)",
    "usage_days_pkey": f"SELECT runyard.usage_of('{TENANT}', '', '2026-01-01', '2026-02-01')",
    "webhooks_pkey": "SELECT runyard.remove_webhook('other-1', 'hook-1')",
    "webhooks_of_tenant": "SELECT min(w.cursor) FROM runyard.webhooks w WHERE w.tenant = 'other-1'",
    "webhook_keys_pkey": "SELECT version FROM runyard.webhook_keys WHERE tenant = 'other-1'",
    "removed_webhooks_pkey": "SELECT runyard.add_webhook('hook', NULL, 'https://example.com/hook', '{}', 1000)",
    "webhook_deliveries_pkey": "SELECT runyard.settle_webhook(1, 1, 'delivered', 200, NULL, 0)",
    "webhook_deliveries_delivery_id_key": f"SELECT runyard.redeliver('{TENANT}', 'msg_1')",
    "webhook_deliveries_due": "SELECT runyard.take_webhooks('{}', '', 10, 10, 1)",
    "webhook_deliveries_oldest": "SELECT min(d.created_at) FROM runyard.webhook_deliveries d WHERE d.next_at IS NOT NULL",
    "webhook_deliveries_of_owner": DELIVERIES.format("NULL"),
    "webhook_deliveries_owner_failed": DELIVERIES.format("'failed'"),
    "webhook_deliveries_owner_delivered": DELIVERIES.format("'delivered'"),
    "webhook_deliveries_owner_pending": DELIVERIES.format("'pending'"),
    "webhook_deliveries_over": PRUNE,
    "candidate_batches_pkey": "SELECT runyard.store_candidates('00000000-0000-4000-8000-000000000001', 0, '{x}')",
    "candidates_pkey": "SELECT c.message FROM runyard.candidates c WHERE c.batch = gen_random_uuid() AND c.number = 1",
    "candidate_batches_of_run": "SELECT runyard.drop_records('{1}', 10)",
    "candidate_batches_of_tenant": OPEN_BATCHES,
    "candidate_batches_left": "SELECT runyard.prune_candidates(10)",
    "api_keys_pkey": "SELECT k.* FROM runyard.api_keys k WHERE k.key_id = 'key-1'",
    "api_keys_tenant": "SELECT k.* FROM runyard.api_keys k WHERE k.tenant = 'other-1' ORDER BY k.created_at, k.key_id",
    "graph_lines_pkey": GRAPH_DELETE,
    "graph_lines_id": GRAPH_LATEST,
    "graph_lines_owner": f"SELECT runyard.graph_remove({KEY}, false)",
    "graph_levels_pkey": GRAPH_LATEST,
    "graph_levels_ancestor": GRAPH_DELETE,
    "graph_checkpoints_pkey": GRAPH_LATEST,
    "graph_checkpoints_run": f"SELECT runyard.graph_delete_runs_v2('{TENANT}', '{{r-7}}')",
    "graph_values_pkey": GRAPH_LATEST,
    "graph_values_version": GRAPH_PUT,
    "graph_streams_pkey": GRAPH_PUT,
    "graph_streams_line": GRAPH_DELETE,
    "graph_chunks_pkey": "SELECT runyard.graph_items('{1,0,1}')",
    "graph_writes_pkey": GRAPH_LATEST,
    "graph_marks_pkey": f"SELECT runyard.graph_find_mark(t, ARRAY(SELECT m.message_id FROM runyard.graph_marks m LIMIT 1)) "
    f"{SNAPSHOT}",
    "graph_marks_line": GRAPH_DELETE,
    "schema_versions_pkey": "SELECT max(version) FROM runyard.schema_versions",
    "schema_functions_pkey": "INSERT INTO runyard.schema_functions (file, digest, release, made) "
    "VALUES ('claim', '', '{1}', '{}') ON CONFLICT (file) DO NOTHING",
}
"""An index, and a call that reads it: mostly of a stored function, else a statement of ``queries.sql``."""
GUARDS = {
    "live_runs_active": "at most one run of a lane is running or suspended; tests/integration/postgres/test_last_guards.py",
    "prune_place_pkey": "the table has one row",
    "usage_counter_pkey": "the table has one row",
}
"""Unique indexes that refuse rows, and that no statement reads."""

pytestmark = pytest.mark.xdist_group("indexes")


@pytest.fixture(scope="module")
def filled(module_postgres_url: str) -> str:
    async def make() -> None:
        connection = await asyncpg.connect(module_postgres_url)
        await fill(connection, RUNS, THREADS)
        await connection.execute(EXTRAS)
        await connection.execute("ANALYZE")
        await connection.close()

    asyncio.run(make())
    return module_postgres_url


async def scans(connection: asyncpg.Connection) -> dict[str, int]:
    """How often each index was read."""
    await connection.execute("SELECT pg_stat_force_next_flush()")
    found = await connection.fetch("SELECT indexrelname, idx_scan FROM pg_stat_user_indexes WHERE schemaname = 'runyard'")
    return {row["indexrelname"]: row["idx_scan"] for row in found}


@pytest.mark.parametrize("plans", ["force_generic_plan", "force_custom_plan"])
async def test_every_index_serves_a_statement(filled: str, plans: str) -> None:
    """Q2: by a plan for these arguments, and by one that a connection keeps for all."""
    connection = await asyncpg.connect(filled)
    idle = []
    try:
        await connection.execute(f"SET enable_seqscan = off; SET plan_cache_mode = {plans}")
        before = await scans(connection)
        assert before.keys() == SERVES.keys() | GUARDS.keys()
        for index, call in SERVES.items():
            await connection.execute("BEGIN")
            await connection.execute(call)
            await connection.execute("ROLLBACK")
            after = await scans(connection)
            if after[index] == before[index]:
                idle.append(index)
            before = after
    finally:
        await connection.close()
    assert idle == []


def test_the_calls_are_of_stored_functions_or_statements_of_runyard() -> None:
    """A call that no code of runyard makes would keep an index alive for nothing."""
    folder = Path(runyard_backends.postgres.__file__).parent
    code = "\n".join(file.read_text() for file in [*folder.glob("functions/*.sql"), *folder.glob("*.sql")])
    called = {name for call in SERVES.values() for name in re.findall(r"runyard\.(\w+)\(", call)}
    assert called and not {name for name in called if not re.search(rf"FUNCTION runyard\.{name}\(", code)}
