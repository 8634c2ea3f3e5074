-- The waits of a run, for its timeline.

-- Return a page of the waits of a run in the order of their begin: at most `most` waits after the place (after_time, after_kind, after_key),
-- and about `bytes` together. A larger wait is a page of its own. Entries of waits have the kind 4 in a timeline (run_timeline). value: the
-- value of the signal that the wait took. A value of more than `large` bytes is omitted. size: the bytes of the value. child_status: the
-- status of the child, or NULL if there is no child. total: the number of waits, counted up to one more than `most`.
CREATE OR REPLACE FUNCTION runyard.run_waits(
    for_tenant text, thread_id text, run_id text, after_time timestamptz, after_kind integer, after_key text, most integer, bytes bigint,
    large integer
) RETURNS TABLE (
    at timestamptz, key text, wait_id text, kind text, name text, due_at timestamptz, ended_at timestamptz, signal_id text, value bytea,
    size integer, child_status text, total bigint
)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    r runyard.runs;
BEGIN
    r := runyard.seen_run(for_tenant, thread_id, run_id);
    RETURN QUERY
    WITH found AS (
        SELECT w.created_at::timestamptz AS at, runyard.place_key(w.wait_id) COLLATE "C" AS key, w.wait_id, w.kind, w.name,
               w.due_at::timestamptz AS due_at, w.ended_at::timestamptz AS ended_at, w.signal_id, octet_length(s.value) AS size
        FROM runyard.waits w LEFT JOIN runyard.signals s ON s.thread_key = w.thread_key AND s.signal_id = w.signal_id
        WHERE w.thread_key = r.thread_key AND w.run_id = r.run_id
    ), counted AS (
        SELECT p.*, row_number() OVER v AS n, count(*) OVER () AS total,
               sum(512 + CASE WHEN p.size > large THEN 0 ELSE coalesce(p.size, 0) END) OVER v AS used
        FROM (SELECT f.* FROM found f WHERE (f.at, 4, f.key) > (after_time, after_kind, after_key COLLATE "C") ORDER BY f.at, f.key LIMIT most + 1) p
        WINDOW v AS (ORDER BY p.at, p.key ROWS UNBOUNDED PRECEDING)
    )
    SELECT c.at, c.key::text, c.wait_id, c.kind, c.name, c.due_at, c.ended_at, c.signal_id,
           CASE WHEN c.size <= large THEN (
               SELECT s.value FROM runyard.signals s WHERE s.thread_key = r.thread_key AND s.signal_id = c.signal_id) END,
           c.size, CASE WHEN c.kind = 'child' THEN (
               SELECT x.status FROM runyard.runs x
               WHERE x.started_by_key = r.thread_key AND x.started_by_run_id = r.run_id AND x.run_id = c.wait_id LIMIT 1) END,
           c.total
    FROM counted c
    WHERE c.n = 1 OR (c.n <= most AND c.used <= bytes)
    ORDER BY c.n;
END $$;
