-- The plain path: accept_many, claim and complete process the usual runs of a batch together, in few statements. A statement for 32 runs
-- costs little more than one for a single run. These functions process all other runs one by one, with the same result.
--
-- A plain run is a prompt without a parent message on the lane ''. Its thread is no fork and has no unadmitted runs. The run was never
-- claimed before. It completes with messages that have new ids, and no tool calls or results. The deployment has no limits.
--
-- Each function locks its threads in the order of their keys, in one statement. If a lock is not free in time, the function
-- changes nothing. All its writes are inside the block with the exception handler: it costs more to change a row outside of
-- the subtransaction that has locked the row. With the settings of these functions, generic plans find every row by an index.
-- Such plans suit tables of any size.

-- Accept and admit the plain requests. Return one row per new run. Two kinds of requests are left to the caller: repetitions, and requests
-- for a thread that also has a request that is not plain. The requests and their threads are joined by hash: a nested loop compares each of
-- a thousand requests with each thread. The tables are read by LATERAL subqueries, for which Postgres uses nested loops in any case.
CREATE OR REPLACE FUNCTION runyard.accept_plain(for_tenant text, requests runyard.request[]) RETURNS SETOF runyard.accepted
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_nestloop = off SET enable_mergejoin = off SET enable_bitmapscan = off AS $$
DECLARE
    names text[]; run_ids text[]; -- the thread and the run of each request
    special text[]; -- the threads with a request that is not plain
    named text[] := '{}'; -- the threads without an agent for which a request names one
    keys bigint[]; ids text[]; agents text[]; floors bigint[]; -- the columns of the threads
    makes boolean; -- whether threads are missing
    a runyard.accepted;
    usual_timeout text := current_setting('lock_timeout'); ignored text;
BEGIN
    SELECT array_agg(q.thread_id), array_agg(q.run_id),
           coalesce(array_agg(q.thread_id) FILTER (WHERE (
               q.kind = 'prompt' AND q.multitask_strategy = 'enqueue' AND NOT q.parallel AND q.input_id IS NOT NULL AND q.parent_id IS NULL
               AND q.run_at IS NULL AND q.delay IS NULL AND q.candidates IS NULL AND NOT q.options ? 'expires_in'
               AND q.started_by_key IS NULL AND octet_length(q.input) <= runyard.default_message_bytes()) IS NOT TRUE), '{}')
    INTO names, run_ids, special FROM unnest(requests) q;
    keys := ARRAY(SELECT t.thread_key FROM unnest(names) q(thread_id)
                  CROSS JOIN LATERAL (SELECT x.thread_key FROM runyard.threads x
                                      WHERE x.tenant = for_tenant AND x.thread_id = q.thread_id AND x.deleted_at IS NULL LIMIT 1) t);
    makes := cardinality(keys) < cardinality(names) AND special = '{}'; -- a refused request must not make a thread
    SELECT array_agg(l.thread_key), array_agg(l.thread_id), array_agg(l.agent), array_agg(l.lane_floor) INTO keys, ids, agents, floors
    FROM (SELECT t.thread_key, t.thread_id, t.agent,
              CASE WHEN t.parent_thread_id IS NULL AND t.deleted_at IS NULL THEN t.lane_floor END AS lane_floor
          FROM runyard.threads t WHERE t.thread_key = ANY (keys) ORDER BY t.thread_key + 0 FOR UPDATE) l; -- those that are deleted are not plain
    IF makes THEN
        SELECT keys || array_agg(t.thread_key), ids || array_agg(t.thread_id), agents || array_agg(t.agent), floors || array_agg(t.lane_floor)
        INTO keys, ids, agents, floors FROM runyard.make_threads(for_tenant, requests) t;
    END IF;
    IF array_position(agents, NULL) IS NOT NULL THEN
        named := ARRAY(SELECT q.thread_id FROM unnest(requests) q WHERE runyard.agent_of(q.agent, NULL) IS NOT NULL);
    END IF;
    ignored := set_config('lock_timeout', '5ms', true); -- see accept_and_admit
    FOR a IN
        WITH thread AS MATERIALIZED (
            SELECT t.thread_key, t.thread_id, t.agent, live.one IS NOT NULL AS busy
            FROM unnest(keys, ids, agents, floors) t(thread_key, thread_id, agent, lane_floor)
            LEFT JOIN LATERAL (SELECT 1 AS one FROM runyard.live_runs y WHERE y.thread_key = t.thread_key AND y.lane = ''
                               AND y.lane_seq > t.lane_floor LIMIT 1) live ON true
            LEFT JOIN LATERAL (SELECT 1 AS one FROM runyard.runs u WHERE u.tenant = for_tenant AND u.thread_id = t.thread_id
                               AND u.lane_seq IS NULL LIMIT 1) unadmitted ON true
            WHERE t.lane_floor IS NOT NULL AND unadmitted.one IS NULL AND t.thread_id <> ALL (special)
              AND (runyard.is_agent(t.agent) OR t.agent IS NULL AND t.thread_id <> ALL (named))
        ), run AS (
            INSERT INTO runyard.runs AS x (tenant, thread_id, run_id, thread_key, kind, status, lane, lane_seq, admitted_at, agent, queue, priority,
                input, input_id, input_role, input_calls, input_results, request_hash, options, metadata, multitask_strategy, app_version,
                trace_context, accepted_at)
            SELECT for_tenant, q.thread_id, q.run_id, q.thread_key, 'prompt', 'queued', '', nextval('runyard.lane_numbers'), q.now, q.agent,
                coalesce(q.queue, runyard.queue_of(q.agent)), q.priority,
                q.input, q.input_id, q.input_role, q.input_calls, q.input_results, q.request_hash, q.options, q.metadata, 'enqueue',
                q.app_version, q.trace_context, q.now
            FROM (SELECT u.thread_id, u.run_id, t.thread_key, CASE WHEN runyard.is_agent(u.agent) OR t.agent IS NULL THEN u.agent ELSE t.agent END AS agent, u.queue, u.priority, u.input, u.input_id,
                      u.input_role, u.input_calls, u.input_results, u.request_hash, u.options, u.metadata, u.app_version, u.trace_context,
                      clock_timestamp() AS now
                  FROM unnest(requests) WITH ORDINALITY u JOIN thread t ON t.thread_id = u.thread_id ORDER BY u.ordinality) q
            ON CONFLICT (tenant, thread_id, run_id) WHERE NOT deleted DO NOTHING
            RETURNING x.thread_key, x.thread_id, x.run_id, x.lane_seq, x.agent, x.queue, x.priority, x.accepted_at, x.queued_fence
        )
        SELECT k.n, true, 'queued', '', r.agent, r.queue, NULL, NULL, NULL, r.accepted_at, r.accepted_at,
            CASE WHEN NOT t.busy AND r.lane_seq = min(r.lane_seq) OVER (PARTITION BY r.thread_key) THEN
                jsonb_build_object('jobs', jsonb_build_array(runyard.job_of(r.thread_key, r.run_id, '', 'prompt', r.queue, r.priority, for_tenant,
                    NULL, jsonb_build_object('thread_id', r.thread_id, 'fence', r.queued_fence, 'attempt', 1)))) END, NULL
        FROM run r
        JOIN thread t ON t.thread_key = r.thread_key
        JOIN (SELECT u.thread_id, u.run_id, min(u.n)::integer AS n FROM unnest(names, run_ids) WITH ORDINALITY u(thread_id, run_id, n)
              GROUP BY u.thread_id, u.run_id) k ON k.thread_id = r.thread_id AND k.run_id = r.run_id
    LOOP
        RETURN NEXT a;
    END LOOP;
    ignored := set_config('lock_timeout', usual_timeout, true);
EXCEPTION WHEN lock_not_available THEN
    RETURN;
END $$;

-- Claim the plain runs for a worker. Return one row per claimed run. paused, patience: as in runyard.claim.
CREATE OR REPLACE FUNCTION runyard.claim_plain(
    claimant runyard.workers, thread_keys bigint[], run_ids text[], paused text[], patience integer
) RETURNS SETOF runyard.claimed
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off AS $$
DECLARE
    got record;
    c runyard.claimed;
    locked bigint[];
BEGIN
    locked := runyard.lock_threads(thread_keys, patience);
    FOR got IN
        WITH plain AS MATERIALIZED (
            SELECT DISTINCT ON (k.thread_key) k.thread_key, r.accept_no, r.input, a.agent, t.next_seq, t.next_completion_seq, t.head_branch, t.extra, b.leaf_id
            FROM unnest(thread_keys, run_ids) k(thread_key, run_id)
            CROSS JOIN LATERAL (
                SELECT x.accept_no, x.input, x.input_id, x.agent
                FROM runyard.runs x
                WHERE x.thread_key = k.thread_key AND x.run_id = k.run_id AND x.status = 'queued' AND x.kind = 'prompt' AND NOT x.deleted
                  AND x.lane = '' AND x.lane_seq IS NOT NULL AND x.attempt = 0 AND x.snapshot_tip IS NULL AND NOT x.parallel
                  AND x.parent_id IS NULL AND x.input_id IS NOT NULL AND x.input IS NOT NULL AND x.expires_at IS NULL AND x.not_before IS NULL
                  AND x.cancel_requested_at IS NULL AND x.waits_for_permit IS NULL AND x.queue <> ALL (paused)
                LIMIT 1) r
            CROSS JOIN LATERAL (
                SELECT x.next_seq, x.next_completion_seq, x.head_branch, x.lane_floor, x.extra, x.agent FROM runyard.threads x
                WHERE x.thread_key = k.thread_key LIMIT 1) t
            CROSS JOIN LATERAL (SELECT runyard.agent_at_claim(r.agent, t.agent, claimant) AS agent LIMIT 1) a
            CROSS JOIN LATERAL (SELECT x.leaf_id FROM runyard.branches x WHERE x.branch_id = t.head_branch LIMIT 1) b
            CROSS JOIN LATERAL (
                SELECT y.accept_no FROM runyard.live_runs y WHERE y.thread_key = k.thread_key AND y.lane = '' AND y.lane_seq > t.lane_floor
                ORDER BY y.lane_seq LIMIT 1) head
            LEFT JOIN LATERAL (SELECT 1 AS one FROM runyard.messages m WHERE m.message_id = r.input_id LIMIT 1) taken ON true
            LEFT JOIN LATERAL (SELECT 1 AS one FROM runyard.unclaimed v WHERE v.thread_key = k.thread_key AND v.run_id = k.run_id LIMIT 1) early ON true
            WHERE k.thread_key = ANY (locked) AND head.accept_no = r.accept_no AND taken.one IS NULL AND early.one IS NULL
              AND runyard.serves(claimant, a.agent)
            ORDER BY k.thread_key
        ), run AS (
            UPDATE runyard.runs r SET fence = nextval('runyard.fences'), attempt = 1, worker_id = claimant.worker_id, status = 'running',
                agent = p.agent, started_at = greatest(now(), r.admitted_at), branch_id = p.head_branch, base_id = p.leaf_id, snapshot_tip = p.next_seq - 1,
                snapshot_cutoff = p.next_completion_seq - 1, first_seq = p.next_seq, last_seq = p.next_seq, last_message_id = r.input_id,
                has_tools = r.input_calls IS NOT NULL OR r.input_results IS NOT NULL, progressed = false, isolated = false,
                app_version = coalesce(claimant.app_version, r.app_version), changed_at = now(), input = NULL
            FROM plain p WHERE r.accept_no = p.accept_no
            RETURNING r AS row, p.input, p.extra
        ), live AS (
            UPDATE runyard.live_runs l SET status = 'running', worker_id = claimant.worker_id, agent = p.agent, expires_at = NULL, changed_at = now()
            FROM plain p WHERE l.accept_no = p.accept_no
        ), message AS (
            INSERT INTO runyard.messages (branch_id, seq, message_id, parent_id, run_id, role, payload, calls, results, event_id)
            SELECT (r.row).branch_id, (r.row).first_seq, (r.row).input_id, (r.row).base_id, (r.row).run_id, (r.row).input_role, r.input,
                (r.row).input_calls, (r.row).input_results, (r.row).fence || '-2' FROM run r
        ), thread AS (
            UPDATE runyard.threads t SET next_seq = t.next_seq + 1, updated_at = now(),
                agent = CASE WHEN runyard.is_agent(t.agent) THEN t.agent ELSE coalesce(p.agent, t.agent) END FROM plain p WHERE t.thread_key = p.thread_key
        )
        SELECT r.* FROM run r
    LOOP
        c.run := got.row;
        c.run.input := got.input;
        c.thread_key := (c.run).thread_key; c.run_id := (c.run).run_id; c.outcome := 'claimed'; c.takeover := false; c.thread_extra := got.extra;
        RETURN NEXT c;
    END LOOP;
EXCEPTION WHEN lock_not_available THEN
    RETURN;
END $$;

-- Complete the runs of the plain writes. Return one row per completed run. A thread with two writes is left to the caller. message_bytes:
-- the size limit of a message. patience: as in runyard.complete.
CREATE OR REPLACE FUNCTION runyard.complete_plain(writes runyard.attempt_write[], message_bytes bigint, patience integer) RETURNS SETOF runyard.ended
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off AS $$
DECLARE
    e runyard.ended;
    locked bigint[];
BEGIN
    locked := runyard.lock_threads(ARRAY(SELECT w.thread_key FROM unnest(writes) w), patience);
    FOR e IN
        WITH plain AS MATERIALIZED (
            SELECT r.*, w.messages, w.fence || '-' AS prefix, w.first_event, coalesce(cardinality(w.messages), 0) AS many,
                (w.messages[cardinality(w.messages)]).message_id AS new_leaf, coalesce(w.result, r.stored_result) AS result,
                CASE WHEN w.usage IS NULL THEN r.used ELSE runyard.add_usage(coalesce(r.used, '{}'), w.usage) END AS usage,
                t.next_seq, t.next_completion_seq, CASE WHEN t.extra_changed THEN t.extra END AS extra,
                coalesce(head.lane_seq - 1, greatest(t.lane_floor, r.lane_seq)) AS lane_floor, head.job
            FROM (SELECT v.*, count(*) OVER (PARTITION BY v.thread_key) AS same FROM unnest(writes) v) w
            CROSS JOIN LATERAL (
                SELECT x.accept_no, x.tenant, x.thread_id, x.thread_key, x.run_id, x.lane_seq, x.agent, x.branch_id, x.snapshot_tip,
                    x.first_seq, x.last_seq, x.last_message_id, coalesce(x.last_message_id, x.base_id) AS before, x.usage AS used,
                    x.result AS stored_result
                FROM runyard.runs x
                WHERE x.thread_key = w.thread_key AND x.run_id = w.run_id AND x.fence = w.fence AND x.status = 'running' AND x.kind = 'prompt'
                  AND x.lane = '' AND x.attempt = 1 AND x.event_id IS NULL AND x.cancel_requested_at IS NULL AND NOT x.has_tools AND x.extra IS NULL
                  AND x.started_by_key IS NULL AND x.usage_before IS NULL AND x.fork IS NULL AND x.completion_seq IS NULL
                  AND x.options->>'webhook' IS NULL
                LIMIT 1) r
            CROSS JOIN LATERAL (
                SELECT x.next_seq, x.next_completion_seq, x.lane_floor, x.extra, x.extra_changed FROM runyard.threads x
                WHERE x.thread_key = w.thread_key LIMIT 1) t
            LEFT JOIN LATERAL (
                SELECT 1 AS one FROM unnest(w.messages) m
                LEFT JOIN LATERAL (SELECT 1 AS one FROM runyard.messages h WHERE h.message_id = m.message_id LIMIT 1) taken ON true
                WHERE m.calls IS NOT NULL OR m.results IS NOT NULL OR taken.one IS NOT NULL LIMIT 1) special ON true
            LEFT JOIN LATERAL (SELECT 1 AS one FROM runyard.runs x WHERE x.thread_key = w.thread_key AND x.after_run_id = w.run_id LIMIT 1) waits ON true
            LEFT JOIN LATERAL (
                SELECT l.lane_seq, CASE WHEN x.status = 'queued' AND x.kind = 'prompt' THEN
                    runyard.job_of(x.thread_key, x.run_id, x.lane, x.kind, x.queue, x.priority, x.tenant, x.not_before,
                        CASE WHEN x.fence IS NULL OR x.fence < x.queued_fence THEN
                            jsonb_build_object('thread_id', x.thread_id, 'fence', x.queued_fence, 'attempt', x.attempt + 1) END) END AS job
                FROM runyard.live_runs l JOIN runyard.runs x ON x.accept_no = l.accept_no
                WHERE l.thread_key = w.thread_key AND l.lane = '' AND l.lane_seq > r.lane_seq ORDER BY l.lane_seq LIMIT 1) head ON true
            WHERE w.thread_key = ANY (locked) AND w.same = 1 AND w.extra IS NULL AND special.one IS NULL AND waits.one IS NULL
              AND (w.messages IS NULL OR pg_column_size(w.messages) <= message_bytes AND (
                  cardinality(w.messages) < 2 OR (SELECT count(DISTINCT m.message_id) FROM unnest(w.messages) m) = cardinality(w.messages)))
        ), message AS (
            INSERT INTO runyard.messages (branch_id, seq, message_id, parent_id, run_id, role, payload, event_id)
            SELECT p.branch_id, p.next_seq + m.n - 1, m.message_id, CASE m.n WHEN 1 THEN p.before ELSE (p.messages[m.n - 1]).message_id END,
                p.run_id, m.role, m.payload, p.prefix || (p.first_event + m.n - 1)
            FROM plain p, unnest(p.messages) WITH ORDINALITY m(message_id, role, payload, calls, results, n)
        ), branch AS (
            UPDATE runyard.branches b SET high_water_seq = greatest(b.high_water_seq, p.tip, p.snapshot_tip),
                leaf_id = CASE WHEN p.tip > b.leaf_seq THEN coalesce(p.new_leaf, p.last_message_id) ELSE b.leaf_id END,
                leaf_seq = greatest(b.leaf_seq, coalesce(p.tip, 0))
            FROM (SELECT q.*, CASE WHEN q.many > 0 THEN q.next_seq + q.many - 1 ELSE q.last_seq END AS tip FROM plain q) p
            WHERE b.branch_id = p.branch_id RETURNING p.accept_no, b.high_water_seq, p.tip
        ), run AS (
            UPDATE runyard.runs r SET status = 'completed', finished_at = now(), changed_at = now(), event_id = p.prefix || (p.first_event + p.many),
                completion_seq = p.next_completion_seq, high_water_seq = b.high_water_seq, extra = p.extra, usage = p.usage, result = p.result,
                first_seq = CASE WHEN p.many > 0 THEN coalesce(p.first_seq, p.next_seq) ELSE p.first_seq END, last_seq = b.tip,
                last_message_id = coalesce(p.new_leaf, p.last_message_id)
            FROM plain p JOIN branch b ON b.accept_no = p.accept_no WHERE r.accept_no = p.accept_no
        ), live AS (DELETE FROM runyard.live_runs l USING plain p WHERE l.accept_no = p.accept_no
        ), completion AS (
            INSERT INTO runyard.completions (branch_id, completion_seq, thread_key, accept_no, with_extra)
            SELECT p.branch_id, p.next_completion_seq, p.thread_key, p.accept_no, p.extra IS NOT NULL FROM plain p
        ), thread AS (
            UPDATE runyard.threads t SET next_seq = p.next_seq + p.many, next_completion_seq = p.next_completion_seq + 1, lane_floor = p.lane_floor,
                usage = CASE WHEN p.usage IS NULL THEN t.usage ELSE runyard.add_usage(t.usage, p.usage) END, extra_changed = false, updated_at = now()
            FROM plain p WHERE t.thread_key = p.thread_key
        ), feed AS (
            INSERT INTO runyard.outbox (tenant, thread_key, thread_id, run_id, type, agent, usage)
            SELECT p.tenant, p.thread_key, p.thread_id, p.run_id, 'run.completed', coalesce(p.agent, 'default'), p.usage FROM plain p
        )
        SELECT p.thread_key, p.run_id, 'completed', p.prefix || (p.first_event + p.many), NULL,
            CASE WHEN p.job IS NOT NULL THEN jsonb_build_object('jobs', jsonb_build_array(p.job)) END, NULL FROM plain p
    LOOP
        RETURN NEXT e;
    END LOOP;
EXCEPTION WHEN lock_not_available THEN
    RETURN;
END $$;
