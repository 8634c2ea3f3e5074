-- Functions that remove checkpoints of graphs.

-- Keep only the newest checkpoint of each namespace of a saver's thread, with its pending writes. The kept checkpoints and the values of
-- their channels move to a new line. Copies of the thread keep their checkpoints. Do nothing for an unknown thread. Raises
-- capability_missing if a channel of a kept checkpoint is rebuilt from earlier writes (DeltaChannel).
CREATE OR REPLACE FUNCTION runyard.graph_prune(for_tenant text, name text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    l runyard.graph_lines := runyard.graph_line(for_tenant, 0, name);
    c runyard.graph_checkpoints;
    into_line bigint;
    at bigint := l.next_position;
BEGIN
    IF l.line_id IS NULL THEN RETURN; END IF;
    UPDATE runyard.graph_lines x SET graph_id = NULL WHERE x.line_id = l.line_id;
    INSERT INTO runyard.graph_lines AS x (tenant, owner_key, graph_id, next_position) VALUES (for_tenant, 0, name, at + 1)
    RETURNING x.line_id INTO into_line;
    FOR c IN
        SELECT DISTINCT ON (x.namespace) x.* FROM runyard.graph_view(l.line_id) w
        JOIN runyard.graph_checkpoints x ON x.line_id = w.line_id AND x.position <= w.cut
        ORDER BY x.namespace, x.checkpoint_id DESC, x.position DESC
    LOOP
        PERFORM runyard.graph_refuse_deltas(ARRAY[name], c.details);
        INSERT INTO runyard.graph_checkpoints (line_id, namespace, checkpoint_id, position, parent_id, kind, content, details, value_ids)
        VALUES (into_line, c.namespace, c.checkpoint_id, at, NULL, c.kind, c.content, c.details,
                ARRAY(SELECT runyard.graph_move_value(v.value_id, into_line, at) FROM unnest(c.value_ids) v(value_id)));
        INSERT INTO runyard.graph_writes (line_id, namespace, checkpoint_id, task_id, idx, position, task_path, channel, kind, data)
        SELECT into_line, c.namespace, c.checkpoint_id, w.task_id, w.idx, at, w.task_path, w.channel, w.kind, w.data
        FROM unnest(runyard.graph_writes_of(l.line_id, 9223372036854775807, c.namespace, c.checkpoint_id)) w;
    END LOOP;
    PERFORM runyard.graph_trim(l.line_id, 0);
END $$;

-- Copy a value to another line. If the value is a list, copy its chunks too. Return the id of the copy.
CREATE OR REPLACE FUNCTION runyard.graph_move_value(of_value bigint, into_line bigint, at bigint) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    v runyard.graph_values;
    moved bigint[];
    stream bigint;
    start bigint;
    copied bigint;
BEGIN
    SELECT x.* INTO v FROM runyard.graph_values x WHERE x.value_id = of_value;
    IF v.segments IS NOT NULL THEN
        INSERT INTO runyard.graph_streams AS s (line_id) VALUES (into_line) RETURNING s.stream_id INTO stream;
        moved := '{}'; copied := 0;
        FOR i IN 1..cardinality(v.segments) BY 3 LOOP
            SELECT max(x.first) INTO start FROM runyard.graph_chunks x WHERE x.stream_id = v.segments[i] AND x.first <= v.segments[i + 1];
            INSERT INTO runyard.graph_chunks (stream_id, first, count, position, items)
            SELECT stream, copied + c.first - start, c.count, at, c.items FROM runyard.graph_chunks c
            WHERE c.stream_id = v.segments[i] AND c.first >= start AND c.first < v.segments[i + 2];
            moved := moved || ARRAY[stream, copied + v.segments[i + 1] - start, copied + v.segments[i + 2] - start];
            copied := (SELECT max(c.first + c.count) FROM runyard.graph_chunks c WHERE c.stream_id = stream);
        END LOOP;
        UPDATE runyard.graph_streams s SET length = copied WHERE s.stream_id = stream;
    END IF;
    INSERT INTO runyard.graph_values AS x (line_id, namespace, channel, version, position, kind, data, segments)
    VALUES (into_line, v.namespace, v.channel, v.version, at, v.kind, v.data, moved) RETURNING x.value_id INTO of_value;
    RETURN of_value;
END $$;

-- Raise capability_missing if a checkpoint with these metadata has a channel that is rebuilt from earlier writes.
CREATE OR REPLACE FUNCTION runyard.graph_refuse_deltas(names text[], details jsonb) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF details ? 'counters_since_delta_snapshot' THEN
        PERFORM runyard.refuse('capability_missing', format('thread %s uses a DeltaChannel, whose state is rebuilt from earlier checkpoints; '
            'delete the whole thread instead', array_to_string(names, ', ')));
    END IF;
END $$;

-- Delete the checkpoints of runs, with their pending writes, in savers' threads and their copies. Also delete values that no other checkpoint
-- has. Return the threads and copies that showed such a checkpoint. Raises capability_missing if a thread uses a DeltaChannel.
CREATE OR REPLACE FUNCTION runyard.graph_delete_runs_v2(for_tenant text, run_ids text[]) RETURNS text[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    c runyard.graph_checkpoints;
    lines bigint[];
    family bigint[];
    locked bigint[] := '{}';
    old bigint[] := '{}';
BEGIN
    -- A checkpoint of a copy may use a value of these lines. Lock the lines and their copies, so that other transactions cannot
    -- write to a copy or make one.
    LOOP
        lines := ARRAY(
            SELECT x.line_id FROM runyard.graph_lines x WHERE x.tenant = for_tenant AND x.owner_key = 0 AND x.line_id IN (
                SELECT y.line_id FROM runyard.graph_checkpoints y WHERE y.details ? 'run_id' AND y.details->>'run_id' = ANY (run_ids)));
        family := lines || ARRAY(SELECT DISTINCT v.line_id FROM runyard.graph_levels v WHERE v.ancestor_id = ANY (lines));
        EXIT WHEN family <@ locked;
        PERFORM 1 FROM runyard.graph_lines x WHERE x.line_id = ANY (family) ORDER BY x.line_id DESC FOR UPDATE;
        locked := family;
    END LOOP;
    FOR c IN
        SELECT y.* FROM runyard.graph_checkpoints y
        WHERE y.details ? 'run_id' AND y.details->>'run_id' = ANY (run_ids) AND y.line_id = ANY (lines)
    LOOP
        PERFORM runyard.graph_refuse_deltas(run_ids, c.details);
        DELETE FROM runyard.graph_checkpoints y
        WHERE y.line_id = c.line_id AND y.namespace = c.namespace AND y.checkpoint_id = c.checkpoint_id AND y.position = c.position;
        DELETE FROM runyard.graph_writes y
        WHERE y.line_id = c.line_id AND y.namespace = c.namespace AND y.checkpoint_id = c.checkpoint_id;
        old := old || c.value_ids;
    END LOOP;
    DELETE FROM runyard.graph_values v WHERE v.value_id = ANY (old) AND v.line_id = ANY (lines) AND NOT EXISTS (
        SELECT 1 FROM runyard.graph_checkpoints y
        WHERE y.line_id = ANY (family) AND y.namespace = v.namespace AND v.value_id = ANY (y.value_ids));
    WITH unused AS (
        DELETE FROM runyard.graph_streams s WHERE s.line_id = ANY (lines) AND NOT EXISTS (
            SELECT 1 FROM runyard.graph_values v WHERE v.line_id = ANY (family) AND s.stream_id = ANY (v.segments))
        RETURNING s.stream_id)
    DELETE FROM runyard.graph_chunks x USING unused u WHERE x.stream_id = u.stream_id;
    RETURN ARRAY(SELECT x.graph_id FROM runyard.graph_lines x WHERE x.line_id = ANY (family) AND x.graph_id IS NOT NULL);
END $$;

-- Delete the checkpoints of runs, as graph_delete_runs_v2 does, for callers that do not need the threads.
CREATE OR REPLACE FUNCTION runyard.graph_delete_runs(for_tenant text, run_ids text[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM runyard.graph_delete_runs_v2(for_tenant, run_ids);
END $$;
