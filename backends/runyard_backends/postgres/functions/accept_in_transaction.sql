-- Accepting a run inside a host's own transaction. No thread is locked, and workers admit the run after the commit.

-- Accept a prompt with SQL alone, inside any transaction: SELECT runyard.accept('thread', 'hello', run_id => 'r1'). The function
-- has the rights of its owner, so that a host needs only the right to call it, and no right on a table.
CREATE OR REPLACE FUNCTION runyard.accept(
    thread_id text, message text, run_id text DEFAULT gen_random_uuid()::text, agent text DEFAULT NULL, queue text DEFAULT NULL,
    priority text DEFAULT 'normal', run_at timestamptz DEFAULT NULL, metadata jsonb DEFAULT '{}', options jsonb DEFAULT '{}',
    tenant text DEFAULT ''
) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    q runyard.request;
BEGIN
    IF num_nulls(thread_id, message, run_id, priority, metadata, options, tenant) > 0 THEN
        PERFORM runyard.refuse('invalid_input', 'thread_id, message, run_id, priority, metadata, options and tenant cannot be NULL');
    END IF;
    IF length(thread_id) NOT BETWEEN 1 AND 255 OR length(run_id) NOT BETWEEN 1 AND 255
       OR length(agent) NOT BETWEEN 1 AND 255 OR length(queue) NOT BETWEEN 1 AND 255
    THEN
        PERFORM runyard.refuse('invalid_input', 'thread_id and run_id, and agent and queue where given, must have 1 to 255 characters');
    END IF;
    IF thread_id IN ('.', '..') OR run_id IN ('.', '..') OR agent IN ('.', '..') OR queue IN ('.', '..') THEN
        PERFORM runyard.refuse('invalid_input', 'thread_id, run_id, agent and queue cannot be . or .., which mean a folder in the path of a URL');
    END IF;
    IF runyard.unprintable(concat(thread_id, run_id, agent, queue)) THEN
        PERFORM runyard.refuse('invalid_input', 'thread_id, run_id, agent and queue must have printable characters only');
    END IF;
    IF priority NOT IN ('high', 'normal', 'low') OR jsonb_typeof(metadata) <> 'object' THEN
        PERFORM runyard.refuse('invalid_input', 'priority is high, normal or low, and metadata an object');
    END IF;
    IF run_at NOT BETWEEN '1970-01-01T00:00:00Z' AND '9000-01-01T00:00:00Z' THEN
        PERFORM runyard.refuse('invalid_input', format('run_at is from the year 1970 to 8999, got %s', run_at), '{"field": "run_at"}');
    END IF;
    PERFORM runyard.check_metadata(metadata);
    PERFORM runyard.check_options(options);
    q.thread_id := thread_id; q.run_id := run_id; q.kind := 'prompt'; q.agent := agent; q.queue := queue; q.priority := priority;
    q.input := convert_to(jsonb_build_object('content', jsonb_build_array(jsonb_build_object('type', 'text', 'text', message)))::text, 'UTF8');
    q.input_id := gen_random_uuid(); q.input_role := 'user';
    q.request_hash := (jsonb_build_object('agent', md5(coalesce(agent, '')), 'message', md5(message))
        || CASE WHEN options ? 'expires_in' THEN jsonb_build_object('options', md5(options->>'expires_in')) ELSE '{}' END)::text;
    q.options := options; q.metadata := metadata; q.run_at := run_at;
    q.multitask_strategy := coalesce(options->>'multitask_strategy', 'enqueue');
    q.parallel := coalesce((options->>'parallel')::boolean, false);
    PERFORM runyard.accept_request(tenant, q);
    RETURN run_id;
END $$;

-- Accept a run in a host's own transaction. Return true if the run is new. The function locks no thread, because the host's
-- transaction would hold the lock until its end. Workers admit the run after the commit.
CREATE OR REPLACE FUNCTION runyard.accept_request(for_tenant text, q runyard.request) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    r runyard.runs;
    limited boolean := EXISTS (SELECT 1 FROM runyard.limits);
BEGIN
    IF (limited OR octet_length(q.input) > runyard.default_message_bytes()) AND (runyard.existing_run(for_tenant, q)).run_id IS NULL THEN
        PERFORM runyard.check_room(for_tenant, q,
            (SELECT t.thread_key FROM runyard.threads t WHERE t.tenant = for_tenant AND t.thread_id = q.thread_id AND t.deleted_at IS NULL),
            '', false);
    END IF;
    PERFORM runyard.check_removed(for_tenant, q.thread_id);
    r := runyard.insert_run(for_tenant, q, NULL, NULL, q.agent, runyard.due_at(q), limited);
    IF r.run_id IS NULL THEN
        PERFORM runyard.existing_run(for_tenant, q);
    END IF;
    PERFORM pg_notify('runyard_accept', '');
    RETURN r.run_id IS NOT NULL;
END $$;

-- Refuse options that runyard.models.RunOptions would refuse.
CREATE OR REPLACE FUNCTION runyard.check_options(options jsonb) RETURNS void
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    given record;
BEGIN
    FOR given IN SELECT key, value FROM jsonb_each(CASE jsonb_typeof(options) WHEN 'object' THEN options ELSE '{"options": null}' END) LOOP
        IF NOT (CASE given.key
            WHEN 'timeout' THEN jsonb_typeof(given.value) = 'number' AND given.value >= '1e-9' AND given.value <= '315360000'
            WHEN 'expires_in' THEN jsonb_typeof(given.value) = 'number' AND given.value >= '1e-9' AND given.value <= '315360000'
            WHEN 'max_attempts' THEN given.value::text ~ '^([1-9][0-9]{0,2}|1000)$'
            WHEN 'parallel' THEN jsonb_typeof(given.value) = 'boolean'
            WHEN 'multitask_strategy' THEN given.value IN ('"enqueue"', '"reject"', '"interrupt"', '"rollback"')
            WHEN 'webhook' THEN jsonb_typeof(given.value) = 'string' AND given.value #>> '{}' ~ '^https?://[^/?#@[:space:]]+([/?][^#[:space:]]*)?$'
                AND length(given.value #>> '{}') <= 2048
            ELSE false END)
        THEN
            PERFORM runyard.refuse('invalid_input', format('option %s cannot be %s; options are timeout and expires_in (seconds), max_attempts (1 to 1000), '
                'parallel (true or false), multitask_strategy (enqueue, reject, interrupt, rollback) and webhook (an http or https URL)',
                given.key, given.value));
        END IF;
    END LOOP;
END $$;

-- Refuse metadata that runyard.domain.size_limits would refuse.
CREATE OR REPLACE FUNCTION runyard.check_metadata(metadata jsonb) RETURNS void
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    size integer := octet_length(metadata::text);
    why text;
    most integer;
BEGIN
    IF size > 262144 THEN
        why := format('holds %s bytes, and may hold 262144; keep large data elsewhere and store a reference', size); most := 262144;
    ELSIF metadata @? 'strict $.**{100 to last} ? (@.type() == "object" || @.type() == "array")' THEN
        why := 'is nested more than 100 levels deep; make it flatter, or a string of its JSON'; most := 100;
    ELSIF metadata @? 'strict $.** ? (@.type() == "number" && (@ > 18446744073709551615 || @ < -9223372036854775808))' THEN
        why := 'holds a number of more than 64 bits; make it a string'; most := 64;
    ELSIF size > 50000 AND (SELECT count(*) FROM jsonb_path_query(metadata, 'strict $.**')) > 25001 THEN
        why := 'holds more than 25000 values; keep large data elsewhere and store a reference'; most := 25000;
    END IF;
    IF why IS NOT NULL THEN
        PERFORM runyard.refuse('invalid_input', 'metadata ' || why, jsonb_build_object('field', 'metadata', 'most', most));
    END IF;
END $$;

-- Return true if runyard.models.check_id refuses a character of the text as unprintable. Such characters are control and format
-- characters, private characters, and separators except the space. Characters that Unicode has not assigned are not refused here,
-- because they depend on the version of Unicode.
CREATE OR REPLACE FUNCTION runyard.unprintable(given text) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
    SELECT given ~ ('[\u0001-\u001f\u007f-\u00a0\u00ad\u0600-\u0605\u061c\u06dd\u070f\u1680\u180e\u2000-\u200f\u2028-\u202f\u205f-\u206f'
        '\u3000\ue000-\uf8ff\ufeff\ufff0-\ufffb\U000e0000-\U000e007f\U000f0000-\U0010ffff]')
$$;
