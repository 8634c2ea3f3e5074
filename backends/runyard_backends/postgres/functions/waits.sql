-- Waits of suspended runs for a time, a signal or a child.

-- Store the waits of an attempt's run in the order of `waits`, and end the waits that are due. A repetition changes nothing. ended: true if
-- one of `waits` has ended.
CREATE OR REPLACE FUNCTION runyard.put_waits(r runyard.runs, waits runyard.new_wait[], OUT ended boolean)
LANGUAGE plpgsql AS $$
BEGIN
    ended := false;
    IF coalesce(cardinality(waits), 0) = 0 THEN RETURN; END IF;
    INSERT INTO runyard.waits (thread_key, run_id, wait_id, kind, name, due_at)
    SELECT r.thread_key, r.run_id, n.wait_id, n.kind, n.name, coalesce(n.due_at, clock_timestamp() + make_interval(secs => n.timeout))
    FROM unnest(waits) WITH ORDINALITY n(wait_id, kind, name, due_at, timeout, place) ORDER BY n.place
    ON CONFLICT (thread_key, run_id, wait_id) DO NOTHING;
    PERFORM runyard.take_signals(r, waits);
    UPDATE runyard.waits w SET ended_at = now()
    WHERE w.thread_key = r.thread_key AND w.run_id = r.run_id AND w.ended_at IS NULL AND w.due_at <= clock_timestamp()
      AND NOT runyard.child_lives(w);
    ended := EXISTS (
        SELECT 1 FROM unnest(waits) n JOIN runyard.waits w ON w.thread_key = r.thread_key AND w.run_id = r.run_id AND w.wait_id = n.wait_id
        WHERE w.ended_at IS NOT NULL);
END $$;

-- Close the open sleeps and signals of a run that ends. Those of a cancelled run stay, with the time of their end. Those of any other
-- run are deleted, because a redriven run begins them again.
CREATE OR REPLACE FUNCTION runyard.close_waits(r runyard.runs) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF r.status = 'cancelled' THEN
        UPDATE runyard.waits w SET ended_at = now()
        WHERE w.thread_key = r.thread_key AND w.run_id = r.run_id AND w.ended_at IS NULL AND w.kind <> 'child';
    ELSE
        DELETE FROM runyard.waits w WHERE w.thread_key = r.thread_key AND w.run_id = r.run_id AND w.ended_at IS NULL AND w.kind <> 'child';
    END IF;
END $$;

-- Close the waits of a run that ends, and give back its unread signals. Return as effects the jobs of the runs that take these signals.
CREATE OR REPLACE FUNCTION runyard.leave_waits(r runyard.runs, OUT effects jsonb) LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM runyard.waits w WHERE w.thread_key = r.thread_key AND w.run_id = r.run_id) THEN
        PERFORM runyard.close_waits(r);
        effects := runyard.give_back_signals(r);
    END IF;
END $$;

-- End the waits of the thread that are due, and queue their suspended runs.
CREATE OR REPLACE FUNCTION runyard.end_waits(thread_key bigint, OUT effects jsonb)
LANGUAGE plpgsql AS $$
DECLARE
    woken text;
BEGIN
    FOR woken IN
        WITH ended AS (
            UPDATE runyard.waits w SET ended_at = now()
            WHERE w.thread_key = end_waits.thread_key AND w.ended_at IS NULL AND w.due_at <= clock_timestamp()
              AND NOT runyard.child_lives(w)
            RETURNING w.run_id)
        SELECT DISTINCT e.run_id FROM ended e ORDER BY e.run_id
    LOOP
        effects := runyard.merge_effects(effects, runyard.wake_run(thread_key, woken));
    END LOOP;
END $$;
