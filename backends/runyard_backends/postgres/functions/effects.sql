-- Effects: the work that a verb asks of Redis. They are JSON: {"jobs": […], "events": […], "cancels": […], "withdrawn": […]}, or
-- NULL for no effects.

-- Return the effects of both arguments together.
CREATE OR REPLACE FUNCTION runyard.merge_effects(a jsonb, b jsonb) RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN CASE WHEN a IS NULL THEN b WHEN b IS NULL THEN a ELSE jsonb_build_object(
        'jobs', coalesce(a->'jobs', '[]') || coalesce(b->'jobs', '[]'),
        'events', coalesce(a->'events', '[]') || coalesce(b->'events', '[]'),
        'cancels', coalesce(a->'cancels', '[]') || coalesce(b->'cancels', '[]'),
        'withdrawn', coalesce(a->'withdrawn', '[]') || coalesce(b->'withdrawn', '[]')) END;
END $$;

-- Return the job of a run as JSON. Its field `queued` has the data of the event run.queued, which is written when the job is
-- submitted. It is NULL if an attempt has begun since the run was accepted or redriven.
CREATE OR REPLACE FUNCTION runyard.job(r runyard.runs) RETURNS jsonb
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

-- Send effects to the workers through NOTIFY, for a function that does not return them. Effects that are too large for a
-- notification are not sent. The reconciler then finds the runs.
CREATE OR REPLACE FUNCTION runyard.tell(effects jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF effects IS NOT NULL AND octet_length(effects::text) < 7900 THEN
        PERFORM pg_notify('runyard_accept', effects::text);
    END IF;
END $$;

-- Return the effects of the end of a run outside any attempt: the event to write, and the job to withdraw.
CREATE OR REPLACE FUNCTION runyard.outside_event(t runyard.threads, r runyard.runs, event text, kind text, body jsonb) RETURNS jsonb
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN jsonb_build_object('events', jsonb_build_array(jsonb_build_object(
        'thread_key', t.thread_key, 'thread_id', t.thread_id, 'run_id', r.run_id, 'event_id', event, 'type', kind,
        'data', jsonb_build_object('status', substr(kind, 5)) || body, 'agent', r.agent, 'queue', r.queue)),
        'withdrawn', CASE WHEN r.lane IS NULL THEN '[]' ELSE jsonb_build_array(runyard.job(r)) END);
END $$;

-- Return effects with the job of the lane's head, if the head is queued. Otherwise return NULL.
CREATE OR REPLACE FUNCTION runyard.next_head(thread_key bigint, in_lane text) RETURNS jsonb
LANGUAGE plpgsql STABLE AS $$
DECLARE
    r runyard.runs;
BEGIN
    SELECT x.* INTO r FROM runyard.runs x
    WHERE x.thread_key = next_head.thread_key AND x.lane = in_lane AND x.finished_at IS NULL AND x.lane_seq IS NOT NULL
    ORDER BY x.lane_seq LIMIT 1;
    IF r.status = 'queued' AND r.kind = 'prompt' THEN
        RETURN jsonb_build_object('jobs', jsonb_build_array(runyard.job(r)));
    END IF;
    RETURN NULL;
END $$;

-- Return effects with the fork jobs that wait for a run.
CREATE OR REPLACE FUNCTION runyard.waiting_for(thread_key bigint, run_id text) RETURNS jsonb
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM runyard.runs w WHERE w.thread_key = waiting_for.thread_key AND w.after_run_id = waiting_for.run_id AND w.status = 'queued') THEN
        RETURN NULL;
    END IF;
    RETURN (SELECT jsonb_build_object('jobs', jsonb_agg(runyard.job(w)))
            FROM runyard.runs w WHERE w.thread_key = waiting_for.thread_key AND w.after_run_id = waiting_for.run_id AND w.status = 'queued');
END $$;

-- Return effects with the job that started the run r. The claim of the job checks whether it may continue, because other runs
-- that it started may end at the same time.
CREATE OR REPLACE FUNCTION runyard.offer_job(r runyard.runs) RETURNS jsonb
LANGUAGE plpgsql STABLE AS $$
DECLARE
    waiting runyard.runs;
BEGIN
    SELECT y.* INTO waiting FROM runyard.runs y WHERE y.thread_key = r.started_by_key AND y.run_id = r.started_by_run_id AND y.finished_at IS NULL;
    IF NOT FOUND THEN RETURN NULL; END IF;
    RETURN jsonb_build_object('jobs', jsonb_build_array(runyard.job(waiting)));
END $$;

-- Return effects with the job of the run if the run may start at once. It must be the head of its lane, or a fork job that waits
-- for no run.
CREATE OR REPLACE FUNCTION runyard.startable(r runyard.runs) RETURNS jsonb
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

-- Return the number of live runs that a job started.
CREATE OR REPLACE FUNCTION runyard.count_started_by(r runyard.runs) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT count(*) FROM runyard.runs x WHERE x.started_by_key = r.thread_key AND x.started_by_run_id = r.run_id AND x.finished_at IS NULL);
END $$;

-- Return true if a fork job waits for the end of another run, or for runs that it started.
CREATE OR REPLACE FUNCTION runyard.cut_pending(r runyard.runs) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN r.until_fewer IS NOT NULL AND runyard.count_started_by(r) >= r.until_fewer
        OR EXISTS (SELECT 1 FROM runyard.runs x WHERE x.thread_key = r.thread_key AND x.run_id = r.after_run_id
                   AND x.finished_at IS NULL);
END $$;
