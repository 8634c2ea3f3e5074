-- The register of workers, the leader's lease, and the heads of lanes that the leader offers again.

-- Register a worker and its agents. A repetition after a lost reply only renews the heartbeat. Raises worker_dead for the id of a
-- dead worker.
CREATE OR REPLACE FUNCTION runyard.register(
    worker_id text, in_queues text[], with_agents jsonb, version text, on_mismatch text, with_slots integer, at_address text,
    asking text[]
) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO runyard.workers AS w (worker_id, queues, agents, app_version, on_version_mismatch, slots, address)
    VALUES (register.worker_id, in_queues, with_agents, version, on_mismatch, with_slots, at_address)
    ON CONFLICT ON CONSTRAINT workers_pkey DO UPDATE SET heartbeat_at = clock_timestamp() WHERE w.dead_at IS NULL;
    IF NOT FOUND THEN
        PERFORM runyard.refuse('worker_dead', format('worker %s was declared dead; register under a new id', worker_id));
    END IF;
    INSERT INTO runyard.agents (agent, queue, asks, app_version)
    SELECT key, value, key = ANY (asking), version FROM jsonb_each_text(with_agents) ORDER BY key
    ON CONFLICT (agent) DO UPDATE SET queue = excluded.queue, asks = excluded.asks, app_version = excluded.app_version, updated_at = now();
END $$;

-- Record a worker's heartbeat. Return the state to which the worker must react. draining: true if it must claim nothing more.
-- paused: the paused queues. oldest_code: the oldest code version that the schema admits.
CREATE OR REPLACE FUNCTION runyard.beat(worker_id text, OUT draining boolean, OUT paused text[], OUT oldest_code integer)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    UPDATE runyard.workers w SET heartbeat_at = clock_timestamp() WHERE w.worker_id = beat.worker_id AND w.dead_at IS NULL
    RETURNING w.draining INTO draining;
    IF NOT FOUND THEN
        PERFORM runyard.refuse('worker_dead', format('worker %s was declared dead; register under a new id', worker_id));
    END IF;
    paused := ARRAY(SELECT q.queue FROM runyard.paused_queues q);
    oldest_code := (SELECT max(v.oldest_code) FROM runyard.schema_versions v);
END $$;

-- Take or renew a lease for `ttl` seconds. Return true if the worker holds the lease.
CREATE OR REPLACE FUNCTION runyard.lead(lease text, worker_id text, ttl double precision) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO runyard.leases AS l (name, holder, expires_at)
    VALUES (lease, lead.worker_id, clock_timestamp() + make_interval(secs => ttl))
    ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, expires_at = excluded.expires_at
    WHERE l.holder = excluded.holder OR l.expires_at < clock_timestamp();
    RETURN FOUND;
END $$;

-- Return up to `most` heads of lanes that did not change for `unchanged` and should have been claimed. Such a head is queued and
-- due, or running on a dead or missing worker. The function reads one index entry per lane, so that the runs behind a head cost
-- nothing.
CREATE OR REPLACE FUNCTION runyard.heads(unchanged interval, after_key bigint, after_lane text, most integer) RETURNS SETOF runyard.runs
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    r record;
    found_so_far integer := 0;
BEGIN
    WHILE found_so_far < most LOOP
        SELECT x.accept_no, x.thread_key, x.lane, x.status, x.kind, x.changed_at, x.not_before, x.admitted_at, x.worker_id,
               x.waits_for_permit INTO r
        FROM runyard.runs x
        WHERE x.finished_at IS NULL AND x.lane_seq IS NOT NULL AND (x.thread_key, x.lane) > (after_key, after_lane)
        ORDER BY x.thread_key, x.lane, x.lane_seq LIMIT 1;
        EXIT WHEN NOT FOUND;
        after_key := r.thread_key; after_lane := r.lane;
        CONTINUE WHEN r.status = 'suspended' OR r.kind = 'external' OR r.changed_at >= now() - unchanged;
        IF r.status = 'queued' THEN
            CONTINUE WHEN r.waits_for_permit IS NOT NULL; -- review_limits offers it
            CONTINUE WHEN coalesce(r.not_before, r.admitted_at) >= now() - unchanged;
            CONTINUE WHEN r.kind <> 'prompt' AND (SELECT runyard.must_wait(x) FROM runyard.runs x WHERE x.accept_no = r.accept_no);
        ELSE
            CONTINUE WHEN EXISTS (SELECT 1 FROM runyard.workers w WHERE w.worker_id = r.worker_id AND w.dead_at IS NULL);
        END IF;
        found_so_far := found_so_far + 1;
        RETURN QUERY SELECT x.* FROM runyard.runs x WHERE x.accept_no = r.accept_no;
    END LOOP;
END $$;
