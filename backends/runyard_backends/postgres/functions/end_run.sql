-- The end of a run. Every verb that ends a run calls end_run.

-- End a run. Give it its completion number, close its HITL requests, end its waits, give back its unread signals, record the
-- attempt, and write the feed and the webhook delivery. Return as effects the jobs of the runs that may start next. why: the
-- error, or NULL. event: the id of the run's last event. A cancelled run whose messages are kept gets a completion number only if
-- every tool call has a result.
CREATE OR REPLACE FUNCTION runyard.end_run(
    INOUT t runyard.threads, INOUT r runyard.runs, to_status text, why jsonb, event text, OUT effects jsonb
) LANGUAGE plpgsql AS $$
DECLARE
    counted boolean := to_status = 'completed' AND r.kind IN ('prompt', 'external')
        OR to_status = 'cancelled' AND r.cancel_keep AND (r.last_seq IS NOT NULL OR r.abort_words IS NOT NULL AND r.branch_id IS NOT NULL);
    was text := r.status;
    got record;
    head runyard.runs;
    woken jsonb; -- the jobs of the runs that take the signals of this run
BEGIN
    IF counted AND to_status = 'cancelled' THEN
        got := runyard.close_cancelled(t, r);
        t := got.t; r := got.r;
        counted := NOT r.has_tools OR runyard.cycles_closed(r);
    END IF;
    IF counted THEN
        r.completion_seq := t.next_completion_seq;
        t.next_completion_seq := t.next_completion_seq + 1;
        IF r.usage IS NOT NULL THEN t.usage := runyard.add_usage(t.usage, r.usage); END IF;
        IF r.extra IS NOT NULL THEN
            t.extra_changed := t.extra_changed OR NOT t.extra @> r.extra;
            t.extra := t.extra || r.extra;
        END IF;
        r.extra := CASE WHEN t.extra_changed THEN t.extra END;
        t.extra_changed := false;
        r.branch_id := coalesce(r.branch_id, t.head_branch);
        UPDATE runyard.branches b SET
            high_water_seq = greatest(b.high_water_seq, r.last_seq, r.snapshot_tip),
            leaf_id = CASE WHEN r.last_seq > b.leaf_seq THEN r.last_message_id ELSE b.leaf_id END,
            leaf_seq = greatest(b.leaf_seq, coalesce(r.last_seq, 0))
        WHERE b.branch_id = r.branch_id RETURNING b.high_water_seq INTO r.high_water_seq;
    END IF;
    r.status := to_status;
    UPDATE runyard.runs SET
        status = to_status, finished_at = now(), changed_at = now(), suspended_at = NULL, waiting_for = NULL, error = why, event_id = event,
        completion_seq = r.completion_seq, high_water_seq = r.high_water_seq, branch_id = r.branch_id, extra = r.extra, usage = r.usage,
        result = r.result, last_seq = r.last_seq, last_message_id = r.last_message_id, lane = r.lane, has_tools = r.has_tools,
        first_seq = r.first_seq, crash_count = r.crash_count, waits_for_permit = NULL, place_in_line = NULL,
        admitted_at = r.admitted_at, lane_seq = r.lane_seq
    WHERE accept_no = r.accept_no;
    r.finished_at := now();
    PERFORM runyard.follow_end(r);
    IF r.kind = 'prompt' THEN
        SELECT h.* INTO head FROM runyard.lane_head(t.thread_key, r.lane, CASE r.lane WHEN '' THEN t.lane_floor ELSE 0 END) h;
        IF r.lane = '' THEN t.lane_floor := coalesce(head.lane_seq - 1, greatest(t.lane_floor, r.lane_seq)); END IF;
    END IF;
    UPDATE runyard.threads SET next_seq = t.next_seq, next_completion_seq = t.next_completion_seq, lane_floor = t.lane_floor,
           usage = t.usage, extra = t.extra, extra_changed = t.extra_changed, updated_at = now()
    WHERE thread_key = t.thread_key;
    IF was = 'running' AND r.kind <> 'external' AND to_status <> 'completed' THEN
        INSERT INTO runyard.attempts (accept_no, fence, worker_id, started_at, outcome, error)
        VALUES (r.accept_no, r.fence, r.worker_id, r.started_at, to_status, why) ON CONFLICT DO NOTHING;
    END IF;
    -- A run that completes in its first attempt has requests or waits only if it has asked to be suspended. Such a run has an event_id.
    IF to_status <> 'completed' OR r.attempt > 1 OR r.event_id IS NOT NULL OR r.kind = 'external' THEN
        UPDATE runyard.hitl_requests h SET closed_at = now()
        WHERE h.thread_key = t.thread_key AND h.run_id = r.run_id AND h.answered_at IS NULL AND h.closed_at IS NULL;
        woken := runyard.leave_waits(r);
        IF to_status = 'cancelled' THEN PERFORM runyard.doom_children(r); END IF;
    END IF;
    INSERT INTO runyard.outbox (tenant, thread_key, thread_id, run_id, type, agent, usage, redriven)
    VALUES (t.tenant, t.thread_key, t.thread_id, r.run_id, 'run.' || to_status,
            CASE WHEN r.fence IS NOT NULL THEN coalesce(r.agent, 'default') END,
            CASE WHEN r.usage_before IS NULL THEN r.usage ELSE runyard.less_usage(r.usage, r.usage_before) END, r.usage_before IS NOT NULL);
    IF r.options->>'webhook' IS NOT NULL THEN
        INSERT INTO runyard.webhook_deliveries (tenant, url, type, thread_id, run_id)
        VALUES (t.tenant, r.options->>'webhook', 'run.' || to_status, t.thread_id, r.run_id);
    END IF;
    effects := runyard.merge_effects(runyard.waiting_for(t.thread_key, r.run_id), woken);
    IF head.status = 'queued' AND head.kind = 'prompt' THEN
        effects := runyard.merge_effects(effects, jsonb_build_object('jobs', jsonb_build_array(runyard.job(head))));
    END IF;
    IF r.started_by_key IS NOT NULL THEN
        PERFORM runyard.end_child(r);
        effects := runyard.merge_effects(effects, runyard.wake_starter(r));
    END IF;
END $$;

-- Store the messages that close a cancelled run: results for its open tool calls, and the last message of an aborted run. The
-- caller must save the rows of the run and the thread.
CREATE OR REPLACE FUNCTION runyard.close_cancelled(INOUT t runyard.threads, INOUT r runyard.runs)
LANGUAGE plpgsql AS $$
DECLARE
    open_calls text[];
BEGIN
    IF r.has_tools THEN
        open_calls := ARRAY(
            SELECT c.id FROM runyard.messages m, unnest(m.calls) WITH ORDINALITY c(id, n)
            WHERE m.branch_id = r.branch_id AND m.run_id = r.run_id AND m.seq BETWEEN r.first_seq AND r.last_seq AND NOT EXISTS (
                SELECT 1 FROM runyard.messages a
                WHERE a.branch_id = r.branch_id AND a.run_id = r.run_id AND a.seq > m.seq AND a.seq <= r.last_seq AND c.id = ANY (a.results))
            ORDER BY m.seq, c.n);
        IF open_calls <> '{}' THEN
            INSERT INTO runyard.messages (branch_id, seq, message_id, parent_id, run_id, role, note, results)
            VALUES (r.branch_id, t.next_seq, gen_random_uuid(), r.last_message_id, r.run_id, 'tool', coalesce(r.abort_words, 'cancelled'), open_calls)
            RETURNING seq, message_id INTO r.last_seq, r.last_message_id;
            t.next_seq := t.next_seq + 1;
        END IF;
    END IF;
    IF r.abort_words IS NOT NULL THEN
        INSERT INTO runyard.messages (branch_id, seq, message_id, parent_id, run_id, role, payload)
        VALUES (r.branch_id, t.next_seq, gen_random_uuid(), coalesce(r.last_message_id, r.base_id), r.run_id, 'assistant',
            convert_to(jsonb_build_object('stop_reason', 'aborted',
                'content', jsonb_build_array(jsonb_build_object('type', 'text', 'text', r.abort_words)))::text, 'UTF8'))
        RETURNING seq, message_id INTO r.last_seq, r.last_message_id;
        r.first_seq := coalesce(r.first_seq, r.last_seq);
        t.next_seq := t.next_seq + 1;
    END IF;
END $$;
