-- The tables that follow the table of runs: live_runs, completions, unsuccessful_runs and fork_results. Triggers of runyard.runs call these
-- functions, so that the tables stay correct after any statement. The functions that claim or end runs call them directly.

-- Write the rows of live_runs for the new runs of a statement.
CREATE OR REPLACE FUNCTION runyard.follow_accepts() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO runyard.live_runs (accept_no, tenant, thread_id, run_id, thread_key, lane, lane_seq, queue, agent, status, worker_id,
        waits_for_permit, place_in_line, expires_at, accepted_at, changed_at, waits_since)
    SELECT r.accept_no, r.tenant, r.thread_id, r.run_id, r.thread_key, r.lane, r.lane_seq, r.queue, r.agent, r.status, r.worker_id,
        r.waits_for_permit, r.place_in_line, CASE WHEN r.attempt = 0 THEN r.expires_at END, r.accepted_at, r.changed_at,
        CASE WHEN r.until_fewer IS NULL THEN greatest(r.changed_at, r.run_at, r.not_before) END
    FROM added r WHERE r.finished_at IS NULL;
    RETURN NULL;
END $$;

-- Change the row of live_runs after a worker has claimed the run.
CREATE OR REPLACE FUNCTION runyard.follow_claim(r runyard.runs) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE runyard.live_runs SET status = 'running', worker_id = r.worker_id, waits_for_permit = NULL, place_in_line = NULL, expires_at = NULL,
        changed_at = now()
    WHERE accept_no = r.accept_no;
END $$;

-- Delete the row of live_runs of a run that has ended, and write its rows of the other tables.
CREATE OR REPLACE FUNCTION runyard.follow_end(r runyard.runs) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM runyard.live_runs WHERE accept_no = r.accept_no;
    IF r.completion_seq IS NOT NULL THEN
        INSERT INTO runyard.completions (branch_id, completion_seq, thread_key, accept_no, with_extra)
        VALUES (r.branch_id, r.completion_seq, r.thread_key, r.accept_no, r.extra IS NOT NULL);
    END IF;
    IF r.status <> 'completed' THEN
        INSERT INTO runyard.unsuccessful_runs (accept_no, tenant, thread_key, status, accepted_at)
        VALUES (r.accept_no, r.tenant, r.thread_key, r.status, r.accepted_at);
    END IF;
    IF r.kind = 'fork_many' OR (r.fork IS NOT NULL AND r.result IS NOT NULL) THEN -- answers of a fan-out are there without a result
        INSERT INTO runyard.fork_results (accept_no, finished_at) VALUES (r.accept_no, r.finished_at);
    END IF;
END $$;

-- Write the rows of a run after any other change, or after an insert of an ended run.
CREATE OR REPLACE FUNCTION runyard.follow_run() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        PERFORM runyard.follow_end(NEW);
        RETURN NULL;
    ELSIF NEW.finished_at IS NOT NULL THEN -- the run had ended before
        IF NEW.deleted OR NEW.emptied_at IS NOT NULL THEN DELETE FROM runyard.unsuccessful_runs WHERE accept_no = NEW.accept_no; END IF;
        RETURN NULL;
    END IF;
    UPDATE runyard.live_runs SET thread_key = NEW.thread_key, lane = NEW.lane, lane_seq = NEW.lane_seq, agent = NEW.agent, status = NEW.status,
        worker_id = NEW.worker_id, waits_for_permit = NEW.waits_for_permit, place_in_line = NEW.place_in_line, waiting_for = NEW.waiting_for,
        expires_at = CASE WHEN NEW.attempt = 0 THEN NEW.expires_at END, changed_at = NEW.changed_at,
        waits_since = CASE WHEN NEW.until_fewer IS NULL THEN greatest(NEW.changed_at, NEW.run_at, NEW.not_before) END
    WHERE accept_no = NEW.accept_no;
    IF NOT FOUND THEN -- the run was redriven
        DELETE FROM runyard.unsuccessful_runs WHERE accept_no = NEW.accept_no;
        DELETE FROM runyard.fork_results WHERE accept_no = NEW.accept_no;
        INSERT INTO runyard.live_runs (accept_no, tenant, thread_id, run_id, thread_key, lane, lane_seq, queue, agent, status, accepted_at,
            changed_at, waits_since)
        VALUES (NEW.accept_no, NEW.tenant, NEW.thread_id, NEW.run_id, NEW.thread_key, NEW.lane, NEW.lane_seq, NEW.queue, NEW.agent, NEW.status,
            NEW.accepted_at, NEW.changed_at, NEW.changed_at);
    END IF;
    RETURN NULL;
END $$;

-- Delete the rows of deleted runs from these tables.
CREATE OR REPLACE FUNCTION runyard.forget_runs() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM runyard.live_runs x USING gone g WHERE x.accept_no = g.accept_no;
    DELETE FROM runyard.completions x USING gone g WHERE x.branch_id = g.branch_id AND x.completion_seq = g.completion_seq;
    DELETE FROM runyard.unsuccessful_runs x USING gone g WHERE x.accept_no = g.accept_no;
    DELETE FROM runyard.fork_results x USING gone g WHERE x.accept_no = g.accept_no;
    RETURN NULL;
END $$;
