-- The timeline of a run, and the search for runs by the beginning of their ids.

-- Return at most `most` runs whose ids begin with `prefix`. If runs have exactly this id, return only these.
CREATE OR REPLACE FUNCTION runyard.find_runs(for_tenant text, prefix text, most integer) RETURNS TABLE (thread_id text, run_id text)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_incremental_sort = off SET jit = off AS $$
DECLARE
    -- chr(1114111) is the last character, so no other character sorts after it.
    after text := prefix || chr(1114111);
BEGIN
    RETURN QUERY
    SELECT r.thread_id, r.run_id FROM runyard.runs r
    WHERE NOT r.deleted AND r.emptied_at IS NULL AND r.run_id COLLATE "C" > '' AND r.tenant = for_tenant AND r.run_id COLLATE "C" = prefix
      AND NOT EXISTS (SELECT 1 FROM runyard.removals s WHERE s.thread_key = r.thread_key AND NOT s.runs_hidden)
    ORDER BY r.accept_no LIMIT most;
    IF FOUND THEN RETURN; END IF;
    RETURN QUERY
    SELECT r.thread_id, r.run_id FROM runyard.runs r
    WHERE NOT r.deleted AND r.emptied_at IS NULL AND r.run_id COLLATE "C" > '' AND r.tenant = for_tenant
      AND r.run_id COLLATE "C" > prefix AND r.run_id COLLATE "C" < after
      AND NOT EXISTS (SELECT 1 FROM runyard.removals s WHERE s.thread_key = r.thread_key AND NOT s.runs_hidden)
    ORDER BY r.run_id COLLATE "C", r.accept_no LIMIT most;
END $$;

-- Return the durations of a run, and its last message. queued: seconds from the due time to the first attempt. running: seconds in
-- attempts. parked: seconds from suspensions to the next attempts. waiting: seconds from errors, releases and crashes to the next attempts.
-- An external run has no attempts.
CREATE OR REPLACE FUNCTION runyard.run_durations(for_tenant text, thread_id text, run_id text)
RETURNS TABLE (queued double precision, running double precision, parked double precision, waiting double precision, message runyard.messages)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    r runyard.runs;
    until timestamptz;
    a record;
    gap text;
    ended timestamptz;
BEGIN
    r := runyard.seen_run(for_tenant, thread_id, run_id);
    until := coalesce(r.finished_at, clock_timestamp());
    queued := 0; running := 0; parked := 0; waiting := 0;
    SELECT m.* INTO message FROM runyard.messages m WHERE m.message_id = r.last_message_id AND m.branch_id = r.branch_id AND m.run_id = r.run_id;
    IF r.kind <> 'external' THEN
        FOR a IN SELECT t.* FROM runyard.attempts_of(r) t ORDER BY t.fence LOOP
            IF gap IS NULL THEN
                queued := runyard.seconds_between(greatest(r.run_at, r.accepted_at), a.started_at);
            ELSIF gap = 'suspended' THEN
                parked := parked + runyard.seconds_between(ended, a.started_at);
            ELSIF gap IN ('retried', 'released', 'lost') THEN
                waiting := waiting + runyard.seconds_between(ended, a.started_at);
            END IF;
            running := running + runyard.seconds_between(a.started_at, coalesce(a.ended_at, clock_timestamp()));
            gap := a.outcome; ended := a.ended_at;
        END LOOP;
        IF gap IS NULL THEN
            queued := runyard.seconds_between(greatest(r.run_at, r.accepted_at), until);
        ELSIF gap = 'suspended' THEN
            parked := parked + runyard.seconds_between(ended, until);
        ELSIF gap IN ('retried', 'released', 'lost') THEN
            waiting := waiting + runyard.seconds_between(ended, until);
        END IF;
    END IF;
    RETURN NEXT;
END $$;

-- Return a page of a run's timeline: at most `most` entries after the place (after_time, after_kind, after_key), and about `bytes`
-- together. A larger entry is a page of its own. An entry is an attempt (kind 0), a message (1), a step (2) or a HITL request (3). since:
-- the time at which the work for a message began. of_fence: the attempt of the message. call_seq: the number of the message whose tool
-- calls a message answers. attempt: the attempt, or the attempt that started a step without a result. size: the bytes of a step's
-- result. A result of more than `large` bytes is omitted. total: the number of entries, counted up to one more than `most`. With
-- `enable_material` off, each message of the page is found by an index. Otherwise a planner without statistics would compare each
-- entry with all messages of the branch.
CREATE OR REPLACE FUNCTION runyard.run_timeline(
    for_tenant text, thread_id text, run_id text, after_time timestamptz, after_kind integer, after_key text, most integer, bytes bigint,
    large integer
) RETURNS TABLE (
    kind integer, at timestamptz, key text, since timestamptz, of_fence bigint, call_seq bigint, size bigint, total bigint,
    attempt runyard.attempts, message runyard.messages, step runyard.steps, request runyard.requests
)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_material = off SET jit = off AS $$
DECLARE
    r runyard.runs;
BEGIN
    r := runyard.seen_run(for_tenant, thread_id, run_id);
    RETURN QUERY
    WITH own AS MATERIALIZED (
        SELECT m.seq, m.created_at::timestamptz AS stored_at, m.role, octet_length(m.payload) AS size, (runyard.event_place(m.event_id))[1] AS fence,
               lag(m.created_at::timestamptz) OVER w AS before, max(m.seq) FILTER (WHERE m.calls IS NOT NULL) OVER w AS call_seq,
               max(m.created_at::timestamptz) FILTER (WHERE m.calls IS NOT NULL) OVER w AS called_at
        FROM runyard.messages m
        WHERE m.branch_id = r.branch_id AND m.seq BETWEEN r.first_seq AND r.last_seq AND m.run_id = r.run_id
        WINDOW w AS (ORDER BY m.seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
    ), found AS (
        SELECT 0 AS kind, coalesce(t.started_at, t.ended_at)::timestamptz AS at, lpad(t.fence::text, 19, '0') COLLATE "C" AS key, NULL AS name,
               NULL::timestamptz AS since, t.fence, NULL::bigint AS seq, NULL::bigint AS call_seq,
               512 + coalesce(octet_length(t.error::text), 0)::bigint AS cost, NULL::bigint AS size
        FROM runyard.attempts_of(r) t
        UNION ALL
        SELECT 1, o.stored_at, lpad(o.seq::text, 19, '0'), NULL, CASE WHEN o.role = 'tool' THEN o.called_at ELSE o.before END,
               o.fence, o.seq, o.call_seq, 512 + coalesce(o.size, 0), NULL
        FROM own o
        UNION ALL
        SELECT 2, coalesce(s.started_at, s.ended_at, r.accepted_at), runyard.place_key(s.step_key), s.step_key, NULL, s.fence, NULL, NULL,
               512 + CASE WHEN octet_length(s.result) > large THEN 0 ELSE coalesce(octet_length(s.result), 0) END, octet_length(s.result)
        FROM runyard.steps s WHERE s.accept_no = r.accept_no
        UNION ALL
        SELECT 3, h.created_at, runyard.place_key(h.request_id), h.request_id, NULL, NULL, NULL, NULL, 512 + octet_length(h.body) + coalesce(octet_length(h.answer), 0), NULL
        FROM runyard.hitl_requests h WHERE h.thread_key = r.thread_key AND h.run_id = r.run_id
    ), counted AS (
        SELECT p.*, row_number() OVER w AS n, sum(p.cost) OVER w AS used, count(*) OVER () AS total
        FROM (SELECT f.* FROM found f WHERE (f.at, f.kind, f.key) > (after_time, after_kind, after_key COLLATE "C")
              ORDER BY f.at, f.kind, f.key LIMIT most + 1) p
        WINDOW w AS (ORDER BY p.at, p.kind, p.key ROWS UNBOUNDED PRECEDING)
    )
    SELECT c.kind, c.at, c.key::text, CASE WHEN c.kind = 1 THEN greatest(c.since, t.started_at::timestamptz) END, c.fence, c.call_seq,
           c.size, c.total, CASE WHEN c.kind IN (0, 2) THEN t END, m,
           CASE WHEN c.kind = 2 THEN runyard.without_large_result(r.accept_no, c.name, large) END, q
    FROM counted c
    LEFT JOIN LATERAL runyard.attempt_of(r, c.fence) t ON c.kind IN (0, 1) OR (c.kind = 2 AND c.size IS NULL)
    LEFT JOIN runyard.messages m ON c.kind = 1 AND m.branch_id = r.branch_id AND m.seq = c.seq
    LEFT JOIN runyard.requests q ON c.kind = 3 AND q.tenant = r.tenant AND q.request_id = c.name
    WHERE c.n = 1 OR (c.n <= most AND c.used <= bytes)
    ORDER BY c.n;
END $$;

-- Return the messages with these numbers on the branch of a run.
CREATE OR REPLACE FUNCTION runyard.messages_of_run(for_tenant text, thread_id text, run_id text, numbers bigint[]) RETURNS SETOF runyard.messages
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    r runyard.runs;
BEGIN
    r := runyard.seen_run(for_tenant, thread_id, run_id);
    RETURN QUERY SELECT m.* FROM runyard.messages m WHERE m.branch_id = r.branch_id AND m.seq = ANY (numbers) AND m.run_id = r.run_id ORDER BY m.seq;
END $$;

-- Return a run of a thread, or a run that the thread inherited with all its messages. The ancestor can be deleted. Raise an
-- error if there is no such run, or if the thread is deleted.
CREATE OR REPLACE FUNCTION runyard.seen_run(for_tenant text, thread_id text, run_id text) RETURNS runyard.runs
LANGUAGE plpgsql STABLE AS $$
DECLARE
    r runyard.runs;
    t runyard.threads;
BEGIN
    SELECT x.* INTO r FROM runyard.runs x
    WHERE x.tenant = for_tenant AND x.thread_id = seen_run.thread_id AND x.run_id = seen_run.run_id AND NOT x.deleted
      AND NOT EXISTS (SELECT 1 FROM runyard.removals s WHERE s.thread_key = x.thread_key);
    IF FOUND THEN RETURN r; END IF;
    t := runyard.known_snapshot(for_tenant, thread_id);
    SELECT w.* INTO r FROM runyard.whole_run(t.thread_key, run_id) w;
    IF NOT FOUND THEN PERFORM runyard.known_run(t, run_id); END IF;
    RETURN r;
END $$;

-- Return the attempts of a run. Two attempts have no row in `attempts`: a running attempt, and the attempt that completed the
-- run. The run's row has their data.
CREATE OR REPLACE FUNCTION runyard.attempts_of(r runyard.runs) RETURNS SETOF runyard.attempts
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY SELECT x.* FROM runyard.attempts x WHERE x.accept_no = r.accept_no;
    IF r.status IN ('running', 'completed') AND r.kind <> 'external' AND r.fence IS NOT NULL THEN
        RETURN QUERY SELECT r.accept_no, r.fence, r.worker_id, r.started_at, r.finished_at, r.status, NULL::jsonb;
    END IF;
END $$;

-- Return one attempt of a run.
CREATE OR REPLACE FUNCTION runyard.attempt_of(r runyard.runs, fence bigint) RETURNS SETOF runyard.attempts
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN QUERY SELECT x.* FROM runyard.attempts x WHERE x.accept_no = r.accept_no AND x.fence = attempt_of.fence;
    IF NOT FOUND AND fence = r.fence THEN
        RETURN QUERY SELECT t.* FROM runyard.attempts_of(r) t WHERE t.fence = attempt_of.fence;
    END IF;
END $$;

-- Return a step. Omit its result if the result has more than `large` bytes.
CREATE OR REPLACE FUNCTION runyard.without_large_result(accept_no bigint, step_key text, large integer) RETURNS runyard.steps
LANGUAGE plpgsql STABLE AS $$
DECLARE
    s runyard.steps;
BEGIN
    SELECT x.* INTO s FROM runyard.steps x WHERE x.accept_no = without_large_result.accept_no AND x.step_key = without_large_result.step_key;
    IF octet_length(s.result) > large THEN s.result := NULL; END IF;
    RETURN s;
END $$;

-- Return the key of an entry of a timeline. The key orders entries of the same time and is a part of cursors. A long name is hashed,
-- because a cursor has a maximum length.
CREATE OR REPLACE FUNCTION runyard.place_key(name text) RETURNS text
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN CASE WHEN octet_length(name) > 255 THEN encode(sha256(convert_to(name, 'UTF8')), 'hex') ELSE name END;
END $$;

-- Return the seconds from one time to another, at least 0. Return 0 if a time is missing.
CREATE OR REPLACE FUNCTION runyard.seconds_between(since timestamptz, until timestamptz) RETURNS double precision
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN coalesce(greatest(extract(epoch FROM until - since), 0), 0);
END $$;
