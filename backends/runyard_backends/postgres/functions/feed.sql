-- The feed: reading the outbox in order. prune.sql deletes old entries. `most` is the `limit` of PageRequest (runyard/ports/queries.py).

-- Return the entries of the outbox after (after_transaction, after_position), in this order. An entry is returned only if its transaction
-- is older than every open transaction. No new entry can therefore appear before an entry that a reader has already read. horizon:
-- the transaction before which all entries are readable. Without entries, the result is one row that has only the horizon.
CREATE OR REPLACE FUNCTION runyard.readable_entries(for_tenant text, after_transaction bigint, after_position bigint, most integer)
RETURNS TABLE (horizon bigint, entry runyard.outbox)
LANGUAGE plpgsql STABLE SET enable_sort = off AS $$
DECLARE
    seen xid8 := coalesce(after_transaction, 0)::text::xid8;
    oldest_open xid8 := pg_snapshot_xmin(pg_current_snapshot());
BEGIN
    IF seen > pg_snapshot_xmax(pg_current_snapshot()) THEN
        PERFORM runyard.refuse('invalid_cursor', 'another database issued this cursor');
    END IF;
    IF after_transaction IS NOT NULL AND EXISTS (
        SELECT 1 FROM runyard.pruned p WHERE p.tenant = for_tenant AND (p.transaction, p.position) > (seen, after_position))
    THEN
        PERFORM runyard.refuse('cursor_expired',
            'entries after this cursor were pruned; read all data for your copy again, then read the feed without a cursor');
    END IF;
    RETURN QUERY
        SELECT oldest_open::text::bigint, o.entry
        FROM (SELECT 1) one LEFT JOIN LATERAL (
            SELECT x AS entry, x.transaction, x.position FROM runyard.outbox x
            WHERE x.tenant = for_tenant AND x.transaction < oldest_open AND (x.transaction, x.position) > (seen, coalesce(after_position, 0))
            ORDER BY x.transaction, x.position LIMIT most) o ON true
        ORDER BY o.transaction, o.position;
END $$;

-- Return readable entries of the feed. Clients of older releases call this function.
CREATE OR REPLACE FUNCTION runyard.feed(for_tenant text, after_transaction bigint, after_position bigint, most integer)
RETURNS TABLE (horizon bigint, transaction bigint, "position" bigint, thread_id text, run_id text, type text, created_at timestamptz)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET enable_seqscan = off SET jit = off SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN QUERY
        SELECT f.horizon, (f.entry).transaction::text::bigint, (f.entry).position, (f.entry).thread_id, (f.entry).run_id, (f.entry).type::text,
               (f.entry).created_at::timestamptz
        FROM runyard.readable_entries(for_tenant, after_transaction, after_position, most) f;
END $$;

-- Return readable entries of the feed with present facts about their threads and runs. parent_thread_id, forked_after_run_id, forked_at_seq:
-- the source and the cut of a fork. first_seq, last_seq, last_message_id: the messages of the run. They are NULL after a deletion.
CREATE OR REPLACE FUNCTION runyard.feed_v2(for_tenant text, after_transaction bigint, after_position bigint, most integer)
RETURNS TABLE (
    horizon bigint, transaction bigint, "position" bigint, thread_id text, run_id text, type text, created_at timestamptz,
    parent_thread_id text, forked_after_run_id text, forked_at_seq bigint, first_seq bigint, last_seq bigint, last_message_id uuid
)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET enable_seqscan = off SET jit = off SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    f record;
    e runyard.outbox;
BEGIN
    -- Look up each entry separately, because a plan of a join could read a whole table.
    FOR f IN SELECT x.* FROM runyard.readable_entries(for_tenant, after_transaction, after_position, most) x LOOP
        e := f.entry;
        horizon := f.horizon; transaction := e.transaction::text::bigint; "position" := e.position; thread_id := e.thread_id; run_id := e.run_id;
        type := e.type; created_at := e.created_at;
        parent_thread_id := NULL; forked_after_run_id := NULL; forked_at_seq := NULL; first_seq := NULL; last_seq := NULL; last_message_id := NULL;
        IF e.type = 'thread.forked' THEN
            SELECT t.parent_thread_id, t.forked_after_run_id, t.forked_at_seq INTO parent_thread_id, forked_after_run_id, forked_at_seq
            FROM runyard.threads t WHERE t.thread_key = e.thread_key AND t.deleted_at IS NULL;
        ELSIF e.run_id IS NOT NULL THEN
            SELECT r.first_seq, r.last_seq, r.last_message_id INTO first_seq, last_seq, last_message_id
            FROM runyard.runs r WHERE r.thread_key = e.thread_key AND r.run_id = e.run_id AND NOT r.deleted AND r.emptied_at IS NULL;
        END IF;
        RETURN NEXT;
    END LOOP;
END $$;

-- Return the delay of the feed. This is the time since the commit of the oldest unreadable entry, in seconds. An entry is
-- unreadable while an older transaction is open in any database of the server. A delay of two seconds is usual. holder: if the
-- delay is at least five seconds, the oldest open transaction that has written.
CREATE OR REPLACE FUNCTION runyard.feed_delay(OUT seconds double precision, OUT holder text)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET enable_seqscan = off SET jit = off SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    seconds := coalesce((SELECT extract(epoch FROM clock_timestamp() - u.goal_at) FROM runyard.usage_counter u
                         WHERE u.goal > pg_snapshot_xmin(pg_current_snapshot())), 0);
    IF seconds < 5 THEN RETURN; END IF;
    SELECT h.says INTO holder FROM (
        SELECT format('pid %s of %s in database %s%s, %s, since %s', a.pid, a.usename, a.datname,
                      CASE WHEN a.application_name <> '' THEN format(' (%s)', a.application_name) END, a.state, a.xact_start) AS says,
               age(a.backend_xid) AS age
        FROM pg_stat_activity a WHERE a.backend_xid IS NOT NULL AND a.pid <> pg_backend_pid()
        UNION ALL
        SELECT format('prepared transaction %s of %s in database %s, since %s', p.gid, p.owner, p.database, p.prepared), age(p.transaction)
        FROM pg_prepared_xacts p) h
    ORDER BY h.age DESC LIMIT 1;
    holder := coalesce(holder, 'a transaction of a role whose sessions this role may not see (GRANT pg_read_all_stats shows them)');
END $$;
