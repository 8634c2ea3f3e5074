-- The writes of an attempt before its last write: messages, starts of steps, and results of steps.

-- One write. messages: to append. start_key: the step to start, or NULL. finish_key and result: the finished step, or NULL.
-- first_event: the number of the first message's event. usage: the usage of the run so far, or NULL.
CREATE TYPE runyard.interim_write AS (
    thread_key bigint,
    run_id text,
    fence bigint,
    messages runyard.new_message[],
    first_event integer,
    start_key text,
    finish_key text,
    result bytea,
    usage jsonb
);

-- The outcome of a write. place: the number of the write in its batch, from 1. refused: the reason for which nothing of the write was
-- stored, or NULL. messages: the stored messages. step: the earlier row of the step to start, if the attempt may not execute the step.
CREATE TYPE runyard.interim_written AS (place integer, refused text, messages runyard.messages[], step runyard.steps);
