-- Refusals: typed errors for clients. Functions raise them, or return them as JSON.

-- Raise a typed error. code: the error code. message: the text of the error. details: a JSON object.
CREATE OR REPLACE FUNCTION runyard.refuse(code text, message text, details jsonb DEFAULT '{}') RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = 'RY000', MESSAGE = message, HINT = code, DETAIL = details::text;
END $$;

-- Raise the error that another function returned as JSON. Do nothing for NULL.
CREATE OR REPLACE FUNCTION runyard.raise(refused jsonb) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF refused IS NOT NULL THEN
        PERFORM runyard.refuse(refused->>'code', refused->>'message', refused->'details');
    END IF;
END $$;

-- Return the error of a reached limit on queued runs. which: the name of the limit. of: the lane, tenant or deployment, for the
-- message.
CREATE OR REPLACE FUNCTION runyard.queue_full(which text, of text, most bigint) RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN jsonb_build_object('code', 'queue_full',
        'message', format('the limit %s is reached: %s waiting %s; try again in a second, or raise the limit', which, most, of),
        'details', jsonb_build_object('limit', which, 'most', most, 'retry_after', 1));
END $$;

-- Return the error of a message id that another message of the thread has.
CREATE OR REPLACE FUNCTION runyard.id_taken(t runyard.threads, message_id uuid) RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN jsonb_build_object('code', 'invalid_input',
        'message', format('message id %s is taken on thread %s by another message; use another id', message_id, t.thread_id),
        'details', jsonb_build_object('thread_id', t.thread_id, 'message_id', message_id));
END $$;
