-- Children. A child is a run that an attempt of another run (the parent) started. The parent waits for its children.

-- Accept a child of an attempt's run, together with the wait for its end. The id of the wait is the child's run id. A repetition changes
-- nothing. Raises run_conflict if the id is taken by a run that is not the parent's child, or by a child
-- on another thread. Raises child_deadlock if the child would wait for its own parent, and too_many_children beyond most_depth or most_children.
CREATE OR REPLACE FUNCTION runyard.start_child(
    for_tenant text, q runyard.request, with_fence bigint, most_depth integer, most_children integer,
    OUT run runyard.runs, OUT created boolean, OUT effects jsonb
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    got record;
    parent runyard.runs;
    above runyard.runs;
    depth integer := 1;
BEGIN
    SELECT x.* INTO parent FROM runyard.runs x WHERE x.thread_key = q.started_by_key AND x.run_id = q.started_by_run_id;
    PERFORM runyard.refuse_write(parent, with_fence);
    above := parent;
    WHILE above.run_id IS NOT NULL LOOP
        IF above.thread_id = q.thread_id AND above.finished_at IS NULL AND above.kind = 'prompt' THEN
            PERFORM runyard.refuse('child_deadlock', format('run %s of thread %s waits for this child; start the child on another thread', above.run_id, q.thread_id),
                                   jsonb_build_object('thread_id', q.thread_id, 'run_id', above.run_id));
        END IF;
        IF depth > most_depth THEN
            PERFORM runyard.refuse('too_many_children', format('children are at most %s levels deep', most_depth), jsonb_build_object('limit', most_depth));
        END IF;
        depth := depth + 1;
        SELECT x.* INTO above FROM runyard.runs x WHERE x.thread_key = above.started_by_key AND x.run_id = above.started_by_run_id;
    END LOOP;
    IF most_children <= (SELECT count(*) FROM runyard.waits w WHERE w.thread_key = parent.thread_key AND w.run_id = parent.run_id AND w.kind = 'child'
                         AND w.wait_id <> q.run_id) THEN
        PERFORM runyard.refuse('too_many_children', format('a run has at most %s children', most_children), jsonb_build_object('limit', most_children));
    END IF;
    got := runyard.accept_and_admit(for_tenant, q, EXISTS (SELECT 1 FROM runyard.limits));
    run := got.run; created := got.created; effects := got.effects;
    IF (run.started_by_key, run.started_by_run_id) IS DISTINCT FROM (q.started_by_key, q.started_by_run_id) THEN
        PERFORM runyard.refuse('run_conflict', format('run id %s is taken by a run that is no child of run %s; choose another id', q.run_id, parent.run_id),
                               jsonb_build_object('run_id', q.run_id, 'differs', jsonb_build_array('job')));
    END IF;
    -- Lock the parent's row, because the parent may have been cancelled in the meantime. This lock must come after the lock of
    -- the child's thread.
    SELECT x.* INTO parent FROM runyard.runs x WHERE x.accept_no = parent.accept_no FOR UPDATE;
    PERFORM runyard.refuse_write(parent, with_fence);
    UPDATE runyard.runs SET progressed = true WHERE accept_no = parent.accept_no AND NOT progressed;
    INSERT INTO runyard.waits (thread_key, run_id, wait_id, kind, name) VALUES (parent.thread_key, parent.run_id, q.run_id, 'child', q.thread_id)
    ON CONFLICT (thread_key, run_id, wait_id) DO NOTHING;
    IF NOT EXISTS (SELECT 1 FROM runyard.waits w WHERE w.thread_key = parent.thread_key AND w.run_id = parent.run_id AND w.wait_id = q.run_id
                   AND w.name = q.thread_id) THEN
        PERFORM runyard.refuse('run_conflict', format('run id %s belongs to a child on another thread; choose another id', q.run_id),
                               jsonb_build_object('run_id', q.run_id, 'differs', jsonb_build_array('thread_id')));
    END IF;
END $$;

-- Make the wait for an ended child due. Delete the wait if the parent was deleted with its thread. No other part of the parent
-- is changed, because the transaction does not lock the parent's thread.
CREATE OR REPLACE FUNCTION runyard.end_child(child runyard.runs) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE runyard.waits w SET due_at = now()
    WHERE w.thread_key = child.started_by_key AND w.run_id = child.started_by_run_id AND w.wait_id = child.run_id
      AND w.kind = 'child' AND w.ended_at IS NULL;
    DELETE FROM runyard.waits w
    WHERE w.thread_key = child.started_by_key AND w.run_id = child.started_by_run_id AND w.wait_id = child.run_id AND w.kind = 'child'
      AND NOT EXISTS (SELECT 1 FROM runyard.runs p WHERE p.thread_key = w.thread_key AND p.run_id = w.run_id AND NOT p.deleted);
END $$;

-- Open the wait of the parent again after a redrive of its child. The wait of a cancelled parent stays due, so that the child is cancelled.
CREATE OR REPLACE FUNCTION runyard.reopen_wait(child runyard.runs) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE runyard.waits w SET ended_at = NULL, due_at = CASE WHEN NOT EXISTS (
        SELECT 1 FROM runyard.runs p WHERE p.thread_key = w.thread_key AND p.run_id = w.run_id AND p.status <> 'cancelled') THEN w.due_at END
    WHERE w.thread_key = child.started_by_key AND w.run_id = child.started_by_run_id AND w.wait_id = child.run_id AND w.kind = 'child';
END $$;

-- End the due waits of a suspended run at its claim, and return the run. The waits end here for the following reason: the end
-- of a child only submits the job of the parent, without a lock of the parent's thread. The effects do not contain the run's
-- own job.
CREATE OR REPLACE FUNCTION runyard.wake_parent(INOUT r runyard.runs, OUT effects jsonb)
LANGUAGE plpgsql AS $$
BEGIN
    effects := runyard.end_waits(r.thread_key);
    IF effects IS NOT NULL THEN
        effects := effects || jsonb_build_object('jobs', (
            SELECT coalesce(jsonb_agg(j), '[]') FROM jsonb_array_elements(effects->'jobs') j WHERE j->>'run_id' <> r.run_id));
    END IF;
    SELECT y.* INTO r FROM runyard.runs y WHERE y.accept_no = r.accept_no;
END $$;

-- Make the waits of a cancelled run for its children due. The reconciler then cancels the children. A locked wait is skipped, because its
-- child is ending.
CREATE OR REPLACE FUNCTION runyard.doom_children(r runyard.runs) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE runyard.waits w SET due_at = now() WHERE (w.thread_key, w.run_id, w.wait_id) IN (
        SELECT x.thread_key, x.run_id, x.wait_id FROM runyard.waits x
        WHERE x.thread_key = r.thread_key AND x.run_id = r.run_id AND x.kind = 'child' AND x.ended_at IS NULL FOR UPDATE SKIP LOCKED);
END $$;

-- Delete the waits of these runs of a thread, or of all its runs if run_ids is NULL. A wait for a live child stays, so that the reconciler
-- cancels the child. The end of the child deletes this wait. A locked wait also stays, until the thread is removed. The child
-- of such a wait is ending, and the transaction of its end may need the lock of this thread.
CREATE OR REPLACE FUNCTION runyard.forget_waits(thread_key bigint, run_ids text[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM runyard.waits w WHERE (w.thread_key, w.run_id, w.wait_id) IN (
        SELECT x.thread_key, x.run_id, x.wait_id FROM runyard.waits x
        WHERE x.thread_key = forget_waits.thread_key AND (run_ids IS NULL OR x.run_id = ANY (run_ids)) AND NOT runyard.child_lives(x)
        FOR UPDATE SKIP LOCKED);
END $$;

-- Return true if a deleted thread has waits that must be deleted before the thread. These are waits without a live child, and
-- waits that the end of a child has locked. The end of a live child deletes the other waits. This function locks these other
-- waits. The end of the child therefore sees the removal of the thread.
CREATE OR REPLACE FUNCTION runyard.has_waits_to_forget(of_thread bigint) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    known integer := (SELECT count(*) FROM runyard.waits w WHERE w.thread_key = of_thread);
    left_to_children integer;
BEGIN
    SELECT count(*) INTO left_to_children FROM (
        SELECT 1 FROM runyard.waits w WHERE w.thread_key = of_thread AND runyard.child_lives(w) FOR UPDATE SKIP LOCKED) x;
    RETURN left_to_children < known;
END $$;

-- Return true if the wait is for a child that has not ended.
CREATE OR REPLACE FUNCTION runyard.child_lives(w runyard.waits) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN w.kind = 'child' AND EXISTS (
        SELECT 1 FROM runyard.runs c WHERE c.started_by_key = w.thread_key AND c.started_by_run_id = w.run_id AND c.run_id = w.wait_id
        AND c.finished_at IS NULL);
END $$;

-- Return the threads with children to cancel, and the time at which their cancels became due. A child that is not admitted is cancelled
-- after its admission.
CREATE OR REPLACE FUNCTION runyard.doomed_children(most integer) RETURNS TABLE (tenant text, thread_id text, due_at timestamptz)
LANGUAGE plpgsql STABLE ROWS 10 AS $$
BEGIN
    RETURN QUERY
    SELECT c.tenant, c.thread_id, w.due_at::timestamptz FROM runyard.waits w
    JOIN runyard.runs c ON c.started_by_key = w.thread_key AND c.started_by_run_id = w.run_id AND c.run_id = w.wait_id
    LEFT JOIN runyard.runs p ON p.thread_key = w.thread_key AND p.run_id = w.run_id
    WHERE w.kind = 'child' AND w.ended_at IS NULL AND w.due_at > '-infinity' AND w.due_at <= (SELECT clock_timestamp())
      AND c.finished_at IS NULL AND c.cancel_requested_at IS NULL AND c.lane_seq IS NOT NULL AND coalesce(p.status, 'cancelled') = 'cancelled'
    ORDER BY w.due_at LIMIT most;
END $$;

-- Cancel the runs of the locked thread whose parents were cancelled. The parents may have been deleted afterwards. lines: the permits for
-- which these runs have waited.
CREATE OR REPLACE FUNCTION runyard.cancel_children(INOUT t runyard.threads, OUT effects jsonb, OUT lines text[])
LANGUAGE plpgsql AS $$
DECLARE
    got record;
    r runyard.runs;
BEGIN
    lines := '{}';
    FOR r IN
        SELECT c.* FROM runyard.live_runs l JOIN runyard.runs c USING (accept_no)
        JOIN runyard.waits w ON w.thread_key = c.started_by_key AND w.run_id = c.started_by_run_id AND w.wait_id = c.run_id
        LEFT JOIN runyard.runs p ON p.thread_key = c.started_by_key AND p.run_id = c.started_by_run_id
        WHERE l.thread_key = t.thread_key AND c.lane_seq IS NOT NULL AND c.cancel_requested_at IS NULL
          AND w.kind = 'child' AND (p.status = 'cancelled' OR p.accept_no IS NULL AND w.due_at IS NOT NULL)
        ORDER BY c.accept_no
    LOOP
        IF r.waits_for_permit IS NOT NULL THEN lines := lines || r.waits_for_permit; END IF;
        got := runyard.cancel_run(t, r, false);
        t := got.t; effects := runyard.merge_effects(effects, got.effects);
    END LOOP;
END $$;
