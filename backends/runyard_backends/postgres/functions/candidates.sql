-- The candidates of fan-outs: their messages, and the records of their job. runyard/domain/fan_outs.py has the keys of the steps.
-- runs.candidates has the messages of a small fan-out. For a large fan-out, the field `batch` of runs.fork names its stored
-- messages.

-- Store a page of the messages of a large fan-out, from the number `first` on. If the page is already stored, or if a job has
-- taken the batch, change nothing.
CREATE OR REPLACE FUNCTION runyard.store_candidates(of_batch uuid, first integer, messages bytea[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    PERFORM runyard.check_size(ARRAY(SELECT (NULL, NULL, c.body, NULL, NULL)::runyard.new_message FROM unnest(messages) c(body)),
                               runyard.limit_of('message_bytes'));
    INSERT INTO runyard.candidate_batches AS b (batch) VALUES (of_batch)
    ON CONFLICT (batch) DO UPDATE SET stored_at = clock_timestamp() WHERE b.accept_no IS NULL;
    IF NOT FOUND THEN RETURN; END IF;
    INSERT INTO runyard.candidates (batch, number, message)
    SELECT of_batch, first + c.place - 1, c.body FROM unnest(messages) WITH ORDINALITY c(body, place)
    ON CONFLICT DO NOTHING;
END $$;

-- Give the batch of a fan-out to the run of its request. Refuse if the leader has removed pages in the meantime.
CREATE OR REPLACE FUNCTION runyard.take_candidates(r runyard.runs) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    of_batch uuid := (r.fork->'batch'->>'id')::uuid;
BEGIN
    UPDATE runyard.candidate_batches b SET accept_no = r.accept_no WHERE b.batch = of_batch AND b.accept_no IS NULL;
    IF NOT FOUND OR (r.fork->'batch'->>'total')::bigint <> (SELECT count(*) FROM runyard.candidates c WHERE c.batch = of_batch) THEN
        PERFORM runyard.refuse('locked', format('the messages of fan-out %s were removed during this call; try again', r.run_id));
    END IF;
END $$;

-- Delete the messages of large fan-outs whose runs are deleted.
CREATE OR REPLACE FUNCTION runyard.drop_candidates(numbers bigint[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    WITH gone AS (DELETE FROM runyard.candidate_batches b WHERE b.accept_no = ANY (numbers) RETURNING b.batch)
    DELETE FROM runyard.candidates c USING gone g WHERE c.batch = g.batch;
END $$;

-- Delete the pages of clients that stopped. If no request has taken a batch within an hour after its last page, its pages are
-- deleted. Return their number.
CREATE OR REPLACE FUNCTION runyard.prune_candidates(most integer) RETURNS integer
LANGUAGE plpgsql AS $$
DECLARE
    gone integer;
BEGIN
    WITH old AS (
        DELETE FROM runyard.candidate_batches b USING (
            SELECT x.batch FROM runyard.candidate_batches x
            WHERE x.accept_no IS NULL AND x.stored_at < (SELECT clock_timestamp() - interval '1 hour')
            ORDER BY x.stored_at LIMIT greatest(1, most / 1000) FOR UPDATE SKIP LOCKED) o
        WHERE b.batch = o.batch RETURNING b.batch)
    DELETE FROM runyard.candidates c USING old WHERE c.batch = old.batch;
    GET DIAGNOSTICS gone = ROW_COUNT;
    RETURN gone;
END $$;

-- Return the messages of candidates of an attempt's job. Raises stale_fence.
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

-- Record the ends of candidates and of the judge. The first record of each stays. Add the usage of probes and of the judge to
-- the usage of the job. The usage of a run on a thread is not added, because it belongs to that run. Raises stale_fence,
-- cancel_requested.
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
