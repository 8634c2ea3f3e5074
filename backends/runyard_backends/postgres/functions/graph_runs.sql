-- Functions for graphs in runs (F13). They begin the state of a graph in a run, and store the state at a message as a mark.

-- Return the mark of the first message in `candidates` that has a mark. The mark must belong to the thread, or to a thread whose messages a
-- branch of this thread shows. Raises checkpoint_missing.
CREATE OR REPLACE FUNCTION runyard.graph_find_mark(t runyard.threads, candidates uuid[]) RETURNS runyard.graph_marks
LANGUAGE plpgsql STABLE AS $$
DECLARE
    m runyard.graph_marks;
BEGIN
    SELECT x.* INTO m
    FROM unnest(candidates) WITH ORDINALITY c(message_id, place)
    CROSS JOIN LATERAL (
        SELECT t.thread_key AS of_thread
        UNION
        SELECT a.thread_key FROM runyard.branches b JOIN runyard.levels v USING (branch_id) JOIN runyard.branches a ON a.branch_id = v.ancestor_id
        WHERE b.thread_key = t.thread_key) k
    JOIN runyard.graph_marks x ON x.thread_key = k.of_thread AND x.message_id = c.message_id
    JOIN runyard.graph_lines l ON l.line_id = x.line_id
    ORDER BY c.place LIMIT 1;
    IF NOT FOUND THEN
        PERFORM runyard.refuse('checkpoint_missing', format('thread %s has no checkpoint of a graph at message %s; fork it at a message with a checkpoint, '
            'or prompt the agent that wrote the message', t.thread_id, candidates[1]),
            jsonb_build_object('thread_id', t.thread_id, 'message_id', candidates[1]));
    END IF;
    RETURN m;
END $$;

-- Return the state from which a probe of the thread begins. Each namespace with a checkpoint has one row. Without any checkpoint, the result
-- is one row with base_id only. candidates: the messages that may have a mark, the newest first. base_id: the last message that the state
-- contains. Raises thread_not_found and checkpoint_missing.
CREATE OR REPLACE FUNCTION runyard.graph_state(for_tenant text, thread_id text, candidates uuid[], namespaces text[])
RETURNS TABLE (message_id uuid, base_id uuid, namespace text, checkpoint_id text, parent_id text, kind text, content bytea, details jsonb,
               "values" runyard.graph_value[], writes runyard.graph_write[])
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    m runyard.graph_marks := runyard.graph_find_mark(runyard.known_snapshot(for_tenant, thread_id), candidates);
BEGIN
    RETURN QUERY SELECT m.message_id, m.base_id, c.* FROM unnest(namespaces) n(ns)
    LEFT JOIN LATERAL runyard.graph_newest(m.line_id, m.position, n.ns, NULL) c ON true;
END $$;

-- Begin or continue the graph of an attempt's run. candidates: the messages before the run that may have a mark, the newest first. The list
-- is empty if the graph has no earlier state. input_id: the run's input, which gets a mark, or NULL. graph_id: the name of the run's line.
-- began: true if the line has a state of this run. base_id: the last message in the state at the run's beginning. Usually the
-- run continues the line of its predecessor. If it begins at an earlier position, or if another live run continues the line,
-- the run gets a copy of the line. Raises checkpoint_missing, stale_fence and cancel_requested.
CREATE OR REPLACE FUNCTION runyard.graph_begin(of_thread bigint, of_run text, with_fence bigint, candidates uuid[], input_id uuid)
RETURNS TABLE (graph_id text, began boolean, message_id uuid, base_id uuid)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    got record := runyard.lock_run(of_thread, of_run);
    t runyard.threads := got.t;
    m runyard.graph_marks;
    l runyard.graph_lines;
BEGIN
    PERFORM runyard.refuse_write(got.r, with_fence);
    SELECT x.* INTO l FROM runyard.graph_lines x WHERE x.owner_key = of_thread AND x.owner_key > 0 AND x.holder = of_run AND x.graph_id IS NOT NULL
    FOR UPDATE;
    IF FOUND THEN
        RETURN QUERY SELECT l.graph_id, l.next_position > l.holder_start + 1, NULL::uuid, l.holder_base;
        RETURN;
    END IF;
    IF candidates <> '{}' THEN
        m := runyard.graph_find_mark(t, candidates);
        SELECT x.* INTO l FROM runyard.graph_lines x WHERE x.line_id = m.line_id FOR UPDATE;
        IF l.owner_key <> of_thread OR l.graph_id IS NULL OR l.next_position <> m.position + 1 OR EXISTS (
            SELECT 1 FROM runyard.runs x WHERE x.thread_key = of_thread AND x.run_id = l.holder AND x.finished_at IS NULL)
        THEN
            l := runyard.graph_copy_line(t.tenant, of_thread, of_run || ':' || with_fence, l.line_id, m.position);
        END IF;
    ELSE
        INSERT INTO runyard.graph_lines AS x (tenant, owner_key, graph_id) VALUES (t.tenant, of_thread, of_run || ':' || with_fence)
        RETURNING x.* INTO l;
    END IF;
    UPDATE runyard.graph_lines x SET holder = of_run, holder_start = l.next_position - 1, holder_base = m.base_id,
           shown_to = greatest(x.shown_to, l.next_position - 1)
    WHERE x.line_id = l.line_id;
    IF input_id IS NOT NULL THEN
        INSERT INTO runyard.graph_marks (thread_key, message_id, line_id, position, base_id)
        VALUES (of_thread, input_id, l.line_id, l.next_position - 1, m.base_id)
        ON CONFLICT ON CONSTRAINT graph_marks_pkey DO UPDATE SET line_id = excluded.line_id, position = excluded.position, base_id = excluded.base_id;
    END IF;
    RETURN QUERY SELECT l.graph_id, false, m.message_id, m.base_id;
END $$;

-- Return the messages before the message `base` that the run of `base` did not see when it began. They were stored later, or their runs
-- were redriven and completed later. of_thread: the key of the thread that shows `base`, or NULL to find the thread by its id. Raises
-- thread_not_found.
CREATE OR REPLACE FUNCTION runyard.graph_unseen(for_tenant text, thread_id text, of_thread bigint, base uuid) RETURNS TABLE (message_id uuid)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    key bigint := coalesce(of_thread, (runyard.known_snapshot(for_tenant, thread_id)).thread_key);
    r record;
BEGIN
    SELECT m.seq, x.branch_id, x.accept_no, x.snapshot_tip, x.snapshot_cutoff INTO r
    FROM runyard.messages m JOIN runyard.branches b USING (branch_id) JOIN runyard.runs x ON x.thread_key = b.thread_key AND x.run_id = m.run_id
    WHERE m.message_id = base AND (b.thread_key = key OR EXISTS (
        SELECT 1 FROM runyard.branches o JOIN runyard.levels v USING (branch_id) WHERE o.thread_key = key AND v.ancestor_id = m.branch_id))
    LIMIT 1;
    -- Without OFFSET 0, a plan may read the runs of all threads.
    RETURN QUERY
        SELECT m.message_id FROM runyard.completions c
        CROSS JOIN LATERAL (SELECT y.run_id, y.first_seq, y.last_seq FROM runyard.runs y WHERE y.accept_no = c.accept_no OFFSET 0) y
        CROSS JOIN LATERAL (SELECT x.message_id FROM runyard.messages x
            WHERE x.branch_id = c.branch_id AND x.seq BETWEEN y.first_seq AND y.last_seq AND x.run_id = y.run_id OFFSET 0) m
        WHERE c.branch_id = r.branch_id AND c.completion_seq > r.snapshot_cutoff AND c.accept_no <> r.accept_no AND y.first_seq < r.seq;
    RETURN QUERY
        SELECT m.message_id FROM runyard.messages m
        WHERE m.branch_id = r.branch_id AND m.seq > r.snapshot_tip AND m.seq < r.seq AND m.run_id IS NULL;
END $$;

-- Store the present state of a run's line as the mark of a message. The state contains the message. Raises stale_fence, cancel_requested
-- and checkpoint_missing.
CREATE OR REPLACE FUNCTION runyard.graph_mark(of_thread bigint, of_run text, with_fence bigint, name text, message_id uuid) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    got record := runyard.lock_run(of_thread, of_run);
    t runyard.threads := got.t;
    l runyard.graph_lines := runyard.graph_line_to_write(t.tenant, of_thread, name, of_run, with_fence);
BEGIN
    INSERT INTO runyard.graph_marks (thread_key, message_id, line_id, position, base_id)
    VALUES (of_thread, graph_mark.message_id, l.line_id, l.next_position - 1, graph_mark.message_id)
    ON CONFLICT ON CONSTRAINT graph_marks_pkey DO UPDATE SET line_id = excluded.line_id, position = excluded.position, base_id = excluded.base_id;
    UPDATE runyard.graph_lines x SET shown_to = greatest(x.shown_to, l.next_position - 1) WHERE x.line_id = l.line_id;
END $$;
