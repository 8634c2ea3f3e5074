-- What is visible: the predicate of forks and branches, cuts, and the boundaries of tool cycles.
-- A view is an array of levels; a message is visible through its level if its number is not above the high water and it has no run, or
-- belongs to the level's open run, or its run completed not after the cutoff. Numbers grow along every path, so seq orders a view.

CREATE FUNCTION runyard.refuse(code text, message text, details jsonb DEFAULT '{}') RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = 'RY000', MESSAGE = message, HINT = code, DETAIL = details::text;
END $$;

-- All messages of a view, level by level. The join stays within one thread whichever way it is planned; a subquery per message would cost
-- three times as much.
CREATE FUNCTION runyard.visible(levels runyard.level[]) RETURNS SETOF runyard.messages
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    l runyard.level;
    owner bigint;
BEGIN
    FOREACH l IN ARRAY levels LOOP
        SELECT b.thread_key INTO owner FROM runyard.branches b WHERE b.branch_id = l.branch_id;
        RETURN QUERY
            SELECT m.*
            FROM runyard.messages m
            LEFT JOIN runyard.runs r ON r.thread_key = owner AND r.run_id = m.run_id
            WHERE m.branch_id = l.branch_id AND m.seq <= l.high_water_seq
              AND (m.run_id IS NULL OR m.run_id = l.open_run_id OR r.completion_seq <= l.cutoff);
    END LOOP;
END $$;

-- At most `most` messages of a level between two numbers, from either end: reads no more than it returns and what is invisible between.
CREATE FUNCTION runyard.visible_part(l runyard.level, after bigint, before bigint, most bigint, newest_first boolean)
RETURNS SETOF runyard.messages
LANGUAGE plpgsql STABLE AS $$
DECLARE
    owner bigint := (SELECT b.thread_key FROM runyard.branches b WHERE b.branch_id = l.branch_id);
BEGIN
    IF newest_first THEN
        RETURN QUERY
            SELECT m.* FROM runyard.messages m
            WHERE m.branch_id = l.branch_id AND m.seq <= l.high_water_seq AND m.seq > after AND m.seq < before
              AND (m.run_id IS NULL OR m.run_id = l.open_run_id
                   OR (SELECT r.completion_seq <= l.cutoff FROM runyard.runs r WHERE r.thread_key = owner AND r.run_id = m.run_id))
            ORDER BY m.seq DESC LIMIT most;
    ELSE
        RETURN QUERY
            SELECT m.* FROM runyard.messages m
            WHERE m.branch_id = l.branch_id AND m.seq <= l.high_water_seq AND m.seq > after AND m.seq < before
              AND (m.run_id IS NULL OR m.run_id = l.open_run_id
                   OR (SELECT r.completion_seq <= l.cutoff FROM runyard.runs r WHERE r.thread_key = owner AND r.run_id = m.run_id))
            ORDER BY m.seq LIMIT most;
    END IF;
END $$;

CREATE FUNCTION runyard.inherited(branch bigint) RETURNS runyard.level[]
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (
    SELECT coalesce(array_agg((ancestor_id, high_water_seq, cutoff, open_run_id)::runyard.level), '{}')
    FROM runyard.levels WHERE branch_id = branch
    );
END $$;

-- Everything that counts on a branch at this moment.
CREATE FUNCTION runyard.branch_view(branch bigint) RETURNS runyard.level[]
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN runyard.inherited(branch) || (branch, 9223372036854775807, 9223372036854775807, NULL)::runyard.level;
END $$;

CREATE FUNCTION runyard.last_visible(levels runyard.level[], OUT message_id uuid, OUT seq bigint)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    l runyard.level;
BEGIN
    FOR l IN SELECT x.branch_id, x.high_water_seq, x.cutoff, x.open_run_id FROM unnest(levels) x ORDER BY x.high_water_seq DESC LOOP
        SELECT p.message_id, p.seq INTO message_id, seq FROM runyard.visible_part(l, 0, 9223372036854775807, 1, true) p;
        IF FOUND THEN RETURN; END IF;
    END LOOP;
END $$;

-- Tool calls of a view that nothing in it answers, in order. Reads the messages with calls or results only.
CREATE FUNCTION runyard.open_calls(levels runyard.level[]) RETURNS text[]
LANGUAGE plpgsql STABLE AS $$
DECLARE
    m record;
    pending text[] := '{}';
BEGIN
    FOR m IN
        SELECT x.calls, x.results
        FROM unnest(levels) l
        JOIN runyard.branches b ON b.branch_id = l.branch_id
        JOIN runyard.messages x ON x.branch_id = l.branch_id AND x.seq <= l.high_water_seq
        WHERE (x.calls IS NOT NULL OR x.results IS NOT NULL)
          AND (x.run_id IS NULL OR x.run_id = l.open_run_id
               OR (SELECT r.completion_seq <= l.cutoff FROM runyard.runs r WHERE r.thread_key = b.thread_key AND r.run_id = x.run_id))
        ORDER BY x.seq
    LOOP
        pending := ARRAY(SELECT c FROM unnest(pending) WITH ORDINALITY x(c, n)
                         WHERE m.results IS NULL OR c <> ALL (m.results) ORDER BY n) || coalesce(m.calls, '{}');
    END LOOP;
    RETURN pending;
END $$;

-- Is every call of the run directly followed by exactly its results? Its first results may close what its context left open.
CREATE FUNCTION runyard.cycles_closed(r runyard.runs) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
DECLARE
    m record;
    pending text[] := '{}';
    before text[];
BEGIN
    FOR m IN
        SELECT x.calls, x.results FROM runyard.messages x
        WHERE x.branch_id = r.branch_id AND x.seq >= r.first_seq AND x.run_id = r.run_id ORDER BY x.seq
    LOOP
        IF m.results IS NOT NULL THEN
            before := coalesce(before, runyard.open_calls(runyard.run_view(r)));
            IF NOT m.results <@ (pending || before) OR runyard.repeats(m.results) THEN RETURN false; END IF;
            pending := ARRAY(SELECT c FROM unnest(pending) c WHERE c <> ALL (m.results));
            before := ARRAY(SELECT c FROM unnest(before) c WHERE c <> ALL (m.results));
        ELSIF pending <> '{}' THEN
            RETURN false;
        ELSE
            before := '{}';
        END IF;
        IF m.calls IS NOT NULL THEN
            IF pending <> '{}' OR runyard.repeats(m.calls) THEN RETURN false; END IF;
            pending := m.calls;
        END IF;
    END LOOP;
    RETURN pending = '{}';
END $$;

CREATE FUNCTION runyard.repeats(ids text[]) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN cardinality(ids) > 1 AND cardinality(ids) > (SELECT count(DISTINCT x) FROM unnest(ids) x);
END $$;

-- What a run sees of others: its branch as of its snapshot.
CREATE FUNCTION runyard.run_view(r runyard.runs) RETURNS runyard.level[]
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN runyard.inherited(r.branch_id) || (r.branch_id, r.snapshot_tip, r.snapshot_cutoff, NULL)::runyard.level;
END $$;

-- The level through which thread `key` sees message `id` of an ancestor; no row if it does not. Its first branch sees all that any of them does.
CREATE FUNCTION runyard.seen_through(key bigint, id uuid)
RETURNS TABLE (level runyard.level, message runyard.messages, run runyard.runs)
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT (l.ancestor_id, l.high_water_seq, l.cutoff, l.open_run_id)::runyard.level, m.message, r
    FROM runyard.levels l
    JOIN runyard.branches b ON b.branch_id = l.ancestor_id
    CROSS JOIN LATERAL (SELECT x AS message, x.seq, x.run_id FROM runyard.messages x
                        WHERE x.message_id = id AND x.branch_id = l.ancestor_id LIMIT 1) m
    LEFT JOIN runyard.runs r ON r.thread_key = b.thread_key AND r.run_id = m.run_id
    WHERE l.branch_id = (SELECT min(own.branch_id) FROM runyard.branches own WHERE own.thread_key = key) AND m.seq <= l.high_water_seq
      AND (m.run_id IS NULL OR m.run_id = l.open_run_id OR r.completion_seq <= l.cutoff)
    LIMIT 1;
END $$;

-- The cut at a message, inclusive: `view` sees exactly its path; `whole` the branch it is on, as the thread sees it.
CREATE FUNCTION runyard.cut_at_message(
    t runyard.threads, id uuid, OUT view runyard.level[], OUT whole runyard.level[], OUT message runyard.messages, OUT run runyard.runs
) LANGUAGE plpgsql STABLE AS $$
DECLARE
    got record;
    l runyard.level;
    cutoff bigint;
    open_run text;
BEGIN
    SELECT m.* INTO message FROM runyard.messages m JOIN runyard.branches b USING (branch_id)
    WHERE m.message_id = id AND b.thread_key = t.thread_key;
    IF FOUND THEN
        IF message.run_id IS NOT NULL THEN
            SELECT r.* INTO run FROM runyard.runs r WHERE r.thread_key = t.thread_key AND r.run_id = message.run_id;
        END IF;
        l := (message.branch_id, 9223372036854775807, t.next_completion_seq - 1, NULL)::runyard.level;
    ELSE
        SELECT s.* INTO got FROM runyard.seen_through(t.thread_key, id) s;
        IF FOUND THEN l := got.level; message := got.message; run := got.run; END IF;
    END IF;
    IF message.seq IS NULL OR (message.run_id IS NOT NULL AND run.branch_id IS NULL) THEN
        PERFORM runyard.refuse('message_not_found', format('thread %s has no message %s', t.thread_id, id),
                               jsonb_build_object('thread_id', t.thread_id, 'message_id', id));
    END IF;
    IF message.run_id IS NULL THEN
        cutoff := l.cutoff;
    ELSE
        cutoff := least(coalesce(run.completion_seq, run.snapshot_cutoff), l.cutoff);
        IF run.completion_seq IS NULL OR message.run_id = l.open_run_id THEN open_run := message.run_id; END IF;
    END IF;
    view := runyard.inherited(message.branch_id)
        || (message.branch_id, least(message.seq, l.high_water_seq), cutoff, open_run)::runyard.level;
    whole := runyard.inherited(message.branch_id)
        || (message.branch_id, l.high_water_seq, l.cutoff, coalesce(open_run, l.open_run_id))::runyard.level;
END $$;

-- Refuse a cut inside a tool cycle, naming the nearest messages of the branch at which nothing is open.
CREATE FUNCTION runyard.check_boundary(view runyard.level[], whole runyard.level[], at runyard.messages) RETURNS void
LANGUAGE plpgsql STABLE AS $$
DECLARE
    m record;
    pending text[] := '{}';
    before uuid;
    after uuid;
    calls text[] := runyard.open_calls(view);
BEGIN
    IF calls = '{}' THEN RETURN; END IF;
    FOR m IN SELECT v.seq, v.message_id, v.calls, v.results FROM runyard.visible(whole) v ORDER BY v.seq LOOP
        pending := ARRAY(SELECT c FROM unnest(pending) c WHERE m.results IS NULL OR c <> ALL (m.results)) || coalesce(m.calls, '{}');
        IF pending = '{}' AND m.seq < at.seq THEN
            before := m.message_id;
        ELSIF pending = '{}' THEN
            after := m.message_id;
            EXIT;
        END IF;
    END LOOP;
    PERFORM runyard.refuse('fork_boundary',
        format('message %s is inside an unfinished tool cycle (open calls: %s); cut before at %s or after at %s, or repair the fork',
               at.message_id, array_to_string(calls, ', '), coalesce(before::text, 'nothing'), coalesce(after::text, 'nothing')),
        jsonb_build_object('message_id', at.message_id, 'open_calls', to_jsonb(calls), 'before', before, 'after', after));
END $$;

-- An inherited run as thread `key` sees it: completed (with the level it is seen through), or the open run of a level.
CREATE FUNCTION runyard.inherited_run(key bigint, id text)
RETURNS TABLE (run runyard.runs, level runyard.level, open boolean)
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT r, (l.ancestor_id, l.high_water_seq, l.cutoff, l.open_run_id)::runyard.level,
           NOT (r.completion_seq IS NOT NULL AND r.completion_seq <= l.cutoff AND coalesce(r.first_seq, 0) <= l.high_water_seq)
    FROM runyard.branches child
    JOIN runyard.levels l ON l.branch_id = child.branch_id
    JOIN runyard.branches b ON b.branch_id = l.ancestor_id AND b.thread_key <> key
    JOIN runyard.runs r ON r.thread_key = b.thread_key AND r.run_id = id AND r.branch_id = b.branch_id
    WHERE child.thread_key = key
      AND (r.run_id = l.open_run_id
           OR (r.completion_seq <= l.cutoff AND coalesce(r.first_seq, 0) <= l.high_water_seq))
    ORDER BY 3, l.high_water_seq DESC, l.cutoff DESC LIMIT 1;
END $$;

-- The cut after a completed run, own or inherited.
CREATE FUNCTION runyard.cut_after_run(t runyard.threads, id text, OUT view runyard.level[], OUT run runyard.runs)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    got record;
    l runyard.level;
BEGIN
    SELECT r.* INTO run FROM runyard.runs r WHERE r.thread_key = t.thread_key AND r.run_id = id;
    IF FOUND AND run.completion_seq IS NOT NULL THEN
        view := runyard.inherited(run.branch_id) || (run.branch_id, run.high_water_seq, run.completion_seq, NULL)::runyard.level;
        RETURN;
    ELSIF NOT FOUND THEN
        SELECT i.* INTO got FROM runyard.inherited_run(t.thread_key, id) i;
        IF FOUND AND NOT got.open THEN
            run := got.run; l := got.level;
            IF run.last_seq > l.high_water_seq THEN
                PERFORM runyard.refuse('fork_boundary',
                    format('run %s is only partly visible in thread %s; fork at a message instead', id, t.thread_id),
                    jsonb_build_object('run_id', id, 'before', NULL, 'after', NULL));
            END IF;
            view := runyard.inherited(l.branch_id)
                || (l.branch_id, least(run.high_water_seq, l.high_water_seq), run.completion_seq, NULL)::runyard.level;
            RETURN;
        END IF;
    END IF;
    PERFORM runyard.refuse('run_not_completed',
        format('run %s of thread %s is not completed; fork after a completed run, or prompt the thread once', id, t.thread_id),
        jsonb_build_object('thread_id', t.thread_id, 'run_id', id));
END $$;

-- The last completed run of the head's path: the default cut.
CREATE FUNCTION runyard.last_completed(t runyard.threads) RETURNS text
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (
    SELECT r.run_id
    FROM unnest(runyard.branch_view(t.head_branch)) l
    CROSS JOIN LATERAL (
        SELECT r.run_id, r.completion_seq FROM runyard.runs r
        WHERE r.branch_id = l.branch_id AND r.completion_seq <= l.cutoff AND coalesce(r.first_seq, 0) <= l.high_water_seq
        ORDER BY r.completion_seq DESC LIMIT 1
    ) r
    ORDER BY r.completion_seq DESC LIMIT 1
    );
END $$;

-- The extra that a cut carries: the latest saved with a run not after the cut, else what its thread began with.
CREATE FUNCTION runyard.extra_at(view runyard.level[]) RETURNS jsonb
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (
    SELECT coalesce(
        (SELECT r.extra FROM runyard.runs r
         WHERE r.thread_key = t.thread_key AND r.completion_seq <= l.cutoff AND r.completion_seq IS NOT NULL AND r.extra IS NOT NULL
         ORDER BY r.completion_seq DESC LIMIT 1),
        t.base_extra)
    FROM runyard.branches b JOIN runyard.threads t USING (thread_key), (SELECT (view[array_upper(view, 1)]).*) l
    WHERE b.branch_id = l.branch_id
    );
END $$;
