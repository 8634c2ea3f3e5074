-- Lists of threads, HITL requests, attempts and deliveries. The list of runs is in list_runs.sql.
--
-- A page has at most `most` entries (PageRequest, runyard/ports/queries.py) and at most `bytes` (PAGE_BYTES, runyard/ports/results.py). A
-- larger entry is a page of its own. A page also ends after a thousand rows that do not match the filters. Such a page has fewer entries,
-- and the place after which the next page begins. An entry omits values of more than 8192 bytes, and `omitted` lists them.
--
-- Each function reads one index, which has the order of the list. The function itself compares the rows with the other filters.
-- Its statement is planned for the given filters, because one plan for all filters would sometimes read the whole table. Each
-- index has a condition that only the statement of its list contains. For some filters a primary key has the same order, and
-- Postgres could use this key instead. To prevent this, the statement gives one column as a range and orders by this column
-- first. The range ends with a comparison of this column alone. With a comparison of rows, the scan would continue until the
-- first column changes.

-- Return threads, in the order of their keys, or the newest first. after: the place after which the page begins, or NULL for the first page.
-- If there are more, the last row has only the place after which the next page begins. Forks of a deleted thread are not listed as forks of a
-- later thread with the same id. They have lower keys than the later thread.
CREATE OR REPLACE FUNCTION runyard.list_threads_v2(
    for_tenant text, parent text, of_agent text, with_tags jsonb, after bigint, newest_first boolean, most integer, bytes bigint
) RETURNS TABLE (thread runyard.threads, omitted text[], place bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_incremental_sort = off SET plan_cache_mode = force_custom_plan
SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    term bytea;
    beyond text := CASE WHEN newest_first THEN '<' ELSE '>' END;
    until text := CASE WHEN newest_first THEN '>=' ELSE '<=' END;
    direction text := CASE WHEN newest_first THEN ' DESC' ELSE '' END;
    statement text := 'SELECT t.* FROM runyard.threads t WHERE t.deleted_at IS NULL AND t.thread_key > -1 AND ';
    lowest bigint := 0;
    t runyard.threads;
    size bigint;
    larger bigint;
    looked integer := 0;
    found integer := 0;
    total bigint := 0;
    more boolean := false;
BEGIN
    IF parent IS NOT NULL THEN
        lowest := coalesce((SELECT p.thread_key FROM runyard.threads p WHERE p.tenant = for_tenant AND p.thread_id = parent AND p.deleted_at IS NULL), 0);
    END IF;
    after := greatest(coalesce(after, CASE WHEN newest_first THEN 9223372036854775807 END), lowest);
    IF with_tags <> '{}' THEN
        term := (SELECT w.term FROM (SELECT runyard.tag_term(j.key, j.value) AS term FROM jsonb_each_text(with_tags) j) w
                 ORDER BY (SELECT count(*) FROM (SELECT 1 FROM runyard.thread_tags g WHERE g.tenant = for_tenant AND g.term = w.term
                           LIMIT CASE WHEN with_tags - (SELECT min(k) FROM jsonb_object_keys(with_tags) k) = '{}' THEN 0 ELSE 1000 END) x)
                 LIMIT 1);
        statement := format(
            'SELECT t.* FROM (SELECT g.thread_key FROM runyard.thread_tags g WHERE g.tenant = $1 AND g.term = $4 AND g.thread_key %s $5'
            ' ORDER BY g.thread_key%s LIMIT $6) k JOIN runyard.threads t USING (thread_key) ORDER BY k.thread_key%2$s', beyond, direction);
    ELSIF parent IS NOT NULL THEN
        statement := statement || format('t.tenant = $1 AND (t.parent_thread_id, t.thread_key) %s ($2, $5) AND t.parent_thread_id %s $2'
            ' ORDER BY t.parent_thread_id%s, t.thread_key%3$s', beyond, until, direction);
    ELSIF of_agent IS NOT NULL THEN
        statement := statement || format('t.tenant = $1 AND (t.agent, t.thread_key) %s ($3, $5) AND t.agent %s $3'
            ' ORDER BY t.agent%s, t.thread_key%3$s', beyond, until, direction);
    ELSE
        statement := statement || format('t.thread_key > 0 AND (t.tenant, t.thread_key) %s ($1, $5) AND t.tenant %s $1'
            ' ORDER BY t.tenant%s, t.thread_key%3$s', beyond, until, direction);
    END IF;
    FOR t IN EXECUTE statement USING for_tenant, parent, of_agent, term, after, 2000 + most LOOP
        EXIT WHEN t.thread_key <= lowest;
        IF t.deleted_at IS NULL AND (parent IS NULL OR t.parent_thread_id = parent) AND (of_agent IS NULL OR t.agent = of_agent)
           AND (with_tags IS NULL OR t.tags @> with_tags)
        THEN
            more := found >= most;
            EXIT WHEN more;
            omitted := '{}';
            size := runyard.json_bytes(t.extra);
            IF size > 8192 THEN t.extra := '{}'; omitted := omitted || 'extra'::text; size := 0; END IF;
            larger := runyard.json_bytes(t.config);
            IF larger > 8192 THEN t.config := '{}'; omitted := omitted || 'config'::text; larger := 0; END IF;
            t.base_extra := '{}';
            size := 512 + size + larger + octet_length(t.tags::text) + octet_length(t.usage::text) + coalesce(octet_length(t.title), 0);
            more := found > 0 AND total + size > bytes;
            EXIT WHEN more;
            found := found + 1; total := total + size;
            thread := t;
            RETURN NEXT;
        END IF;
        place := t.thread_key; looked := looked + 1;
        more := looked >= 1000 + most;
        EXIT WHEN more;
    END LOOP;
    IF more THEN
        thread := NULL; omitted := NULL;
        RETURN NEXT;
    END IF;
END $$;

-- Return threads as list_threads_v2 does, the oldest first, for the code of the previous release.
CREATE OR REPLACE FUNCTION runyard.list_threads(
    for_tenant text, parent text, of_agent text, with_tags jsonb, after bigint, most integer, bytes bigint
) RETURNS TABLE (thread runyard.threads, omitted text[], place bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT * FROM runyard.list_threads_v2(for_tenant, parent, of_agent, with_tags, after, false, most, bytes)
$$;

-- Return HITL requests, the oldest first. pending: true for pending requests only. If there are more, the last row has `more` and
-- no request.
CREATE OR REPLACE FUNCTION runyard.list_requests(
    for_tenant text, thread_id text, pending boolean, after_time timestamptz, after_id text, most integer, bytes bigint
) RETURNS TABLE (request runyard.requests, more boolean)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_incremental_sort = off SET plan_cache_mode = force_custom_plan
SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    q runyard.requests;
    found integer := 0;
    total bigint := 0;
BEGIN
    FOR q IN EXECUTE 'SELECT q.* FROM runyard.requests q WHERE '
        || CASE WHEN thread_id IS NULL THEN 'q.tenant = $1'
                ELSE 'q.thread_key = (SELECT t.thread_key FROM runyard.threads t WHERE t.tenant = $1 AND t.thread_id = $2 AND t.deleted_at IS NULL)' END
        || CASE WHEN NOT pending THEN ' AND q.created_at > ''-infinity'''
                ELSE ' AND q.answered_at IS NULL AND q.closed_at IS NULL' || CASE WHEN thread_id IS NULL THEN ' AND q.created_at < ''infinity'''
                                                                                          ELSE ' AND q.created_at >= ''-infinity''' END END
        || CASE WHEN after_id IS NOT NULL THEN ' AND (q.created_at, q.request_id) > ($3, $4)' ELSE '' END
        || ' ORDER BY q.created_at, q.request_id'
        USING for_tenant, thread_id, after_time, after_id
    LOOP
        total := total + 512 + octet_length(q.body) + coalesce(octet_length(q.answer), 0);
        IF found >= most OR (found > 0 AND total > bytes) THEN
            request := NULL; more := true;
            RETURN NEXT;
            RETURN;
        END IF;
        found := found + 1;
        request := q;
        RETURN NEXT;
    END LOOP;
END $$;

-- Return the attempts of an own or inherited run, the oldest first. If there are more, the last row has `more` and no attempt.
CREATE OR REPLACE FUNCTION runyard.list_attempts(for_tenant text, thread_id text, run_id text, after bigint, most integer, bytes bigint)
RETURNS TABLE (attempt runyard.attempts, more boolean)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    a runyard.attempts;
    found integer := 0;
    total bigint := 0;
BEGIN
    FOR a IN
        SELECT x.* FROM runyard.attempts_of(runyard.seen_run(for_tenant, thread_id, run_id)) x WHERE x.fence > after ORDER BY x.fence
    LOOP
        total := total + 512 + coalesce(octet_length(a.error::text), 0);
        IF found >= most OR (found > 0 AND total > bytes) THEN
            attempt := NULL; more := true;
            RETURN NEXT;
            RETURN;
        END IF;
        found := found + 1;
        attempt := a;
        RETURN NEXT;
    END LOOP;
END $$;

-- Return up to `most` deliveries, the newest first. To find out whether there are more, a caller asks for one more than it needs.
CREATE OR REPLACE FUNCTION runyard.list_deliveries(for_tenant text, with_status text, before bigint, most integer)
RETURNS SETOF runyard.webhook_deliveries
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_incremental_sort = off SET plan_cache_mode = force_custom_plan SET jit = off AS $$
BEGIN
    RETURN QUERY EXECUTE 'SELECT d.* FROM runyard.webhook_deliveries d '
        || 'WHERE (coalesce(d.owner, d.tenant), d.delivery_no) < ($1, $2) AND coalesce(d.owner, d.tenant) >= $1'
        || CASE with_status WHEN 'pending' THEN ' AND d.next_at IS NOT NULL' WHEN 'delivered' THEN ' AND d.delivered_at IS NOT NULL'
                            WHEN 'failed' THEN ' AND d.failed_at IS NOT NULL' ELSE '' END
        || ' ORDER BY coalesce(d.owner, d.tenant) DESC, d.delivery_no DESC LIMIT $3'
        USING for_tenant, before, most;
END $$;

-- Return the size of a value as JSON in bytes. The stored size of a compressed value is smaller and cannot be used.
CREATE OR REPLACE FUNCTION runyard.json_bytes(value jsonb) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN CASE WHEN pg_column_size(value) > 8192 OR pg_column_compression(value) IS NULL THEN pg_column_size(value)
                ELSE octet_length(value::text) END;
END $$;
