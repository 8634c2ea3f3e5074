-- Depths of leaves. The depth of a leaf is the number of messages on its path. Several paths are counted together.

-- Return the number of messages on each path, in the order of `ends`. ends: the last level of each path. A path also has the
-- levels that the branch of this level inherits. Paths share levels. Therefore the messages of a branch are read once, from the
-- start to the highest high water, and counted between two successive high waters. A run below the high water may have
-- completed after the level's cutoff. The level then does not show the run. Such a level is counted separately.
CREATE OR REPLACE FUNCTION runyard.count_paths(ends runyard.level[]) RETURNS bigint[]
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
BEGIN
    RETURN ARRAY(
    WITH shown AS (
        SELECT e.n, e.branch_id, e.high_water_seq, e.cutoff, e.open_run_id
        FROM unnest(ends) WITH ORDINALITY e(branch_id, high_water_seq, cutoff, open_run_id, n)
        UNION ALL
        SELECT e.n, l.ancestor_id, l.high_water_seq, l.cutoff, l.open_run_id
        FROM unnest(ends) WITH ORDINALITY e(branch_id, high_water_seq, cutoff, open_run_id, n) JOIN runyard.levels l ON l.branch_id = e.branch_id
    ), parts AS MATERIALIZED (
        SELECT s.*, b.thread_key, lag(s.high_water_seq, 1, 0) OVER (PARTITION BY s.branch_id ORDER BY s.high_water_seq) AS after
        FROM (SELECT x.branch_id, x.high_water_seq, x.cutoff, x.open_run_id, array_agg(x.n) AS paths FROM shown x GROUP BY 1, 2, 3, 4) s
        JOIN runyard.branches b ON b.branch_id = s.branch_id
    ), counted AS (
        SELECT p.*, coalesce(sum(c.messages) OVER up, 0) AS messages, max(c.last) OVER up AS last
        FROM parts p CROSS JOIN LATERAL (
            SELECT sum(g.messages) FILTER (WHERE g.run_id IS NULL OR r.completion_seq IS NOT NULL) AS messages, max(r.completion_seq) AS last
            FROM (SELECT m.run_id, count(*) AS messages FROM runyard.messages m
                  WHERE m.branch_id = p.branch_id AND m.seq > p.after AND m.seq <= p.high_water_seq GROUP BY m.run_id) g
            LEFT JOIN runyard.runs r ON r.thread_key = p.thread_key AND r.run_id = g.run_id) c
        WINDOW up AS (PARTITION BY p.branch_id ORDER BY p.high_water_seq)
    )
    SELECT sum(v.messages)::bigint
    FROM counted c
    CROSS JOIN LATERAL (
        SELECT CASE WHEN c.last > c.cutoff THEN runyard.count_visible(ARRAY[(c.branch_id, c.high_water_seq, c.cutoff, c.open_run_id)::runyard.level])
                    WHEN c.open_run_id IS NULL THEN c.messages
                    ELSE c.messages + runyard.count_of_run(c.thread_key, c.open_run_id, c.branch_id, c.high_water_seq) END AS messages) v
    CROSS JOIN LATERAL unnest(c.paths) x(n)
    GROUP BY x.n ORDER BY x.n
    );
END $$;

-- Return the number of messages of a run on a branch up to a message number.
CREATE OR REPLACE FUNCTION runyard.count_of_run(thread_key bigint, run_id text, branch_id bigint, last bigint) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (
    SELECT count(*) FROM runyard.messages m
    WHERE m.branch_id = count_of_run.branch_id AND m.run_id = count_of_run.run_id AND m.seq <= last
      AND m.seq >= coalesce((SELECT r.first_seq FROM runyard.runs r WHERE r.thread_key = count_of_run.thread_key AND r.run_id = count_of_run.run_id), 0)
    );
END $$;
