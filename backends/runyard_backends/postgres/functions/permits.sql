-- Permits under the limits on running runs, and the lines of runs that wait for a permit. The name of a permit contains the agent or the
-- tenant of the limit: "agent …" or "tenant …". There are as many permits of one name as the limit allows.

-- Return the names of the permits that a run holds while it runs. Names without a limit are omitted. A run without an agent counts for the
-- agent "default".
CREATE OR REPLACE FUNCTION runyard.permits_of(r runyard.runs) RETURNS text[]
LANGUAGE plpgsql STABLE AS $$
DECLARE
    agent text := coalesce(r.agent, 'default');
BEGIN
    IF NOT EXISTS (SELECT 1 FROM runyard.limits l WHERE l.limit_name IN ('running_per_agent', 'running_per_tenant')) THEN RETURN '{}'; END IF;
    RETURN CASE WHEN runyard.limit_of('running_per_agent', agent) IS NOT NULL THEN ARRAY['agent ' || agent] ELSE '{}' END
        || CASE WHEN runyard.limit_of('running_per_tenant', r.tenant) IS NOT NULL THEN ARRAY['tenant ' || r.tenant] ELSE '{}' END;
END $$;

-- Lock the permits of these names, in the order of the names. Only one transaction at a time can then count and free them.
-- After this call, the transaction must not wait for the lock of a thread, because this wait could cause a deadlock. A call
-- waits longer for these locks than for the lock of a thread. Transactions that hold these locks are short, and after a failed
-- wait all changes of the call would be undone.
CREATE OR REPLACE FUNCTION runyard.lock_permits(permits text[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    permit text;
BEGIN
    PERFORM set_config('lock_timeout', '15s', true) WHERE permits <> '{}';
    FOR permit IN SELECT DISTINCT s.name FROM unnest(permits) s(name) ORDER BY s.name LOOP
        PERFORM pg_advisory_xact_lock(hashtext('runyard.permits'), hashtext(permit));
    END LOOP;
END $$;

-- Return the limit on the permits of a name, or NULL.
CREATE OR REPLACE FUNCTION runyard.limit_of_permit(permit text) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN CASE split_part(permit, ' ', 1) WHEN 'agent' THEN runyard.limit_of('running_per_agent', substr(permit, length('agent ') + 1))
                                         ELSE runyard.limit_of('running_per_tenant', substr(permit, length('tenant ') + 1)) END;
END $$;

-- Return the number of free permits of a name, or NULL without a limit. The function reads at most as many index entries as the
-- limit allows runs.
CREATE OR REPLACE FUNCTION runyard.free_permits(permit text) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
DECLARE
    most bigint := runyard.limit_of_permit(permit);
    whose text := substr(permit, strpos(permit, ' ') + 1);
    running bigint;
BEGIN
    IF most IS NULL THEN RETURN NULL; END IF;
    IF permit LIKE 'agent %' THEN
        running := (SELECT count(*) FROM (SELECT 1 FROM runyard.live_runs r WHERE r.agent = whose AND r.worker_id IS NOT NULL LIMIT most) x);
        IF whose = 'default' THEN
            running := running + (SELECT count(*) FROM (SELECT 1 FROM runyard.live_runs r WHERE r.agent IS NULL AND r.worker_id IS NOT NULL
                                  LIMIT most) x);
        END IF;
    ELSE
        running := (SELECT count(*) FROM (SELECT 1 FROM runyard.live_runs r WHERE r.tenant = whose AND r.status = 'running'
                    AND r.worker_id IS NOT NULL LIMIT most) x);
    END IF;
    RETURN greatest(most - running, 0);
END $$;

-- Return the name of a permit for which a run must wait, or NULL if all its permits are free. The free permits go to the first runs in the
-- permit's line.
CREATE OR REPLACE FUNCTION runyard.missing_permit(r runyard.runs) RETURNS text
LANGUAGE plpgsql STABLE AS $$
DECLARE
    permit text;
    free bigint;
BEGIN
    FOREACH permit IN ARRAY runyard.permits_of(r) LOOP
        free := runyard.free_permits(permit);
        IF r.waits_for_permit = permit THEN
            IF NOT EXISTS (SELECT 1 FROM runyard.first_in_line(permit, free) f(accept_no) WHERE f.accept_no = r.accept_no) THEN
                RETURN permit;
            END IF;
        ELSIF free <= (SELECT count(*) FROM (SELECT 1 FROM runyard.live_runs x WHERE x.waits_for_permit = permit LIMIT free) y) THEN
            RETURN permit;
        END IF;
    END LOOP;
    RETURN NULL;
END $$;

-- Return the accept_no of the first `most` runs in the line for a permit. The tenants take turns: the line begins with one run of each
-- tenant, and then has the second run of each tenant.
CREATE OR REPLACE FUNCTION runyard.first_in_line(permit text, most bigint) RETURNS SETOF bigint
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY
        SELECT x.accept_no FROM (
            SELECT s.tenant, s.turn FROM runyard.permit_turns s
            WHERE s.permit = first_in_line.permit
              AND EXISTS (SELECT 1 FROM runyard.live_runs r WHERE r.waits_for_permit = first_in_line.permit AND r.tenant = s.tenant)
            ORDER BY s.turn LIMIT most) t
        CROSS JOIN LATERAL (
            SELECT r.accept_no, row_number() OVER (ORDER BY r.place_in_line) AS place FROM runyard.live_runs r
            WHERE r.waits_for_permit = first_in_line.permit AND r.tenant = t.tenant ORDER BY r.place_in_line LIMIT most) x
        ORDER BY x.place, t.turn LIMIT most;
END $$;

-- Add a run to the line for a permit. Tenants take turns, as in lua/turns.lua. A tenant's runs are ordered by priority. The run leaves the
-- line of another permit. Return as effects the jobs of runs in that line that may start. If the run is in the line for this permit
-- already, return the jobs of runs in this line that may start.
CREATE OR REPLACE FUNCTION runyard.wait_for_permit(r runyard.runs, permit text) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
    class bigint := CASE r.priority WHEN 'high' THEN 0 WHEN 'normal' THEN 1 ELSE 2 END * (1::bigint << 48);
BEGIN
    IF r.waits_for_permit = permit THEN RETURN runyard.next_for_permit(permit); END IF;
    INSERT INTO runyard.permit_turns AS s (permit, tenant) VALUES (permit, r.tenant)
    ON CONFLICT ON CONSTRAINT permit_turns_pkey DO UPDATE SET turn = excluded.turn
    WHERE NOT EXISTS (SELECT 1 FROM runyard.live_runs x WHERE x.waits_for_permit = excluded.permit AND x.tenant = excluded.tenant);
    UPDATE runyard.runs SET waits_for_permit = permit, place_in_line = class + lane_seq, changed_at = now() WHERE accept_no = r.accept_no;
    RETURN runyard.next_for_permit(r.waits_for_permit);
END $$;

-- Give the last turn to a tenant whose run has left the line. If the tenant has no other run in the line, delete its turn.
CREATE OR REPLACE FUNCTION runyard.take_turn(from_permit text, for_tenant text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM runyard.live_runs x WHERE x.waits_for_permit = from_permit AND x.tenant = for_tenant) THEN
        UPDATE runyard.permit_turns s SET turn = nextval('runyard.lane_numbers') WHERE s.permit = from_permit AND s.tenant = for_tenant;
    ELSE
        DELETE FROM runyard.permit_turns s WHERE s.permit = from_permit AND s.tenant = for_tenant;
    END IF;
END $$;

-- Remove a run from its line, because its claim was refused for another reason than a missing permit. Return as effects the jobs of the
-- runs behind it that may start.
CREATE OR REPLACE FUNCTION runyard.leave_line(r runyard.runs) RETURNS jsonb
LANGUAGE plpgsql AS $$
BEGIN
    IF r.waits_for_permit IS NULL THEN RETURN NULL; END IF;
    UPDATE runyard.runs SET waits_for_permit = NULL, place_in_line = NULL, changed_at = now() WHERE accept_no = r.accept_no;
    RETURN runyard.next_for_permit(r.waits_for_permit);
END $$;

-- Return as effects one job for each free permit, for the first runs in the permit's line. The runs stay in the line until a worker claims
-- them.
CREATE OR REPLACE FUNCTION runyard.next_for_permit(permit text) RETURNS jsonb
LANGUAGE plpgsql STABLE AS $$
DECLARE
    jobs jsonb;
BEGIN
    IF permit IS NULL OR NOT EXISTS (SELECT 1 FROM runyard.live_runs x WHERE x.waits_for_permit = permit) THEN RETURN NULL; END IF;
    jobs := (SELECT jsonb_agg(runyard.job(x) ORDER BY f.n)
             FROM runyard.first_in_line(permit, coalesce(runyard.free_permits(permit), 1000)) WITH ORDINALITY f(accept_no, n)
             JOIN runyard.runs x ON x.accept_no = f.accept_no);
    IF jobs IS NULL THEN RETURN NULL; END IF;
    RETURN jsonb_build_object('jobs', jobs);
END $$;

-- Return as effects the jobs of the runs that get the freed permits of these names. Call this function after the transaction has locked its
-- last thread.
CREATE OR REPLACE FUNCTION runyard.free(permits text[]) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
    permit text;
    effects jsonb;
BEGIN
    IF permits = '{}' THEN RETURN NULL; END IF;
    PERFORM runyard.lock_permits(permits);
    FOR permit IN SELECT DISTINCT s.name FROM unnest(permits) s(name) LOOP
        effects := runyard.merge_effects(effects, runyard.next_for_permit(permit));
    END LOOP;
    RETURN effects;
END $$;

-- Measure the numbers of queued runs. Return as effects the jobs of waiting runs for which a permit is free. There are such
-- runs after a limit was raised or cleared, after a takeover from a dead worker, and after a lost submission. Delete the turns
-- of tenants without a run in the line. The leader calls this function.
CREATE OR REPLACE FUNCTION runyard.review_limits() RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET enable_seqscan = off SET jit = off SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    permit text;
    effects jsonb;
    idle text[];
BEGIN
    PERFORM runyard.measure_queues();
    permit := (SELECT min(x.waits_for_permit) FROM runyard.live_runs x WHERE x.waits_for_permit IS NOT NULL);
    WHILE permit IS NOT NULL LOOP
        effects := runyard.merge_effects(effects, runyard.next_for_permit(permit));
        permit := (SELECT min(x.waits_for_permit) FROM runyard.live_runs x WHERE x.waits_for_permit > permit);
    END LOOP;
    idle := ARRAY(SELECT DISTINCT s.permit FROM runyard.permit_turns s
                  WHERE NOT EXISTS (SELECT 1 FROM runyard.live_runs x WHERE x.waits_for_permit = s.permit AND x.tenant = s.tenant) LIMIT 100);
    IF idle <> '{}' THEN
        PERFORM runyard.lock_permits(idle);
        DELETE FROM runyard.permit_turns s WHERE s.permit = ANY (idle)
            AND NOT EXISTS (SELECT 1 FROM runyard.live_runs x WHERE x.waits_for_permit = s.permit AND x.tenant = s.tenant);
    END IF;
    RETURN effects;
END $$;
