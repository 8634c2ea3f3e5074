-- Repetitions of requests: compare a request that has a known id with the first request. The hashes in
-- runyard/ports/commands.py, and runyard.accept for hosts, determine which fields are compared.

-- Return the run that has the id of the request, or a NULL row if the id is free. Raises run_conflict if the run's request was
-- different.
CREATE OR REPLACE FUNCTION runyard.existing_run(for_tenant text, q runyard.request) RETURNS runyard.runs
LANGUAGE plpgsql STABLE AS $$
DECLARE
    r runyard.runs;
    differs jsonb;
    options jsonb;
BEGIN
    SELECT x.* INTO r FROM runyard.runs x
    WHERE x.tenant = for_tenant AND x.thread_id = q.thread_id AND x.run_id = q.run_id AND NOT x.deleted;
    IF FOUND AND r.request_hash IS DISTINCT FROM q.request_hash THEN
        differs := runyard.differing_fields(r.request_hash::jsonb, q.request_hash::jsonb);
        options := CASE WHEN differs ? 'options' THEN runyard.differing_options(r, q) ELSE '{}' END;
        IF options <> '{}' THEN
            differs := (SELECT jsonb_agg(f.name ORDER BY f.name COLLATE "C") FROM (
                SELECT d.name FROM jsonb_array_elements_text(differs - 'options') d(name) UNION SELECT o.name FROM jsonb_object_keys(options) o(name)) f);
        END IF;
        PERFORM runyard.refuse('run_conflict',
            format('run id %s of thread %s is taken by a request with another %s; choose another id', q.run_id, q.thread_id,
                (SELECT string_agg(d.field || CASE WHEN options ? d.field THEN format(' (%s, got %s)', options->d.field->0, options->d.field->1) ELSE '' END, ', ' ORDER BY d.place)
                 FROM jsonb_array_elements_text(differs) WITH ORDINALITY d(field, place))),
            jsonb_build_object('thread_id', q.thread_id, 'run_id', q.run_id, 'differs', differs, 'values', options));
    END IF;
    RETURN r;
END $$;

-- Return the compared options in which a run and a request differ, as an object. Each name has the value of the run and the value of the
-- request.
CREATE OR REPLACE FUNCTION runyard.differing_options(r runyard.runs, q runyard.request) RETURNS jsonb
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT coalesce(jsonb_object_agg(o.name, jsonb_build_array(o.stored, o.asked)), '{}') FROM (VALUES
        ('expires_in', nullif(r.options->'expires_in', 'null'), nullif(q.options->'expires_in', 'null')),
        ('multitask_strategy', to_jsonb(r.multitask_strategy), to_jsonb(q.multitask_strategy)),
        ('parallel', to_jsonb(r.parallel), to_jsonb(q.parallel))) o(name, stored, asked)
        WHERE o.stored IS DISTINCT FROM o.asked);
END $$;

-- Return the names of the fields in which two hashes of requests differ, as an array. The result does not contain the hashes, because a
-- caller could guess the text of a message from its hash.
CREATE OR REPLACE FUNCTION runyard.differing_fields(one jsonb, two jsonb) RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN (SELECT coalesce(jsonb_agg(k ORDER BY k), '[]') FROM jsonb_object_keys(one || two) k WHERE one->k IS DISTINCT FROM two->k);
END $$;

-- Return the thread that a request with the same hash has made, or a NULL row.
CREATE OR REPLACE FUNCTION runyard.same_fork(for_tenant text, thread_id text, hash text) RETURNS runyard.threads
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (
    SELECT t FROM runyard.threads t
    WHERE t.tenant = for_tenant AND t.thread_id = same_fork.thread_id AND t.deleted_at IS NULL AND t.fork_hash = hash
    );
END $$;

-- Refuse the id if another thread than this fork has it.
CREATE OR REPLACE FUNCTION runyard.check_free(for_tenant text, thread_id text, hash text) RETURNS void
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM runyard.threads t WHERE t.tenant = for_tenant AND t.thread_id = check_free.thread_id AND t.deleted_at IS NULL
               AND t.fork_hash IS DISTINCT FROM hash) THEN
        PERFORM runyard.refuse('thread_already_exists', format('thread %s exists already and is not this fork; choose another id', check_free.thread_id),
                               jsonb_build_object('thread_id', check_free.thread_id));
    END IF;
END $$;
