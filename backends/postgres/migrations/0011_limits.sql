-- Limits: how much may wait, how large a message may be, and how many runs of an agent or a tenant may run at once.

-- Of one message as it is stored, where the limit message_bytes is not set; runner/bounds.py has the same number.
CREATE FUNCTION runyard.default_message_bytes() RETURNS bigint LANGUAGE sql IMMUTABLE RETURN 8388608;

-- What a limit allows `of` (a tenant or an agent; NULL where a limit has no subjects); NULL if there is none.
CREATE FUNCTION runyard.limit_of(which text, of text DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN coalesce(
        (SELECT l.most FROM runyard.limits l WHERE l.limit_name = which AND (l.subject = of OR l.subject IS NULL)
         ORDER BY l.subject NULLS LAST LIMIT 1),
        CASE which WHEN 'message_bytes' THEN runyard.default_message_bytes() END);
END $$;

CREATE FUNCTION runyard.check_size(messages runyard.new_message[], most bigint) RETURNS void
LANGUAGE plpgsql STABLE AS $$
DECLARE
    largest bigint;
BEGIN
    IF pg_column_size(messages) <= most THEN RETURN; END IF; -- all together; costs nothing where messages are small
    largest := (SELECT max(octet_length(m.payload)) FROM unnest(messages) m);
    IF largest > most THEN
        PERFORM runyard.refuse('message_too_large',
            format('a message of %s bytes is over the limit of %s; keep large content elsewhere and store a reference', largest, most),
            jsonb_build_object('limit', 'message_bytes', 'most', most, 'size', largest));
    END IF;
END $$;

-- Refuse what would be a thread's extra, merged of what was saved; each alone was small enough.
CREATE FUNCTION runyard.check_extra(merged jsonb) RETURNS void
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    most CONSTANT integer := 2097152;
    size integer := octet_length(merged::text);
BEGIN
    IF size > most THEN
        PERFORM runyard.refuse('invalid_input',
            format('extra would have %s bytes, and a thread''s extra may have %s; keep large data elsewhere and store a reference', size, most),
            jsonb_build_object('field', 'extra', 'most', most, 'got', size));
    END IF;
END $$;

-- Refuse metadata that SQL brings and that runner/bounds.py would not take.
CREATE FUNCTION runyard.check_metadata(metadata jsonb) RETURNS void
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    size integer := octet_length(metadata::text);
    why text;
    most integer;
BEGIN
    IF size > 262144 THEN
        why := format('holds %s bytes, and may hold 262144; keep large data elsewhere and store a reference', size); most := 262144;
    ELSIF metadata @? 'strict $.**{100 to last} ? (@.type() == "object" || @.type() == "array")' THEN
        why := 'is nested more than 100 levels deep; make it flatter, or a string of its JSON'; most := 100;
    ELSIF metadata @? 'strict $.** ? (@.type() == "number" && (@ > 18446744073709551615 || @ < -9223372036854775808))' THEN
        why := 'holds a number of more than 64 bits; make it a string'; most := 64;
    ELSIF size > 50000 AND (SELECT count(*) FROM jsonb_path_query(metadata, 'strict $.**')) > 25001 THEN
        why := 'holds more than 25000 values; keep large data elsewhere and store a reference'; most := 25000;
    END IF;
    IF why IS NOT NULL THEN
        PERFORM runyard.refuse('invalid_input', 'metadata ' || why, jsonb_build_object('field', 'metadata', 'most', most));
    END IF;
END $$;

-- Queued runs -------------------------------------------------------------------------------------------------------------------------

-- Count what waits, for a tenant or in all, up to `most`, unless another transaction is doing it.
CREATE FUNCTION runyard.measure_queue(for_tenant text, most bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    name text := coalesce('tenant ' || for_tenant, 'all');
    newest bigint := (SELECT s.last_value FROM runyard.accept_numbers s);
    counted bigint;
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtext('runyard.queue_sizes'), hashtext(name)) THEN RETURN; END IF;
    IF for_tenant IS NULL THEN
        counted := (SELECT count(*) FROM (SELECT 1 FROM runyard.runs r WHERE r.finished_at IS NULL AND r.worker_id IS NULL
                    AND r.suspended_at IS NULL AND r.status = 'queued' AND r.accept_no <= newest LIMIT most) x);
    ELSE
        counted := (SELECT count(*) FROM (SELECT 1 FROM runyard.runs r WHERE r.finished_at IS NULL AND r.worker_id IS NULL
                    AND r.suspended_at IS NULL AND r.status = 'queued' AND r.tenant = for_tenant AND r.accept_no <= newest LIMIT most) x);
    END IF;
    INSERT INTO runyard.queue_sizes AS s (name, queued, newest) VALUES (name, counted, newest)
    ON CONFLICT ON CONSTRAINT queue_sizes_pkey DO UPDATE SET queued = excluded.queued, newest = excluded.newest, measured_at = clock_timestamp();
END $$;

-- How much waits, for a tenant or in all: what was measured last, and what was accepted since and still waits. A measure that is old and not
-- small is renewed if the caller may write.
CREATE FUNCTION runyard.queue_size(for_tenant text, most bigint, may_write boolean) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    size runyard.queue_sizes;
    since bigint;
BEGIN
    FOR look IN 1 .. 2 LOOP
        SELECT s.* INTO size FROM runyard.queue_sizes s WHERE s.name = coalesce('tenant ' || for_tenant, 'all');
        IF for_tenant IS NULL THEN
            since := (SELECT count(*) FROM (SELECT 1 FROM runyard.runs r WHERE r.accept_no > coalesce(size.newest, 0)
                      AND r.finished_at IS NULL AND r.worker_id IS NULL AND r.suspended_at IS NULL AND r.status = 'queued' LIMIT most) x);
        ELSE
            since := (SELECT count(*) FROM (SELECT 1 FROM runyard.runs r WHERE r.tenant = for_tenant AND r.accept_no > coalesce(size.newest, 0)
                      AND r.finished_at IS NULL AND r.worker_id IS NULL AND r.suspended_at IS NULL AND r.status = 'queued' LIMIT most) x);
        END IF;
        EXIT WHEN NOT may_write OR (coalesce(size.queued, 0) < least(100, most) AND since < 100)
            OR size.measured_at > clock_timestamp() - interval '1 second';
        PERFORM runyard.measure_queue(for_tenant, most);
    END LOOP;
    RETURN coalesce(size.queued, 0) + since;
END $$;

-- The leader's: renew the measures that hold anything, so that what drained is known to those who may not write.
CREATE FUNCTION runyard.measure_queues() RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off SET jit = off AS $$
DECLARE
    name text;
    for_tenant text;
    most bigint;
BEGIN
    FOR name IN SELECT s.name FROM runyard.queue_sizes s WHERE s.queued > 0 ORDER BY s.name LOOP
        for_tenant := CASE WHEN name <> 'all' THEN substr(name, length('tenant ') + 1) END;
        most := CASE WHEN for_tenant IS NULL THEN runyard.limit_of('queued') ELSE runyard.limit_of('queued_per_tenant', for_tenant) END;
        PERFORM runyard.measure_queue(for_tenant, coalesce(most, 0));
    END LOOP;
END $$;

CREATE FUNCTION runyard.queue_full(which text, of text, most bigint) RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN jsonb_build_object('code', 'queue_full',
        'message', format('the limit %s is reached: %s waiting %s; try again in a second, or raise the limit', which, most, of),
        'details', jsonb_build_object('limit', which, 'most', most, 'retry_after', 1));
END $$;

-- Refuse a request for which there is no room. A lane's own limit counts what is not due yet, too.
CREATE FUNCTION runyard.check_room(for_tenant text, q runyard.request, key bigint, in_lane text, may_write boolean) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    most bigint := runyard.limit_of('message_bytes');
    waiting bigint;
BEGIN
    IF octet_length(q.input) > most THEN
        PERFORM runyard.check_size(ARRAY[(q.input_id, q.input_role, q.input, NULL, NULL)::runyard.new_message], most);
    END IF;
    PERFORM runyard.check_size(ARRAY(SELECT (NULL, NULL, c.body, NULL, NULL)::runyard.new_message FROM unnest(q.candidates) c(body)), most);
    most := runyard.limit_of('queued_per_lane');
    IF most IS NOT NULL AND q.kind = 'prompt' AND NOT q.parallel THEN
        waiting := (SELECT count(*) FROM (
            (SELECT 1 FROM runyard.runs r WHERE r.thread_key = key AND r.lane = in_lane AND r.finished_at IS NULL AND r.lane_seq IS NOT NULL
             AND r.worker_id IS NULL AND r.suspended_at IS NULL LIMIT most)
            UNION ALL
            (SELECT 1 FROM runyard.runs r WHERE r.tenant = for_tenant AND r.thread_id = q.thread_id AND r.lane_seq IS NULL LIMIT most)) x);
        IF waiting >= most THEN PERFORM runyard.raise(runyard.queue_full('queued_per_lane', 'in lane of thread ' || q.thread_id, most)); END IF;
    END IF;
    most := runyard.limit_of('queued_per_tenant', for_tenant);
    IF most IS NOT NULL AND runyard.queue_size(for_tenant, most, may_write) >= most THEN
        PERFORM runyard.raise(runyard.queue_full('queued_per_tenant', format('for tenant "%s"', for_tenant), most));
    END IF;
    most := runyard.limit_of('queued');
    IF most IS NOT NULL AND runyard.queue_size(NULL, most, may_write) >= most THEN
        PERFORM runyard.raise(runyard.queue_full('queued', 'in all', most));
    END IF;
END $$;

-- Why a run that is admitted late finds no room in its lane; NULL if it does. Others may be one more than the limit, since the lane's
-- first may have come back to the queue.
CREATE FUNCTION runyard.lane_full(r runyard.runs) RETURNS jsonb
LANGUAGE plpgsql STABLE AS $$
DECLARE
    most bigint := runyard.limit_of('queued_per_lane');
BEGIN
    IF most IS NULL OR r.kind <> 'prompt' OR r.parallel OR most >= (
        SELECT count(*) FROM (SELECT 1 FROM runyard.runs x WHERE x.thread_key = r.thread_key AND x.lane = r.lane AND x.finished_at IS NULL
                              AND x.lane_seq < r.lane_seq LIMIT most + 1) y)
    THEN
        RETURN NULL;
    END IF;
    RETURN runyard.queue_full('queued_per_lane', 'in lane of thread ' || r.thread_id, most);
END $$;

-- Slots -------------------------------------------------------------------------------------------------------------------------------

-- What a run takes a slot of while it runs: "agent …" and "tenant …" where a limit is set. A run that names no agent counts for "default".
CREATE FUNCTION runyard.slots_of(r runyard.runs) RETURNS text[]
LANGUAGE plpgsql STABLE AS $$
DECLARE
    agent text := coalesce(r.agent, 'default');
BEGIN
    IF NOT EXISTS (SELECT 1 FROM runyard.limits l WHERE l.limit_name IN ('running_per_agent', 'running_per_tenant')) THEN RETURN '{}'; END IF;
    RETURN CASE WHEN runyard.limit_of('running_per_agent', agent) IS NOT NULL THEN ARRAY['agent ' || agent] ELSE '{}' END
        || CASE WHEN runyard.limit_of('running_per_tenant', r.tenant) IS NOT NULL THEN ARRAY['tenant ' || r.tenant] ELSE '{}' END;
END $$;

-- Who counts or frees slots of a limit comes one after the other. Taken in one order; a holder never waits for a thread's lock.
CREATE FUNCTION runyard.lock_slots(slots text[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    slot text;
BEGIN
    FOR slot IN SELECT DISTINCT s.name FROM unnest(slots) s(name) ORDER BY s.name LOOP
        PERFORM pg_advisory_xact_lock(hashtext('runyard.slots'), hashtext(slot));
    END LOOP;
END $$;

CREATE FUNCTION runyard.limit_of_slot(slot text) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN CASE split_part(slot, ' ', 1) WHEN 'agent' THEN runyard.limit_of('running_per_agent', substr(slot, length('agent ') + 1))
                                         ELSE runyard.limit_of('running_per_tenant', substr(slot, length('tenant ') + 1)) END;
END $$;

-- How many slots are free; NULL without a limit. Reads no more entries of an index than the limit allows runs.
CREATE FUNCTION runyard.free_slots(slot text) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
DECLARE
    most bigint := runyard.limit_of_slot(slot);
    whose text := substr(slot, strpos(slot, ' ') + 1);
    running bigint;
BEGIN
    IF most IS NULL THEN RETURN NULL; END IF;
    IF slot LIKE 'agent %' THEN
        running := (SELECT count(*) FROM (SELECT 1 FROM runyard.runs r WHERE r.agent = whose AND r.finished_at IS NULL
                    AND r.worker_id IS NOT NULL LIMIT most) x);
        IF whose = 'default' THEN
            running := running + (SELECT count(*) FROM (SELECT 1 FROM runyard.runs r WHERE r.agent IS NULL AND r.finished_at IS NULL
                                  AND r.worker_id IS NOT NULL LIMIT most) x);
        END IF;
    ELSE
        running := (SELECT count(*) FROM (SELECT 1 FROM runyard.runs r WHERE r.tenant = whose AND r.finished_at IS NULL
                    AND r.worker_id IS NOT NULL LIMIT most) x);
    END IF;
    RETURN greatest(most - running, 0);
END $$;

-- The slot that a run has to wait for; NULL if it may take all of its own. Those before it in a line come first.
CREATE FUNCTION runyard.missing_slot(r runyard.runs) RETURNS text
LANGUAGE plpgsql STABLE AS $$
DECLARE
    slot text;
    free bigint;
BEGIN
    FOREACH slot IN ARRAY runyard.slots_of(r) LOOP
        free := runyard.free_slots(slot);
        IF r.waits_for_slot = slot THEN
            IF NOT EXISTS (SELECT 1 FROM runyard.first_in_line(slot, free) f(accept_no) WHERE f.accept_no = r.accept_no) THEN
                RETURN slot;
            END IF;
        ELSIF free <= (SELECT count(*) FROM (SELECT 1 FROM runyard.runs x WHERE x.waits_for_slot = slot LIMIT free) y) THEN
            RETURN slot;
        END IF;
    END LOOP;
    RETURN NULL;
END $$;

-- The first in the line for a slot, `most` of them: the first of each tenant, by turns, then the second of each, and so on.
CREATE FUNCTION runyard.first_in_line(slot text, most bigint) RETURNS SETOF bigint
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY
        SELECT x.accept_no FROM (
            SELECT s.tenant, s.turn FROM runyard.slot_turns s
            WHERE s.slot = first_in_line.slot
              AND EXISTS (SELECT 1 FROM runyard.runs r WHERE r.waits_for_slot = first_in_line.slot AND r.tenant = s.tenant)
            ORDER BY s.turn LIMIT most) t
        CROSS JOIN LATERAL (
            SELECT r.accept_no, row_number() OVER (ORDER BY r.place_in_line) AS place FROM runyard.runs r
            WHERE r.waits_for_slot = first_in_line.slot AND r.tenant = t.tenant ORDER BY r.place_in_line LIMIT most) x
        ORDER BY x.place, t.turn LIMIT most;
END $$;

-- Put a run into the line for a slot: tenants by turns, as lua/turns.lua has it, and those of a tenant by priority. Effects: who may go on in
-- the line that it leaves, or, where it stands already, instead of it.
CREATE FUNCTION runyard.wait_for_slot(r runyard.runs, slot text) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
    class bigint := CASE r.priority WHEN 'high' THEN 0 WHEN 'normal' THEN 1 ELSE 2 END * (1::bigint << 48);
BEGIN
    IF r.waits_for_slot = slot THEN RETURN runyard.next_for_slot(slot); END IF;
    INSERT INTO runyard.slot_turns AS s (slot, tenant) VALUES (slot, r.tenant)
    ON CONFLICT ON CONSTRAINT slot_turns_pkey DO UPDATE SET turn = excluded.turn
    WHERE NOT EXISTS (SELECT 1 FROM runyard.runs x WHERE x.waits_for_slot = excluded.slot AND x.tenant = excluded.tenant);
    UPDATE runyard.runs SET waits_for_slot = slot, place_in_line = class + lane_seq, changed_at = now() WHERE accept_no = r.accept_no;
    RETURN runyard.next_for_slot(r.waits_for_slot);
END $$;

-- A tenant's run left the line for its slot: the tenant goes to the end of the turns, or out of them.
CREATE FUNCTION runyard.take_turn(from_slot text, for_tenant text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM runyard.runs x WHERE x.waits_for_slot = from_slot AND x.tenant = for_tenant) THEN
        UPDATE runyard.slot_turns s SET turn = nextval('runyard.lane_numbers') WHERE s.slot = from_slot AND s.tenant = for_tenant;
    ELSE
        DELETE FROM runyard.slot_turns s WHERE s.slot = from_slot AND s.tenant = for_tenant;
    END IF;
END $$;

-- A run cannot be claimed for another reason; whoever stands behind it must not wait for that. Effects: who may go on.
CREATE FUNCTION runyard.leave_line(r runyard.runs) RETURNS jsonb
LANGUAGE plpgsql AS $$
BEGIN
    IF r.waits_for_slot IS NULL THEN RETURN NULL; END IF;
    UPDATE runyard.runs SET waits_for_slot = NULL, place_in_line = NULL, changed_at = now() WHERE accept_no = r.accept_no;
    RETURN runyard.next_for_slot(r.waits_for_slot);
END $$;

-- The first in the line for a slot, as many as are free, as effects. They stay in the line until they are claimed.
CREATE FUNCTION runyard.next_for_slot(slot text) RETURNS jsonb
LANGUAGE plpgsql STABLE AS $$
DECLARE
    jobs jsonb;
BEGIN
    IF slot IS NULL OR NOT EXISTS (SELECT 1 FROM runyard.runs x WHERE x.waits_for_slot = slot) THEN RETURN NULL; END IF;
    jobs := (SELECT jsonb_agg(runyard.job(x) ORDER BY f.n)
             FROM runyard.first_in_line(slot, coalesce(runyard.free_slots(slot), 1000)) WITH ORDINALITY f(accept_no, n)
             JOIN runyard.runs x ON x.accept_no = f.accept_no);
    IF jobs IS NULL THEN RETURN NULL; END IF;
    RETURN jsonb_build_object('jobs', jobs);
END $$;

-- Runs gave up their slots: who goes on instead, as effects. To be called when no further thread is going to be locked.
CREATE FUNCTION runyard.free(slots text[]) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
    slot text;
    effects jsonb;
BEGIN
    IF slots = '{}' THEN RETURN NULL; END IF;
    PERFORM runyard.lock_slots(slots);
    FOR slot IN SELECT DISTINCT s.name FROM unnest(slots) s(name) LOOP
        effects := runyard.merge_effects(effects, runyard.next_for_slot(slot));
    END LOOP;
    RETURN effects;
END $$;

-- The leader's: count the queues, offer what a slot is free for, though nobody freed it just now (a limit was raised or cleared, a run was
-- taken from a dead worker, or a submission was lost), and forget the turns of tenants that left a line without being served.
CREATE FUNCTION runyard.review_limits() RETURNS jsonb
LANGUAGE plpgsql SET enable_seqscan = off SET jit = off SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    slot text;
    effects jsonb;
    idle text[];
BEGIN
    PERFORM runyard.measure_queues();
    slot := (SELECT min(x.waits_for_slot) FROM runyard.runs x WHERE x.waits_for_slot IS NOT NULL);
    WHILE slot IS NOT NULL LOOP
        effects := runyard.merge_effects(effects, runyard.next_for_slot(slot));
        slot := (SELECT min(x.waits_for_slot) FROM runyard.runs x WHERE x.waits_for_slot > slot);
    END LOOP;
    idle := ARRAY(SELECT DISTINCT s.slot FROM runyard.slot_turns s
                  WHERE NOT EXISTS (SELECT 1 FROM runyard.runs x WHERE x.waits_for_slot = s.slot AND x.tenant = s.tenant) LIMIT 100);
    IF idle <> '{}' THEN
        PERFORM runyard.lock_slots(idle);
        DELETE FROM runyard.slot_turns s WHERE s.slot = ANY (idle)
            AND NOT EXISTS (SELECT 1 FROM runyard.runs x WHERE x.waits_for_slot = s.slot AND x.tenant = s.tenant);
    END IF;
    RETURN effects;
END $$;
