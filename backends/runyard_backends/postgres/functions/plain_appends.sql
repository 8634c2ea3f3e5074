-- The plain path of appends: write_interim stores the usual appends of a batch together, in few statements (plain_runs.sql). It stores all
-- other writes one by one, with the same result.
--
-- A plain write appends messages with new ids, and is the only write for its thread in the batch. The attempt may write.

-- Store the plain writes. Return one row per stored write. The function locks the threads of all writes. message_bytes: the size limit of a message. patience: as in write_interim.
CREATE OR REPLACE FUNCTION runyard.append_plain(writes runyard.interim_write[], message_bytes bigint, patience integer)
RETURNS SETOF runyard.interim_written
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off AS $$
DECLARE
    done runyard.interim_written;
    locked bigint[];
BEGIN
    locked := runyard.lock_threads(ARRAY(SELECT w.thread_key FROM unnest(writes) w), patience);
    FOR done IN
        WITH plain AS MATERIALIZED (
            SELECT w.place, w.messages, w.usage, cardinality(w.messages) AS many, w.fence || '-' AS prefix, w.first_event, r.*, t.next_seq
            FROM (SELECT v.*, count(*) OVER (PARTITION BY v.thread_key) AS same FROM unnest(writes) WITH ORDINALITY
                      v(thread_key, run_id, fence, messages, first_event, start_key, finish_key, result, usage, place)) w
            CROSS JOIN LATERAL (
                SELECT x.accept_no, x.thread_key, x.run_id, x.branch_id, coalesce(x.last_message_id, x.base_id) AS before FROM runyard.runs x
                WHERE x.thread_key = w.thread_key AND x.run_id = w.run_id AND x.fence = w.fence AND x.status = 'running'
                  AND x.kind <> 'external' AND x.cancel_requested_at IS NULL AND x.branch_id IS NOT NULL
                LIMIT 1) r
            CROSS JOIN LATERAL (SELECT x.next_seq FROM runyard.threads x WHERE x.thread_key = w.thread_key LIMIT 1) t
            LEFT JOIN LATERAL (
                SELECT 1 AS one FROM unnest(w.messages) m
                CROSS JOIN LATERAL (SELECT 1 FROM runyard.messages h WHERE h.message_id = m.message_id LIMIT 1) h LIMIT 1) taken ON true
            WHERE w.thread_key = ANY (locked) AND w.same = 1 AND w.messages <> '{}' AND w.start_key IS NULL AND w.finish_key IS NULL
              AND taken.one IS NULL AND pg_column_size(w.messages) <= message_bytes AND (
                  cardinality(w.messages) < 2 OR (SELECT count(DISTINCT m.message_id) FROM unnest(w.messages) m) = cardinality(w.messages))
        ), message AS (
            INSERT INTO runyard.messages AS x (branch_id, seq, message_id, parent_id, run_id, role, payload, calls, results, event_id)
            SELECT p.branch_id, p.next_seq + m.n - 1, m.message_id, CASE m.n WHEN 1 THEN p.before ELSE (p.messages[m.n - 1]).message_id END,
                p.run_id, m.role, m.payload, m.calls, m.results, p.prefix || (p.first_event + m.n - 1)
            FROM plain p, unnest(p.messages) WITH ORDINALITY m(message_id, role, payload, calls, results, n)
            RETURNING x AS row
        ), thread AS (
            UPDATE runyard.threads t SET next_seq = p.next_seq + p.many, updated_at = now() FROM plain p WHERE t.thread_key = p.thread_key
        ), run AS (
            UPDATE runyard.runs r SET first_seq = coalesce(r.first_seq, p.next_seq), last_seq = p.next_seq + p.many - 1,
                last_message_id = (p.messages[p.many]).message_id, progressed = true, usage = runyard.most_usage(r.usage, p.usage), has_tools = r.has_tools OR EXISTS (
                    SELECT 1 FROM unnest(p.messages) m WHERE m.calls IS NOT NULL OR m.results IS NOT NULL)
            FROM plain p WHERE r.accept_no = p.accept_no
        )
        SELECT p.place, NULL, ARRAY(SELECT m.row FROM message m WHERE (m.row).branch_id = p.branch_id ORDER BY (m.row).seq), NULL
        FROM plain p
    LOOP
        RETURN NEXT done;
    END LOOP;
EXCEPTION WHEN lock_not_available THEN
    RETURN;
END $$;
