-- Threads, accepting and admitting runs. Every verb locks the thread row first; statements after the lock see what was committed before it.
-- Effects are JSON: {"jobs": […], "events": […], "cancels": […], "withdrawn": […]}, or NULL when there are none.

CREATE FUNCTION runyard.merge_effects(a jsonb, b jsonb) RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN CASE WHEN a IS NULL THEN b WHEN b IS NULL THEN a ELSE jsonb_build_object(
        'jobs', coalesce(a->'jobs', '[]') || coalesce(b->'jobs', '[]'),
        'events', coalesce(a->'events', '[]') || coalesce(b->'events', '[]'),
        'cancels', coalesce(a->'cancels', '[]') || coalesce(b->'cancels', '[]'),
        'withdrawn', coalesce(a->'withdrawn', '[]') || coalesce(b->'withdrawn', '[]')) END;
END $$;

-- `queued`: what makes the event that is written with the submission, until an attempt's own events follow.
CREATE FUNCTION runyard.job(r runyard.runs) RETURNS jsonb
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN jsonb_build_object(
        'thread_key', r.thread_key, 'run_id', r.run_id, 'lane', r.lane, 'kind', r.kind, 'queue', r.queue, 'priority', r.priority,
        'tenant', r.tenant,
        'delay', CASE WHEN r.not_before IS NULL THEN 0
                 ELSE greatest(0, extract(epoch FROM r.not_before - clock_timestamp())) END,
        'ready_at', extract(epoch FROM greatest(clock_timestamp(), r.not_before)),
        'queued', CASE WHEN r.fence IS NULL OR r.fence < r.queued_fence THEN
                 jsonb_build_object('thread_id', r.thread_id, 'fence', r.queued_fence, 'attempt', r.attempt + 1) END);
END $$;

-- Tell the workers what a verb that returns nothing asks of Redis; too much for one notification is the reconciler's.
CREATE FUNCTION runyard.tell(effects jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF effects IS NOT NULL AND octet_length(effects::text) < 7900 THEN
        PERFORM pg_notify('runyard_accept', effects::text);
    END IF;
END $$;

-- The lane's first unfinished run, as effects, if it only waits for a worker.
CREATE FUNCTION runyard.next_head(key bigint, in_lane text) RETURNS jsonb
LANGUAGE plpgsql STABLE AS $$
DECLARE
    r runyard.runs;
BEGIN
    SELECT x.* INTO r FROM runyard.runs x
    WHERE x.thread_key = key AND x.lane = in_lane AND x.finished_at IS NULL AND x.lane_seq IS NOT NULL
    ORDER BY x.lane_seq LIMIT 1;
    IF r.status = 'queued' AND r.kind = 'prompt' THEN
        RETURN jsonb_build_object('jobs', jsonb_build_array(runyard.job(r)));
    END IF;
    RETURN NULL;
END $$;

-- The fork jobs that wait for a run, as effects.
CREATE FUNCTION runyard.waiting_for(key bigint, id text) RETURNS jsonb
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM runyard.runs w WHERE w.thread_key = key AND w.after_run_id = id AND w.status = 'queued') THEN
        RETURN NULL;
    END IF;
    RETURN (SELECT jsonb_build_object('jobs', jsonb_agg(runyard.job(w)))
            FROM runyard.runs w WHERE w.thread_key = key AND w.after_run_id = id AND w.status = 'queued');
END $$;

CREATE FUNCTION runyard.live_thread(for_tenant text, id text) RETURNS runyard.threads
LANGUAGE plpgsql AS $$
DECLARE
    t runyard.threads;
BEGIN
    SELECT x.* INTO t FROM runyard.threads x WHERE x.tenant = for_tenant AND x.thread_id = id AND x.deleted_at IS NULL FOR UPDATE;
    RETURN t;
END $$;

-- The thread, locked; made with its first branch if need be.
CREATE FUNCTION runyard.ensure_thread(for_tenant text, id text, of_agent text DEFAULT NULL) RETURNS runyard.threads
LANGUAGE plpgsql AS $$
DECLARE
    t runyard.threads;
    branch bigint;
BEGIN
    LOOP
        SELECT x.* INTO t FROM runyard.threads x WHERE x.tenant = for_tenant AND x.thread_id = id AND x.deleted_at IS NULL FOR UPDATE;
        IF FOUND THEN RETURN t; END IF;
        branch := nextval('runyard.branch_numbers');
        INSERT INTO runyard.threads AS x (tenant, thread_id, head_branch, agent) VALUES (for_tenant, id, branch, of_agent)
        ON CONFLICT (tenant, thread_id) WHERE deleted_at IS NULL DO NOTHING RETURNING x.* INTO t;
        IF FOUND THEN
            INSERT INTO runyard.branches (branch_id, thread_key, lane) VALUES (branch, t.thread_key, '');
            RETURN t;
        END IF;
    END LOOP;
END $$;

-- End a run: completion numbers, visibility, requests, history, outbox; the lane moves on. `event` is the run's last. A cancelled run is kept
-- only if every provider would accept what it said.
CREATE FUNCTION runyard.end_run(
    INOUT t runyard.threads, INOUT r runyard.runs, to_status text, why jsonb, event text, OUT effects jsonb
) LANGUAGE plpgsql AS $$
DECLARE
    counted boolean := to_status = 'completed' AND r.kind IN ('prompt', 'external')
        OR to_status = 'cancelled' AND r.cancel_keep AND (r.last_seq IS NOT NULL OR r.abort_words IS NOT NULL AND r.branch_id IS NOT NULL);
    was text := r.status;
    open_calls text[];
BEGIN
    IF counted AND to_status = 'cancelled' AND r.has_tools THEN
        open_calls := ARRAY(
            SELECT c.id FROM runyard.messages m, unnest(m.calls) WITH ORDINALITY c(id, n)
            WHERE m.branch_id = r.branch_id AND m.run_id = r.run_id AND m.seq >= r.first_seq AND NOT EXISTS (
                SELECT 1 FROM runyard.messages a
                WHERE a.branch_id = r.branch_id AND a.run_id = r.run_id AND a.seq > m.seq AND c.id = ANY (a.results))
            ORDER BY m.seq, c.n);
        IF open_calls <> '{}' THEN
            INSERT INTO runyard.messages (branch_id, seq, message_id, parent_id, run_id, role, note, results)
            VALUES (r.branch_id, t.next_seq, gen_random_uuid(), r.last_message_id, r.run_id, 'tool', coalesce(r.abort_words, 'cancelled'), open_calls)
            RETURNING seq, message_id INTO r.last_seq, r.last_message_id;
            t.next_seq := t.next_seq + 1;
        END IF;
    END IF;
    IF counted AND to_status = 'cancelled' AND r.abort_words IS NOT NULL THEN
        INSERT INTO runyard.messages (branch_id, seq, message_id, parent_id, run_id, role, payload)
        VALUES (r.branch_id, t.next_seq, gen_random_uuid(), coalesce(r.last_message_id, r.base_id), r.run_id, 'assistant',
            convert_to(jsonb_build_object('stop_reason', 'aborted',
                'content', jsonb_build_array(jsonb_build_object('type', 'text', 'text', r.abort_words)))::text, 'UTF8'))
        RETURNING seq, message_id INTO r.last_seq, r.last_message_id;
        r.first_seq := coalesce(r.first_seq, r.last_seq);
        t.next_seq := t.next_seq + 1;
    END IF;
    IF counted AND to_status = 'cancelled' AND r.has_tools THEN
        counted := runyard.cycles_closed(r);
    END IF;
    IF counted THEN
        r.completion_seq := t.next_completion_seq;
        t.next_completion_seq := t.next_completion_seq + 1;
        IF r.usage IS NOT NULL THEN t.usage := runyard.add_usage(t.usage, r.usage); END IF;
        IF r.extra IS NOT NULL THEN
            t.extra_changed := t.extra_changed OR NOT t.extra @> r.extra;
            t.extra := t.extra || r.extra;
        END IF;
        r.extra := CASE WHEN t.extra_changed THEN t.extra END;
        t.extra_changed := false;
        IF r.branch_id IS NULL THEN
            r.branch_id := t.head_branch;
        END IF;
        UPDATE runyard.branches b SET
            high_water_seq = greatest(b.high_water_seq, r.last_seq, r.snapshot_tip),
            leaf_id = CASE WHEN r.last_seq > b.leaf_seq THEN r.last_message_id ELSE b.leaf_id END,
            leaf_seq = greatest(b.leaf_seq, coalesce(r.last_seq, 0))
        WHERE b.branch_id = r.branch_id RETURNING b.high_water_seq INTO r.high_water_seq;
    END IF;
    UPDATE runyard.threads SET next_seq = t.next_seq, next_completion_seq = t.next_completion_seq, usage = t.usage,
           extra = t.extra, extra_changed = t.extra_changed, updated_at = now()
    WHERE thread_key = t.thread_key;
    r.status := to_status;
    UPDATE runyard.runs SET
        status = to_status, finished_at = now(), changed_at = now(), suspended_at = NULL, error = why, event_id = event,
        completion_seq = r.completion_seq, high_water_seq = r.high_water_seq, branch_id = r.branch_id, extra = r.extra, usage = r.usage,
        result = r.result, last_seq = r.last_seq, last_message_id = r.last_message_id, lane = r.lane, has_tools = r.has_tools,
        first_seq = r.first_seq, crash_count = r.crash_count, waits_for_slot = NULL, place_in_line = NULL,
        admitted_at = r.admitted_at, lane_seq = r.lane_seq
    WHERE accept_no = r.accept_no;
    IF was = 'running' AND r.kind <> 'external' AND to_status <> 'completed' THEN
        INSERT INTO runyard.attempts (accept_no, fence, worker_id, started_at, outcome, error)
        VALUES (r.accept_no, r.fence, r.worker_id, r.started_at, to_status, why) ON CONFLICT DO NOTHING;
    END IF;
    IF to_status <> 'completed' OR r.attempt > 1 OR r.kind = 'external' THEN
        UPDATE runyard.hitl_requests h SET closed_at = now()
        WHERE h.thread_key = t.thread_key AND h.run_id = r.run_id AND h.answered_at IS NULL AND h.closed_at IS NULL;
    END IF;
    INSERT INTO runyard.outbox (tenant, thread_key, thread_id, run_id, type, agent, usage, redriven)
    VALUES (t.tenant, t.thread_key, t.thread_id, r.run_id, 'run.' || to_status,
            CASE WHEN r.fence IS NOT NULL THEN coalesce(r.agent, 'default') END,
            CASE WHEN r.usage_before IS NULL THEN r.usage ELSE runyard.less_usage(r.usage, r.usage_before) END, r.usage_before IS NOT NULL);
    IF r.options->>'webhook' IS NOT NULL THEN
        INSERT INTO runyard.webhook_deliveries (tenant, url, type, thread_id, run_id)
        VALUES (t.tenant, r.options->>'webhook', 'run.' || to_status, t.thread_id, r.run_id);
    END IF;
    effects := runyard.waiting_for(t.thread_key, r.run_id);
    IF r.kind = 'prompt' THEN
        effects := runyard.merge_effects(effects, runyard.next_head(t.thread_key, r.lane));
    END IF;
    IF r.job_key IS NOT NULL THEN
        effects := runyard.merge_effects(effects, runyard.offer_job(r));
    END IF;
END $$;

-- A run ended: the job that started it, as effects. Whether it may go on is found out when it is claimed: others may be ending just now.
CREATE FUNCTION runyard.offer_job(r runyard.runs) RETURNS jsonb
LANGUAGE plpgsql STABLE AS $$
DECLARE
    waiting runyard.runs;
BEGIN
    SELECT y.* INTO waiting FROM runyard.runs y WHERE y.thread_key = r.job_key AND y.run_id = r.job_run_id AND y.finished_at IS NULL;
    IF NOT FOUND THEN RETURN NULL; END IF;
    RETURN jsonb_build_object('jobs', jsonb_build_array(runyard.job(waiting)));
END $$;

CREATE FUNCTION runyard.started_by(r runyard.runs) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT count(*) FROM runyard.runs x WHERE x.job_key = r.thread_key AND x.job_run_id = r.run_id AND x.finished_at IS NULL);
END $$;

-- A damaged sum is left as it is: the leader, who adds for every tenant, would stop at it.
CREATE FUNCTION runyard.add_usage(a jsonb, b jsonb) RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN CASE WHEN b IS NULL OR b = '{}' THEN a
        WHEN jsonb_typeof(a) <> 'object' OR jsonb_typeof(b) <> 'object'
             OR jsonb_build_array(a, b) @? 'strict $[*].* ? (@.type() != "number")' THEN a
        ELSE (
        SELECT jsonb_object_agg(k, coalesce((a->>k)::numeric, 0) + coalesce((b->>k)::numeric, 0))
        FROM (SELECT jsonb_object_keys(a || b) k) keys) END;
END $$;

-- A number of a usage; what is none, or more than a usage can be, counts nothing, so that a damaged row holds nobody up.
CREATE FUNCTION runyard.amount(usage jsonb, name text) RETURNS numeric
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    found numeric := CASE WHEN jsonb_typeof(usage->name) = 'number' THEN (usage->>name)::numeric ELSE 0 END;
BEGIN
    RETURN CASE WHEN found BETWEEN 0 AND 9223372036854775807 THEN found ELSE 0 END;
END $$;

CREATE FUNCTION runyard.less_usage(a jsonb, b jsonb) RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN (SELECT jsonb_object_agg(k, greatest(0, runyard.amount(a, k) - runyard.amount(b, k)))
            FROM jsonb_object_keys(CASE WHEN jsonb_typeof(a) = 'object' THEN a ELSE '{}' END) k);
END $$;

-- The last event of a run that ends outside an attempt. If it waited for a worker, it does so no more.
CREATE FUNCTION runyard.outside_event(t runyard.threads, r runyard.runs, event text, kind text, body jsonb) RETURNS jsonb
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN jsonb_build_object('events', jsonb_build_array(jsonb_build_object(
        'thread_key', t.thread_key, 'thread_id', t.thread_id, 'run_id', r.run_id, 'event_id', event, 'type', kind,
        'data', jsonb_build_object('status', substr(kind, 5)) || body, 'agent', r.agent, 'queue', r.queue)),
        'withdrawn', CASE WHEN r.lane IS NULL THEN '[]' ELSE jsonb_build_array(runyard.job(r)) END);
END $$;

-- Cancel a live run under the thread's lock: a flag if a worker has it, else the end.
CREATE FUNCTION runyard.cancel_run(INOUT t runyard.threads, INOUT r runyard.runs, keep boolean, OUT effects jsonb)
LANGUAGE plpgsql AS $$
DECLARE
    got record;
    event text;
BEGIN
    IF r.cancel_requested_at IS NULL THEN
        r.cancel_requested_at := now();
        r.cancel_keep := keep;
        UPDATE runyard.runs SET cancel_requested_at = r.cancel_requested_at, cancel_keep = keep, changed_at = now()
        WHERE accept_no = r.accept_no;
    END IF;
    IF r.status = 'running' AND r.kind <> 'external' THEN
        effects := jsonb_build_object('cancels', jsonb_build_array(
            jsonb_build_object('thread_key', r.thread_key, 'run_id', r.run_id)));
        RETURN;
    END IF;
    event := nextval('runyard.fences') || '-1';
    got := runyard.end_run(t, r, 'cancelled', NULL, event);
    t := got.t; r := got.r; effects := got.effects;
    effects := runyard.merge_effects(effects, runyard.outside_event(t, r, event, 'run.cancelled', '{}'));
END $$;

-- The branch whose last visible message is `id`; NULL if there is none in this thread.
CREATE FUNCTION runyard.branch_ending_at(key bigint, id uuid) RETURNS runyard.branches
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (
    SELECT b FROM runyard.branches b WHERE b.thread_key = key AND b.leaf_id = id
    ORDER BY (SELECT t.head_branch = b.branch_id FROM runyard.threads t WHERE t.thread_key = key) DESC, b.branch_id LIMIT 1
    );
END $$;

-- The lane of a run that is admitted now.
CREATE FUNCTION runyard.lane_of(t runyard.threads, kind text, alone boolean, id text, parent uuid) RETURNS text
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF kind <> 'prompt' OR alone THEN RETURN id; END IF;
    IF parent IS NULL THEN RETURN ''; END IF;
    RETURN coalesce((runyard.branch_ending_at(t.thread_key, parent)).lane, '');
END $$;

-- What a run that comes to a lane does to the one before it. busy: the lane's first unfinished run, afterwards; refused: an error.
CREATE FUNCTION runyard.make_way(INOUT t runyard.threads, in_lane text, strategy text, OUT busy text, OUT refused jsonb, OUT effects jsonb)
LANGUAGE plpgsql AS $$
DECLARE
    got record;
    first runyard.runs;
BEGIN
    SELECT y.run_id INTO busy FROM runyard.runs y
    WHERE y.thread_key = t.thread_key AND y.lane = in_lane AND y.finished_at IS NULL AND y.lane_seq IS NOT NULL
    ORDER BY y.lane_seq LIMIT 1;
    IF busy IS NULL OR strategy = 'enqueue' THEN
        RETURN;
    ELSIF strategy = 'reject' THEN
        refused := jsonb_build_object('code', 'thread_busy',
            'message', format('thread %s is busy with run %s; wait for it, or enqueue with another multitask_strategy', t.thread_id, busy),
            'details', jsonb_build_object('thread_id', t.thread_id, 'run_id', busy));
        RETURN;
    END IF;
    SELECT y.* INTO first FROM runyard.runs y WHERE y.thread_key = t.thread_key AND y.run_id = busy;
    IF first.status IN ('running', 'suspended') THEN
        got := runyard.cancel_run(t, first, strategy = 'interrupt');
        t := got.t; effects := got.effects;
        SELECT y.run_id INTO busy FROM runyard.runs y
        WHERE y.thread_key = t.thread_key AND y.lane = in_lane AND y.finished_at IS NULL AND y.lane_seq IS NOT NULL
        ORDER BY y.lane_seq LIMIT 1;
    END IF;
END $$;

CREATE FUNCTION runyard.raise(refused jsonb) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF refused IS NOT NULL THEN
        PERFORM runyard.refuse(refused->>'code', refused->>'message', refused->'details');
    END IF;
END $$;

-- Why a run cannot be on this thread, as an error; NULL if it can.
CREATE FUNCTION runyard.why_not(t runyard.threads, id text, parent uuid) RETURNS jsonb
LANGUAGE plpgsql STABLE AS $$
DECLARE
    got record;
    code text;
    message text;
    details text;
BEGIN
    IF t.fork_hash IS NOT NULL THEN
        SELECT i.open INTO got FROM runyard.inherited_run(t.thread_key, id) i;
        IF FOUND THEN
            RETURN jsonb_build_object(
                'code', CASE WHEN got.open THEN 'run_already_claimed' ELSE 'run_already_completed' END,
                'message', format('run id %s is inherited by thread %s from its ancestor; use another', id, t.thread_id),
                'details', jsonb_build_object('thread_id', t.thread_id, 'run_id', id));
        END IF;
    END IF;
    IF parent IS NOT NULL THEN
        BEGIN
            SELECT m.* INTO got FROM runyard.cut_at_message(t, parent) m;
            PERFORM runyard.check_boundary(got.view, got.whole, got.message);
        EXCEPTION WHEN SQLSTATE 'RY000' THEN
            GET STACKED DIAGNOSTICS code = PG_EXCEPTION_HINT, message = MESSAGE_TEXT, details = PG_EXCEPTION_DETAIL;
            RETURN jsonb_build_object('code', code, 'message', message, 'details', details::jsonb);
        END;
    END IF;
    RETURN NULL;
END $$;

-- Give a run that was accepted in a host's own transaction, or for a later time, its place in its lane; a refusal fails the run.
CREATE FUNCTION runyard.admit_late(INOUT t runyard.threads, r runyard.runs, OUT effects jsonb)
LANGUAGE plpgsql AS $$
DECLARE
    got record;
    refused jsonb := runyard.why_not(t, r.run_id, r.parent_id);
BEGIN
    r.thread_key := t.thread_key;
    r.lane := runyard.lane_of(t, r.kind, r.parallel, r.run_id, CASE WHEN refused IS NULL THEN r.parent_id END);
    IF refused IS NULL THEN
        got := runyard.make_way(t, r.lane, r.multitask_strategy);
        t := got.t; effects := got.effects; refused := got.refused;
    END IF;
    PERFORM runyard.note_agent(t, r.agent);
    UPDATE runyard.runs SET thread_key = t.thread_key, lane = r.lane, lane_seq = nextval('runyard.lane_numbers'), admitted_at = now(),
           agent = coalesce(r.agent, t.agent), changed_at = now()
    WHERE accept_no = r.accept_no RETURNING * INTO r;
    refused := coalesce(refused, runyard.lane_full(r));
    IF refused IS NULL THEN
        effects := runyard.merge_effects(effects, runyard.startable(r));
        RETURN;
    END IF;
    r.event_id := nextval('runyard.fences') || '-1';
    got := runyard.end_run(t, r, 'failed', refused, r.event_id);
    t := got.t;
    effects := runyard.merge_effects(runyard.merge_effects(effects, got.effects),
        runyard.outside_event(t, r, r.event_id, 'run.failed', jsonb_build_object('error', refused)));
END $$;

-- A thread's agent is the first that one of its runs names.
CREATE FUNCTION runyard.note_agent(t runyard.threads, name text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF t.agent IS NULL AND name IS NOT NULL THEN
        UPDATE runyard.threads SET agent = name WHERE thread_key = t.thread_key AND agent IS NULL;
    END IF;
END $$;

-- Admit the thread's committed, due runs, in order, so that nobody overtakes them.
CREATE FUNCTION runyard.admit_thread(INOUT t runyard.threads, OUT effects jsonb)
LANGUAGE plpgsql AS $$
DECLARE
    got record;
    r runyard.runs;
BEGIN
    IF NOT EXISTS (SELECT 1 FROM runyard.runs x WHERE x.tenant = t.tenant AND x.thread_id = t.thread_id AND x.lane_seq IS NULL) THEN
        RETURN;
    END IF;
    FOR r IN
        SELECT x.* FROM runyard.runs x
        WHERE x.tenant = t.tenant AND x.thread_id = t.thread_id AND x.lane_seq IS NULL AND NOT x.deleted
          AND coalesce(x.run_at, x.accepted_at) <= clock_timestamp()
        ORDER BY coalesce(x.run_at, x.accepted_at), x.accept_no
    LOOP
        got := runyard.admit_late(t, r);
        t := got.t;
        effects := runyard.merge_effects(effects, got.effects);
    END LOOP;
END $$;

-- The run as a job if it may start at once: a lane's head, or a fork job whose cut has ended.
CREATE FUNCTION runyard.startable(r runyard.runs) RETURNS jsonb
LANGUAGE plpgsql STABLE AS $$
DECLARE
    ok boolean;
BEGIN
    IF r.kind = 'prompt' THEN
        ok := NOT EXISTS (SELECT 1 FROM runyard.runs x WHERE x.thread_key = r.thread_key AND x.lane = r.lane
                          AND x.finished_at IS NULL AND x.lane_seq < r.lane_seq);
    ELSE
        ok := NOT runyard.cut_pending(r);
    END IF;
    IF ok THEN RETURN jsonb_build_object('jobs', jsonb_build_array(runyard.job(r))); END IF;
    RETURN NULL;
END $$;

-- Does the fork job wait for a run that has not ended, or for runs that it started?
CREATE FUNCTION runyard.cut_pending(r runyard.runs) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN r.until_fewer IS NOT NULL AND runyard.started_by(r) >= r.until_fewer
        OR EXISTS (SELECT 1 FROM runyard.runs x WHERE x.thread_key = r.thread_key AND x.run_id = r.after_run_id
                   AND x.finished_at IS NULL);
END $$;

-- End a run that did not start in time.
CREATE FUNCTION runyard.expire_run(INOUT t runyard.threads, r runyard.runs, OUT effects jsonb)
LANGUAGE plpgsql AS $$
DECLARE
    got record;
    event text := nextval('runyard.fences') || '-1';
    why jsonb := jsonb_build_object('code', 'run_expired', 'message', format('run %s did not start in time', r.run_id));
BEGIN
    got := runyard.end_run(t, r, 'failed', why, event);
    t := got.t;
    effects := runyard.merge_effects(got.effects, runyard.outside_event(t, got.r, event, 'run.failed', jsonb_build_object('error', why)));
END $$;

-- End the thread's admitted runs that did not start in time. lines: for which slots they waited.
CREATE FUNCTION runyard.expire_runs(INOUT t runyard.threads, OUT effects jsonb, OUT lines text[])
LANGUAGE plpgsql AS $$
DECLARE
    got record;
    r runyard.runs;
BEGIN
    lines := '{}';
    FOR r IN
        SELECT x.* FROM runyard.runs x
        WHERE x.thread_key = t.thread_key AND x.expires_at <= clock_timestamp() AND x.attempt = 0 AND x.finished_at IS NULL
          AND x.lane_seq IS NOT NULL
        ORDER BY x.lane_seq
    LOOP
        IF r.waits_for_slot IS NOT NULL THEN lines := lines || r.waits_for_slot; END IF;
        got := runyard.expire_run(t, r);
        t := got.t; effects := runyard.merge_effects(effects, got.effects);
    END LOOP;
END $$;

-- Admit what is committed and due on any thread, fire the deadlines of requests, and end what did not start in time. next_due: seconds until
-- the next of these, NULL if nothing waits for its time. The clock is read once per statement: read for each row, it would use no index.
CREATE FUNCTION runyard.admit(most integer, OUT effects jsonb, OUT next_due double precision)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    due record;
    got record;
    t runyard.threads;
    done integer := 0;
    lines text[] := '{}';
BEGIN
    FOR due IN
        SELECT DISTINCT x.tenant, x.thread_id, t2.thread_key FROM (
            (SELECT y.tenant, y.thread_id FROM runyard.runs y
             WHERE y.lane_seq IS NULL AND coalesce(y.run_at, y.accepted_at) <= (SELECT clock_timestamp())
             ORDER BY coalesce(y.run_at, y.accepted_at) LIMIT most)
            UNION ALL
            (SELECT z.tenant, z.thread_id FROM runyard.hitl_requests h JOIN runyard.threads z USING (thread_key)
             WHERE h.answered_at IS NULL AND h.closed_at IS NULL AND h.deadline_at <= (SELECT clock_timestamp()) AND z.deleted_at IS NULL
               -- A run that would fail, and goes on with the answer to something else, fails once it is suspended again.
               AND (h.otherwise IS NOT NULL OR NOT EXISTS (
                   SELECT 1 FROM runyard.runs r WHERE r.thread_key = h.thread_key AND r.run_id = h.run_id
                   AND r.status IN ('queued', 'running') AND r.kind <> 'external'))
             ORDER BY h.deadline_at LIMIT most)
            UNION ALL
            (SELECT e.tenant, e.thread_id FROM runyard.runs e
             WHERE e.expires_at <= (SELECT clock_timestamp()) AND e.attempt = 0 AND e.finished_at IS NULL AND NOT e.deleted
             ORDER BY e.expires_at LIMIT most)) x
        LEFT JOIN runyard.threads t2 ON t2.tenant = x.tenant AND t2.thread_id = x.thread_id AND t2.deleted_at IS NULL
        ORDER BY t2.thread_key NULLS LAST, x.tenant, x.thread_id
    LOOP
        got := runyard.admit_thread(runyard.ensure_thread(due.tenant, due.thread_id));
        t := got.t; effects := runyard.merge_effects(effects, got.effects);
        got := runyard.fire_deadlines(t);
        t := got.t; effects := runyard.merge_effects(effects, got.effects);
        got := runyard.expire_runs(t);
        effects := runyard.merge_effects(effects, got.effects); lines := lines || got.lines;
        done := done + 1;
    END LOOP;
    effects := runyard.merge_effects(effects, runyard.free(lines)); -- last: no further thread is locked
    IF done >= most THEN
        next_due := 0;
        RETURN;
    END IF;
    SELECT extract(epoch FROM least(
        (SELECT coalesce(y.run_at, y.accepted_at) AS due_at FROM runyard.runs y
         WHERE y.lane_seq IS NULL AND coalesce(y.run_at, y.accepted_at) > (SELECT clock_timestamp()) ORDER BY due_at LIMIT 1),
        (SELECT h.deadline_at FROM runyard.hitl_requests h
         WHERE h.answered_at IS NULL AND h.closed_at IS NULL AND h.deadline_at > (SELECT clock_timestamp()) ORDER BY h.deadline_at LIMIT 1),
        (SELECT e.expires_at FROM runyard.runs e
         WHERE e.expires_at > (SELECT clock_timestamp()) AND e.attempt = 0 AND e.finished_at IS NULL
         ORDER BY e.expires_at LIMIT 1)) - clock_timestamp())
    INTO next_due;
END $$;

-- The parameters of an accept, as one value.
CREATE TYPE runyard.request AS (
    thread_id text, run_id text, kind text, agent text, queue text, priority text,
    input bytea, input_id uuid, input_role text, input_calls text[], input_results text[],
    request_hash text, options jsonb, metadata jsonb, multitask_strategy text, parallel boolean,
    parent_id uuid, after_run_id text, fork jsonb, run_at timestamptz, delay double precision, app_version text, trace_context text,
    candidates bytea[], job_key bigint, job_run_id text
);

-- By when the first attempt has to start: the request's own time or the deployment's, whichever is shorter, from when the run is due. A fork
-- may wait for a run for as long as that takes.
CREATE FUNCTION runyard.expires_at(q runyard.request, due_at timestamptz) RETURNS timestamptz
LANGUAGE plpgsql STABLE AS $$
DECLARE
    seconds double precision := least((q.options->>'expires_in')::double precision,
                                      CASE WHEN q.kind <> 'fork' THEN runyard.limit_of('queued_seconds') END);
BEGIN
    IF seconds IS NULL THEN RETURN NULL; END IF;
    RETURN greatest(due_at, clock_timestamp()) + make_interval(secs => least(seconds, 315360000));
END $$;

-- Insert the run of a request. Without a lane it waits to be admitted. limited: there are limits to look at.
CREATE FUNCTION runyard.insert_run(
    for_tenant text, q runyard.request, key bigint, in_lane text, for_agent text, due_at timestamptz, limited boolean
) RETURNS runyard.runs
LANGUAGE plpgsql AS $$
DECLARE
    r runyard.runs;
BEGIN
    INSERT INTO runyard.runs AS x (tenant, thread_id, run_id, thread_key, kind, status, lane, lane_seq, admitted_at, agent, queue, priority,
        input, input_id, input_role, input_calls, input_results, request_hash, options, metadata, multitask_strategy, parallel,
        parent_id, after_run_id, fork, candidates, job_key, job_run_id, run_at, expires_at, app_version, trace_context,
        accepted_at)
    VALUES (for_tenant, q.thread_id, q.run_id, key, q.kind, 'queued', in_lane,
        CASE WHEN in_lane IS NOT NULL THEN nextval('runyard.lane_numbers') END, CASE WHEN in_lane IS NOT NULL THEN now() END, for_agent,
        coalesce(q.queue, (SELECT a.queue FROM runyard.agents a WHERE a.agent = for_agent), 'default'), q.priority,
        q.input, q.input_id, q.input_role, q.input_calls, q.input_results, q.request_hash, q.options, q.metadata, q.multitask_strategy,
        q.parallel, q.parent_id, q.after_run_id, q.fork, q.candidates, q.job_key, q.job_run_id, due_at,
        CASE WHEN limited OR q.options ? 'expires_in' THEN runyard.expires_at(q, due_at) END,
        q.app_version, q.trace_context, clock_timestamp())
    ON CONFLICT (tenant, thread_id, run_id) WHERE NOT deleted DO NOTHING
    RETURNING x.* INTO r;
    RETURN r;
END $$;

CREATE FUNCTION runyard.due_at(q runyard.request) RETURNS timestamptz
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF q.delay IS NULL THEN RETURN q.run_at; END IF;
    RETURN clock_timestamp() + make_interval(secs => q.delay);
END $$;

-- The run that has this id, if its request was the same; a NULL row if the id is free.
CREATE FUNCTION runyard.existing_run(for_tenant text, q runyard.request) RETURNS runyard.runs
LANGUAGE plpgsql STABLE AS $$
DECLARE
    r runyard.runs;
BEGIN
    SELECT x.* INTO r FROM runyard.runs x
    WHERE x.tenant = for_tenant AND x.thread_id = q.thread_id AND x.run_id = q.run_id AND NOT x.deleted;
    IF FOUND AND r.request_hash IS DISTINCT FROM q.request_hash THEN
        PERFORM runyard.refuse('run_conflict',
            format('run id %s of thread %s is taken by a different request', q.run_id, q.thread_id),
            jsonb_build_object('thread_id', q.thread_id, 'run_id', q.run_id, 'existing', r.request_hash, 'request', q.request_hash));
    END IF;
    RETURN r;
END $$;

-- The client's own accept: accepts and admits in one step, so that a refusal reaches the caller. limited: there are limits to check.
CREATE FUNCTION runyard.accept_and_admit(for_tenant text, q runyard.request, limited boolean, OUT run runyard.runs, OUT created boolean, OUT effects jsonb)
LANGUAGE plpgsql AS $$
DECLARE
    got record;
    t runyard.threads;
    in_lane text;
    busy text;
    due timestamptz := runyard.due_at(q);
BEGIN
    limited := limited OR q.candidates IS NOT NULL OR octet_length(q.input) > runyard.default_message_bytes();
    IF q.kind = 'prompt' THEN
        t := runyard.ensure_thread(for_tenant, q.thread_id, q.agent);
    ELSE
        t := runyard.known_thread(for_tenant, q.thread_id);
    END IF;
    IF EXISTS (SELECT 1 FROM runyard.runs x WHERE x.tenant = for_tenant AND x.thread_id = q.thread_id AND x.lane_seq IS NULL) THEN
        got := runyard.admit_thread(t);
        t := got.t; effects := got.effects;
    END IF;
    IF limited OR q.kind <> 'prompt' OR q.multitask_strategy <> 'enqueue' OR q.input_id IS NULL OR q.parent_id IS NOT NULL OR t.fork_hash IS NOT NULL THEN
        run := runyard.existing_run(for_tenant, q);
        created := run.run_id IS NULL;
        IF NOT created THEN RETURN; END IF;
    END IF;
    IF t.fork_hash IS NOT NULL OR q.parent_id IS NOT NULL THEN
        PERFORM runyard.raise(runyard.why_not(t, q.run_id, q.parent_id));
    END IF;
    IF limited THEN
        PERFORM runyard.check_room(for_tenant, q, t.thread_key, runyard.lane_of(t, q.kind, q.parallel, q.run_id, q.parent_id), true);
    END IF;
    IF q.kind <> 'prompt' THEN
        PERFORM runyard.refuse_asking(q, coalesce(q.agent, t.agent));
        got := runyard.fix_cut(t, q.fork);
        q.after_run_id := got.after_run; q.fork := got.fork;
        IF q.kind = 'fork' THEN PERFORM runyard.check_free(for_tenant, q.fork->>'new', q.fork->>'hash'); END IF;
    END IF;
    IF due IS NULL OR due <= clock_timestamp() THEN
        in_lane := runyard.lane_of(t, q.kind, q.parallel, q.run_id, q.parent_id);
        got := runyard.make_way(t, in_lane, q.multitask_strategy);
        t := got.t; busy := got.busy;
        PERFORM runyard.raise(got.refused);
        effects := runyard.merge_effects(effects, got.effects);
        IF q.input_id IS NULL AND q.kind = 'prompt' THEN
            PERFORM runyard.check_something_to_run(t, q.parent_id, busy);
        END IF;
    END IF;
    run := runyard.insert_run(for_tenant, q, t.thread_key, in_lane, coalesce(q.agent, t.agent), due, limited);
    created := run.run_id IS NOT NULL;
    IF NOT created THEN
        run := runyard.existing_run(for_tenant, q);
        RETURN;
    END IF;
    IF t.agent IS NULL THEN PERFORM runyard.note_agent(t, q.agent); END IF;
    IF in_lane IS NOT NULL AND busy IS NULL AND (q.kind = 'prompt' OR NOT runyard.cut_pending(run)) THEN
        effects := runyard.merge_effects(effects, jsonb_build_object('jobs', jsonb_build_array(runyard.job(run))));
    END IF;
END $$;

CREATE TYPE runyard.accepted AS (
    n integer, created boolean, status text, lane text, agent text, queue text, after_run_id text, run_at timestamptz,
    expires_at timestamptz, accepted_at timestamptz, admitted_at timestamptz, effects jsonb, refused jsonb
);

CREATE FUNCTION runyard.accepted_as(n integer, r runyard.runs, created boolean, effects jsonb) RETURNS runyard.accepted
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN (n, created, r.status, r.lane, r.agent, r.queue, r.after_run_id, r.run_at, r.expires_at, r.accepted_at,
            r.admitted_at, effects, NULL)::runyard.accepted;
END $$;

-- Accept many runs in one transaction, in the order of their threads so that batches cannot deadlock, and as given within a thread. One that
-- is refused leaves nothing behind and spares the others; alone, it raises.
CREATE FUNCTION runyard.accept_many(for_tenant text, requests runyard.request[]) RETURNS SETOF runyard.accepted
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    got record;
    a runyard.accepted;
    code text;
    message text;
    details text;
    position integer;
    limited boolean := EXISTS (SELECT 1 FROM runyard.limits);
BEGIN
    IF cardinality(requests) = 1 THEN
        got := runyard.accept_and_admit(for_tenant, requests[1], limited);
        RETURN NEXT runyard.accepted_as(1, got.run, got.created, got.effects);
        RETURN;
    END IF;
    FOR position IN
        SELECT s.n FROM generate_subscripts(requests, 1) s(n)
        LEFT JOIN runyard.threads t ON t.tenant = for_tenant AND t.thread_id = (requests[s.n]).thread_id AND t.deleted_at IS NULL
        ORDER BY t.thread_key NULLS LAST, (requests[s.n]).thread_id, s.n
    LOOP
        BEGIN
            got := runyard.accept_and_admit(for_tenant, requests[position], limited);
            a := runyard.accepted_as(position, got.run, got.created, got.effects);
        EXCEPTION WHEN SQLSTATE 'RY000' THEN
            GET STACKED DIAGNOSTICS code = PG_EXCEPTION_HINT, message = MESSAGE_TEXT, details = PG_EXCEPTION_DETAIL;
            a := NULL;
            a.n := position;
            a.refused := jsonb_build_object('code', code, 'message', message, 'details', details::jsonb);
        END;
        RETURN NEXT a;
    END LOOP;
END $$;

-- A run without a message continues from the leaf; refuse it where the leaf asks for nothing. A busy lane may still bring something.
CREATE FUNCTION runyard.check_something_to_run(t runyard.threads, parent uuid, busy text) RETURNS void
LANGUAGE plpgsql STABLE AS $$
DECLARE
    view runyard.level[] := runyard.branch_view(t.head_branch);
    leaf record;
BEGIN
    IF parent IS NOT NULL THEN
        SELECT c.view INTO view FROM runyard.cut_at_message(t, parent) c;
    ELSIF busy IS NOT NULL THEN
        RETURN;
    END IF;
    SELECT m.role, m.calls INTO leaf FROM runyard.last_visible(view) l JOIN runyard.messages m USING (message_id, seq);
    IF NOT FOUND OR (leaf.role = 'assistant' AND leaf.calls IS NULL) THEN
        PERFORM runyard.refuse('nothing_to_run',
            format('thread %s ends with nothing to answer; give a message', t.thread_id), jsonb_build_object('thread_id', t.thread_id));
    END IF;
END $$;

-- A probe has nobody to ask. What its agent, or a judge, may do is known from the workers that serve it.
CREATE FUNCTION runyard.refuse_asking(q runyard.request, for_agent text) RETURNS void
LANGUAGE plpgsql STABLE AS $$
DECLARE
    probes boolean := q.kind = 'fork_once' OR q.kind = 'fork_many' AND NOT (q.fork->'fan'->>'threads')::boolean;
    asking text := (SELECT a.agent FROM runyard.agents a
                    WHERE a.asks AND (probes AND a.agent = for_agent OR a.agent = q.fork->'fan'->>'judge') LIMIT 1);
BEGIN
    IF asking IS NOT NULL THEN
        PERFORM runyard.refuse('hitl_not_allowed', format('agent %s asks humans; nobody can answer a probe', asking),
                               jsonb_build_object('agent', asking));
    END IF;
END $$;

-- A fork job's cut is fixed when it is accepted.
CREATE FUNCTION runyard.fix_cut(t runyard.threads, INOUT fork jsonb, OUT after_run text)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    cut jsonb := fork->'cut';
    target runyard.runs;
BEGIN
    IF cut->>'at_message_id' IS NOT NULL OR cut->>'at_seq' IS NOT NULL THEN
        PERFORM runyard.cut(t, cut);
        RETURN;
    END IF;
    after_run := coalesce(cut->>'after_run_id', runyard.last_completed(t));
    IF after_run IS NULL THEN
        PERFORM runyard.refuse('run_not_completed',
            format('thread %s has no completed run; prompt it once, then fork', t.thread_id), jsonb_build_object('thread_id', t.thread_id));
    END IF;
    fork := jsonb_set(fork, '{cut,after_run_id}', to_jsonb(after_run));
    SELECT x.* INTO target FROM runyard.runs x WHERE x.thread_key = t.thread_key AND x.run_id = after_run;
    IF NOT FOUND OR target.finished_at IS NOT NULL THEN
        PERFORM runyard.cut_after_run(t, after_run);
    END IF;
END $$;

-- For a host's own transaction, from any driver: takes no lock that the transaction could hold; workers admit after the commit.
CREATE FUNCTION runyard.accept_request(for_tenant text, q runyard.request) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    r runyard.runs;
    limited boolean := EXISTS (SELECT 1 FROM runyard.limits);
BEGIN
    IF (limited OR octet_length(q.input) > runyard.default_message_bytes()) AND (runyard.existing_run(for_tenant, q)).run_id IS NULL THEN
        PERFORM runyard.check_room(for_tenant, q,
            (SELECT t.thread_key FROM runyard.threads t WHERE t.tenant = for_tenant AND t.thread_id = q.thread_id AND t.deleted_at IS NULL),
            '', false);
    END IF;
    r := runyard.insert_run(for_tenant, q, NULL, NULL, q.agent, runyard.due_at(q), limited);
    IF r.run_id IS NULL THEN
        PERFORM runyard.existing_run(for_tenant, q);
    END IF;
    PERFORM pg_notify('runyard_accept', '');
    RETURN r.run_id IS NOT NULL;
END $$;

-- Options as SQL gives them, held to what runner.models.RunOptions reads.
CREATE FUNCTION runyard.check_options(options jsonb) RETURNS void
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    given record;
BEGIN
    FOR given IN SELECT key, value FROM jsonb_each(CASE jsonb_typeof(options) WHEN 'object' THEN options ELSE '{"options": null}' END) LOOP
        IF NOT (CASE given.key
            WHEN 'timeout' THEN jsonb_typeof(given.value) = 'number' AND given.value >= '1e-9' AND given.value <= '315360000'
            WHEN 'expires_in' THEN jsonb_typeof(given.value) = 'number' AND given.value >= '1e-9' AND given.value <= '315360000'
            WHEN 'max_attempts' THEN given.value::text ~ '^[1-9][0-9]{0,2}$'
            WHEN 'parallel' THEN jsonb_typeof(given.value) = 'boolean'
            WHEN 'multitask_strategy' THEN given.value IN ('"enqueue"', '"reject"', '"interrupt"', '"rollback"')
            WHEN 'webhook' THEN jsonb_typeof(given.value) = 'string' AND given.value #>> '{}' ~ '^https?://[^/?#@[:space:]]+([/?][^#[:space:]]*)?$'
                AND length(given.value #>> '{}') <= 2048
            ELSE false END)
        THEN
            PERFORM runyard.refuse('invalid_input', format('option %s cannot be %s; options are timeout and expires_in (seconds), max_attempts (1 to 999), '
                'parallel (true or false), multitask_strategy (enqueue, reject, interrupt, rollback) and webhook (an http or https URL)',
                given.key, given.value));
        END IF;
    END LOOP;
END $$;

-- True if Python calls a character of the text unprintable, as runner.models.check_id refuses it: control and format characters, private ones,
-- and separators except the space. Characters that Unicode has not assigned depend on its version and are not among them.
CREATE FUNCTION runyard.unprintable(given text) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
    SELECT given ~ ('[\u0001-\u001f\u007f-\u00a0\u00ad\u0600-\u0605\u061c\u06dd\u070f\u1680\u180e\u2000-\u200f\u2028-\u202f\u205f-\u206f'
        '\u3000\ue000-\uf8ff\ufeff\ufff0-\ufffb\U000e0000-\U000e007f\U000f0000-\U0010ffff]')
$$;

-- Accept a prompt with SQL alone, inside any transaction: SELECT runyard.accept('thread', 'hello', run_id => 'r1'). With the owner's rights, so
-- that a host which may call this needs no right to read or change a table.
CREATE FUNCTION runyard.accept(
    thread_id text, message text, run_id text DEFAULT gen_random_uuid()::text, agent text DEFAULT NULL, queue text DEFAULT NULL,
    priority text DEFAULT 'normal', run_at timestamptz DEFAULT NULL, metadata jsonb DEFAULT '{}', options jsonb DEFAULT '{}',
    tenant text DEFAULT ''
) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    q runyard.request;
BEGIN
    IF num_nulls(thread_id, message, run_id, priority, metadata, options, tenant) > 0 THEN
        PERFORM runyard.refuse('invalid_input', 'thread_id, message, run_id, priority, metadata, options and tenant cannot be NULL');
    END IF;
    IF length(thread_id) NOT BETWEEN 1 AND 255 OR length(run_id) NOT BETWEEN 1 AND 255
       OR length(agent) NOT BETWEEN 1 AND 255 OR length(queue) NOT BETWEEN 1 AND 255
    THEN
        PERFORM runyard.refuse('invalid_input', 'thread_id and run_id, and agent and queue where given, must have 1 to 255 characters');
    END IF;
    IF thread_id IN ('.', '..') OR run_id IN ('.', '..') OR agent IN ('.', '..') OR queue IN ('.', '..') THEN
        PERFORM runyard.refuse('invalid_input', 'thread_id, run_id, agent and queue cannot be . or .., which paths have for a step');
    END IF;
    IF runyard.unprintable(concat(thread_id, run_id, agent, queue)) THEN
        PERFORM runyard.refuse('invalid_input', 'thread_id, run_id, agent and queue must have printable characters only');
    END IF;
    IF priority NOT IN ('high', 'normal', 'low') OR jsonb_typeof(metadata) <> 'object' THEN
        PERFORM runyard.refuse('invalid_input', 'priority is high, normal or low, and metadata an object');
    END IF;
    IF run_at NOT BETWEEN '1970-01-01T00:00:00Z' AND '9000-01-01T00:00:00Z' THEN
        PERFORM runyard.refuse('invalid_input', format('run_at is from the year 1970 to 8999, got %s', run_at), '{"field": "run_at"}');
    END IF;
    PERFORM runyard.check_metadata(metadata);
    PERFORM runyard.check_options(options);
    q.thread_id := thread_id; q.run_id := run_id; q.kind := 'prompt'; q.agent := agent; q.queue := queue; q.priority := priority;
    q.input := convert_to(jsonb_build_object('content', jsonb_build_array(jsonb_build_object('type', 'text', 'text', message)))::text, 'UTF8');
    q.input_id := gen_random_uuid(); q.input_role := 'user';
    q.request_hash := (jsonb_build_object('agent', md5(coalesce(agent, '')), 'message', md5(message))
        || CASE WHEN options ? 'expires_in' THEN jsonb_build_object('options', md5(options->>'expires_in')) ELSE '{}' END)::text;
    q.options := options; q.metadata := metadata; q.run_at := run_at;
    q.multitask_strategy := coalesce(options->>'multitask_strategy', 'enqueue');
    q.parallel := coalesce((options->>'parallel')::boolean, false);
    PERFORM runyard.accept_request(tenant, q);
    RETURN run_id;
END $$;
