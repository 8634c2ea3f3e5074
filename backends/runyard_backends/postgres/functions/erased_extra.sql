-- Functions by which an erasure removes entries from the extra of runs and threads (removal.sql).

-- Return up to `most` completed runs of a thread that have an extra, after a completion number. last: the completion number of the last
-- run, or NULL if there are no further runs.
CREATE OR REPLACE FUNCTION runyard.runs_with_extra(key bigint, after_completion bigint, most integer, OUT numbers bigint[], OUT last bigint)
LANGUAGE plpgsql STABLE SET enable_bitmapscan = off SET enable_sort = off AS $$
BEGIN
    SELECT coalesce(array_agg(x.accept_no), '{}'), CASE WHEN count(*) >= most THEN max(x.completion_seq) END INTO numbers, last FROM (
        SELECT c.accept_no, c.completion_seq FROM runyard.completions c
        WHERE c.thread_key = key AND c.completion_seq > runs_with_extra.after_completion AND c.with_extra
        ORDER BY c.completion_seq LIMIT most) x;
END $$;

-- Return the hash of an entry of an extra.
CREATE OR REPLACE FUNCTION runyard.extra_hash(key text, value jsonb) RETURNS text
LANGUAGE sql IMMUTABLE AS $$
    SELECT encode(sha256(convert_to(key || ':' || value::text, 'UTF8')), 'base64')
$$;

-- Return an extra without the entries whose hashes are keys of `hashes`.
CREATE OR REPLACE FUNCTION runyard.without_extra(extra jsonb, hashes jsonb) RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN extra - ARRAY(SELECT e.key FROM jsonb_each(extra) e WHERE hashes ? runyard.extra_hash(e.key, e.value));
END $$;
