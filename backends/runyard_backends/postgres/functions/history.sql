-- Reading the context of an attempt: as a whole, after the messages that a worker keeps in memory, or from its end. context of reading.sql
-- is the same for workers of older releases.

-- Return the number up to which the caller already has the messages of a view, or -1. held: a JSON array with an object for each history
-- that the caller keeps of the thread: branch_id, the number (seq) and the id of its last message, the cutoff up to which its runs were
-- complete, and the generation. The caller gets the generation with a history, and returns it. A kept history is not used if
--   * it is the history of another branch, or of a later state than the view;
--   * the server was restarted or replaced, because a restored server may give its numbers to other messages;
--   * its last message is not there;
--   * messages of the view were erased;
--   * a run completed later that has messages before the last message of the history.
-- Three changes need no condition. A thread that is made again after its deletion has new branches. A deletion without erasure removes only
-- messages that no remaining thread shows. The first claim of a run may move messages that were appended under the run's id, but no kept
-- history has messages of a run that has not completed.
CREATE OR REPLACE FUNCTION runyard.held_until(view runyard.level[], held jsonb, OUT generation text, OUT seq bigint)
LANGUAGE plpgsql STABLE SET enable_bitmapscan = off AS $$
DECLARE
    own runyard.level := view[array_upper(view, 1)];
    branches bigint[] := ARRAY(SELECT x.branch_id FROM unnest(view) x);
BEGIN
    generation := extract(epoch FROM pg_postmaster_start_time()) || ':' || (
        SELECT coalesce(sum(e.steps), 0) FROM runyard.erasures e WHERE e.branch_id = ANY (branches));
    -- A join with runs, instead of the subquery for first_seq, could read the runs of all threads.
    seq := coalesce((
        SELECT h.seq FROM jsonb_to_recordset(held) AS h(branch_id bigint, seq bigint, message_id uuid, cutoff bigint, generation text)
        WHERE h.branch_id = own.branch_id AND h.seq <= own.high_water_seq AND h.cutoff <= own.cutoff
          AND h.generation = held_until.generation
          AND EXISTS (SELECT 1 FROM runyard.messages m WHERE m.message_id = h.message_id AND m.branch_id = ANY (branches) AND m.seq = h.seq)
          AND NOT EXISTS (SELECT 1 FROM runyard.completions c
                          WHERE c.branch_id = own.branch_id AND c.completion_seq > h.cutoff AND c.completion_seq <= own.cutoff
                            AND (SELECT r.first_seq FROM runyard.runs r WHERE r.accept_no = c.accept_no) <= h.seq)
        LIMIT 1), -1);
END $$;

-- Return the run of an attempt. Raises stale_fence if another attempt has claimed the run.
CREATE OR REPLACE FUNCTION runyard.read_by(thread_key bigint, run_id text, with_fence bigint) RETURNS runyard.runs
LANGUAGE plpgsql STABLE AS $$
DECLARE
    r runyard.runs;
BEGIN
    SELECT x.* INTO r FROM runyard.runs x WHERE x.thread_key = read_by.thread_key AND x.run_id = read_by.run_id;
    IF r.fence IS DISTINCT FROM with_fence THEN
        PERFORM runyard.refuse('stale_fence', format('the attempt with fence %s no longer holds run %s; stop it', with_fence, read_by.run_id),
                               jsonb_build_object('run_id', read_by.run_id, 'fence', with_fence, 'current_fence', r.fence));
    END IF;
    RETURN r;
END $$;

-- Return up to `most` of the messages that a run sees: the messages of its snapshot after the number `after`, then its own
-- messages after the number own_after. The messages that the caller holds are left out (held_until). own: true for messages of
-- the run. The first row is no message. Its column own is NULL, and its column note is a JSON object with branch_id, cutoff,
-- generation, and held: true if messages were left out. created_at: the bytes of the time, because the driver needs as long
-- for a time as for all other columns. calls, results: only for messages without a payload.
CREATE OR REPLACE FUNCTION runyard.history(
    thread_key bigint, run_id text, with_fence bigint, held jsonb, after bigint, own_after bigint, most bigint
) RETURNS TABLE (
    seq bigint, id text, parent_id text, of_run text, role text, payload bytea, note text, calls text[], results text[], created_at bytea,
    own boolean
) LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off
SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    r runyard.runs := runyard.read_by(thread_key, run_id, with_fence);
    view runyard.level[] := runyard.run_view(r);
    known record := runyard.held_until(view, held);
    l runyard.level;
    owner bigint;
    got bigint;
BEGIN
    note := jsonb_build_object('branch_id', r.branch_id, 'cutoff', r.snapshot_cutoff, 'generation', known.generation, 'held', known.seq >= 0)::text;
    RETURN NEXT;
    FOR l IN SELECT x.branch_id, x.high_water_seq, x.cutoff, x.open_run_id FROM unnest(view) x ORDER BY x.high_water_seq LOOP
        CONTINUE WHEN l.high_water_seq <= greatest(history.after, known.seq);
        SELECT b.thread_key INTO owner FROM runyard.branches b WHERE b.branch_id = l.branch_id;
        RETURN QUERY
            SELECT m.seq, m.message_id::text, m.parent_id::text, m.run_id, m.role, m.payload, m.note,
                   CASE WHEN m.payload IS NULL THEN m.calls END, CASE WHEN m.payload IS NULL THEN m.results END, timestamptz_send(m.created_at), false
            FROM runyard.messages m
            LEFT JOIN LATERAL (SELECT x.completion_seq FROM runyard.runs x
                               WHERE x.thread_key = owner AND x.run_id = m.run_id OFFSET 0) c ON true
            WHERE m.branch_id = l.branch_id AND m.seq <= l.high_water_seq AND m.seq > greatest(history.after, known.seq)
              AND (m.run_id IS NULL OR m.run_id = l.open_run_id OR c.completion_seq <= l.cutoff)
            ORDER BY m.seq LIMIT most;
        GET DIAGNOSTICS got = ROW_COUNT;
        most := most - got;
        IF most <= 0 THEN RETURN; END IF;
    END LOOP;
    RETURN QUERY
        SELECT m.seq, m.message_id::text, m.parent_id::text, m.run_id, m.role, m.payload, m.note,
               CASE WHEN m.payload IS NULL THEN m.calls END, CASE WHEN m.payload IS NULL THEN m.results END, timestamptz_send(m.created_at), true
        FROM runyard.messages m
        WHERE m.branch_id = r.branch_id AND m.seq BETWEEN greatest(r.first_seq, own_after + 1) AND r.last_seq AND m.run_id = r.run_id
        ORDER BY m.seq LIMIT most;
END $$;

-- Return up to `most` of the messages that a run sees, the last message first: its own messages before the number own_before,
-- then the messages of its snapshot before the number `before`.
CREATE OR REPLACE FUNCTION runyard.recent(
    thread_key bigint, run_id text, with_fence bigint, before bigint, own_before bigint, most bigint
) RETURNS SETOF runyard.messages
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    r runyard.runs := runyard.read_by(thread_key, run_id, with_fence);
    l runyard.level;
    got bigint;
BEGIN
    RETURN QUERY
        SELECT m.* FROM runyard.messages m
        WHERE m.branch_id = r.branch_id AND m.seq BETWEEN r.first_seq AND least(r.last_seq, own_before - 1) AND m.run_id = r.run_id
        ORDER BY m.seq DESC LIMIT most;
    GET DIAGNOSTICS got = ROW_COUNT;
    most := most - got;
    FOR l IN
        SELECT x.branch_id, x.high_water_seq, x.cutoff, x.open_run_id FROM unnest(runyard.run_view(r)) x ORDER BY x.high_water_seq DESC
    LOOP
        EXIT WHEN most <= 0;
        RETURN QUERY SELECT (p.message).* FROM runyard.visible_page(l, -1, before, most, true) p;
        GET DIAGNOSTICS got = ROW_COUNT;
        most := most - got;
    END LOOP;
END $$;
