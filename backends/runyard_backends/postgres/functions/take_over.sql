-- Taking over a run after the death of its worker, or after its worker has lost the run's task.

-- Check that the claimant may take over a running run. This is allowed if the worker of the run is dead or has left, or if it
-- is the claimant itself. Only the death of a worker counts as a crash, because a worker that left has stopped the attempt.
-- outcome: NULL if the claim may continue, 'busy' if the worker is alive or the run is external, 'ended' if this function has
-- ended the run because of its crashes or a cancel.
CREATE OR REPLACE FUNCTION runyard.take_over(
    INOUT t runyard.threads, INOUT r runyard.runs, claimant runyard.workers, limited boolean, OUT outcome text, OUT effects jsonb
) LANGUAGE plpgsql AS $$
DECLARE
    got record;
    died boolean; -- NULL if the worker has left
BEGIN
    IF r.kind = 'external' THEN outcome := 'busy'; RETURN; END IF;
    SELECT w.dead_at IS NOT NULL INTO died FROM runyard.workers w WHERE w.worker_id = r.worker_id;
    IF NOT died AND r.worker_id <> claimant.worker_id THEN outcome := 'busy'; RETURN; END IF;
    IF died THEN
        r.crash_count := runyard.crashes(r);
    ELSIF r.progressed THEN
        r.crash_count := 0;
    END IF;
    got := runyard.end_crashed(t, r, 'its worker died while executing it alone');
    IF (got.e).status IS NOT NULL THEN
        outcome := 'ended';
        effects := runyard.merge_effects((got.e).effects, runyard.free(CASE WHEN limited THEN runyard.permits_of(r) ELSE '{}' END));
    END IF;
END $$;
