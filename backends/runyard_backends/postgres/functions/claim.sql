-- Claiming runs for a worker. runyard/worker/claim_loop.py chooses `patience` (LOCK_WAIT_SECONDS, LONG_LOCK_WAIT_SECONDS).

-- Claim many runs for a worker in one transaction. Threads are locked in the order of their keys, so that batches cannot
-- deadlock. A thread that another transaction has locked is skipped. patience: milliseconds to wait for such a thread before
-- it is skipped. With limits on running runs, the function locks permits before threads, and does not wait for a thread. The
-- transaction that has locked the thread may wait for one of these permits. A wait could therefore cause a deadlock.
CREATE OR REPLACE FUNCTION runyard.claim(worker_id text, thread_keys bigint[], run_ids text[], patience integer DEFAULT 0)
RETURNS SETOF runyard.claimed
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    item record;
    t runyard.threads;
    c runyard.claimed;
    claimant runyard.workers;
    paused text[] := ARRAY(SELECT q.queue FROM runyard.paused_queues q);
    limited boolean := EXISTS (SELECT 1 FROM runyard.limits l WHERE l.limit_name IN ('running_per_agent', 'running_per_tenant'));
    done text[] := '{}'; -- the thread keys and ids of the plain runs, which are claimed together
BEGIN
    SELECT w.* INTO claimant FROM runyard.workers w WHERE w.worker_id = claim.worker_id AND w.dead_at IS NULL;
    IF NOT FOUND THEN
        PERFORM runyard.refuse('worker_dead', format('worker %s was declared dead; register under a new id', worker_id));
    END IF;
    IF limited THEN
        patience := 0;
        PERFORM runyard.lock_permits(ARRAY(
            SELECT s.name FROM unnest(thread_keys, run_ids) k(thread_key, run_id) JOIN runyard.runs r ON r.thread_key = k.thread_key AND r.run_id = k.run_id
                JOIN runyard.threads x ON x.thread_key = k.thread_key,
                unnest(runyard.permits_of(runyard.as_claimed(r, x.agent, claimant)) || r.waits_for_permit) s(name) WHERE s.name IS NOT NULL));
    ELSIF cardinality(thread_keys) > 1 -- for a single run that is not plain, the plain path would only cost time
          OR (SELECT r.attempt = 0 FROM runyard.runs r WHERE r.thread_key = thread_keys[1] AND r.run_id = run_ids[1]) THEN
        FOR c IN SELECT p.* FROM runyard.claim_plain(claimant, thread_keys, run_ids, paused, patience) p LOOP
            done := done || (c.thread_key || ' ' || c.run_id);
            RETURN NEXT c;
        END LOOP;
        IF cardinality(done) = cardinality(thread_keys) THEN RETURN; END IF;
    END IF;
    FOR item IN
        SELECT k.thread_key, k.run_id FROM unnest(thread_keys, run_ids) k(thread_key, run_id)
        WHERE k.thread_key || ' ' || k.run_id <> ALL (done)
        ORDER BY k.thread_key, k.run_id
    LOOP
        SELECT x.* INTO t FROM runyard.threads x WHERE x.thread_key = item.thread_key FOR UPDATE SKIP LOCKED;
        IF NOT FOUND AND patience > 0 THEN
            t := runyard.wait_for_thread(item.thread_key, patience);
            IF t.thread_key IS NULL THEN patience := greatest(1, patience / 2); END IF; -- so that all waits together take at most twice this time
        END IF;
        IF t.thread_key IS NOT NULL THEN
            c := runyard.claim_locked(t, claimant, item.run_id, paused, limited);
        ELSE
            c := NULL;
            c.thread_key := item.thread_key;
            c.run_id := item.run_id;
            c.outcome := CASE WHEN EXISTS (SELECT 1 FROM runyard.threads x WHERE x.thread_key = item.thread_key)
                         THEN 'skipped' ELSE 'unknown' END;
        END IF;
        RETURN NEXT c;
    END LOOP;
END $$;

-- Claim a run whose thread is locked. paused: the paused queues. A run of a paused queue is claimed only if a cancel was requested. The
-- worker then ends the run. limited: true if the deployment has limits on running runs.
CREATE OR REPLACE FUNCTION runyard.claim_locked(
    t runyard.threads, claimant runyard.workers, run_id text, paused text[], limited boolean
) RETURNS runyard.claimed
LANGUAGE plpgsql AS $$
DECLARE
    c runyard.claimed;
    r runyard.runs;
    got record;
    holder runyard.messages;
    first boolean;
    permit text;
BEGIN
    c.thread_key := t.thread_key; c.run_id := run_id; c.takeover := false;
    SELECT y.* INTO r FROM runyard.runs y WHERE y.thread_key = t.thread_key AND y.run_id = claim_locked.run_id;
    IF NOT FOUND OR r.deleted THEN c.outcome := 'unknown'; RETURN c; END IF;
    IF r.status = 'suspended' THEN got := runyard.wake_parent(r); r := got.r; c.effects := got.effects; END IF;
    IF r.status NOT IN ('queued', 'running') THEN c.outcome := CASE r.status WHEN 'suspended' THEN r.status ELSE 'ended' END; RETURN c; END IF;
    IF r.queue = ANY (paused) AND r.cancel_requested_at IS NULL THEN
        c.outcome := 'paused'; c.effects := runyard.merge_effects(c.effects, runyard.leave_line(r)); RETURN c;
    END IF;
    IF r.status = 'running' THEN
        got := runyard.take_over(t, r, claimant, limited);
        t := got.t; r := got.r; c.outcome := got.outcome; c.effects := got.effects;
        IF c.outcome IS NOT NULL THEN RETURN c; END IF;
        c.takeover := true;
    ELSE
        IF r.lane_seq IS NULL AND coalesce(r.run_at, r.accepted_at) <= clock_timestamp() THEN
            got := runyard.admit_thread(t);
            t := got.t; c.effects := got.effects;
            SELECT y.* INTO r FROM runyard.runs y WHERE y.accept_no = r.accept_no;
            IF r.status <> 'queued' THEN c.outcome := 'ended'; RETURN c; END IF;
        END IF;
        got := runyard.not_startable(t, r);
        IF got.outcome IS NOT NULL THEN
            c.outcome := got.outcome; c.retry_in := got.retry_in; c.effects := runyard.merge_effects(c.effects, got.effects); RETURN c;
        END IF;
        IF r.progressed THEN r.crash_count := 0; END IF;
    END IF;
    IF r.attempt > 0 THEN
        c.version_before := r.app_version;
        IF claimant.on_version_mismatch = 'wait' AND r.app_version <> claimant.app_version THEN
            c.outcome := 'other_version'; c.run := r; c.effects := runyard.merge_effects(c.effects, runyard.leave_line(r)); RETURN c;
        END IF;
    END IF;
    IF NOT runyard.is_agent(r.agent) THEN got := runyard.name_agent(t, r, claimant); t := got.t; r := got.r; END IF;
    IF r.kind <> 'fork' AND NOT runyard.serves(claimant, r.agent) THEN
        c.outcome := 'unserved'; c.run := r; c.effects := runyard.merge_effects(c.effects, runyard.leave_line(r)); RETURN c;
    END IF;
    first := r.kind = 'prompt' AND r.snapshot_tip IS NULL;
    holder := CASE WHEN first THEN runyard.holder_of(t.thread_key, r.input_id) END;
    IF holder.message_id IS NOT NULL AND holder.run_id IS DISTINCT FROM r.run_id THEN
        c.outcome := 'ended'; c.effects := runyard.merge_effects(c.effects, runyard.fail_taken(t, r)); RETURN c;
    END IF;
    permit := CASE WHEN limited AND NOT c.takeover THEN runyard.missing_permit(r) END;
    IF permit IS NOT NULL THEN
        c.outcome := 'limited'; c.effects := runyard.merge_effects(c.effects, runyard.wait_for_permit(r, permit)); RETURN c;
    END IF;
    IF c.takeover THEN PERFORM runyard.note_attempt(r, 'lost', runyard.blocked_error(r.worker_id)); END IF;
    r.app_version := coalesce(claimant.app_version, r.app_version);
    r.fence := nextval('runyard.fences'); r.attempt := r.attempt + 1; r.worker_id := claimant.worker_id; r.status := 'running';
    r.started_at := greatest(now(), r.admitted_at); r.suspended_at := NULL; r.not_before := NULL;
    r.progressed := false; r.isolated := false;
    c.leaf_id := r.last_message_id;
    IF first THEN got := runyard.begin_run(t, r, holder.message_id IS NOT NULL); t := got.t; r := got.r; END IF;
    UPDATE runyard.runs SET fence = r.fence, attempt = r.attempt, worker_id = r.worker_id, status = 'running', started_at = r.started_at,
        suspended_at = NULL, not_before = NULL, progressed = false, isolated = false, crash_count = r.crash_count,
        branch_id = r.branch_id, base_id = r.base_id, snapshot_tip = r.snapshot_tip, snapshot_cutoff = r.snapshot_cutoff,
        first_seq = r.first_seq, last_seq = r.last_seq, last_message_id = r.last_message_id, has_tools = r.has_tools, app_version = r.app_version,
        waits_for_permit = NULL, place_in_line = NULL, until_fewer = NULL, changed_at = now(),
        input = CASE WHEN NOT first THEN r.input END -- begin_run has stored the input as a message
    WHERE accept_no = r.accept_no;
    PERFORM runyard.follow_claim(r);
    IF r.attempt > 1 THEN PERFORM runyard.receive_answers(r); END IF;
    IF r.waits_for_permit IS NOT NULL THEN PERFORM runyard.take_turn(r.waits_for_permit, r.tenant); END IF;
    c.outcome := 'claimed'; c.thread_extra := t.extra;
    c.run := CASE WHEN r.input IS NULL THEN runyard.with_input(r) ELSE r END;
    RETURN c;
END $$;

-- Fail a run whose input has the id of another message of the thread.
CREATE OR REPLACE FUNCTION runyard.fail_taken(t runyard.threads, r runyard.runs) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
    got record;
    why jsonb := runyard.id_taken(t, r.input_id);
    event text := nextval('runyard.fences') || '-1';
    effects jsonb := runyard.leave_line(r);
BEGIN
    got := runyard.end_run(t, r, 'failed', why, event);
    RETURN runyard.merge_effects(runyard.merge_effects(effects, got.effects),
        runyard.outside_event(t, got.r, event, 'run.failed', jsonb_build_object('error', why)));
END $$;

-- Begin a prompt at its first claim. Determine its branch and its snapshot, and store its input. Messages that were appended under the
-- run's id before the claim become messages of the run. The caller must save the run's row. has_input: true if the input is one of these
-- messages, false if no message of the thread has the input's id.
CREATE OR REPLACE FUNCTION runyard.begin_run(INOUT t runyard.threads, INOUT r runyard.runs, has_input boolean)
LANGUAGE plpgsql AS $$
DECLARE
    got record;
    branch runyard.branches;
    u runyard.unclaimed;
BEGIN
    IF r.parent_id IS NULL AND NOT r.parallel THEN -- the usual case needs no call of branch_for
        SELECT b.* INTO branch FROM runyard.branches b WHERE b.branch_id = t.head_branch;
    ELSE
        got := runyard.branch_for(t, r.lane, r.parent_id, r.parallel);
        t := got.t; branch := got.branch;
    END IF;
    r.branch_id := branch.branch_id;
    r.base_id := branch.leaf_id;
    r.snapshot_tip := t.next_seq - 1;
    r.snapshot_cutoff := t.next_completion_seq - 1;
    DELETE FROM runyard.unclaimed v WHERE v.thread_key = t.thread_key AND v.run_id = r.run_id RETURNING v.* INTO u;
    IF FOUND THEN
        IF u.branch_id <> r.branch_id THEN -- move the messages to the run's branch; no reader has seen them on the old branch
            UPDATE runyard.messages m SET branch_id = r.branch_id, seq = m.seq - u.first_seq + t.next_seq,
                   parent_id = CASE m.seq WHEN u.first_seq THEN r.base_id ELSE m.parent_id END
            WHERE m.branch_id = u.branch_id AND m.seq BETWEEN u.first_seq AND u.last_seq AND m.run_id = r.run_id;
            u.last_seq := u.last_seq - u.first_seq + t.next_seq;
            u.first_seq := t.next_seq;
            t.next_seq := u.last_seq + 1;
        END IF;
        r.first_seq := u.first_seq; r.last_seq := u.last_seq; r.last_message_id := u.last_message_id; r.has_tools := u.has_tools;
    END IF;
    IF r.input_id IS NOT NULL AND NOT has_input THEN
        got := runyard.put_messages(t, r,
            ARRAY[(r.input_id, r.input_role, r.input, r.input_calls, r.input_results)::runyard.new_message], 2, true);
        t := got.t; r := got.r;
    END IF;
    UPDATE runyard.threads SET next_seq = t.next_seq, updated_at = now() WHERE thread_key = t.thread_key AND next_seq < t.next_seq;
END $$;
