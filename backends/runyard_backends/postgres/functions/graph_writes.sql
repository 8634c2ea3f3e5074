-- Functions that write checkpoints of graphs, and the pending writes of their tasks.

-- Store a checkpoint. of_run, with_fence: the attempt that writes, or NULL. content_kind, content: the encoded checkpoint. channels,
-- versions: the versions of all channels of the checkpoint. new: the new values of channels. For each list in `new`, return the segments of
-- the list, the stream to which the line can append, and the length of this stream. Store nothing and return one row of NULLs in two cases:
-- a stream in `new` is not visible, or neither the line nor `new` has one of the versions. Raises stale_fence, cancel_requested and
-- checkpoint_missing.
CREATE OR REPLACE FUNCTION runyard.graph_put(
    for_tenant text, of_owner bigint, name text, of_run text, with_fence bigint, ns text, id text, parent text, content_kind text,
    content bytea, details jsonb, channels text[], versions text[], new runyard.new_graph_value[]
) RETURNS TABLE (channel text, segments bigint[], stream_id bigint, length bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    l runyard.graph_lines := runyard.graph_line_to_write(for_tenant, of_owner, name, of_run, with_fence);
    v runyard.new_graph_value;
    got record;
BEGIN
    IF EXISTS (
        SELECT 1 FROM unnest(new) n CROSS JOIN LATERAL generate_series(1, cardinality(n.segments), 3) i
        WHERE n.segments[i] > 0 AND NOT EXISTS (
            SELECT 1 FROM runyard.graph_streams s JOIN runyard.graph_view(l.line_id) w ON w.line_id = s.line_id
            WHERE s.stream_id = n.segments[i] AND s.length >= n.segments[i + 2])
    ) OR EXISTS (
        SELECT 1 FROM unnest(channels, versions) c(channel, version)
        WHERE NOT EXISTS (SELECT 1 FROM unnest(new) n WHERE n.channel = c.channel AND n.version = c.version) AND NOT EXISTS (
            SELECT 1 FROM runyard.graph_view(l.line_id) w JOIN runyard.graph_values g ON g.line_id = w.line_id AND g.position <= w.cut
            WHERE g.namespace = ns AND g.channel = c.channel AND g.version = c.version))
    THEN
        RETURN QUERY SELECT NULL::text, NULL::bigint[], NULL::bigint, NULL::bigint;
        RETURN;
    END IF;
    FOREACH v IN ARRAY new LOOP
        IF v.segments IS NOT NULL THEN
            got := runyard.graph_append(l, v);
            v.segments := got.segments;
            RETURN QUERY SELECT v.channel, v.segments, got.stream_id, got.length;
        END IF;
        INSERT INTO runyard.graph_values (line_id, namespace, channel, version, position, kind, data, segments)
        VALUES (l.line_id, ns, v.channel, v.version, l.next_position, v.kind, v.data, v.segments);
    END LOOP;
    DELETE FROM runyard.graph_checkpoints c
    WHERE c.line_id = l.line_id AND c.namespace = ns AND c.checkpoint_id = id AND c.position > l.shown_to;
    -- A checkpoint names its values by id: two branches of a thread can have different values of a channel under one version.
    INSERT INTO runyard.graph_checkpoints (line_id, namespace, checkpoint_id, position, parent_id, kind, content, details, value_ids)
    VALUES (l.line_id, ns, id, l.next_position, parent, content_kind, content, details, ARRAY(
        SELECT x.value_id FROM unnest(channels, versions) c(channel, version) CROSS JOIN LATERAL (
            SELECT g.value_id FROM runyard.graph_view(l.line_id) w JOIN runyard.graph_values g ON g.line_id = w.line_id AND g.position <= w.cut
            WHERE g.namespace = ns AND g.channel = c.channel AND g.version = c.version ORDER BY g.position DESC LIMIT 1) x));
    UPDATE runyard.graph_lines x SET next_position = l.next_position + 1 WHERE x.line_id = l.line_id;
END $$;

-- Append the new items of a list to a stream of the line. Return the segments of the whole list, the stream, and its new length. Join
-- neighbouring segments.
CREATE OR REPLACE FUNCTION runyard.graph_append(
    l runyard.graph_lines, v runyard.new_graph_value, OUT segments bigint[], OUT stream_id bigint, OUT length bigint
) LANGUAGE plpgsql AS $$
DECLARE
    at bigint;
    added bigint := coalesce((SELECT sum(n) FROM unnest(v.counts) n), 0);
    s bigint;
    a bigint;
    b bigint;
    last integer := 0;
BEGIN
    SELECT x.stream_id, x.length INTO stream_id, at FROM runyard.graph_streams x
    WHERE x.stream_id = v.stream_id AND x.line_id = l.line_id AND x.length = v.length;
    IF added > 0 THEN
        IF stream_id IS NULL THEN
            at := 0;
            INSERT INTO runyard.graph_streams AS x (line_id) VALUES (l.line_id) RETURNING x.stream_id INTO stream_id;
        END IF;
        INSERT INTO runyard.graph_chunks (stream_id, first, count, position, items)
        SELECT graph_append.stream_id, at + sum(c.n) OVER (ORDER BY c.place) - c.n, c.n, l.next_position, c.items
        FROM unnest(v.counts, v.chunks) WITH ORDINALITY c(n, items, place);
        UPDATE runyard.graph_streams x SET length = at + added WHERE x.stream_id = graph_append.stream_id;
    END IF;
    length := at + added;
    segments := '{}';
    FOR i IN 1..cardinality(v.segments) BY 3 LOOP
        s := v.segments[i]; a := v.segments[i + 1]; b := v.segments[i + 2];
        IF s = 0 THEN s := stream_id; a := a + at; b := b + at; END IF;
        IF last > 0 AND segments[last - 2] = s AND segments[last] = a THEN
            segments[last] := b;
        ELSE
            segments := segments || ARRAY[s, a, b]; last := last + 3;
        END IF;
    END LOOP;
END $$;

-- Store writes of a task after a checkpoint. A stored write with the same idx >= 0 is not replaced. A stored write with the same idx < 0 is
-- replaced. of_run, with_fence: the attempt that writes, or NULL. Raises stale_fence, cancel_requested and checkpoint_missing.
CREATE OR REPLACE FUNCTION runyard.graph_put_writes(
    for_tenant text, of_owner bigint, name text, of_run text, with_fence bigint, ns text, id text, task text, path text,
    new runyard.new_graph_write[]
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    l runyard.graph_lines := runyard.graph_line_to_write(for_tenant, of_owner, name, of_run, with_fence);
BEGIN
    DELETE FROM runyard.graph_writes x
    WHERE x.line_id = l.line_id AND x.namespace = ns AND x.checkpoint_id = id AND x.task_id = task AND x.idx < 0 AND x.position > l.shown_to
      AND x.idx IN (SELECT n.idx FROM unnest(new) n);
    INSERT INTO runyard.graph_writes (line_id, namespace, checkpoint_id, task_id, idx, position, task_path, channel, kind, data)
    SELECT DISTINCT ON (n.idx) l.line_id, ns, id, task, n.idx, l.next_position, path, n.channel, n.kind, n.data
    FROM unnest(new) WITH ORDINALITY n(idx, channel, kind, data, place)
    WHERE n.idx < 0 OR NOT EXISTS (
        SELECT 1 FROM runyard.graph_view(l.line_id) w JOIN runyard.graph_writes x ON x.line_id = w.line_id AND x.position <= w.cut
        WHERE x.namespace = ns AND x.checkpoint_id = id AND x.task_id = task AND x.idx = n.idx)
    ORDER BY n.idx, n.place DESC;
    UPDATE runyard.graph_lines x SET next_position = l.next_position + 1 WHERE x.line_id = l.line_id;
END $$;
