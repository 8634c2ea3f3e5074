-- Cancelling runs. end_run.sql decides which messages of the run stay. lock_attempt (write.sql) refuses writes of the attempt
-- after the request to cancel.

-- Cancel a live run. A cancelled run stays unchanged. Raises run_ended for any other ended run. keep: true to keep the run's
-- messages.
CREATE OR REPLACE FUNCTION runyard.cancel(for_tenant text, thread_id text, run_id text, keep boolean, OUT run runyard.runs, OUT effects jsonb)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    got record;
    t runyard.threads := runyard.ensure_for_run(for_tenant, thread_id, run_id);
    line text;
BEGIN
    got := runyard.admit_thread(t);
    t := got.t; effects := got.effects;
    run := runyard.known_run(t, run_id);
    IF run.status IN ('completed', 'failed', 'dead') THEN
        PERFORM runyard.refuse('run_ended', format('run %s is %s and cannot be cancelled', run_id, run.status),
                               jsonb_build_object('run_id', run_id, 'status', run.status));
    ELSIF run.status <> 'cancelled' THEN
        IF run.lane_seq IS NULL THEN
            run.thread_key := t.thread_key;
            run.lane := run.run_id;
            run.lane_seq := nextval('runyard.lane_numbers');
            run.admitted_at := greatest(now(), run.accepted_at);
            UPDATE runyard.runs SET thread_key = run.thread_key WHERE accept_no = run.accept_no;
        END IF;
        line := run.waits_for_permit;
        got := runyard.cancel_run(t, run, keep);
        run := got.r; effects := runyard.merge_effects(effects, got.effects);
        IF line IS NOT NULL THEN effects := runyard.merge_effects(effects, runyard.free(ARRAY[line])); END IF;
    END IF;
    SELECT y.* INTO run FROM runyard.runs y WHERE y.accept_no = run.accept_no;
    run := runyard.with_input(run);
END $$;

-- Cancel a live run whose thread is locked. If a worker executes the run, only record the request. If no worker executes it, end the run.
CREATE OR REPLACE FUNCTION runyard.cancel_run(INOUT t runyard.threads, INOUT r runyard.runs, keep boolean, OUT effects jsonb)
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

-- Cancel the run that has pending HITL requests. Return a NULL run if no run has such requests. words: the text of the run's
-- last message, and of the results of its open tool calls.
CREATE OR REPLACE FUNCTION runyard.abort_pending(for_tenant text, thread_id text, run_id text, words text, OUT run runyard.runs, OUT effects jsonb)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    got record;
    t runyard.threads := runyard.known_thread(for_tenant, thread_id);
    waiting text[];
BEGIN
    got := runyard.admit_thread(t);
    t := got.t; effects := got.effects;
    IF run_id IS NOT NULL THEN PERFORM runyard.known_run(t, run_id); END IF;
    SELECT coalesce(array_agg(DISTINCT r.run_id), '{}') INTO waiting
    FROM runyard.hitl_requests h JOIN runyard.runs r ON r.thread_key = h.thread_key AND r.run_id = h.run_id
    WHERE h.thread_key = t.thread_key AND h.answered_at IS NULL AND h.closed_at IS NULL AND h.created_at >= '-infinity' AND r.finished_at IS NULL
      AND (abort_pending.run_id IS NULL OR h.run_id = abort_pending.run_id);
    IF cardinality(waiting) > 1 THEN
        PERFORM runyard.refuse('hitl_ambiguous', format('several runs wait on thread %s; name one of %s', thread_id, array_to_string(waiting, ', ')),
                               jsonb_build_object('thread_id', thread_id, 'run_ids', to_jsonb(waiting)));
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
    IF run.waits_for_permit IS NOT NULL THEN
        effects := runyard.merge_effects(effects, runyard.free(ARRAY[run.waits_for_permit]));
    END IF;
    SELECT y.* INTO run FROM runyard.runs y WHERE y.accept_no = run.accept_no;
    run := runyard.with_input(run);
END $$;
