-- Branches of the messages of a thread: the branch of a new run or message, and the leaves of the tree.

-- Make a branch that begins after the message `base` and inherits the levels of `view`.
CREATE OR REPLACE FUNCTION runyard.open_branch(
    t runyard.threads, in_lane text, base uuid, view runyard.level[], OUT branch runyard.branches
) LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO runyard.branches AS b (thread_key, lane, base_id, leaf_id, leaf_seq)
    SELECT t.thread_key, in_lane, base, l.message_id, coalesce(l.seq, 0)
    FROM (SELECT 1) one LEFT JOIN runyard.last_visible(view) l ON true
    RETURNING b.* INTO branch;
    INSERT INTO runyard.levels (branch_id, ancestor_id, high_water_seq, cutoff, open_run_id)
    SELECT branch.branch_id, l.branch_id, l.high_water_seq, l.cutoff, l.open_run_id FROM unnest(view) l;
END $$;

-- Return the branch for a run at its first claim, or for a stored message. With parent_id, it is the branch that ends at that
-- message, or else a new branch that begins there. Without parent_id, it is the head. alone: true for a run that gets a new
-- branch in any case.
CREATE OR REPLACE FUNCTION runyard.branch_for(
    INOUT t runyard.threads, in_lane text, parent_id uuid, alone boolean, OUT branch runyard.branches
) LANGUAGE plpgsql AS $$
DECLARE
    c record;
    head runyard.branches;
BEGIN
    IF branch_for.parent_id IS NULL AND NOT alone THEN
        SELECT b.* INTO branch FROM runyard.branches b WHERE b.branch_id = t.head_branch;
        RETURN;
    END IF;
    IF branch_for.parent_id IS NULL THEN
        SELECT b.* INTO head FROM runyard.branches b WHERE b.branch_id = t.head_branch;
        branch := runyard.open_branch(t, in_lane, head.leaf_id, runyard.inherited(head.branch_id)
            || (head.branch_id, t.next_seq - 1, t.next_completion_seq - 1, NULL)::runyard.level);
        RETURN;
    END IF;
    IF NOT alone THEN
        branch := runyard.branch_ending_at(t.thread_key, parent_id);
    END IF;
    IF branch.branch_id IS NULL OR branch.lane <> in_lane THEN
        SELECT m.* INTO c FROM runyard.cut_at_message(t, branch_for.parent_id) m;
        branch := runyard.open_branch(t, in_lane, parent_id, c.view);
    END IF;
    IF in_lane = '' AND t.head_branch <> branch.branch_id THEN
        t.head_branch := branch.branch_id;
        UPDATE runyard.threads SET head_branch = branch.branch_id WHERE thread_key = t.thread_key;
    END IF;
END $$;

-- Return the branch whose last visible message is message_id, or NULL. Of several such branches, return the head, or else the
-- oldest.
CREATE OR REPLACE FUNCTION runyard.branch_ending_at(thread_key bigint, message_id uuid) RETURNS runyard.branches
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (
    SELECT b FROM runyard.branches b WHERE b.thread_key = branch_ending_at.thread_key AND b.leaf_id = branch_ending_at.message_id
    ORDER BY (SELECT t.head_branch = b.branch_id FROM runyard.threads t WHERE t.thread_key = branch_ending_at.thread_key) DESC, b.branch_id LIMIT 1
    );
END $$;

-- Return the leaves of the thread's tree, the oldest first: the last visible message of every branch, and the last message of
-- every run that is not completed. A branch without visible messages of its own has no leaf, except the thread's first branch.
-- depth is computed for the returned leaves only.
CREATE OR REPLACE FUNCTION runyard.leaves(t runyard.threads, after_time timestamptz, after_id uuid, most integer)
RETURNS TABLE (message_id uuid, depth bigint, created_at timestamptz, run_id text, run_status text)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    -- Without the subquery, Postgres would read the primary key from its start up to the first branch of the thread.
    root bigint := (SELECT min(b.branch_id) FROM (SELECT x.branch_id FROM runyard.branches x WHERE x.thread_key = t.thread_key OFFSET 0) b);
    continued uuid[] := ARRAY(
        SELECT b.base_id FROM runyard.branches b
        WHERE b.thread_key = t.thread_key AND b.branch_id <> root AND b.base_id IS NOT NULL
          AND EXISTS (SELECT 1 FROM runyard.messages m WHERE m.branch_id = b.branch_id AND m.message_id = b.leaf_id));
BEGIN
    RETURN QUERY
    SELECT x.message_id, runyard.count_visible(CASE WHEN x.branch_id IS NULL THEN (runyard.cut_at_message(t, x.message_id)).view
                                                    ELSE runyard.branch_view(x.branch_id) END),
           x.created_at::timestamptz, x.run_id, x.run_status
    FROM (SELECT * FROM (
        SELECT m.message_id, b.branch_id, m.created_at, m.run_id, r.status AS run_status
        FROM runyard.branches b
        JOIN runyard.messages m ON m.message_id = b.leaf_id AND (m.branch_id = b.branch_id OR (b.branch_id = root AND m.branch_id IN (
            SELECT l.ancestor_id FROM runyard.levels l WHERE l.branch_id = root AND b.leaf_seq <= l.high_water_seq)))
        JOIN runyard.branches o ON o.branch_id = m.branch_id
        LEFT JOIN runyard.runs r ON r.thread_key = o.thread_key AND r.run_id = m.run_id
        WHERE b.thread_key = t.thread_key AND b.leaf_id IS NOT NULL AND b.leaf_id <> ALL (continued)
        UNION ALL
        SELECT m.message_id, NULL, m.created_at, r.run_id, r.status
        FROM (SELECT x.* FROM runyard.live_runs l JOIN runyard.runs x USING (accept_no) WHERE l.thread_key = t.thread_key AND x.last_seq IS NOT NULL
              UNION ALL
              SELECT x.* FROM runyard.unsuccessful_runs u JOIN runyard.runs x USING (accept_no) WHERE u.thread_key = t.thread_key
                AND x.completion_seq IS NULL AND x.last_seq IS NOT NULL) r
        JOIN runyard.messages m ON m.branch_id = r.branch_id AND m.seq = r.last_seq
        WHERE m.message_id <> ALL (continued)) y
        WHERE after_id IS NULL OR (y.created_at, y.message_id) > (after_time, after_id)
        ORDER BY y.created_at, y.message_id LIMIT most) x
    ORDER BY x.created_at, x.message_id;
END $$;
