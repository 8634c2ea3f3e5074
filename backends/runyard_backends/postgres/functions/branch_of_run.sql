-- The branch of a run at its first claim, and the branch of a stored message. visible_messages.sql has the rules for the
-- messages that a branch shows.

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

-- Return the branch for a run at its first claim, or for a stored message. Without parent_id, return the head. With parent_id, return the
-- branch that ends at this message, or else a new branch after the message. For root_id(), the branch begins another tree. alone: true for
-- a run that always gets a new branch.
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
        branch := runyard.open_branch(t, in_lane, nullif(parent_id, runyard.root_id()), c.view);
    END IF;
    IF in_lane = '' AND t.head_branch <> branch.branch_id THEN
        t.head_branch := branch.branch_id;
        UPDATE runyard.threads SET head_branch = branch.branch_id WHERE thread_key = t.thread_key;
    END IF;
END $$;

-- Choose the head of the thread: the branch that ends at a message. If no branch of the main lane ends at the message, open a
-- branch. For root_id(), the branch begins another tree. Raises thread_not_found, message_not_found.
CREATE OR REPLACE FUNCTION runyard.set_head(for_tenant text, thread_id text, message_id uuid) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    PERFORM runyard.branch_for(runyard.known_thread(for_tenant, thread_id), '', message_id, false);
END $$;

-- Return the branch whose last visible message is message_id, or NULL. root_id() finds a branch without visible messages. If several
-- branches match, return the head, or else the oldest.
CREATE OR REPLACE FUNCTION runyard.branch_ending_at(thread_key bigint, message_id uuid) RETURNS runyard.branches
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (
    SELECT b FROM runyard.branches b WHERE b.thread_key = branch_ending_at.thread_key AND b.leaf_id IS NOT DISTINCT FROM nullif(branch_ending_at.message_id, runyard.root_id())
    ORDER BY (SELECT t.head_branch = b.branch_id FROM runyard.threads t WHERE t.thread_key = branch_ending_at.thread_key) DESC, b.branch_id LIMIT 1
    );
END $$;
