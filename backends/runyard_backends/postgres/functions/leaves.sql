-- Leaves of the message tree of a thread. These functions only read. end_run.sql, plain_runs.sql and store_message.sql set a branch's leaf.
-- `most` is the `limit` of PageRequest (runyard/ports/queries.py).

-- Return a page of the leaves, the oldest first. only_labelled: true for the leaves with labels only. Depths are counted for the
-- returned leaves only. segment: the branch on which the path to the leaf ends. until_seq: the highest number of this branch
-- that the path shows. inherited: the earlier branches of the path, each with the highest number that the path shows.
CREATE OR REPLACE FUNCTION runyard.list_leaves(
    for_tenant text, thread_id text, only_labelled boolean, after_time timestamptz, after_id uuid, most integer
) RETURNS TABLE (
    message_id uuid, depth bigint, created_at timestamptz, run_id text, run_status text, head boolean, trunk boolean, labels text[],
    segment bigint, until_seq bigint, inherited bigint[]
) LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    t runyard.threads := runyard.known_snapshot(for_tenant, list_leaves.thread_id);
    ends record := runyard.branch_ends(t);
BEGIN
    RETURN QUERY
    WITH page AS MATERIALIZED (
        SELECT x.*, row_number() OVER (ORDER BY x.created_at, x.message_id) AS n FROM (
            SELECT l.* FROM runyard.tree_leaves(t) l
            WHERE (l.labels <> '{}' OR NOT only_labelled) AND (after_id IS NULL OR (l.created_at, l.message_id) > (after_time, after_id))
            ORDER BY l.created_at, l.message_id LIMIT most) x
    ), counted AS MATERIALIZED (
        SELECT runyard.count_paths(array_agg(p.level ORDER BY p.n)) AS depths FROM page p
    )
    SELECT p.message_id, (SELECT c.depths[p.n] FROM counted c), p.created_at, p.run_id, p.run_status,
           p.message_id IS NOT DISTINCT FROM ends.head, p.message_id IS NOT DISTINCT FROM ends.trunk, p.labels,
           (p.level).branch_id, nullif((p.level).high_water_seq, 9223372036854775807),
           (SELECT array_agg(ARRAY[l.ancestor_id, l.high_water_seq] ORDER BY l.ancestor_id) FROM runyard.levels l WHERE l.branch_id = (p.level).branch_id)
    FROM page p ORDER BY p.n;
END $$;

-- Return the leaves of the thread's tree: the last visible message of every branch, and the last message of every run that is not
-- completed. A branch without own visible messages has no leaf, except the thread's first branch. If another branch begins at a
-- message, the message is not a leaf, unless it is the end of a labelled branch. level: the last level of the path to the leaf.
-- The path also has the levels that this level's branch inherits.
CREATE OR REPLACE FUNCTION runyard.tree_leaves(t runyard.threads)
RETURNS TABLE (message_id uuid, created_at timestamptz, run_id text, run_status text, level runyard.level, labels text[])
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
DECLARE
    root bigint := runyard.first_branch(t.thread_key);
BEGIN
    RETURN QUERY
    WITH ends AS MATERIALIZED (SELECT e.* FROM runyard.labelled_ends(t) e), named AS MATERIALIZED (
        SELECT e.message_id, array_agg(e.label ORDER BY e.label COLLATE "C") AS labels FROM ends e GROUP BY e.message_id
    ), own AS MATERIALIZED (
        SELECT b.branch_id, b.base_id, m.message_id, m.created_at, m.run_id
        FROM runyard.branches b JOIN runyard.messages m ON m.branch_id = b.branch_id AND m.seq = b.leaf_seq AND m.message_id = b.leaf_id
        WHERE b.thread_key = t.thread_key
    ), ended AS (
        SELECT o.branch_id, t.thread_key, o.message_id, o.created_at, o.run_id FROM own o
        UNION ALL
        SELECT root, a.thread_key, m.message_id, m.created_at, m.run_id
        FROM runyard.branches b
        JOIN runyard.levels l ON l.branch_id = root AND b.leaf_seq <= l.high_water_seq
        JOIN runyard.messages m ON m.branch_id = l.ancestor_id AND m.seq = b.leaf_seq AND m.message_id = b.leaf_id
        JOIN runyard.branches a ON a.branch_id = m.branch_id
        WHERE b.branch_id = root
    ), found AS (
        SELECT false AS kept, e.message_id, e.created_at, e.run_id, r.status,
               (e.branch_id, 9223372036854775807, 9223372036854775807, NULL)::runyard.level AS level
        FROM ended e LEFT JOIN runyard.runs r ON r.thread_key = e.thread_key AND r.run_id = e.run_id
        UNION ALL
        SELECT false, m.message_id, m.created_at, r.run_id, r.status, (r.branch_id, m.seq, r.snapshot_cutoff, r.run_id)::runyard.level
        FROM (SELECT x.* FROM runyard.live_runs l JOIN runyard.runs x USING (accept_no) WHERE l.thread_key = t.thread_key AND x.last_seq IS NOT NULL
              UNION ALL
              SELECT x.* FROM runyard.unsuccessful_runs u JOIN runyard.runs x USING (accept_no) WHERE u.thread_key = t.thread_key
                AND x.completion_seq IS NULL AND x.last_seq IS NOT NULL) r
        JOIN runyard.messages m ON m.branch_id = r.branch_id AND m.seq = r.last_seq
        UNION ALL
        SELECT true, m.message_id, m.created_at, m.run_id, r.status, e.level
        FROM ends e
        JOIN runyard.messages m ON m.branch_id = e.stored_on AND m.seq = e.stored_seq
        JOIN runyard.branches o ON o.branch_id = m.branch_id
        LEFT JOIN runyard.runs r ON r.thread_key = o.thread_key AND r.run_id = m.run_id
    )
    SELECT DISTINCT ON (f.message_id) f.message_id, f.created_at::timestamptz, f.run_id, f.status, f.level,
           coalesce((SELECT n.labels FROM named n WHERE n.message_id = f.message_id), '{}')
    FROM found f WHERE f.kept OR f.message_id NOT IN (SELECT o.base_id FROM own o WHERE o.branch_id <> root AND o.base_id IS NOT NULL)
    ORDER BY f.message_id, f.kept;
END $$;

-- Return the last message of the thread's head, and the last message of its first branch. The returned messages may belong to
-- live runs.
CREATE OR REPLACE FUNCTION runyard.branch_ends(t runyard.threads, OUT head uuid, OUT trunk uuid)
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET jit = off AS $$
DECLARE
    root bigint := runyard.first_branch(t.thread_key);
BEGIN
    head := (SELECT l.message_id FROM runyard.last_visible(runyard.live_view(t, t.head_branch)) l);
    trunk := CASE WHEN root = t.head_branch THEN head
                  ELSE (SELECT l.message_id FROM runyard.last_visible(runyard.live_view(t, root)) l) END;
END $$;
