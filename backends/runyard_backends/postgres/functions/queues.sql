-- Queues and their waiting runs.

-- Return the numbers of suspended runs of these queues, by what they wait for.
CREATE OR REPLACE FUNCTION runyard.suspended_runs_v2(of_queues text[]) RETURNS TABLE (queue text, waiting_for text, runs bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT n.queue, l.waiting_for, l.runs FROM unnest(of_queues) n(queue) CROSS JOIN LATERAL (
        SELECT coalesce(x.waiting_for, 'human') AS waiting_for, count(*) AS runs FROM runyard.live_runs x
        WHERE x.status = 'suspended' AND x.queue = n.queue GROUP BY 1) l;
END $$;

-- Return the numbers of suspended runs of each queue, by what they wait for. The code of previous releases calls this function.
CREATE OR REPLACE FUNCTION runyard.suspended_runs() RETURNS TABLE (queue text, waiting_for text, runs bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT l.queue, coalesce(l.waiting_for, 'human'), count(*) FROM runyard.live_runs l WHERE l.status = 'suspended' GROUP BY 1, 2;
END $$;

-- Return the queues that have live runs, are paused or have a live worker, with the numbers of their runs. The function reads the live runs
-- by the indexes of their statuses. waiting: the number of queued runs that wait only for a worker. A lane whose runs are in several queues
-- counts in each of them.
CREATE OR REPLACE FUNCTION runyard.queue_states() RETURNS TABLE (
    queue text, queued bigint, waiting bigint, deepest bigint, oldest double precision, scheduled bigint, running bigint, suspended bigint,
    workers bigint, paused_at timestamptz, known boolean
)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    present timestamptz := clock_timestamp();
BEGIN
    RETURN QUERY
    WITH lanes AS (
        SELECT l.queue, l.thread_key, l.lane, count(*) FILTER (WHERE l.waits_since <= present) AS queued, min(l.waits_since) AS since,
               count(l.lane) FILTER (WHERE l.waits_since <= present) AS depth, count(*) FILTER (WHERE l.waits_since > present) AS scheduled,
               min(l.lane_seq) = min(l.lane_seq) FILTER (WHERE l.waits_since <= present AND l.waits_for_permit IS NULL) AS ready,
               bool_or(l.lane = l.run_id) AS of_job
        FROM runyard.live_runs l WHERE l.status = 'queued' GROUP BY l.queue, l.thread_key, l.lane
    ), busy AS (
        SELECT l.thread_key, l.lane FROM runyard.live_runs l WHERE l.status = ANY (ARRAY['running', 'suspended'])
    ), later AS (
        SELECT l.thread_key, l.lane FROM lanes l JOIN runyard.runs j ON j.thread_key = l.thread_key AND j.run_id = l.lane
        JOIN runyard.runs x ON x.thread_key = j.thread_key AND x.run_id = j.after_run_id WHERE l.of_job AND x.finished_at IS NULL
    ), queued AS (
        SELECT l.queue, sum(l.queued)::bigint AS queued, max(l.depth) AS deepest, min(l.since) FILTER (WHERE l.since <= present) AS since,
               sum(l.scheduled)::bigint AS scheduled, count(*) FILTER (WHERE l.ready AND b.lane IS NULL AND x.lane IS NULL) AS waiting
        FROM lanes l LEFT JOIN busy b USING (thread_key, lane) LEFT JOIN later x USING (thread_key, lane) GROUP BY l.queue
    ), suspended AS (
        SELECT l.queue, count(*) AS suspended FROM runyard.live_runs l WHERE l.status = 'suspended' GROUP BY l.queue
    ), running AS (
        SELECT l.queue, count(*) FILTER (WHERE l.status = 'running') AS running FROM runyard.live_runs l WHERE l.worker_id IS NOT NULL GROUP BY l.queue
    ), served AS (
        SELECT s.queue, count(*) FILTER (WHERE NOT w.draining) AS workers FROM runyard.workers w, unnest(w.queues) s(queue)
        WHERE w.dead_at IS NULL GROUP BY s.queue
    )
    SELECT n.queue, coalesce(q.queued, 0), coalesce(q.waiting, 0), coalesce(q.deepest, 0), extract(epoch FROM present - q.since)::float8,
           coalesce(q.scheduled, 0), coalesce(r.running, 0), coalesce(u.suspended, 0), coalesce(s.workers, 0), p.paused_at,
           s.queue IS NOT NULL OR p.queue IS NOT NULL OR EXISTS (SELECT 1 FROM runyard.agents a WHERE a.queue = n.queue)
    FROM (SELECT q.queue FROM queued q UNION SELECT u.queue FROM suspended u UNION SELECT r.queue FROM running r
          UNION SELECT s.queue FROM served s UNION SELECT p.queue FROM runyard.paused_queues p) n
    LEFT JOIN queued q ON q.queue = n.queue LEFT JOIN suspended u ON u.queue = n.queue LEFT JOIN running r ON r.queue = n.queue
    LEFT JOIN served s ON s.queue = n.queue LEFT JOIN runyard.paused_queues p ON p.queue = n.queue
    ORDER BY n.queue;
END $$;
