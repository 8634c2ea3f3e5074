-- Threads: find, lock, make and change a thread.

-- Lock and return the thread, or return a NULL row.
CREATE OR REPLACE FUNCTION runyard.live_thread(for_tenant text, thread_id text) RETURNS runyard.threads
LANGUAGE plpgsql AS $$
DECLARE
    t runyard.threads;
BEGIN
    SELECT x.* INTO t FROM runyard.threads x WHERE x.tenant = for_tenant AND x.thread_id = live_thread.thread_id AND x.deleted_at IS NULL FOR UPDATE;
    RETURN t;
END $$;

-- Lock and return the thread. Raises thread_not_found.
CREATE OR REPLACE FUNCTION runyard.known_thread(for_tenant text, thread_id text) RETURNS runyard.threads
LANGUAGE plpgsql AS $$
DECLARE
    t runyard.threads := runyard.live_thread(for_tenant, thread_id);
BEGIN
    IF t.thread_key IS NULL THEN
        PERFORM runyard.refuse('thread_not_found', format('there is no thread %s', thread_id), jsonb_build_object('thread_id', thread_id));
    END IF;
    RETURN t;
END $$;

-- Return the thread without a lock, for reads. Raises thread_not_found.
CREATE OR REPLACE FUNCTION runyard.known_snapshot(for_tenant text, thread_id text) RETURNS runyard.threads
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    t runyard.threads;
BEGIN
    SELECT x.* INTO t FROM runyard.threads x WHERE x.tenant = for_tenant AND x.thread_id = known_snapshot.thread_id AND x.deleted_at IS NULL;
    IF NOT FOUND THEN
        PERFORM runyard.refuse('thread_not_found', format('there is no thread %s', thread_id), jsonb_build_object('thread_id', thread_id));
    END IF;
    RETURN t;
END $$;

-- Return a run of the thread. Raises run_not_found.
CREATE OR REPLACE FUNCTION runyard.known_run(t runyard.threads, run_id text) RETURNS runyard.runs
LANGUAGE plpgsql AS $$
DECLARE
    r runyard.runs;
BEGIN
    SELECT x.* INTO r FROM runyard.runs x
    WHERE x.tenant = t.tenant AND x.thread_id = t.thread_id AND x.run_id = known_run.run_id AND NOT x.deleted;
    IF NOT FOUND THEN
        PERFORM runyard.refuse('run_not_found', format('thread %s has no run %s', t.thread_id, run_id),
                               jsonb_build_object('thread_id', t.thread_id, 'run_id', run_id));
    END IF;
    RETURN r;
END $$;

-- Lock and return the thread. If it does not exist, make it with its first branch. of_agent: the agent of the request, '/' for a request
-- without an agent, or NULL for a thread without an agent. A new thread with unadmitted runs gets the agent of the first of them.
CREATE OR REPLACE FUNCTION runyard.ensure_thread(for_tenant text, thread_id text, of_agent text DEFAULT NULL)
RETURNS runyard.threads
LANGUAGE plpgsql AS $$
DECLARE
    t runyard.threads;
BEGIN
    LOOP
        t := runyard.live_thread(for_tenant, thread_id);
        IF t.thread_key IS NOT NULL THEN RETURN t; END IF;
        t := runyard.make_thread(for_tenant, thread_id, CASE WHEN of_agent IS NOT NULL AND NOT EXISTS (
                SELECT 1 FROM runyard.runs r WHERE r.tenant = for_tenant AND r.thread_id = ensure_thread.thread_id AND r.lane_seq IS NULL)
            THEN nullif(runyard.agent_of(of_agent, NULL), '/') END);
        IF t.thread_key IS NOT NULL THEN RETURN t; END IF;
    END LOOP;
END $$;

-- Make and return a thread with its first branch. Return a NULL row if the thread exists.
CREATE OR REPLACE FUNCTION runyard.make_thread(for_tenant text, thread_id text, of_agent text) RETURNS runyard.threads
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    t runyard.threads;
    branch bigint := nextval('runyard.branch_numbers');
BEGIN
    PERFORM runyard.check_removed(for_tenant, make_thread.thread_id);
    INSERT INTO runyard.threads AS x (tenant, thread_id, head_branch, agent) VALUES (for_tenant, make_thread.thread_id, branch, of_agent)
    ON CONFLICT (tenant, thread_id) WHERE deleted_at IS NULL DO NOTHING RETURNING x.* INTO t;
    IF FOUND THEN INSERT INTO runyard.branches (branch_id, thread_key, lane) VALUES (branch, t.thread_key, ''); END IF;
    RETURN t;
END $$;

-- Lock threads in the order of their keys, and return the keys of those that exist. patience: milliseconds to wait for each lock before
-- lock_not_available is raised, or NULL for the session's limit. 0 skips the threads that another transaction has locked.
CREATE OR REPLACE FUNCTION runyard.lock_threads(thread_keys bigint[], patience integer) RETURNS bigint[]
LANGUAGE plpgsql AS $$
DECLARE
    locked bigint[];
    usual_timeout text := current_setting('lock_timeout');
    ignored text;
BEGIN
    IF patience = 0 THEN
        RETURN ARRAY(SELECT t.thread_key FROM runyard.threads t WHERE t.thread_key = ANY (thread_keys) ORDER BY t.thread_key + 0
                     FOR UPDATE SKIP LOCKED);
    END IF;
    IF patience IS NOT NULL THEN ignored := set_config('lock_timeout', patience::text, true); END IF;
    locked := ARRAY(SELECT t.thread_key FROM runyard.threads t WHERE t.thread_key = ANY (thread_keys) ORDER BY t.thread_key + 0 FOR UPDATE);
    ignored := set_config('lock_timeout', usual_timeout, true);
    RETURN locked;
END $$;

-- Make and return the missing threads of plain requests, in the order of their ids. A thread gets the agent of its first request. Raise
-- lock_not_available, which undoes the caller's work, if a deleted thread with such an id is still being removed, or if a host has accepted
-- a run for such an id. The function looks for both after the insert, because the insert may wait for other transactions that make the
-- same threads. If two transactions wait for each other, lock_timeout ends one of the waits.
CREATE OR REPLACE FUNCTION runyard.make_threads(for_tenant text, requests runyard.request[]) RETURNS SETOF runyard.threads
LANGUAGE plpgsql AS $$
DECLARE
    t runyard.threads;
    ids text[] := '{}';
BEGIN
    FOR t IN
        WITH missing AS MATERIALIZED (
            SELECT DISTINCT ON (q.thread_id) q.thread_id, q.agent
            FROM unnest(requests) WITH ORDINALITY q
            LEFT JOIN LATERAL (SELECT 1 AS one FROM runyard.threads x WHERE x.tenant = for_tenant AND x.thread_id = q.thread_id
                               AND x.deleted_at IS NULL LIMIT 1) existing ON true
            WHERE existing.one IS NULL
            ORDER BY q.thread_id, q.ordinality
        ), made AS (
            INSERT INTO runyard.threads AS x (tenant, thread_id, head_branch, agent)
            SELECT for_tenant, m.thread_id, nextval('runyard.branch_numbers'), nullif(runyard.agent_of(coalesce(m.agent, '/'), NULL), '/')
            FROM missing m ORDER BY m.thread_id
            ON CONFLICT (tenant, thread_id) WHERE deleted_at IS NULL DO NOTHING RETURNING x.*
        ), branch AS (
            INSERT INTO runyard.branches (branch_id, thread_key, lane) SELECT m.head_branch, m.thread_key, '' FROM made m
        )
        SELECT m.* FROM made m
    LOOP
        ids := ids || t.thread_id;
        RETURN NEXT t;
    END LOOP;
    IF EXISTS (
        SELECT 1 FROM unnest(ids) i(thread_id)
        LEFT JOIN LATERAL (SELECT 1 AS one FROM runyard.removals s WHERE s.tenant = for_tenant AND s.thread_id = i.thread_id
                           AND NOT s.runs_hidden LIMIT 1) removed ON true
        LEFT JOIN LATERAL (SELECT 1 AS one FROM runyard.runs u WHERE u.tenant = for_tenant AND u.thread_id = i.thread_id
                           AND u.lane_seq IS NULL LIMIT 1) unadmitted ON true
        WHERE removed.one IS NOT NULL OR unadmitted.one IS NOT NULL
    ) THEN RAISE lock_not_available; END IF;
END $$;

-- Raise locked if the runs of a deleted thread with this id are still being removed. Otherwise a new run could not be
-- distinguished from an old run with the same id. run_id: the run of a request, or NULL. If this run was accepted in a host's
-- transaction and has no thread yet, no error is raised, because the request is a repetition.
CREATE OR REPLACE FUNCTION runyard.check_removed(for_tenant text, thread_id text, run_id text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM runyard.removals s WHERE s.tenant = for_tenant AND s.thread_id = check_removed.thread_id AND NOT s.runs_hidden)
       AND NOT EXISTS (SELECT 1 FROM runyard.runs r WHERE r.tenant = for_tenant AND r.thread_id = check_removed.thread_id
                       AND r.run_id = check_removed.run_id AND r.thread_key IS NULL AND NOT r.deleted) THEN
        PERFORM runyard.refuse('locked', format('the deleted thread %s is still being removed; try again', thread_id), jsonb_build_object('thread_id', thread_id));
    END IF;
END $$;

-- Lock and return the thread of a run. Make the thread if a host's transaction has accepted the run before the thread existed.
CREATE OR REPLACE FUNCTION runyard.ensure_for_run(for_tenant text, thread_id text, run_id text) RETURNS runyard.threads
LANGUAGE plpgsql AS $$
DECLARE
    t runyard.threads := runyard.live_thread(for_tenant, thread_id);
BEGIN
    IF t.thread_key IS NOT NULL THEN RETURN t; END IF;
    IF EXISTS (
        SELECT 1 FROM runyard.runs x
        WHERE x.tenant = for_tenant AND x.thread_id = ensure_for_run.thread_id AND x.run_id = ensure_for_run.run_id AND x.thread_key IS NULL
          AND NOT x.deleted) THEN
        RETURN runyard.ensure_thread(for_tenant, ensure_for_run.thread_id);
    END IF;
    RETURN runyard.known_thread(for_tenant, thread_id);
END $$;

-- Make an empty thread. If a request with the same hash made the thread before, return it unchanged, with created = false.
CREATE OR REPLACE FUNCTION runyard.create_thread(
    for_tenant text, thread_id text, hash text, of_agent text, with_title text, with_tags jsonb, with_extra jsonb, with_config jsonb,
    OUT thread runyard.threads, OUT created boolean
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    branch bigint := nextval('runyard.branch_numbers');
BEGIN
    PERFORM runyard.check_removed(for_tenant, create_thread.thread_id);
    INSERT INTO runyard.threads AS t (tenant, thread_id, fork_hash, head_branch, agent, title, tags, base_extra, extra, config)
    VALUES (for_tenant, create_thread.thread_id, hash, branch, of_agent, with_title, with_tags, with_extra, with_extra, with_config)
    ON CONFLICT (tenant, thread_id) WHERE deleted_at IS NULL DO NOTHING RETURNING t.* INTO thread;
    created := FOUND;
    IF created THEN
        INSERT INTO runyard.branches (branch_id, thread_key, lane) VALUES (branch, thread.thread_key, '');
        RETURN;
    END IF;
    thread := runyard.same_fork(for_tenant, thread_id, hash);
    IF thread.thread_key IS NULL THEN
        PERFORM runyard.refuse('thread_already_exists', format('thread %s exists and was not made by this request; choose another id', thread_id),
                               jsonb_build_object('thread_id', thread_id));
    END IF;
END $$;

-- Raise precondition_failed if the thread has changed since the caller read it. seen: the updated_at that the caller has read, or NULL for
-- no check.
CREATE OR REPLACE FUNCTION runyard.check_unchanged(t runyard.threads, seen timestamptz) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF t.updated_at IS DISTINCT FROM coalesce(seen, t.updated_at) THEN
        PERFORM runyard.refuse('precondition_failed', format('thread %s has changed since %s; read it again', t.thread_id, seen),
                               jsonb_build_object('thread_id', t.thread_id));
    END IF;
END $$;

-- Return the value of a field (extra or config) of a thread after a change. Each key of the change replaces the whole value of that key. A
-- key that is null is removed. A change that is null empties the field.
CREATE OR REPLACE FUNCTION runyard.patched(field text, before jsonb, change jsonb) RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF change = 'null' THEN RETURN '{}'; END IF;
    PERFORM runyard.check_merged(field, before || change);
    RETURN (before || change) - ARRAY(SELECT e.key FROM jsonb_each(change) e WHERE e.value = 'null');
END $$;

-- Set the fields of `patch`, and clear its fields that are null. Merge `extra` and `config`. Each change gives the thread a new updated_at,
-- because callers use updated_at as a version.
CREATE OR REPLACE FUNCTION runyard.update_thread(for_tenant text, thread_id text, patch jsonb, seen timestamptz) RETURNS runyard.threads
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    t runyard.threads := runyard.known_thread(for_tenant, thread_id);
    named text := CASE WHEN patch ? 'title' THEN patch->>'title' ELSE t.title END;
BEGIN
    PERFORM runyard.check_unchanged(t, seen);
    UPDATE runyard.threads x SET title = named, agent = CASE WHEN patch ? 'agent' THEN patch->>'agent' ELSE x.agent END,
        tags = CASE WHEN patch ? 'tags' THEN coalesce(nullif(patch->'tags', 'null'), '{}')
                    WHEN x.title IS NOT NULL THEN x.tags - 'title' ELSE x.tags END
            || jsonb_strip_nulls(jsonb_build_object('title', named)),
        extra = CASE WHEN patch ? 'extra' THEN runyard.patched('extra', x.extra, patch->'extra') ELSE x.extra END,
        config = CASE WHEN patch ? 'config' THEN runyard.patched('config', x.config, patch->'config') ELSE x.config END,
        extra_changed = x.extra_changed OR patch ? 'extra', updated_at = greatest(now(), x.updated_at + interval '1 microsecond')
    WHERE x.thread_key = t.thread_key RETURNING x.* INTO t;
    RETURN t;
END $$;
