-- Answers to HITL requests. postgres/hitl_answers.py compares a repeated answer with the stored one.

-- Record an answer once. checked_request_id: the request against whose schema the caller has checked the answer. created: true if the
-- answer was recorded. created is false if the request was answered before. The caller must then compare the answers. created is NULL if
-- runyard.request_for returns another request than the caller has checked. is_last: true if the run waits for no other answer.
CREATE OR REPLACE FUNCTION runyard.respond(
    for_tenant text, thread_id text, request_id text, response_id text, checked_request_id text, value bytea, who text, for_whom text,
    OUT request runyard.requests, OUT created boolean, OUT effects jsonb, OUT is_last boolean
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    got record;
    t runyard.threads;
BEGIN
    is_last := false;
    SELECT y.* INTO t FROM runyard.threads y
    WHERE y.thread_key = (SELECT h.thread_key FROM runyard.hitl_requests h WHERE h.tenant = for_tenant AND h.request_id = respond.checked_request_id) FOR UPDATE;
    IF t.deleted_at IS NOT NULL THEN t := NULL; END IF;
    got := runyard.admit_thread(t);
    t := got.t; effects := got.effects;
    got := runyard.fire_deadlines(t);
    t := got.t; effects := runyard.merge_effects(effects, got.effects);
    request := runyard.request_for(for_tenant, thread_id, request_id, response_id);
    IF request.request_id <> checked_request_id OR request.answered_at IS NOT NULL THEN
        created := CASE WHEN request.request_id = checked_request_id THEN false END;
        RETURN;
    END IF;
    UPDATE runyard.hitl_requests y SET answer = value, response_id = respond.response_id, answered_by = who, on_behalf_of = for_whom, answered_at = now()
    WHERE y.tenant = for_tenant AND y.request_id = respond.checked_request_id AND y.answered_at IS NULL AND y.closed_at IS NULL
    RETURNING y.answer, y.response_id, y.answered_by, y.on_behalf_of, y.answered_at
    INTO request.answer, request.response_id, request.answered_by, request.on_behalf_of, request.answered_at;
    created := FOUND;
    is_last := created AND NOT EXISTS (
        SELECT 1 FROM runyard.hitl_requests h
        WHERE h.thread_key = t.thread_key AND h.run_id IS NOT DISTINCT FROM request.run_id AND h.answered_at IS NULL AND h.closed_at IS NULL
          AND h.created_at >= '-infinity');
    effects := runyard.merge_effects(effects, runyard.wake_run(t.thread_key, request.run_id));
END $$;

-- Return the HITL request that an answer is for. This is the request request_id. Without request_id, it is the request that was
-- answered with response_id before: the answer is then a repetition. If there is no such request, it is the only pending
-- request of the thread. enable_sort: only the index of the thread's pending requests has them in order. Before the first ANALYZE, the
-- other indexes of pending requests look as cheap, and have the requests of all threads.
CREATE OR REPLACE FUNCTION runyard.request_for(for_tenant text, thread_id text, request_id text, response_id text) RETURNS runyard.requests
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off SET enable_sort = off AS $$
DECLARE
    h runyard.requests;
    of_thread bigint;
    waiting text[];
BEGIN
    IF request_for.thread_id IS NOT NULL THEN
        SELECT t.thread_key INTO of_thread FROM runyard.threads t
        WHERE t.tenant = for_tenant AND t.thread_id = request_for.thread_id AND t.deleted_at IS NULL;
        IF NOT FOUND THEN
            PERFORM runyard.refuse('thread_not_found', format('there is no thread %s', thread_id), jsonb_build_object('thread_id', thread_id));
        END IF;
    END IF;
    IF request_for.request_id IS NOT NULL THEN
        SELECT x.* INTO h FROM runyard.requests x
        WHERE x.tenant = for_tenant AND x.request_id = request_for.request_id AND (of_thread IS NULL OR x.thread_key = of_thread);
        IF FOUND AND h.closed_at IS NULL AND h.answered_by IS DISTINCT FROM 'deadline' THEN RETURN h; END IF;
    ELSIF request_for.response_id IS NOT NULL THEN
        SELECT x.* INTO h FROM runyard.requests x WHERE x.thread_key = of_thread AND x.response_id = request_for.response_id;
        IF FOUND THEN RETURN h; END IF;
    END IF;
    of_thread := coalesce(of_thread, h.thread_key);
    waiting := ARRAY(
        SELECT x.request_id FROM runyard.hitl_requests x
        WHERE x.thread_key = of_thread AND x.answered_at IS NULL AND x.closed_at IS NULL AND x.created_at >= '-infinity'
        ORDER BY x.created_at, x.request_id);
    IF request_id IS NOT NULL AND (waiting <> '{}' OR h.request_id IS NOT NULL) THEN
        PERFORM runyard.refuse('hitl_stale_answer',
            format('request %s does not wait for an answer; pending: %s', request_id, coalesce(nullif(array_to_string(waiting, ', '), ''), 'none')),
            jsonb_build_object('request_id', request_id, 'pending', to_jsonb(waiting)));
    ELSIF waiting = '{}' THEN
        PERFORM runyard.refuse('hitl_no_pending_request', format('nothing waits for an answer on thread %s', coalesce(thread_id, '?')),
                               jsonb_build_object('thread_id', thread_id));
    ELSIF cardinality(waiting) > 1 THEN
        PERFORM runyard.refuse('hitl_ambiguous', format('several requests wait on thread %s; name one of %s', thread_id, array_to_string(waiting, ', ')),
                               jsonb_build_object('thread_id', thread_id, 'request_ids', to_jsonb(waiting)));
    END IF;
    SELECT x.* INTO h FROM runyard.requests x WHERE x.tenant = for_tenant AND x.request_id = waiting[1];
    RETURN h;
END $$;

-- Queue the suspended run of an answered request. A suspended run stays the head of its lane. Its job has no data for the event run.queued,
-- because the run has had an attempt.
CREATE OR REPLACE FUNCTION runyard.wake_run(thread_key bigint, run_id text, OUT effects jsonb)
LANGUAGE plpgsql AS $$
DECLARE
    job jsonb;
BEGIN
    UPDATE runyard.runs y SET status = 'queued', suspended_at = NULL, waiting_for = NULL, not_before = NULL, changed_at = now()
    WHERE y.thread_key = wake_run.thread_key AND y.run_id = wake_run.run_id AND y.status = 'suspended'
    RETURNING runyard.job_of(y.thread_key, y.run_id, y.lane, y.kind, y.queue, y.priority, y.tenant, NULL, NULL) INTO job;
    IF FOUND THEN effects := jsonb_build_object('jobs', jsonb_build_array(job)); END IF;
END $$;
