-- Reads of a thread's tree and of a run's context.

-- One page of a path, by number. at NULL: all of a branch, by default the head's; a later page names the branch of the first.
CREATE FUNCTION runyard.page(
    for_tenant text, in_thread text, at uuid, after bigint, before bigint, most bigint, newest_first boolean, of_branch bigint
) RETURNS SETOF runyard.messages
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    t runyard.threads;
    c record;
    view runyard.level[];
    l runyard.level;
    got bigint;
BEGIN
    t := runyard.known_snapshot(for_tenant, in_thread);
    IF at IS NULL THEN
        view := runyard.branch_view(coalesce(
            (SELECT b.branch_id FROM runyard.branches b WHERE b.branch_id = of_branch AND b.thread_key = t.thread_key), t.head_branch));
    ELSE
        c := runyard.cut_at_message(t, at);
        view := c.view;
    END IF;
    IF most IS NULL THEN
        RETURN QUERY SELECT v.* FROM runyard.visible(view) v WHERE v.seq > after AND v.seq < before ORDER BY v.seq;
        RETURN;
    END IF;
    FOR l IN
        SELECT x.branch_id, x.high_water_seq, x.cutoff, x.open_run_id FROM unnest(view) x
        ORDER BY CASE WHEN newest_first THEN -x.high_water_seq ELSE x.high_water_seq END
    LOOP
        RETURN QUERY SELECT p.* FROM runyard.visible_part(l, after, before, most, newest_first) p;
        GET DIAGNOSTICS got = ROW_COUNT;
        most := most - got;
        EXIT WHEN most <= 0;
    END LOOP;
END $$;

-- What a run sees: its branch as of its snapshot, then its own messages, of which some may have been there before the run was claimed.
CREATE FUNCTION runyard.context(key bigint, id text, with_fence bigint) RETURNS SETOF runyard.messages
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    r runyard.runs;
BEGIN
    SELECT x.* INTO r FROM runyard.runs x WHERE x.thread_key = key AND x.run_id = id;
    IF r.fence IS DISTINCT FROM with_fence THEN
        PERFORM runyard.refuse('stale_fence', format('the attempt with fence %s no longer holds run %s; stop it', with_fence, id),
                               jsonb_build_object('run_id', id, 'fence', with_fence, 'current_fence', r.fence));
    END IF;
    RETURN QUERY SELECT v.* FROM runyard.visible(runyard.run_view(r)) v ORDER BY v.seq;
    RETURN QUERY SELECT m.* FROM runyard.messages m WHERE m.branch_id = r.branch_id AND m.seq >= r.first_seq AND m.run_id = id ORDER BY m.seq;
END $$;

-- An event's id, "<fence>-<n>", as what sorts; NULL for what is none.
CREATE FUNCTION runyard.event_place(event_id text) RETURNS bigint[]
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF event_id !~ '^\d{1,18}-\d{1,18}$' THEN RETURN NULL; END IF;
    RETURN ARRAY[split_part(event_id, '-', 1)::bigint, split_part(event_id, '-', 2)::bigint];
END $$;

-- The events that a run's rows prove, in the order of their ids, after the place `after`: `most` at most, and before the one with which they would
-- have more than `bytes`, but for the first. An attempt numbers its messages as it appends them, and a later one has a higher fence: they are in
-- the order of seq, and the first after a place is found by halving. Of two that have one number, which only a wrong `first_event` makes, the later
-- kind counts: a reader waits for the end. asked: what a suspended run waits for. attempt: which one is queued.
CREATE FUNCTION runyard.run_events(key bigint, id text, after bigint[], most integer, bytes bigint)
RETURNS TABLE (type text, proved_id text, in_thread text, message runyard.messages, request runyard.requests, why jsonb, asked text[], attempt integer)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    r record;
    low bigint;
    high bigint;
    middle bigint;
    m record;
BEGIN
    SELECT t.thread_id, x.status, x.event_id, x.error, x.fence, x.queued_fence, x.attempt, x.branch_id, x.first_seq, x.last_seq INTO r
    FROM runyard.runs x JOIN runyard.threads t USING (thread_key) WHERE x.thread_key = key AND x.run_id = id;
    IF NOT FOUND THEN RETURN; END IF;
    low := r.first_seq; high := r.last_seq + 1;
    WHILE low < high LOOP
        middle := (low + high) / 2;
        SELECT x.seq, runyard.event_place(x.event_id) AS place INTO m FROM runyard.messages x
        WHERE x.branch_id = r.branch_id AND x.seq >= middle AND x.seq < high AND x.run_id = id AND x.event_id IS NOT NULL
        ORDER BY x.seq LIMIT 1;
        IF m.place <= after THEN low := m.seq + 1; ELSE high := middle; END IF;
    END LOOP;
    RETURN QUERY
    WITH found AS (
        (SELECT 1 AS kind, 'message.completed' AS type, x.event_id, x.seq, NULL AS request_id, 512 + coalesce(octet_length(x.payload), 0) AS size
         FROM runyard.messages x WHERE x.branch_id = r.branch_id AND x.seq BETWEEN low AND r.last_seq AND x.run_id = id
           AND x.event_id IS NOT NULL ORDER BY x.seq LIMIT most)
        UNION ALL
        (SELECT 2, 'hitl.requested', h.event_id, NULL, h.request_id, 512 + octet_length(h.body) + coalesce(octet_length(h.answer), 0)
         FROM runyard.hitl_requests h WHERE h.thread_key = key AND h.run_id = id AND runyard.event_place(h.event_id) > after
         ORDER BY runyard.event_place(h.event_id) LIMIT most)
        UNION ALL
        SELECT 3, 'run.' || r.status, r.event_id, NULL, NULL, 512 + coalesce(pg_column_size(r.error), 0)
        WHERE r.event_id IS NOT NULL AND r.status IN ('completed', 'failed', 'cancelled', 'dead', 'suspended')
        UNION ALL
        SELECT 4, 'run.queued', r.queued_fence || '-1', NULL, NULL, 512 WHERE coalesce(r.fence, 0) < r.queued_fence
    ), placed AS (
        SELECT f.*, runyard.event_place(f.event_id) AS place FROM found f
    ), counted AS (
        SELECT p.*, row_number() OVER w AS n, sum(p.size) OVER w AS total
        FROM (SELECT DISTINCT ON (d.place) d.* FROM placed d WHERE d.place > after ORDER BY d.place, d.kind DESC) p
        WINDOW w AS (ORDER BY p.place ROWS UNBOUNDED PRECEDING)
    )
    SELECT c.type, c.event_id, r.thread_id, x, q, CASE WHEN c.event_id = r.event_id THEN r.error END,
           CASE WHEN c.type = 'run.suspended' THEN ARRAY(
               SELECT h.request_id FROM runyard.hitl_requests h
               WHERE h.thread_key = key AND h.run_id = id AND (runyard.event_place(h.event_id))[1] = c.place[1]
               ORDER BY runyard.event_place(h.event_id)) END,
           CASE WHEN c.type = 'run.queued' THEN r.attempt + 1 END
    FROM counted c
    LEFT JOIN runyard.messages x ON x.branch_id = r.branch_id AND x.seq = c.seq
    LEFT JOIN runyard.requests q ON q.thread_key = key AND q.request_id = c.request_id
    WHERE c.n = 1 OR (c.n <= most AND c.total <= bytes)
    ORDER BY c.n;
END $$;

-- Leaves of the thread's tree, by age: the end of every branch, and the end of every run that does not count. A branch without messages that
-- count has no end of its own, but for the thread's first. Only of those that are returned the depth is counted.
CREATE FUNCTION runyard.leaves(t runyard.threads, after_time timestamptz, after_id uuid, most integer)
RETURNS TABLE (message_id uuid, depth bigint, created_at timestamptz, run_id text, run_status text)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    -- Apart, or the primary key is walked until it comes to a branch of the thread.
    root bigint := (SELECT min(b.branch_id) FROM (SELECT x.branch_id FROM runyard.branches x WHERE x.thread_key = t.thread_key OFFSET 0) b);
    continued uuid[] := ARRAY(
        SELECT b.base_id FROM runyard.branches b
        WHERE b.thread_key = t.thread_key AND b.branch_id <> root AND b.base_id IS NOT NULL
          AND EXISTS (SELECT 1 FROM runyard.messages m WHERE m.branch_id = b.branch_id AND m.message_id = b.leaf_id));
BEGIN
    RETURN QUERY
    SELECT x.message_id, (SELECT count(*) FROM runyard.visible(CASE WHEN x.branch_id IS NULL THEN (runyard.cut_at_message(t, x.message_id)).view
                                                                    ELSE runyard.branch_view(x.branch_id) END)),
           x.created_at, x.run_id, x.run_status
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
        FROM (SELECT x.* FROM runyard.runs x WHERE x.thread_key = t.thread_key AND x.finished_at IS NULL AND x.last_seq IS NOT NULL
              UNION ALL
              SELECT x.* FROM runyard.runs x WHERE x.thread_key = t.thread_key AND x.finished_at IS NOT NULL
                AND x.completion_seq IS NULL AND x.last_seq IS NOT NULL AND NOT x.deleted AND x.emptied_at IS NULL) r
        JOIN runyard.messages m ON m.branch_id = r.branch_id AND m.seq = r.last_seq
        WHERE m.message_id <> ALL (continued)) y
        WHERE after_id IS NULL OR (y.created_at, y.message_id) > (after_time, after_id)
        ORDER BY y.created_at, y.message_id LIMIT most) x
    ORDER BY x.created_at, x.message_id;
END $$;

-- The thread as it is, not locked, for reads.
CREATE FUNCTION runyard.known_snapshot(for_tenant text, id text) RETURNS runyard.threads
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    t runyard.threads;
BEGIN
    SELECT x.* INTO t FROM runyard.threads x WHERE x.tenant = for_tenant AND x.thread_id = id AND x.deleted_at IS NULL;
    IF NOT FOUND THEN
        PERFORM runyard.refuse('thread_not_found', format('there is no thread %s', id), jsonb_build_object('thread_id', id));
    END IF;
    RETURN t;
END $$;

-- Lists. A page ends at `most` entries, before the entry with which it would have more than `bytes` (but for its first), or after a thousand
-- rows that were looked at in vain: then it comes short, and says where to go on. Entries are without values of more than 8192 bytes; `omitted`
-- names them. Each function asks with the conditions of one index, which gives the order too, and holds the rows against the other filters
-- itself. Its statement is planned for what was asked: a plan for every case would walk the whole table for some. Each index has a condition
-- that only its list states. Where a primary key has the same order once all else is given, one column is given as a range, and ordered by. Its
-- end is a comparison of that column alone: one of rows that a later column decides does not end a scan.

-- How many bytes a value has as JSON; if it is stored compressed, its size there says nothing.
CREATE FUNCTION runyard.json_bytes(value jsonb) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN CASE WHEN pg_column_size(value) > 8192 OR pg_column_compression(value) IS NULL THEN pg_column_size(value)
                ELSE octet_length(value::text) END;
END $$;

-- Runs, the newest first. What stands behind the page: a row with the place of the last run that was looked at, and nothing else.
CREATE FUNCTION runyard.list_runs(
    for_tenant text, in_thread text, with_status text, of_agent text, since timestamptz, before timestamptz,
    after_time timestamptz, after_no bigint, most integer, bytes bigint
) RETURNS TABLE (run runyard.runs, omitted text[], place_time timestamptz, place_no bigint)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_incremental_sort = off SET plan_cache_mode = force_custom_plan SET jit = off AS $$
DECLARE
    key bigint;
    live text := 'SELECT r.* FROM runyard.runs r WHERE ';
    source text := live || 'NOT r.deleted AND r.emptied_at IS NULL AND r.accept_no > -1 AND ';
    bounds text := ' AND (r.accepted_at, r.accept_no) < ($6, $7) AND r.accepted_at >= $5';
    in_order text := ' ORDER BY r.accepted_at DESC, r.accept_no DESC';
    enough text; -- of each of two sources
    few boolean;
    statement text;
    until_time timestamptz := coalesce(after_time, 'infinity');
    until_no bigint := coalesce(after_no, 9223372036854775807);
    r runyard.runs;
    size bigint;
    looked integer := 0;
    found integer := 0;
    total bigint := 0;
    more boolean := false;
BEGIN
    IF before < until_time OR (before = until_time AND until_no > 0) THEN
        until_time := before; until_no := 0;
    END IF;
    since := coalesce(since, '-infinity');
    enough := format(' LIMIT %s)', 1001 + most);
    IF in_thread IS NOT NULL THEN
        SELECT t.thread_key INTO key FROM runyard.threads t
        WHERE t.tenant = for_tenant AND t.thread_id = in_thread AND t.deleted_at IS NULL;
        statement := source || 'r.accept_no > 0 AND r.thread_key = $2' || bounds;
        few := CASE WHEN with_status IN ('queued', 'running', 'suspended') THEN 1000 >
            (SELECT count(*) FROM (SELECT 1 FROM runyard.runs x WHERE x.thread_key = key AND x.finished_at IS NULL LIMIT 1000) y) END;
        IF few THEN
            -- Apart, or the index that has the order would be read through for the few that are live.
            statement := 'SELECT r.* FROM (' || live || 'r.thread_key = $2 AND r.finished_at IS NULL' || bounds || ' OFFSET 0) r';
        END IF;
        IF EXISTS (SELECT 1 FROM runyard.runs x
                   WHERE x.tenant = for_tenant AND x.thread_id = in_thread AND x.thread_key IS NULL AND x.accept_no > -1
                     AND NOT x.deleted AND x.emptied_at IS NULL) THEN
            statement := 'SELECT r.* FROM ((' || statement || in_order || enough || ' UNION ALL ('
                || source || 'r.tenant = $1 AND r.thread_id = $3 AND r.thread_key IS NULL' || bounds || in_order || enough || ') r';
        END IF;
    ELSIF with_status = 'queued' THEN
        in_order := ' ORDER BY r.tenant DESC, r.accept_no DESC'; -- the order of time, but for moments
        statement := live || 'r.finished_at IS NULL AND r.worker_id IS NULL AND r.suspended_at IS NULL'
            || ' AND (r.tenant, r.accept_no) < ($1, $8) AND r.tenant >= $1';
    ELSIF with_status = 'running' THEN
        statement := live || 'r.tenant = $1 AND r.finished_at IS NULL AND r.worker_id IS NOT NULL' || bounds;
        IF EXISTS (SELECT 1 FROM runyard.runs x
                   WHERE x.tenant = for_tenant AND x.status = 'running' AND x.worker_id IS NULL AND x.accept_no > -1
                     AND NOT x.deleted AND x.emptied_at IS NULL) THEN
            statement := 'SELECT r.* FROM ((' || statement || in_order || enough || ' UNION ALL ('
                || source || 'r.tenant = $1 AND r.status = ''running'' AND r.worker_id IS NULL' || bounds || in_order || enough || ') r';
        END IF;
    ELSIF with_status IN ('failed', 'dead', 'cancelled', 'suspended') THEN
        statement := source || format('r.tenant = $1 AND r.status = %L', with_status) || bounds;
    ELSIF of_agent IS NOT NULL THEN
        statement := source || 'r.tenant = $1 AND r.agent = $4' || bounds;
    ELSE
        statement := source || 'r.accept_no > 0 AND r.tenant = $1' || bounds;
    END IF;
    FOR r IN EXECUTE statement || in_order USING for_tenant, key, in_thread, of_agent, since, until_time, until_no,
        coalesce(after_no, 9223372036854775807) LOOP
        IF (with_status IS NULL OR r.status = with_status) AND (of_agent IS NULL OR r.agent = of_agent)
           AND r.accepted_at >= since AND (before IS NULL OR r.accepted_at < before) AND NOT r.deleted AND r.emptied_at IS NULL
        THEN
            more := found >= most;
            EXIT WHEN more;
            omitted := '{}';
            IF octet_length(r.input) > 8192 THEN r.input := NULL; omitted := omitted || 'input'::text; END IF;
            IF octet_length(r.result) > 8192 THEN r.result := NULL; omitted := omitted || 'result'::text; END IF;
            size := runyard.json_bytes(r.metadata);
            IF size > 8192 THEN r.metadata := '{}'; omitted := omitted || 'metadata'::text; size := 0; END IF;
            r.candidates := NULL; r.fork := NULL; r.extra := NULL;
            size := 1024 + size + coalesce(octet_length(r.input), 0) + coalesce(octet_length(r.result), 0)
                + coalesce(octet_length(r.error::text), 0) + octet_length(r.options::text);
            more := found > 0 AND total + size > bytes;
            EXIT WHEN more;
            found := found + 1; total := total + size;
            run := r;
            RETURN NEXT;
        END IF;
        place_time := r.accepted_at; place_no := r.accept_no; looked := looked + 1;
        more := looked >= 1000 + most;
        EXIT WHEN more;
    END LOOP;
    IF more THEN
        run := NULL; omitted := NULL;
        RETURN NEXT;
    END IF;
END $$;

-- Threads, in the order in which they were made. What stands behind the page: a row that has the place of the last thread looked at alone.
CREATE FUNCTION runyard.list_threads(
    for_tenant text, parent text, of_agent text, with_tags jsonb, after bigint, most integer, bytes bigint
) RETURNS TABLE (thread runyard.threads, omitted text[], place bigint)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_incremental_sort = off SET plan_cache_mode = force_custom_plan
SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    term bytea;
    statement text := 'SELECT t.* FROM runyard.threads t WHERE t.deleted_at IS NULL AND t.thread_key > -1 AND ';
    t runyard.threads;
    size bigint;
    larger bigint;
    looked integer := 0;
    found integer := 0;
    total bigint := 0;
    more boolean := false;
BEGIN
    IF with_tags <> '{}' THEN
        term := (SELECT w.term FROM (SELECT runyard.tag_term(j.key, j.value) AS term FROM jsonb_each_text(with_tags) j) w
                 ORDER BY (SELECT count(*) FROM (SELECT 1 FROM runyard.thread_tags g WHERE g.tenant = for_tenant AND g.term = w.term
                           LIMIT CASE WHEN with_tags - (SELECT min(k) FROM jsonb_object_keys(with_tags) k) = '{}' THEN 0 ELSE 1000 END) x)
                 LIMIT 1);
        statement := 'SELECT t.* FROM (SELECT g.thread_key FROM runyard.thread_tags g WHERE g.tenant = $1 AND g.term = $4 AND g.thread_key > $5'
            || ' ORDER BY g.thread_key LIMIT $6) k JOIN runyard.threads t USING (thread_key) ORDER BY k.thread_key';
    ELSIF parent IS NOT NULL THEN
        statement := statement || 't.tenant = $1 AND (t.parent_thread_id, t.thread_key) > ($2, $5) AND t.parent_thread_id <= $2'
            || ' ORDER BY t.parent_thread_id, t.thread_key';
    ELSIF of_agent IS NOT NULL THEN
        statement := statement || 't.tenant = $1 AND (t.agent, t.thread_key) > ($3, $5) AND t.agent <= $3'
            || ' ORDER BY t.agent, t.thread_key';
    ELSE
        statement := statement || 't.thread_key > 0 AND (t.tenant, t.thread_key) > ($1, $5) AND t.tenant <= $1 ORDER BY t.tenant, t.thread_key';
    END IF;
    FOR t IN EXECUTE statement USING for_tenant, parent, of_agent, term, after, 2000 + most LOOP
        IF t.deleted_at IS NULL AND (parent IS NULL OR t.parent_thread_id = parent) AND (of_agent IS NULL OR t.agent = of_agent)
           AND (with_tags IS NULL OR t.tags @> with_tags)
        THEN
            more := found >= most;
            EXIT WHEN more;
            omitted := '{}';
            size := runyard.json_bytes(t.extra);
            IF size > 8192 THEN t.extra := '{}'; omitted := omitted || 'extra'::text; size := 0; END IF;
            larger := runyard.json_bytes(t.config);
            IF larger > 8192 THEN t.config := '{}'; omitted := omitted || 'config'::text; larger := 0; END IF;
            t.base_extra := '{}';
            size := 512 + size + larger + octet_length(t.tags::text) + octet_length(t.usage::text) + coalesce(octet_length(t.title), 0);
            more := found > 0 AND total + size > bytes;
            EXIT WHEN more;
            found := found + 1; total := total + size;
            thread := t;
            RETURN NEXT;
        END IF;
        place := t.thread_key; looked := looked + 1;
        more := looked >= 1000 + most;
        EXIT WHEN more;
    END LOOP;
    IF more THEN
        thread := NULL; omitted := NULL;
        RETURN NEXT;
    END IF;
END $$;

-- Requests, the oldest first: those that wait, or all. What stands behind the page: a row that says only so.
CREATE FUNCTION runyard.list_requests(
    for_tenant text, in_thread text, pending boolean, after_time timestamptz, after_id text, most integer, bytes bigint
) RETURNS TABLE (request runyard.requests, more boolean)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_incremental_sort = off SET plan_cache_mode = force_custom_plan
SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    q runyard.requests;
    found integer := 0;
    total bigint := 0;
BEGIN
    FOR q IN EXECUTE 'SELECT q.* FROM runyard.requests q WHERE '
        || CASE WHEN in_thread IS NULL THEN 'q.tenant = $1'
                ELSE 'q.thread_key = (SELECT t.thread_key FROM runyard.threads t WHERE t.tenant = $1 AND t.thread_id = $2 AND t.deleted_at IS NULL)' END
        || CASE WHEN NOT pending THEN ' AND q.created_at > ''-infinity'''
                ELSE ' AND q.answered_at IS NULL AND q.closed_at IS NULL' || CASE WHEN in_thread IS NULL THEN '' ELSE ' AND q.created_at >= ''-infinity''' END END
        || CASE WHEN after_id IS NOT NULL THEN ' AND (q.created_at, q.request_id) > ($3, $4)' ELSE '' END
        || ' ORDER BY q.created_at, q.request_id'
        USING for_tenant, in_thread, after_time, after_id
    LOOP
        total := total + 512 + octet_length(q.body) + coalesce(octet_length(q.answer), 0);
        IF found >= most OR (found > 0 AND total > bytes) THEN
            request := NULL; more := true;
            RETURN NEXT;
            RETURN;
        END IF;
        found := found + 1;
        request := q;
        RETURN NEXT;
    END LOOP;
END $$;

-- Attempts of a run, in their order. What stands behind the page: a row that says only so.
CREATE FUNCTION runyard.list_attempts(for_tenant text, in_thread text, in_run text, after bigint, most integer, bytes bigint)
RETURNS TABLE (attempt runyard.attempts, more boolean)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    a runyard.attempts;
    found integer := 0;
    total bigint := 0;
BEGIN
    FOR a IN
        SELECT x.* FROM runyard.runs r JOIN runyard.attempts x USING (accept_no)
        WHERE r.tenant = for_tenant AND r.thread_id = in_thread AND r.run_id = in_run AND NOT r.deleted AND x.fence > after
        UNION ALL
        SELECT r.accept_no, r.fence, r.worker_id, r.started_at, r.finished_at, r.status, NULL FROM runyard.runs r
        WHERE r.tenant = for_tenant AND r.thread_id = in_thread AND r.run_id = in_run AND NOT r.deleted AND r.fence > after
          AND r.status IN ('running', 'completed') AND r.kind <> 'external'
        ORDER BY fence
    LOOP
        total := total + 512 + coalesce(octet_length(a.error::text), 0);
        IF found >= most OR (found > 0 AND total > bytes) THEN
            attempt := NULL; more := true;
            RETURN NEXT;
            RETURN;
        END IF;
        found := found + 1;
        attempt := a;
        RETURN NEXT;
    END LOOP;
END $$;

-- Deliveries, the newest first. The row behind the page is left to the caller, who asks for one more.
CREATE FUNCTION runyard.list_deliveries(for_tenant text, with_status text, before bigint, most integer)
RETURNS SETOF runyard.webhook_deliveries
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_incremental_sort = off SET plan_cache_mode = force_custom_plan SET jit = off AS $$
BEGIN
    RETURN QUERY EXECUTE 'SELECT d.* FROM runyard.webhook_deliveries d WHERE (d.tenant, d.delivery_no) < ($1, $2) AND d.tenant >= $1'
        || CASE with_status WHEN 'pending' THEN ' AND d.next_at IS NOT NULL' WHEN 'delivered' THEN ' AND d.delivered_at IS NOT NULL'
                            WHEN 'failed' THEN ' AND d.failed_at IS NOT NULL' ELSE '' END
        || ' ORDER BY d.tenant DESC, d.delivery_no DESC LIMIT $3'
        USING for_tenant, before, most;
END $$;
