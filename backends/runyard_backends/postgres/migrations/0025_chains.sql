-- Chains: the completion of a run claims the next run of its lane (functions/complete_and_claim.sql).

-- chained_fence: the fence of an attempt that the end of another run has claimed, or NULL.
ALTER TABLE runyard.live_runs ADD COLUMN chained_fence bigint;

-- A runyard.ended, and the claim of the next run of the lane (NULL if nothing was claimed).
CREATE TYPE runyard.ended_and_claimed AS (
    thread_key bigint, run_id text, status text, event_id text, error jsonb, effects jsonb, refused text, next runyard.claimed
);
