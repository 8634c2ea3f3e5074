-- Usage of runs: sums and differences of usages, and totals by tenant, agent and day. The totals are counted from the feed.
-- end_run.sql writes the usage of a run to the feed.

-- Return the sum of two usages. If one of them is damaged, return `a`. An error would stop every verb that adds to a damaged usage.
CREATE OR REPLACE FUNCTION runyard.add_usage(a jsonb, b jsonb) RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN CASE WHEN b IS NULL OR b = '{}' THEN a
        WHEN jsonb_typeof(a) <> 'object' OR jsonb_typeof(b) <> 'object'
             OR jsonb_build_array(a, b) @? 'strict $[*].* ? (@.type() != "number")' THEN a
        ELSE (
        SELECT jsonb_object_agg(k, coalesce((a->>k)::numeric, 0) + coalesce((b->>k)::numeric, 0))
        FROM (SELECT jsonb_object_keys(a || b) k) keys) END;
END $$;

-- Return the larger amounts of two usages, or `a` if `b` is NULL. If `a` is damaged, return it, as add_usage does.
CREATE OR REPLACE FUNCTION runyard.most_usage(a jsonb, b jsonb) RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN CASE WHEN b IS NULL OR a @? 'strict $.* ? (@.type() != "number")' OR jsonb_typeof(a) <> 'object' THEN a
        WHEN a IS NULL THEN b
        ELSE (
        SELECT jsonb_object_agg(k, greatest((a->>k)::numeric, (b->>k)::numeric)) FROM (SELECT jsonb_object_keys(a || b) k) keys) END;
END $$;

-- Return a number of a usage. A value that is no number or is too large counts as 0. An error would stop the leader, which counts the runs
-- of every tenant.
CREATE OR REPLACE FUNCTION runyard.amount(usage jsonb, name text) RETURNS numeric
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    found numeric := CASE WHEN jsonb_typeof(usage->name) = 'number' THEN (usage->>name)::numeric ELSE 0 END;
BEGIN
    RETURN CASE WHEN found BETWEEN 0 AND 9223372036854775807 THEN found ELSE 0 END;
END $$;

-- Return the usage `a` minus the usage `b`.
CREATE OR REPLACE FUNCTION runyard.less_usage(a jsonb, b jsonb) RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN (SELECT jsonb_object_agg(k, greatest(0, runyard.amount(a, k) - runyard.amount(b, k)))
            FROM jsonb_object_keys(CASE WHEN jsonb_typeof(a) = 'object' THEN a ELSE '{}' END) k);
END $$;

-- Add up to `most` entries of the tenant c.tenant to its totals: entries after (c.transaction, c.position) and before c.goal. Move c to the
-- last added entry. Return the number of added entries.
CREATE OR REPLACE FUNCTION runyard.count_entries(INOUT c runyard.usage_counter, most integer, OUT entries integer)
LANGUAGE plpgsql AS $$
DECLARE
    last record;
BEGIN
    WITH entry AS MATERIALIZED (
        SELECT x.* FROM runyard.outbox x
        WHERE x.tenant = c.tenant AND (x.transaction, x.position) > (c.transaction, c.position) AND x.transaction < c.goal
        ORDER BY x.transaction, x.position LIMIT most),
    total AS (
        INSERT INTO runyard.usage_days AS d (tenant, agent, day, runs, requests, input_tokens, output_tokens, cost, seconds)
        SELECT c.tenant, CASE WHEN GROUPING(e.agent) = 1 THEN '' ELSE e.agent END, e.day, count(*) FILTER (WHERE NOT e.redriven), sum(runyard.amount(e.usage, 'requests')),
               sum(runyard.amount(e.usage, 'input_tokens')), sum(runyard.amount(e.usage, 'output_tokens')),
               sum(runyard.amount(e.usage, 'cost')), sum(runyard.amount(e.usage, 'seconds'))
        FROM (SELECT nullif(x.agent, '') AS agent, (x.created_at AT TIME ZONE 'UTC')::date AS day, x.usage, x.redriven FROM entry x
              WHERE x.type IN ('run.completed', 'run.failed', 'run.cancelled', 'run.dead')) e
        GROUP BY GROUPING SETS ((e.day), (e.day, e.agent))
        HAVING GROUPING(e.agent) = 1 OR e.agent IS NOT NULL
        ON CONFLICT (tenant, agent, day) DO UPDATE SET runs = d.runs + excluded.runs, requests = d.requests + excluded.requests,
            input_tokens = d.input_tokens + excluded.input_tokens, output_tokens = d.output_tokens + excluded.output_tokens,
            cost = d.cost + excluded.cost, seconds = d.seconds + excluded.seconds)
    SELECT y.transaction, y.position, count(*) OVER () AS many INTO last FROM entry y ORDER BY y.transaction DESC, y.position DESC LIMIT 1;
    entries := coalesce(last.many, 0);
    IF entries > 0 THEN c.transaction := last.transaction; c.position := last.position; END IF;
END $$;

-- Return the next tenant after c.tenant that has entries to count, or NULL if there is none. If the search stops after `most` tenants,
-- return the tenant at which it stops. A tenant without entries to count costs one read of the index. looks: the number of these reads.
CREATE OR REPLACE FUNCTION runyard.next_to_count(c runyard.usage_counter, most integer, OUT tenant text, OUT looks integer)
LANGUAGE plpgsql STABLE AS $$
BEGIN
    WITH RECURSIVE walk AS (
        SELECT c.tenant AS whose, '18446744073709551615'::xid8 AS at, 0 AS n
        UNION ALL
        SELECT next.tenant, next.transaction, w.n + 1
        FROM walk w CROSS JOIN LATERAL (
            SELECT o.tenant, o.transaction FROM runyard.outbox o
            WHERE (o.tenant, o.transaction) >= (w.whose, CASE WHEN w.at < c.goal THEN c.counted ELSE '18446744073709551615' END)
            ORDER BY o.tenant, o.transaction, o.position LIMIT 1) next
        WHERE w.n < most AND (w.at < c.counted OR w.at >= c.goal))
    SELECT CASE WHEN w.n = most OR w.at >= c.counted AND w.at < c.goal THEN w.whose END, w.n INTO tenant, looks
    FROM walk w ORDER BY w.n DESC LIMIT 1;
END $$;

-- Add about `most` entries of the outbox to the totals (the `limit` of `count` in runyard/ports/stores.py). The leader calls this
-- function. The function counts in rounds, tenant by tenant. The end of a round sets the goal of the next round: the entries of
-- all transactions that have begun. The next round begins when all these transactions have ended. No new entry can then appear
-- among the counted entries. One transaction writes the totals and the progress. A second leader finds the row locked and does
-- nothing.
CREATE OR REPLACE FUNCTION runyard.count_usage(most integer) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET enable_seqscan = off SET enable_sort = off SET jit = off SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    c runyard.usage_counter;
    got record;
    began timestamptz := clock_timestamp(); -- entries before this time have lower transaction numbers than the goal below
BEGIN
    SELECT x.* INTO c FROM runyard.usage_counter x FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        IF NOT EXISTS (SELECT 1 FROM runyard.usage_counter) THEN -- an INSERT would wait for the transaction that locks the row
            INSERT INTO runyard.usage_counter (goal_at, goal) VALUES (began, pg_current_xact_id())
            ON CONFLICT DO NOTHING;
        END IF;
        RETURN;
    END IF;
    IF c.goal > pg_snapshot_xmin(pg_current_snapshot()) THEN RETURN; END IF;
    LOOP
        got := runyard.count_entries(c, most);
        c := got.c;
        most := most - got.entries;
        EXIT WHEN most <= 0; -- this tenant may have more entries
        got := runyard.next_to_count(c, most);
        c.tenant := got.tenant; c.transaction := c.counted; c.position := 0;
        EXIT WHEN c.tenant IS NULL;
        most := most - got.looks;
        EXIT WHEN most <= 0;
    END LOOP;
    IF c.tenant IS NULL THEN
        c.counted := c.goal;
        c.counted_until := c.goal_at;
        c.goal := pg_current_xact_id();
        c.goal_at := began;
        c.tenant := ''; c.transaction := c.counted; c.position := 0;
    END IF;
    UPDATE runyard.usage_counter u SET counted = c.counted, counted_until = c.counted_until, goal = c.goal, goal_at = c.goal_at,
           tenant = c.tenant, transaction = c.transaction, position = c.position;
END $$;

-- Return the totals of a tenant's days from `since` to `until`, both included. for_agent: an agent, or '' for all agents
-- together. counted_until: the time up to which the totals are complete. Without days, the result is one row that has only
-- counted_until.
CREATE OR REPLACE FUNCTION runyard.usage_of(for_tenant text, for_agent text, since date, until date)
RETURNS TABLE (counted_until timestamptz, day date, runs bigint, requests numeric, input_tokens numeric, output_tokens numeric, cost numeric,
               seconds numeric)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET enable_seqscan = off SET jit = off SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN QUERY
        SELECT (SELECT u.counted_until FROM runyard.usage_counter u), d.day, d.runs, d.requests, d.input_tokens, d.output_tokens, d.cost, d.seconds
        FROM (SELECT 1) one LEFT JOIN runyard.usage_days d
            ON d.tenant = for_tenant AND d.agent = for_agent AND d.day BETWEEN since AND until
        ORDER BY d.day;
END $$;
