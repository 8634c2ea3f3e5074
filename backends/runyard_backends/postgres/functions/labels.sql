-- Labels: names of branches. A label is unique in its thread and follows its branch as the branch grows.

-- Give a label to a branch. If another branch of the thread has the label, the label moves. message_id: a message of the branch, or NULL
-- for the head. An inherited message names the thread's first branch. most: maximum number of labels of a thread (MAX_LABELS,
-- runyard/domain/validation.py). Raises message_not_found. Raises run_not_completed if no path of the branch shows the message. Raises
-- invalid_input if the thread has too many labels.
CREATE OR REPLACE FUNCTION runyard.set_label(for_tenant text, thread_id text, label text, message_id uuid, most integer) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    t runyard.threads := runyard.known_thread(for_tenant, thread_id);
    of_branch bigint := CASE WHEN message_id IS NULL THEN t.head_branch ELSE runyard.branch_of(t, message_id) END;
BEGIN
    IF (SELECT count(*) FROM runyard.labels l WHERE l.thread_key = t.thread_key AND l.label <> set_label.label) >= most THEN
        PERFORM runyard.refuse('invalid_input', format('thread %s has %s labels, which is the maximum; remove one', thread_id, most),
                               jsonb_build_object('thread_id', thread_id, 'field', 'label'));
    END IF;
    INSERT INTO runyard.labels AS l (thread_key, label, branch_id) VALUES (t.thread_key, set_label.label, of_branch)
    ON CONFLICT ON CONSTRAINT labels_pkey DO UPDATE SET branch_id = excluded.branch_id;
END $$;

-- Remove a label. If the thread does not have the label, change nothing.
CREATE OR REPLACE FUNCTION runyard.remove_label(for_tenant text, thread_id text, label text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    t runyard.threads := runyard.known_thread(for_tenant, thread_id);
BEGIN
    DELETE FROM runyard.labels l WHERE l.thread_key = t.thread_key AND l.label = remove_label.label;
END $$;

-- Return the branch that stores a message and shows it. A branch also shows the messages of its live run. For an inherited message, return
-- the thread's first branch.
CREATE OR REPLACE FUNCTION runyard.branch_of(t runyard.threads, message_id uuid) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
DECLARE
    c record;
    l runyard.level;
BEGIN
    IF message_id = runyard.root_id() THEN PERFORM runyard.refuse_message(t, message_id); END IF;
    c := runyard.cut_at_message(t, message_id);
    IF NOT EXISTS (SELECT 1 FROM runyard.branches b WHERE b.branch_id = (c.message).branch_id AND b.thread_key = t.thread_key) THEN
        RETURN runyard.first_branch(t.thread_key);
    END IF;
    l := (SELECT v FROM unnest(runyard.live_view(t, (c.message).branch_id)) v WHERE v.branch_id = (c.message).branch_id);
    IF (c.run).accept_no IS NOT NULL AND (c.run).completion_seq IS NULL AND (c.run).run_id IS DISTINCT FROM l.open_run_id THEN
        PERFORM runyard.refuse('run_not_completed',
            format('message %s belongs to the %s run %s, which is on no branch; label another message of the branch',
                   message_id, (c.run).status, (c.run).run_id),
            jsonb_build_object('thread_id', t.thread_id, 'run_id', (c.run).run_id));
    END IF;
    RETURN (c.message).branch_id;
END $$;

-- Return the last message of every labelled branch, including the messages of its live run. level: the last level of the path to the
-- message. stored_on, stored_seq: the branch and the number of the message.
CREATE OR REPLACE FUNCTION runyard.labelled_ends(t runyard.threads)
RETURNS TABLE (label text, message_id uuid, level runyard.level, stored_on bigint, stored_seq bigint)
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
DECLARE
    x record;
    view runyard.level[];
    last record;
    busy bigint[] := ARRAY(SELECT r.branch_id FROM runyard.live_runs v JOIN runyard.runs r USING (accept_no)
                           WHERE v.thread_key = t.thread_key AND r.branch_id IS NOT NULL);
BEGIN
    RETURN QUERY
    SELECT l.label, b.leaf_id, (b.branch_id, 9223372036854775807, 9223372036854775807, NULL)::runyard.level, m.branch_id, b.leaf_seq
    FROM runyard.labels l JOIN runyard.branches b ON b.branch_id = l.branch_id
    CROSS JOIN LATERAL (
        SELECT b.branch_id AS place UNION ALL SELECT v.ancestor_id FROM runyard.levels v WHERE v.branch_id = b.branch_id AND v.high_water_seq >= b.leaf_seq) p
    JOIN runyard.messages m ON m.branch_id = p.place AND m.seq = b.leaf_seq AND m.message_id = b.leaf_id
    WHERE l.thread_key = t.thread_key AND b.branch_id <> ALL (busy);
    FOR x IN SELECT array_agg(l.label) AS names, l.branch_id FROM runyard.labels l
             WHERE l.thread_key = t.thread_key AND l.branch_id = ANY (busy) GROUP BY l.branch_id LOOP
        view := runyard.live_view(t, x.branch_id);
        last := runyard.last_visible(view);
        RETURN QUERY
        SELECT name, m.message_id, view[cardinality(view)], m.branch_id, m.seq
        FROM unnest(view) v JOIN runyard.messages m ON m.branch_id = v.branch_id AND m.seq = last.seq AND m.message_id = last.message_id
        CROSS JOIN unnest(x.names) name;
    END LOOP;
END $$;
