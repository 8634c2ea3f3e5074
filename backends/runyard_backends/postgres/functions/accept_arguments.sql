-- Checks of the arguments of a host's accept. They refuse the same values as the client, with the same errors and fields, because no worker
-- can decode a run with such values. runyard.ports.commands, domain.validation, domain.size_limits and domain.webhooks have the checks of
-- the client.

-- Refuse an id or a name that runyard.domain.validation.check_id would refuse. field: the argument.
CREATE OR REPLACE FUNCTION runyard.check_id(given text, field text) RETURNS void
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF (length(given) BETWEEN 1 AND 255) IS NOT TRUE OR runyard.unprintable(given) THEN
        PERFORM runyard.refuse('invalid_input', format('%s must be 1 to 255 printable characters, got %s', field, coalesce(quote_literal(left(given, 100)), 'NULL')),
                               jsonb_build_object('field', field));
    ELSIF given IN ('.', '..') THEN
        PERFORM runyard.refuse('invalid_input', format('%s cannot be %L, because this name has a meaning in URL paths; choose another', field, given),
                               jsonb_build_object('field', field));
    END IF;
END $$;

-- Refuse options that runyard.models.RunOptions would refuse.
CREATE OR REPLACE FUNCTION runyard.check_options(options jsonb) RETURNS void
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    given record;
BEGIN
    IF options = '{}' THEN RETURN; END IF;
    IF (jsonb_typeof(options) = 'object') IS NOT TRUE THEN
        PERFORM runyard.refuse('invalid_input', format('options is an object, got %s', coalesce(jsonb_typeof(options), 'NULL')), '{"field": "options"}');
    END IF;
    FOR given IN SELECT key, value, jsonb_typeof(value) AS type FROM jsonb_each(options) LOOP
        IF (CASE given.key
            -- Workers store the timeout as a float. The two numbers are the smallest and the largest positive float of Python.
            WHEN 'timeout' THEN given.type = 'null' OR given.type = 'number' AND given.value BETWEEN '5e-324' AND '1.7976931348623157e308'
            WHEN 'expires_in' THEN given.type = 'null' OR given.type = 'number' AND given.value BETWEEN '5e-324' AND '315360000'
            WHEN 'max_attempts' THEN given.type = 'number' AND given.value BETWEEN '1' AND '1000' AND given.value::numeric % 1 = 0
            WHEN 'parallel' THEN given.type = 'boolean'
            WHEN 'multitask_strategy' THEN given.value IN ('"enqueue"', '"reject"', '"interrupt"', '"rollback"')
            WHEN 'webhook' THEN given.type = 'null' OR given.type = 'string' AND runyard.is_webhook_url(given.value #>> '{}')
            END) IS NOT TRUE
        THEN
            PERFORM runyard.refuse('invalid_input', format('option %s cannot be %s; options are timeout and expires_in (seconds), max_attempts (1 to 1000), '
                'parallel (true or false), multitask_strategy (enqueue, reject, interrupt, rollback) and webhook (an http or https URL)',
                left(given.key, 100), left(given.value::text, 100)), jsonb_build_object('field', left(given.key, 100)));
        END IF;
    END LOOP;
END $$;

-- Return true if runyard.domain.webhooks.check_url admits the URL.
CREATE OR REPLACE FUNCTION runyard.is_webhook_url(url text) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    parts text[] := regexp_match(url, '^https?://(?:[^][/?@:]+|\[[0-9a-f:.]+\])(?::([0-9]*))?(?:[/?]|$)', 'i');
BEGIN
    RETURN parts IS NOT NULL AND length(url) <= 2048 AND url !~ '[^!-~]' AND url !~ '[#\\]'
       AND (parts[1] IS NULL OR parts[1] = '' OR parts[1] ~ '^0*[1-9][0-9]{0,4}$' AND parts[1]::integer <= 65535)
       AND (url !~ '^[^/]*//\[' OR runyard.is_ipv6(substring(url FROM '\[([^]]*)\]')));
END $$;

CREATE OR REPLACE FUNCTION runyard.is_ipv6(address text) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN address !~ '/' AND family(address::inet) = 6;
EXCEPTION WHEN invalid_text_representation THEN
    RETURN false;
END $$;

-- Refuse metadata that runyard.domain.size_limits would refuse. jsonb does not distinguish large integers from large
-- floating-point numbers. This function therefore refuses both.
CREATE OR REPLACE FUNCTION runyard.check_metadata(metadata jsonb) RETURNS void
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    size integer;
    why text;
    most integer;
BEGIN
    IF metadata = '{}' THEN RETURN; END IF;
    IF (jsonb_typeof(metadata) = 'object') IS NOT TRUE THEN
        PERFORM runyard.refuse('invalid_input', format('metadata is a JSON object, got %s', coalesce(jsonb_typeof(metadata), 'NULL')), '{"field": "metadata"}');
    END IF;
    size := octet_length(metadata::text);
    IF size > 4194304 THEN -- more bytes than the largest metadata that a client can send, with every character as an escape
        why := format('holds %s bytes; keep large data elsewhere and store a reference', size); most := 262144;
    ELSIF metadata @? 'strict $.**{100 to last} ? (@.type() == "object" || @.type() == "array")' THEN
        why := 'is nested more than 100 levels deep; make it flatter, or store it as a string of JSON'; most := 100;
    ELSIF metadata @? 'strict $.** ? (@.type() == "number" && (@ > 18446744073709551615 || @ < -9223372036854775808))' THEN
        why := 'holds a number of more than 64 bits; make it a string'; most := 64;
    ELSIF size > 50000 AND (SELECT count(*) FROM jsonb_path_query(metadata, 'strict $.**')) > 25001 THEN
        why := 'holds more than 25000 values; keep large data elsewhere and store a reference'; most := 25000;
    ELSIF size > 262144 THEN
        size := runyard.text_bytes(metadata); most := 262144;
        IF size > most THEN
            why := format('holds %s bytes of text, and the limit is %s; keep large data elsewhere and store a reference', size, most);
        END IF;
    END IF;
    IF why IS NOT NULL THEN
        PERFORM runyard.refuse('invalid_input', 'metadata ' || why, jsonb_build_object('field', 'metadata', 'most', most));
    END IF;
END $$;

-- Return the number of bytes of all strings and names in a value.
CREATE OR REPLACE FUNCTION runyard.text_bytes(given jsonb) RETURNS integer
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN coalesce((SELECT sum(octet_length(v #>> '{}')) FROM jsonb_path_query(given, 'strict $.** ? (@.type() == "string")') v), 0)
         + coalesce((SELECT sum(octet_length(k)) FROM jsonb_path_query(given, 'strict $.** ? (@.type() == "object")') o, jsonb_object_keys(o) k), 0);
END $$;
