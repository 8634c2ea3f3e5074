-- Suspending a run until one of its HITL requests is answered or one of its waits ends. A suspended run holds no permit and no worker.

-- Store the attempt's write w, and suspend its run until one of `requests` is answered or one of `waits` ends. If one of them
-- is answered or ended already, the run stays running. known: the ids of stored requests for which the run still waits.
CREATE OR REPLACE FUNCTION runyard.suspend_v2(w runyard.attempt_write, requests runyard.new_request[], known text[], waits runyard.new_wait[])
RETURNS runyard.ended
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    got record;
    t runyard.threads;
    r runyard.runs;
    e runyard.ended;
    ended boolean;
    awaited text;
    asked text[] := known || ARRAY(SELECT q.request_id FROM unnest(requests) q);
    next_event integer := w.first_event + coalesce(cardinality(w.messages), 0);
    event text := w.fence || '-' || (next_event + coalesce(cardinality(requests), 0));
BEGIN
    -- An earlier call whose reply was lost has stored the usage. A cancel since then must not count it again.
    IF w.usage IS NOT NULL THEN
        IF EXISTS (SELECT 1 FROM runyard.runs y WHERE y.thread_key = w.thread_key AND y.run_id = w.run_id AND y.event_id = event) THEN
            w.usage := NULL;
        END IF;
    END IF;
    got := runyard.lock_attempt(w.thread_key, w.run_id, w.fence, w.first_event, w.usage);
    t := got.t; r := got.r; e := got.e;
    IF got.over THEN
        e.effects := runyard.merge_effects(e.effects, runyard.free(runyard.permits_of(r)));
        RETURN e;
    END IF;
    e.event_id := event;
    IF r.event_id IS DISTINCT FROM e.event_id THEN -- the same event id means that the call is a repetition after a lost reply
        got := runyard.keep_write(t, r, w, runyard.limit_of('message_bytes'));
        t := got.t; r := got.r;
    END IF;
    INSERT INTO runyard.hitl_requests (tenant, request_id, thread_key, run_id, kind, body, deadline_at, otherwise, event_id)
    SELECT t.tenant, q.request_id, t.thread_key, r.run_id, q.kind, q.body,
           coalesce(q.deadline_at, clock_timestamp() + make_interval(secs => q.timeout)), q.otherwise, w.fence || '-' || (next_event + q.n - 1)
    FROM unnest(requests) WITH ORDINALITY q(request_id, kind, body, deadline_at, timeout, otherwise, n)
    ON CONFLICT (tenant, request_id) DO NOTHING;
    ended := runyard.put_waits(r, waits);
    e.status := CASE WHEN ended OR EXISTS ( -- one look-up for each id, also before the first ANALYZE of the table
        SELECT 1 FROM unnest(asked) a(request_id) CROSS JOIN LATERAL (
            SELECT 1 FROM runyard.hitl_requests h WHERE h.tenant = t.tenant AND h.request_id = a.request_id AND h.answered_at IS NOT NULL LIMIT 1) x)
        THEN 'running' ELSE 'suspended' END;
    IF e.status = 'suspended' THEN
        awaited := CASE WHEN asked <> '{}' THEN 'human' ELSE (
            SELECT CASE x.kind WHEN 'sleep' THEN 'timer' ELSE x.kind END FROM runyard.waits x
            WHERE x.thread_key = r.thread_key AND x.run_id = r.run_id AND x.ended_at IS NULL ORDER BY x.wait_no LIMIT 1) END;
        PERFORM runyard.note_attempt(r, 'suspended', NULL);
        INSERT INTO runyard.outbox (tenant, thread_key, thread_id, run_id, type)
        VALUES (t.tenant, t.thread_key, t.thread_id, r.run_id, 'run.suspended');
    ELSE
        PERFORM runyard.receive_answers(r);
    END IF;
    UPDATE runyard.threads SET next_seq = t.next_seq, updated_at = now() WHERE thread_key = t.thread_key;
    UPDATE runyard.runs SET status = e.status, suspended_at = CASE WHEN e.status = 'suspended' THEN now() END,
        waiting_for = awaited,
        worker_id = CASE WHEN e.status = 'suspended' THEN NULL ELSE r.worker_id END,
        error_count = CASE WHEN e.status = 'suspended' THEN 0 ELSE r.error_count END,
        first_seq = r.first_seq, last_seq = r.last_seq, last_message_id = r.last_message_id, has_tools = r.has_tools,
        extra = r.extra, usage = r.usage, event_id = e.event_id, progressed = true, changed_at = now()
    WHERE accept_no = r.accept_no;
    IF e.status = 'suspended' THEN e.effects := runyard.free(runyard.permits_of(r)); END IF;
    RETURN e;
END $$;

-- Record that the present attempt has the answers and the signals that no earlier attempt had.
CREATE OR REPLACE FUNCTION runyard.receive_answers(r runyard.runs) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE runyard.hitl_requests h SET received_by = r.fence
    WHERE h.thread_key = r.thread_key AND h.run_id = r.run_id AND h.answered_at IS NOT NULL AND h.received_by IS NULL;
    UPDATE runyard.waits w SET received_by = r.fence
    WHERE w.thread_key = r.thread_key AND w.run_id = r.run_id AND w.signal_id IS NOT NULL AND w.received_by IS NULL;
END $$;

-- Suspend a run that waits only for answers. Workers of older releases, which have no waits, call this function.
CREATE OR REPLACE FUNCTION runyard.suspend(w runyard.attempt_write, requests runyard.new_request[]) RETURNS runyard.ended
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    RETURN runyard.suspend_v2(w, requests, '{}', '{}');
END $$;
