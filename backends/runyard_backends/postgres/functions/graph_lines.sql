-- Functions that find, copy and delete lines of checkpoints of graphs. graph_writes.sql has the functions that write the rows of a line.

-- Lock and return a line, or return a NULL row.
CREATE OR REPLACE FUNCTION runyard.graph_line(for_tenant text, of_owner bigint, name text) RETURNS runyard.graph_lines
LANGUAGE plpgsql AS $$
DECLARE
    l runyard.graph_lines;
BEGIN
    SELECT x.* INTO l FROM runyard.graph_lines x
    WHERE x.tenant = for_tenant AND x.owner_key = of_owner AND x.graph_id = name FOR UPDATE;
    RETURN l;
END $$;

-- Lock and return a line for a write. of_run, with_fence: the attempt that writes, or NULL for a saver without runs. If the line of a saver
-- does not exist, make it. Raises stale_fence and cancel_requested. Raises checkpoint_missing if the line of the attempt was erased.
CREATE OR REPLACE FUNCTION runyard.graph_line_to_write(for_tenant text, of_owner bigint, name text, of_run text, with_fence bigint)
RETURNS runyard.graph_lines
LANGUAGE plpgsql AS $$
DECLARE
    got record;
    l runyard.graph_lines;
BEGIN
    IF of_run IS NOT NULL THEN
        got := runyard.lock_run(of_owner, of_run);
        PERFORM runyard.refuse_write(got.r, with_fence);
    END IF;
    LOOP
        l := runyard.graph_line(for_tenant, of_owner, name);
        IF l.line_id IS NOT NULL THEN RETURN l; END IF;
        IF of_run IS NOT NULL THEN
            PERFORM runyard.refuse('checkpoint_missing', format('the state of run %s was erased with a thread that it continues; start another thread',
                of_run), jsonb_build_object('run_id', of_run));
        END IF;
        INSERT INTO runyard.graph_lines (tenant, owner_key, graph_id) VALUES (for_tenant, of_owner, name)
        ON CONFLICT (tenant, owner_key, graph_id) WHERE graph_id IS NOT NULL DO NOTHING;
    END LOOP;
END $$;

-- Return the parts of this line and of its ancestors that the line shows, up to the position `upto` of the line.
CREATE OR REPLACE FUNCTION runyard.graph_view(of_line bigint, upto bigint DEFAULT 9223372036854775807)
RETURNS TABLE (line_id bigint, cut bigint)
LANGUAGE sql STABLE AS $$
    SELECT of_line, upto
    UNION ALL
    SELECT v.ancestor_id, least(v.position, upto) FROM runyard.graph_levels v WHERE v.line_id = of_line
$$;

-- Make a line that shows the line `source` up to the position `upto`. The time does not depend on the length of the source. The caller must
-- have locked the source.
CREATE OR REPLACE FUNCTION runyard.graph_copy_line(for_tenant text, of_owner bigint, name text, source bigint, upto bigint)
RETURNS runyard.graph_lines
LANGUAGE plpgsql AS $$
DECLARE
    l runyard.graph_lines;
BEGIN
    INSERT INTO runyard.graph_lines AS x (tenant, owner_key, graph_id, next_position) VALUES (for_tenant, of_owner, name, upto + 1)
    RETURNING x.* INTO l;
    INSERT INTO runyard.graph_levels (line_id, ancestor_id, position)
    SELECT l.line_id, v.line_id, v.cut FROM runyard.graph_view(source, upto) v WHERE v.cut > 0;
    UPDATE runyard.graph_lines x SET shown_to = upto WHERE x.line_id = source AND x.shown_to < upto;
    RETURN l;
END $$;

-- Copy all checkpoints and writes of a saver's thread to a thread without checkpoints. Do nothing if the source has no checkpoints. Raises
-- thread_already_exists.
CREATE OR REPLACE FUNCTION runyard.graph_copy(for_tenant text, source text, target text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    l runyard.graph_lines := runyard.graph_line(for_tenant, 0, source);
BEGIN
    IF l.line_id IS NULL THEN RETURN; END IF;
    PERFORM runyard.graph_copy_line(for_tenant, 0, target, l.line_id, l.next_position - 1);
EXCEPTION WHEN unique_violation THEN
    PERFORM runyard.refuse('thread_already_exists', format('thread %s has checkpoints; copy to another thread, or delete these checkpoints first', target),
                           jsonb_build_object('thread_id', target));
END $$;

-- Delete a saver's thread. Keep the rows that copies show, in a line without a name. Do nothing for an unknown thread.
CREATE OR REPLACE FUNCTION runyard.graph_delete(for_tenant text, name text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    l runyard.graph_lines := runyard.graph_line(for_tenant, 0, name);
BEGIN
    IF l.line_id IS NULL THEN RETURN; END IF;
    UPDATE runyard.graph_lines x SET graph_id = NULL WHERE x.line_id = l.line_id;
    PERFORM runyard.graph_trim(l.line_id, 0);
END $$;

-- Delete the rows of a deleted line after the position `keep`, except rows that copies show. If no rows are left, delete the line, and
-- examine its deleted ancestors in the same way. Lines are locked from the newest to the oldest.
CREATE OR REPLACE FUNCTION runyard.graph_trim(of_line bigint, keep bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    l runyard.graph_lines;
    shown bigint;
    ancestor bigint;
BEGIN
    SELECT x.* INTO l FROM runyard.graph_lines x WHERE x.line_id = of_line FOR UPDATE;
    shown := greatest(keep, (SELECT max(v.position) FROM runyard.graph_levels v WHERE v.ancestor_id = of_line));
    DELETE FROM runyard.graph_checkpoints x WHERE x.line_id = of_line AND x.position > shown;
    DELETE FROM runyard.graph_writes x WHERE x.line_id = of_line AND x.position > shown;
    DELETE FROM runyard.graph_values x WHERE x.line_id = of_line AND x.position > shown;
    DELETE FROM runyard.graph_chunks c USING runyard.graph_streams s
    WHERE s.line_id = of_line AND c.stream_id = s.stream_id AND c.position > shown;
    DELETE FROM runyard.graph_marks m WHERE m.line_id = of_line AND m.position > shown;
    IF shown > 0 THEN RETURN; END IF;
    DELETE FROM runyard.graph_streams s WHERE s.line_id = of_line;
    DELETE FROM runyard.graph_marks m WHERE m.line_id = of_line;
    DELETE FROM runyard.graph_lines x WHERE x.line_id = of_line;
    FOR ancestor IN
        WITH gone AS (DELETE FROM runyard.graph_levels v WHERE v.line_id = of_line RETURNING v.ancestor_id)
        SELECT g.ancestor_id FROM gone g JOIN runyard.graph_lines x ON x.line_id = g.ancestor_id
        WHERE x.graph_id IS NULL ORDER BY g.ancestor_id DESC
    LOOP
        PERFORM runyard.graph_trim(ancestor, runyard.graph_marked_to(ancestor));
    END LOOP;
END $$;

-- Return the highest position of a line that is the mark of a stored message, or 0.
CREATE OR REPLACE FUNCTION runyard.graph_marked_to(of_line bigint) RETURNS bigint
LANGUAGE sql STABLE AS $$
    SELECT coalesce(max(m.position), 0) FROM runyard.graph_marks m
    WHERE m.line_id = of_line AND EXISTS (
        SELECT 1 FROM runyard.messages x JOIN runyard.branches b USING (branch_id)
        WHERE x.message_id = m.message_id AND b.thread_key = m.thread_key)
$$;

-- Remove the lines of a deleted thread, except the rows that forks of the thread show. erase: true to remove these rows too, and the lines
-- of the forks that continue them. A run of such a fork then raises checkpoint_missing.
CREATE OR REPLACE FUNCTION runyard.graph_remove(of_thread bigint, erase boolean) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    l runyard.graph_lines;
BEGIN
    IF erase THEN
        FOR l IN
            SELECT x.* FROM runyard.graph_lines x WHERE x.line_id IN (
                SELECT o.line_id FROM runyard.graph_lines o WHERE o.owner_key = of_thread AND o.owner_key > 0
                UNION
                SELECT v.line_id FROM runyard.graph_lines o JOIN runyard.graph_levels v ON v.ancestor_id = o.line_id
                WHERE o.owner_key = of_thread AND o.owner_key > 0)
            ORDER BY x.line_id DESC FOR UPDATE
        LOOP
            DELETE FROM runyard.graph_levels v WHERE v.ancestor_id = l.line_id;
            PERFORM runyard.graph_trim(l.line_id, 0);
        END LOOP;
        RETURN;
    END IF;
    FOR l IN
        UPDATE runyard.graph_lines x SET graph_id = NULL WHERE x.owner_key = of_thread AND x.owner_key > 0 RETURNING x.*
    LOOP
        PERFORM runyard.graph_trim(l.line_id, runyard.graph_marked_to(l.line_id));
    END LOOP;
END $$;

-- Remove the checkpoints of a run that has ended and is in no context. Keep the checkpoints that marks of stored messages or copies show.
-- The run's lines lose their names, so that no run continues them. A later run gets a copy.
CREATE OR REPLACE FUNCTION runyard.graph_remove_run(of_thread bigint, of_run text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    l runyard.graph_lines;
BEGIN
    FOR l IN
        UPDATE runyard.graph_lines x SET graph_id = NULL WHERE x.owner_key = of_thread AND x.owner_key > 0 AND x.holder = of_run RETURNING x.*
    LOOP
        PERFORM runyard.graph_trim(l.line_id, runyard.graph_marked_to(l.line_id));
    END LOOP;
END $$;
