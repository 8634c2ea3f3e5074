-- Reading a thread's messages, a run's context and a run's input.

-- Return the run with its input. From the first claim on, the input is a message of the run, and its row has it no more.
CREATE OR REPLACE FUNCTION runyard.with_input(r runyard.runs) RETURNS runyard.runs
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
BEGIN
    IF r.input IS NULL AND r.input_id IS NOT NULL AND r.branch_id IS NOT NULL THEN
        r.input := (SELECT m.payload FROM runyard.messages m WHERE m.message_id = r.input_id AND m.branch_id = r.branch_id);
    END IF;
    RETURN r;
END $$;

-- Return one page of messages, in the order of their numbers. at: the last message of the path; NULL for all visible messages of
-- of_branch, by default of the head. The call for a later page must name the branch of the first page.
CREATE OR REPLACE FUNCTION runyard.page(
    for_tenant text, thread_id text, at uuid, after bigint, before bigint, most bigint, newest_first boolean, of_branch bigint
) RETURNS SETOF runyard.messages
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    t runyard.threads;
    c record;
    view runyard.level[];
    l runyard.level;
    got bigint;
BEGIN
    t := runyard.known_snapshot(for_tenant, thread_id);
    IF at IS NULL THEN
        view := runyard.branch_view(coalesce(
            (SELECT b.branch_id FROM runyard.branches b WHERE b.branch_id = of_branch AND b.thread_key = t.thread_key), t.head_branch));
    ELSE
        c := runyard.cut_at_message(t, at);
        view := c.view;
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

-- Return up to `most` of the messages that a run sees: the messages of its snapshot after the number `after`, then its own messages
-- after the number own_after. Some of its own messages may have been stored before its claim. Raises stale_fence if another attempt has
-- claimed the run.
CREATE OR REPLACE FUNCTION runyard.context(thread_key bigint, run_id text, with_fence bigint, after bigint, own_after bigint, most bigint)
RETURNS TABLE (message runyard.messages, own boolean)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    r runyard.runs;
    l runyard.level;
    got bigint;
BEGIN
    SELECT x.* INTO r FROM runyard.runs x WHERE x.thread_key = context.thread_key AND x.run_id = context.run_id;
    IF r.fence IS DISTINCT FROM with_fence THEN
        PERFORM runyard.refuse('stale_fence', format('the attempt with fence %s no longer holds run %s; stop it', with_fence, context.run_id),
                               jsonb_build_object('run_id', context.run_id, 'fence', with_fence, 'current_fence', r.fence));
    END IF;
    FOR l IN
        SELECT x.branch_id, x.high_water_seq, x.cutoff, x.open_run_id FROM unnest(runyard.run_view(r)) x ORDER BY x.high_water_seq
    LOOP
        CONTINUE WHEN l.high_water_seq <= after;
        RETURN QUERY SELECT p, false FROM runyard.visible_part(l, after, 9223372036854775807, most, false) p;
        GET DIAGNOSTICS got = ROW_COUNT;
        most := most - got;
        IF most <= 0 THEN RETURN; END IF;
    END LOOP;
    RETURN QUERY SELECT m, true FROM runyard.messages m
        WHERE m.branch_id = r.branch_id AND m.seq BETWEEN greatest(r.first_seq, own_after + 1) AND r.last_seq AND m.run_id = context.run_id
        ORDER BY m.seq LIMIT most;
END $$;
