-- Redriving a failed or dead run.

-- Queue a failed or dead run again, at the end of its lane. Raises run_ended for any other run, and result_expired
-- for a fan-out whose messages have expired.
CREATE OR REPLACE FUNCTION runyard.redrive(for_tenant text, thread_id text, run_id text, OUT run runyard.runs, OUT effects jsonb)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    got record;
    t runyard.threads := runyard.known_thread(for_tenant, thread_id);
BEGIN
    got := runyard.admit_thread(t);
    t := got.t; effects := got.effects;
    run := runyard.known_run(t, run_id);
    IF run.status NOT IN ('failed', 'dead') THEN
        PERFORM runyard.refuse('run_ended', format('run %s is %s; only a failed or dead run can be redriven', run_id, run.status),
                               jsonb_build_object('run_id', run_id, 'status', run.status));
    END IF;
    IF run.emptied_at IS NOT NULL THEN
        PERFORM runyard.refuse('run_ended', format('run %s was deleted; enqueue a new one', run_id),
                               jsonb_build_object('run_id', run_id, 'status', run.status));
    END IF;
    IF run.kind = 'fork_many' THEN
        SELECT y.* INTO run FROM runyard.runs y WHERE y.accept_no = run.accept_no FOR UPDATE; -- prune locks no thread
        IF runyard.fan_out_expired(run) THEN
            PERFORM runyard.refuse('result_expired', format('the messages of fan-out %s have expired; start a new one', run_id),
                                   jsonb_build_object('thread_id', thread_id, 'run_id', run_id));
        END IF;
    END IF;
    IF run.kind = 'external' THEN
        PERFORM runyard.refuse('run_ended', format('run %s is an external run and %s; no worker can continue it; claim a new run', run_id, run.status),
                               jsonb_build_object('run_id', run_id, 'status', run.status));
    END IF;
    -- If the run was refused at its admission, check it again.
    IF run.snapshot_tip IS NULL THEN PERFORM runyard.raise(runyard.why_not(t, run_id, run.parent_id)); END IF;
    -- The end of the run has closed its unanswered requests. Delete them, so that the run can store requests with the same ids.
    DELETE FROM runyard.hitl_requests h WHERE h.thread_key = t.thread_key AND h.run_id = redrive.run_id AND h.answered_at IS NULL;
    UPDATE runyard.runs y SET status = 'queued', lane_seq = nextval('runyard.lane_numbers'), admitted_at = greatest(now(), y.accepted_at), finished_at = NULL,
        queued_fence = nextval('runyard.fences'),
        lane = coalesce(y.lane, ''), error = NULL, error_count = 0, crash_count = 0, expires_at = NULL, not_before = NULL, worker_id = NULL, cancel_requested_at = NULL,
        cancel_keep = false, abort_words = NULL, event_id = NULL, app_version = NULL, usage_before = coalesce(y.usage, '{}'),
        changed_at = now()
    WHERE y.accept_no = run.accept_no RETURNING y.* INTO run;
    PERFORM runyard.reopen_wait(run);
    effects := runyard.merge_effects(effects, runyard.startable(t, run));
    run := runyard.with_input(run);
END $$;
