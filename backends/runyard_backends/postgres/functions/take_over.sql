-- Taking over a run whose worker is dead, or whose task its worker has lost.

-- Check a running run for a takeover. The worker of the run must be dead, or be the claimant itself. outcome: NULL if the claim
-- may continue; 'busy' if the worker is alive or the run is external; 'ended' if this function ended the run because of its
-- crashes or a cancel.
CREATE OR REPLACE FUNCTION runyard.take_over(
    INOUT t runyard.threads, INOUT r runyard.runs, claimant runyard.workers, limited boolean, OUT outcome text, OUT effects jsonb
) LANGUAGE plpgsql AS $$
DECLARE
    got record;
BEGIN
    IF r.kind = 'external' THEN outcome := 'busy'; RETURN; END IF;
    IF r.worker_id <> claimant.worker_id THEN
        IF EXISTS (SELECT 1 FROM runyard.workers w WHERE w.worker_id = r.worker_id AND w.dead_at IS NULL) THEN
            outcome := 'busy'; RETURN;
        END IF;
        r.crash_count := runyard.crashes(r);
    ELSIF r.progressed THEN
        r.crash_count := 0;
    END IF;
    got := runyard.end_crashed(t, r, 'its worker died while it ran alone');
    IF (got.e).status IS NOT NULL THEN
        outcome := 'ended';
        effects := runyard.merge_effects((got.e).effects, runyard.free(CASE WHEN limited THEN runyard.permits_of(r) ELSE '{}' END));
    END IF;
END $$;
