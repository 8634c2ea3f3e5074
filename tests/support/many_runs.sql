-- Statements of many_runs.py, by name.

-- name: threads
INSERT INTO runyard.threads (tenant, thread_id, head_branch, agent, tags, parent_thread_id, created_at)
SELECT $1, 'thread-' || n, nextval('runyard.branch_numbers'), CASE WHEN n % 5000 = 9 THEN 'archive' ELSE 'default' END,
       jsonb_build_object('env', 'prod', 'customer', (n % 1000)::text), CASE WHEN n % 10 = 5 THEN 'thread-2' WHEN n % 10 = 6 THEN 'thread-3' END,
       timestamptz '2026-01-01' + n * interval '1 second'
FROM generate_series(1, $2::int) n

-- name: branches
INSERT INTO runyard.branches (branch_id, thread_key, lane) SELECT head_branch, thread_key, '' FROM runyard.threads WHERE tenant = $1

-- name: runs
INSERT INTO runyard.runs (tenant, thread_id, run_id, thread_key, kind, status, lane, lane_seq, agent, queue, priority, input, input_id,
    input_role, request_hash, metadata, branch_id, first_seq, last_seq, fence, worker_id, attempt, completion_seq, high_water_seq,
    accepted_at, admitted_at, started_at, suspended_at, finished_at, changed_at)
SELECT $1, t.thread_id, 'run-' || n, t.thread_key, 'prompt', s.status, CASE WHEN s.ended THEN '' ELSE 'run-' || n END,
       nextval('runyard.lane_numbers'), CASE WHEN n % 5000 = 9 THEN 'archive' ELSE 'default' END, 'default', 'normal',
       '{"content": [{"type": "text", "text": "hello"}]}', gen_random_uuid(), 'user', '{}', '{}', t.head_branch, 2 * n, 2 * n + 1,
       CASE WHEN s.status <> 'queued' THEN n END, CASE WHEN s.status = 'running' THEN 'worker-' || n % 50 END, 1,
       CASE WHEN s.status = 'completed' THEN n END, CASE WHEN s.status = 'completed' THEN 2 * n + 1 END,
       w.at, w.at, CASE WHEN s.status <> 'queued' THEN w.at END, CASE WHEN s.status = 'suspended' THEN w.at END,
       CASE WHEN s.ended THEN w.at END, w.at
FROM generate_series(1, $2::int) n
CROSS JOIN LATERAL (SELECT timestamptz '2026-01-01' + n * interval '1 second' AS at) w
CROSS JOIN LATERAL (SELECT CASE WHEN n % 1000 < 10 THEN 'failed' WHEN n % 1000 = 10 THEN 'dead' WHEN n % 1000 = 11 THEN 'cancelled'
    WHEN n % 1000 = 12 THEN 'suspended' WHEN n % 1000 < 18 THEN 'queued' WHEN n % 1000 = 18 THEN 'running' ELSE 'completed' END AS status) k
CROSS JOIN LATERAL (SELECT k.status, k.status IN ('failed', 'dead', 'cancelled', 'completed') AS ended) s
JOIN runyard.threads t ON t.tenant = $1
    AND t.thread_id = 'thread-' || CASE WHEN n % 10 = 4 THEN 1 ELSE 2 + (n::bigint * 7919) % ($3::int - 1) END
ORDER BY n

-- name: messages
INSERT INTO runyard.messages (branch_id, seq, message_id, run_id, role, payload, created_at)
SELECT r.branch_id, r.first_seq + m, gen_random_uuid(), r.run_id, (ARRAY['user', 'assistant'])[m + 1],
       '{"content": [{"type": "text", "text": "hello"}]}', r.accepted_at
FROM runyard.runs r, generate_series(0, 1) m
WHERE r.tenant = $1 AND r.status IN ('completed', 'failed') AND ($2 OR r.thread_id = 'thread-1')

-- name: leaves
UPDATE runyard.branches b SET leaf_id = m.message_id, leaf_seq = m.seq FROM (
    SELECT DISTINCT ON (x.branch_id) x.branch_id, x.seq, x.message_id FROM runyard.messages x ORDER BY x.branch_id, x.seq DESC) m
WHERE m.branch_id = b.branch_id

-- name: next_numbers
UPDATE runyard.threads t SET next_seq = b.leaf_seq + 1 FROM runyard.branches b WHERE b.branch_id = t.head_branch

-- name: requests
INSERT INTO runyard.hitl_requests (tenant, request_id, thread_key, run_id, kind, body, answer, answered_at, created_at)
SELECT r.tenant, 'request-' || r.accept_no, r.thread_key, r.run_id, 'question', '{"payload": {}}',
       CASE WHEN r.status <> 'suspended' THEN decode('a3796573', 'hex') END, CASE WHEN r.status <> 'suspended' THEN r.accepted_at END, r.accepted_at
FROM runyard.runs r WHERE r.tenant = $1 AND (r.status = 'suspended' OR r.completion_seq % 3 = 0)

-- name: outbox
INSERT INTO runyard.outbox (tenant, thread_key, thread_id, run_id, type)
SELECT r.tenant, r.thread_key, r.thread_id, r.run_id, 'run.completed' FROM runyard.runs r WHERE r.tenant = $1 AND r.status = 'completed'

-- name: deliveries
INSERT INTO runyard.webhook_deliveries (tenant, url, type, thread_id, run_id, next_at, delivered_at, failed_at)
SELECT r.tenant, 'https://example.com/hook', 'run.completed', r.thread_id, r.run_id,
       CASE WHEN r.completion_seq % 1000 = 30 THEN now() END, CASE WHEN r.completion_seq % 1000 NOT IN (30, 40) THEN now() END,
       CASE WHEN r.completion_seq % 1000 = 40 THEN now() END
FROM runyard.runs r WHERE r.tenant = $1 AND r.completion_seq % 10 = 0

-- name: keys
INSERT INTO runyard.api_keys (key_id, tenant, name, scopes, digest) SELECT 'key-' || n, 'other-' || n, 'a key', '{read}', '' FROM generate_series(1, 1000) n
ON CONFLICT DO NOTHING

-- name: webhooks
INSERT INTO runyard.webhooks (webhook_id, tenant, url, events)
SELECT 'hook-' || n, 'other-' || n, 'https://example.com/hook', '{}' FROM generate_series(1, 1000) n
ON CONFLICT DO NOTHING

-- name: indexes
SELECT i.indexrelid::regclass::text AS name, pg_get_indexdef(i.indexrelid) AS made
FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid JOIN pg_namespace s ON s.oid = c.relnamespace
WHERE s.nspname = 'runyard' AND c.relname = ANY ($1) AND NOT EXISTS (SELECT 1 FROM pg_constraint o WHERE o.conindid = i.indexrelid)
