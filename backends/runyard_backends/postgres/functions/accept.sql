-- Accepting runs. The verb that clients call also admits the run. The verb that hosts call (accept_in_transaction.sql) uses
-- functions of this file. make_way in lanes.sql applies the multitask_strategy if the lane is busy.

-- Accept many runs in one transaction. Threads are locked in the order of their keys, so that batches cannot deadlock. Requests
-- for one thread keep their order. A refused request does not affect the other requests. If there is only one request, its
-- refusal raises an error. patience: milliseconds to wait for a locked thread, or NULL for the session's lock_timeout. After
-- this time the requests for the thread are refused as locked. A request is also refused as locked if a host's open transaction
-- has inserted its run id.
CREATE OR REPLACE FUNCTION runyard.accept_many(for_tenant text, requests runyard.request[], patience integer DEFAULT NULL)
RETURNS SETOF runyard.accepted
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    got record;
    a runyard.accepted;
    code text;
    message text;
    details text;
    position integer;
    done integer[] := '{}'; -- the positions of the plain requests, which are accepted together
    limited boolean := EXISTS (SELECT 1 FROM runyard.limits);
    locked text[] := '{}'; -- threads with a request that was refused as locked; their later requests are refused, too
BEGIN
    IF patience IS NOT NULL THEN PERFORM set_config('lock_timeout', greatest(1, patience)::text, true); END IF;
    IF cardinality(requests) = 1 THEN
        got := runyard.accept_and_admit(for_tenant, requests[1], limited);
        RETURN NEXT runyard.accepted_as(1, got.run, got.created, got.effects);
        RETURN;
    END IF;
    IF NOT limited THEN
        FOR a IN SELECT p.* FROM runyard.accept_plain(for_tenant, requests) p LOOP
            done := done || a.n;
            RETURN NEXT a;
        END LOOP;
    END IF;
    IF cardinality(done) = cardinality(requests) THEN RETURN; END IF;
    FOR position IN
        SELECT s.n FROM generate_subscripts(requests, 1) s(n)
        LEFT JOIN LATERAL ( -- LIMIT keeps the planner from hashing all threads of the tenant
            SELECT x.thread_key FROM runyard.threads x
            WHERE x.tenant = for_tenant AND x.thread_id = (requests[s.n]).thread_id AND x.deleted_at IS NULL LIMIT 1) t ON true
        WHERE s.n <> ALL (done)
        ORDER BY t.thread_key NULLS LAST, (requests[s.n]).thread_id, s.n
    LOOP
        BEGIN
            IF locked <> '{}' AND (requests[position]).thread_id = ANY (locked) THEN
                PERFORM runyard.refuse('locked', format('an earlier request for thread %s waits for a lock', (requests[position]).thread_id));
            END IF;
            got := runyard.accept_and_admit(for_tenant, requests[position], limited);
            a := runyard.accepted_as(position, got.run, got.created, got.effects);
        EXCEPTION WHEN SQLSTATE 'RY000' OR lock_not_available THEN
            GET STACKED DIAGNOSTICS code = PG_EXCEPTION_HINT, message = MESSAGE_TEXT, details = PG_EXCEPTION_DETAIL;
            IF SQLSTATE = '55P03' THEN
                code := 'locked'; details := '{}';
                patience := coalesce(patience, 2) / 2; -- so that all waits together take at most twice this time
                PERFORM set_config('lock_timeout', greatest(1, patience)::text, true);
            END IF;
            IF code = 'locked' THEN locked := locked || (requests[position]).thread_id; END IF;
            a := NULL;
            a.n := position;
            a.refused := jsonb_build_object('code', code, 'message', message, 'details', details::jsonb);
        END;
        RETURN NEXT a;
    END LOOP;
END $$;

-- Accept and admit a client's run in one step, so that a refusal reaches the caller. limited: true if the deployment has limits.
CREATE OR REPLACE FUNCTION runyard.accept_and_admit(
    for_tenant text, q runyard.request, limited boolean, OUT run runyard.runs, OUT created boolean, OUT effects jsonb
) LANGUAGE plpgsql AS $$
DECLARE
    got record;
    t runyard.threads;
    for_agent text;
    in_lane text;
    busy text;
    due timestamptz := runyard.due_at(q);
    usual_timeout text := current_setting('lock_timeout');
    ignored text; -- receives the result of set_config; an assignment needs a third of the time of PERFORM
BEGIN
    limited := limited OR q.candidates IS NOT NULL OR octet_length(q.input) > runyard.default_message_bytes();
    IF q.kind = 'prompt' THEN
        t := runyard.ensure_thread(for_tenant, q.thread_id, coalesce(q.agent, '/'));
    ELSE
        t := runyard.known_thread(for_tenant, q.thread_id);
    END IF;
    IF EXISTS (SELECT 1 FROM runyard.runs x WHERE x.tenant = for_tenant AND x.thread_id = q.thread_id AND x.lane_seq IS NULL) THEN
        got := runyard.admit_thread(t);
        t := got.t; effects := got.effects;
        IF NOT runyard.is_agent(t.agent) THEN for_agent := runyard.agent_of_unadmitted(for_tenant, q.thread_id); END IF;
    END IF;
    for_agent := runyard.agent_of(q.agent, coalesce(for_agent, t.agent));
    IF limited OR q.kind <> 'prompt' OR q.multitask_strategy <> 'enqueue' OR q.input_id IS NULL OR q.parent_id IS NOT NULL OR t.fork_hash IS NOT NULL THEN
        run := runyard.existing_run(for_tenant, q);
        created := run.run_id IS NULL;
        IF NOT created THEN RETURN; END IF;
    END IF;
    IF t.fork_hash IS NOT NULL OR q.parent_id IS NOT NULL THEN
        PERFORM runyard.raise(runyard.why_not(t, q.run_id, q.parent_id));
    END IF;
    IF limited THEN
        PERFORM runyard.check_room(for_tenant, q, t.thread_key, runyard.lane_of(t, q.kind, q.parallel, q.run_id, q.parent_id), true);
    END IF;
    IF q.kind <> 'prompt' THEN
        PERFORM runyard.refuse_asking(q, for_agent);
        got := runyard.fix_cut(t, q.fork);
        q.after_run_id := got.after_run; q.fork := got.fork;
        IF q.kind = 'fork' THEN PERFORM runyard.check_free(for_tenant, q.fork->>'new', q.fork->>'hash'); END IF;
    END IF;
    IF due IS NULL OR due <= clock_timestamp() THEN
        in_lane := runyard.lane_of(t, q.kind, q.parallel, q.run_id, q.parent_id);
        got := runyard.make_way(t, in_lane, q.multitask_strategy);
        t := got.t; busy := got.busy;
        IF got.refused IS NOT NULL THEN PERFORM runyard.raise(got.refused); END IF;
        effects := runyard.merge_effects(effects, got.effects);
        IF q.input_id IS NULL AND q.kind = 'prompt' THEN
            PERFORM runyard.check_something_to_run(t, q.parent_id, busy);
        END IF;
    END IF;
    -- A host's open transaction may have taken the run id. Without this timeout, the insert would wait for the end of that
    -- transaction. The thread would stay locked during this time.
    ignored := set_config('lock_timeout', '5ms', true);
    run := runyard.insert_run(for_tenant, q, t.thread_key, in_lane, for_agent, due, limited);
    ignored := set_config('lock_timeout', usual_timeout, true);
    created := run.run_id IS NOT NULL;
    IF NOT created THEN
        run := runyard.existing_run(for_tenant, q);
        RETURN;
    END IF;
    IF q.fork ? 'batch' THEN PERFORM runyard.take_candidates(run); END IF;
    IF q.kind = 'prompt' AND NOT runyard.is_agent(t.agent) THEN t := runyard.set_thread_agent(t, for_agent); END IF;
    IF in_lane IS NOT NULL AND busy IS NULL AND (q.kind = 'prompt' OR NOT runyard.must_wait(run)) THEN
        effects := runyard.merge_effects(effects, jsonb_build_object('jobs', jsonb_build_array(runyard.job(run))));
    END IF;
END $$;

CREATE OR REPLACE FUNCTION runyard.accepted_as(n integer, r runyard.runs, created boolean, effects jsonb) RETURNS runyard.accepted
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN (n, created, r.status, r.lane, r.agent, r.queue, r.after_run_id, r.run_at, r.expires_at, r.accepted_at,
            r.admitted_at, effects, NULL)::runyard.accepted;
END $$;

-- Insert the run of a request. in_lane: the lane, or NULL for a run that is admitted later. limited: true if the deployment has limits.
CREATE OR REPLACE FUNCTION runyard.insert_run(
    for_tenant text, q runyard.request, thread_key bigint, in_lane text, for_agent text, due_at timestamptz, limited boolean
) RETURNS runyard.runs
LANGUAGE plpgsql AS $$
DECLARE
    inserted record; -- a column for each of the row's columns would cost a tenth of the statement
    accepted timestamptz := clock_timestamp();
BEGIN
    INSERT INTO runyard.runs AS x (tenant, thread_id, run_id, thread_key, kind, status, lane, lane_seq, admitted_at, agent, queue, priority,
        input, input_id, input_role, input_calls, input_results, request_hash, options, metadata, multitask_strategy, parallel,
        parent_id, after_run_id, fork, candidates, started_by_key, started_by_run_id, run_at, expires_at, app_version, trace_context,
        accepted_at)
    VALUES (for_tenant, q.thread_id, q.run_id, insert_run.thread_key, q.kind, 'queued', in_lane,
        CASE WHEN in_lane IS NOT NULL THEN nextval('runyard.lane_numbers') END, CASE WHEN in_lane IS NOT NULL THEN accepted END, for_agent,
        coalesce(q.queue, runyard.queue_of(for_agent)), q.priority,
        q.input, q.input_id, q.input_role, q.input_calls, q.input_results, q.request_hash, q.options, q.metadata, q.multitask_strategy,
        q.parallel, q.parent_id, q.after_run_id, q.fork, q.candidates, q.started_by_key, q.started_by_run_id, due_at,
        CASE WHEN limited OR q.options ? 'expires_in' THEN runyard.expires_at(q, due_at) END,
        q.app_version, q.trace_context, accepted)
    ON CONFLICT (tenant, thread_id, run_id) WHERE NOT deleted DO NOTHING
    RETURNING x AS run INTO inserted;
    RETURN inserted.run;
END $$;

CREATE OR REPLACE FUNCTION runyard.due_at(q runyard.request) RETURNS timestamptz
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF q.delay IS NULL THEN RETURN q.run_at; END IF;
    RETURN clock_timestamp() + make_interval(secs => q.delay);
END $$;

-- Return the time by which the first attempt must start, or NULL. This is the due time plus the shorter of two times: the
-- request's expires_in, and the deployment's limit queued_seconds. The limit does not apply to a fork, which may wait for
-- another run.
CREATE OR REPLACE FUNCTION runyard.expires_at(q runyard.request, due_at timestamptz) RETURNS timestamptz
LANGUAGE plpgsql STABLE AS $$
DECLARE
    seconds double precision := least((q.options->>'expires_in')::double precision,
                                      CASE WHEN q.kind <> 'fork' THEN runyard.limit_of('queued_seconds') END);
BEGIN
    IF seconds IS NULL THEN RETURN NULL; END IF;
    RETURN greatest(due_at, clock_timestamp()) + make_interval(secs => least(seconds, 315360000));
END $$;

-- Refuse a run without a message if the last message needs no reply. busy: the live run of the lane, or NULL. If the lane is
-- busy, the run is not refused, because the live run can still add a message.
CREATE OR REPLACE FUNCTION runyard.check_something_to_run(t runyard.threads, parent_id uuid, busy text) RETURNS void
LANGUAGE plpgsql STABLE AS $$
DECLARE
    view runyard.level[] := runyard.branch_view(t.head_branch);
    leaf record;
BEGIN
    IF check_something_to_run.parent_id IS NOT NULL THEN
        SELECT c.view INTO view FROM runyard.cut_at_message(t, check_something_to_run.parent_id) c;
    ELSIF busy IS NOT NULL THEN
        RETURN;
    END IF;
    SELECT m.role, m.calls INTO leaf FROM runyard.last_visible(view) l JOIN runyard.messages m USING (message_id, seq);
    IF NOT FOUND OR (leaf.role = 'assistant' AND leaf.calls IS NULL) THEN
        PERFORM runyard.refuse('nothing_to_run',
            format('thread %s has no message at its end to answer; give a message', t.thread_id), jsonb_build_object('thread_id', t.thread_id));
    END IF;
END $$;

-- Refuse a probe whose agent or judge can ask humans, because no human can answer a probe. Workers report such agents at their
-- registration.
CREATE OR REPLACE FUNCTION runyard.refuse_asking(q runyard.request, for_agent text) RETURNS void
LANGUAGE plpgsql STABLE AS $$
DECLARE
    probes boolean := q.kind = 'fork_once' OR q.kind = 'fork_many' AND NOT (q.fork->'fan'->>'threads')::boolean;
    asking text := (SELECT a.agent FROM runyard.agents a
                    WHERE a.asks AND (probes AND a.agent = for_agent OR a.agent = q.fork->'fan'->>'judge') LIMIT 1);
BEGIN
    IF asking IS NOT NULL THEN
        PERFORM runyard.refuse('hitl_not_allowed', format('agent %s asks humans; nobody can answer a probe', asking),
                               jsonb_build_object('agent', asking));
    END IF;
END $$;

-- Determine the cut of a fork job when the job is accepted. after_run: the run at whose end the cut is, or NULL for a cut at a message.
CREATE OR REPLACE FUNCTION runyard.fix_cut(t runyard.threads, INOUT fork jsonb, OUT after_run text)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    cut jsonb := fork->'cut';
    target runyard.runs;
BEGIN
    IF cut->>'at_message_id' IS NOT NULL OR cut->>'at_seq' IS NOT NULL THEN
        PERFORM runyard.cut(t, cut);
        RETURN;
    END IF;
    after_run := coalesce(cut->>'after_run_id', runyard.last_completed(t));
    IF after_run IS NULL THEN
        PERFORM runyard.refuse('run_not_completed',
            format('thread %s has no completed run; prompt it once, then fork', t.thread_id), jsonb_build_object('thread_id', t.thread_id));
    END IF;
    fork := jsonb_set(fork, '{cut,after_run_id}', to_jsonb(after_run));
    SELECT x.* INTO target FROM runyard.runs x WHERE x.thread_key = t.thread_key AND x.run_id = after_run;
    IF NOT FOUND OR target.finished_at IS NOT NULL THEN
        PERFORM runyard.cut_after_run(t, after_run);
    END IF;
END $$;
