-- Shorter conditions of the triggers of runyard.runs. Postgres parses the condition of a row's trigger again for every statement, unless the
-- statement sets none of the trigger's columns.

-- The condition excludes claims and ends of runs, which are too frequent for a trigger of each row. The functions that claim or end runs
-- write the tables of 0006_live_runs.sql themselves.
CREATE OR REPLACE TRIGGER run_changed AFTER UPDATE OF changed_at, status, worker_id, lane_seq, thread_key, waits_for_permit
    ON runyard.runs FOR EACH ROW WHEN (NEW.fence IS NOT DISTINCT FROM OLD.fence AND NEW.finished_at IS NULL)
    EXECUTE FUNCTION runyard.follow_run();
CREATE TRIGGER ended_run_emptied AFTER UPDATE OF deleted, emptied_at
    ON runyard.runs FOR EACH ROW WHEN (NEW.status IN ('failed', 'dead', 'cancelled'))
    EXECUTE FUNCTION runyard.follow_run();
