-- The steps of runs: begin and finish a step.

-- Begin a step. Return no row if this attempt may execute the step. Return the earlier row of the step if it is finished or another attempt
-- began it. A repetition of this call after a lost reply also returns no row.
CREATE OR REPLACE FUNCTION runyard.start_step(thread_key bigint, run_id text, with_fence bigint, step text) RETURNS SETOF runyard.steps
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    got record;
    r runyard.runs;
BEGIN
    got := runyard.lock_run(thread_key, run_id);
    r := got.r;
    PERFORM runyard.refuse_write(r, with_fence);
    RETURN QUERY SELECT s.* FROM runyard.steps s
        WHERE s.accept_no = r.accept_no AND s.step_key = step AND (s.done OR s.fence <> with_fence);
    INSERT INTO runyard.steps (accept_no, step_key, fence) VALUES (r.accept_no, step, with_fence)
    ON CONFLICT (accept_no, step_key) DO UPDATE SET fence = with_fence,
       started_at = CASE WHEN runyard.steps.fence = with_fence THEN runyard.steps.started_at ELSE now() END
    WHERE NOT runyard.steps.done;
END $$;

-- Record the result of a step. A result that is already recorded stays unchanged. used: as for append_v2.
CREATE OR REPLACE FUNCTION runyard.finish_step_v2(thread_key bigint, run_id text, with_fence bigint, step text, value bytea, used jsonb)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    got record;
    r runyard.runs;
BEGIN
    got := runyard.lock_run(thread_key, run_id);
    r := got.r;
    PERFORM runyard.refuse_write(r, with_fence);
    INSERT INTO runyard.steps (accept_no, step_key, done, fence, result, started_at, ended_at)
    VALUES (r.accept_no, step, true, with_fence, value, NULL, now())
    ON CONFLICT (accept_no, step_key) DO UPDATE SET done = true, result = value, fence = with_fence, ended_at = now() WHERE NOT runyard.steps.done;
    UPDATE runyard.runs SET progressed = true, usage = runyard.most_usage(r.usage, used)
    WHERE accept_no = r.accept_no AND (NOT progressed OR used IS NOT NULL);
END $$;

-- Record the result of a step without its usage. Workers of older releases call this function.
CREATE OR REPLACE FUNCTION runyard.finish_step(thread_key bigint, run_id text, with_fence bigint, step text, value bytea) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    PERFORM runyard.finish_step_v2(thread_key, run_id, with_fence, step, value, NULL);
END $$;
