-- External runs. A process that is not a worker claims and completes them.

-- Claim an external run. Raises run_already_claimed or run_already_completed if a run with this id exists.
CREATE OR REPLACE FUNCTION runyard.claim_external(for_tenant text, thread_id text, run_id text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    got record;
    t runyard.threads;
    r runyard.runs;
    u runyard.unclaimed;
    head runyard.branches;
BEGIN
    got := runyard.admit_thread(runyard.ensure_thread(for_tenant, thread_id));
    t := got.t;
    PERFORM runyard.tell(got.effects);
    r := runyard.open_external(t, run_id);
    IF r.run_id IS NOT NULL THEN
        PERFORM runyard.refuse('run_already_claimed', format('run %s of thread %s is claimed and not finished', run_id, thread_id),
                               jsonb_build_object('thread_id', thread_id, 'run_id', run_id));
    END IF;
    DELETE FROM runyard.unclaimed v WHERE v.thread_key = t.thread_key AND v.run_id = claim_external.run_id RETURNING v.* INTO u;
    SELECT b.* INTO head FROM runyard.branches b WHERE b.branch_id = coalesce(u.branch_id, t.head_branch);
    PERFORM set_config('lock_timeout', '5ms', true); -- see accept_and_admit
    INSERT INTO runyard.runs (tenant, thread_id, run_id, thread_key, kind, status, lane, lane_seq, queue, priority, request_hash,
        branch_id, base_id, snapshot_tip, snapshot_cutoff, first_seq, last_seq, last_message_id, has_tools, fence, attempt,
        admitted_at, started_at)
    VALUES (for_tenant, claim_external.thread_id, claim_external.run_id, t.thread_key, 'external', 'running', claim_external.run_id, nextval('runyard.lane_numbers'), 'external', 'normal',
        '{"kind": "external"}', head.branch_id, head.leaf_id, t.next_seq - 1, t.next_completion_seq - 1,
        u.first_seq, u.last_seq, u.last_message_id, coalesce(u.has_tools, false), nextval('runyard.fences'), 1, now(), now())
    ON CONFLICT (tenant, thread_id, run_id) WHERE NOT deleted DO NOTHING;
    -- In the meantime, a host's transaction may have accepted a run with this id. In this case open_external refuses the claim.
    IF NOT FOUND THEN PERFORM runyard.open_external(t, run_id); END IF;
END $$;

-- Complete an external run. A completed run stays unchanged. Raises run_not_claimed, and run_already_claimed for a run of a
-- worker.
CREATE OR REPLACE FUNCTION runyard.complete_external(for_tenant text, thread_id text, run_id text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    got record;
    t runyard.threads;
    r runyard.runs;
BEGIN
    t := runyard.live_thread(for_tenant, thread_id);
    IF t.thread_key IS NOT NULL THEN
        SELECT y.* INTO r FROM runyard.runs y WHERE y.thread_key = t.thread_key AND y.run_id = complete_external.run_id;
        IF NOT FOUND THEN
            SELECT i.open INTO got FROM runyard.inherited_run(t.thread_key, complete_external.run_id) i;
            IF FOUND AND NOT got.open THEN RETURN; END IF;
        END IF;
    END IF;
    IF r.completion_seq IS NOT NULL THEN RETURN; END IF;
    IF r.run_id IS NULL OR r.status NOT IN ('queued', 'running', 'suspended') THEN
        PERFORM runyard.refuse('run_not_claimed', format('run %s of thread %s is not claimed; claim it first', run_id, thread_id),
                               jsonb_build_object('thread_id', thread_id, 'run_id', run_id));
    ELSIF r.kind <> 'external' THEN
        PERFORM runyard.refuse('run_already_claimed', format('run %s of thread %s belongs to a worker', run_id, thread_id),
                               jsonb_build_object('thread_id', thread_id, 'run_id', run_id));
    END IF;
    got := runyard.end_run(t, r, 'completed', NULL, nextval('runyard.fences') || '-1');
    PERFORM runyard.tell(got.effects);
END $$;

-- Return the live external run that has this id, or a NULL row if no run has it. Refuse the id of any other run.
CREATE OR REPLACE FUNCTION runyard.open_external(t runyard.threads, run_id text) RETURNS runyard.runs
LANGUAGE plpgsql STABLE AS $$
DECLARE
    r runyard.runs;
    got record;
BEGIN
    SELECT y.* INTO r FROM runyard.runs y WHERE y.tenant = t.tenant AND y.thread_id = t.thread_id AND y.run_id = open_external.run_id AND NOT y.deleted;
    IF NOT FOUND AND t.fork_hash IS NOT NULL THEN
        SELECT i.open INTO got FROM runyard.inherited_run(t.thread_key, open_external.run_id) i;
        IF FOUND THEN
            PERFORM runyard.refuse(CASE WHEN got.open THEN 'run_already_claimed' ELSE 'run_already_completed' END,
                format('run %s is inherited by thread %s from its ancestor and cannot be changed', run_id, t.thread_id),
                jsonb_build_object('thread_id', t.thread_id, 'run_id', run_id));
        END IF;
    ELSIF r.status IN ('completed', 'failed', 'cancelled', 'dead') THEN
        PERFORM runyard.refuse('run_already_completed', format('run %s of thread %s is %s and cannot be changed', run_id, t.thread_id, r.status),
                               jsonb_build_object('thread_id', t.thread_id, 'run_id', run_id, 'status', r.status));
    ELSIF r.kind <> 'external' THEN
        PERFORM runyard.refuse('run_already_claimed', format('run %s of thread %s belongs to a worker', run_id, t.thread_id),
                               jsonb_build_object('thread_id', t.thread_id, 'run_id', run_id));
    END IF;
    RETURN r;
END $$;
