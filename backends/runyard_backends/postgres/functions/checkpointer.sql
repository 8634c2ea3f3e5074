-- The messages, the extra and the HITL requests that a checkpointer stores.

-- Append a checkpointer's messages. Each message names its run, or no run. Skip a message whose id is stored already.
CREATE OR REPLACE FUNCTION runyard.checkpoint_append(for_tenant text, thread_id text, messages runyard.new_message[], run_ids text[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    got record;
    t runyard.threads;
    part record;
BEGIN
    got := runyard.admit_thread(runyard.ensure_thread(for_tenant, thread_id));
    t := got.t;
    PERFORM runyard.tell(got.effects);
    PERFORM runyard.check_size(messages, runyard.limit_of('message_bytes'));
    IF cardinality(messages) = 1 THEN -- without the statement for parts, which costs as much as the insert
        t := runyard.append_part(t, run_ids[1], messages);
    ELSE
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
            t := runyard.append_part(t, part.run_id, part.messages);
        END LOOP;
    END IF;
    UPDATE runyard.threads SET next_seq = t.next_seq, updated_at = now() WHERE thread_key = t.thread_key;
END $$;

-- Append adjacent messages with the same run id, or without a run. The caller must save the row of the thread.
CREATE OR REPLACE FUNCTION runyard.append_part(INOUT t runyard.threads, run_id text, messages runyard.new_message[])
LANGUAGE plpgsql AS $$
DECLARE
    got record;
    r runyard.runs;
    head runyard.branches;
    missing runyard.new_message[];
BEGIN
    IF append_part.run_id IS NOT NULL THEN r := runyard.open_external(t, append_part.run_id); END IF;
    IF r.run_id IS NOT NULL THEN
        got := runyard.put_messages(t, r, messages, NULL);
        t := got.t; r := got.r;
        UPDATE runyard.runs SET first_seq = r.first_seq, last_seq = r.last_seq, last_message_id = r.last_message_id, has_tools = r.has_tools
        WHERE accept_no = r.accept_no;
        RETURN;
    END IF;
    missing := runyard.not_held(t, append_part.run_id, messages);
    IF missing = '{}' THEN RETURN; END IF;
    IF append_part.run_id IS NULL THEN
        SELECT b.* INTO head FROM runyard.branches b WHERE b.branch_id = t.head_branch;
        t := runyard.put_plain(t, head, missing);
    ELSE
        t := runyard.put_unclaimed(t, append_part.run_id, missing);
    END IF;
END $$;

-- Insert messages of a run that was never claimed, after its earlier messages. The caller must have checked their ids and sizes.
CREATE OR REPLACE FUNCTION runyard.put_unclaimed(INOUT t runyard.threads, run_id text, messages runyard.new_message[])
LANGUAGE plpgsql AS $$
DECLARE
    many integer := cardinality(messages);
    u runyard.unclaimed;
    head runyard.branches;
BEGIN
    SELECT v.* INTO u FROM runyard.unclaimed v WHERE v.thread_key = t.thread_key AND v.run_id = put_unclaimed.run_id;
    SELECT b.* INTO head FROM runyard.branches b WHERE b.branch_id = coalesce(u.branch_id, t.head_branch);
    INSERT INTO runyard.messages (branch_id, seq, message_id, parent_id, run_id, role, payload, calls, results)
    SELECT head.branch_id, t.next_seq + n - 1, m.message_id,
           lag(m.message_id, 1, coalesce(u.last_message_id, head.leaf_id)) OVER (ORDER BY n), put_unclaimed.run_id, m.role, m.payload, m.calls, m.results
    FROM unnest(messages) WITH ORDINALITY m(message_id, role, payload, calls, results, n);
    INSERT INTO runyard.unclaimed AS v (thread_key, run_id, branch_id, first_seq, last_seq, last_message_id, has_tools)
    VALUES (t.thread_key, put_unclaimed.run_id, head.branch_id, t.next_seq, t.next_seq + many - 1, (messages[many]).message_id,
            EXISTS (SELECT 1 FROM unnest(messages) m WHERE m.calls IS NOT NULL OR m.results IS NOT NULL))
    ON CONFLICT ON CONSTRAINT unclaimed_pkey DO UPDATE SET last_seq = excluded.last_seq, last_message_id = excluded.last_message_id,
        has_tools = v.has_tools OR excluded.has_tools;
    t.next_seq := t.next_seq + many;
END $$;

-- Return the messages of `messages` whose ids the thread does not have. Refuse an id that a message of another run has. run_id:
-- the run of the messages, or NULL.
CREATE OR REPLACE FUNCTION runyard.not_held(t runyard.threads, run_id text, messages runyard.new_message[]) RETURNS runyard.new_message[]
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
        ELSIF holder.run_id IS DISTINCT FROM not_held.run_id THEN
            PERFORM runyard.raise(runyard.id_taken(t, m.message_id));
        END IF;
    END LOOP;
    RETURN missing;
END $$;

-- Merge `more` into the extra of a thread.
CREATE OR REPLACE FUNCTION runyard.save_extra(for_tenant text, thread_id text, more jsonb) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    t runyard.threads := runyard.ensure_thread(for_tenant, thread_id);
BEGIN
    PERFORM runyard.check_extra(t.extra || more);
    UPDATE runyard.threads SET extra = extra || more, extra_changed = true, updated_at = now() WHERE thread_key = t.thread_key;
END $$;

-- If a deleted thread still has requests with these ids, delete these requests, because their ids are free.
CREATE OR REPLACE FUNCTION runyard.drop_deleted_requests(for_tenant text, request_ids text[]) RETURNS void
LANGUAGE sql SET enable_seqscan = off AS $$
    DELETE FROM runyard.hitl_requests h USING runyard.threads t
    WHERE h.tenant = for_tenant AND h.request_id = ANY (request_ids) AND t.thread_key = h.thread_key AND t.deleted_at IS NOT NULL
$$;

-- Refuse a request if another request has its id.
CREATE OR REPLACE FUNCTION runyard.refuse_request(request_id text) RETURNS void
LANGUAGE sql AS $$
    SELECT runyard.refuse('invalid_input', format('request id %L is taken by another run or thread; use another id', request_id),
                          jsonb_build_object('request_id', request_id))
$$;

-- Replace the one pending request that a checkpointer keeps for a thread. q: NULL to remove it. Requests of workers' runs, which
-- have events, stay.
CREATE OR REPLACE FUNCTION runyard.save_pending(for_tenant text, thread_id text, q runyard.new_request, run_id text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    t runyard.threads := runyard.ensure_thread(for_tenant, thread_id);
BEGIN
    DELETE FROM runyard.hitl_requests h
    WHERE h.tenant = for_tenant AND h.thread_key = t.thread_key AND h.event_id IS NULL
      AND (h.request_id = q.request_id OR (h.answered_at IS NULL AND h.closed_at IS NULL));
    PERFORM runyard.drop_deleted_requests(for_tenant, ARRAY[q.request_id]);
    IF q.request_id IS NOT NULL THEN
        INSERT INTO runyard.hitl_requests AS h (tenant, request_id, thread_key, run_id, kind, body, deadline_at, otherwise)
        VALUES (for_tenant, q.request_id, t.thread_key, save_pending.run_id, q.kind, q.body,
                coalesce(q.deadline_at, clock_timestamp() + make_interval(secs => q.timeout)), q.otherwise)
        ON CONFLICT (tenant, request_id) DO NOTHING;
        IF NOT FOUND THEN
            PERFORM runyard.refuse_request(q.request_id);
        END IF;
    END IF;
END $$;

-- Remove one pending request that a checkpointer keeps for a thread. Return false if the thread has no such request, or if it is
-- answered.
CREATE OR REPLACE FUNCTION runyard.remove_request(for_tenant text, thread_id text, request_id text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    t runyard.threads := runyard.live_thread(for_tenant, thread_id);
BEGIN
    DELETE FROM runyard.hitl_requests h
    WHERE h.tenant = for_tenant AND h.request_id = remove_request.request_id AND h.thread_key = t.thread_key AND h.event_id IS NULL
      AND h.answered_at IS NULL AND h.closed_at IS NULL;
    RETURN FOUND;
END $$;

-- Store HITL requests of an external run. A stored request of the run with the same id stays unchanged. Refuse all requests if
-- another run or thread has a request with one of their ids.
CREATE OR REPLACE FUNCTION runyard.save_requests(for_tenant text, thread_id text, requests runyard.new_request[], run_id text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    t runyard.threads := runyard.ensure_thread(for_tenant, thread_id);
    asked text[] := ARRAY(SELECT q.request_id FROM unnest(requests) q);
    taken text;
BEGIN
    PERFORM runyard.drop_deleted_requests(for_tenant, asked);
    INSERT INTO runyard.hitl_requests (tenant, request_id, thread_key, run_id, kind, body, deadline_at, otherwise)
    SELECT for_tenant, q.request_id, t.thread_key, save_requests.run_id, q.kind, q.body,
           coalesce(q.deadline_at, clock_timestamp() + make_interval(secs => q.timeout)), q.otherwise
    FROM unnest(requests) q(request_id, kind, body, deadline_at, timeout, otherwise)
    ON CONFLICT (tenant, request_id) DO NOTHING;
    SELECT x.request_id INTO taken FROM unnest(asked) a(request_id) CROSS JOIN LATERAL (
        SELECT h.request_id FROM runyard.hitl_requests h WHERE h.tenant = for_tenant AND h.request_id = a.request_id
            AND (h.thread_key <> t.thread_key OR h.run_id IS DISTINCT FROM save_requests.run_id)
        LIMIT 1) x
    LIMIT 1;
    IF FOUND THEN PERFORM runyard.refuse_request(taken); END IF;
END $$;

-- Return the pending and answered HITL requests of a run. If run_id is NULL, return those of the thread. Apply the deadlines of overdue
-- requests first, because a program without workers has no reconciler.
CREATE OR REPLACE FUNCTION runyard.load_requests(for_tenant text, thread_id text, run_id text) RETURNS SETOF runyard.requests
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    got record;
    t runyard.threads := runyard.live_thread(for_tenant, thread_id);
BEGIN
    IF EXISTS (SELECT 1 FROM runyard.hitl_requests h
               WHERE h.thread_key = t.thread_key AND h.deadline_at <= clock_timestamp() AND h.answered_at IS NULL AND h.closed_at IS NULL
                 AND h.created_at >= '-infinity') THEN
        got := runyard.fire_deadlines(t);
        PERFORM runyard.tell(got.effects);
    END IF;
    RETURN QUERY SELECT q.* FROM runyard.requests q
    WHERE q.thread_key = t.thread_key AND (load_requests.run_id IS NULL OR q.run_id = load_requests.run_id) AND (q.answered_at IS NOT NULL OR q.closed_at IS NULL)
    ORDER BY q.created_at, q.request_id;
END $$;
