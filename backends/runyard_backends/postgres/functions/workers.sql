-- The register of workers, the leader's lease, and the functions by which the leader finds runs to submit again.
-- runyard/worker/lost_jobs.py chooses their `most` and `unchanged` (ORPHANS_PER_PAGE, RECENT_ROWS, ROTATION_ROWS, MIN_HEAD_AGE).

-- Register a worker and its agents. A repetition after a lost reply only renews the heartbeat. Raises worker_dead for the id of a
-- dead worker.
CREATE OR REPLACE FUNCTION runyard.register_v2(
    worker_id text, in_queues text[], with_agents jsonb, with_default text, version text, on_mismatch text, with_slots integer, at_address text,
    asking text[]
) RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO runyard.workers AS w (worker_id, queues, agents, default_agent, app_version, on_version_mismatch, slots, address)
    VALUES (register_v2.worker_id, in_queues, with_agents, with_default, version, on_mismatch, with_slots, at_address)
    ON CONFLICT ON CONSTRAINT workers_pkey DO UPDATE SET heartbeat_at = clock_timestamp() WHERE w.dead_at IS NULL;
    IF NOT FOUND THEN
        PERFORM runyard.refuse('worker_dead', format('worker %s was declared dead; register under a new id', worker_id));
    END IF;
    INSERT INTO runyard.agents (agent, queue, asks, app_version)
    SELECT key, value, key = ANY (asking), version FROM jsonb_each_text(with_agents) ORDER BY key
    ON CONFLICT (agent) DO UPDATE SET queue = excluded.queue, asks = excluded.asks, app_version = excluded.app_version, updated_at = now();
END $$;

-- Register a worker of an older release, which has no namespaces.
CREATE OR REPLACE FUNCTION runyard.register(
    worker_id text, in_queues text[], with_agents jsonb, version text, on_mismatch text, with_slots integer, at_address text,
    asking text[]
) RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM runyard.register_v2(worker_id, in_queues, with_agents, NULL, version, on_mismatch, with_slots, at_address, asking);
END $$;

-- Record a worker's heartbeat. Return the state to which the worker must react. draining: true if the worker must claim no more runs.
-- paused: the paused queues. oldest_code: the oldest code version that can run on the schema.
CREATE OR REPLACE FUNCTION runyard.beat(worker_id text, OUT draining boolean, OUT paused text[], OUT oldest_code integer)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    UPDATE runyard.workers w SET heartbeat_at = clock_timestamp() WHERE w.worker_id = beat.worker_id AND w.dead_at IS NULL
    RETURNING w.draining INTO draining;
    IF NOT FOUND THEN
        PERFORM runyard.refuse('worker_dead', format('worker %s was declared dead; register under a new id', worker_id));
    END IF;
    paused := ARRAY(SELECT q.queue FROM runyard.paused_queues q);
    oldest_code := (SELECT max(v.oldest_code) FROM runyard.schema_versions v);
END $$;

-- Return the error for the attempts of a dead worker whose main loop was blocked. Return NULL for any other worker. The place
-- and the stack are shortened to MAX_PLACE_CHARACTERS (ports/workers.py) and MAX_TRACEBACK_BYTES (domain/size_limits.py),
-- because any program with the rights of a worker can write them. A character has at most four bytes.
CREATE OR REPLACE FUNCTION runyard.blocked_error(of_worker text) RETURNS jsonb
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT jsonb_build_object('code', 'main_loop_blocked', 'details', '{}'::jsonb,
                'message', format('the main loop of its worker was blocked at %s', right(w.blocked_at, 1000)), 'traceback',
                CASE WHEN octet_length(w.blocked_stack) <= 8192 THEN w.blocked_stack ELSE right(w.blocked_stack, 2048) END)
            FROM runyard.workers w WHERE w.worker_id = of_worker AND w.blocked_at IS NOT NULL);
END $$;

-- Return the facts about a blocked main loop for runyard.explain: the time and the place. Return {} if the loop is not blocked.
CREATE OR REPLACE FUNCTION runyard.blocked_facts(w runyard.workers) RETURNS jsonb
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN CASE WHEN w.blocked_at IS NULL THEN '{}' ELSE jsonb_build_object('blocked_at', right(w.blocked_at, 1000),
        'blocked_for', round(extract(epoch FROM clock_timestamp() - w.blocked_since))) END;
END $$;

-- Take or renew a lease for `ttl` seconds. Return true if the worker holds the lease.
CREATE OR REPLACE FUNCTION runyard.lead(lease text, worker_id text, ttl double precision) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO runyard.leases AS l (name, holder, expires_at)
    VALUES (lease, lead.worker_id, clock_timestamp() + make_interval(secs => ttl))
    ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, expires_at = excluded.expires_at
    WHERE l.holder = excluded.holder OR l.expires_at < clock_timestamp();
    RETURN FOUND;
END $$;

-- Return the running runs of workers that are dead or have left, worker by worker, in the order of the workers' ids after
-- `after_worker`. The page ends when it has at least `most` runs and all runs of its last worker. For a live worker, the
-- function reads two index entries, however many runs the worker has.
CREATE OR REPLACE FUNCTION runyard.orphans(after_worker text, most integer)
RETURNS TABLE (job jsonb, cancelled boolean, worker_id text)
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_hashjoin = off SET enable_mergejoin = off
SECURITY DEFINER SET jit = off SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    r runyard.runs;
    found_so_far integer := 0;
BEGIN
    orphans.worker_id := after_worker;
    WHILE found_so_far < most LOOP
        SELECT x.worker_id INTO orphans.worker_id FROM runyard.live_runs x WHERE x.worker_id > orphans.worker_id ORDER BY x.worker_id LIMIT 1;
        EXIT WHEN NOT FOUND;
        CONTINUE WHEN EXISTS (SELECT 1 FROM runyard.workers w WHERE w.worker_id = orphans.worker_id AND w.dead_at IS NULL);
        FOR r IN
            SELECT x.* FROM runyard.live_runs l JOIN runyard.runs x USING (accept_no)
            WHERE l.worker_id = orphans.worker_id AND l.status = 'running'
        LOOP
            r.input := NULL; r.candidates := NULL; r.extra := NULL; r.result := NULL; r.metadata := NULL; -- a call with r would read these large columns
            job := runyard.job(r); cancelled := r.cancel_requested_at IS NOT NULL;
            found_so_far := found_so_far + 1;
            RETURN NEXT;
        END LOOP;
    END LOOP;
END $$;

-- Examine at most `most` queued runs after the given place, in the order of (changed_at, accept_no). Return the jobs of the
-- runs that wait only for a worker. If there may be more runs, the last row has the place of the last examined run and no job.
-- unchanged: the shortest time since the last change of an examined run. within: the longest time since this change, or NULL.
CREATE OR REPLACE FUNCTION runyard.waiting(
    unchanged interval, within interval, after_time timestamptz, after_no bigint, most integer
) RETURNS TABLE (job jsonb, place_time timestamptz, place_no bigint)
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_hashjoin = off SET enable_mergejoin = off
SECURITY DEFINER SET jit = off SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    got record;
    r runyard.runs;
    examined integer := 0;
    first_time timestamptz := coalesce(after_time, '-infinity');
    first_no bigint := coalesce(after_no, 0);
BEGIN
    IF first_time < now() - within THEN
        first_time := now() - within; first_no := 0;
    END IF;
    FOR got IN
        SELECT l.changed_at, l.accept_no, x.kind, x.job
        FROM (SELECT y.* FROM runyard.live_runs y
              WHERE y.status = 'queued' AND y.lane_seq IS NOT NULL AND y.waits_for_permit IS NULL
                AND (y.changed_at, y.accept_no) > (first_time, first_no) AND y.changed_at < now() - unchanged
              ORDER BY y.changed_at, y.accept_no LIMIT most) l
        LEFT JOIN LATERAL ( -- as in runyard.leads_lane, of which the call would cost more than the rest of the statement
            SELECT y.accept_no FROM runyard.live_runs y WHERE y.thread_key = l.thread_key AND y.lane = l.lane
              AND y.lane_seq > CASE l.lane WHEN '' THEN (SELECT t.lane_floor FROM runyard.threads t WHERE t.thread_key = l.thread_key) ELSE 0 END
              AND y.lane_seq < l.lane_seq ORDER BY y.lane_seq DESC LIMIT 1) earlier ON true
        LEFT JOIN LATERAL (
            SELECT y.kind, runyard.job_of(y.thread_key, y.run_id, y.lane, y.kind, y.queue, y.priority, y.tenant, y.not_before,
                runyard.queued_event(y.thread_id, y.fence, y.queued_fence, y.attempt)) AS job
            FROM runyard.runs y WHERE earlier.accept_no IS NULL AND y.accept_no = l.accept_no
              AND coalesce(y.not_before, y.admitted_at) < now() - unchanged) x ON true
        ORDER BY l.changed_at, l.accept_no
    LOOP
        examined := examined + 1;
        place_time := got.changed_at; place_no := got.accept_no; job := got.job;
        CONTINUE WHEN job IS NULL;
        IF got.kind <> 'prompt' THEN
            SELECT y.* INTO r FROM runyard.runs y WHERE y.accept_no = got.accept_no;
            r.input := NULL; r.candidates := NULL; r.extra := NULL; r.result := NULL; r.metadata := NULL; -- a call with r would read these large columns
            CONTINUE WHEN runyard.must_wait(r);
        END IF;
        RETURN NEXT;
    END LOOP;
    IF examined = most THEN
        job := NULL;
        RETURN NEXT;
    END IF;
END $$;

-- Return the jobs of the given runs that still wait only for a worker, as in runyard.waiting.
CREATE OR REPLACE FUNCTION runyard.still_waiting(unchanged interval, thread_keys bigint[], run_ids text[]) RETURNS SETOF jsonb
LANGUAGE plpgsql STABLE SECURITY DEFINER SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    r runyard.runs;
BEGIN
    FOR r IN
        SELECT x.* FROM unnest(thread_keys, run_ids) u(thread_key, run_id)
        JOIN runyard.runs x ON x.thread_key = u.thread_key AND x.run_id = u.run_id
        JOIN runyard.live_runs l ON l.accept_no = x.accept_no
        WHERE l.status = 'queued' AND l.lane_seq IS NOT NULL AND l.waits_for_permit IS NULL AND l.changed_at < now() - unchanged
          AND runyard.leads_lane(l)
    LOOP
        r.input := NULL; r.candidates := NULL; r.extra := NULL; r.result := NULL; r.metadata := NULL; -- a call with r would read these large columns
        IF runyard.waits_for_worker(r, unchanged) THEN RETURN NEXT runyard.job(r); END IF;
    END LOOP;
END $$;

-- Return true if an admitted run is the head of its lane. The function reads the index backwards from the run, because the front of a long
-- lane may have index entries of many ended runs.
CREATE OR REPLACE FUNCTION runyard.leads_lane(l runyard.live_runs) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT x.accept_no FROM runyard.live_runs x WHERE x.thread_key = l.thread_key AND x.lane = l.lane
            AND x.lane_seq > CASE l.lane WHEN '' THEN (SELECT t.lane_floor FROM runyard.threads t WHERE t.thread_key = l.thread_key) ELSE 0 END
            AND x.lane_seq < l.lane_seq ORDER BY x.lane_seq DESC LIMIT 1) IS NULL;
END $$;

-- Return true if a queued run at the head of its lane waits only for a worker. The run must have been due for the time `unchanged`, and
-- wait for no other run.
CREATE OR REPLACE FUNCTION runyard.waits_for_worker(r runyard.runs, unchanged interval) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN coalesce(r.not_before, r.admitted_at) < now() - unchanged AND (r.kind = 'prompt' OR NOT runyard.must_wait(r));
END $$;
