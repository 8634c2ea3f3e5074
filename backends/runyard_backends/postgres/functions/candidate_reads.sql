-- Reads of fan-outs by clients: the fork job, the records of its candidates, and the runs of candidates with threads.

-- Return the fork job of a fan-out. total: the number of its candidates. expired: true if its result or its content was
-- deleted. Raises thread_not_found, run_not_found, invalid_input for a run of another kind.
CREATE OR REPLACE FUNCTION runyard.fan_out(for_tenant text, thread_id text, run_id text)
RETURNS TABLE (total integer, threads boolean, status text, fence bigint, usage jsonb, expired boolean)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    r runyard.runs := runyard.known_run(runyard.known_snapshot(for_tenant, thread_id), run_id);
BEGIN
    IF r.kind <> 'fork_many' THEN
        PERFORM runyard.refuse('invalid_input', format('run %s is no fan-out; its kind is %s', run_id, r.kind), jsonb_build_object('field', 'run_id'));
    END IF;
    RETURN QUERY SELECT coalesce((r.fork->'batch'->>'total')::integer, cardinality(r.candidates)), (r.fork->'fan'->>'threads')::boolean, r.status,
        r.fence, r.usage, runyard.fan_out_expired(r);
END $$;

-- Return the records of the candidates from the number `first` to `last`. size: the bytes of the value of a record. The first
-- record always has its value. Further records have their values until the returned values have about `bytes` together. If
-- `bytes` is NULL, no record has a value.
CREATE OR REPLACE FUNCTION runyard.candidate_records(for_tenant text, thread_id text, run_id text, first integer, last integer, bytes bigint)
RETURNS TABLE (number integer, fence bigint, outcome text, usage jsonb, size bigint, value bytea)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    r runyard.runs := runyard.known_run(runyard.known_snapshot(for_tenant, thread_id), run_id);
BEGIN
    RETURN QUERY
    WITH record AS MATERIALIZED (
        SELECT n.n, s.step_key, s.fence, s.outcome, s.usage,
               octet_length(s.result)::bigint AS size,
               sum(octet_length(s.result)::bigint) OVER (ORDER BY n.n) AS used,
               row_number() OVER (ORDER BY n.n) AS place
        FROM generate_series(first, last) n(n)
        JOIN runyard.steps s ON s.accept_no = r.accept_no AND s.step_key = 'candidate:' || n.n)
    SELECT c.n, c.fence, c.outcome, c.usage, coalesce(c.size, 0),
           CASE WHEN c.used <= bytes OR c.place = 1 AND bytes IS NOT NULL THEN
               (SELECT s.result FROM runyard.steps s WHERE s.accept_no = r.accept_no AND s.step_key = c.step_key) END
    FROM record c ORDER BY c.n;
END $$;

-- Return the runs that the fork job has started on threads: their threads, statuses and usages.
CREATE OR REPLACE FUNCTION runyard.candidate_runs(for_tenant text, thread_id text, run_id text)
RETURNS TABLE (of_thread text, status text, usage jsonb)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    r runyard.runs := runyard.known_run(runyard.known_snapshot(for_tenant, thread_id), run_id);
BEGIN
    RETURN QUERY SELECT x.thread_id, x.status, x.usage FROM runyard.runs x JOIN runyard.threads t USING (thread_key)
        WHERE x.started_by_key = r.thread_key AND x.started_by_run_id = r.run_id AND x.emptied_at IS NULL AND t.deleted_at IS NULL;
END $$;

-- Return the first runs of threads, with the last messages of those runs that have ended. place: the place of the thread in
-- `threads`, from 1. The first row of a run has no message. unread: true if the messages of the run are not read, because the
-- messages of earlier runs already have `bytes`. The other rows of the run have its messages, the newest first, up to `bytes`.
-- cut: true if earlier messages are left out.
CREATE OR REPLACE FUNCTION runyard.candidate_outcomes(for_tenant text, threads text[], ids text[], bytes bigint)
RETURNS TABLE (place integer, status text, usage jsonb, error jsonb, unread boolean, cut boolean, message runyard.messages)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    r runyard.runs;
    m runyard.messages;
    used bigint := 0;
    own bigint;
BEGIN
    FOR n IN 1 .. cardinality(threads) LOOP
        SELECT x.* INTO r FROM runyard.threads t JOIN runyard.runs x USING (thread_key)
        WHERE t.tenant = for_tenant AND t.thread_id = threads[n] AND t.deleted_at IS NULL AND x.run_id = ids[n] AND x.emptied_at IS NULL;
        CONTINUE WHEN NOT FOUND;
        place := n; status := r.status; usage := r.usage; error := r.error; unread := used > bytes; cut := false; message := NULL;
        RETURN NEXT;
        CONTINUE WHEN unread OR r.finished_at IS NULL;
        own := 0;
        FOR m IN
            SELECT y.* FROM runyard.messages y
            WHERE y.branch_id = r.branch_id AND y.run_id = r.run_id AND y.seq BETWEEN r.first_seq AND r.last_seq ORDER BY y.seq DESC
        LOOP
            cut := own > 0 AND own + 512 + coalesce(octet_length(m.payload), 0) > bytes;
            IF cut THEN
                message := NULL;
                RETURN NEXT;
                EXIT;
            END IF;
            own := own + 512 + coalesce(octet_length(m.payload), 0);
            message := m;
            RETURN NEXT;
        END LOOP;
        used := used + own;
    END LOOP;
END $$;
