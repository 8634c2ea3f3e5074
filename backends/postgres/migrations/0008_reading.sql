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

-- The leaves of the thread's tree: the end of every branch, and the end of every run that does not count. A branch without messages that
-- count has no end of its own, but for the thread's first.
CREATE FUNCTION runyard.leaves(t runyard.threads)
RETURNS TABLE (message_id uuid, depth bigint, created_at timestamptz, run_id text, run_status text)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    root bigint := (SELECT min(b.branch_id) FROM runyard.branches b WHERE b.thread_key = t.thread_key);
    continued uuid[] := ARRAY(
        SELECT b.base_id FROM runyard.branches b
        WHERE b.thread_key = t.thread_key AND b.branch_id <> root AND b.base_id IS NOT NULL
          AND EXISTS (SELECT 1 FROM runyard.messages m WHERE m.branch_id = b.branch_id AND m.message_id = b.leaf_id));
BEGIN
    RETURN QUERY
    SELECT x.message_id, x.depth, x.created_at, x.run_id, x.run_status FROM (
        SELECT m.message_id, (SELECT count(*) FROM runyard.visible(runyard.branch_view(b.branch_id))) AS depth, m.created_at, m.run_id,
               r.status AS run_status
        FROM runyard.branches b
        JOIN runyard.messages m ON m.message_id = b.leaf_id AND (m.branch_id = b.branch_id OR (b.branch_id = root AND m.branch_id IN (
            SELECT l.ancestor_id FROM runyard.levels l WHERE l.branch_id = root AND b.leaf_seq <= l.high_water_seq)))
        JOIN runyard.branches o ON o.branch_id = m.branch_id
        LEFT JOIN runyard.runs r ON r.thread_key = o.thread_key AND r.run_id = m.run_id
        WHERE b.thread_key = t.thread_key AND b.leaf_id IS NOT NULL AND b.leaf_id <> ALL (continued)
        UNION ALL
        SELECT m.message_id, (SELECT count(*) FROM runyard.visible((runyard.cut_at_message(t, m.message_id)).view)), m.created_at, r.run_id, r.status
        FROM (SELECT x.* FROM runyard.runs x WHERE x.thread_key = t.thread_key AND x.finished_at IS NULL AND x.last_seq IS NOT NULL
              UNION ALL
              SELECT x.* FROM runyard.runs x WHERE x.thread_key = t.thread_key AND x.finished_at IS NOT NULL
                AND x.completion_seq IS NULL AND x.last_seq IS NOT NULL AND NOT x.deleted AND x.emptied_at IS NULL) r
        JOIN runyard.messages m ON m.branch_id = r.branch_id AND m.seq = r.last_seq
        WHERE m.message_id <> ALL (continued)) x
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
