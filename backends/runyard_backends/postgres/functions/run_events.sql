-- The proven events of a run. These are the events that follow from the rows of the run. They are for readers of a stream that
-- Redis has lost. EVENTS_PER_READ and EVENT_BYTES_PER_READ in runyard/ports/scheduling.py are `most` and `bytes`.

-- Return the proven events of a run after the id `after`, in the order of their ids: at most `most` events and at most `bytes` together. A
-- larger event is returned alone. An attempt numbers its messages as it appends them, and a later attempt has a higher fence. Event ids of
-- messages are therefore in the order of seq, and a binary search finds the first message after an id. A wrong first_event can give two
-- events the same id. The function then returns the event with the higher `kind`, because readers wait for the end of the run. why: the
-- error of the run. asked: the ids of the HITL requests for which a suspended run waits. attempt: the number of the queued attempt.
CREATE OR REPLACE FUNCTION runyard.run_events(thread_key bigint, run_id text, after bigint[], most integer, bytes bigint)
RETURNS TABLE (type text, proved_id text, in_thread text, message runyard.messages, request runyard.requests, why jsonb, asked text[], attempt integer)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    r record;
    low bigint;
    high bigint;
    middle bigint;
    m record;
BEGIN
    SELECT t.thread_id, x.status, x.event_id, x.error, x.fence, x.queued_fence, x.attempt, x.branch_id, x.first_seq, x.last_seq INTO r
    FROM runyard.runs x JOIN runyard.threads t USING (thread_key) WHERE x.thread_key = run_events.thread_key AND x.run_id = run_events.run_id;
    IF NOT FOUND THEN RETURN; END IF;
    low := r.first_seq; high := r.last_seq + 1;
    WHILE low < high LOOP
        middle := (low + high) / 2;
        SELECT x.seq, runyard.event_place(x.event_id) AS place INTO m FROM runyard.messages x
        WHERE x.branch_id = r.branch_id AND x.seq >= middle AND x.seq < high AND x.run_id = run_events.run_id AND x.event_id IS NOT NULL
        ORDER BY x.seq LIMIT 1;
        IF m.place <= after THEN low := m.seq + 1; ELSE high := middle; END IF;
    END LOOP;
    RETURN QUERY
    WITH found AS (
        (SELECT 1 AS kind, 'message.completed' AS type, x.event_id, x.seq, NULL AS request_id, 512 + coalesce(octet_length(x.payload), 0) AS size
         FROM runyard.messages x WHERE x.branch_id = r.branch_id AND x.seq BETWEEN low AND r.last_seq AND x.run_id = run_events.run_id
           AND x.event_id IS NOT NULL ORDER BY x.seq LIMIT most)
        UNION ALL
        (SELECT 2, 'hitl.requested', h.event_id, NULL, h.request_id, 512 + octet_length(h.body) + coalesce(octet_length(h.answer), 0)
         FROM runyard.hitl_requests h WHERE h.thread_key = run_events.thread_key AND h.run_id = run_events.run_id AND runyard.event_place(h.event_id) > after
         ORDER BY runyard.event_place(h.event_id) LIMIT most)
        UNION ALL
        SELECT 3, 'run.' || r.status, r.event_id, NULL, NULL, 512 + coalesce(pg_column_size(r.error), 0)
        WHERE r.event_id IS NOT NULL AND r.status IN ('completed', 'failed', 'cancelled', 'dead', 'suspended')
        UNION ALL
        SELECT 4, 'run.queued', r.queued_fence || '-1', NULL, NULL, 512 WHERE coalesce(r.fence, 0) < r.queued_fence
    ), placed AS (
        SELECT f.*, runyard.event_place(f.event_id) AS place FROM found f
    ), counted AS (
        SELECT p.*, row_number() OVER w AS n, sum(p.size) OVER w AS total
        FROM (SELECT DISTINCT ON (d.place) d.* FROM placed d WHERE d.place > after ORDER BY d.place, d.kind DESC) p
        WINDOW w AS (ORDER BY p.place ROWS UNBOUNDED PRECEDING)
    )
    SELECT c.type, c.event_id, r.thread_id, x, q, CASE WHEN c.event_id = r.event_id THEN r.error END,
           CASE WHEN c.type = 'run.suspended' THEN ARRAY(
               SELECT h.request_id FROM runyard.hitl_requests h
               WHERE h.thread_key = run_events.thread_key AND h.run_id = run_events.run_id AND (runyard.event_place(h.event_id))[1] = c.place[1]
               ORDER BY runyard.event_place(h.event_id)) END,
           CASE WHEN c.type = 'run.queued' THEN r.attempt + 1 END
    FROM counted c
    LEFT JOIN runyard.messages x ON x.branch_id = r.branch_id AND x.seq = c.seq
    LEFT JOIN runyard.requests q ON q.thread_key = run_events.thread_key AND q.request_id = c.request_id
    WHERE c.n = 1 OR (c.n <= most AND c.total <= bytes)
    ORDER BY c.n;
END $$;

-- Return an event id "<fence>-<n>" as an array of its two numbers, which can be compared. Return NULL for NULL and for any other text. An
-- array of NULLs would be greater than every place.
CREATE OR REPLACE FUNCTION runyard.event_place(event_id text) RETURNS bigint[]
LANGUAGE plpgsql IMMUTABLE STRICT AS $$
BEGIN
    IF event_id !~ '^\d{1,18}-\d{1,18}$' THEN RETURN NULL; END IF;
    RETURN ARRAY[split_part(event_id, '-', 1)::bigint, split_part(event_id, '-', 2)::bigint];
END $$;
