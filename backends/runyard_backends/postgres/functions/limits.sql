-- The values of limits. queue_limits.sql applies the limits on queued runs, permits.sql those on running runs, and size_limits.sql the
-- limit on the size of a message.

-- Return the value of a limit for `of`, or NULL if no limit is set. of: a tenant or an agent; NULL for a limit without a subject.
CREATE OR REPLACE FUNCTION runyard.limit_of(which text, of text DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN coalesce(
        (SELECT l.most FROM runyard.limits l WHERE l.limit_name = which AND (l.subject = of OR l.subject IS NULL)
         ORDER BY l.subject NULLS LAST LIMIT 1),
        CASE which WHEN 'message_bytes' THEN runyard.default_message_bytes() END);
END $$;
