-- What is due: runs to admit, deadlines of HITL requests and waits, children of cancelled runs, and runs that expire.
-- admit.sql applies what is due.

-- Return the next time after `since` at which a HITL request or a wait has its deadline or a run expires. NULL if there is none.
CREATE OR REPLACE FUNCTION runyard.next_time(since timestamptz) RETURNS timestamptz
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN least(
        (SELECT h.deadline_at FROM runyard.hitl_requests h
         WHERE h.answered_at IS NULL AND h.closed_at IS NULL AND h.deadline_at > since AND h.deadline_at > '-infinity' ORDER BY h.deadline_at LIMIT 1),
        (SELECT w.due_at FROM runyard.waits w WHERE w.ended_at IS NULL AND w.due_at > since AND w.due_at > '-infinity' ORDER BY w.due_at LIMIT 1),
        (SELECT e.expires_at FROM runyard.live_runs e WHERE e.expires_at > since ORDER BY e.expires_at LIMIT 1));
END $$;

-- Return at most `most` threads of each kind on which something is due. For each thread, return the earliest due time and the
-- kinds (see apply_due). thread_key is NULL if the thread does not exist. Threads in `locked` are left out. only_runs: true if
-- only runs are due. The statement for runs alone is short, because the run of a host that has just committed waits for it.
-- Each statement reads the clock in a subquery: if it read the clock for each row, it could not use an index. The statement
-- also reads the key of the thread in a subquery: a join would read all threads if the planner expected many rows.
CREATE OR REPLACE FUNCTION runyard.due_threads(most integer, locked text[], only_runs boolean)
RETURNS TABLE (tenant text, thread_id text, thread_key bigint, due_at timestamptz, kinds text[]) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    IF only_runs THEN
        RETURN QUERY
        SELECT x.tenant, x.thread_id, (SELECT t.thread_key FROM runyard.threads t
                WHERE t.tenant = x.tenant AND t.thread_id = x.thread_id AND t.deleted_at IS NULL) AS thread_key, max(x.due_at), '{run}'::text[]
        FROM runyard.due_runs(most, locked) x
        GROUP BY x.tenant, x.thread_id ORDER BY thread_key NULLS LAST, x.tenant, x.thread_id;
        RETURN;
    END IF;
    RETURN QUERY
    SELECT x.tenant, x.thread_id, (SELECT t.thread_key FROM runyard.threads t
            WHERE t.tenant = x.tenant AND t.thread_id = x.thread_id AND t.deleted_at IS NULL) AS thread_key, max(x.due_at), array_agg(DISTINCT x.kind)
    FROM (
        SELECT 'run' AS kind, d.* FROM runyard.due_runs(most, locked) d
        UNION ALL
        (SELECT 'deadline', z.tenant, z.thread_id, h.deadline_at FROM runyard.hitl_requests h JOIN runyard.threads z USING (thread_key)
         WHERE h.answered_at IS NULL AND h.closed_at IS NULL AND h.deadline_at > '-infinity'
           AND h.deadline_at <= (SELECT clock_timestamp()) AND z.deleted_at IS NULL
           -- A run that continues with the answer to another request must not fail before it is suspended again.
           AND (h.otherwise IS NOT NULL OR NOT EXISTS (
               SELECT 1 FROM runyard.runs r WHERE r.thread_key = h.thread_key AND r.run_id = h.run_id
               AND r.status IN ('queued', 'running') AND r.kind <> 'external'))
           AND z.tenant || E'\x1f' || z.thread_id <> ALL (locked)
         ORDER BY h.deadline_at LIMIT most)
        UNION ALL
        (SELECT 'deadline', z.tenant, z.thread_id, w.due_at FROM runyard.waits w JOIN runyard.threads z USING (thread_key)
         WHERE w.ended_at IS NULL AND w.due_at > '-infinity' AND w.due_at <= (SELECT clock_timestamp()) AND z.deleted_at IS NULL
           AND NOT runyard.child_lives(w)
           AND z.tenant || E'\x1f' || z.thread_id <> ALL (locked)
         ORDER BY w.due_at LIMIT most)
        UNION ALL (SELECT 'child', d.tenant, d.thread_id, d.due_at FROM runyard.doomed_children(most) d WHERE d.tenant || E'\x1f' || d.thread_id <> ALL (locked))
        UNION ALL
        (SELECT 'expiry', e.tenant, e.thread_id, e.expires_at FROM runyard.live_runs e
         WHERE e.expires_at <= (SELECT clock_timestamp()) AND e.tenant || E'\x1f' || e.thread_id <> ALL (locked)
         ORDER BY e.expires_at LIMIT most)) x
    GROUP BY x.tenant, x.thread_id ORDER BY thread_key NULLS LAST, x.tenant, x.thread_id;
END $$;

-- Return up to `most` committed runs that are due and not admitted, without those of the threads in `locked`.
CREATE OR REPLACE FUNCTION runyard.due_runs(most integer, locked text[]) RETURNS TABLE (tenant text, thread_id text, due_at timestamptz)
LANGUAGE sql STABLE ROWS 10 AS $$
    SELECT y.tenant, y.thread_id, coalesce(y.run_at, y.accepted_at)::timestamptz FROM runyard.runs y
    WHERE y.lane_seq IS NULL AND y.accept_no > 0 AND coalesce(y.run_at, y.accepted_at) <= (SELECT clock_timestamp())
      AND y.tenant || E'\x1f' || y.thread_id <> ALL (locked)
    ORDER BY coalesce(y.run_at, y.accepted_at) LIMIT most
$$;
