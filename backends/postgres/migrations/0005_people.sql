-- The verbs of clients and operators on runs and requests: respond, cancel, redrive, explain; and the workers' register.

CREATE FUNCTION runyard.known_thread(for_tenant text, id text) RETURNS runyard.threads
LANGUAGE plpgsql AS $$
DECLARE
    t runyard.threads := runyard.live_thread(for_tenant, id);
BEGIN
    IF t.thread_key IS NULL THEN
        PERFORM runyard.refuse('thread_not_found', format('there is no thread %s', id), jsonb_build_object('thread_id', id));
    END IF;
    RETURN t;
END $$;

CREATE FUNCTION runyard.known_run(t runyard.threads, id text) RETURNS runyard.runs
LANGUAGE plpgsql AS $$
DECLARE
    r runyard.runs;
BEGIN
    SELECT x.* INTO r FROM runyard.runs x
    WHERE x.tenant = t.tenant AND x.thread_id = t.thread_id AND x.run_id = id AND NOT x.deleted;
    IF NOT FOUND THEN
        PERFORM runyard.refuse('run_not_found', format('thread %s has no run %s', t.thread_id, id),
                               jsonb_build_object('thread_id', t.thread_id, 'run_id', id));
    END IF;
    RETURN r;
END $$;

CREATE FUNCTION runyard.cancel(for_tenant text, in_thread text, id text, keep boolean, OUT run runyard.runs, OUT effects jsonb)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    got record;
    t runyard.threads := runyard.ensure_for_run(for_tenant, in_thread, id);
    line text;
BEGIN
    got := runyard.admit_thread(t);
    t := got.t; effects := got.effects;
    run := runyard.known_run(t, id);
    IF run.status IN ('completed', 'failed', 'dead') THEN
        PERFORM runyard.refuse('run_ended', format('run %s is %s and cannot be cancelled', id, run.status),
                               jsonb_build_object('run_id', id, 'status', run.status));
    ELSIF run.status <> 'cancelled' THEN
        IF run.lane_seq IS NULL THEN
            run.thread_key := t.thread_key;
            run.lane := run.run_id;
            run.lane_seq := nextval('runyard.lane_numbers');
            run.admitted_at := now();
            UPDATE runyard.runs SET thread_key = run.thread_key WHERE accept_no = run.accept_no;
        END IF;
        line := run.waits_for_slot;
        got := runyard.cancel_run(t, run, keep);
        run := got.r; effects := runyard.merge_effects(effects, got.effects);
        IF line IS NOT NULL THEN effects := runyard.merge_effects(effects, runyard.free(ARRAY[line])); END IF;
    END IF;
    SELECT y.* INTO run FROM runyard.runs y WHERE y.accept_no = run.accept_no;
END $$;

-- Cancel the run that has pending requests: its open calls and its last message say `words`. A NULL run if none has.
CREATE FUNCTION runyard.abort_pending(for_tenant text, in_thread text, id text, words text, OUT run runyard.runs, OUT effects jsonb)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    got record;
    t runyard.threads := runyard.known_thread(for_tenant, in_thread);
    waiting text[];
BEGIN
    got := runyard.admit_thread(t);
    t := got.t; effects := got.effects;
    IF id IS NOT NULL THEN PERFORM runyard.known_run(t, id); END IF;
    SELECT coalesce(array_agg(DISTINCT r.run_id), '{}') INTO waiting
    FROM runyard.hitl_requests h JOIN runyard.runs r ON r.thread_key = h.thread_key AND r.run_id = h.run_id
    WHERE h.thread_key = t.thread_key AND h.answered_at IS NULL AND h.closed_at IS NULL AND r.finished_at IS NULL
      AND (id IS NULL OR h.run_id = id);
    IF cardinality(waiting) > 1 THEN
        PERFORM runyard.refuse('hitl_ambiguous', format('several runs wait on thread %s; name one of %s', in_thread, array_to_string(waiting, ', ')),
                               jsonb_build_object('thread_id', in_thread, 'run_ids', to_jsonb(waiting)));
    ELSIF waiting = '{}' THEN
        RETURN;
    END IF;
    run := runyard.known_run(t, waiting[1]);
    IF run.cancel_requested_at IS NULL THEN
        run.abort_words := words;
        UPDATE runyard.runs SET abort_words = words WHERE accept_no = run.accept_no;
    END IF;
    got := runyard.cancel_run(t, run, true);
    effects := runyard.merge_effects(effects, got.effects);
    IF run.waits_for_slot IS NOT NULL THEN
        effects := runyard.merge_effects(effects, runyard.free(ARRAY[run.waits_for_slot]));
    END IF;
    SELECT y.* INTO run FROM runyard.runs y WHERE y.accept_no = run.accept_no;
END $$;

-- The thread of a run; made if the run was accepted in a host's transaction before its thread existed.
CREATE FUNCTION runyard.ensure_for_run(for_tenant text, in_thread text, id text) RETURNS runyard.threads
LANGUAGE plpgsql AS $$
DECLARE
    t runyard.threads := runyard.live_thread(for_tenant, in_thread);
BEGIN
    IF t.thread_key IS NULL AND EXISTS (
        SELECT 1 FROM runyard.runs x
        WHERE x.tenant = for_tenant AND x.thread_id = in_thread AND x.run_id = id AND NOT x.deleted) THEN
        RETURN runyard.ensure_thread(for_tenant, in_thread);
    ELSIF t.thread_key IS NULL THEN
        RETURN runyard.known_thread(for_tenant, in_thread);
    END IF;
    RETURN t;
END $$;

CREATE FUNCTION runyard.redrive(for_tenant text, in_thread text, id text, OUT run runyard.runs, OUT effects jsonb)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    got record;
    t runyard.threads := runyard.known_thread(for_tenant, in_thread);
BEGIN
    got := runyard.admit_thread(t);
    t := got.t; effects := got.effects;
    run := runyard.known_run(t, id);
    IF run.status NOT IN ('failed', 'dead') THEN
        PERFORM runyard.refuse('run_ended', format('run %s is %s; only a failed or dead run can be redriven', id, run.status),
                               jsonb_build_object('run_id', id, 'status', run.status));
    END IF;
    IF run.emptied_at IS NOT NULL THEN
        PERFORM runyard.refuse('run_ended', format('run %s was deleted; enqueue a new one', id),
                               jsonb_build_object('run_id', id, 'status', run.status));
    END IF;
    IF run.kind = 'external' THEN
        PERFORM runyard.refuse('run_ended', format('run %s is external and %s; no worker can take it up, claim a new one', id, run.status),
                               jsonb_build_object('run_id', id, 'status', run.status));
    END IF;
    -- What was refused when it was admitted cannot be on this thread now either.
    IF run.snapshot_tip IS NULL THEN PERFORM runyard.raise(runyard.why_not(t, id, run.parent_id)); END IF;
    -- What nobody answered was closed with the run; asked again, it is a new question.
    DELETE FROM runyard.hitl_requests h WHERE h.thread_key = t.thread_key AND h.run_id = id AND h.answered_at IS NULL;
    UPDATE runyard.runs y SET status = 'queued', lane_seq = nextval('runyard.lane_numbers'), admitted_at = now(), finished_at = NULL,
        queued_fence = nextval('runyard.fences'),
        lane = coalesce(y.lane, ''), error = NULL, error_count = 0, crash_count = 0, expires_at = NULL, not_before = NULL, worker_id = NULL, cancel_requested_at = NULL,
        cancel_keep = false, abort_words = NULL, event_id = NULL, app_version = NULL, usage_before = coalesce(y.usage, '{}'),
        changed_at = now()
    WHERE y.accept_no = run.accept_no RETURNING y.* INTO run;
    effects := runyard.merge_effects(effects, runyard.startable(run));
END $$;

-- The request that an answer is for. `answered` with the same response id is found again, so that a repeated answer is recognised.
CREATE FUNCTION runyard.request_for(for_tenant text, in_thread text, request text, response text) RETURNS runyard.requests
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    h runyard.requests;
    key bigint;
    waiting text[];
BEGIN
    IF in_thread IS NOT NULL THEN
        SELECT t.thread_key INTO key FROM runyard.threads t
        WHERE t.tenant = for_tenant AND t.thread_id = in_thread AND t.deleted_at IS NULL;
        IF NOT FOUND THEN
            PERFORM runyard.refuse('thread_not_found', format('there is no thread %s', in_thread), jsonb_build_object('thread_id', in_thread));
        END IF;
    END IF;
    IF request IS NOT NULL THEN
        SELECT x.* INTO h FROM runyard.requests x
        WHERE x.tenant = for_tenant AND x.request_id = request AND (key IS NULL OR x.thread_key = key);
        IF FOUND AND h.closed_at IS NULL AND h.answered_by IS DISTINCT FROM 'deadline' THEN RETURN h; END IF;
    ELSIF response IS NOT NULL THEN
        SELECT x.* INTO h FROM runyard.requests x WHERE x.thread_key = key AND x.response_id = response;
        IF FOUND THEN RETURN h; END IF;
    END IF;
    SELECT coalesce(array_agg(x.request_id ORDER BY x.created_at, x.request_id), '{}') INTO waiting FROM runyard.hitl_requests x
    WHERE x.tenant = for_tenant AND x.thread_key = coalesce(key, h.thread_key) AND x.answered_at IS NULL AND x.closed_at IS NULL;
    IF request IS NOT NULL AND (waiting <> '{}' OR h.request_id IS NOT NULL) THEN
        PERFORM runyard.refuse('hitl_stale_answer',
            format('request %s does not wait for an answer; pending: %s', request, coalesce(nullif(array_to_string(waiting, ', '), ''), 'none')),
            jsonb_build_object('request_id', request, 'pending', to_jsonb(waiting)));
    ELSIF waiting = '{}' THEN
        PERFORM runyard.refuse('hitl_no_pending_request', format('nothing waits for an answer on thread %s', coalesce(in_thread, '?')),
                               jsonb_build_object('thread_id', in_thread));
    ELSIF cardinality(waiting) > 1 THEN
        PERFORM runyard.refuse('hitl_ambiguous', format('several requests wait on thread %s; name one of %s', in_thread, array_to_string(waiting, ', ')),
                               jsonb_build_object('thread_id', in_thread, 'request_ids', to_jsonb(waiting)));
    END IF;
    SELECT x.* INTO h FROM runyard.requests x WHERE x.tenant = for_tenant AND x.request_id = waiting[1];
    RETURN h;
END $$;

-- An answered request's run goes on: it keeps its place, so it is next in its lane.
CREATE FUNCTION runyard.wake_run(key bigint, id text, OUT effects jsonb)
LANGUAGE plpgsql AS $$
DECLARE
    r runyard.runs;
BEGIN
    UPDATE runyard.runs y SET status = 'queued', suspended_at = NULL, not_before = NULL, changed_at = now()
    WHERE y.thread_key = key AND y.run_id = id AND y.status = 'suspended' RETURNING y.* INTO r;
    IF FOUND THEN effects := jsonb_build_object('jobs', jsonb_build_array(runyard.job(r))); END IF;
END $$;

-- Do what each overdue request chose: its answer applies, or the run that waits fails.
CREATE FUNCTION runyard.fire_deadlines(INOUT t runyard.threads, OUT effects jsonb)
LANGUAGE plpgsql AS $$
DECLARE
    got record;
    h runyard.hitl_requests;
    r runyard.runs;
    event text;
    why jsonb;
BEGIN
    FOR h IN
        SELECT y.* FROM runyard.hitl_requests y
        WHERE y.thread_key = t.thread_key AND y.deadline_at <= clock_timestamp() AND y.answered_at IS NULL AND y.closed_at IS NULL
        ORDER BY y.created_at, y.request_id
    LOOP
        IF h.otherwise IS NOT NULL THEN
            UPDATE runyard.hitl_requests y SET answer = h.otherwise, answered_by = 'deadline', answered_at = now()
            WHERE y.tenant = h.tenant AND y.request_id = h.request_id;
            effects := runyard.merge_effects(effects, runyard.wake_run(t.thread_key, h.run_id));
            CONTINUE;
        END IF;
        SELECT y.* INTO r FROM runyard.runs y WHERE y.thread_key = t.thread_key AND y.run_id = h.run_id;
        IF NOT FOUND THEN
            UPDATE runyard.hitl_requests y SET closed_at = now() WHERE y.tenant = h.tenant AND y.request_id = h.request_id;
        ELSIF r.status = 'suspended' OR (r.kind = 'external' AND r.finished_at IS NULL) THEN
            event := nextval('runyard.fences') || '-1';
            why := jsonb_build_object('code', 'hitl_timeout', 'message', format('request %s was not answered by %s', h.request_id, h.deadline_at));
            got := runyard.end_run(t, r, 'failed', why, event);
            t := got.t;
            effects := runyard.merge_effects(runyard.merge_effects(effects, got.effects),
                runyard.outside_event(t, r, event, 'run.failed', jsonb_build_object('error', why)));
        END IF;
    END LOOP;
END $$;

-- Record the answer once, to the request whose schema the caller checked it against; created is NULL if another waits by now, and false if the
-- request had its answer before: the caller compares.
CREATE FUNCTION runyard.respond(
    for_tenant text, in_thread text, named text, response text, checked text, value bytea, who text, for_whom text,
    OUT request runyard.requests, OUT created boolean, OUT effects jsonb, OUT is_last boolean
) LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    got record;
    t runyard.threads;
BEGIN
    is_last := false;
    SELECT y.* INTO t FROM runyard.threads y
    WHERE y.thread_key = (SELECT h.thread_key FROM runyard.hitl_requests h WHERE h.tenant = for_tenant AND h.request_id = checked) FOR UPDATE;
    got := runyard.admit_thread(t);
    t := got.t; effects := got.effects;
    got := runyard.fire_deadlines(t);
    t := got.t; effects := runyard.merge_effects(effects, got.effects);
    request := runyard.request_for(for_tenant, in_thread, named, response);
    IF request.request_id <> checked OR request.answered_at IS NOT NULL THEN
        created := CASE WHEN request.request_id = checked THEN false END;
        RETURN;
    END IF;
    UPDATE runyard.hitl_requests y SET answer = value, response_id = response, answered_by = who, on_behalf_of = for_whom, answered_at = now()
    WHERE y.tenant = for_tenant AND y.request_id = checked AND y.answered_at IS NULL AND y.closed_at IS NULL
    RETURNING y.answer, y.response_id, y.answered_by, y.on_behalf_of, y.answered_at
    INTO request.answer, request.response_id, request.answered_by, request.on_behalf_of, request.answered_at;
    created := FOUND;
    is_last := created AND NOT EXISTS (
        SELECT 1 FROM runyard.hitl_requests h
        WHERE h.thread_key = t.thread_key AND h.run_id IS NOT DISTINCT FROM request.run_id AND h.answered_at IS NULL AND h.closed_at IS NULL);
    effects := runyard.merge_effects(effects, runyard.wake_run(t.thread_key, request.run_id));
END $$;

-- Why the run is not running, as a reason and its facts; the wording is the client's.
CREATE FUNCTION runyard.explain(for_tenant text, in_thread text, id text, OUT run runyard.runs, OUT reason text, OUT facts jsonb)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    ahead runyard.runs;
    asked runyard.hitl_requests;
    paused jsonb;
    serving runyard.workers[];
    unserved text;
    missing jsonb;
    nobody text;
BEGIN
    SELECT x.* INTO run FROM runyard.runs x
    WHERE x.tenant = for_tenant AND x.thread_id = in_thread AND x.run_id = id AND NOT x.deleted;
    facts := '{}';
    IF NOT FOUND THEN PERFORM runyard.known_run(runyard.known_snapshot(for_tenant, in_thread), id); END IF;
    paused := (SELECT jsonb_build_object('queue', q.queue, 'since', q.paused_at) FROM runyard.paused_queues q WHERE q.queue = run.queue);
    serving := ARRAY(SELECT w FROM runyard.workers w WHERE w.dead_at IS NULL AND NOT w.draining AND run.queue = ANY (w.queues));
    unserved := (SELECT a.name FROM unnest(ARRAY[CASE WHEN run.kind <> 'fork' THEN run.agent END, run.fork->'fan'->>'judge']) a(name)
        WHERE NOT EXISTS (SELECT 1 FROM unnest(serving) w WHERE runyard.serves(w, a.name)) LIMIT 1);
    nobody := CASE WHEN serving = '{}' THEN 'no_worker' WHEN unserved IS NOT NULL THEN 'no_agent' END;
    missing := jsonb_build_object('queue', run.queue, 'agent', unserved);
    IF run.status = 'suspended' THEN
        SELECT h.* INTO asked FROM runyard.hitl_requests h
        WHERE h.thread_key = run.thread_key AND h.run_id = id AND h.answered_at IS NULL AND h.closed_at IS NULL
        ORDER BY h.created_at LIMIT 1;
        reason := 'suspended'; facts := jsonb_build_object('request_id', asked.request_id, 'since', run.suspended_at);
    ELSIF run.status <> 'queued' THEN
        reason := CASE WHEN run.status = 'running' AND run.kind = 'external' THEN 'external'
                       WHEN run.status = 'running' AND NOT EXISTS (
                           SELECT 1 FROM runyard.workers w WHERE w.worker_id = run.worker_id AND w.dead_at IS NULL) THEN 'orphaned'
                       ELSE run.status END;
        facts := jsonb_build_object('worker_id', run.worker_id, 'error', run.error, 'isolated', run.isolated, 'nobody', nobody)
            || missing || coalesce(paused, '{}');
    ELSIF run.lane_seq IS NULL THEN
        reason := 'not_due'; facts := jsonb_build_object('due_at', coalesce(run.run_at, run.accepted_at));
    ELSIF run.error IS NOT NULL AND run.not_before > clock_timestamp() THEN
        reason := 'retrying'; facts := jsonb_build_object('at', run.not_before, 'error', run.error);
    ELSIF run.until_fewer IS NOT NULL AND runyard.started_by(run) >= run.until_fewer THEN
        reason := 'fanned_out'; facts := jsonb_build_object('live', runyard.started_by(run));
    ELSIF run.kind <> 'prompt' AND runyard.cut_pending(run) THEN
        reason := 'waiting'; facts := jsonb_build_object('run_id', run.after_run_id);
    ELSIF paused IS NOT NULL THEN
        reason := 'paused'; facts := paused;
    ELSE
        SELECT x.* INTO ahead FROM runyard.runs x
        WHERE x.thread_key = run.thread_key AND x.lane = run.lane AND x.finished_at IS NULL
          AND x.lane_seq < run.lane_seq ORDER BY x.lane_seq LIMIT 1;
        IF FOUND THEN
            reason := 'behind'; facts := jsonb_build_object('run_id', ahead.run_id, 'status', ahead.status);
        ELSIF run.waits_for_slot IS NOT NULL THEN
            reason := 'limited'; facts := jsonb_build_object('slot', run.waits_for_slot, 'most', runyard.limit_of_slot(run.waits_for_slot));
        ELSE
            reason := coalesce(nobody, 'next'); facts := missing;
        END IF;
    END IF;
    facts := facts || jsonb_build_object('app_version', run.app_version, 'workers', (
        SELECT coalesce(jsonb_agg(DISTINCT w.app_version), '[]') FROM runyard.workers w WHERE w.dead_at IS NULL));
END $$;

-- Repeated because its answer got lost, it is the same registration.
CREATE FUNCTION runyard.register(
    worker text, in_queues text[], with_agents jsonb, version text, on_mismatch text, with_slots integer, at_address text,
    asking text[]
) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO runyard.workers AS w (worker_id, queues, agents, app_version, on_version_mismatch, slots, address)
    VALUES (worker, in_queues, with_agents, version, on_mismatch, with_slots, at_address)
    ON CONFLICT (worker_id) DO UPDATE SET heartbeat_at = clock_timestamp() WHERE w.dead_at IS NULL;
    IF NOT FOUND THEN
        PERFORM runyard.refuse('worker_dead', format('worker %s was declared dead; register under a new id', worker));
    END IF;
    INSERT INTO runyard.agents (agent, queue, asks, app_version)
    SELECT key, value, key = ANY (asking), version FROM jsonb_each_text(with_agents) ORDER BY key
    ON CONFLICT (agent) DO UPDATE SET queue = excluded.queue, asks = excluded.asks, app_version = excluded.app_version, updated_at = now();
END $$;

-- A worker lives; with what it needs to know every second.
CREATE FUNCTION runyard.beat(worker text, OUT draining boolean, OUT paused text[], OUT oldest_code integer)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE runyard.workers w SET heartbeat_at = clock_timestamp() WHERE w.worker_id = worker AND w.dead_at IS NULL
    RETURNING w.draining INTO draining;
    IF NOT FOUND THEN
        PERFORM runyard.refuse('worker_dead', format('worker %s was declared dead; register under a new id', worker));
    END IF;
    paused := ARRAY(SELECT q.queue FROM runyard.paused_queues q);
    oldest_code := (SELECT max(v.oldest_code) FROM runyard.schema_versions v);
END $$;

-- What waits in each queue that holds runs, is paused or is served. Reads the unfinished runs once, by their index.
CREATE FUNCTION runyard.queues() RETURNS TABLE (
    queue text, queued bigint, deepest bigint, oldest double precision, suspended bigint, workers bigint, paused_at timestamptz,
    known boolean
)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH lanes AS (
        SELECT x.queue, x.thread_key, x.lane, count(*) FILTER (WHERE x.waits) AS queued, min(x.since) FILTER (WHERE x.waits) AS since,
               count(x.lane) FILTER (WHERE x.waits) AS depth, count(*) FILTER (WHERE x.status = 'suspended') AS suspended
        FROM (SELECT y.queue, y.thread_key, y.lane, y.status, s.since, y.status = 'queued' AND y.until_fewer IS NULL AND s.since <= clock_timestamp() AS waits
              FROM runyard.runs y, LATERAL (SELECT greatest(y.changed_at, y.run_at, y.not_before) AS since) s
              WHERE y.finished_at IS NULL AND y.kind <> 'external') x
        GROUP BY x.queue, x.thread_key, x.lane
    ), found AS (
        SELECT l.queue, sum(l.queued)::bigint AS queued, max(l.depth) AS deepest, min(l.since) AS since, sum(l.suspended)::bigint AS suspended
        FROM lanes l GROUP BY l.queue
    ), served AS (
        SELECT s.queue, count(*) FILTER (WHERE NOT w.draining) AS workers FROM runyard.workers w, unnest(w.queues) s(queue)
        WHERE w.dead_at IS NULL GROUP BY s.queue
    )
    SELECT n.queue, coalesce(f.queued, 0), coalesce(f.deepest, 0), extract(epoch FROM clock_timestamp() - f.since)::float8,
           coalesce(f.suspended, 0), coalesce(s.workers, 0), p.paused_at,
           s.queue IS NOT NULL OR p.queue IS NOT NULL OR EXISTS (SELECT 1 FROM runyard.agents a WHERE a.queue = n.queue)
    FROM (SELECT f.queue FROM found f UNION SELECT s.queue FROM served s UNION SELECT p.queue FROM runyard.paused_queues p) n
    LEFT JOIN found f ON f.queue = n.queue LEFT JOIN served s ON s.queue = n.queue LEFT JOIN runyard.paused_queues p ON p.queue = n.queue
    ORDER BY n.queue;
END $$;

CREATE FUNCTION runyard.lead(lease text, worker text, ttl double precision) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO runyard.leases AS l (name, holder, expires_at)
    VALUES (lease, worker, clock_timestamp() + make_interval(secs => ttl))
    ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, expires_at = excluded.expires_at
    WHERE l.holder = excluded.holder OR l.expires_at < clock_timestamp();
    RETURN FOUND;
END $$;

-- Lane heads that should be on their way: queued and due, or running under a dead worker, and unchanged for a while. Goes from lane to lane by
-- the index, so that what waits behind a head costs nothing.
CREATE FUNCTION runyard.heads(unchanged interval, after_key bigint, after_lane text, most integer) RETURNS SETOF runyard.runs
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    r record;
    found_so_far integer := 0;
BEGIN
    WHILE found_so_far < most LOOP
        SELECT x.accept_no, x.thread_key, x.lane, x.status, x.kind, x.changed_at, x.not_before, x.admitted_at, x.worker_id,
               x.waits_for_slot INTO r
        FROM runyard.runs x
        WHERE x.finished_at IS NULL AND x.lane_seq IS NOT NULL AND (x.thread_key, x.lane) > (after_key, after_lane)
        ORDER BY x.thread_key, x.lane, x.lane_seq LIMIT 1;
        EXIT WHEN NOT FOUND;
        after_key := r.thread_key; after_lane := r.lane;
        CONTINUE WHEN r.status = 'suspended' OR r.kind = 'external' OR r.changed_at >= now() - unchanged;
        IF r.status = 'queued' THEN
            CONTINUE WHEN r.waits_for_slot IS NOT NULL; -- review_limits offers it
            CONTINUE WHEN coalesce(r.not_before, r.admitted_at) >= now() - unchanged;
            CONTINUE WHEN r.kind <> 'prompt' AND (SELECT runyard.cut_pending(x) FROM runyard.runs x WHERE x.accept_no = r.accept_no);
        ELSE
            CONTINUE WHEN EXISTS (SELECT 1 FROM runyard.workers w WHERE w.worker_id = r.worker_id AND w.dead_at IS NULL);
        END IF;
        found_so_far := found_so_far + 1;
        RETURN QUERY SELECT x.* FROM runyard.runs x WHERE x.accept_no = r.accept_no;
    END LOOP;
END $$;
