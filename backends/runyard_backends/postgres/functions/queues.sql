-- Queues and their waiting runs.

-- Return the queues that have live runs, are paused or have a live worker, with the numbers of their waiting runs. The function
-- reads the live runs by the indexes of their statuses.
CREATE OR REPLACE FUNCTION runyard.queues() RETURNS TABLE (
    queue text, queued bigint, deepest bigint, oldest double precision, suspended bigint, workers bigint, paused_at timestamptz,
    known boolean
)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH lanes AS (
        SELECT l.queue, l.thread_key, l.lane, count(*) AS queued, min(l.waits_since) AS since, count(l.lane) AS depth FROM runyard.live_runs l
        WHERE l.status = 'queued' AND l.waits_since <= clock_timestamp() GROUP BY l.queue, l.thread_key, l.lane
    ), live AS (
        SELECT s.queue, sum(s.suspended)::bigint AS suspended FROM (
            SELECT l.queue, count(*) AS suspended FROM runyard.live_runs l WHERE l.status = 'suspended' GROUP BY l.queue
            UNION ALL
            SELECT DISTINCT l.queue, 0 FROM runyard.live_runs l WHERE l.status = 'queued'
            UNION ALL
            SELECT DISTINCT l.queue, 0 FROM runyard.live_runs l WHERE l.worker_id IS NOT NULL) s
        GROUP BY s.queue
    ), waiting AS (
        SELECT l.queue, sum(l.queued)::bigint AS queued, max(l.depth) AS deepest, min(l.since) AS since FROM lanes l GROUP BY l.queue
    ), found AS (
        SELECT l.queue, coalesce(w.queued, 0) AS queued, coalesce(w.deepest, 0) AS deepest, w.since, l.suspended FROM live l LEFT JOIN waiting w USING (queue)
    ), served AS (
        SELECT s.queue, count(*) FILTER (WHERE NOT w.draining) AS workers FROM runyard.workers w, unnest(w.queues) s(queue)
        WHERE w.dead_at IS NULL GROUP BY s.queue
    )
    SELECT n.queue, coalesce(f.queued, 0), coalesce(f.deepest, 0), extract(epoch FROM clock_timestamp() - f.since)::float8,
           coalesce(f.suspended, 0), coalesce(s.workers, 0), p.paused_at,
           s.queue IS NOT NULL OR p.queue IS NOT NULL OR EXISTS (SELECT 1 FROM runyard.agents a WHERE a.queue = n.queue)
    FROM (SELECT f.queue FROM found f UNION SELECT s.queue FROM served s UNION SELECT p.queue FROM runyard.paused_queues p) n
    LEFT JOIN found f ON f.queue = n.queue LEFT JOIN served s ON s.queue = n.queue LEFT JOIN runyard.paused_queues p ON p.queue = n.queue
    ORDER BY n.queue;
END $$;
