-- The writes of attempts: lock the run, compare the fence, and store the write. complete_plain (plain_runs.sql) repeats these
-- conditions for the completions of a batch.

-- Lock a thread, and return it with one of its runs. A row is NULL if the thread or the run does not exist. patience:
-- milliseconds to wait for the lock. After this time the rows are NULL. If patience is NULL, the session's lock_timeout
-- applies, and the call fails after it.
CREATE OR REPLACE FUNCTION runyard.lock_run(thread_key bigint, run_id text, patience integer DEFAULT NULL, OUT t runyard.threads, OUT r runyard.runs)
LANGUAGE plpgsql AS $$
BEGIN
    IF patience IS NOT NULL THEN
        SELECT x.* INTO t FROM runyard.threads x WHERE x.thread_key = lock_run.thread_key FOR UPDATE SKIP LOCKED;
        IF NOT FOUND THEN t := runyard.wait_for_thread(thread_key, patience); END IF;
        IF t.thread_key IS NULL THEN RETURN; END IF;
    ELSE
        SELECT x.* INTO t FROM runyard.threads x WHERE x.thread_key = lock_run.thread_key FOR UPDATE;
    END IF;
    SELECT y.* INTO r FROM runyard.runs y WHERE y.thread_key = lock_run.thread_key AND y.run_id = lock_run.run_id;
END $$;

-- Wait for the lock of a thread, and return the thread. The row is NULL if there is no thread, or if another transaction keeps the lock for
-- longer than `patience` milliseconds. This wait has a short lock_timeout and therefore needs a subtransaction.
CREATE OR REPLACE FUNCTION runyard.wait_for_thread(thread_key bigint, patience integer) RETURNS runyard.threads
LANGUAGE plpgsql AS $$
DECLARE
    t runyard.threads;
    usual_timeout text := current_setting('lock_timeout');
BEGIN
    PERFORM set_config('lock_timeout', greatest(1, patience)::text, true);
    SELECT x.* INTO t FROM runyard.threads x WHERE x.thread_key = wait_for_thread.thread_key FOR UPDATE;
    PERFORM set_config('lock_timeout', usual_timeout, true);
    RETURN t;
EXCEPTION WHEN lock_not_available THEN -- this undoes the setting, too
    RETURN NULL;
END $$;

-- Return NULL if the attempt may write. Otherwise return the reason: 'stale_fence', 'cancel_requested', or 'repeated' for an attempt that
-- has already ended.
CREATE OR REPLACE FUNCTION runyard.write_refused(r runyard.runs, with_fence bigint) RETURNS text
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN CASE WHEN r.fence IS DISTINCT FROM with_fence OR r.kind = 'external' THEN 'stale_fence'
                WHEN r.status <> 'running' THEN 'repeated'
                WHEN r.cancel_requested_at IS NOT NULL THEN 'cancel_requested' END;
END $$;

-- Raise stale_fence or cancel_requested if the attempt may not write.
CREATE OR REPLACE FUNCTION runyard.refuse_write(r runyard.runs, with_fence bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    code text := runyard.write_refused(r, with_fence);
BEGIN
    IF code IS NULL AND r.run_id IS NOT NULL THEN RETURN; END IF;
    PERFORM runyard.refuse(CASE WHEN code = 'cancel_requested' THEN code ELSE 'stale_fence' END,
        CASE WHEN code = 'cancel_requested' THEN format('run %s was cancelled; nothing more is stored', r.run_id)
             ELSE format('the attempt with fence %s no longer holds run %s; stop it', with_fence, coalesce(r.run_id, '(gone)')) END,
        jsonb_build_object('run_id', r.run_id, 'fence', with_fence, 'current_fence', r.fence));
END $$;

-- Lock an attempt's run for its last write. over: true if the caller must return `e` and store nothing. over is true if a cancel was
-- requested, and then this function has cancelled the run. over is also true if the write is stale, a repetition, or refused as locked.
-- first_event: the number of the attempt's next event, or NULL if the caller is not the attempt. With NULL, the event of a cancel gets a
-- new fence. used: the usage of the write, or NULL. The usage counts even if the run is cancelled. patience: milliseconds to wait for the
-- thread's lock before the write is refused as locked.
CREATE OR REPLACE FUNCTION runyard.lock_attempt(
    thread_key bigint, run_id text, with_fence bigint, first_event integer, used jsonb, patience integer DEFAULT NULL,
    OUT t runyard.threads, OUT r runyard.runs, OUT e runyard.ended, OUT over boolean
) LANGUAGE plpgsql AS $$
DECLARE
    got record := runyard.lock_run(thread_key, run_id, patience);
    code text;
BEGIN
    t := got.t; r := got.r; e.thread_key := thread_key; e.run_id := run_id;
    IF patience IS NOT NULL AND t.thread_key IS NULL THEN
        IF EXISTS (SELECT 1 FROM runyard.threads x WHERE x.thread_key = lock_attempt.thread_key) THEN
            e.refused := 'locked'; over := true;
            RETURN;
        END IF;
    END IF;
    code := runyard.write_refused(r, with_fence);
    over := code IS NOT NULL;
    IF code = 'cancel_requested' THEN
        e.event_id := coalesce(with_fence || '-' || first_event, nextval('runyard.fences') || '-1');
        IF used IS NOT NULL THEN r.usage := runyard.add_usage(coalesce(r.usage, '{}'), used); END IF;
        got := runyard.end_run(t, r, 'cancelled', NULL, e.event_id);
        e.status := 'cancelled'; e.effects := got.effects;
        IF first_event IS NULL THEN
            e.effects := runyard.merge_effects(e.effects, runyard.outside_event(t, r, e.event_id, 'run.cancelled', '{}'));
        END IF;
    ELSIF code = 'repeated' THEN
        e.status := r.status; e.event_id := r.event_id; e.error := r.error;
    ELSIF over THEN
        e.refused := code;
    END IF;
END $$;

-- Store the messages of an attempt's last write. Add its extra, usage and result to the row `r`, which the caller must save.
CREATE OR REPLACE FUNCTION runyard.keep_write(
    INOUT t runyard.threads, INOUT r runyard.runs, w runyard.attempt_write, message_bytes bigint
)
LANGUAGE plpgsql AS $$
DECLARE
    got record;
BEGIN
    IF w.messages IS NOT NULL AND w.messages <> '{}' THEN
        PERFORM runyard.check_size(w.messages, message_bytes);
        got := runyard.put_messages(t, r, w.messages, w.first_event);
        t := got.t; r := got.r;
    END IF;
    IF w.extra IS NOT NULL THEN
        r.extra := coalesce(r.extra, '{}') || w.extra;
        PERFORM runyard.check_extra(t.extra || r.extra);
    END IF;
    IF w.usage IS NOT NULL THEN r.usage := runyard.add_usage(coalesce(r.usage, '{}'), w.usage); END IF;
    r.result := coalesce(w.result, r.result);
END $$;

-- Record an attempt that ended without completing its run. how: the outcome. why: the error, or NULL.
CREATE OR REPLACE FUNCTION runyard.note_attempt(r runyard.runs, how text, why jsonb) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO runyard.attempts (accept_no, fence, worker_id, started_at, outcome, error)
    VALUES (r.accept_no, r.fence, r.worker_id, r.started_at, how, why) ON CONFLICT DO NOTHING;
END $$;
