-- The children of a thread's runs, and their children.

-- Return at most `most` descendants of the runs of a thread, level by level: first the children, then their children. Return at
-- most `most_depth` levels. Within a level, the children of one run are together. A child whose content was deleted is omitted,
-- with its children.
CREATE OR REPLACE FUNCTION runyard.list_children(for_tenant text, of_thread text, most_depth integer, most integer)
RETURNS TABLE (depth integer, thread_id text, run_id text, agent text, status text, started_by_thread_id text, started_by_run_id text,
               accepted_at timestamptz, finished_at timestamptz)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    t runyard.threads := runyard.known_snapshot(for_tenant, of_thread);
    level bigint[] := ARRAY(
        SELECT c.accept_no FROM runyard.runs c JOIN runyard.runs p ON p.thread_key = c.started_by_key AND p.run_id = c.started_by_run_id
        WHERE c.started_by_key = t.thread_key AND p.kind = 'prompt' AND runyard.is_listed(c)
        ORDER BY c.started_by_run_id, c.accept_no LIMIT most);
BEGIN
    FOR level_no IN 1..most_depth LOOP
        RETURN QUERY
        SELECT level_no, c.thread_id, c.run_id, c.agent, c.status, p.thread_id, p.run_id, c.accepted_at::timestamptz, c.finished_at::timestamptz
        FROM unnest(level) WITH ORDINALITY l(no, place) JOIN runyard.runs c ON c.accept_no = l.no
        JOIN runyard.runs p ON p.thread_key = c.started_by_key AND p.run_id = c.started_by_run_id ORDER BY l.place;
        most := most - cardinality(level);
        EXIT WHEN level = '{}' OR most <= 0;
        level := ARRAY(
            SELECT x.accept_no FROM unnest(level) WITH ORDINALITY l(no, place) JOIN runyard.runs p ON p.accept_no = l.no
            CROSS JOIN LATERAL (
                SELECT c.accept_no FROM runyard.runs c
                WHERE c.started_by_key = p.thread_key AND c.started_by_run_id = p.run_id AND runyard.is_listed(c)
                ORDER BY c.accept_no LIMIT most) x
            ORDER BY l.place, x.accept_no LIMIT most);
    END LOOP;
END $$;

-- Return true if lists show the run. They do not show a run that was deleted, or whose thread was deleted.
CREATE OR REPLACE FUNCTION runyard.is_listed(r runyard.runs) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN NOT r.deleted AND r.emptied_at IS NULL
        AND NOT EXISTS (SELECT 1 FROM runyard.removals s WHERE s.thread_key = r.thread_key AND NOT s.runs_hidden);
END $$;
