-- Tables that follow the table of runs. They have the values that claims, appends and ends of runs change and that other statements search.
-- Therefore no index of runs has such a value (docs/decisions/0023-live-runs-have-a-table.md). Triggers write these tables.

-- The live runs: a row for each run that has not ended, with the columns by which live runs are searched.
-- expires_at: NULL for a run without an expiry, and after the first attempt began.
-- waits_since: the time from which a queued run waits for its lane or for a worker; NULL for a job that waits for runs that it started.
CREATE TABLE runyard.live_runs (
    accept_no        bigint PRIMARY KEY,
    tenant           text NOT NULL,
    thread_id        text NOT NULL,
    run_id           text NOT NULL,
    thread_key       bigint,
    lane             text,
    lane_seq         bigint,
    queue            text NOT NULL,
    agent            text,
    status           text NOT NULL,
    worker_id        text,
    waits_for_permit text,
    place_in_line    bigint,
    expires_at       timestamptz,
    accepted_at      timestamptz NOT NULL,
    changed_at       timestamptz NOT NULL,
    waits_since      timestamptz
) WITH ( -- Every run leaves two dead rows. The leader reads the indexes from their start, where the entries of dead rows are.
    fillfactor = 90, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.02
);
CREATE UNIQUE INDEX live_runs_lane ON runyard.live_runs (thread_key, lane, lane_seq);
CREATE UNIQUE INDEX live_runs_active ON runyard.live_runs (thread_key, lane) WHERE status IN ('running', 'suspended');
CREATE INDEX live_runs_expiring ON runyard.live_runs (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX live_runs_worker ON runyard.live_runs (worker_id) WHERE worker_id IS NOT NULL;
CREATE INDEX live_runs_of_agent ON runyard.live_runs (agent) WHERE worker_id IS NOT NULL;
CREATE INDEX live_runs_of_tenant ON runyard.live_runs (tenant, status, accepted_at, accept_no) WHERE status <> 'queued';
CREATE INDEX live_runs_suspended ON runyard.live_runs (queue) WHERE status = 'suspended';
CREATE INDEX live_runs_queued ON runyard.live_runs (tenant, accept_no) WHERE status = 'queued';
CREATE INDEX live_runs_waiting_since ON runyard.live_runs (changed_at, accept_no)
    WHERE status = 'queued' AND lane_seq IS NOT NULL AND waits_for_permit IS NULL;
CREATE INDEX live_runs_line ON runyard.live_runs (waits_for_permit, tenant, place_in_line) WHERE waits_for_permit IS NOT NULL;

-- The runs that have a completion number. with_extra: true if the run has an extra.
CREATE TABLE runyard.completions (
    branch_id      bigint NOT NULL,
    completion_seq bigint NOT NULL,
    thread_key     bigint NOT NULL,
    accept_no      bigint NOT NULL,
    with_extra     boolean NOT NULL,
    PRIMARY KEY (branch_id, completion_seq)
);
CREATE INDEX completions_with_extra ON runyard.completions (thread_key, completion_seq) WHERE with_extra;

-- The runs that failed, died or were cancelled, and were not deleted.
CREATE TABLE runyard.unsuccessful_runs (
    accept_no   bigint PRIMARY KEY,
    tenant      text NOT NULL,
    thread_key  bigint,
    status      text NOT NULL,
    accepted_at timestamptz NOT NULL
);
CREATE INDEX unsuccessful_runs_list ON runyard.unsuccessful_runs (tenant, status, accepted_at, accept_no);
CREATE INDEX unsuccessful_runs_of_thread ON runyard.unsuccessful_runs (thread_key);

-- The ended fork jobs whose results are kept for a time.
CREATE TABLE runyard.fork_results (
    accept_no   bigint PRIMARY KEY,
    finished_at timestamptz NOT NULL
);
CREATE INDEX fork_results_by_age ON runyard.fork_results (finished_at);

-- functions/live_runs.sql has the bodies of these functions.
CREATE FUNCTION runyard.follow_accepts() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN END';
CREATE FUNCTION runyard.follow_run() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN END';
CREATE FUNCTION runyard.forget_runs() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN END';
CREATE TRIGGER runs_accepted AFTER INSERT ON runyard.runs REFERENCING NEW TABLE AS added FOR EACH STATEMENT
    EXECUTE FUNCTION runyard.follow_accepts();
-- No verb inserts a run that has ended. A program that copies runs may.
CREATE TRIGGER ended_run_inserted AFTER INSERT ON runyard.runs FOR EACH ROW WHEN (NEW.finished_at IS NOT NULL)
    EXECUTE FUNCTION runyard.follow_run();
-- The last two conditions exclude claims and ends of runs, which are too frequent for a trigger of each row. The functions that claim or
-- end runs write these tables themselves.
CREATE TRIGGER run_changed AFTER UPDATE ON runyard.runs FOR EACH ROW
    WHEN ((OLD.changed_at IS DISTINCT FROM NEW.changed_at OR OLD.status IS DISTINCT FROM NEW.status OR OLD.worker_id IS DISTINCT FROM NEW.worker_id
           OR OLD.lane_seq IS DISTINCT FROM NEW.lane_seq OR OLD.thread_key IS DISTINCT FROM NEW.thread_key
           OR OLD.waits_for_permit IS DISTINCT FROM NEW.waits_for_permit
           OR NEW.status IN ('failed', 'dead', 'cancelled') AND (OLD.deleted <> NEW.deleted OR OLD.emptied_at IS DISTINCT FROM NEW.emptied_at))
          AND (OLD.fence IS NOT DISTINCT FROM NEW.fence OR NEW.status <> 'running')
          AND (OLD.finished_at IS NOT NULL OR NEW.finished_at IS NULL))
    EXECUTE FUNCTION runyard.follow_run();
CREATE TRIGGER runs_deleted AFTER DELETE ON runyard.runs REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION runyard.forget_runs();
