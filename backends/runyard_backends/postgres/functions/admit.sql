-- Admitting runs that were accepted in a host's transaction or for a later time. The verb admit also applies deadlines of HITL requests and
-- waits, and the expiry of runs (deadlines.sql). make_way in lanes.sql applies the multitask_strategy if the lane is busy.

-- Admit the committed runs that are due. Apply the deadlines of HITL requests and waits. Fail the runs that were not started
-- by their expires_at. One call covers at most `most` threads of each kind (the `limit` of `admit` in
-- runyard/ports/stores.py). A thread that another transaction has locked is left to a later call. next_due: seconds until the
-- next due time, deadline or expiry; NULL if there is none. If a thread was left to a later call, next_due is the number of
-- seconds for which the thread is overdue, at least 0.01 and at most 1. Calls therefore become rarer while the thread stays
-- locked. enable_sort: only the index runs_due has the runs in the order of their times. Another index may look as cheap, and
-- has all delayed runs.
CREATE OR REPLACE FUNCTION runyard.admit(most integer, OUT effects jsonb, OUT next_due double precision)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_sort = off SET jit = off AS $$
DECLARE
    due record;
    got record;
    done integer := 0;
    lines text[] := '{}';
    locked text[] := '{}'; -- tenants and ids of the locked threads, which are left to a later call
    known_locked integer;
    overdue interval;
    other timestamptz := runyard.next_time('-infinity');
    only_runs boolean := other IS NULL OR other > clock_timestamp();
BEGIN
    FOR page IN 1 .. 10 LOOP
        known_locked := cardinality(locked);
        FOR due IN SELECT d.* FROM runyard.due_threads(most, locked, only_runs) d LOOP
            got := runyard.due_thread(due.tenant, due.thread_id, due.thread_key);
            IF got.locked THEN
                locked := locked || (due.tenant || E'\x1f' || due.thread_id);
                overdue := least(overdue, clock_timestamp() - due.due_at);
            END IF;
            CONTINUE WHEN (got.t).thread_key IS NULL;
            got := runyard.apply_due(got.t, due.kinds);
            effects := runyard.merge_effects(effects, got.effects); lines := lines || got.lines;
            done := done + 1;
        END LOOP;
        EXIT WHEN cardinality(locked) = known_locked OR done >= most; -- otherwise more threads can be due after the locked ones
    END LOOP;
    effects := runyard.merge_effects(effects, runyard.free(lines)); -- after the last lock of a thread
    IF done >= most THEN
        next_due := 0;
        RETURN;
    END IF;
    IF NOT only_runs THEN other := runyard.next_time(clock_timestamp()); END IF;
    next_due := extract(epoch FROM least(other,
        (SELECT coalesce(y.run_at, y.accepted_at) AS due_at FROM runyard.runs y
         WHERE y.lane_seq IS NULL AND y.accept_no > 0 AND coalesce(y.run_at, y.accepted_at) > (SELECT clock_timestamp()) ORDER BY due_at LIMIT 1)
        ) - clock_timestamp());
    IF overdue IS NOT NULL THEN
        next_due := least(next_due, greatest(0.01, least(1, extract(epoch FROM overdue))));
    END IF;
END $$;

-- Admit the due runs of a locked thread, and apply everything else that is due on the thread. kinds: 'deadline' for a HITL request or a
-- wait, 'child' for a child of a cancelled run, 'expiry' for an expired run. lines: the permits for which the ended runs have waited.
CREATE OR REPLACE FUNCTION runyard.apply_due(t runyard.threads, kinds text[], OUT effects jsonb, OUT lines text[])
LANGUAGE plpgsql AS $$
DECLARE
    got record;
BEGIN
    lines := '{}';
    got := runyard.admit_thread(t);
    t := got.t; effects := got.effects;
    IF 'deadline' = ANY (kinds) THEN
        got := runyard.fire_deadlines(t);
        t := got.t; effects := runyard.merge_effects(effects, got.effects);
    END IF;
    IF 'child' = ANY (kinds) THEN
        got := runyard.cancel_children(t);
        t := got.t; effects := runyard.merge_effects(effects, got.effects); lines := got.lines;
    END IF;
    IF 'expiry' = ANY (kinds) THEN
        got := runyard.expire_runs(t);
        effects := runyard.merge_effects(effects, got.effects); lines := lines || got.lines;
    END IF;
END $$;

-- Lock and return a thread on which something is due. Make the thread if it does not exist. key: the key of the thread at the
-- earlier read, or NULL. locked: true if another transaction has locked the thread. t is NULL if the thread is locked, or was
-- deleted after the earlier read.
CREATE OR REPLACE FUNCTION runyard.due_thread(for_tenant text, thread_id text, key bigint, OUT t runyard.threads, OUT locked boolean)
LANGUAGE plpgsql AS $$
DECLARE
    code text;
    usual_timeout text := current_setting('lock_timeout');
BEGIN
    locked := false;
    IF key IS NOT NULL THEN
        SELECT x.* INTO t FROM runyard.threads x WHERE x.thread_key = key FOR UPDATE SKIP LOCKED;
        IF NOT FOUND THEN
            locked := EXISTS (SELECT 1 FROM runyard.threads x WHERE x.thread_key = key AND x.deleted_at IS NULL);
        ELSIF t.deleted_at IS NOT NULL THEN
            t := NULL;
        END IF;
        RETURN;
    END IF;
    BEGIN
        PERFORM set_config('lock_timeout', '1ms', true);
        t := runyard.make_thread(for_tenant, thread_id, NULL);
        IF t.thread_key IS NULL THEN t := runyard.ensure_thread(for_tenant, thread_id); END IF;
        PERFORM set_config('lock_timeout', usual_timeout, true);
        -- After the run was read, another transaction may have made the thread and deleted it with the run. Do not make the thread again.
        IF NOT EXISTS (SELECT 1 FROM runyard.runs x WHERE x.tenant = for_tenant AND x.thread_id = due_thread.thread_id
                       AND x.lane_seq IS NULL AND NOT x.deleted) THEN
            PERFORM runyard.refuse('run_not_found', format('no run of thread %s is due', thread_id));
        END IF;
    EXCEPTION WHEN SQLSTATE 'RY000' OR lock_not_available THEN
        GET STACKED DIAGNOSTICS code = PG_EXCEPTION_HINT;
        t := NULL;
        locked := code = 'locked' OR SQLSTATE = '55P03';
    END;
END $$;

-- Admit the thread's committed runs that are due, in order, so that no later run overtakes them.
CREATE OR REPLACE FUNCTION runyard.admit_thread(INOUT t runyard.threads, OUT effects jsonb)
LANGUAGE plpgsql AS $$
DECLARE
    got record;
    r runyard.runs;
BEGIN
    IF NOT EXISTS (SELECT 1 FROM runyard.runs x WHERE x.tenant = t.tenant AND x.thread_id = t.thread_id AND x.lane_seq IS NULL) THEN
        RETURN;
    END IF;
    FOR r IN
        SELECT x.* FROM runyard.runs x
        WHERE x.tenant = t.tenant AND x.thread_id = t.thread_id AND x.lane_seq IS NULL AND NOT x.deleted
          AND coalesce(x.run_at, x.accepted_at) <= clock_timestamp()
        ORDER BY coalesce(x.run_at, x.accepted_at), x.accept_no
    LOOP
        got := runyard.admit_late(t, r);
        t := got.t;
        effects := runyard.merge_effects(effects, got.effects);
    END LOOP;
END $$;

-- Admit a run that was accepted in a host's own transaction or for a later time. A refusal fails the run.
CREATE OR REPLACE FUNCTION runyard.admit_late(INOUT t runyard.threads, r runyard.runs, OUT effects jsonb)
LANGUAGE plpgsql AS $$
DECLARE
    got record;
    refused jsonb := runyard.why_not(t, r.run_id, r.parent_id);
    first boolean := false; -- true if nothing is before the run in its lane
BEGIN
    r.thread_key := t.thread_key;
    r.lane := runyard.lane_of(t, r.kind, r.parallel, r.run_id, CASE WHEN refused IS NULL THEN r.parent_id END);
    IF refused IS NULL THEN
        got := runyard.make_way(t, r.lane, r.multitask_strategy);
        t := got.t; effects := got.effects; refused := got.refused;
        first := got.busy IS NULL AND r.kind = 'prompt';
    END IF;
    r.agent := runyard.agent_of(r.agent, t.agent);
    IF r.kind = 'prompt' THEN t := runyard.set_thread_agent(t, r.agent); END IF;
    UPDATE runyard.runs x SET thread_key = t.thread_key, lane = r.lane, lane_seq = nextval('runyard.lane_numbers'),
           admitted_at = greatest(now(), x.accepted_at), -- accepted_at is later than now() if this transaction has waited for the thread's lock
           agent = r.agent, changed_at = now()
    WHERE x.accept_no = r.accept_no RETURNING x.lane_seq, x.admitted_at, x.changed_at INTO r.lane_seq, r.admitted_at, r.changed_at;
    IF first THEN
        effects := runyard.merge_effects(effects, jsonb_build_object('jobs', jsonb_build_array(runyard.job(r))));
        RETURN;
    END IF;
    refused := coalesce(refused, runyard.lane_full(r));
    IF refused IS NULL THEN
        effects := runyard.merge_effects(effects, runyard.startable(t, r));
        RETURN;
    END IF;
    r.event_id := nextval('runyard.fences') || '-1';
    got := runyard.end_run(t, r, 'failed', refused, r.event_id);
    t := got.t;
    effects := runyard.merge_effects(runyard.merge_effects(effects, got.effects),
        runyard.outside_event(t, r, r.event_id, 'run.failed', jsonb_build_object('error', refused)));
END $$;

-- Return the error that forbids a run on this thread, or NULL. Two errors are possible: an inherited run has the run's id, or
-- the parent message is missing or inside an open tool cycle.
CREATE OR REPLACE FUNCTION runyard.why_not(t runyard.threads, run_id text, parent_id uuid) RETURNS jsonb
LANGUAGE plpgsql STABLE AS $$
DECLARE
    got record;
    code text;
    message text;
    details text;
BEGIN
    IF t.fork_hash IS NOT NULL THEN
        SELECT i.open INTO got FROM runyard.inherited_run(t.thread_key, why_not.run_id) i;
        IF FOUND THEN
            RETURN jsonb_build_object(
                'code', CASE WHEN got.open THEN 'run_already_claimed' ELSE 'run_already_completed' END,
                'message', format('run id %s is inherited by thread %s from its ancestor; use another', run_id, t.thread_id),
                'details', jsonb_build_object('thread_id', t.thread_id, 'run_id', run_id));
        END IF;
    END IF;
    IF why_not.parent_id IS NOT NULL THEN
        BEGIN
            SELECT m.* INTO got FROM runyard.cut_at_message(t, why_not.parent_id) m;
            PERFORM runyard.check_boundary(got.view, got.whole, got.message);
        EXCEPTION WHEN SQLSTATE 'RY000' THEN
            GET STACKED DIAGNOSTICS code = PG_EXCEPTION_HINT, message = MESSAGE_TEXT, details = PG_EXCEPTION_DETAIL;
            RETURN jsonb_build_object('code', code, 'message', message, 'details', details::jsonb);
        END;
    END IF;
    RETURN NULL;
END $$;
