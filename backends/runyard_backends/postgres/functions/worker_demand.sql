-- The demand for workers: the number of slots that the runs need. A program that scales workers reads this number (charts/runyard).

-- Return the number of slots that the runs of the queues need. Running runs and runs that wait only for a worker need a slot. At most
-- 100000 waiting runs are counted. Waiting runs of a paused queue need no slot. If no slot is needed now but a worker will be
-- needed later, return 1. A worker is needed later for a delayed run, a run that was accepted in a host's transaction, a run
-- that expires, a HITL request with a deadline, and a wait with a due time. in_queues: the queues, or NULL for all queues. If
-- it is NULL, webhooks and the removal of deleted threads also need a worker. The function has the rights of its owner, so that
-- the caller needs only the right to call it.
CREATE OR REPLACE FUNCTION runyard.worker_demand(in_queues text[]) RETURNS bigint
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_hashjoin = off
SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    slots bigint := (SELECT count(*) FILTER (WHERE l.status = 'running') FROM runyard.live_runs l
                     WHERE l.worker_id IS NOT NULL AND (in_queues IS NULL OR l.queue = ANY (in_queues)));
BEGIN
    slots := slots + (SELECT count(*) FROM (
        SELECT 1 FROM runyard.queued_heads() h
        WHERE h.waits_for_permit IS NULL AND h.waits_since <= (SELECT clock_timestamp()) AND (in_queues IS NULL OR h.queue = ANY (in_queues))
          AND NOT EXISTS (SELECT 1 FROM runyard.paused_queues p WHERE p.queue = h.queue)
        LIMIT 100000) x);
    IF slots = 0 AND (runyard.has_deadline(in_queues) OR (in_queues IS NULL AND runyard.has_chores())) THEN
        slots := 1;
    END IF;
    RETURN slots;
END $$;

-- Return the first queued run of each lane without a started run, and every queued run without a lane.
CREATE OR REPLACE FUNCTION runyard.queued_heads() RETURNS SETOF runyard.live_runs
LANGUAGE sql STABLE AS $$
    WITH queued AS MATERIALIZED ( -- otherwise Postgres would read the lanes of all live runs, in order
        SELECT l.* FROM runyard.live_runs l WHERE l.status = 'queued' AND l.lane_seq IS NOT NULL)
    SELECT h.* FROM (SELECT DISTINCT ON (q.thread_key, q.lane) q.* FROM queued q WHERE q.lane IS NOT NULL ORDER BY q.thread_key, q.lane, q.lane_seq) h
    WHERE NOT EXISTS (SELECT 1 FROM runyard.live_runs a WHERE a.thread_key = h.thread_key AND a.lane = h.lane AND a.status IN ('running', 'suspended'))
    UNION ALL
    SELECT q.* FROM queued q WHERE q.lane IS NULL
$$;

-- Return true if a run of the queues has a due time, a deadline or an expiry, at which a worker must act.
CREATE OR REPLACE FUNCTION runyard.has_deadline(in_queues text[]) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN EXISTS (SELECT 1 FROM runyard.live_runs l WHERE l.expires_at IS NOT NULL AND (in_queues IS NULL OR l.queue = ANY (in_queues)))
        OR EXISTS (SELECT 1 FROM runyard.runs r WHERE r.lane_seq IS NULL AND r.accept_no > 0 AND coalesce(r.run_at, r.accepted_at) > '-infinity'
                   AND (in_queues IS NULL OR r.queue = ANY (in_queues)))
        OR EXISTS (SELECT 1 FROM runyard.queued_heads() h
                   WHERE (in_queues IS NULL OR h.queue = ANY (in_queues)) AND NOT EXISTS (SELECT 1 FROM runyard.paused_queues p WHERE p.queue = h.queue))
        OR EXISTS (SELECT 1 FROM runyard.hitl_requests q JOIN runyard.runs r ON r.thread_key = q.thread_key AND r.run_id = q.run_id
                   WHERE q.deadline_at > '-infinity' AND q.answered_at IS NULL AND q.closed_at IS NULL AND (in_queues IS NULL OR r.queue = ANY (in_queues)))
        OR CASE WHEN in_queues IS NULL THEN EXISTS (SELECT 1 FROM runyard.waits w WHERE w.due_at > '-infinity' AND w.ended_at IS NULL)
           ELSE EXISTS ( -- starts from the suspended runs of the queues, because other queues may have many waits
               SELECT 1 FROM runyard.live_runs l JOIN runyard.waits w ON w.thread_key = l.thread_key AND w.run_id = l.run_id
               WHERE l.status = 'suspended' AND l.queue = ANY (in_queues) AND w.due_at > '-infinity' AND w.ended_at IS NULL)
               OR EXISTS ( -- a child of a cancelled run
               SELECT 1 FROM runyard.waits w JOIN runyard.runs c ON c.started_by_key = w.thread_key AND c.started_by_run_id = w.run_id AND c.run_id = w.wait_id
               WHERE w.kind = 'child' AND w.ended_at IS NULL AND w.due_at > '-infinity' AND w.due_at <= (SELECT clock_timestamp())
                 AND c.finished_at IS NULL AND c.queue = ANY (in_queues)) END;
END $$;

-- Return true if a worker has other work than runs: deliveries to a webhook, or the removal of a deleted thread.
CREATE OR REPLACE FUNCTION runyard.has_chores() RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN EXISTS (SELECT 1 FROM runyard.removals)
        OR EXISTS (SELECT 1 FROM runyard.webhook_deliveries d WHERE d.next_at IS NOT NULL)
        OR EXISTS (SELECT 1 FROM runyard.webhooks w
                   JOIN LATERAL unnest(CASE WHEN w.tenant IS NULL THEN runyard.feed_tenants() ELSE ARRAY[w.tenant] END) x(tenant) ON true
                   JOIN runyard.outbox o ON o.tenant = x.tenant AND o.transaction >= w.cursor AND o.type = ANY (w.events)
                   WHERE w.disabled_at IS NULL);
END $$;
