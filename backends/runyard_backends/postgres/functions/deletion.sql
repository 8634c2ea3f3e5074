-- Deletion. A thread is deleted at once, and removal.sql removes its rows step by step. A message that a fork sees stays until the last
-- such fork is deleted. left_over in delete_thread is the maximum number of rows to remove in the transaction of the deletion.

-- Delete a thread. cancel_first: true to cancel live runs; false to raise thread_busy for a live run. seen: the updated_at
-- that the caller has read, or NULL. erase: true to erase also the content that forks show. unremoved: the deleted threads
-- that still have rows. postgres/threads.py removes these rows with runyard.remove_step. If the process that deletes the
-- thread stops, the leader removes the rows (prune.sql).
CREATE OR REPLACE FUNCTION runyard.delete_thread(
    for_tenant text, thread_id text, cancel_first boolean, seen timestamptz, erase boolean DEFAULT false,
    OUT effects jsonb, OUT unremoved bigint[]
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    got record;
    t runyard.threads;
    r runyard.runs;
    kin bigint[];
    doomed bigint;
    left_over integer := 500;
BEGIN
    t := runyard.find_family(for_tenant, thread_id);
    PERFORM runyard.check_unchanged(t, seen);
    kin := ARRAY(SELECT DISTINCT a.thread_key FROM runyard.branches b JOIN runyard.levels l USING (branch_id)
                 JOIN runyard.branches a ON a.branch_id = l.ancestor_id WHERE b.thread_key = t.thread_key);
    got := runyard.admit_thread(t);
    t := got.t; effects := runyard.merge_effects(got.effects, jsonb_build_object('deleted', jsonb_build_array(t.thread_key)));
    FOR r IN
        SELECT y.* FROM runyard.runs y
        WHERE y.accept_no IN (
            SELECT x.accept_no FROM runyard.live_runs x WHERE x.thread_key = t.thread_key
            UNION ALL
            SELECT x.accept_no FROM runyard.runs x WHERE x.tenant = t.tenant AND x.thread_id = t.thread_id AND x.lane_seq IS NULL)
          AND NOT y.deleted AND y.kind <> 'external' ORDER BY y.lane_seq NULLS LAST
    LOOP
        IF NOT cancel_first THEN
            PERFORM runyard.refuse('thread_busy', format('run %s of thread %s is %s; cancel it first, or delete with cancel', r.run_id, delete_thread.thread_id, r.status),
                                   jsonb_build_object('thread_id', delete_thread.thread_id, 'run_id', r.run_id));
        END IF;
        IF r.lane_seq IS NULL THEN
            r.thread_key := t.thread_key; r.lane := r.run_id; r.lane_seq := nextval('runyard.lane_numbers'); r.admitted_at := greatest(now(), r.accepted_at);
            UPDATE runyard.runs SET thread_key = r.thread_key WHERE accept_no = r.accept_no;
        END IF;
        r.cancel_keep := false;
        IF r.status = 'running' THEN
            r.fence := nextval('runyard.fences');
            UPDATE runyard.runs SET fence = r.fence WHERE accept_no = r.accept_no;
            effects := runyard.merge_effects(effects, jsonb_build_object('cancels', jsonb_build_array(
                jsonb_build_object('thread_key', r.thread_key, 'run_id', r.run_id))));
        END IF;
        r.event_id := nextval('runyard.fences') || '-1';
        got := runyard.end_run(t, r, 'cancelled', NULL, r.event_id);
        t := got.t;
        effects := runyard.merge_effects(effects, runyard.outside_event(t, r, r.event_id, 'run.cancelled', '{}'));
        IF r.started_by_key IS NOT NULL THEN effects := runyard.merge_effects(effects, runyard.wake_starter(r)); END IF;
    END LOOP;
    UPDATE runyard.threads SET deleted_at = now(), title = NULL, tags = '{}', config = '{}' WHERE thread_key = t.thread_key;
    DELETE FROM runyard.hitl_requests h WHERE h.thread_key = t.thread_key AND h.answered_at IS NULL;
    DELETE FROM runyard.waits w WHERE w.thread_key = t.thread_key AND w.ended_at IS NULL AND w.kind <> 'child';
    DELETE FROM runyard.signals s WHERE s.thread_key = t.thread_key AND s.wait_id IS NULL;
    DELETE FROM runyard.labels l WHERE l.thread_key = t.thread_key;
    INSERT INTO runyard.outbox (tenant, thread_key, thread_id, type) VALUES (t.tenant, t.thread_key, t.thread_id, 'thread.deleted');
    -- Examine deleted ancestors again, because this thread may have been the last one that showed some of their messages.
    INSERT INTO runyard.removals AS s (thread_key, tenant, thread_id, erase, runs_hidden)
    SELECT z.thread_key, z.tenant, z.thread_id, delete_thread.erase AND z.thread_key = t.thread_key, z.thread_key <> t.thread_key
    FROM runyard.threads z WHERE z.thread_key = ANY (kin || t.thread_key) AND z.deleted_at IS NOT NULL
    ON CONFLICT ON CONSTRAINT removals_pkey DO UPDATE SET after_run = '', below_branch = excluded.below_branch, after_seq = 0;
    unremoved := '{}';
    FOREACH doomed IN ARRAY ARRAY(SELECT k FROM unnest(kin || t.thread_key) k ORDER BY k DESC) LOOP
        -- Remove a small thread at once. The rows of large threads and erased threads are removed later, without the locks of ancestors.
        IF left_over > 0 AND NOT erase THEN
            left_over := left_over - runyard.remove_part(doomed, left_over);
        END IF;
        IF EXISTS (SELECT 1 FROM runyard.removals s WHERE s.thread_key = doomed) THEN unremoved := unremoved || doomed; END IF;
    END LOOP;
END $$;

-- Lock the thread's ancestors and then the thread. Return the thread. Every function locks threads in the order of their keys, and
-- ancestors have smaller keys.
CREATE OR REPLACE FUNCTION runyard.find_family(for_tenant text, thread_id text) RETURNS runyard.threads
LANGUAGE plpgsql AS $$
DECLARE
    of_thread bigint := (SELECT t.thread_key FROM runyard.threads t
                   WHERE t.tenant = for_tenant AND t.thread_id = find_family.thread_id AND t.deleted_at IS NULL);
BEGIN
    PERFORM 1 FROM runyard.threads a
    WHERE a.thread_key IN (SELECT anc.thread_key FROM runyard.branches b JOIN runyard.levels l USING (branch_id)
                           JOIN runyard.branches anc ON anc.branch_id = l.ancestor_id WHERE b.thread_key = of_thread)
    ORDER BY a.thread_key FOR UPDATE;
    RETURN runyard.known_thread(for_tenant, thread_id);
END $$;

-- Delete the content of a run that has ended and is in no context. The run's row stays, so that a repeated request finds it.
-- Keep messages that a live thread shows through a fork or a branch. When no live thread shows them any more, another call
-- deletes them.
CREATE OR REPLACE FUNCTION runyard.delete_run(for_tenant text, thread_id text, run_id text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    t runyard.threads := runyard.known_thread(for_tenant, thread_id);
    r runyard.runs := runyard.known_run(t, run_id);
    details jsonb := jsonb_build_object('thread_id', thread_id, 'run_id', run_id, 'status', r.status);
    shown bigint;
    doomed uuid[];
    numbers bigint[];
    next text;
BEGIN
    IF r.finished_at IS NULL THEN
        PERFORM runyard.refuse('run_in_use', format('run %s of thread %s is %s; cancel it first', run_id, thread_id, r.status), details);
    ELSIF r.completion_seq IS NOT NULL THEN
        PERFORM runyard.refuse('run_in_use', format('run %s is part of the context of thread %s; delete or erase the thread', run_id, thread_id), details);
    END IF;
    SELECT coalesce(max(l.high_water_seq), 0) INTO shown
    FROM runyard.levels l JOIN runyard.branches b USING (branch_id) JOIN runyard.threads z USING (thread_key)
    WHERE l.ancestor_id = r.branch_id AND l.open_run_id = delete_run.run_id AND z.deleted_at IS NULL;
    SELECT array_agg(m.message_id), array_agg(m.seq) INTO doomed, numbers FROM runyard.messages m
    WHERE m.branch_id = r.branch_id AND m.run_id = delete_run.run_id AND m.seq BETWEEN greatest(r.first_seq, shown + 1) AND r.last_seq;
    IF doomed IS NOT NULL THEN
        SELECT y.run_id INTO next FROM runyard.runs y
        WHERE y.tenant = t.tenant AND y.thread_id = t.thread_id AND NOT y.deleted AND y.emptied_at IS NULL AND (
            y.branch_id IS NULL AND y.status <> 'cancelled' AND y.parent_id = ANY (doomed)
            OR y.finished_at IS NULL AND ((y.fork->'cut'->>'at_message_id')::uuid = ANY (doomed) OR (y.fork->'cut'->>'at_seq')::bigint = ANY (numbers)))
        ORDER BY y.accept_no LIMIT 1;
        IF FOUND THEN
            PERFORM runyard.refuse('run_in_use', format('run %1$s continues from a message of run %2$s; first cancel or delete run %1$s', next, run_id),
                                   details || jsonb_build_object('used_by', next));
        END IF;
    END IF;
    UPDATE runyard.runs y SET emptied_at = coalesce(y.emptied_at, now()), input = NULL, input_id = NULL, input_calls = NULL, input_results = NULL,
        candidates = NULL, fork = NULL, result = NULL, error = NULL, metadata = '{}', options = y.options - 'webhook', extra = NULL, abort_words = NULL
    WHERE y.accept_no = r.accept_no;
    DELETE FROM runyard.messages m WHERE m.branch_id = r.branch_id AND m.message_id = ANY (doomed);
    DELETE FROM runyard.hitl_requests h WHERE h.thread_key = t.thread_key AND h.run_id = delete_run.run_id;
    DELETE FROM runyard.signals s USING runyard.waits w
    WHERE w.thread_key = t.thread_key AND w.run_id = delete_run.run_id AND s.thread_key = t.thread_key AND s.signal_id = w.signal_id;
    PERFORM runyard.forget_waits(t.thread_key, ARRAY[delete_run.run_id]);
    PERFORM runyard.drop_records(ARRAY[r.accept_no], NULL);
    UPDATE runyard.attempts a SET error = NULL WHERE a.accept_no = r.accept_no;
    PERFORM runyard.graph_remove_run(t.thread_key, delete_run.run_id);
END $$;
