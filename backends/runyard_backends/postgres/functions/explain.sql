-- Explaining the state of a run: why it waits, that it runs, or that it has ended.

-- Return the key of the sentence that explains the state of a run. facts: the values that the sentence needs. runyard.domain.explanations
-- makes the sentence.
CREATE OR REPLACE FUNCTION runyard.explain(for_tenant text, thread_id text, run_id text, OUT run runyard.runs, OUT reason text, OUT facts jsonb)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    ahead runyard.runs;
    asked runyard.hitl_requests;
    wait runyard.waits;
    paused jsonb;
    serving runyard.workers[];
    fitting runyard.workers[];
    reaching runyard.workers[];
    unserved text;
    missing jsonb;
    nobody text;
BEGIN
    run := runyard.seen_run(for_tenant, thread_id, run_id);
    facts := '{}';
    paused := (SELECT jsonb_build_object('queue', q.queue, 'since', q.paused_at) FROM runyard.paused_queues q WHERE q.queue = run.queue);
    serving := ARRAY(SELECT w FROM runyard.workers w WHERE w.dead_at IS NULL AND NOT w.draining AND run.queue = ANY (w.queues));
    unserved := (SELECT a.name FROM unnest(ARRAY[CASE WHEN run.kind <> 'fork' THEN coalesce(run.agent, '/') END, run.fork->'fan'->>'judge']) a(name)
        WHERE a.name IS NOT NULL AND NOT EXISTS (SELECT 1 FROM unnest(serving) w WHERE runyard.serves(w, a.name)) LIMIT 1);
    fitting := ARRAY(SELECT w FROM unnest(serving) w WHERE (run.kind = 'fork' OR runyard.serves(w, run.agent))
        AND NOT (run.attempt > 0 AND w.on_version_mismatch = 'wait' AND coalesce(run.app_version <> w.app_version, false)));
    reaching := ARRAY(SELECT w FROM unnest(fitting) w WHERE w.redis_error IS NULL);
    nobody := CASE WHEN serving = '{}' THEN 'no_worker' WHEN unserved IS NOT NULL THEN 'no_agent' WHEN fitting = '{}' THEN 'no_version'
                   WHEN reaching = '{}' THEN 'no_redis' END;
    missing := jsonb_build_object('queue', run.queue, 'agent', unserved) || coalesce((
        SELECT jsonb_build_object('redis_since', w.redis_lost_at, 'redis_error', w.redis_error) FROM unnest(fitting) w
        WHERE nobody = 'no_redis' ORDER BY w.redis_lost_at LIMIT 1), '{}');
    IF run.status = 'suspended' THEN
        SELECT h.* INTO asked FROM runyard.hitl_requests h
        WHERE h.thread_key = run.thread_key AND h.run_id = explain.run_id AND h.answered_at IS NULL AND h.closed_at IS NULL
        ORDER BY h.created_at LIMIT 1;
        reason := 'suspended'; facts := jsonb_build_object('request_id', asked.request_id, 'since', run.suspended_at);
        IF asked.request_id IS NULL THEN
            SELECT w.* INTO wait FROM runyard.waits w
            WHERE w.thread_key = run.thread_key AND w.run_id = explain.run_id AND w.ended_at IS NULL ORDER BY w.wait_no LIMIT 1;
            facts := facts || jsonb_build_object('wait', wait.kind, 'name', wait.name, 'wait_id', wait.wait_id, 'due_at', wait.due_at);
        END IF;
    ELSIF run.status <> 'queued' THEN
        reason := CASE WHEN run.status = 'running' AND run.kind = 'external' THEN 'external'
                       WHEN run.status = 'running' AND NOT EXISTS (
                           SELECT 1 FROM runyard.workers w WHERE w.worker_id = run.worker_id AND w.dead_at IS NULL) THEN 'orphaned'
                       WHEN run.status = 'running' THEN 'running'
                       ELSE 'ended' END;
        facts := jsonb_build_object('worker_id', run.worker_id, 'isolated', run.isolated, 'nobody', nobody)
            || missing || coalesce(paused, '{}')
            || coalesce((SELECT runyard.blocked_facts(w) || jsonb_build_object('silent_for', extract(epoch FROM clock_timestamp() - w.heartbeat_at))
                FROM runyard.workers w WHERE w.worker_id = run.worker_id AND w.dead_at IS NULL), '{}');
    ELSIF run.lane_seq IS NULL THEN
        reason := 'not_due'; facts := jsonb_build_object('due_at', coalesce(run.run_at, run.accepted_at));
    ELSIF run.error IS NOT NULL AND run.not_before > clock_timestamp() THEN
        reason := 'retrying'; facts := jsonb_build_object('at', run.not_before);
    ELSIF run.until_fewer IS NOT NULL AND runyard.count_started_by(run) >= run.until_fewer THEN
        reason := 'fanned_out'; facts := jsonb_build_object('live', runyard.count_started_by(run));
    ELSIF run.kind <> 'prompt' AND runyard.must_wait(run) THEN
        reason := 'waiting'; facts := jsonb_build_object('run_id', run.after_run_id);
    ELSIF paused IS NOT NULL THEN
        reason := 'paused'; facts := paused;
    ELSE
        SELECT h.* INTO ahead FROM runyard.lane_head(run.thread_key, run.lane,
            CASE run.lane WHEN '' THEN (SELECT t.lane_floor FROM runyard.threads t WHERE t.thread_key = run.thread_key) ELSE 0 END) h
        WHERE h.lane_seq < run.lane_seq;
        IF FOUND THEN
            reason := 'behind'; facts := jsonb_build_object('run_id', ahead.run_id, 'status', ahead.status);
        ELSIF run.waits_for_permit IS NOT NULL THEN
            reason := 'limited'; facts := jsonb_build_object('permit', run.waits_for_permit, 'most', runyard.limit_of_permit(run.waits_for_permit));
        ELSE
            reason := coalesce(nobody, 'next');
            facts := missing || coalesce((SELECT runyard.blocked_facts(w) FROM unnest(reaching) w ORDER BY w.blocked_since NULLS FIRST LIMIT 1), '{}')
                || (SELECT jsonb_build_object('lacking', min(w.worker_id COLLATE "C"), 'others_lacking', count(*) - 1) FROM unnest(serving) w
                    WHERE run.kind <> 'fork' AND NOT runyard.serves(w, run.agent));
        END IF;
    END IF;
    facts := facts || jsonb_build_object('workers', (
        SELECT coalesce(jsonb_agg(DISTINCT w.app_version), '[]') FROM unnest(serving) w));
    run := runyard.with_input(run);
END $$;
