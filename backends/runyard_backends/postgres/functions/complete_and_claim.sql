-- Chains: the completion of a run claims the next run of its lane, for the same worker, in the same transaction. The lane then needs no
-- other commit between two runs, and no call of Redis.

-- Complete many runs as runyard.complete does, and claim the next runs of their lanes. claim_next, claim_after: the
-- thread keys and the ids of the runs whose next runs may be claimed. next: the claim, or NULL. If the next run was not claimed, another
-- worker may claim its job, which is in the effects.
CREATE OR REPLACE FUNCTION runyard.complete_and_claim(
    writes runyard.attempt_write[], claim_next bigint[], claim_after text[], patience integer DEFAULT NULL
) RETURNS SETOF runyard.ended_and_claimed
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    ended runyard.ended[] := ARRAY(SELECT e FROM runyard.complete(writes, patience) e);
    claims runyard.claimed[] := '{}';
    got record;
BEGIN
    FOR got IN SELECT n.* FROM runyard.next_of_lanes(ended, claim_next, claim_after) n LOOP
        claims := claims || runyard.claim_chained(got.worker_id, got.thread_keys, got.run_ids);
    END LOOP;
    RETURN QUERY SELECT e.thread_key, e.run_id, e.status, e.event_id, e.error, e.effects, e.refused, c
        FROM unnest(ended) e LEFT JOIN unnest(claims) c ON c.thread_key = e.thread_key
            AND e.effects->'jobs' @> jsonb_build_array(jsonb_build_object('thread_key', c.thread_key, 'run_id', c.run_id));
END $$;

-- Return the runs that follow ended runs in their lanes and that the workers of the ended runs may claim, by worker. A worker
-- that is dead or draining claims nothing. If the deployment has a limit on running runs, no worker claims a next run, because
-- the next run may have to wait for other lanes.
CREATE OR REPLACE FUNCTION runyard.next_of_lanes(
    ended runyard.ended[], claim_next bigint[], claim_after text[], OUT worker_id text, OUT thread_keys bigint[], OUT run_ids text[]
) RETURNS SETOF record
LANGUAGE plpgsql STABLE SET plan_cache_mode = force_generic_plan SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off AS $$
BEGIN
    RETURN QUERY
        SELECT w.worker_id, array_agg(e.thread_key), array_agg(j.run_id)
        FROM unnest(ended) e
        CROSS JOIN LATERAL (
            SELECT x.lane, x.worker_id FROM runyard.runs x WHERE x.thread_key = e.thread_key AND x.run_id = e.run_id LIMIT 1) r
        CROSS JOIN LATERAL (
            SELECT x.worker_id, x.queues FROM runyard.workers x
            WHERE x.worker_id = r.worker_id AND x.dead_at IS NULL AND NOT x.draining LIMIT 1) w
        CROSS JOIN LATERAL (
            SELECT x->>'run_id' AS run_id FROM jsonb_array_elements(e.effects->'jobs') x
            WHERE (x->>'thread_key')::bigint = e.thread_key AND x->>'kind' = 'prompt' AND x->>'lane' = r.lane
              AND x->>'queue' = ANY (w.queues) LIMIT 1) j
        WHERE EXISTS (SELECT 1 FROM unnest(claim_next, claim_after) n(thread_key, run_id) WHERE n.thread_key = e.thread_key AND n.run_id = e.run_id)
          AND NOT EXISTS (SELECT 1 FROM runyard.limits l WHERE l.limit_name IN ('running_per_agent', 'running_per_tenant'))
        GROUP BY w.worker_id;
END $$;

-- Claim runs for a worker, and record that the end of another run has claimed them (runyard.crashes). The threads are locked already. If the
-- worker has been declared dead in the meantime, or the claim fails, claim nothing: the ends of its runs are stored all the same. An end of
-- the statement from outside ends the whole transaction.
CREATE OR REPLACE FUNCTION runyard.claim_chained(for_worker text, thread_keys bigint[], run_ids text[]) RETURNS runyard.claimed[]
LANGUAGE plpgsql AS $$
DECLARE
    claims runyard.claimed[];
    c runyard.claimed;
BEGIN
    claims := ARRAY(SELECT x FROM runyard.claim(for_worker, thread_keys, run_ids) x);
    FOREACH c IN ARRAY claims LOOP
        UPDATE runyard.live_runs SET chained_fence = (c.run).fence WHERE accept_no = (c.run).accept_no;
    END LOOP;
    RETURN claims;
EXCEPTION WHEN OTHERS THEN -- neither query_canceled nor assert_failure
    IF SQLSTATE <> 'RY000' THEN RAISE WARNING 'runyard: the next runs of % lanes were not claimed (%)', cardinality(run_ids), SQLSTATE; END IF;
    RETURN '{}';
END $$;
