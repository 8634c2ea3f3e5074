-- Accepting a run inside a host's own transaction. No thread is locked, and workers admit the run after the commit.

-- Accept a prompt by SQL, inside any transaction: SELECT runyard.accept('thread', 'hello', run_id => 'r1'). The function has
-- the rights of its owner. A host therefore needs only the right to call it, and no right on a table.
CREATE OR REPLACE FUNCTION runyard.accept(
    thread_id text, message text, run_id text DEFAULT gen_random_uuid()::text, agent text DEFAULT NULL, queue text DEFAULT NULL,
    priority text DEFAULT 'normal', run_at timestamptz DEFAULT NULL, metadata jsonb DEFAULT '{}', options jsonb DEFAULT '{}',
    tenant text DEFAULT ''
) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    q runyard.request;
BEGIN
    IF message IS NULL THEN
        PERFORM runyard.refuse('invalid_input', 'message is text, got NULL', '{"field": "message"}');
    END IF;
    IF tenant IS NULL THEN
        PERFORM runyard.refuse('invalid_input', 'tenant is text, got NULL', '{"field": "tenant"}');
    END IF;
    PERFORM runyard.check_id(thread_id, 'thread_id');
    PERFORM runyard.check_id(run_id, 'run_id');
    IF agent IS NOT NULL THEN PERFORM runyard.check_id(agent, 'agent'); END IF;
    IF queue IS NOT NULL THEN PERFORM runyard.check_id(queue, 'queue'); END IF;
    IF (priority IN ('high', 'normal', 'low')) IS NOT TRUE THEN
        PERFORM runyard.refuse('invalid_input', format('priority is one of high, normal, low, got %s', coalesce(left(priority, 100), 'NULL')),
                               '{"field": "priority"}');
    END IF;
    IF NOT (run_at >= '1970-01-01T00:00:00Z' AND run_at < '9000-01-01T00:00:00Z') THEN
        PERFORM runyard.refuse('invalid_input', format('run_at is from the year 1970 to 8999, got %s', run_at), '{"field": "run_at"}');
    END IF;
    PERFORM runyard.check_metadata(metadata);
    PERFORM runyard.check_options(options);
    options := jsonb_strip_nulls(options);
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
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    r runyard.runs;
    for_agent text := (
        SELECT t.agent FROM runyard.threads t WHERE t.tenant = for_tenant AND t.thread_id = q.thread_id AND t.deleted_at IS NULL);
    limited boolean := EXISTS (SELECT 1 FROM runyard.limits);
BEGIN
    IF NOT runyard.is_agent(q.agent) AND NOT runyard.is_agent(for_agent) THEN
        for_agent := coalesce(runyard.agent_of_unadmitted(for_tenant, q.thread_id), for_agent);
    END IF;
    for_agent := runyard.agent_of(q.agent, for_agent);
    IF (limited OR octet_length(q.input) > runyard.default_message_bytes()) AND (runyard.existing_run(for_tenant, q)).run_id IS NULL THEN
        PERFORM runyard.check_room(for_tenant, q,
            (SELECT t.thread_key FROM runyard.threads t WHERE t.tenant = for_tenant AND t.thread_id = q.thread_id AND t.deleted_at IS NULL),
            '', false);
    END IF;
    PERFORM runyard.check_removed(for_tenant, q.thread_id, q.run_id);
    r := runyard.insert_run(for_tenant, q, NULL, NULL, for_agent, runyard.due_at(q), limited);
    IF r.run_id IS NULL THEN
        PERFORM runyard.existing_run(for_tenant, q);
    END IF;
    PERFORM pg_notify('runyard_accept', '');
    RETURN r.run_id IS NOT NULL;
END $$;
