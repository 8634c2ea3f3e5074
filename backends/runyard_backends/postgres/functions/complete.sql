-- Ending an attempt: complete, fail and release. plain_runs.sql completes the usual runs of a batch.

-- Complete many runs in one transaction. Threads are locked in the order of their keys. patience: milliseconds to wait for a locked thread.
-- After this time the writes of the thread are refused as locked, and the other writes are stored. If patience is NULL, the
-- session's lock_timeout applies, and the call fails after it.
CREATE OR REPLACE FUNCTION runyard.complete(writes runyard.attempt_write[], patience integer DEFAULT NULL) RETURNS SETOF runyard.ended
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    w runyard.attempt_write;
    t runyard.threads;
    r runyard.runs;
    e runyard.ended;
    got record;
    why jsonb;
    message_bytes bigint := runyard.default_message_bytes();
    limited boolean := EXISTS (SELECT 1 FROM runyard.limits); -- true if the deployment has a limit on running runs; usually it has no limit
    ended runyard.ended; -- the last write that was not refused
    permits text[] := '{}';
    done bigint[] := '{}'; -- the thread keys of the plain writes, which are stored together
    locked bigint; -- the last thread with a write that was refused as locked; its later writes are refused, too
BEGIN
    IF limited THEN
        message_bytes := runyard.limit_of('message_bytes');
        limited := EXISTS (SELECT 1 FROM runyard.limits l WHERE l.limit_name IN ('running_per_agent', 'running_per_tenant'));
    END IF;
    IF NOT limited AND (cardinality(writes) > 1 -- for a single run that is not plain, the plain path would only cost time
            OR (SELECT x.attempt = 1 AND NOT x.has_tools FROM runyard.runs x
                WHERE x.thread_key = writes[1].thread_key AND x.run_id = writes[1].run_id)) THEN
        FOR ended IN SELECT p.* FROM runyard.complete_plain(writes, message_bytes, patience) p LOOP
            done := done || ended.thread_key;
            RETURN NEXT ended;
        END LOOP;
        IF cardinality(done) = cardinality(writes) THEN RETURN; END IF;
        ended := NULL;
    END IF;
    FOR w IN SELECT y.* FROM unnest(writes) y WHERE y.thread_key <> ALL (done) ORDER BY y.thread_key, y.run_id LOOP
        IF e.refused IS NOT NULL THEN
            RETURN NEXT e;
        ELSIF e.run_id IS NOT NULL THEN
            IF ended.run_id IS NOT NULL THEN RETURN NEXT ended; END IF;
            ended := e;
        END IF;
        IF w.thread_key = locked THEN
            e := (w.thread_key, w.run_id, NULL, NULL, NULL, NULL, 'locked')::runyard.ended;
            CONTINUE;
        END IF;
        got := runyard.lock_attempt(w.thread_key, w.run_id, w.fence, w.first_event, w.usage, patience);
        t := got.t; r := got.r; e := got.e;
        IF e.refused = 'locked' THEN
            locked := w.thread_key;
            patience := patience / 2; -- so that all waits together take at most twice this time
            CONTINUE;
        END IF;
        IF limited THEN permits := permits || runyard.permits_of(r); END IF;
        CONTINUE WHEN got.over;
        got := runyard.keep_write(t, r, w, message_bytes);
        t := got.t; r := got.r;
        why := NULL;
        IF r.has_tools AND NOT runyard.cycles_closed(r) THEN
            why := jsonb_build_object('code', 'incomplete_tool_cycle', 'message',
                format('run %s ended with a tool call that its result does not directly follow; every call needs its result', r.run_id));
        END IF;
        e.error := why;
        e.status := CASE WHEN why IS NULL THEN 'completed' ELSE 'failed' END;
        e.event_id := w.fence || '-' || (w.first_event + coalesce(cardinality(w.messages), 0));
        got := runyard.end_run(t, r, e.status, why, e.event_id);
        e.effects := got.effects;
    END LOOP;
    IF e.refused IS NOT NULL THEN
        RETURN NEXT e;
    ELSIF e.run_id IS NOT NULL THEN
        IF ended.run_id IS NOT NULL THEN RETURN NEXT ended; END IF;
        ended := e;
    END IF;
    IF ended.run_id IS NOT NULL THEN
        ended.effects := runyard.merge_effects(ended.effects, runyard.free(permits)); -- after the last lock of a thread
        RETURN NEXT ended;
    END IF;
END $$;

-- Fail a run. why: the error of the run.
CREATE OR REPLACE FUNCTION runyard.fail(w runyard.attempt_write, why jsonb) RETURNS runyard.ended
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    got record;
    t runyard.threads;
    r runyard.runs;
    e runyard.ended;
BEGIN
    got := runyard.lock_attempt(w.thread_key, w.run_id, w.fence, w.first_event, w.usage);
    t := got.t; r := got.r; e := got.e;
    IF got.over THEN
        e.effects := runyard.merge_effects(e.effects, runyard.free(runyard.permits_of(r)));
        RETURN e;
    END IF;
    got := runyard.keep_write(t, r, w, runyard.limit_of('message_bytes'));
    t := got.t; r := got.r;
    e.status := 'failed'; e.error := why;
    e.event_id := w.fence || '-' || (w.first_event + coalesce(cardinality(w.messages), 0));
    got := runyard.end_run(t, r, 'failed', why, e.event_id);
    e.effects := runyard.merge_effects(got.effects, runyard.free(runyard.permits_of(r)));
    RETURN e;
END $$;

-- Release a run and queue it again. delay: seconds until the run is due. why: the error that causes a retry, or NULL if the
-- release is no retry. A retry is counted. first_event: the number of the attempt's next event, or NULL. fewer: a number for a
-- fork job, or NULL. The fork job then waits until fewer than this number of its started runs are live. used: the usage to add
-- to the usage of the run, or NULL.
CREATE OR REPLACE FUNCTION runyard.release(
    thread_key bigint, run_id text, with_fence bigint, delay double precision, why jsonb, first_event integer, fewer integer, used jsonb
) RETURNS runyard.ended
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    got record;
    r runyard.runs;
    e runyard.ended;
BEGIN
    got := runyard.lock_attempt(thread_key, run_id, with_fence, first_event, used);
    r := got.r; e := got.e;
    IF got.over THEN
        e.effects := runyard.merge_effects(e.effects, runyard.free(runyard.permits_of(r)));
        RETURN e;
    END IF;
    PERFORM runyard.note_attempt(r, CASE WHEN why IS NULL THEN 'released' ELSE 'retried' END, why);
    UPDATE runyard.runs y SET status = 'queued', worker_id = NULL, not_before = now() + make_interval(secs => delay), changed_at = now(),
           until_fewer = fewer, error = coalesce(why, y.error), error_count = y.error_count + CASE WHEN why IS NULL THEN 0 ELSE 1 END,
           usage = CASE WHEN used IS NULL THEN y.usage ELSE runyard.add_usage(coalesce(y.usage, '{}'), used) END
    WHERE y.accept_no = r.accept_no RETURNING y.* INTO r;
    e.status := 'queued'; e.error := why; e.event_id := with_fence || '-' || coalesce(first_event, 1);
    IF fewer IS NULL OR NOT runyard.must_wait(r) THEN
        e.effects := jsonb_build_object('jobs', jsonb_build_array(runyard.job(r)));
    END IF;
    e.effects := runyard.merge_effects(e.effects, runyard.free(runyard.permits_of(r)));
    RETURN e;
END $$;
