-- The verbs of an attempt: claim, append, the step ledger, complete, suspend, fail, release. Each write proves its fence.

CREATE TYPE runyard.claimed AS (
    thread_key bigint, run_id text, outcome text, retry_in double precision, takeover boolean, leaf_id uuid, thread_extra jsonb,
    version_before text, effects jsonb, run runyard.runs
);
CREATE TYPE runyard.ended AS (thread_key bigint, run_id text, status text, event_id text, error jsonb, effects jsonb, refused text);

CREATE FUNCTION runyard.open_branch(
    t runyard.threads, in_lane text, base uuid, view runyard.level[], OUT branch runyard.branches
) LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO runyard.branches AS b (thread_key, lane, base_id, leaf_id, leaf_seq)
    SELECT t.thread_key, in_lane, base, l.message_id, coalesce(l.seq, 0)
    FROM (SELECT 1) one LEFT JOIN runyard.last_visible(view) l ON true
    RETURNING b.* INTO branch;
    INSERT INTO runyard.levels (branch_id, ancestor_id, high_water_seq, cutoff, open_run_id)
    SELECT branch.branch_id, l.branch_id, l.high_water_seq, l.cutoff, l.open_run_id FROM unnest(view) l;
END $$;

-- The branch that a first claim or a stored message writes: the one that ends at `parent`, or one opened there; without parent the head.
CREATE FUNCTION runyard.branch_for(
    INOUT t runyard.threads, in_lane text, parent uuid, alone boolean, OUT branch runyard.branches
) LANGUAGE plpgsql AS $$
DECLARE
    c record;
    head runyard.branches;
BEGIN
    IF parent IS NULL AND NOT alone THEN
        SELECT b.* INTO branch FROM runyard.branches b WHERE b.branch_id = t.head_branch;
        RETURN;
    END IF;
    IF parent IS NULL THEN
        SELECT b.* INTO head FROM runyard.branches b WHERE b.branch_id = t.head_branch;
        branch := runyard.open_branch(t, in_lane, head.leaf_id, runyard.inherited(head.branch_id)
            || (head.branch_id, t.next_seq - 1, t.next_completion_seq - 1, NULL)::runyard.level);
        RETURN;
    END IF;
    IF NOT alone THEN
        branch := runyard.branch_ending_at(t.thread_key, parent);
    END IF;
    IF branch.branch_id IS NULL OR branch.lane <> in_lane THEN
        SELECT m.* INTO c FROM runyard.cut_at_message(t, parent) m;
        branch := runyard.open_branch(t, in_lane, parent, c.view);
    END IF;
    IF in_lane = '' AND t.head_branch <> branch.branch_id THEN
        t.head_branch := branch.branch_id;
        UPDATE runyard.threads SET head_branch = branch.branch_id WHERE thread_key = t.thread_key;
    END IF;
END $$;

-- The message that has this id on the thread, its own or inherited; a NULL row if there is none. Almost every id is new; one that many threads
-- have (the same words for all of them) is looked up branch by branch.
CREATE FUNCTION runyard.holder_of(key bigint, id uuid, OUT holder runyard.messages)
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM runyard.messages m WHERE m.message_id = id) THEN RETURN; END IF;
    SELECT h.* INTO holder FROM runyard.branches b
    CROSS JOIN LATERAL (SELECT m.* FROM runyard.messages m WHERE m.message_id = id AND m.branch_id = b.branch_id LIMIT 1) h
    WHERE b.thread_key = key LIMIT 1;
    IF NOT FOUND THEN
        SELECT (s.message).* INTO holder FROM runyard.seen_through(key, id) s;
    END IF;
END $$;

CREATE FUNCTION runyard.id_taken(t runyard.threads, id uuid) RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN jsonb_build_object('code', 'invalid_input',
        'message', format('message id %s is taken on thread %s by another message; use a fresh one', id, t.thread_id),
        'details', jsonb_build_object('thread_id', t.thread_id, 'message_id', id));
END $$;

-- Insert messages of a run after its last one; what it holds already was stored by a call whose answer got lost. Rows of thread and run are
-- the caller's to save. first_event: number of the event that tells of the first; NULL for a run that has no events.
CREATE FUNCTION runyard.put_messages(
    INOUT t runyard.threads, INOUT r runyard.runs, messages runyard.new_message[], first_event integer
) LANGUAGE plpgsql AS $$
DECLARE
    many integer := coalesce(cardinality(messages), 0);
    m runyard.new_message;
    holder runyard.messages;
BEGIN
    IF many = 0 THEN RETURN; END IF;
    IF r.branch_id IS NULL THEN
        PERFORM runyard.refuse('invalid_input', format('run %s is a %s job; it has no messages', r.run_id, r.kind));
    END IF;
    r.last_message_id := coalesce(r.last_message_id, r.base_id);
    FOR n IN 1 .. many LOOP
        m := messages[n];
        holder := runyard.holder_of(t.thread_key, m.message_id);
        CONTINUE WHEN holder.run_id = r.run_id;
        IF holder.message_id IS NOT NULL THEN PERFORM runyard.raise(runyard.id_taken(t, m.message_id)); END IF;
        INSERT INTO runyard.messages (branch_id, seq, message_id, parent_id, run_id, role, payload, calls, results, event_id)
        VALUES (r.branch_id, t.next_seq, m.message_id, r.last_message_id, r.run_id, m.role, m.payload, m.calls, m.results,
                r.fence || '-' || (first_event + n - 1));
        r.has_tools := r.has_tools OR m.calls IS NOT NULL OR m.results IS NOT NULL;
        r.last_message_id := m.message_id;
        r.first_seq := coalesce(r.first_seq, t.next_seq);
        r.last_seq := t.next_seq;
        t.next_seq := t.next_seq + 1;
    END LOOP;
END $$;

CREATE FUNCTION runyard.note_attempt(r runyard.runs, how text, why jsonb) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO runyard.attempts (accept_no, fence, worker_id, started_at, outcome, error)
    VALUES (r.accept_no, r.fence, r.worker_id, r.started_at, how, why) ON CONFLICT DO NOTHING;
END $$;

-- How often the run crashed without progress, now that its attempt crashed. The attempt after the second crash is to run alone; that it
-- died while it waited for that is none of its own doing.
CREATE FUNCTION runyard.crashes(r runyard.runs) RETURNS integer
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN CASE WHEN r.progressed THEN 1 WHEN r.crash_count >= 2 AND NOT r.isolated THEN r.crash_count ELSE r.crash_count + 1 END;
END $$;

-- End a run whose attempt crashed, if a cancel waits or the crash was the third; else e.status is NULL.
CREATE FUNCTION runyard.end_crashed(INOUT t runyard.threads, INOUT r runyard.runs, how text, OUT e runyard.ended)
LANGUAGE plpgsql AS $$
DECLARE
    got record;
BEGIN
    e.thread_key := r.thread_key; e.run_id := r.run_id;
    IF r.cancel_requested_at IS NOT NULL THEN
        e.status := 'cancelled';
    ELSIF r.crash_count >= 3 THEN
        e.status := 'dead';
        e.error := jsonb_build_object('code', 'poison', 'message',
            format('run %s crashed %s times without progress: %s; redrive it when the cause is mended', r.run_id, r.crash_count, how));
    ELSE
        RETURN;
    END IF;
    e.event_id := nextval('runyard.fences') || '-1';
    got := runyard.end_run(t, r, e.status, e.error, e.event_id);
    t := got.t; r := got.r;
    e.effects := runyard.merge_effects(got.effects, runyard.outside_event(t, r, e.event_id, 'run.' || e.status,
        CASE WHEN e.error IS NULL THEN '{}' ELSE jsonb_build_object('error', e.error) END));
END $$;

-- Every worker has an agent that is called `default`; one that names none is given everything.
CREATE FUNCTION runyard.serves(w runyard.workers, for_agent text) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(for_agent, 'default') = 'default' OR w.agents = '{}' OR w.agents ? for_agent
$$;

-- paused: the queues from which nothing is claimed; a run that waits for its cancel is ended all the same. limited: slots may be missing.
CREATE FUNCTION runyard.claim_locked(
    t runyard.threads, claimant runyard.workers, id text, paused text[], limited boolean
) RETURNS runyard.claimed
LANGUAGE plpgsql AS $$
DECLARE
    worker text := claimant.worker_id;
    c runyard.claimed;
    r runyard.runs;
    got record;
    u runyard.unclaimed;
    holder runyard.messages;
    first boolean;
    slot text;
    why jsonb;
    event text;
BEGIN
    c.thread_key := t.thread_key; c.run_id := id; c.takeover := false;
    SELECT y.* INTO r FROM runyard.runs y WHERE y.thread_key = t.thread_key AND y.run_id = id;
    IF NOT FOUND OR r.deleted THEN c.outcome := 'unknown'; RETURN c; END IF;
    IF r.status IN ('completed', 'failed', 'cancelled', 'dead') THEN c.outcome := 'ended'; RETURN c; END IF;
    IF r.status = 'suspended' THEN c.outcome := 'suspended'; RETURN c; END IF;
    IF r.queue = ANY (paused) AND r.cancel_requested_at IS NULL THEN
        c.outcome := 'paused'; c.effects := runyard.leave_line(r); RETURN c;
    END IF;
    IF r.status = 'running' THEN
        IF r.kind = 'external' THEN c.outcome := 'busy'; RETURN c; END IF;
        IF r.worker_id <> worker THEN
            IF EXISTS (SELECT 1 FROM runyard.workers w WHERE w.worker_id = r.worker_id AND w.dead_at IS NULL) THEN
                c.outcome := 'busy'; RETURN c;
            END IF;
            r.crash_count := runyard.crashes(r);
        ELSIF r.progressed THEN
            r.crash_count := 0;
        END IF;
        c.takeover := true;
        got := runyard.end_crashed(t, r, 'its worker died while it ran alone');
        IF (got.e).status IS NOT NULL THEN
            c.outcome := 'ended';
            c.effects := runyard.merge_effects((got.e).effects, runyard.free(CASE WHEN limited THEN runyard.slots_of(r) ELSE '{}' END));
            RETURN c;
        END IF;
    ELSE
        IF r.lane_seq IS NULL AND coalesce(r.run_at, r.accepted_at) <= clock_timestamp() THEN
            got := runyard.admit_thread(t);
            t := got.t; c.effects := got.effects;
            SELECT y.* INTO r FROM runyard.runs y WHERE y.accept_no = r.accept_no;
            IF r.status <> 'queued' THEN c.outcome := 'ended'; RETURN c; END IF;
        END IF;
        IF r.lane_seq IS NULL THEN
            c.outcome := 'not_due'; c.retry_in := extract(epoch FROM r.run_at - clock_timestamp()); RETURN c;
        END IF;
        IF r.attempt = 0 AND r.expires_at <= clock_timestamp() THEN
            c.outcome := 'ended';
            c.effects := runyard.merge_effects(c.effects, runyard.leave_line(r));
            got := runyard.expire_run(t, r);
            c.effects := runyard.merge_effects(c.effects, got.effects); RETURN c;
        END IF;
        IF r.not_before > clock_timestamp() THEN
            c.outcome := 'not_due'; c.retry_in := extract(epoch FROM r.not_before - clock_timestamp()); RETURN c;
        END IF;
        IF r.kind <> 'prompt' THEN
            IF runyard.cut_pending(r) THEN c.outcome := 'waiting'; RETURN c; END IF;
        ELSIF EXISTS (SELECT 1 FROM runyard.runs y WHERE y.thread_key = r.thread_key AND y.lane = r.lane
                      AND y.finished_at IS NULL AND y.lane_seq < r.lane_seq) THEN
            c.outcome := 'behind'; RETURN c;
        END IF;
        IF r.progressed THEN r.crash_count := 0; END IF;
    END IF;
    IF r.attempt > 0 THEN
        c.version_before := r.app_version;
        IF claimant.on_version_mismatch = 'wait' AND r.app_version <> claimant.app_version THEN
            c.outcome := 'other_version'; c.effects := runyard.merge_effects(c.effects, runyard.leave_line(r)); RETURN c;
        END IF;
    END IF;
    IF r.kind <> 'fork' AND NOT runyard.serves(claimant, r.agent) THEN
        c.outcome := 'unserved'; c.effects := runyard.merge_effects(c.effects, runyard.leave_line(r)); RETURN c;
    END IF;
    first := r.kind = 'prompt' AND r.snapshot_tip IS NULL;
    holder := CASE WHEN first THEN runyard.holder_of(t.thread_key, r.input_id) END;
    IF holder.message_id IS NOT NULL AND holder.run_id IS DISTINCT FROM r.run_id THEN
        c.effects := runyard.merge_effects(c.effects, runyard.leave_line(r));
        why := runyard.id_taken(t, r.input_id);
        event := nextval('runyard.fences') || '-1';
        got := runyard.end_run(t, r, 'failed', why, event);
        c.outcome := 'ended';
        c.effects := runyard.merge_effects(runyard.merge_effects(c.effects, got.effects),
            runyard.outside_event(t, got.r, event, 'run.failed', jsonb_build_object('error', why)));
        RETURN c;
    END IF;
    slot := CASE WHEN limited AND NOT c.takeover THEN runyard.missing_slot(r) END;
    IF slot IS NOT NULL THEN
        c.outcome := 'limited'; c.effects := runyard.merge_effects(c.effects, runyard.wait_for_slot(r, slot)); RETURN c;
    END IF;
    IF c.takeover THEN PERFORM runyard.note_attempt(r, 'lost', NULL); END IF;
    r.app_version := coalesce(claimant.app_version, r.app_version);
    r.fence := nextval('runyard.fences');
    r.attempt := r.attempt + 1;
    r.worker_id := worker;
    r.status := 'running';
    r.started_at := now();
    r.suspended_at := NULL;
    r.not_before := NULL;
    r.progressed := false;
    r.isolated := false;
    c.leaf_id := r.last_message_id;
    IF first THEN
        got := runyard.branch_for(t, r.lane, r.parent_id, r.parallel);
        t := got.t;
        r.branch_id := (got.branch).branch_id;
        r.base_id := (got.branch).leaf_id;
        r.snapshot_tip := t.next_seq - 1;
        r.snapshot_cutoff := t.next_completion_seq - 1;
        DELETE FROM runyard.unclaimed v WHERE v.thread_key = t.thread_key AND v.run_id = id RETURNING v.* INTO u;
        IF FOUND THEN
            IF u.branch_id <> r.branch_id THEN -- they follow their run; nobody has seen them where they were
                UPDATE runyard.messages m SET branch_id = r.branch_id, seq = m.seq - u.first_seq + t.next_seq,
                       parent_id = CASE m.seq WHEN u.first_seq THEN r.base_id ELSE m.parent_id END
                WHERE m.branch_id = u.branch_id AND m.seq BETWEEN u.first_seq AND u.last_seq AND m.run_id = id;
                u.last_seq := u.last_seq - u.first_seq + t.next_seq;
                u.first_seq := t.next_seq;
                t.next_seq := u.last_seq + 1;
            END IF;
            r.first_seq := u.first_seq; r.last_seq := u.last_seq; r.last_message_id := u.last_message_id; r.has_tools := u.has_tools;
        END IF;
        IF r.input_id IS NOT NULL THEN
            got := runyard.put_messages(t, r,
                ARRAY[(r.input_id, r.input_role, r.input, r.input_calls, r.input_results)::runyard.new_message], 2);
            t := got.t; r := got.r;
        END IF;
        UPDATE runyard.threads SET next_seq = t.next_seq, updated_at = now() WHERE thread_key = t.thread_key AND next_seq < t.next_seq;
    END IF;
    UPDATE runyard.runs SET fence = r.fence, attempt = r.attempt, worker_id = worker, status = 'running', started_at = now(),
        suspended_at = NULL, not_before = NULL, progressed = false, isolated = false, crash_count = r.crash_count,
        branch_id = r.branch_id, base_id = r.base_id, snapshot_tip = r.snapshot_tip, snapshot_cutoff = r.snapshot_cutoff,
        first_seq = r.first_seq, last_seq = r.last_seq,
        last_message_id = r.last_message_id, has_tools = r.has_tools, app_version = r.app_version,
        waits_for_slot = NULL, place_in_line = NULL, until_fewer = NULL, changed_at = now()
    WHERE accept_no = r.accept_no;
    IF r.waits_for_slot IS NOT NULL THEN PERFORM runyard.take_turn(r.waits_for_slot, r.tenant); END IF;
    c.outcome := 'claimed';
    c.thread_extra := t.extra;
    c.run := r;
    RETURN c;
END $$;

-- Claim many runs for a worker in one transaction, in the order of their threads so that batches cannot deadlock. A thread that another
-- transaction holds is skipped, once after a second look.
CREATE FUNCTION runyard.claim(worker text, keys bigint[], ids text[]) RETURNS SETOF runyard.claimed
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    item record;
    t runyard.threads;
    c runyard.claimed;
    claimant runyard.workers;
    paused text[] := ARRAY(SELECT q.queue FROM runyard.paused_queues q);
    limited boolean := EXISTS (SELECT 1 FROM runyard.limits l WHERE l.limit_name IN ('running_per_agent', 'running_per_tenant'));
BEGIN
    SELECT w.* INTO claimant FROM runyard.workers w WHERE w.worker_id = worker AND w.dead_at IS NULL;
    IF NOT FOUND THEN
        PERFORM runyard.refuse('worker_dead', format('worker %s was declared dead; register under a new id', worker));
    END IF;
    IF limited THEN
        PERFORM runyard.lock_slots(ARRAY(
            SELECT s.name FROM unnest(keys, ids) k(key, id) JOIN runyard.runs r ON r.thread_key = k.key AND r.run_id = k.id,
                unnest(runyard.slots_of(r) || r.waits_for_slot) s(name) WHERE s.name IS NOT NULL));
    END IF;
    FOR item IN SELECT k.key, k.id FROM unnest(keys, ids) k(key, id) ORDER BY k.key, k.id LOOP
        IF cardinality(keys) = 1 AND NOT limited THEN
            SELECT x.* INTO t FROM runyard.threads x WHERE x.thread_key = item.key FOR UPDATE;
        ELSE
            SELECT x.* INTO t FROM runyard.threads x WHERE x.thread_key = item.key FOR UPDATE SKIP LOCKED;
        END IF;
        IF FOUND THEN
            c := runyard.claim_locked(t, claimant, item.id, paused, limited);
        ELSE
            c := NULL;
            c.thread_key := item.key;
            c.run_id := item.id;
            c.outcome := CASE WHEN EXISTS (SELECT 1 FROM runyard.threads x WHERE x.thread_key = item.key)
                         THEN 'skipped' ELSE 'unknown' END;
        END IF;
        RETURN NEXT c;
    END LOOP;
END $$;

-- NULL if the attempt may write; else 'stale_fence', 'cancel_requested', or 'repeated' (this attempt has already ended the run's turn).
CREATE FUNCTION runyard.write_refused(r runyard.runs, with_fence bigint) RETURNS text
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN CASE WHEN r.fence IS DISTINCT FROM with_fence OR r.kind = 'external' THEN 'stale_fence'
                WHEN r.status <> 'running' THEN 'repeated'
                WHEN r.cancel_requested_at IS NOT NULL THEN 'cancel_requested' END;
END $$;

CREATE FUNCTION runyard.refuse_write(r runyard.runs, with_fence bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    code text := runyard.write_refused(r, with_fence);
BEGIN
    IF code IS NULL AND r.run_id IS NOT NULL THEN RETURN; END IF;
    PERFORM runyard.refuse(CASE WHEN code = 'cancel_requested' THEN code ELSE 'stale_fence' END,
        CASE WHEN code = 'cancel_requested' THEN format('run %s was cancelled; nothing more is stored', r.run_id)
             ELSE format('the attempt with fence %s no longer holds run %s; stop it', with_fence, coalesce(r.run_id, '(gone)')) END,
        jsonb_build_object('run_id', r.run_id, 'fence', with_fence, 'current_fence', r.fence));
END $$;

CREATE FUNCTION runyard.lock_run(key bigint, id text, OUT t runyard.threads, OUT r runyard.runs)
LANGUAGE plpgsql AS $$
BEGIN
    SELECT x.* INTO t FROM runyard.threads x WHERE x.thread_key = key FOR UPDATE;
    SELECT y.* INTO r FROM runyard.runs y WHERE y.thread_key = key AND y.run_id = id;
END $$;

-- What is stored under the ids of the messages: of one that the run said before, what it said then.
CREATE FUNCTION runyard.append(key bigint, id text, with_fence bigint, messages runyard.new_message[], first_event integer)
RETURNS SETOF runyard.messages
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    seen bigint;
    got record;
    t runyard.threads;
    r runyard.runs;
BEGIN
    got := runyard.lock_run(key, id);
    t := got.t; r := got.r;
    PERFORM runyard.refuse_write(r, with_fence);
    PERFORM runyard.check_size(messages, runyard.limit_of('message_bytes'));
    seen := t.next_seq;
    got := runyard.put_messages(t, r, messages, first_event);
    t := got.t; r := got.r;
    IF t.next_seq > seen THEN
        UPDATE runyard.threads SET next_seq = t.next_seq, updated_at = now() WHERE thread_key = key;
        UPDATE runyard.runs SET first_seq = r.first_seq, last_seq = r.last_seq, last_message_id = r.last_message_id,
               has_tools = r.has_tools, progressed = true, changed_at = now()
        WHERE accept_no = r.accept_no;
    END IF;
    RETURN QUERY SELECT m.* FROM unnest(messages) WITH ORDINALITY n(message_id, role, payload, calls, results, place)
        JOIN runyard.messages m ON m.message_id = n.message_id AND m.branch_id = r.branch_id ORDER BY n.place;
END $$;

-- The row as it was before; no row if the step is new or was started by this attempt: the call is repeated if its answer got lost.
CREATE FUNCTION runyard.start_step(key bigint, id text, with_fence bigint, step text) RETURNS SETOF runyard.steps
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    got record;
    r runyard.runs;
BEGIN
    got := runyard.lock_run(key, id);
    r := got.r;
    PERFORM runyard.refuse_write(r, with_fence);
    RETURN QUERY SELECT s.* FROM runyard.steps s
        WHERE s.accept_no = r.accept_no AND s.step_key = step AND (s.done OR s.fence <> with_fence);
    INSERT INTO runyard.steps (accept_no, step_key, fence) VALUES (r.accept_no, step, with_fence)
    ON CONFLICT (accept_no, step_key) DO UPDATE SET fence = with_fence WHERE NOT runyard.steps.done;
END $$;

CREATE FUNCTION runyard.finish_step(key bigint, id text, with_fence bigint, step text, value bytea) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    got record;
    r runyard.runs;
BEGIN
    got := runyard.lock_run(key, id);
    r := got.r;
    PERFORM runyard.refuse_write(r, with_fence);
    INSERT INTO runyard.steps (accept_no, step_key, done, fence, result) VALUES (r.accept_no, step, true, with_fence, value)
    ON CONFLICT (accept_no, step_key) DO UPDATE SET done = true, result = value, fence = with_fence WHERE NOT runyard.steps.done;
    UPDATE runyard.runs SET progressed = true WHERE accept_no = r.accept_no AND NOT progressed;
END $$;

-- An attempt's run, locked for its last write. over: the turn ends as `e` says although something else is asked, because a cancel was
-- requested first or the write is stale or repeated. Without first_event it is not the attempt that speaks, and a last event has its own fence.
CREATE FUNCTION runyard.lock_attempt(
    key bigint, id text, with_fence bigint, first_event integer,
    OUT t runyard.threads, OUT r runyard.runs, OUT e runyard.ended, OUT over boolean
) LANGUAGE plpgsql AS $$
DECLARE
    got record := runyard.lock_run(key, id);
    code text;
BEGIN
    t := got.t; r := got.r; e.thread_key := key; e.run_id := id;
    code := runyard.write_refused(r, with_fence);
    over := code IS NOT NULL;
    IF code = 'cancel_requested' THEN
        e.event_id := coalesce(with_fence || '-' || first_event, nextval('runyard.fences') || '-1');
        got := runyard.end_run(t, r, 'cancelled', NULL, e.event_id);
        e.status := 'cancelled'; e.effects := got.effects;
        IF first_event IS NULL THEN
            e.effects := runyard.merge_effects(e.effects, runyard.outside_event(t, r, e.event_id, 'run.cancelled', '{}'));
        END IF;
    ELSIF code = 'repeated' THEN
        e.status := r.status; e.event_id := r.event_id; e.error := r.error;
    ELSIF over THEN
        e.refused := code;
    END IF;
END $$;

-- Store what an attempt's last write brings.
CREATE FUNCTION runyard.keep_write(
    INOUT t runyard.threads, INOUT r runyard.runs, w runyard.attempt_write, message_bytes bigint
)
LANGUAGE plpgsql AS $$
DECLARE
    got record;
BEGIN
    IF w.messages IS NOT NULL AND w.messages <> '{}' THEN
        PERFORM runyard.check_size(w.messages, message_bytes);
        got := runyard.put_messages(t, r, w.messages, w.first_event);
        t := got.t; r := got.r;
    END IF;
    IF w.extra IS NOT NULL THEN
        r.extra := coalesce(r.extra, '{}') || w.extra;
        PERFORM runyard.check_extra(t.extra || r.extra);
    END IF;
    IF w.usage IS NOT NULL THEN r.usage := runyard.add_usage(coalesce(r.usage, '{}'), w.usage); END IF;
    r.result := coalesce(w.result, r.result);
END $$;

-- Complete many runs in one transaction, in the order of their threads.
CREATE FUNCTION runyard.complete(writes runyard.attempt_write[]) RETURNS SETOF runyard.ended
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    w runyard.attempt_write;
    t runyard.threads;
    r runyard.runs;
    e runyard.ended;
    got record;
    why jsonb;
    message_bytes bigint := runyard.limit_of('message_bytes');
    limited boolean := EXISTS (SELECT 1 FROM runyard.limits l WHERE l.limit_name IN ('running_per_agent', 'running_per_tenant'));
    slots text[] := '{}';
BEGIN
    FOR w IN SELECT y.* FROM unnest(writes) y ORDER BY y.thread_key, y.run_id LOOP
        IF e.run_id IS NOT NULL THEN RETURN NEXT e; END IF;
        got := runyard.lock_attempt(w.thread_key, w.run_id, w.fence, w.first_event);
        t := got.t; r := got.r; e := got.e;
        IF limited THEN slots := slots || runyard.slots_of(r); END IF;
        CONTINUE WHEN got.over;
        got := runyard.keep_write(t, r, w, message_bytes);
        t := got.t; r := got.r;
        why := NULL;
        IF r.has_tools AND NOT runyard.cycles_closed(r) THEN
            why := jsonb_build_object('code', 'incomplete_tool_cycle', 'message',
                format('run %s ended with a tool call that its result does not directly follow; every call needs its result', r.run_id));
        END IF;
        e.error := why;
        e.status := CASE WHEN why IS NULL THEN 'completed' ELSE 'failed' END;
        e.event_id := w.fence || '-' || (w.first_event + coalesce(cardinality(w.messages), 0));
        got := runyard.end_run(t, r, e.status, why, e.event_id);
        e.effects := got.effects;
    END LOOP;
    IF e.run_id IS NOT NULL THEN
        e.effects := runyard.merge_effects(e.effects, runyard.free(slots)); -- last: no further thread is locked
        RETURN NEXT e;
    END IF;
END $$;

CREATE FUNCTION runyard.fail(w runyard.attempt_write, why jsonb) RETURNS runyard.ended
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    got record;
    t runyard.threads;
    r runyard.runs;
    e runyard.ended;
BEGIN
    got := runyard.lock_attempt(w.thread_key, w.run_id, w.fence, w.first_event);
    t := got.t; r := got.r; e := got.e;
    IF got.over THEN
        e.effects := runyard.merge_effects(e.effects, runyard.free(runyard.slots_of(r)));
        RETURN e;
    END IF;
    got := runyard.keep_write(t, r, w, runyard.limit_of('message_bytes'));
    t := got.t; r := got.r;
    e.status := 'failed'; e.error := why;
    e.event_id := w.fence || '-' || (w.first_event + coalesce(cardinality(w.messages), 0));
    got := runyard.end_run(t, r, 'failed', why, e.event_id);
    e.effects := runyard.merge_effects(got.effects, runyard.free(runyard.slots_of(r)));
    RETURN e;
END $$;

CREATE FUNCTION runyard.suspend(w runyard.attempt_write, requests runyard.new_request[]) RETURNS runyard.ended
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    got record;
    t runyard.threads;
    r runyard.runs;
    e runyard.ended;
    next_event integer := w.first_event + coalesce(cardinality(w.messages), 0);
BEGIN
    got := runyard.lock_attempt(w.thread_key, w.run_id, w.fence, w.first_event);
    t := got.t; r := got.r; e := got.e;
    IF got.over THEN
        e.effects := runyard.merge_effects(e.effects, runyard.free(runyard.slots_of(r)));
        RETURN e;
    END IF;
    e.event_id := w.fence || '-' || (next_event + cardinality(requests));
    IF r.event_id IS DISTINCT FROM e.event_id THEN -- else it is repeated because its answer got lost
        got := runyard.keep_write(t, r, w, runyard.limit_of('message_bytes'));
        t := got.t; r := got.r;
    END IF;
    INSERT INTO runyard.hitl_requests (tenant, request_id, thread_key, run_id, kind, body, deadline_at, otherwise, event_id)
    SELECT t.tenant, q.request_id, t.thread_key, r.run_id, q.kind, q.body,
           coalesce(q.deadline_at, clock_timestamp() + make_interval(secs => q.timeout)), q.otherwise, w.fence || '-' || (next_event + q.n - 1)
    FROM unnest(requests) WITH ORDINALITY q(request_id, kind, body, deadline_at, timeout, otherwise, n)
    ON CONFLICT (tenant, request_id) DO NOTHING;
    e.status := CASE WHEN EXISTS (
        SELECT 1 FROM runyard.hitl_requests h JOIN unnest(requests) q ON h.tenant = t.tenant AND h.request_id = q.request_id
        WHERE h.answered_at IS NOT NULL) THEN 'running' ELSE 'suspended' END;
    IF e.status = 'suspended' THEN
        PERFORM runyard.note_attempt(r, 'suspended', NULL);
        INSERT INTO runyard.outbox (tenant, thread_key, thread_id, run_id, type)
        VALUES (t.tenant, t.thread_key, t.thread_id, r.run_id, 'run.suspended');
    END IF;
    UPDATE runyard.threads SET next_seq = t.next_seq, updated_at = now() WHERE thread_key = t.thread_key;
    UPDATE runyard.runs SET status = e.status, suspended_at = CASE WHEN e.status = 'suspended' THEN now() END,
        worker_id = CASE WHEN e.status = 'suspended' THEN NULL ELSE r.worker_id END,
        first_seq = r.first_seq, last_seq = r.last_seq, last_message_id = r.last_message_id, has_tools = r.has_tools,
        extra = r.extra, usage = r.usage, event_id = e.event_id, progressed = true, changed_at = now()
    WHERE accept_no = r.accept_no;
    IF e.status = 'suspended' THEN e.effects := runyard.free(runyard.slots_of(r)); END IF;
    RETURN e;
END $$;

-- The attempt begins to run alone, so it may be blamed for a crash.
CREATE FUNCTION runyard.isolate(key bigint, id text, with_fence bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    got record := runyard.lock_run(key, id);
    r runyard.runs := got.r;
BEGIN
    IF runyard.write_refused(r, with_fence) IS DISTINCT FROM 'cancel_requested' THEN
        PERFORM runyard.refuse_write(r, with_fence);
    END IF;
    UPDATE runyard.runs SET isolated = true WHERE accept_no = r.accept_no;
END $$;

-- The process that executed the attempt alone died. The run is dead, unless it had committed something or had not begun: then it is
-- queued again.
CREATE FUNCTION runyard.bury(key bigint, id text, with_fence bigint, how text) RETURNS runyard.ended
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    got record;
    t runyard.threads;
    r runyard.runs;
    e runyard.ended;
    code text;
BEGIN
    got := runyard.lock_run(key, id);
    t := got.t; r := got.r;
    code := runyard.write_refused(r, with_fence);
    IF code IN ('stale_fence', 'repeated') THEN
        RETURN (runyard.lock_attempt(key, id, with_fence, 1)).e;
    END IF;
    r.crash_count := runyard.crashes(r);
    got := runyard.end_crashed(t, r, how);
    e := got.e;
    IF e.status IS NULL THEN
        PERFORM runyard.note_attempt(r, 'lost', NULL);
        UPDATE runyard.runs y SET status = 'queued', worker_id = NULL, progressed = false, crash_count = r.crash_count,
            not_before = now(), changed_at = now()
        WHERE y.accept_no = r.accept_no RETURNING y.* INTO r;
        e.status := 'queued'; e.event_id := '';
        e.effects := jsonb_build_object('jobs', jsonb_build_array(runyard.job(r)));
    END IF;
    e.effects := runyard.merge_effects(e.effects, runyard.free(runyard.slots_of(r)));
    RETURN e;
END $$;

-- Back to the queue: a retry after an error (counted), or a hand-over (not counted). fewer: a job waits until fewer of the runs that it
-- started are unfinished.
CREATE FUNCTION runyard.release(
    key bigint, id text, with_fence bigint, delay double precision, why jsonb, first_event integer, fewer integer
) RETURNS runyard.ended
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    got record;
    r runyard.runs;
    e runyard.ended;
BEGIN
    got := runyard.lock_attempt(key, id, with_fence, first_event);
    r := got.r; e := got.e;
    IF got.over THEN
        e.effects := runyard.merge_effects(e.effects, runyard.free(runyard.slots_of(r)));
        RETURN e;
    END IF;
    PERFORM runyard.note_attempt(r, CASE WHEN why IS NULL THEN 'released' ELSE 'retried' END, why);
    UPDATE runyard.runs y SET status = 'queued', worker_id = NULL, not_before = now() + make_interval(secs => delay), changed_at = now(),
           until_fewer = fewer, error = coalesce(why, y.error), error_count = y.error_count + CASE WHEN why IS NULL THEN 0 ELSE 1 END
    WHERE y.accept_no = r.accept_no RETURNING y.* INTO r;
    e.status := 'queued'; e.error := why; e.event_id := with_fence || '-' || coalesce(first_event, 1);
    IF fewer IS NULL OR NOT runyard.cut_pending(r) THEN
        e.effects := jsonb_build_object('jobs', jsonb_build_array(runyard.job(r)));
    END IF;
    e.effects := runyard.merge_effects(e.effects, runyard.free(runyard.slots_of(r)));
    RETURN e;
END $$;
