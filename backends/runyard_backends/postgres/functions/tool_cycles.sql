-- Tool cycles: the open tool calls of a view, and the check that all tool calls of a run have results. cuts.sql refuses a fork inside a
-- tool cycle.

-- Return the ids of the tool calls of a view that have no result in the view, in order. The function reads only messages with calls or
-- results.
CREATE OR REPLACE FUNCTION runyard.open_calls(levels runyard.level[]) RETURNS text[]
LANGUAGE plpgsql STABLE AS $$
DECLARE
    m record;
    pending text[] := '{}';
BEGIN
    FOR m IN
        SELECT x.calls, x.results
        FROM unnest(levels) l
        JOIN runyard.branches b ON b.branch_id = l.branch_id
        CROSS JOIN LATERAL (SELECT s.seq, s.run_id, s.calls, s.results FROM runyard.messages s
                            WHERE s.branch_id = l.branch_id AND s.seq <= l.high_water_seq
                              AND (s.calls IS NOT NULL OR s.results IS NOT NULL) OFFSET 0) x
        WHERE x.run_id IS NULL OR x.run_id = l.open_run_id
           OR (SELECT r.completion_seq <= l.cutoff FROM runyard.runs r WHERE r.thread_key = b.thread_key AND r.run_id = x.run_id)
        ORDER BY x.seq
    LOOP
        pending := ARRAY(SELECT c FROM unnest(pending) WITH ORDINALITY x(c, n)
                         WHERE m.results IS NULL OR c <> ALL (m.results) ORDER BY n) || coalesce(m.calls, '{}');
    END LOOP;
    RETURN pending;
END $$;

-- Return true if every tool call of the run is directly followed by its result, and the run has no other results. The run's first results
-- may belong to open tool calls of its context.
CREATE OR REPLACE FUNCTION runyard.cycles_closed(r runyard.runs) RETURNS boolean
LANGUAGE plpgsql STABLE SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    m record;
    pending text[] := '{}';
    before text[];
BEGIN
    FOR m IN
        SELECT x.calls, x.results FROM runyard.messages x
        WHERE x.branch_id = r.branch_id AND x.seq BETWEEN r.first_seq AND r.last_seq AND x.run_id = r.run_id ORDER BY x.seq
    LOOP
        IF m.results IS NOT NULL THEN
            before := coalesce(before, runyard.open_calls(runyard.run_view(r)));
            IF NOT m.results <@ (pending || before) OR runyard.repeats(m.results) THEN RETURN false; END IF;
            pending := ARRAY(SELECT c FROM unnest(pending) c WHERE c <> ALL (m.results));
            before := ARRAY(SELECT c FROM unnest(before) c WHERE c <> ALL (m.results));
        ELSIF pending <> '{}' THEN
            RETURN false;
        ELSE
            before := '{}';
        END IF;
        IF m.calls IS NOT NULL THEN
            IF pending <> '{}' OR runyard.repeats(m.calls) THEN RETURN false; END IF;
            pending := m.calls;
        END IF;
    END LOOP;
    RETURN pending = '{}';
END $$;

-- Return true if an id occurs twice.
CREATE OR REPLACE FUNCTION runyard.repeats(ids text[]) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN cardinality(ids) > 1 AND cardinality(ids) > (SELECT count(DISTINCT x) FROM unnest(ids) x);
END $$;
