-- Forks, stored messages, external runs, deletion.

-- Close the open calls of a view with one error result at the end of a branch.
CREATE FUNCTION runyard.repair(INOUT t runyard.threads, branch bigint, view runyard.level[], reason text)
LANGUAGE plpgsql AS $$
DECLARE
    calls text[] := runyard.open_calls(view);
    id uuid := gen_random_uuid();
BEGIN
    IF calls = '{}' THEN RETURN; END IF;
    INSERT INTO runyard.messages (branch_id, seq, message_id, parent_id, role, note, results)
    VALUES (branch, t.next_seq, id, (SELECT l.message_id FROM runyard.last_visible(view) l), 'tool', reason, calls);
    UPDATE runyard.branches SET leaf_id = id, leaf_seq = t.next_seq WHERE branch_id = branch;
    t.next_seq := t.next_seq + 1;
    UPDATE runyard.threads SET next_seq = t.next_seq WHERE thread_key = t.thread_key;
END $$;

-- Where a request cuts the thread: the view, and the run it is after, if any.
CREATE FUNCTION runyard.cut(t runyard.threads, q jsonb, OUT view runyard.level[], OUT after_run runyard.runs)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    got record;
    at uuid := (q->>'at_message_id')::uuid;
    run_id text := q->>'after_run_id';
BEGIN
    IF at IS NULL AND q->>'at_seq' IS NOT NULL THEN
        at := runyard.message_at(t, (q->>'at_seq')::bigint);
    END IF;
    IF at IS NOT NULL THEN
        SELECT c.* INTO got FROM runyard.cut_at_message(t, at) c;
        view := got.view;
        IF NOT coalesce((q->>'repair')::boolean, false) THEN
            PERFORM runyard.check_boundary(got.view, got.whole, got.message);
        END IF;
        RETURN;
    END IF;
    IF run_id IS NULL THEN
        run_id := runyard.last_completed(t);
        IF run_id IS NULL THEN
            PERFORM runyard.refuse('run_not_completed',
                format('thread %s has no completed run; prompt it once, then fork', t.thread_id), jsonb_build_object('thread_id', t.thread_id));
        END IF;
    END IF;
    got := runyard.cut_after_run(t, run_id);
    view := got.view; after_run := got.run;
END $$;

-- The message with a number: on the thread's own branches, or on an ancestor's where the thread sees it.
CREATE FUNCTION runyard.message_at(t runyard.threads, number bigint) RETURNS uuid
LANGUAGE plpgsql STABLE AS $$
DECLARE
    id uuid;
BEGIN
    SELECT m.message_id INTO id FROM runyard.branches b JOIN runyard.messages m ON m.branch_id = b.branch_id AND m.seq = number
    WHERE b.thread_key = t.thread_key;
    IF NOT FOUND THEN
        SELECT m.message_id INTO id
        FROM runyard.branches own JOIN runyard.levels l ON l.branch_id = own.branch_id
        JOIN runyard.messages m ON m.branch_id = l.ancestor_id AND m.seq = number
        WHERE own.thread_key = t.thread_key AND m.seq <= l.high_water_seq
          AND EXISTS (SELECT 1 FROM runyard.seen_through(t.thread_key, m.message_id)) LIMIT 1;
    END IF;
    IF id IS NULL THEN
        PERFORM runyard.refuse('message_not_found', format('thread %s has no message with number %s', t.thread_id, number),
                               jsonb_build_object('thread_id', t.thread_id, 'seq', number));
    END IF;
    RETURN id;
END $$;

CREATE FUNCTION runyard.same_fork(for_tenant text, id text, hash text) RETURNS runyard.threads
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (
    SELECT t FROM runyard.threads t
    WHERE t.tenant = for_tenant AND t.thread_id = id AND t.deleted_at IS NULL AND t.fork_hash = hash
    );
END $$;

-- Refuse an id that is taken by a thread that is not this fork.
CREATE FUNCTION runyard.check_free(for_tenant text, id text, hash text) RETURNS void
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM runyard.threads t WHERE t.tenant = for_tenant AND t.thread_id = id AND t.deleted_at IS NULL
               AND t.fork_hash IS DISTINCT FROM hash) THEN
        PERFORM runyard.refuse('thread_already_exists', format('thread %s exists already and is not this fork; choose another id', id),
                               jsonb_build_object('thread_id', id));
    END IF;
END $$;

CREATE FUNCTION runyard.fork(for_tenant text, q jsonb, hash text, OUT thread runyard.threads, OUT created boolean)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
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
    branch := nextval('runyard.branch_numbers');
    INSERT INTO runyard.threads AS t (tenant, thread_id, parent_thread_id, forked_after_run_id, forked_at_seq, fork_hash, head_branch,
        next_seq, next_completion_seq, agent, title, tags, base_extra, extra, config, usage)
    VALUES (for_tenant, q->>'new', src.thread_id, (c.after_run).run_id, leaf.seq, hash, branch,
        src.next_seq, src.next_completion_seq, coalesce(q->>'agent', src.agent), q->>'title', q->'tags', carried, carried, src.config,
        CASE WHEN (q->>'reset_usage')::boolean THEN '{}' ELSE src.usage END)
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

-- Make an empty thread. One that was made by a request with the same hash is that thread.
CREATE FUNCTION runyard.create_thread(
    for_tenant text, id text, hash text, of_agent text, with_title text, with_tags jsonb, with_extra jsonb, with_config jsonb,
    OUT thread runyard.threads, OUT created boolean
) LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    branch bigint := nextval('runyard.branch_numbers');
BEGIN
    INSERT INTO runyard.threads AS t (tenant, thread_id, fork_hash, head_branch, agent, title, tags, base_extra, extra, config)
    VALUES (for_tenant, id, hash, branch, of_agent, with_title, with_tags, with_extra, with_extra, with_config)
    ON CONFLICT (tenant, thread_id) WHERE deleted_at IS NULL DO NOTHING RETURNING t.* INTO thread;
    created := FOUND;
    IF created THEN
        INSERT INTO runyard.branches (branch_id, thread_key, lane) VALUES (branch, thread.thread_key, '');
        RETURN;
    END IF;
    thread := runyard.same_fork(for_tenant, id, hash);
    IF thread.thread_key IS NULL THEN
        PERFORM runyard.refuse('thread_already_exists', format('thread %s exists and was not made by this request; choose another id', id),
                               jsonb_build_object('thread_id', id));
    END IF;
END $$;

-- Store a message outside any run. What is stored under its id already is the answer; whether it says the same is the caller's to judge.
CREATE FUNCTION runyard.store_message(for_tenant text, in_thread text, m runyard.new_message, parent uuid, expected uuid)
RETURNS SETOF runyard.messages
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    got record;
    t runyard.threads;
    branch runyard.branches;
    in_lane text := '';
    busy text;
    known runyard.messages;
BEGIN
    got := runyard.admit_thread(runyard.ensure_thread(for_tenant, in_thread));
    t := got.t;
    PERFORM runyard.tell(got.effects);
    known := runyard.holder_of(t.thread_key, m.message_id);
    IF known.message_id IS NOT NULL THEN
        IF known.run_id IS NOT NULL OR coalesce(parent <> known.parent_id, parent IS NOT NULL) THEN
            PERFORM runyard.raise(runyard.id_taken(t, m.message_id));
        END IF;
        RETURN NEXT known;
        RETURN;
    END IF;
    IF parent IS NOT NULL THEN
        branch := runyard.branch_ending_at(t.thread_key, parent);
        in_lane := coalesce(branch.lane, '');
    END IF;
    IF parent IS NULL OR branch.branch_id IS NOT NULL THEN
        SELECT r.run_id INTO busy FROM runyard.runs r
        WHERE r.thread_key = t.thread_key AND r.lane = in_lane AND r.finished_at IS NULL AND r.lane_seq IS NOT NULL LIMIT 1;
        IF FOUND THEN
            PERFORM runyard.refuse('thread_busy',
                format('run %s of thread %s is live on this branch; wait for it, or store the message at a parent', busy, in_thread),
                jsonb_build_object('thread_id', in_thread, 'run_id', busy));
        END IF;
    END IF;
    IF expected IS NOT NULL THEN
        SELECT coalesce(branch.leaf_id, b.leaf_id) AS leaf INTO got FROM runyard.branches b WHERE b.branch_id = t.head_branch;
        IF got.leaf IS DISTINCT FROM expected THEN
            PERFORM runyard.refuse('leaf_moved', format('the last message of thread %s is %s, not %s', in_thread, got.leaf, expected),
                                   jsonb_build_object('thread_id', in_thread, 'leaf_id', got.leaf, 'expected_leaf', expected));
        END IF;
    END IF;
    PERFORM runyard.check_size(ARRAY[m], runyard.limit_of('message_bytes'));
    got := runyard.branch_for(t, in_lane, parent, false);
    t := got.t; branch := got.branch;
    PERFORM runyard.put_plain(t, branch, ARRAY[m]);
    RETURN QUERY SELECT s.* FROM runyard.messages s WHERE s.branch_id = branch.branch_id AND s.seq = t.next_seq;
END $$;

-- Insert messages without a run at the end of a branch, each the child of the one before. The caller has checked their ids and sizes.
CREATE FUNCTION runyard.put_plain(INOUT t runyard.threads, branch runyard.branches, messages runyard.new_message[])
LANGUAGE plpgsql AS $$
DECLARE
    many integer := cardinality(messages);
    last uuid := (messages[many]).message_id;
BEGIN
    INSERT INTO runyard.messages (branch_id, seq, message_id, parent_id, role, payload, calls, results)
    SELECT branch.branch_id, t.next_seq + n - 1, m.message_id, lag(m.message_id, 1, branch.leaf_id) OVER (ORDER BY n),
           m.role, m.payload, m.calls, m.results
    FROM unnest(messages) WITH ORDINALITY m(message_id, role, payload, calls, results, n);
    UPDATE runyard.branches SET leaf_id = last, leaf_seq = t.next_seq + many - 1 WHERE branch_id = branch.branch_id;
    t.next_seq := t.next_seq + many;
    UPDATE runyard.threads SET next_seq = t.next_seq, updated_at = now() WHERE thread_key = t.thread_key;
    INSERT INTO runyard.outbox (tenant, thread_key, thread_id, type)
    SELECT t.tenant, t.thread_key, t.thread_id, 'message.stored' FROM generate_series(1, many);
END $$;

-- Insert messages of a run that nobody has claimed, after those that it has. The caller has checked their ids and sizes.
CREATE FUNCTION runyard.put_unclaimed(INOUT t runyard.threads, run text, messages runyard.new_message[])
LANGUAGE plpgsql AS $$
DECLARE
    many integer := cardinality(messages);
    u runyard.unclaimed;
    head runyard.branches;
BEGIN
    SELECT v.* INTO u FROM runyard.unclaimed v WHERE v.thread_key = t.thread_key AND v.run_id = run;
    SELECT b.* INTO head FROM runyard.branches b WHERE b.branch_id = coalesce(u.branch_id, t.head_branch);
    INSERT INTO runyard.messages (branch_id, seq, message_id, parent_id, run_id, role, payload, calls, results)
    SELECT head.branch_id, t.next_seq + n - 1, m.message_id,
           lag(m.message_id, 1, coalesce(u.last_message_id, head.leaf_id)) OVER (ORDER BY n), run, m.role, m.payload, m.calls, m.results
    FROM unnest(messages) WITH ORDINALITY m(message_id, role, payload, calls, results, n);
    INSERT INTO runyard.unclaimed AS v (thread_key, run_id, branch_id, first_seq, last_seq, last_message_id, has_tools)
    VALUES (t.thread_key, run, head.branch_id, t.next_seq, t.next_seq + many - 1, (messages[many]).message_id,
            EXISTS (SELECT 1 FROM unnest(messages) m WHERE m.calls IS NOT NULL OR m.results IS NOT NULL))
    ON CONFLICT (thread_key, run_id) DO UPDATE SET last_seq = excluded.last_seq, last_message_id = excluded.last_message_id,
        has_tools = v.has_tools OR excluded.has_tools;
    t.next_seq := t.next_seq + many;
END $$;

-- Those of `messages` that the thread does not hold yet. An id that another run's message has, or one without a run, is refused.
CREATE FUNCTION runyard.not_held(t runyard.threads, run text, messages runyard.new_message[]) RETURNS runyard.new_message[]
LANGUAGE plpgsql STABLE AS $$
DECLARE
    m runyard.new_message;
    holder runyard.messages;
    missing runyard.new_message[] := '{}';
BEGIN
    FOREACH m IN ARRAY messages LOOP
        holder := runyard.holder_of(t.thread_key, m.message_id);
        IF holder.message_id IS NULL THEN
            missing := missing || m;
        ELSIF holder.run_id IS DISTINCT FROM run THEN
            PERFORM runyard.raise(runyard.id_taken(t, m.message_id));
        END IF;
    END LOOP;
    RETURN missing;
END $$;

-- A checkpointer's append: each message under its own run id, or none; once under its message id, however often it is sent.
CREATE FUNCTION runyard.checkpoint_append(for_tenant text, in_thread text, messages runyard.new_message[], run_ids text[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    got record;
    t runyard.threads;
    r runyard.runs;
    head runyard.branches;
    part record;
    missing runyard.new_message[];
BEGIN
    got := runyard.admit_thread(runyard.ensure_thread(for_tenant, in_thread));
    t := got.t;
    PERFORM runyard.tell(got.effects);
    PERFORM runyard.check_size(messages, runyard.limit_of('message_bytes'));
    -- What stands together under one run id is written together.
    FOR part IN
        SELECT p.run_id, array_agg(p.m ORDER BY p.n) AS messages
        FROM (SELECT s.*, count(*) FILTER (WHERE s.begins) OVER (ORDER BY s.n) AS number
              FROM (SELECT d.*, d.run_id IS DISTINCT FROM lag(d.run_id) OVER (ORDER BY d.n) AS begins
                    FROM (SELECT DISTINCT ON (a.message_id, b.run_id) a.message_id, b.run_id, n,
                                 (a.message_id, a.role, a.payload, a.calls, a.results)::runyard.new_message AS m
                          FROM unnest(messages) WITH ORDINALITY a(message_id, role, payload, calls, results, n)
                          JOIN unnest(run_ids) WITH ORDINALITY b(run_id, n) USING (n) ORDER BY a.message_id, b.run_id, n) d) s) p
        GROUP BY p.number, p.run_id ORDER BY p.number
    LOOP
        r := CASE WHEN part.run_id IS NOT NULL THEN runyard.open_external(t, part.run_id) END;
        IF r.run_id IS NOT NULL THEN
            got := runyard.put_messages(t, r, part.messages, NULL);
            t := got.t; r := got.r;
            UPDATE runyard.runs SET first_seq = r.first_seq, last_seq = r.last_seq, last_message_id = r.last_message_id, has_tools = r.has_tools
            WHERE accept_no = r.accept_no;
            CONTINUE;
        END IF;
        missing := runyard.not_held(t, part.run_id, part.messages);
        CONTINUE WHEN missing = '{}';
        IF part.run_id IS NULL THEN
            SELECT b.* INTO head FROM runyard.branches b WHERE b.branch_id = t.head_branch;
            t := runyard.put_plain(t, head, missing);
        ELSE
            t := runyard.put_unclaimed(t, part.run_id, missing);
        END IF;
    END LOOP;
    UPDATE runyard.threads SET next_seq = t.next_seq, updated_at = now() WHERE thread_key = t.thread_key;
END $$;

-- The external run with this id, if it is open; a NULL row if nobody claimed the id; an error if it cannot be written.
CREATE FUNCTION runyard.open_external(t runyard.threads, id text) RETURNS runyard.runs
LANGUAGE plpgsql STABLE AS $$
DECLARE
    r runyard.runs;
    got record;
BEGIN
    SELECT y.* INTO r FROM runyard.runs y WHERE y.tenant = t.tenant AND y.thread_id = t.thread_id AND y.run_id = id AND NOT y.deleted;
    IF NOT FOUND THEN
        SELECT i.open INTO got FROM runyard.inherited_run(t.thread_key, id) i;
        IF FOUND THEN
            PERFORM runyard.refuse(CASE WHEN got.open THEN 'run_already_claimed' ELSE 'run_already_completed' END,
                format('run %s is inherited by thread %s from its ancestor; nothing can be added to it', id, t.thread_id),
                jsonb_build_object('thread_id', t.thread_id, 'run_id', id));
        END IF;
    ELSIF r.status IN ('completed', 'failed', 'cancelled', 'dead') THEN
        PERFORM runyard.refuse('run_already_completed', format('run %s of thread %s is %s; nothing can be added to it', id, t.thread_id, r.status),
                               jsonb_build_object('thread_id', t.thread_id, 'run_id', id, 'status', r.status));
    ELSIF r.kind <> 'external' THEN
        PERFORM runyard.refuse('run_already_claimed', format('run %s of thread %s belongs to a worker', id, t.thread_id),
                               jsonb_build_object('thread_id', t.thread_id, 'run_id', id));
    END IF;
    RETURN r;
END $$;

CREATE FUNCTION runyard.claim_external(for_tenant text, in_thread text, id text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    got record;
    t runyard.threads;
    r runyard.runs;
    u runyard.unclaimed;
    head runyard.branches;
BEGIN
    got := runyard.admit_thread(runyard.ensure_thread(for_tenant, in_thread));
    t := got.t;
    PERFORM runyard.tell(got.effects);
    r := runyard.open_external(t, id);
    IF r.run_id IS NOT NULL THEN
        PERFORM runyard.refuse('run_already_claimed', format('run %s of thread %s is claimed and not finished', id, in_thread),
                               jsonb_build_object('thread_id', in_thread, 'run_id', id));
    END IF;
    DELETE FROM runyard.unclaimed v WHERE v.thread_key = t.thread_key AND v.run_id = id RETURNING v.* INTO u;
    SELECT b.* INTO head FROM runyard.branches b WHERE b.branch_id = coalesce(u.branch_id, t.head_branch);
    INSERT INTO runyard.runs (tenant, thread_id, run_id, thread_key, kind, status, lane, lane_seq, queue, priority, request_hash,
        branch_id, base_id, snapshot_tip, snapshot_cutoff, first_seq, last_seq, last_message_id, has_tools, fence, attempt,
        admitted_at, started_at)
    VALUES (for_tenant, in_thread, id, t.thread_key, 'external', 'running', id, nextval('runyard.lane_numbers'), 'external', 'normal',
        '{"kind": "external"}', head.branch_id, head.leaf_id, t.next_seq - 1, t.next_completion_seq - 1,
        u.first_seq, u.last_seq, u.last_message_id, coalesce(u.has_tools, false), nextval('runyard.fences'), 1, now(), now())
    ON CONFLICT (tenant, thread_id, run_id) WHERE NOT deleted DO NOTHING;
    IF NOT FOUND THEN PERFORM runyard.open_external(t, id); END IF; -- a host's transaction brought it meanwhile: refused
END $$;

CREATE FUNCTION runyard.complete_external(for_tenant text, in_thread text, id text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    got record;
    t runyard.threads;
    r runyard.runs;
BEGIN
    t := runyard.live_thread(for_tenant, in_thread);
    IF t.thread_key IS NOT NULL THEN
        SELECT y.* INTO r FROM runyard.runs y WHERE y.thread_key = t.thread_key AND y.run_id = id;
        IF NOT FOUND THEN
            SELECT i.open INTO got FROM runyard.inherited_run(t.thread_key, id) i;
            IF FOUND AND NOT got.open THEN RETURN; END IF;
        END IF;
    END IF;
    IF r.completion_seq IS NOT NULL THEN RETURN; END IF;
    IF r.run_id IS NULL OR r.status NOT IN ('queued', 'running', 'suspended') THEN
        PERFORM runyard.refuse('run_not_claimed', format('run %s of thread %s is not claimed; claim it first', id, in_thread),
                               jsonb_build_object('thread_id', in_thread, 'run_id', id));
    ELSIF r.kind <> 'external' THEN
        PERFORM runyard.refuse('run_already_claimed', format('run %s of thread %s belongs to a worker', id, in_thread),
                               jsonb_build_object('thread_id', in_thread, 'run_id', id));
    END IF;
    got := runyard.end_run(t, r, 'completed', NULL, nextval('runyard.fences') || '-1');
    PERFORM runyard.tell(got.effects);
END $$;

-- The one request that a checkpointer keeps for a thread; NULL clears it. What a worker's run asked has an event, and stays.
CREATE FUNCTION runyard.save_pending(for_tenant text, in_thread text, q runyard.new_request, run text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    t runyard.threads := runyard.ensure_thread(for_tenant, in_thread);
BEGIN
    DELETE FROM runyard.hitl_requests h
    WHERE h.tenant = for_tenant AND h.thread_key = t.thread_key AND h.event_id IS NULL
      AND (h.request_id = q.request_id OR (h.answered_at IS NULL AND h.closed_at IS NULL));
    IF q.request_id IS NOT NULL THEN
        INSERT INTO runyard.hitl_requests AS h (tenant, request_id, thread_key, run_id, kind, body, deadline_at, otherwise)
        VALUES (for_tenant, q.request_id, t.thread_key, run, q.kind, q.body,
                coalesce(q.deadline_at, clock_timestamp() + make_interval(secs => q.timeout)), q.otherwise)
        ON CONFLICT (tenant, request_id) DO NOTHING;
        IF NOT FOUND THEN
            PERFORM runyard.refuse('invalid_input', format('request id %s is taken by another run or thread; use a fresh one', q.request_id));
        END IF;
    END IF;
END $$;

CREATE FUNCTION runyard.save_extra(for_tenant text, in_thread text, more jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    t runyard.threads := runyard.ensure_thread(for_tenant, in_thread);
BEGIN
    PERFORM runyard.check_extra(t.extra || more);
    UPDATE runyard.threads SET extra = extra || more, extra_changed = true, updated_at = now() WHERE thread_key = t.thread_key;
END $$;

-- Refuse if the thread has changed since the caller read it; NULL expects nothing.
CREATE FUNCTION runyard.check_unchanged(t runyard.threads, seen timestamptz) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF t.updated_at IS DISTINCT FROM coalesce(seen, t.updated_at) THEN
        PERFORM runyard.refuse('precondition_failed', format('thread %s has changed since %s; read it again', t.thread_id, seen),
                               jsonb_build_object('thread_id', t.thread_id));
    END IF;
END $$;

-- Set the fields that are in `patch`, and clear those that are null there. `extra` is merged at its top level. Two changes never leave the
-- same updated_at, which callers know the version by.
CREATE FUNCTION runyard.update_thread(for_tenant text, in_thread text, patch jsonb, seen timestamptz) RETURNS runyard.threads
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    t runyard.threads := runyard.known_thread(for_tenant, in_thread);
    more jsonb := nullif(patch->'extra', 'null');
    named text := CASE WHEN patch ? 'title' THEN patch->>'title' ELSE t.title END;
BEGIN
    PERFORM runyard.check_unchanged(t, seen);
    IF more IS NOT NULL THEN PERFORM runyard.check_extra(t.extra || more); END IF;
    UPDATE runyard.threads x SET title = named,
        tags = CASE WHEN patch ? 'tags' THEN coalesce(nullif(patch->'tags', 'null'), '{}')
                    WHEN x.title IS NOT NULL THEN x.tags - 'title' ELSE x.tags END
            || jsonb_strip_nulls(jsonb_build_object('title', named)),
        extra = CASE WHEN NOT patch ? 'extra' THEN x.extra WHEN more IS NULL THEN '{}'
                     ELSE (x.extra || more) - ARRAY(SELECT e.key FROM jsonb_each(more) e WHERE e.value = 'null') END,
        extra_changed = x.extra_changed OR patch ? 'extra', updated_at = greatest(now(), x.updated_at + interval '1 microsecond')
    WHERE x.thread_key = t.thread_key RETURNING x.* INTO t;
    RETURN t;
END $$;

-- Requests of an external run beside each other; one with a known id stays as it is.
CREATE FUNCTION runyard.save_requests(for_tenant text, in_thread text, requests runyard.new_request[], run text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    t runyard.threads := runyard.ensure_thread(for_tenant, in_thread);
BEGIN
    INSERT INTO runyard.hitl_requests (tenant, request_id, thread_key, run_id, kind, body, deadline_at, otherwise)
    SELECT for_tenant, q.request_id, t.thread_key, run, q.kind, q.body,
           coalesce(q.deadline_at, clock_timestamp() + make_interval(secs => q.timeout)), q.otherwise
    FROM unnest(requests) q(request_id, kind, body, deadline_at, timeout, otherwise)
    ON CONFLICT (tenant, request_id) DO NOTHING;
END $$;

-- Requests that wait or were answered, of the run or of the thread. What is overdue gets its own choice first: no reconciler may be there to do it.
CREATE FUNCTION runyard.load_requests(for_tenant text, in_thread text, run text) RETURNS SETOF runyard.requests
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    got record;
    t runyard.threads := runyard.live_thread(for_tenant, in_thread);
BEGIN
    IF EXISTS (SELECT 1 FROM runyard.hitl_requests h
               WHERE h.thread_key = t.thread_key AND h.deadline_at <= clock_timestamp() AND h.answered_at IS NULL AND h.closed_at IS NULL) THEN
        SELECT y.* INTO t FROM runyard.threads y WHERE y.thread_key = t.thread_key FOR UPDATE;
        got := runyard.fire_deadlines(t);
        PERFORM runyard.tell(got.effects);
    END IF;
    RETURN QUERY SELECT q.* FROM runyard.requests q
    WHERE q.thread_key = t.thread_key AND (run IS NULL OR q.run_id = run) AND (q.answered_at IS NOT NULL OR q.closed_at IS NULL)
    ORDER BY q.created_at, q.request_id;
END $$;
