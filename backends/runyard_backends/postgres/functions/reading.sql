-- Reading a thread's messages, a run's context and a run's input.

-- Return the run with its input. After the first claim, the input is not in the run's row, but in a message of the run.
CREATE OR REPLACE FUNCTION runyard.with_input(r runyard.runs) RETURNS runyard.runs
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF r.input IS NULL THEN r.input := runyard.stored_input(r.input_id, r.branch_id); END IF;
    RETURN r;
END $$;

-- Return the payload of the message that was the input of a run of this branch, or NULL. input_id and branch_id: NULL if the run has none.
CREATE OR REPLACE FUNCTION runyard.stored_input(input_id uuid, branch_id bigint) RETURNS bytea
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
BEGIN
    IF input_id IS NULL OR branch_id IS NULL THEN RETURN NULL; END IF;
    RETURN (SELECT m.payload FROM runyard.messages m WHERE m.message_id = stored_input.input_id AND m.branch_id = stored_input.branch_id);
END $$;

-- Return one page of messages, each with the present status of its run, in the order of their numbers. at: the last message of the path. If
-- at is NULL, return all visible messages of a branch and the messages of its live run. of_branch: the branch, or NULL for the head. The
-- call for a later page must name the branch of the first page.
CREATE OR REPLACE FUNCTION runyard.path_page(
    for_tenant text, thread_id text, at uuid, after bigint, before bigint, most bigint, newest_first boolean, of_branch bigint
) RETURNS TABLE (message runyard.messages, run_status text)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    t runyard.threads;
    c record;
    view runyard.level[];
    l runyard.level;
    got bigint;
BEGIN
    t := runyard.known_snapshot(for_tenant, thread_id);
    IF at IS NULL THEN
        view := runyard.live_view(t, coalesce(
            (SELECT b.branch_id FROM runyard.branches b WHERE b.branch_id = of_branch AND b.thread_key = t.thread_key), t.head_branch));
    ELSE
        IF at = runyard.root_id() THEN PERFORM runyard.refuse_message(t, at); END IF;
        c := runyard.cut_at_message(t, at);
        view := c.view;
    END IF;
    FOR l IN
        SELECT x.branch_id, x.high_water_seq, x.cutoff, x.open_run_id FROM unnest(view) x
        ORDER BY CASE WHEN newest_first THEN -x.high_water_seq ELSE x.high_water_seq END
    LOOP
        RETURN QUERY SELECT p.message, p.run_status FROM runyard.visible_page(l, after, before, most, newest_first) p;
        GET DIAGNOSTICS got = ROW_COUNT;
        most := most - got;
        EXIT WHEN most <= 0;
    END LOOP;
END $$;

-- Return the view of all visible messages of a branch and of the messages of its live run. The live run is the head of the
-- branch's lane, provided that an attempt of it has begun.
CREATE OR REPLACE FUNCTION runyard.live_view(t runyard.threads, of_branch bigint) RETURNS runyard.level[]
LANGUAGE plpgsql STABLE SET enable_seqscan = off AS $$
BEGIN
    RETURN runyard.inherited(of_branch) || (of_branch, 9223372036854775807, 9223372036854775807, (
        SELECT h.run_id FROM runyard.branches b
        CROSS JOIN LATERAL runyard.lane_head(t.thread_key, b.lane, CASE b.lane WHEN '' THEN t.lane_floor ELSE 0 END) h
        WHERE b.branch_id = of_branch AND h.branch_id = of_branch))::runyard.level;
END $$;

-- Return up to `most` of the messages that a run sees: the messages of its snapshot after the number `after`, then its own messages after
-- the number own_after. Raises stale_fence if another attempt has claimed the run. Workers of older releases call this function. Other
-- workers call runyard.history.
CREATE OR REPLACE FUNCTION runyard.context(thread_key bigint, run_id text, with_fence bigint, after bigint, own_after bigint, most bigint)
RETURNS TABLE (message runyard.messages, own boolean)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    r runyard.runs;
    l runyard.level;
    got bigint;
BEGIN
    r := runyard.read_by(thread_key, run_id, with_fence);
    FOR l IN
        SELECT x.branch_id, x.high_water_seq, x.cutoff, x.open_run_id FROM unnest(runyard.run_view(r)) x ORDER BY x.high_water_seq
    LOOP
        CONTINUE WHEN l.high_water_seq <= after;
        RETURN QUERY SELECT p.message, false FROM runyard.visible_page(l, after, 9223372036854775807, most, false) p;
        GET DIAGNOSTICS got = ROW_COUNT;
        most := most - got;
        IF most <= 0 THEN RETURN; END IF;
    END LOOP;
    RETURN QUERY SELECT m, true FROM runyard.messages m
        WHERE m.branch_id = r.branch_id AND m.seq BETWEEN greatest(r.first_seq, own_after + 1) AND r.last_seq AND m.run_id = context.run_id
        ORDER BY m.seq LIMIT most;
END $$;

-- Return the thread as the first row, then the messages that a checkpointer loads, if the thread has at most `most` messages. Return no row
-- if the thread does not exist. The first row is no message. Its column note is a JSON object with more (true if the thread may have more
-- messages), extra, config and parent_thread_id. If there are more messages, it has only more, unless `most` is 0. Messages have the form
-- of runyard.history.
CREATE OR REPLACE FUNCTION runyard.load(for_tenant text, thread_id text, most bigint) RETURNS TABLE (
    seq bigint, id text, parent_id text, run_id text, role text, payload bytea, note text, calls text[], results text[], created_at bytea
) LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    t runyard.threads;
    more boolean;
BEGIN
    SELECT x.* INTO t FROM runyard.threads x WHERE x.tenant = for_tenant AND x.thread_id = load.thread_id AND x.deleted_at IS NULL;
    IF NOT FOUND THEN RETURN; END IF;
    more := t.next_seq > most + 1; -- numbers grow along a path, and begin with 1
    note := CASE WHEN more AND most > 0 THEN jsonb_build_object('more', true)
            ELSE jsonb_build_object('more', more, 'extra', t.extra, 'config', t.config, 'parent_thread_id', t.parent_thread_id) END::text;
    RETURN NEXT;
    IF more THEN RETURN; END IF;
    RETURN QUERY
        SELECT m.seq, m.message_id::text, m.parent_id::text, m.run_id, m.role, m.payload, m.note,
               CASE WHEN m.payload IS NULL THEN m.calls END, CASE WHEN m.payload IS NULL THEN m.results END, timestamptz_send(m.created_at)
        FROM (SELECT (p.message).* FROM unnest(runyard.branch_view(t.head_branch)) l
              CROSS JOIN LATERAL runyard.visible_page(l, 0, 9223372036854775807, most, false) p
              UNION ALL
              SELECT u.* FROM runyard.uncompleted(t.thread_key, t.head_branch) u) m;
END $$;

-- Return the messages of a branch that belong to live external runs, or to runs that were never claimed.
CREATE OR REPLACE FUNCTION runyard.uncompleted(thread_key bigint, branch_id bigint) RETURNS SETOF runyard.messages
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
        SELECT o.* FROM runyard.live_runs l
        CROSS JOIN LATERAL (SELECT x.run_id, x.branch_id, x.kind, x.first_seq FROM runyard.runs x WHERE x.accept_no = l.accept_no OFFSET 0) r
        CROSS JOIN LATERAL (
            SELECT x.* FROM runyard.messages x WHERE x.branch_id = r.branch_id AND x.run_id = r.run_id AND x.seq >= r.first_seq OFFSET 0) o
        WHERE l.thread_key = uncompleted.thread_key AND r.branch_id = uncompleted.branch_id AND r.kind = 'external';
    RETURN QUERY
        SELECT o.* FROM runyard.unclaimed u
        CROSS JOIN LATERAL (
            SELECT x.* FROM runyard.messages x
            WHERE x.branch_id = u.branch_id AND x.run_id = u.run_id AND x.seq BETWEEN u.first_seq AND u.last_seq OFFSET 0) o
        WHERE u.thread_key = uncompleted.thread_key AND u.branch_id = uncompleted.branch_id;
END $$;
