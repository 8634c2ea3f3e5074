-- The list of runs. lists.sql describes lists in general.

-- Return runs, the newest first. If there are more, the last row has only the place after which the next page begins.
CREATE OR REPLACE FUNCTION runyard.list_runs(
    for_tenant text, thread_id text, with_status text, of_agent text, since timestamptz, before timestamptz,
    after_time timestamptz, after_no bigint, most integer, bytes bigint
) RETURNS TABLE (run runyard.runs, omitted text[], place_time timestamptz, place_no bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET enable_incremental_sort = off SET plan_cache_mode = force_custom_plan
SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
DECLARE
    of_thread bigint;
    until_time timestamptz := coalesce(after_time, 'infinity');
    until_no bigint := coalesce(after_no, 9223372036854775807);
    r runyard.runs;
    size bigint;
    looked integer := 0;
    found integer := 0;
    total bigint := 0;
    more boolean := false;
BEGIN
    IF before < until_time OR (before = until_time AND until_no > 0) THEN
        until_time := before; until_no := 0;
    END IF;
    since := coalesce(since, '-infinity');
    IF list_runs.thread_id IS NOT NULL THEN
        SELECT t.thread_key INTO of_thread FROM runyard.threads t
        WHERE t.tenant = for_tenant AND t.thread_id = list_runs.thread_id AND t.deleted_at IS NULL;
    END IF;
    FOR r IN EXECUTE runyard.runs_statement(for_tenant, thread_id, of_thread, with_status, of_agent, 1001 + most)
        USING for_tenant, of_thread, thread_id, of_agent, since, until_time, until_no, coalesce(after_no, 9223372036854775807) LOOP
        IF (with_status IS NULL OR r.status = with_status) AND (of_agent IS NULL OR r.agent = of_agent)
           AND r.accepted_at >= since AND (before IS NULL OR r.accepted_at < before) AND NOT r.deleted AND r.emptied_at IS NULL
        THEN
            more := found >= most;
            EXIT WHEN more;
            omitted := '{}';
            r := runyard.with_input(r);
            IF octet_length(r.input) > 8192 THEN r.input := NULL; omitted := omitted || 'input'::text; END IF;
            IF octet_length(r.result) > 8192 THEN r.result := NULL; omitted := omitted || 'result'::text; END IF;
            size := runyard.json_bytes(r.metadata);
            IF size > 8192 THEN r.metadata := '{}'; omitted := omitted || 'metadata'::text; size := 0; END IF;
            r.candidates := NULL; r.fork := NULL; r.extra := NULL; r.error := CASE jsonb_typeof(r.error) WHEN 'object' THEN r.error - 'traceback' ELSE r.error END;
            size := 1024 + size + coalesce(octet_length(r.input), 0) + coalesce(octet_length(r.result), 0)
                + coalesce(octet_length(r.error::text), 0) + octet_length(r.options::text);
            more := found > 0 AND total + size > bytes;
            EXIT WHEN more;
            found := found + 1; total := total + size;
            run := r;
            RETURN NEXT;
        END IF;
        place_time := r.accepted_at; place_no := r.accept_no; looked := looked + 1;
        more := looked >= 1000 + most;
        EXIT WHEN more;
    END LOOP;
    IF more THEN
        run := NULL; omitted := NULL;
        RETURN NEXT;
    END IF;
END $$;

-- Return the statement that reads the runs of a list in order, by the index that fits the filters. Parameters of the statement: $1 tenant,
-- $2 thread key, $3 thread id, $4 agent, $5 since, $6 and $7 the place after which the page begins, $8 the accept_no of this place. enough:
-- the maximum number of rows to read from each index, if the statement combines two.
CREATE OR REPLACE FUNCTION runyard.runs_statement(
    for_tenant text, thread_id text, of_thread bigint, with_status text, of_agent text, enough integer
) RETURNS text
LANGUAGE plpgsql STABLE AS $$
DECLARE
    -- The runs of a thread that is being removed are hidden.
    hidden bigint[] := ARRAY(SELECT s.thread_key FROM runyard.removals s WHERE NOT s.runs_hidden);
    seen text := CASE hidden WHEN '{}' THEN '' ELSE format('(k.thread_key <> ALL (%L::bigint[]) OR k.thread_key IS NULL) AND ', hidden) END;
    listed text := 'SELECT k.* FROM runyard.runs k WHERE ' || seen || 'NOT k.deleted AND k.emptied_at IS NULL AND k.accept_no > -1 AND ';
    live text := 'SELECT r.* FROM runyard.live_runs k JOIN runyard.runs r USING (accept_no) WHERE ' || seen;
    bounds text := ' AND (k.accepted_at, k.accept_no) < ($6, $7) AND k.accepted_at >= $5';
    in_order text := ' ORDER BY k.accepted_at DESC, k.accept_no DESC';
    part text := in_order || format(' LIMIT %s)', enough);
    few boolean;
    statement text;
BEGIN
    IF thread_id IS NOT NULL THEN
        statement := listed || 'k.accept_no > 0 AND k.thread_key = $2' || bounds;
        few := CASE WHEN with_status IN ('queued', 'running', 'suspended') THEN 1000 >
            (SELECT count(*) FROM (SELECT 1 FROM runyard.live_runs x WHERE x.thread_key = of_thread LIMIT 1000) y) END;
        IF few THEN
            -- Without the subquery, the plan could read the whole index that has this order, although there are only few live
            -- runs.
            statement := 'SELECT k.* FROM (' || live || 'k.thread_key = $2' || bounds || ' OFFSET 0) k';
        END IF;
        IF EXISTS (SELECT 1 FROM runyard.runs x
                   WHERE x.tenant = for_tenant AND x.thread_id = runs_statement.thread_id AND x.thread_key IS NULL AND x.accept_no > -1
                     AND NOT x.deleted AND x.emptied_at IS NULL) THEN
            statement := 'SELECT k.* FROM ((' || statement || part || ' UNION ALL ('
                || listed || 'k.tenant = $1 AND k.thread_id = $3 AND k.thread_key IS NULL' || bounds || part || ') k';
        END IF;
    ELSIF with_status = 'queued' THEN
        in_order := ' ORDER BY k.tenant DESC, k.accept_no DESC'; -- this is almost the order of accepted_at
        statement := live || 'k.status = ''queued'' AND (k.tenant, k.accept_no) < ($1, $8) AND k.tenant >= $1';
    ELSIF with_status IN ('running', 'suspended') THEN
        statement := live || format('k.tenant = $1 AND k.status = %L', with_status) || bounds;
    ELSIF with_status IN ('failed', 'dead', 'cancelled') THEN
        statement := 'SELECT r.* FROM runyard.unsuccessful_runs k JOIN runyard.runs r USING (accept_no) WHERE ' || seen
            || format('k.tenant = $1 AND k.status = %L', with_status) || bounds;
    ELSIF of_agent IS NOT NULL THEN
        statement := listed || 'k.tenant = $1 AND k.agent = $4' || bounds;
    ELSE
        statement := listed || 'k.accept_no > 0 AND k.tenant = $1' || bounds;
    END IF;
    RETURN statement || in_order;
END $$;
