-- The visible messages of a branch, a run or a cut. A view is an array of levels. A level shows a message of its branch under two
-- conditions. First, the number of the message is at most the high water. Second, the message has no run, or belongs to the level's open
-- run, or the completion number of its run is at most the cutoff. Message numbers grow along every path. The messages of a view
-- are therefore ordered by seq. cuts.sql makes the levels of a fork.

-- Return all messages of a view, level by level. Every plan of the join reads only runs of one thread. A subquery per message would cost
-- three times as much.
CREATE OR REPLACE FUNCTION runyard.visible(levels runyard.level[]) RETURNS SETOF runyard.messages
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    l runyard.level;
    owner bigint;
BEGIN
    FOREACH l IN ARRAY levels LOOP
        SELECT b.thread_key INTO owner FROM runyard.branches b WHERE b.branch_id = l.branch_id;
        RETURN QUERY
            SELECT m.*
            FROM runyard.messages m
            LEFT JOIN runyard.runs r ON r.thread_key = owner AND r.run_id = m.run_id
            WHERE m.branch_id = l.branch_id AND m.seq <= l.high_water_seq
              AND (m.run_id IS NULL OR m.run_id = l.open_run_id OR r.completion_seq <= l.cutoff);
    END LOOP;
END $$;

-- Return the number of messages that a view shows.
CREATE OR REPLACE FUNCTION runyard.count_visible(levels runyard.level[]) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
DECLARE
    l runyard.level;
    owner bigint;
    total bigint := 0;
BEGIN
    FOREACH l IN ARRAY levels LOOP
        SELECT b.thread_key INTO owner FROM runyard.branches b WHERE b.branch_id = l.branch_id;
        total := total + (SELECT count(*) FROM runyard.messages m LEFT JOIN runyard.runs r ON r.thread_key = owner AND r.run_id = m.run_id
                          WHERE m.branch_id = l.branch_id AND m.seq <= l.high_water_seq
                            AND (m.run_id IS NULL OR m.run_id = l.open_run_id OR r.completion_seq <= l.cutoff));
    END LOOP;
    RETURN total;
END $$;

-- Return at most `most` visible messages of a level whose numbers are between `after` and `before`, each with the present status of its
-- run. newest_first: true to begin with the highest number. The function reads only these messages, the invisible messages
-- between them, and the runs of both. Without OFFSET 0, a plan may read all runs of the thread.
CREATE OR REPLACE FUNCTION runyard.visible_page(l runyard.level, after bigint, before bigint, most bigint, newest_first boolean)
RETURNS TABLE (message runyard.messages, run_status text)
LANGUAGE plpgsql STABLE SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    owner bigint := (SELECT b.thread_key FROM runyard.branches b WHERE b.branch_id = l.branch_id);
BEGIN
    IF newest_first THEN
        RETURN QUERY
            SELECT m, r.status
            FROM runyard.messages m
            LEFT JOIN LATERAL (SELECT x.status, x.completion_seq FROM runyard.runs x
                               WHERE x.thread_key = owner AND x.run_id = m.run_id OFFSET 0) r ON true
            WHERE m.branch_id = l.branch_id AND m.seq <= l.high_water_seq AND m.seq > after AND m.seq < before
              AND (m.run_id IS NULL OR m.run_id = l.open_run_id OR r.completion_seq <= l.cutoff)
            ORDER BY m.seq DESC LIMIT most;
    ELSE
        RETURN QUERY
            SELECT m, r.status
            FROM runyard.messages m
            LEFT JOIN LATERAL (SELECT x.status, x.completion_seq FROM runyard.runs x
                               WHERE x.thread_key = owner AND x.run_id = m.run_id OFFSET 0) r ON true
            WHERE m.branch_id = l.branch_id AND m.seq <= l.high_water_seq AND m.seq > after AND m.seq < before
              AND (m.run_id IS NULL OR m.run_id = l.open_run_id OR r.completion_seq <= l.cutoff)
            ORDER BY m.seq LIMIT most;
    END IF;
END $$;

-- Return the first branch of a thread.
CREATE OR REPLACE FUNCTION runyard.first_branch(thread_key bigint) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
BEGIN
    -- Without OFFSET 0, a plan may read the primary key from its start up to the branch.
    RETURN (SELECT min(b.branch_id) FROM (SELECT x.branch_id FROM runyard.branches x WHERE x.thread_key = first_branch.thread_key OFFSET 0) b);
END $$;

-- Return the levels that a branch inherits.
CREATE OR REPLACE FUNCTION runyard.inherited(branch_id bigint) RETURNS runyard.level[]
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (
    SELECT coalesce(array_agg((l.ancestor_id, l.high_water_seq, l.cutoff, l.open_run_id)::runyard.level), '{}')
    FROM runyard.levels l WHERE l.branch_id = inherited.branch_id
    );
END $$;

-- Return the view of all visible messages of a branch.
CREATE OR REPLACE FUNCTION runyard.branch_view(branch_id bigint) RETURNS runyard.level[]
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN runyard.inherited(branch_id) || (branch_id, 9223372036854775807, 9223372036854775807, NULL)::runyard.level;
END $$;

-- Return the view of the messages that a run saw at its claim.
CREATE OR REPLACE FUNCTION runyard.run_view(r runyard.runs) RETURNS runyard.level[]
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN runyard.inherited(r.branch_id) || (r.branch_id, r.snapshot_tip, r.snapshot_cutoff, NULL)::runyard.level;
END $$;

-- Return the last message of a view, or a NULL row.
CREATE OR REPLACE FUNCTION runyard.last_visible(levels runyard.level[], OUT message_id uuid, OUT seq bigint)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    l runyard.level;
BEGIN
    FOR l IN SELECT x.branch_id, x.high_water_seq, x.cutoff, x.open_run_id FROM unnest(levels) x ORDER BY x.high_water_seq DESC LOOP
        SELECT (p.message).message_id, (p.message).seq INTO message_id, seq FROM runyard.visible_page(l, 0, 9223372036854775807, 1, true) p;
        IF FOUND THEN RETURN; END IF;
    END LOOP;
END $$;

-- Return a message of an ancestor that a thread shows, with the level that shows the message and with its run. Return no row if the thread
-- does not show it. The function reads only the levels of the thread's first branch, because this branch inherits all messages that any
-- branch of the thread inherits.
CREATE OR REPLACE FUNCTION runyard.seen_through(thread_key bigint, message_id uuid)
RETURNS TABLE (level runyard.level, message runyard.messages, run runyard.runs)
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT (l.ancestor_id, l.high_water_seq, l.cutoff, l.open_run_id)::runyard.level, m.message, r
    FROM runyard.levels l
    JOIN runyard.branches b ON b.branch_id = l.ancestor_id
    CROSS JOIN LATERAL (SELECT x AS message, x.seq, x.run_id FROM runyard.messages x
                        WHERE x.message_id = seen_through.message_id AND x.branch_id = l.ancestor_id LIMIT 1) m
    LEFT JOIN runyard.runs r ON r.thread_key = b.thread_key AND r.run_id = m.run_id
    WHERE l.branch_id = (SELECT runyard.first_branch(seen_through.thread_key)) AND m.seq <= l.high_water_seq
      AND (m.run_id IS NULL OR m.run_id = l.open_run_id OR r.completion_seq <= l.cutoff)
    LIMIT 1;
END $$;

-- Return an inherited run and the level that shows it, or no row. open: true for the open run of a level, false for a completed run.
CREATE OR REPLACE FUNCTION runyard.inherited_run(thread_key bigint, run_id text)
RETURNS TABLE (run runyard.runs, level runyard.level, open boolean)
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT r, (l.ancestor_id, l.high_water_seq, l.cutoff, l.open_run_id)::runyard.level,
           NOT (r.completion_seq IS NOT NULL AND r.completion_seq <= l.cutoff AND coalesce(r.first_seq, 0) <= l.high_water_seq)
    FROM runyard.branches child
    JOIN runyard.levels l ON l.branch_id = child.branch_id
    JOIN runyard.branches b ON b.branch_id = l.ancestor_id AND b.thread_key <> inherited_run.thread_key
    JOIN runyard.runs r ON r.thread_key = b.thread_key AND r.run_id = inherited_run.run_id AND r.branch_id = b.branch_id
    WHERE child.thread_key = inherited_run.thread_key
      AND (r.run_id = l.open_run_id
           OR (r.completion_seq <= l.cutoff AND coalesce(r.first_seq, 0) <= l.high_water_seq))
    ORDER BY 3, l.high_water_seq DESC, l.cutoff DESC LIMIT 1;
END $$;

-- Return an inherited run whose messages the thread shows completely, or no row. Readers of the thread do not find other
-- inherited runs. These are runs that were not completed at the cut, or that have messages after the cut.
CREATE OR REPLACE FUNCTION runyard.whole_run(thread_key bigint, run_id text) RETURNS SETOF runyard.runs
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN QUERY
    SELECT (i.run).* FROM runyard.inherited_run(thread_key, run_id) i
    WHERE NOT i.open AND coalesce((i.run).last_seq, 0) <= (i.level).high_water_seq;
END $$;

-- Return the id of the last completed run on the head's path. The end of this run is the default cut.
CREATE OR REPLACE FUNCTION runyard.last_completed(t runyard.threads) RETURNS text
LANGUAGE plpgsql STABLE SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    RETURN (
    SELECT r.run_id
    FROM unnest(runyard.branch_view(t.head_branch)) l
    CROSS JOIN LATERAL (
        SELECT r.run_id, r.completion_seq FROM runyard.completions c JOIN runyard.runs r USING (accept_no)
        WHERE c.branch_id = l.branch_id AND c.completion_seq <= l.cutoff AND coalesce(r.first_seq, 0) <= l.high_water_seq
        ORDER BY c.completion_seq DESC LIMIT 1
    ) r
    ORDER BY r.completion_seq DESC LIMIT 1
    );
END $$;

-- Return the extra of a cut: the latest extra that was saved with a completed run before the cut, or else the extra with which the thread
-- began.
CREATE OR REPLACE FUNCTION runyard.extra_at(view runyard.level[]) RETURNS jsonb
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    l runyard.level := view[array_upper(view, 1)];
BEGIN
    -- Joins instead of the subqueries could read all threads.
    RETURN (
    SELECT coalesce(
        (SELECT (SELECT r.extra FROM runyard.runs r WHERE r.accept_no = c.accept_no) FROM runyard.completions c
         WHERE c.thread_key = b.thread_key AND c.completion_seq <= l.cutoff AND c.with_extra
         ORDER BY c.completion_seq DESC LIMIT 1),
        (SELECT t.base_extra FROM runyard.threads t WHERE t.thread_key = b.thread_key))
    FROM runyard.branches b WHERE b.branch_id = l.branch_id
    );
END $$;
