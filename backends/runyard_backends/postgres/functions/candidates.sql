-- The candidates of fan-outs: the records of the fork job, and the messages for an attempt. runyard/domain/fan_outs.py has the
-- keys of the steps. runs.candidates has the messages of a small fan-out. The field `batch` of runs.fork names the messages of
-- a large fan-out (candidate_batches.sql).

-- Return the messages of candidates of the attempt's fork job. Raises stale_fence.
CREATE OR REPLACE FUNCTION runyard.candidate_messages(thread_key bigint, run_id text, with_fence bigint, numbers integer[])
RETURNS TABLE (number integer, message bytea)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    r runyard.runs;
BEGIN
    SELECT x.* INTO r FROM runyard.runs x WHERE x.thread_key = candidate_messages.thread_key AND x.run_id = candidate_messages.run_id;
    IF r.fence IS DISTINCT FROM with_fence THEN PERFORM runyard.refuse_write(r, with_fence); END IF;
    IF r.candidates IS NOT NULL THEN
        RETURN QUERY SELECT c.place::integer - 1, c.body FROM unnest(r.candidates) WITH ORDINALITY c(body, place) WHERE c.place - 1 = ANY (numbers);
    ELSE
        RETURN QUERY SELECT c.number, c.message FROM runyard.candidates c
            WHERE c.batch = (r.fork->'batch'->>'id')::uuid AND c.number = ANY (numbers);
    END IF;
END $$;

-- Record that an attempt has begun candidates. Raises stale_fence, cancel_requested.
CREATE OR REPLACE FUNCTION runyard.begin_candidates(thread_key bigint, run_id text, with_fence bigint, numbers integer[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    got record := runyard.lock_run(thread_key, run_id);
    r runyard.runs := got.r;
BEGIN
    PERFORM runyard.refuse_write(r, with_fence);
    INSERT INTO runyard.steps (accept_no, step_key, fence) SELECT r.accept_no, 'candidate:' || n, with_fence FROM unnest(numbers) n
    ON CONFLICT (accept_no, step_key) DO UPDATE SET fence = with_fence, started_at = now() WHERE NOT runyard.steps.done;
END $$;

-- Record the ends of candidates and of the judge. If an end is recorded already, the record stays unchanged. A worker of the
-- previous release may have recorded the start of a candidate with a thread. The end of the candidate replaces this record.
-- Add the usage of probes and of the judge to the usage of the fork job. The usage of a run on a thread belongs to that run.
-- Raises stale_fence, cancel_requested.
CREATE OR REPLACE FUNCTION runyard.end_candidates(
    thread_key bigint, run_id text, with_fence bigint, keys text[], outcomes text[], usages text[], results bytea[]
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    got record := runyard.lock_run(thread_key, run_id);
    r runyard.runs := got.r;
    own boolean := NOT (r.fork->'fan'->>'threads')::boolean;
    total jsonb := coalesce(r.usage, '{}');
    ended record;
BEGIN
    PERFORM runyard.refuse_write(r, with_fence);
    FOR ended IN
        INSERT INTO runyard.steps (accept_no, step_key, done, fence, result, started_at, ended_at, outcome, usage)
        SELECT r.accept_no, e.key, true, with_fence, e.value, NULL, now(), e.outcome, e.used::jsonb
        FROM unnest(keys, outcomes, usages, results) e(key, outcome, used, value)
        ON CONFLICT (accept_no, step_key) DO UPDATE SET done = true, fence = with_fence, result = excluded.result, ended_at = now(),
            outcome = excluded.outcome, usage = excluded.usage
        WHERE NOT runyard.steps.done OR (runyard.steps.outcome IS NULL AND excluded.outcome IS NOT NULL)
        RETURNING step_key, usage
    LOOP
        IF own OR ended.step_key NOT LIKE 'candidate:%' THEN total := runyard.add_usage(total, ended.usage); END IF;
    END LOOP;
    UPDATE runyard.runs x SET progressed = true, usage = CASE WHEN total <> '{}' THEN total ELSE x.usage END WHERE x.accept_no = r.accept_no;
END $$;

-- Return true if the messages and answers of a fan-out were deleted. They are deleted after their retention, or together with
-- the content of the run.
CREATE OR REPLACE FUNCTION runyard.fan_out_expired(r runyard.runs) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN r.emptied_at IS NOT NULL OR (r.status = 'completed' AND r.result IS NULL)
        OR (r.candidates IS NULL AND NOT EXISTS (SELECT 1 FROM runyard.candidate_batches b WHERE b.accept_no = r.accept_no));
END $$;

-- Delete up to `most` steps of runs and messages of large fan-outs. If `most` is NULL, delete all. Return the number of
-- deleted rows.
CREATE OR REPLACE FUNCTION runyard.drop_records(numbers bigint[], most integer) RETURNS integer
LANGUAGE plpgsql AS $$
DECLARE
    gone integer;
    further integer;
BEGIN
    DELETE FROM runyard.steps s USING (
        SELECT x.accept_no, x.step_key FROM runyard.steps x WHERE x.accept_no = ANY (numbers) LIMIT most) o
    WHERE s.accept_no = o.accept_no AND s.step_key = o.step_key;
    GET DIAGNOSTICS gone = ROW_COUNT;
    DELETE FROM runyard.candidates c USING (
        SELECT x.batch, x.number FROM runyard.candidate_batches b JOIN runyard.candidates x USING (batch)
        WHERE b.accept_no = ANY (numbers) LIMIT most - gone) o
    WHERE c.batch = o.batch AND c.number = o.number;
    GET DIAGNOSTICS further = ROW_COUNT;
    gone := gone + further;
    IF most IS NULL OR gone < most THEN DELETE FROM runyard.candidate_batches b WHERE b.accept_no = ANY (numbers); END IF;
    RETURN gone;
END $$;
