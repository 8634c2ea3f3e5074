-- Reading checkpoints of graphs. `most` is the `limit` of `page` in runyard/ports/graph_checkpoints.py.

-- Return the checkpoint `id` that a line shows up to a position, with its values and pending writes. If id is NULL, return the newest
-- checkpoint of the namespace.
CREATE OR REPLACE FUNCTION runyard.graph_newest(of_line bigint, upto bigint, ns text, id text)
RETURNS TABLE (namespace text, checkpoint_id text, parent_id text, kind text, content bytea, details jsonb,
               "values" runyard.graph_value[], writes runyard.graph_write[])
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT c.namespace, c.checkpoint_id, c.parent_id, c.kind, c.content, c.details, runyard.graph_values_of(c.value_ids),
           runyard.graph_writes_of(of_line, upto, c.namespace, c.checkpoint_id)
    FROM runyard.graph_view(of_line, upto) w
    CROSS JOIN LATERAL (
        SELECT y.* FROM runyard.graph_checkpoints y
        WHERE y.line_id = w.line_id AND y.namespace = ns AND y.position <= w.cut AND (id IS NULL OR y.checkpoint_id = id)
        ORDER BY y.checkpoint_id DESC, y.position DESC LIMIT 1) c
    ORDER BY c.checkpoint_id DESC, c.position DESC LIMIT 1;
END $$;

-- Return the checkpoint of a line with this id. If the id is NULL, return the newest checkpoint of the namespace.
CREATE OR REPLACE FUNCTION runyard.graph_latest(for_tenant text, of_owner bigint, name text, ns text, id text)
RETURNS TABLE (graph_id text, namespace text, checkpoint_id text, parent_id text, kind text, content bytea, details jsonb,
               "values" runyard.graph_value[], writes runyard.graph_write[])
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
    SELECT l.graph_id, c.* FROM runyard.graph_lines l CROSS JOIN LATERAL runyard.graph_newest(l.line_id, 9223372036854775807, ns, id) c
    WHERE l.tenant = for_tenant AND l.owner_key = of_owner AND l.graph_id = name
$$;

-- Return a page of checkpoints of a line in descending order of their ids. name: the name of the line, or NULL for all lines of savers
-- without runs. ns, id, filter: the namespace, the id, and a part of the metadata, or NULL for any value. before: an upper limit of the
-- ids, or NULL. after_id, after_ns, after_name: the last checkpoint of the previous page, or NULL. A page may have fewer than `most` rows.
-- An empty page marks the end.
CREATE OR REPLACE FUNCTION runyard.graph_read(
    for_tenant text, of_owner bigint, name text, ns text, id text, before text, filter jsonb, after_id text, after_ns text,
    after_name text, most integer
) RETURNS TABLE (graph_id text, namespace text, checkpoint_id text, parent_id text, kind text, content bytea, details jsonb,
                 "values" runyard.graph_value[], writes runyard.graph_write[])
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT p.graph_id, p.namespace, p.checkpoint_id, p.parent_id, p.kind, p.content, p.details, runyard.graph_values_of(p.value_ids),
           runyard.graph_writes_of(p.line_id, 9223372036854775807, p.namespace, p.checkpoint_id)
    FROM (
        SELECT DISTINCT ON (c.checkpoint_id, c.namespace, l.graph_id) l.graph_id, l.line_id, c.namespace, c.checkpoint_id, c.parent_id, c.kind,
               c.content, c.details, c.value_ids
        FROM runyard.graph_lines l
        CROSS JOIN LATERAL runyard.graph_view(l.line_id) w
        CROSS JOIN LATERAL (
            SELECT x.* FROM runyard.graph_checkpoints x
            WHERE x.line_id = w.line_id AND x.position <= w.cut AND (ns IS NULL OR x.namespace = ns) AND (id IS NULL OR x.checkpoint_id = id)
              AND (before IS NULL OR x.checkpoint_id < before)
              AND (after_id IS NULL OR (x.checkpoint_id, x.namespace, l.graph_id) < (after_id, after_ns, after_name))
              AND (filter IS NULL OR x.details @> filter AND NOT EXISTS ( -- a newer row of the same checkpoint
                  SELECT 1 FROM runyard.graph_view(l.line_id) v JOIN runyard.graph_checkpoints y ON y.line_id = v.line_id AND y.position <= v.cut
                  WHERE y.namespace = x.namespace AND y.checkpoint_id = x.checkpoint_id AND y.position > x.position))
            ORDER BY x.checkpoint_id DESC, x.namespace DESC, x.position DESC LIMIT 2 * most) c
        WHERE l.tenant = for_tenant AND l.owner_key = of_owner AND l.graph_id IS NOT NULL AND (name IS NULL OR l.graph_id = name)
        ORDER BY c.checkpoint_id DESC, c.namespace DESC, l.graph_id DESC, c.position DESC
        LIMIT most) p
    ORDER BY p.checkpoint_id DESC, p.namespace DESC, p.graph_id DESC;
END $$;

-- Return the values of channels that are not empty.
CREATE OR REPLACE FUNCTION runyard.graph_values_of(value_ids bigint[]) RETURNS runyard.graph_value[]
LANGUAGE sql STABLE AS $$
    SELECT ARRAY(SELECT (g.channel, g.kind, g.data, g.segments)::runyard.graph_value FROM runyard.graph_values g
                 WHERE g.value_id = ANY (graph_values_of.value_ids) AND g.kind IS NOT NULL)
$$;

-- Return the pending writes after a checkpoint that a line shows, in the order in which LangGraph applies them.
CREATE OR REPLACE FUNCTION runyard.graph_writes_of(of_line bigint, upto bigint, ns text, id text) RETURNS runyard.graph_write[]
LANGUAGE sql STABLE AS $$
    SELECT ARRAY(
        SELECT (x.task_id, x.idx, x.task_path, x.channel, x.kind, x.data)::runyard.graph_write FROM (
            SELECT DISTINCT ON (y.task_id, y.idx) y.* FROM runyard.graph_view(of_line, upto) w
            JOIN runyard.graph_writes y ON y.line_id = w.line_id AND y.position <= w.cut
            WHERE y.namespace = ns AND y.checkpoint_id = id ORDER BY y.task_id, y.idx, y.position DESC) x
        ORDER BY x.task_path COLLATE "C", x.task_id COLLATE "C", x.idx)
$$;

-- Return the chunks of a list's segments, in order. part: the number of the segment, from 0.
CREATE OR REPLACE FUNCTION runyard.graph_items(segments bigint[]) RETURNS TABLE (part integer, first bigint, items bytea)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
BEGIN
    FOR i IN 1..cardinality(segments) BY 3 LOOP
        RETURN QUERY SELECT (i - 1) / 3, c.first, c.items FROM runyard.graph_chunks c
        WHERE c.stream_id = segments[i] AND c.first < segments[i + 2] AND c.first >= (
            SELECT max(x.first) FROM runyard.graph_chunks x WHERE x.stream_id = segments[i] AND x.first <= segments[i + 1])
        ORDER BY c.first;
    END LOOP;
END $$;
