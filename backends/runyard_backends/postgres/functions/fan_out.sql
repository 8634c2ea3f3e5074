-- Fan-outs. The fork job of a fan-out starts runs, and waits until fewer than runs.until_fewer of them are live. must_wait in
-- startable.sql checks whether the fork job must wait. execution/fan_out_candidates.py chooses the number.

-- Return effects with the job of the starter of run r. The starter is a fan-out, or a suspended parent whose wait has ended.
-- The claim of the starter checks that it may continue, because other runs of the starter may end at the same time.
CREATE OR REPLACE FUNCTION runyard.wake_starter(r runyard.runs) RETURNS jsonb
LANGUAGE plpgsql STABLE AS $$
DECLARE
    waiting runyard.runs;
BEGIN
    SELECT y.* INTO waiting FROM runyard.runs y WHERE y.thread_key = r.started_by_key AND y.run_id = r.started_by_run_id AND y.finished_at IS NULL;
    IF NOT FOUND OR (waiting.kind = 'prompt' AND waiting.status <> 'suspended') THEN RETURN NULL; END IF;
    RETURN jsonb_build_object('jobs', jsonb_build_array(runyard.job(waiting)));
END $$;

-- Return the number of live runs that a fork job started.
CREATE OR REPLACE FUNCTION runyard.count_started_by(r runyard.runs) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT count(*) FROM runyard.runs x WHERE x.started_by_key = r.thread_key AND x.started_by_run_id = r.run_id AND x.finished_at IS NULL);
END $$;
