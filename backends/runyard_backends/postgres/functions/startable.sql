-- The rules for which queued run may start next, and which fork jobs may start when the run of their cut ends. A prompt
-- may start if it is the head of its lane. A fork job may start if it waits for no other run. A fan-out waits until fewer than
-- runs.until_fewer of its started runs are live. execution/fan_out_candidates.py chooses this number. fan_out.sql offers the
-- job of the fan-out again.

-- Return the head of a lane: its first run that has not ended. floor: a number up to which all runs of the lane have ended
-- (threads.lane_floor), or 0 for a lane other than ''. Postgres inlines this function into a statement that names it after
-- FROM. In a statement that needs the whole row, the function therefore costs no extra time. If a statement needs only one
-- column, or only the existence of a head, the statement becomes about ten microseconds slower, because its plan computes
-- every column. The statements of each accept and claim therefore repeat the condition instead (make_way in lanes.sql,
-- plain_runs.sql, startable and not_startable below).
CREATE OR REPLACE FUNCTION runyard.lane_head(thread_key bigint, in_lane text, floor bigint) RETURNS SETOF runyard.runs
LANGUAGE sql STABLE AS $$
    SELECT x.* FROM (
        SELECT l.accept_no FROM runyard.live_runs l WHERE l.thread_key = lane_head.thread_key AND l.lane = in_lane AND l.lane_seq > floor
        ORDER BY l.lane_seq LIMIT 1) h
    JOIN runyard.runs x USING (accept_no)
$$;

-- Return effects with the queued fork jobs that wait for the end of a run.
CREATE OR REPLACE FUNCTION runyard.waiting_for(thread_key bigint, run_id text) RETURNS jsonb
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM runyard.runs w WHERE w.thread_key = waiting_for.thread_key AND w.after_run_id = waiting_for.run_id AND w.status = 'queued') THEN
        RETURN NULL;
    END IF;
    RETURN (SELECT jsonb_build_object('jobs', jsonb_agg(runyard.job(w)))
            FROM runyard.runs w WHERE w.thread_key = waiting_for.thread_key AND w.after_run_id = waiting_for.run_id AND w.status = 'queued');
END $$;

-- Return effects with the job of the run if the run may start at once: it is the head of its lane, or a fork job that waits for no run.
CREATE OR REPLACE FUNCTION runyard.startable(t runyard.threads, r runyard.runs) RETURNS jsonb
LANGUAGE plpgsql STABLE AS $$
DECLARE
    ok boolean;
    floor bigint := CASE r.lane WHEN '' THEN t.lane_floor ELSE 0 END;
BEGIN
    IF r.kind = 'prompt' THEN
        ok := NOT EXISTS (SELECT 1 FROM runyard.live_runs x WHERE x.thread_key = r.thread_key AND x.lane = r.lane
                          AND x.lane_seq > floor AND x.lane_seq < r.lane_seq);
    ELSE
        ok := NOT runyard.must_wait(r);
    END IF;
    IF ok THEN RETURN jsonb_build_object('jobs', jsonb_build_array(runyard.job(r))); END IF;
    RETURN NULL;
END $$;

-- Return the outcome of a claim of a queued run that cannot start. outcome: the reason, or NULL if the run can start. retry_in: seconds
-- until the run is due. If the run has expired, fail it.
CREATE OR REPLACE FUNCTION runyard.not_startable(
    t runyard.threads, r runyard.runs, OUT outcome text, OUT retry_in double precision, OUT effects jsonb
) LANGUAGE plpgsql AS $$
DECLARE
    floor bigint := CASE r.lane WHEN '' THEN t.lane_floor ELSE 0 END;
BEGIN
    IF r.lane_seq IS NULL THEN
        outcome := 'not_due'; retry_in := extract(epoch FROM r.run_at - clock_timestamp());
    ELSIF r.attempt = 0 AND r.expires_at <= clock_timestamp() THEN
        outcome := 'ended';
        effects := runyard.merge_effects(runyard.leave_line(r), (runyard.expire_run(t, r)).effects);
    ELSIF r.not_before > clock_timestamp() THEN
        outcome := 'not_due'; retry_in := extract(epoch FROM r.not_before - clock_timestamp());
    ELSIF r.kind <> 'prompt' THEN
        IF runyard.must_wait(r) THEN outcome := 'waiting'; END IF;
    ELSIF EXISTS (SELECT 1 FROM runyard.live_runs y WHERE y.thread_key = r.thread_key AND y.lane = r.lane
                  AND y.lane_seq > floor AND y.lane_seq < r.lane_seq) THEN
        outcome := 'behind';
    END IF;
END $$;

-- Return true if a fork job must wait for the run at its cut, or for runs that it started.
CREATE OR REPLACE FUNCTION runyard.must_wait(r runyard.runs) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN r.until_fewer IS NOT NULL AND runyard.count_started_by(r) >= r.until_fewer
        OR EXISTS (SELECT 1 FROM runyard.runs x WHERE x.thread_key = r.thread_key AND x.run_id = r.after_run_id
                   AND x.finished_at IS NULL);
END $$;
