-- Signals to threads, and the waits that take them. Both sides hold the lock of the thread.

-- Send a signal. The oldest open wait for the signal's name takes it. Waits of runs with a requested cancel take no signal. Without such a
-- wait, the signal stays until a run waits for it. If the thread has a signal with this id, change nothing, and return that signal with
-- created = false. The caller then compares the signals. If the run that took it is queued, also return the run's job. most: maximum number
-- of signals of the thread that no run has taken.
CREATE OR REPLACE FUNCTION runyard.send_signal(
    for_tenant text, thread_id text, signal_id text, signal_name text, value bytea, who text, most integer,
    OUT signal runyard.signals, OUT created boolean, OUT effects jsonb
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    got record;
    t runyard.threads := runyard.known_thread(for_tenant, thread_id);
    waiting runyard.waits;
BEGIN
    SELECT s.* INTO signal FROM runyard.signals s WHERE s.thread_key = t.thread_key AND s.signal_id = send_signal.signal_id;
    created := NOT FOUND;
    IF NOT created THEN -- the reply of the first call may have been lost, and the job with it
        SELECT jsonb_build_object('jobs', jsonb_build_array(runyard.job(r))) INTO effects FROM runyard.runs r
        WHERE r.thread_key = t.thread_key AND r.run_id = signal.run_id AND r.status = 'queued';
        RETURN;
    END IF;
    got := runyard.admit_thread(t);
    t := got.t; effects := got.effects;
    got := runyard.fire_deadlines(t);
    t := got.t; effects := runyard.merge_effects(effects, got.effects);
    waiting := runyard.wait_for_signal(t.thread_key, signal_name);
    IF waiting.wait_id IS NULL AND most <= (SELECT count(*) FROM (
            SELECT 1 FROM runyard.signals s WHERE s.thread_key = t.thread_key AND s.wait_id IS NULL LIMIT most) x) THEN
        PERFORM runyard.refuse('too_many_signals', format('thread %s has %s signals that no run has taken', thread_id, most),
                               jsonb_build_object('thread_id', thread_id, 'limit', most));
    END IF;
    INSERT INTO runyard.signals AS s (thread_key, signal_id, name, value, sent_by, run_id, wait_id)
    VALUES (t.thread_key, send_signal.signal_id, signal_name, send_signal.value, who, waiting.run_id, waiting.wait_id) RETURNING s.* INTO signal;
    IF waiting.wait_id IS NOT NULL THEN
        UPDATE runyard.waits w SET ended_at = now(), signal_id = send_signal.signal_id
        WHERE w.thread_key = t.thread_key AND w.run_id = waiting.run_id AND w.wait_id = waiting.wait_id;
        effects := runyard.merge_effects(effects, runyard.wake_run(t.thread_key, waiting.run_id));
    END IF;
END $$;

-- Return the oldest open wait of the thread for a signal. Its run has not ended, and no cancel of the run was requested. The row is NULL if
-- there is none.
CREATE OR REPLACE FUNCTION runyard.wait_for_signal(thread_key bigint, signal_name text) RETURNS runyard.waits
LANGUAGE plpgsql STABLE AS $$
DECLARE
    found runyard.waits;
BEGIN
    SELECT w.* INTO found FROM runyard.waits w JOIN runyard.runs r ON r.thread_key = w.thread_key AND r.run_id = w.run_id
    WHERE w.thread_key = wait_for_signal.thread_key AND w.kind = 'signal' AND w.name = signal_name AND w.ended_at IS NULL
      AND r.finished_at IS NULL AND r.cancel_requested_at IS NULL
    ORDER BY w.wait_no LIMIT 1;
    RETURN found;
END $$;

-- Return signals of an ended run to the thread: the signals that the run took and that none of its attempts received. Delete
-- the waits that took these signals, so that a redriven run waits again. The oldest open wait of another run takes a signal,
-- and its run is queued. Otherwise a later wait takes the signal.
CREATE OR REPLACE FUNCTION runyard.give_back_signals(r runyard.runs, OUT effects jsonb)
LANGUAGE plpgsql AS $$
DECLARE
    free record;
    waiting runyard.waits;
BEGIN
    FOR free IN
        WITH unread AS (
            DELETE FROM runyard.waits w WHERE w.thread_key = r.thread_key AND w.run_id = r.run_id AND w.signal_id IS NOT NULL
                AND w.received_by IS NULL
            RETURNING w.signal_id
        ), given AS (
            UPDATE runyard.signals s SET run_id = NULL, wait_id = NULL FROM unread u
            WHERE s.thread_key = r.thread_key AND s.signal_id = u.signal_id RETURNING s.signal_id, s.name, s.signal_no)
        SELECT g.signal_id, g.name FROM given g ORDER BY g.signal_no
    LOOP
        waiting := runyard.wait_for_signal(r.thread_key, free.name);
        CONTINUE WHEN waiting.wait_id IS NULL;
        UPDATE runyard.signals s SET run_id = waiting.run_id, wait_id = waiting.wait_id
        WHERE s.thread_key = r.thread_key AND s.signal_id = free.signal_id;
        UPDATE runyard.waits w SET ended_at = now(), signal_id = free.signal_id
        WHERE w.thread_key = r.thread_key AND w.run_id = waiting.run_id AND w.wait_id = waiting.wait_id;
        effects := runyard.merge_effects(effects, runyard.wake_run(r.thread_key, waiting.run_id));
    END LOOP;
END $$;

-- Give the open waits of a run the open signals of their names, the oldest signal first.
CREATE OR REPLACE FUNCTION runyard.take_signals(r runyard.runs, waits runyard.new_wait[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    w record;
    taken text;
BEGIN
    FOR w IN
        SELECT x.wait_id, x.name FROM unnest(waits) WITH ORDINALITY n(wait_id, kind, name, due_at, timeout, place)
        JOIN runyard.waits x ON x.thread_key = r.thread_key AND x.run_id = r.run_id AND x.wait_id = n.wait_id
        WHERE x.kind = 'signal' AND x.ended_at IS NULL ORDER BY n.place
    LOOP
        UPDATE runyard.signals s SET run_id = r.run_id, wait_id = w.wait_id
        WHERE s.thread_key = r.thread_key AND s.signal_id = (
            SELECT o.signal_id FROM runyard.signals o WHERE o.thread_key = r.thread_key AND o.name = w.name AND o.wait_id IS NULL
            ORDER BY o.signal_no LIMIT 1)
        RETURNING s.signal_id INTO taken;
        IF FOUND THEN
            UPDATE runyard.waits x SET ended_at = now(), signal_id = taken
            WHERE x.thread_key = r.thread_key AND x.run_id = r.run_id AND x.wait_id = w.wait_id;
        END IF;
    END LOOP;
END $$;
