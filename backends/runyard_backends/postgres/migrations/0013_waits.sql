-- The waits of suspended runs that no human ends. wait_id: the name of the wait in its run. wait_no: the order in which runs asked for
-- their waits. name: the signal or the child's thread, or NULL for a sleep. due_at: the time at which the wait ends, unless it ends before.
-- ended_at: the time from which the run could continue.
CREATE TABLE runyard.waits (
    thread_key bigint NOT NULL,
    run_id     text NOT NULL,
    wait_id    text NOT NULL,
    wait_no    bigint GENERATED ALWAYS AS IDENTITY,
    kind       text NOT NULL CHECK (kind IN ('sleep', 'signal', 'child')),
    name       text,
    due_at     runyard.moment,
    ended_at   runyard.moment,
    created_at runyard.moment NOT NULL DEFAULT now(),
    PRIMARY KEY (thread_key, run_id, wait_id)
) WITH (fillfactor = 90, autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05);
CREATE INDEX waits_due ON runyard.waits (due_at) WHERE ended_at IS NULL;

-- What a suspended run waits for: human, timer, signal or child.
ALTER TABLE runyard.runs ADD COLUMN waiting_for text;
ALTER TABLE runyard.live_runs ADD COLUMN waiting_for text;
DROP INDEX runyard.live_runs_suspended;
CREATE INDEX live_runs_suspended ON runyard.live_runs (queue, waiting_for) WHERE status = 'suspended';

-- The fence of the first attempt that had the answer.
ALTER TABLE runyard.hitl_requests ADD COLUMN received_by bigint;

-- A wait to store. timeout: seconds until due_at, if due_at is NULL.
CREATE TYPE runyard.new_wait AS (wait_id text, kind text, name text, due_at timestamptz, timeout double precision);
