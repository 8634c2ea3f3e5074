-- The tables that follow the table of runs: live_runs, completions, unsuccessful_runs and fork_results. Triggers of runyard.runs call
-- these functions, so that the tables fit the runs whichever statement changes a run.

-- Record what became of a run: as a row of live_runs until the run ends, then as rows of the other tables.
CREATE OR REPLACE FUNCTION runyard.follow_run() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.finished_at IS NULL AND TG_OP = 'UPDATE' THEN
        UPDATE runyard.live_runs SET thread_key = NEW.thread_key, lane = NEW.lane, lane_seq = NEW.lane_seq, agent = NEW.agent, status = NEW.status,
            worker_id = NEW.worker_id, waits_for_permit = NEW.waits_for_permit, place_in_line = NEW.place_in_line,
            expires_at = CASE WHEN NEW.attempt = 0 THEN NEW.expires_at END, changed_at = NEW.changed_at,
            waits_since = CASE WHEN NEW.until_fewer IS NULL THEN greatest(NEW.changed_at, NEW.run_at, NEW.not_before) END
        WHERE accept_no = NEW.accept_no;
        IF FOUND THEN RETURN NULL; END IF;
        DELETE FROM runyard.unsuccessful_runs WHERE accept_no = NEW.accept_no; -- the run was redriven
        DELETE FROM runyard.fork_results WHERE accept_no = NEW.accept_no;
    END IF;
    IF NEW.finished_at IS NULL THEN
        INSERT INTO runyard.live_runs (accept_no, tenant, thread_id, run_id, thread_key, lane, lane_seq, queue, agent, status, worker_id,
            waits_for_permit, place_in_line, expires_at, accepted_at, changed_at, waits_since)
        VALUES (NEW.accept_no, NEW.tenant, NEW.thread_id, NEW.run_id, NEW.thread_key, NEW.lane, NEW.lane_seq, NEW.queue, NEW.agent, NEW.status,
            NEW.worker_id, NEW.waits_for_permit, NEW.place_in_line, CASE WHEN NEW.attempt = 0 THEN NEW.expires_at END, NEW.accepted_at,
            NEW.changed_at, CASE WHEN NEW.until_fewer IS NULL THEN greatest(NEW.changed_at, NEW.run_at, NEW.not_before) END);
        RETURN NULL;
    END IF;
    IF TG_OP = 'UPDATE' THEN
        DELETE FROM runyard.live_runs WHERE accept_no = NEW.accept_no;
        IF NOT FOUND THEN
            IF NEW.deleted OR NEW.emptied_at IS NOT NULL THEN DELETE FROM runyard.unsuccessful_runs WHERE accept_no = NEW.accept_no; END IF;
            RETURN NULL;
        END IF;
    END IF;
    IF NEW.completion_seq IS NOT NULL THEN
        INSERT INTO runyard.completions (branch_id, completion_seq, thread_key, accept_no, with_extra)
        VALUES (NEW.branch_id, NEW.completion_seq, NEW.thread_key, NEW.accept_no, NEW.extra IS NOT NULL);
    END IF;
    IF NEW.status <> 'completed' THEN
        INSERT INTO runyard.unsuccessful_runs (accept_no, tenant, thread_key, status, accepted_at)
        VALUES (NEW.accept_no, NEW.tenant, NEW.thread_key, NEW.status, NEW.accepted_at);
    END IF;
    IF NEW.fork IS NOT NULL AND NEW.result IS NOT NULL THEN
        INSERT INTO runyard.fork_results (accept_no, finished_at) VALUES (NEW.accept_no, NEW.finished_at);
    END IF;
    RETURN NULL;
END $$;

-- Delete what the tables have about deleted runs.
CREATE OR REPLACE FUNCTION runyard.forget_runs() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM runyard.live_runs x USING gone g WHERE x.accept_no = g.accept_no;
    DELETE FROM runyard.completions x USING gone g WHERE x.branch_id = g.branch_id AND x.completion_seq = g.completion_seq;
    DELETE FROM runyard.unsuccessful_runs x USING gone g WHERE x.accept_no = g.accept_no;
    DELETE FROM runyard.fork_results x USING gone g WHERE x.accept_no = g.accept_no;
    RETURN NULL;
END $$;
