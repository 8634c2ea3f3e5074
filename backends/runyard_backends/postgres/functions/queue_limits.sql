-- Limits on queued runs: check whether a queue has room for another run.

-- Refuse a request that exceeds a limit on queued runs or on the size of a message. The limit per lane also counts runs that are not
-- admitted. may_write: see runyard.queue_size.
CREATE OR REPLACE FUNCTION runyard.check_room(for_tenant text, q runyard.request, key bigint, in_lane text, may_write boolean) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    most bigint := runyard.limit_of('message_bytes');
    floor bigint;
    waiting bigint;
BEGIN
    IF octet_length(q.input) > most THEN
        PERFORM runyard.check_size(ARRAY[(q.input_id, q.input_role, q.input, NULL, NULL)::runyard.new_message], most);
    END IF;
    PERFORM runyard.check_size(ARRAY(SELECT (NULL, NULL, c.body, NULL, NULL)::runyard.new_message FROM unnest(q.candidates) c(body)), most);
    most := runyard.limit_of('queued_per_lane');
    IF most IS NOT NULL AND q.kind = 'prompt' AND NOT q.parallel THEN
        floor := runyard.floor_of(key, in_lane);
        waiting := (SELECT count(*) FROM (
            (SELECT 1 FROM ( -- all runs of a lane but one are queued
                SELECT r.status FROM runyard.live_runs r WHERE r.thread_key = key AND r.lane = in_lane AND r.lane_seq > floor
                ORDER BY r.lane_seq LIMIT most + 1) y
             WHERE y.status = 'queued')
            UNION ALL
            (SELECT 1 FROM runyard.runs r WHERE r.tenant = for_tenant AND r.thread_id = q.thread_id AND r.lane_seq IS NULL LIMIT most)) x);
        IF waiting >= most THEN PERFORM runyard.raise(runyard.queue_full('queued_per_lane', 'in lane of thread ' || q.thread_id, most)); END IF;
    END IF;
    most := runyard.limit_of('queued_per_tenant', for_tenant);
    IF most IS NOT NULL AND runyard.queue_size(for_tenant, most, may_write) >= most THEN
        PERFORM runyard.raise(runyard.queue_full('queued_per_tenant', format('for tenant "%s"', for_tenant), most));
    END IF;
    most := runyard.limit_of('queued');
    IF most IS NOT NULL AND runyard.queue_size(NULL, most, may_write) >= most THEN
        PERFORM runyard.raise(runyard.queue_full('queued', 'in all', most));
    END IF;
END $$;

-- Return the lane_seq up to which all runs of a lane have ended. Reads of the lane begin after this number. Otherwise they
-- would also read the index entries of ended runs. These entries stay while an older transaction is open.
CREATE OR REPLACE FUNCTION runyard.floor_of(key bigint, in_lane text) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN CASE in_lane WHEN '' THEN (SELECT t.lane_floor FROM runyard.threads t WHERE t.thread_key = key) ELSE 0 END;
END $$;

-- Return the error for a run that exceeds the limit of its lane at a later admission, or NULL. The lane may have one run more
-- than the limit, because its head may have been released to the queue.
CREATE OR REPLACE FUNCTION runyard.lane_full(r runyard.runs) RETURNS jsonb
LANGUAGE plpgsql STABLE AS $$
DECLARE
    most bigint := runyard.limit_of('queued_per_lane');
    floor bigint := runyard.floor_of(r.thread_key, r.lane);
BEGIN
    IF most IS NULL OR r.kind <> 'prompt' OR r.parallel OR most >= (
        SELECT count(*) FROM (SELECT 1 FROM runyard.live_runs x WHERE x.thread_key = r.thread_key AND x.lane = r.lane
                              AND x.lane_seq > floor AND x.lane_seq < r.lane_seq LIMIT most + 1) y)
    THEN
        RETURN NULL;
    END IF;
    RETURN runyard.queue_full('queued_per_lane', 'in lane of thread ' || r.thread_id, most);
END $$;
