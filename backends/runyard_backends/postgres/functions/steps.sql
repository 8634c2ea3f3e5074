-- The steps of runs: begin and finish a step.

-- Begin a step of the locked run r. Return NULL if the run's attempt may execute the step. Return the earlier row of the step if it is
-- finished or another attempt began it. A repetition of this call after a lost reply also returns NULL. arguments: of the step, as short
-- text, or NULL.
CREATE OR REPLACE FUNCTION runyard.begin_step_v2(r runyard.runs, step text, arguments text) RETURNS runyard.steps
LANGUAGE plpgsql AS $$
DECLARE
    earlier runyard.steps;
BEGIN
    SELECT s.* INTO earlier FROM runyard.steps s
    WHERE s.accept_no = r.accept_no AND s.step_key = step AND (s.done OR s.fence <> r.fence);
    INSERT INTO runyard.steps (accept_no, step_key, fence, input) VALUES (r.accept_no, step, r.fence, arguments)
    ON CONFLICT (accept_no, step_key) DO UPDATE SET fence = r.fence, input = arguments,
       started_at = CASE WHEN runyard.steps.fence = r.fence THEN runyard.steps.started_at ELSE now() END
    WHERE NOT runyard.steps.done;
    RETURN earlier;
END $$;

-- Begin a step without arguments, for start_step.
CREATE OR REPLACE FUNCTION runyard.begin_step(r runyard.runs, step text) RETURNS runyard.steps
LANGUAGE plpgsql AS $$
BEGIN
    RETURN runyard.begin_step_v2(r, step, NULL);
END $$;

-- Record the result of a step of the locked run r. A result that is already recorded stays unchanged. used: as for add_messages.
CREATE OR REPLACE FUNCTION runyard.end_step(r runyard.runs, step text, value bytea, used jsonb) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO runyard.steps (accept_no, step_key, done, fence, result, started_at, ended_at)
    VALUES (r.accept_no, step, true, r.fence, value, NULL, now())
    ON CONFLICT (accept_no, step_key) DO UPDATE SET done = true, result = value, fence = r.fence, ended_at = now() WHERE NOT runyard.steps.done;
    UPDATE runyard.runs SET progressed = true, usage = runyard.most_usage(r.usage, used)
    WHERE accept_no = r.accept_no AND (NOT progressed OR used IS NOT NULL);
END $$;

-- Begin a step of an attempt's run. Return no row if this attempt may execute the step. Workers of older releases, whose writes are not
-- batched, call this function.
CREATE OR REPLACE FUNCTION runyard.start_step(thread_key bigint, run_id text, with_fence bigint, step text) RETURNS SETOF runyard.steps
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    got record;
    earlier runyard.steps;
BEGIN
    got := runyard.lock_run(thread_key, run_id);
    PERFORM runyard.refuse_write(got.r, with_fence);
    earlier := runyard.begin_step(got.r, step);
    IF earlier.step_key IS NOT NULL THEN RETURN NEXT earlier; END IF;
END $$;

-- Record the result of a step of an attempt's run. Workers of older releases, whose writes are not batched, call this function.
CREATE OR REPLACE FUNCTION runyard.finish_step(thread_key bigint, run_id text, with_fence bigint, step text, value bytea) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    got record;
BEGIN
    got := runyard.lock_run(thread_key, run_id);
    PERFORM runyard.refuse_write(got.r, with_fence);
    PERFORM runyard.end_step(got.r, step, value, NULL);
END $$;
