-- The messages of large fan-outs. They are stored page by page in a batch before the fork job is accepted. The fork job then
-- takes the batch (FanOut, postgres/runs.py).

-- Begin the batch of a large fan-out, or continue it. Return false if the run exists, so that no page is needed. Raises the refusals of the
-- accept, and queue_full if the tenant has too many batches that no fork job has taken. No thread is locked.
CREATE OR REPLACE FUNCTION runyard.begin_batch(for_tenant text, q runyard.request) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    t runyard.threads := runyard.known_snapshot(for_tenant, q.thread_id);
    of_batch uuid := (q.fork->'batch'->>'id')::uuid;
    most integer := 100;
BEGIN
    IF (runyard.existing_run(for_tenant, q)).run_id IS NOT NULL THEN RETURN false; END IF;
    PERFORM runyard.raise(runyard.why_not(t, q.run_id, q.parent_id));
    PERFORM runyard.check_room(for_tenant, q, t.thread_key, runyard.lane_of(t, q.kind, q.parallel, q.run_id, q.parent_id), true);
    PERFORM runyard.refuse_asking(q, runyard.agent_of(q.agent, t.agent));
    PERFORM runyard.fix_cut(t, q.fork);
    IF most <= (SELECT count(*) FROM (SELECT 1 FROM runyard.candidate_batches b
                                      WHERE b.tenant = for_tenant AND b.accept_no IS NULL AND b.batch <> of_batch LIMIT most) x) THEN
        PERFORM runyard.refuse('queue_full',
            format('%s large fan-outs of tenant "%s" are being stored; try again when they are accepted', most, for_tenant),
            jsonb_build_object('limit', 'batches_per_tenant', 'most', most, 'retry_after', 1));
    END IF;
    INSERT INTO runyard.candidate_batches AS b (batch, tenant) VALUES (of_batch, for_tenant)
    ON CONFLICT (batch) DO UPDATE SET stored_at = clock_timestamp(), tenant = for_tenant WHERE b.accept_no IS NULL;
    RETURN FOUND;
END $$;

-- Store a page of the messages of a batch, from the number `first` on. The call changes nothing if it is a repetition, if a
-- fork job has taken the batch, or if the leader has removed the batch.
CREATE OR REPLACE FUNCTION runyard.store_candidates(of_batch uuid, first integer, messages bytea[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    taken_by bigint;
BEGIN
    PERFORM runyard.check_size(ARRAY(SELECT (NULL, NULL, c.body, NULL, NULL)::runyard.new_message FROM unnest(messages) c(body)),
                               runyard.limit_of('message_bytes'));
    UPDATE runyard.candidate_batches b SET stored_at = clock_timestamp() WHERE b.batch = of_batch RETURNING b.accept_no INTO taken_by;
    IF NOT FOUND OR taken_by IS NOT NULL THEN RETURN; END IF;
    INSERT INTO runyard.candidates (batch, number, message)
    SELECT of_batch, first + c.place - 1, c.body FROM unnest(messages) WITH ORDINALITY c(body, place)
    ON CONFLICT DO NOTHING;
END $$;

-- Give the batch of a fan-out to the run of its request. Refuse if pages are missing because the leader has removed them in
-- the meantime. The client then stores these pages again.
CREATE OR REPLACE FUNCTION runyard.take_candidates(r runyard.runs) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    of_batch uuid := (r.fork->'batch'->>'id')::uuid;
BEGIN
    -- The condition fits no partial index, so that the plan always reads the primary key.
    UPDATE runyard.candidate_batches b SET accept_no = r.accept_no
    WHERE b.batch = of_batch AND coalesce(b.accept_no, r.accept_no) = r.accept_no;
    IF NOT FOUND OR (r.fork->'batch'->>'total')::bigint <> (SELECT count(*) FROM runyard.candidates c WHERE c.batch = of_batch) THEN
        PERFORM runyard.refuse('backend_unavailable', format('the messages of fan-out %s were removed meanwhile; try again', r.run_id),
                               jsonb_build_object('run_id', r.run_id, 'batch', of_batch));
    END IF;
END $$;

-- Delete batches that no request took within an hour after their last page, because their client stopped. Delete whole batches until about
-- `most` rows are deleted. Return the number of deleted rows.
CREATE OR REPLACE FUNCTION runyard.prune_candidates(most integer) RETURNS integer
LANGUAGE plpgsql AS $$
DECLARE
    old uuid;
    further integer;
    gone integer := 0;
BEGIN
    FOR old IN
        SELECT x.batch FROM runyard.candidate_batches x
        WHERE x.accept_no IS NULL AND x.stored_at < (SELECT clock_timestamp() - interval '1 hour')
        ORDER BY x.stored_at LIMIT most FOR UPDATE SKIP LOCKED
    LOOP
        DELETE FROM runyard.candidates c WHERE c.batch = old;
        GET DIAGNOSTICS further = ROW_COUNT;
        DELETE FROM runyard.candidate_batches b WHERE b.batch = old;
        gone := gone + further + 1;
        EXIT WHEN gone >= most;
    END LOOP;
    RETURN gone;
END $$;
