-- Effects: the work that a commit leaves to be done in Redis. They are JSON: {"jobs": […], "events": […], "cancels": […], "withdrawn": […],
-- "deleted": […]}, or NULL for no effects.

-- Return the effects of both arguments together.
CREATE OR REPLACE FUNCTION runyard.merge_effects(a jsonb, b jsonb) RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN CASE WHEN a IS NULL THEN b WHEN b IS NULL THEN a ELSE jsonb_build_object(
        'jobs', coalesce(a->'jobs', '[]') || coalesce(b->'jobs', '[]'),
        'events', coalesce(a->'events', '[]') || coalesce(b->'events', '[]'),
        'cancels', coalesce(a->'cancels', '[]') || coalesce(b->'cancels', '[]'),
        'withdrawn', coalesce(a->'withdrawn', '[]') || coalesce(b->'withdrawn', '[]'),
        'deleted', coalesce(a->'deleted', '[]') || coalesce(b->'deleted', '[]')) END;
END $$;

-- Return the job of a run as JSON. The field `queued` of the job has the data of the event run.queued. This event is written
-- when the job is submitted. If an attempt has begun since the run was accepted or redriven, `queued` is NULL.
CREATE OR REPLACE FUNCTION runyard.job(r runyard.runs) RETURNS jsonb
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN runyard.job_of(r.thread_key, r.run_id, r.lane, r.kind, r.queue, r.priority, r.tenant, r.not_before,
        runyard.queued_event(r.thread_id, r.fence, r.queued_fence, r.attempt));
END $$;

-- Return the field `queued` of the job of a run. Postgres inlines this function into the statement.
CREATE OR REPLACE FUNCTION runyard.queued_event(thread_id text, fence bigint, queued_fence bigint, attempt integer) RETURNS jsonb
LANGUAGE sql AS $$
    SELECT CASE WHEN fence IS NULL OR fence < queued_fence THEN
        jsonb_build_object('thread_id', thread_id, 'fence', queued_fence, 'attempt', attempt + 1) END
$$;

-- Return the job of a run from single columns, for statements that do not have the whole row. Postgres inlines this function into the
-- statement.
CREATE OR REPLACE FUNCTION runyard.job_of(
    thread_key bigint, run_id text, lane text, kind text, queue text, priority text, tenant text, not_before timestamptz, queued jsonb
) RETURNS jsonb
LANGUAGE sql AS $$
    SELECT jsonb_build_object(
        'thread_key', thread_key, 'run_id', run_id, 'lane', lane, 'kind', kind, 'queue', queue, 'priority', priority, 'tenant', tenant,
        'delay', CASE WHEN not_before IS NULL THEN 0 ELSE greatest(0, extract(epoch FROM not_before - clock_timestamp())) END,
        'ready_at', extract(epoch FROM greatest(clock_timestamp(), not_before)), 'queued', queued)
$$;

-- Send effects to the workers through NOTIFY, for a function that does not return its effects. Effects that are too large for a
-- notification are not sent. The reconciler then finds the runs.
CREATE OR REPLACE FUNCTION runyard.tell(effects jsonb) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
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
