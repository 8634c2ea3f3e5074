-- Statements of load.py, by name. The tenants that they fill have names. The triggers of the table of runs are off: the last statements write what they would have written.

-- name: threads
INSERT INTO runyard.threads (tenant, thread_id, head_branch, agent, created_at)
SELECT 'tenant-' || n % $2::int, 'thread-' || n, nextval('runyard.branch_numbers'), 'scripted', now() - interval '30 days' + n * interval '1 second'
FROM generate_series(1, $1::int) n

-- name: branches
INSERT INTO runyard.branches (branch_id, thread_key, lane) SELECT head_branch, thread_key, '' FROM runyard.threads WHERE tenant <> ''

-- name: ended
INSERT INTO runyard.runs (tenant, thread_id, run_id, thread_key, kind, status, lane, lane_seq, agent, queue, priority, input, input_id,
    input_role, request_hash, branch_id, base_id, snapshot_tip, snapshot_cutoff, first_seq, last_seq, last_message_id, fence, worker_id, attempt,
    completion_seq, high_water_seq, accepted_at, admitted_at, started_at, finished_at, changed_at)
SELECT t.tenant, t.thread_id, 'ended-' || n, t.thread_key, 'prompt', s.status, '', nextval('runyard.lane_numbers'), 'scripted', 'default', 'normal',
       NULL, gen_random_uuid(), 'user', '{}', t.head_branch, NULL, 2 * n - 1, n - 1, 2 * n, 2 * n + 1, gen_random_uuid(),
       nextval('runyard.fences'), 'worker-' || n % 50, 1, CASE WHEN s.status = 'completed' THEN n END,
       CASE WHEN s.status = 'completed' THEN 2 * n + 1 END, w.at, w.at, w.at, w.at, w.at
FROM generate_series(1, $1::int) n
CROSS JOIN LATERAL (SELECT now() - interval '20 days' + n * interval '1 second' AS at) w
CROSS JOIN LATERAL (SELECT CASE n % 200 WHEN 0 THEN 'failed' WHEN 1 THEN 'cancelled' ELSE 'completed' END AS status) s
JOIN runyard.threads t ON t.thread_key = $2::bigint + (n * 7919::bigint) % $3::int

-- name: messages
INSERT INTO runyard.messages (branch_id, seq, message_id, run_id, role, payload, created_at)
SELECT r.branch_id, r.first_seq + m, CASE m WHEN 0 THEN r.input_id ELSE r.last_message_id END, r.run_id, (ARRAY['user', 'assistant'])[m + 1],
       '{"content": [{"type": "text", "text": "hello"}]}', r.accepted_at
FROM runyard.runs r, generate_series(0, 1) m WHERE r.tenant <> '' AND r.status IN ('completed', 'failed', 'cancelled')

-- name: outbox
INSERT INTO runyard.outbox (tenant, thread_key, thread_id, run_id, type)
SELECT r.tenant, r.thread_key, r.thread_id, r.run_id, 'run.completed' FROM runyard.runs r WHERE r.tenant <> '' AND r.status = 'completed'

-- name: parked
INSERT INTO runyard.runs (tenant, thread_id, run_id, thread_key, kind, status, lane, lane_seq, agent, queue, priority, request_hash,
    branch_id, fence, attempt, accepted_at, admitted_at, started_at, suspended_at, changed_at)
SELECT t.tenant, t.thread_id, 'parked-' || n, t.thread_key, 'prompt', 'suspended', 'parked-' || n, nextval('runyard.lane_numbers'), 'scripted',
       'default', 'normal', '{}', t.head_branch, nextval('runyard.fences'), 1, w.at, w.at, w.at, w.at, w.at
FROM generate_series(1, $1::int) n
CROSS JOIN LATERAL (SELECT now() - interval '5 days' + n * interval '0.1 second' AS at) w
JOIN runyard.threads t ON t.thread_key = $2::bigint + (n * 7919::bigint) % $3::int

-- name: requests
INSERT INTO runyard.hitl_requests (tenant, request_id, thread_key, run_id, kind, body, created_at)
SELECT r.tenant, 'request-' || r.accept_no, r.thread_key, r.run_id, 'question', decode('81a77061796c6f616480', 'hex'), r.suspended_at
FROM runyard.runs r WHERE r.tenant <> '' AND r.status = 'suspended'

-- name: queued
INSERT INTO runyard.runs (tenant, thread_id, run_id, thread_key, kind, status, lane, lane_seq, agent, queue, priority, request_hash,
    accepted_at, admitted_at, changed_at)
SELECT t.tenant, t.thread_id, 'queued-' || n, t.thread_key, 'prompt', 'queued', '', nextval('runyard.lane_numbers'), 'scripted',
       'unserved', 'normal', '{}', w.at, w.at, w.at
FROM generate_series(1, $1::int) n
CROSS JOIN LATERAL (SELECT now() - interval '1 day' + n * interval '0.1 second' AS at) w
JOIN runyard.threads t ON t.thread_key = $2::bigint + (n * 7919::bigint) % $3::int

-- name: live
INSERT INTO runyard.live_runs (accept_no, tenant, thread_id, run_id, thread_key, lane, lane_seq, queue, agent, status, worker_id, accepted_at, changed_at,
    waits_since)
SELECT r.accept_no, r.tenant, r.thread_id, r.run_id, r.thread_key, r.lane, r.lane_seq, r.queue, r.agent, r.status, r.worker_id, r.accepted_at, r.changed_at, r.changed_at
FROM runyard.runs r WHERE r.tenant <> '' AND r.finished_at IS NULL

-- name: completions
INSERT INTO runyard.completions (branch_id, completion_seq, thread_key, accept_no, with_extra)
SELECT r.branch_id, r.completion_seq, r.thread_key, r.accept_no, false FROM runyard.runs r WHERE r.tenant <> '' AND r.completion_seq IS NOT NULL

-- name: unsuccessful
INSERT INTO runyard.unsuccessful_runs (accept_no, tenant, thread_key, status, accepted_at)
SELECT r.accept_no, r.tenant, r.thread_key, r.status, r.accepted_at FROM runyard.runs r WHERE r.tenant <> '' AND r.status IN ('failed', 'cancelled')

-- name: next
UPDATE runyard.threads SET next_seq = $1::bigint * 2 + 2, next_completion_seq = $1::bigint + 1 WHERE tenant <> ''
