-- Limits on sizes: the maximum size of a message, and of the extra and the config of a thread.

-- Return the default of the limit message_bytes: the maximum bytes of one stored message. MESSAGE_BYTES in runyard.domain.size_limits has
-- the same value.
CREATE OR REPLACE FUNCTION runyard.default_message_bytes() RETURNS bigint LANGUAGE sql IMMUTABLE RETURN 8388608;

-- Refuse the messages if one of them has more than `most` bytes.
CREATE OR REPLACE FUNCTION runyard.check_size(messages runyard.new_message[], most bigint) RETURNS void
LANGUAGE plpgsql STABLE AS $$
DECLARE
    largest bigint;
BEGIN
    IF pg_column_size(messages) <= most THEN RETURN; END IF; -- a cheap check of all messages together
    largest := (SELECT max(octet_length(m.payload)) FROM unnest(messages) m);
    IF largest > most THEN
        PERFORM runyard.refuse('message_too_large',
            format('a message of %s bytes is over the limit of %s; keep large content elsewhere and store a reference', largest, most),
            jsonb_build_object('limit', 'message_bytes', 'most', most, 'size', largest));
    END IF;
END $$;

-- Refuse an extra that is too large for a thread.
CREATE OR REPLACE FUNCTION runyard.check_extra(merged jsonb) RETURNS void
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    PERFORM runyard.check_merged('extra', merged);
END $$;

-- Refuse a field (extra or config) that is too large for a thread. A merge can make a field too large, although each of its parts is small
-- enough.
CREATE OR REPLACE FUNCTION runyard.check_merged(field text, merged jsonb) RETURNS void
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    most CONSTANT integer := 2097152;
    size integer := octet_length(merged::text);
BEGIN
    IF size > most THEN
        PERFORM runyard.refuse('invalid_input',
            format('%1$s would have %2$s bytes, and a thread''s %1$s may have %3$s; keep large data elsewhere and store a reference', field, size, most),
            jsonb_build_object('field', field, 'most', most, 'got', size));
    END IF;
END $$;
