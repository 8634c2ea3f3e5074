-- Appending messages to a run.

-- Append messages to an attempt's run. Return the stored messages. Workers of older releases, whose writes are not batched, call this
-- function.
CREATE OR REPLACE FUNCTION runyard.append(thread_key bigint, run_id text, with_fence bigint, messages runyard.new_message[], first_event integer)
RETURNS SETOF runyard.messages
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    got record;
BEGIN
    got := runyard.lock_run(thread_key, run_id);
    PERFORM runyard.refuse_write(got.r, with_fence);
    RETURN QUERY SELECT m.* FROM unnest(
        runyard.add_messages(got.t, got.r, messages, first_event, NULL, runyard.limit_of('message_bytes'))) m;
END $$;

-- Append messages to the run r of the locked thread t. Return the stored messages in the order of `messages`. used: the usage of the run so
-- far, or NULL. For each amount, the record of the run keeps the larger number, so that a repeated or late call changes
-- nothing.
CREATE OR REPLACE FUNCTION runyard.add_messages(
    t runyard.threads, r runyard.runs, messages runyard.new_message[], first_event integer, used jsonb, message_bytes bigint
) RETURNS runyard.messages[]
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    seen bigint := t.next_seq;
    got record;
BEGIN
    PERFORM runyard.check_size(messages, message_bytes);
    got := runyard.put_messages(t, r, messages, first_event);
    t := got.t; r := got.r;
    IF t.next_seq > seen THEN
        UPDATE runyard.threads x SET next_seq = t.next_seq, updated_at = now() WHERE x.thread_key = t.thread_key;
    END IF;
    UPDATE runyard.runs SET first_seq = r.first_seq, last_seq = r.last_seq, last_message_id = r.last_message_id, has_tools = r.has_tools,
           progressed = progressed OR t.next_seq > seen, usage = runyard.most_usage(r.usage, used)
    WHERE accept_no = r.accept_no AND (t.next_seq > seen OR used IS NOT NULL);
    RETURN ARRAY(
        SELECT m FROM unnest(messages) WITH ORDINALITY n(message_id, role, payload, calls, results, place)
        JOIN runyard.messages m ON m.message_id = n.message_id AND m.branch_id = r.branch_id ORDER BY n.place);
END $$;

-- Insert messages of a run after its last message. Skip messages that the run has already: such a call is a repetition after a lost reply.
-- The caller must save the rows of the thread and the run. first_event: the number of the first message's event, or NULL for a run without
-- events. new: true if the caller knows that no message of the thread has one of the ids.
CREATE OR REPLACE FUNCTION runyard.put_messages(
    INOUT t runyard.threads, INOUT r runyard.runs, messages runyard.new_message[], first_event integer, new boolean DEFAULT false
) LANGUAGE plpgsql AS $$
DECLARE
    many integer := coalesce(cardinality(messages), 0);
    m runyard.new_message;
    holder runyard.messages;
BEGIN
    IF many = 0 THEN RETURN; END IF;
    IF r.branch_id IS NULL THEN
        PERFORM runyard.refuse('invalid_input', format('run %s is a %s job; it has no messages', r.run_id, r.kind));
    END IF;
    r.last_message_id := coalesce(r.last_message_id, r.base_id);
    FOR n IN 1 .. many LOOP
        m := messages[n];
        IF NOT new THEN
            holder := runyard.holder_of(t.thread_key, m.message_id);
            CONTINUE WHEN holder.run_id = r.run_id;
            IF holder.message_id IS NOT NULL THEN PERFORM runyard.raise(runyard.id_taken(t, m.message_id)); END IF;
        END IF;
        INSERT INTO runyard.messages (branch_id, seq, message_id, parent_id, run_id, role, payload, calls, results, event_id)
        VALUES (r.branch_id, t.next_seq, m.message_id, r.last_message_id, r.run_id, m.role, m.payload, m.calls, m.results,
                r.fence || '-' || (first_event + n - 1));
        r.has_tools := r.has_tools OR m.calls IS NOT NULL OR m.results IS NOT NULL;
        r.last_message_id := m.message_id;
        r.first_seq := coalesce(r.first_seq, t.next_seq);
        r.last_seq := t.next_seq;
        t.next_seq := t.next_seq + 1;
    END LOOP;
END $$;

-- Return the message of the thread with this id, own or inherited, or a NULL row. In the usual case the id is new, and the
-- first query is enough. The second query reads the index once per branch, because many threads may have a message with this
-- id.
CREATE OR REPLACE FUNCTION runyard.holder_of(thread_key bigint, message_id uuid, OUT holder runyard.messages)
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM runyard.messages m WHERE m.message_id = holder_of.message_id) THEN RETURN; END IF;
    SELECT h.* INTO holder FROM runyard.branches b
    CROSS JOIN LATERAL (SELECT m.* FROM runyard.messages m WHERE m.message_id = holder_of.message_id AND m.branch_id = b.branch_id LIMIT 1) h
    WHERE b.thread_key = holder_of.thread_key LIMIT 1;
    IF NOT FOUND THEN
        SELECT (s.message).* INTO holder FROM runyard.seen_through(holder_of.thread_key, holder_of.message_id) s;
    END IF;
END $$;
