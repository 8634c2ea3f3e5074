-- Figures of the whole deployment, for the metrics of the leader.

-- Return the number of pending HITL requests by kind, and figures of the Postgres server. commits: the number of transactions that were
-- committed in the database since its statistics began.
CREATE OR REPLACE FUNCTION runyard.measure() RETURNS TABLE (
    questions bigint, approvals bigint, steps bigint, oldest_request double precision, database_bytes bigint, dead_rows bigint,
    connections bigint, max_connections bigint, commits bigint
)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
BEGIN
    RETURN QUERY
    SELECT count(*) FILTER (WHERE h.kind = 'question'), count(*) FILTER (WHERE h.kind = 'approval'), count(*) FILTER (WHERE h.kind = 'step'),
           extract(epoch FROM clock_timestamp() - min(h.created_at::timestamptz))::float8,
           pg_database_size(current_database()),
           (SELECT coalesce(sum(t.n_dead_tup), 0)::bigint FROM pg_stat_user_tables t WHERE t.schemaname = 'runyard'),
           (SELECT count(*) FROM pg_stat_activity a WHERE a.backend_type = 'client backend'),
           current_setting('max_connections')::bigint - current_setting('superuser_reserved_connections')::bigint,
           (SELECT d.xact_commit FROM pg_stat_database d WHERE d.datname = current_database())
    FROM runyard.hitl_requests h WHERE h.answered_at IS NULL AND h.closed_at IS NULL AND h.created_at < 'infinity';
END $$;
