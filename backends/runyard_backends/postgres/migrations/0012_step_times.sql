-- The times of steps, for timelines. A step that an older schema recorded has no times.
-- started_at: NULL also for a step that was recorded without a start, such as a candidate of a fan-out.
ALTER TABLE runyard.steps ADD COLUMN started_at timestamptz, ADD COLUMN ended_at timestamptz;
ALTER TABLE runyard.steps ALTER COLUMN started_at SET DEFAULT now();

-- The index of the search of a run by the beginning of its id (runyard.find_runs). Only this search has the last condition.
CREATE INDEX runs_search ON runyard.runs (tenant, run_id COLLATE "C", accept_no)
    WHERE NOT deleted AND emptied_at IS NULL AND run_id COLLATE "C" > '';
