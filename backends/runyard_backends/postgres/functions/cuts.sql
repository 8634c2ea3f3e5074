-- Cuts of forks: find the view of the thread at a message, at a message number or after a run. Refuse a cut inside a tool cycle (F6).

-- Return the cut that a request names: the view of the cut, and the id of the run. The id is NULL for a cut at a message. q: the cut as
-- JSON.
CREATE OR REPLACE FUNCTION runyard.cut(t runyard.threads, q jsonb, OUT view runyard.level[], OUT after_run runyard.runs)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    got record;
    at uuid := (q->>'at_message_id')::uuid;
    run_id text := q->>'after_run_id';
BEGIN
    IF at IS NULL AND q->>'at_seq' IS NOT NULL THEN
        at := runyard.message_at(t, (q->>'at_seq')::bigint);
    END IF;
    IF at IS NOT NULL THEN
        IF at = runyard.root_id() THEN PERFORM runyard.refuse_message(t, at); END IF;
        SELECT c.* INTO got FROM runyard.cut_at_message(t, at) c;
        view := got.view;
        IF NOT coalesce((q->>'repair')::boolean, false) THEN
            PERFORM runyard.check_boundary(got.view, got.whole, got.message);
        END IF;
        RETURN;
    END IF;
    IF run_id IS NULL THEN
        run_id := runyard.last_completed(t);
        IF run_id IS NULL THEN
            PERFORM runyard.refuse('run_not_completed',
                format('thread %s has no completed run; prompt it once, then fork', t.thread_id), jsonb_build_object('thread_id', t.thread_id));
        END IF;
    END IF;
    got := runyard.cut_after_run(t, run_id);
    view := got.view; after_run := got.run;
END $$;

-- Return the id that stands for the place before the first message. A message with this parent begins a tree. No message has this id.
CREATE OR REPLACE FUNCTION runyard.root_id() RETURNS uuid LANGUAGE sql IMMUTABLE AS $$
    SELECT '00000000-0000-0000-0000-000000000000'::uuid
$$;

CREATE OR REPLACE FUNCTION runyard.refuse_message(t runyard.threads, message_id uuid) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM runyard.refuse('message_not_found', format('thread %s has no message %s', t.thread_id, message_id),
                           jsonb_build_object('thread_id', t.thread_id, 'message_id', message_id));
END $$;

-- Return the cut at a message. The cut includes the message. view: the view of the path to the message. whole: the view of all visible
-- messages of the message's branch. run: the message's run, or NULL. For root_id() both views are empty.
CREATE OR REPLACE FUNCTION runyard.cut_at_message(
    t runyard.threads, message_id uuid, OUT view runyard.level[], OUT whole runyard.level[], OUT message runyard.messages, OUT run runyard.runs
) LANGUAGE plpgsql STABLE AS $$
DECLARE
    got record;
    l runyard.level;
    cutoff bigint;
    open_run text;
BEGIN
    IF message_id = runyard.root_id() THEN
        view := '{}'; whole := '{}';
        RETURN;
    END IF;
    SELECT m.* INTO message FROM runyard.messages m JOIN runyard.branches b USING (branch_id)
    WHERE m.message_id = cut_at_message.message_id AND b.thread_key = t.thread_key;
    IF FOUND THEN
        IF message.run_id IS NOT NULL THEN
            SELECT r.* INTO run FROM runyard.runs r WHERE r.thread_key = t.thread_key AND r.run_id = message.run_id;
        END IF;
        l := (message.branch_id, 9223372036854775807, t.next_completion_seq - 1, NULL)::runyard.level;
    ELSE
        SELECT s.* INTO got FROM runyard.seen_through(t.thread_key, cut_at_message.message_id) s;
        IF FOUND THEN l := got.level; message := got.message; run := got.run; END IF;
    END IF;
    IF message.seq IS NULL OR (message.run_id IS NOT NULL AND run.branch_id IS NULL) THEN
        PERFORM runyard.refuse_message(t, message_id);
    END IF;
    IF message.run_id IS NULL THEN
        cutoff := l.cutoff;
    ELSE
        cutoff := least(coalesce(run.completion_seq, run.snapshot_cutoff), l.cutoff);
        IF run.completion_seq IS NULL OR message.run_id = l.open_run_id THEN open_run := message.run_id; END IF;
    END IF;
    view := runyard.inherited(message.branch_id)
        || (message.branch_id, least(message.seq, l.high_water_seq), cutoff, open_run)::runyard.level;
    whole := runyard.inherited(message.branch_id)
        || (message.branch_id, l.high_water_seq, l.cutoff, coalesce(open_run, l.open_run_id))::runyard.level;
END $$;

-- Return the cut after a completed run of the thread or of an ancestor.
CREATE OR REPLACE FUNCTION runyard.cut_after_run(t runyard.threads, run_id text, OUT view runyard.level[], OUT run runyard.runs)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    got record;
    l runyard.level;
BEGIN
    SELECT r.* INTO run FROM runyard.runs r WHERE r.thread_key = t.thread_key AND r.run_id = cut_after_run.run_id;
    IF FOUND AND run.completion_seq IS NOT NULL THEN
        view := runyard.inherited(run.branch_id) || (run.branch_id, run.high_water_seq, run.completion_seq, NULL)::runyard.level;
        RETURN;
    ELSIF NOT FOUND THEN
        SELECT i.* INTO got FROM runyard.inherited_run(t.thread_key, cut_after_run.run_id) i;
        IF FOUND AND NOT got.open THEN
            run := got.run; l := got.level;
            IF run.last_seq > l.high_water_seq THEN
                PERFORM runyard.refuse('fork_boundary',
                    format('run %s is only partly visible in thread %s; fork at a message instead', run_id, t.thread_id),
                    jsonb_build_object('run_id', run_id, 'before', NULL, 'after', NULL));
            END IF;
            view := runyard.inherited(l.branch_id)
                || (l.branch_id, least(run.high_water_seq, l.high_water_seq), run.completion_seq, NULL)::runyard.level;
            RETURN;
        ELSIF NOT FOUND THEN
            PERFORM runyard.refuse('cut_run_not_found',
                format('thread %s has no run %s; fork after a completed run of the thread', t.thread_id, run_id),
                jsonb_build_object('thread_id', t.thread_id, 'run_id', run_id));
        END IF;
    END IF;
    PERFORM runyard.refuse('run_not_completed',
        format('run %s of thread %s is not completed; fork after a completed run, or prompt the thread once', run_id, t.thread_id),
        jsonb_build_object('thread_id', t.thread_id, 'run_id', run_id));
END $$;

-- Return the id of the message with this number, own or inherited.
CREATE OR REPLACE FUNCTION runyard.message_at(t runyard.threads, number bigint) RETURNS uuid
LANGUAGE plpgsql STABLE AS $$
DECLARE
    found_id uuid;
BEGIN
    SELECT m.message_id INTO found_id FROM runyard.branches b JOIN runyard.messages m ON m.branch_id = b.branch_id AND m.seq = number
    WHERE b.thread_key = t.thread_key;
    IF NOT FOUND THEN
        SELECT m.message_id INTO found_id
        FROM runyard.branches own JOIN runyard.levels l ON l.branch_id = own.branch_id
        JOIN runyard.messages m ON m.branch_id = l.ancestor_id AND m.seq = number
        WHERE own.thread_key = t.thread_key AND m.seq <= l.high_water_seq
          AND EXISTS (SELECT 1 FROM runyard.seen_through(t.thread_key, m.message_id)) LIMIT 1;
    END IF;
    IF found_id IS NULL THEN
        PERFORM runyard.refuse('message_not_found', format('thread %s has no message with number %s', t.thread_id, number),
                               jsonb_build_object('thread_id', t.thread_id, 'seq', number));
    END IF;
    RETURN found_id;
END $$;

-- Refuse a cut inside a tool cycle. The error names the nearest messages of the branch at which no tool call is open. view,
-- whole, at: as cut_at_message returns them.
CREATE OR REPLACE FUNCTION runyard.check_boundary(view runyard.level[], whole runyard.level[], at runyard.messages) RETURNS void
LANGUAGE plpgsql STABLE AS $$
DECLARE
    m record;
    pending text[] := '{}';
    before uuid;
    after uuid;
    calls text[] := runyard.open_calls(view);
BEGIN
    IF calls = '{}' THEN RETURN; END IF;
    FOR m IN SELECT v.seq, v.message_id, v.calls, v.results FROM runyard.visible(whole) v ORDER BY v.seq LOOP
        pending := ARRAY(SELECT c FROM unnest(pending) c WHERE m.results IS NULL OR c <> ALL (m.results)) || coalesce(m.calls, '{}');
        IF pending = '{}' AND m.seq < at.seq THEN
            before := m.message_id;
        ELSIF pending = '{}' THEN
            after := m.message_id;
            EXIT;
        END IF;
    END LOOP;
    PERFORM runyard.refuse('fork_boundary',
        format('message %s is inside an unfinished tool cycle (open calls: %s); cut before it at %s or after it at %s, or repair the fork',
               at.message_id, array_to_string(calls, ', '), coalesce(before::text, 'nothing'), coalesce(after::text, 'nothing')),
        jsonb_build_object('message_id', at.message_id, 'open_calls', to_jsonb(calls), 'before', before, 'after', after));
END $$;
