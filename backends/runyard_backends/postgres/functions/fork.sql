-- Forking a thread. A fork copies no message. Instead it gets rows in `levels`, which show its source up to the cut (cuts.sql).
-- visible_messages.sql has the rules for the messages that the levels show. cuts.sql also refuses invalid cuts.

-- Fork a thread. A repetition of the request returns the existing fork, with created = false. q: the request as JSON. hash: the
-- request's hash.
CREATE OR REPLACE FUNCTION runyard.fork(for_tenant text, q jsonb, hash text, OUT thread runyard.threads, OUT created boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    src runyard.threads;
    c record;
    carried jsonb;
    leaf record;
    branch bigint;
BEGIN
    created := false;
    thread := runyard.same_fork(for_tenant, q->>'new', hash);
    IF thread.thread_key IS NOT NULL THEN RETURN; END IF;
    SELECT t.* INTO src FROM runyard.threads t
    WHERE t.tenant = for_tenant AND t.thread_id = q->>'src' AND t.deleted_at IS NULL FOR SHARE;
    IF NOT FOUND THEN
        PERFORM runyard.refuse('thread_not_found', format('there is no thread %s to fork', q->>'src'), jsonb_build_object('thread_id', q->>'src'));
    END IF;
    c := runyard.cut(src, q->'cut');
    carried := runyard.extra_at(c.view) - 'fork';
    IF jsonb_typeof(q->'metadata') = 'object' THEN carried := carried || jsonb_build_object('fork', q->'metadata'); END IF;
    SELECT l.message_id, l.seq INTO leaf FROM runyard.last_visible(c.view) l;
    PERFORM runyard.check_removed(for_tenant, q->>'new');
    branch := nextval('runyard.branch_numbers');
    INSERT INTO runyard.threads AS t (tenant, thread_id, parent_thread_id, forked_after_run_id, forked_at_seq, fork_hash, head_branch,
        next_seq, next_completion_seq, agent, title, tags, base_extra, extra, config, usage)
    VALUES (for_tenant, q->>'new', src.thread_id, (c.after_run).run_id, leaf.seq, hash, branch,
        src.next_seq, src.next_completion_seq, coalesce(q->>'agent', src.agent), q->>'title', q->'tags', carried, carried, src.config,
        CASE WHEN (q->>'reset_usage')::boolean THEN '{}' ELSE runyard.usage_of_view(c.view) END)
    ON CONFLICT (tenant, thread_id) WHERE deleted_at IS NULL DO NOTHING RETURNING t.* INTO thread;
    IF NOT FOUND THEN
        PERFORM runyard.check_free(for_tenant, q->>'new', hash);
        thread := runyard.same_fork(for_tenant, q->>'new', hash);
        RETURN;
    END IF;
    INSERT INTO runyard.branches (branch_id, thread_key, lane, base_id, leaf_id, leaf_seq)
    VALUES (branch, thread.thread_key, '', leaf.message_id, leaf.message_id, coalesce(leaf.seq, 0));
    INSERT INTO runyard.levels (branch_id, ancestor_id, high_water_seq, cutoff, open_run_id)
    SELECT branch, l.branch_id, l.high_water_seq, l.cutoff, l.open_run_id FROM unnest(c.view) l;
    IF coalesce((q->'cut'->>'repair')::boolean, false) THEN
        thread := runyard.repair(thread, branch, runyard.inherited(branch), 'aborted by fork');
    END IF;
    INSERT INTO runyard.outbox (tenant, thread_key, thread_id, type)
    VALUES (for_tenant, thread.thread_key, thread.thread_id, 'thread.forked');
    created := true;
END $$;

-- Close the open tool calls of a view with one message of error results, at the end of a branch. reason: the text of the results.
CREATE OR REPLACE FUNCTION runyard.repair(INOUT t runyard.threads, branch_id bigint, view runyard.level[], reason text)
LANGUAGE plpgsql AS $$
DECLARE
    calls text[] := runyard.open_calls(view);
    error_id uuid := gen_random_uuid();
BEGIN
    IF calls = '{}' THEN RETURN; END IF;
    INSERT INTO runyard.messages (branch_id, seq, message_id, parent_id, role, note, results)
    VALUES (repair.branch_id, t.next_seq, error_id, (SELECT l.message_id FROM runyard.last_visible(view) l), 'tool', reason, calls);
    UPDATE runyard.branches b SET leaf_id = error_id, leaf_seq = t.next_seq WHERE b.branch_id = repair.branch_id;
    t.next_seq := t.next_seq + 1;
    UPDATE runyard.threads SET next_seq = t.next_seq WHERE thread_key = t.thread_key;
END $$;

-- Return the usage of the runs whose messages a view shows completely. These are completed runs, and cancelled runs whose
-- messages were kept. The function reads each of these runs. A usage that is no object of numbers counts nothing, as in
-- add_usage.
CREATE OR REPLACE FUNCTION runyard.usage_of_view(view runyard.level[]) RETURNS jsonb
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (
        WITH whole AS (
            SELECT r.usage FROM unnest(view) l
            CROSS JOIN LATERAL (SELECT x.accept_no FROM runyard.completions x
                                WHERE x.branch_id = l.branch_id AND x.completion_seq <= l.cutoff OFFSET 0) c
            CROSS JOIN LATERAL (SELECT x.usage, x.last_seq FROM runyard.runs x WHERE x.accept_no = c.accept_no OFFSET 0) r
            WHERE jsonb_typeof(r.usage) = 'object' AND coalesce(r.last_seq, 0) <= l.high_water_seq
            UNION ALL
            SELECT r.usage FROM unnest(view) l
            JOIN runyard.branches b ON b.branch_id = l.branch_id
            JOIN runyard.runs r ON r.thread_key = b.thread_key AND r.run_id = l.open_run_id AND r.branch_id = l.branch_id
            WHERE jsonb_typeof(r.usage) = 'object' AND r.last_seq <= l.high_water_seq AND NOT coalesce(r.completion_seq <= l.cutoff, false)
        ), sums AS (
            SELECT e.key, sum(e.value::numeric) AS total FROM whole w CROSS JOIN LATERAL jsonb_each(w.usage) e
            WHERE NOT w.usage @? 'strict $.* ? (@.type() != "number")' GROUP BY e.key)
        SELECT coalesce(jsonb_object_agg(s.key, s.total), '{}') FROM sums s);
END $$;
