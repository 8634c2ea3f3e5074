-- Crashes of runs: their number, the attempt that runs alone, and the end of a run that has crashed too often. MAX_CRASHES in
-- runyard/domain/crashes.py is the same limit.

-- Return the number of crashes without progress after which a run is dead. When a run has one crash fewer, its next attempt
-- runs alone.
CREATE OR REPLACE FUNCTION runyard.max_crashes() RETURNS integer LANGUAGE sql IMMUTABLE RETURN 3;

-- Return the number of a run's crashes without progress, including the crash of its current attempt. If the attempt was still
-- waiting for its own process, its crash does not count, because another run must have caused the crash. If the end of another run has
-- claimed the attempt, its crash does not count either, because the worker may have died before the attempt began.
CREATE OR REPLACE FUNCTION runyard.crashes(r runyard.runs) RETURNS integer
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN CASE WHEN r.progressed THEN 1
                WHEN r.crash_count >= runyard.max_crashes() - 1 AND NOT r.isolated
                     OR EXISTS (SELECT 1 FROM runyard.live_runs l WHERE l.accept_no = r.accept_no AND l.chained_fence = r.fence) THEN r.crash_count
                ELSE r.crash_count + 1 END;
END $$;

-- End a run whose attempt has crashed, if a cancel was requested or the run has crashed too often. e.status is NULL if the run continues.
-- how: the description of the crash, for the run's error.
CREATE OR REPLACE FUNCTION runyard.end_crashed(INOUT t runyard.threads, INOUT r runyard.runs, how text, OUT e runyard.ended)
LANGUAGE plpgsql AS $$
DECLARE
    got record;
BEGIN
    e.thread_key := r.thread_key; e.run_id := r.run_id;
    IF r.cancel_requested_at IS NOT NULL THEN
        e.status := 'cancelled';
    ELSIF r.crash_count >= runyard.max_crashes() THEN
        e.status := 'dead';
        e.error := jsonb_build_object('code', 'poison', 'message',
            format('run %s crashed %s times without progress: %s; redrive it when the cause is repaired', r.run_id, r.crash_count, how));
    ELSE
        RETURN;
    END IF;
    e.event_id := nextval('runyard.fences') || '-1';
    got := runyard.end_run(t, r, e.status, e.error, e.event_id);
    t := got.t; r := got.r;
    e.effects := runyard.merge_effects(got.effects, runyard.outside_event(t, r, e.event_id, 'run.' || e.status,
        CASE WHEN e.error IS NULL THEN '{}' ELSE jsonb_build_object('error', e.error) END));
END $$;

-- Record that the attempt runs alone in its process. From now on, a crash of the attempt counts.
CREATE OR REPLACE FUNCTION runyard.isolate(thread_key bigint, run_id text, with_fence bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    got record := runyard.lock_run(thread_key, run_id);
    r runyard.runs := got.r;
BEGIN
    IF runyard.write_refused(r, with_fence) IS DISTINCT FROM 'cancel_requested' THEN
        PERFORM runyard.refuse_write(r, with_fence);
    END IF;
    UPDATE runyard.runs SET isolated = true WHERE accept_no = r.accept_no;
END $$;

-- Count the crash of a process in which an attempt ran alone. End the run if a cancel was requested or the run has crashed too often. In
-- any other case queue the run again.
CREATE OR REPLACE FUNCTION runyard.bury(thread_key bigint, run_id text, with_fence bigint, how text) RETURNS runyard.ended
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    got record;
    t runyard.threads;
    r runyard.runs;
    e runyard.ended;
    code text;
BEGIN
    got := runyard.lock_run(thread_key, run_id);
    t := got.t; r := got.r;
    code := runyard.write_refused(r, with_fence);
    IF code IN ('stale_fence', 'repeated') THEN
        RETURN (runyard.lock_attempt(thread_key, run_id, with_fence, 1, NULL)).e;
    END IF;
    r.crash_count := runyard.crashes(r);
    got := runyard.end_crashed(t, r, how);
    e := got.e;
    IF e.status IS NULL THEN
        PERFORM runyard.note_attempt(r, 'lost', NULL);
        UPDATE runyard.runs y SET status = 'queued', worker_id = NULL, progressed = false, crash_count = r.crash_count,
            not_before = now(), changed_at = now()
        WHERE y.accept_no = r.accept_no RETURNING y.* INTO r;
        e.status := 'queued'; e.event_id := '';
        e.effects := jsonb_build_object('jobs', jsonb_build_array(runyard.job(r)));
    END IF;
    e.effects := runyard.merge_effects(e.effects, runyard.free(runyard.permits_of(r)));
    RETURN e;
END $$;
