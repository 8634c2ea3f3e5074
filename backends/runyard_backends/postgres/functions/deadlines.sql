-- Deadlines of HITL requests and waits, and the expiry of runs. The verb admit applies the deadlines and the expiry.

-- End the waits of the thread that are due. Apply the deadline of each overdue request of the thread: store the default answer, or fail the
-- suspended run. If the run to fail is not live, close the request.
CREATE OR REPLACE FUNCTION runyard.fire_deadlines(INOUT t runyard.threads, OUT effects jsonb)
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    got record;
    h runyard.hitl_requests;
    r runyard.runs;
    event text;
    why jsonb;
BEGIN
    effects := runyard.end_waits(t.thread_key);
    FOR h IN
        SELECT y.* FROM runyard.hitl_requests y
        WHERE y.thread_key = t.thread_key AND y.deadline_at <= clock_timestamp() AND y.answered_at IS NULL AND y.closed_at IS NULL
          AND y.created_at >= '-infinity'
        ORDER BY y.created_at, y.request_id
    LOOP
        IF h.otherwise IS NOT NULL THEN
            UPDATE runyard.hitl_requests y SET answer = h.otherwise, answered_by = 'deadline', answered_at = now()
            WHERE y.tenant = h.tenant AND y.request_id = h.request_id;
            effects := runyard.merge_effects(effects, runyard.wake_run(t.thread_key, h.run_id));
            CONTINUE;
        END IF;
        SELECT y.* INTO r FROM runyard.runs y WHERE y.thread_key = t.thread_key AND y.run_id = h.run_id;
        IF NOT FOUND OR r.status IN ('completed', 'failed', 'dead', 'cancelled') THEN
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

-- Fail a run that has expired, because it had no attempt before its expires_at.
CREATE OR REPLACE FUNCTION runyard.expire_run(INOUT t runyard.threads, r runyard.runs, OUT effects jsonb)
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

-- Fail the thread's admitted runs that have expired. lines: the permits for which these runs have waited.
CREATE OR REPLACE FUNCTION runyard.expire_runs(INOUT t runyard.threads, OUT effects jsonb, OUT lines text[])
LANGUAGE plpgsql AS $$
DECLARE
    got record;
    r runyard.runs;
BEGIN
    lines := '{}';
    FOR r IN
        SELECT x.* FROM runyard.live_runs l JOIN runyard.runs x USING (accept_no)
        WHERE l.thread_key = t.thread_key AND l.expires_at <= (SELECT clock_timestamp()) AND l.lane_seq IS NOT NULL
        ORDER BY l.lane_seq
    LOOP
        IF r.waits_for_permit IS NOT NULL THEN lines := lines || r.waits_for_permit; END IF;
        got := runyard.expire_run(t, r);
        t := got.t; effects := runyard.merge_effects(effects, got.effects);
    END LOOP;
END $$;
