-- Storing messages without a run.

-- Store a message without a run. If a message with its id is stored already, return the stored message. The caller must
-- compare the two messages. parent_id: NULL to add to the head, root_id() to begin another tree. expected: the last message
-- that the caller has seen, or NULL.
CREATE OR REPLACE FUNCTION runyard.store_message(for_tenant text, thread_id text, m runyard.new_message, parent_id uuid, expected uuid)
RETURNS SETOF runyard.messages
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    got record;
    t runyard.threads;
    branch runyard.branches;
    in_lane text := '';
    busy runyard.runs;
    known runyard.messages;
BEGIN
    got := runyard.admit_thread(runyard.ensure_thread(for_tenant, thread_id));
    t := got.t;
    PERFORM runyard.tell(got.effects);
    known := runyard.holder_of(t.thread_key, m.message_id);
    IF known.message_id IS NOT NULL THEN
        IF known.run_id IS NOT NULL OR parent_id <> coalesce(known.parent_id, runyard.root_id()) THEN
            PERFORM runyard.raise(runyard.id_taken(t, m.message_id));
        END IF;
        RETURN NEXT known;
        RETURN;
    END IF;
    IF parent_id IS NOT NULL THEN
        branch := runyard.branch_ending_at(t.thread_key, parent_id);
        in_lane := coalesce(branch.lane, '');
    END IF;
    IF store_message.parent_id IS NULL OR branch.branch_id IS NOT NULL THEN
        SELECT h.* INTO busy FROM runyard.lane_head(t.thread_key, in_lane, CASE in_lane WHEN '' THEN t.lane_floor ELSE 0 END) h;
        IF FOUND THEN
            PERFORM runyard.refuse('thread_busy',
                format('run %s of thread %s is live on this branch; wait for it, or store the message at a parent', busy.run_id, thread_id),
                jsonb_build_object('thread_id', thread_id, 'run_id', busy.run_id));
        END IF;
    END IF;
    IF expected IS NOT NULL THEN
        SELECT coalesce(branch.leaf_id, b.leaf_id) AS leaf INTO got FROM runyard.branches b WHERE b.branch_id = t.head_branch;
        IF got.leaf IS DISTINCT FROM expected THEN
            PERFORM runyard.refuse('leaf_moved', format('the last message of thread %s is %s, not %s', store_message.thread_id, got.leaf, expected),
                                   jsonb_build_object('thread_id', store_message.thread_id, 'leaf_id', got.leaf, 'expected_leaf', expected));
        END IF;
    END IF;
    PERFORM runyard.check_size(ARRAY[m], runyard.limit_of('message_bytes'));
    got := runyard.branch_for(t, in_lane, parent_id, false);
    t := got.t; branch := got.branch;
    PERFORM runyard.put_plain(t, branch, ARRAY[m]);
    RETURN QUERY SELECT s.* FROM runyard.messages s WHERE s.branch_id = branch.branch_id AND s.seq = t.next_seq;
END $$;

-- Insert messages without a run at the end of a branch. Each message is the child of the message before it. The caller must have
-- checked their ids and sizes.
CREATE OR REPLACE FUNCTION runyard.put_plain(INOUT t runyard.threads, branch runyard.branches, messages runyard.new_message[])
LANGUAGE plpgsql AS $$
DECLARE
    many integer := cardinality(messages);
    last uuid := (messages[many]).message_id;
BEGIN
    INSERT INTO runyard.messages (branch_id, seq, message_id, parent_id, role, payload, calls, results)
    SELECT branch.branch_id, t.next_seq + n - 1, m.message_id, lag(m.message_id, 1, branch.leaf_id) OVER (ORDER BY n),
           m.role, m.payload, m.calls, m.results
    FROM unnest(messages) WITH ORDINALITY m(message_id, role, payload, calls, results, n);
    UPDATE runyard.branches SET leaf_id = last, leaf_seq = t.next_seq + many - 1 WHERE branch_id = branch.branch_id;
    t.next_seq := t.next_seq + many;
    UPDATE runyard.threads SET next_seq = t.next_seq, updated_at = now() WHERE thread_key = t.thread_key;
    INSERT INTO runyard.outbox (tenant, thread_key, thread_id, type)
    SELECT t.tenant, t.thread_key, t.thread_id, 'message.stored' FROM generate_series(1, many);
END $$;
