-- Lanes: the lane of a run, and what a run does on a busy lane (multitask_strategy: enqueue, reject, interrupt, rollback).
-- startable.sql determines which run of a lane may start.

-- Return the lane to which a run is admitted. alone: true for a parallel run.
CREATE OR REPLACE FUNCTION runyard.lane_of(t runyard.threads, kind text, alone boolean, run_id text, parent_id uuid) RETURNS text
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF kind <> 'prompt' OR alone THEN RETURN run_id; END IF;
    IF parent_id IS NULL THEN RETURN ''; END IF;
    RETURN coalesce((runyard.branch_ending_at(t.thread_key, parent_id)).lane, '');
END $$;

-- Apply a run's multitask_strategy to the head of its lane. busy: the id of the lane's head afterwards, or NULL. refused: the
-- error of the strategy `reject`, or NULL.
CREATE OR REPLACE FUNCTION runyard.make_way(INOUT t runyard.threads, in_lane text, strategy text, OUT busy text, OUT refused jsonb, OUT effects jsonb)
LANGUAGE plpgsql AS $$
DECLARE
    got record;
    first runyard.runs;
    floor bigint := CASE in_lane WHEN '' THEN t.lane_floor ELSE 0 END;
BEGIN
    SELECT y.run_id INTO busy FROM runyard.live_runs y -- the head of the lane, without the cost of runyard.lane_head
    WHERE y.thread_key = t.thread_key AND y.lane = in_lane AND y.lane_seq > floor
    ORDER BY y.lane_seq LIMIT 1;
    IF busy IS NULL OR strategy = 'enqueue' THEN
        RETURN;
    ELSIF strategy = 'reject' THEN
        refused := jsonb_build_object('code', 'thread_busy',
            'message', format('thread %s is busy with run %s; wait for it, or enqueue with another multitask_strategy', t.thread_id, busy),
            'details', jsonb_build_object('thread_id', t.thread_id, 'run_id', busy));
        RETURN;
    END IF;
    SELECT y.* INTO first FROM runyard.runs y WHERE y.thread_key = t.thread_key AND y.run_id = busy;
    IF first.status IN ('running', 'suspended') THEN
        got := runyard.cancel_run(t, first, strategy = 'interrupt');
        t := got.t; effects := got.effects;
        SELECT h.run_id INTO busy FROM runyard.lane_head(t.thread_key, in_lane, floor) h;
    END IF;
END $$;
