-- Runs, their attempts and steps, and the HITL requests that they wait for.

-- Return true if a run's status fits its other columns. The check is a function, because Postgres parses the expression of a constraint
-- again for every statement.
CREATE FUNCTION runyard.run_is_sound(
    status text, kind text, finished_at timestamptz, suspended_at timestamptz, started_at timestamptz, fence bigint, lane_seq bigint,
    admitted_at timestamptz, completion_seq bigint, priority text, multitask_strategy text
) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN (status IN ('completed', 'failed', 'cancelled', 'dead')) = (finished_at IS NOT NULL)
       AND (status = 'suspended') = (suspended_at IS NOT NULL)
       AND (status <> 'running' OR (started_at IS NOT NULL AND fence IS NOT NULL))
       AND (lane_seq IS NULL) = (admitted_at IS NULL)
       AND (status = 'queued' OR lane_seq IS NOT NULL)
       AND (status <> 'completed' OR completion_seq IS NOT NULL OR kind IN ('fork', 'fork_once', 'fork_many'))
       AND status IN ('queued', 'running', 'suspended', 'completed', 'failed', 'cancelled', 'dead')
       AND kind IN ('prompt', 'fork', 'fork_once', 'fork_many', 'external')
       AND priority IN ('high', 'normal', 'low') AND multitask_strategy IN ('enqueue', 'reject', 'interrupt', 'rollback');
END $$;

-- Runs of every kind, live and ended. input: the message of the request until the first claim. The first claim makes it a message of the
-- run. candidates: the messages of a fan-out. started_by_key, started_by_run_id: the job that started the run. The job is offered again
-- when the run ends. until_fewer: a bound on the live runs that this job has started. The job waits until fewer are live. abort_words: the
-- text of the results that close the open tool calls of an aborted run, and of its last message. changed_at: the time of the last change of
-- the status, or of the reason for which the run waits. emptied_at: the time at which the content of the run was deleted. deleted: true
-- after the thread of the run was deleted. usage_before: the usage of a redriven run before its last redrive.
CREATE TABLE runyard.runs (
    accept_no           bigint PRIMARY KEY DEFAULT nextval('runyard.accept_numbers'),
    tenant              text NOT NULL,
    thread_id           text NOT NULL,
    run_id              text NOT NULL,
    thread_key          bigint,
    kind                text NOT NULL,
    status              text NOT NULL,
    lane                text,
    lane_seq            bigint,
    agent               text,
    queue               text NOT NULL,
    priority            text NOT NULL,
    input               bytea,
    input_id            uuid,
    input_role          text,
    input_calls         text[],
    input_results       text[],
    request_hash        text NOT NULL,
    options             jsonb NOT NULL DEFAULT '{}',
    metadata            jsonb NOT NULL DEFAULT '{}',
    multitask_strategy  text NOT NULL DEFAULT 'enqueue',
    parallel            boolean NOT NULL DEFAULT false,
    parent_id           uuid,
    after_run_id        text,
    fork                jsonb,
    candidates          bytea[],
    started_by_key      bigint,
    started_by_run_id   text,
    until_fewer         integer,
    run_at              runyard.moment,
    expires_at          runyard.moment,
    not_before          runyard.moment,
    branch_id           bigint,
    base_id             uuid,
    snapshot_tip        bigint,
    snapshot_cutoff     bigint,
    first_seq           bigint,
    last_seq            bigint,
    last_message_id     uuid,
    has_tools           boolean NOT NULL DEFAULT false,
    queued_fence        bigint NOT NULL DEFAULT nextval('runyard.fences'),
    fence               bigint,
    worker_id           text,
    attempt             runyard.small_count NOT NULL DEFAULT 0,
    error_count         runyard.small_count NOT NULL DEFAULT 0,
    crash_count         runyard.small_count NOT NULL DEFAULT 0,
    progressed          boolean NOT NULL DEFAULT false,
    isolated            boolean NOT NULL DEFAULT false,
    cancel_requested_at runyard.moment,
    cancel_keep         boolean NOT NULL DEFAULT false,
    abort_words         text,
    completion_seq      bigint,
    high_water_seq      bigint,
    extra               jsonb,
    usage               jsonb,
    result              bytea,
    error               jsonb,
    event_id            text,
    app_version         text,
    trace_context       text,
    accepted_at         runyard.moment NOT NULL DEFAULT now(),
    admitted_at         runyard.moment,
    started_at          runyard.moment,
    suspended_at        runyard.moment,
    finished_at         runyard.moment,
    changed_at          runyard.moment NOT NULL DEFAULT now(),
    waits_for_permit    text,
    place_in_line       bigint,
    emptied_at          runyard.moment,
    deleted             boolean NOT NULL DEFAULT false,
    usage_before        jsonb,
    CHECK (runyard.run_is_sound(status, kind, finished_at, suspended_at, started_at, fence, lane_seq, admitted_at, completion_seq,
                               priority, multitask_strategy))
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05);
-- No index has a column that a claim, an append or the end of a run changes. If the page of the row has room for the new version, such an
-- update therefore writes no index. Values that these verbs change and other statements search are in the tables of 0006_live_runs.sql.
CREATE UNIQUE INDEX runs_id ON runyard.runs (tenant, thread_id, run_id) WHERE NOT deleted;
CREATE UNIQUE INDEX runs_key ON runyard.runs (thread_key, run_id);
CREATE INDEX runs_unadmitted ON runyard.runs (tenant, thread_id) WHERE lane_seq IS NULL;
-- The last condition is always true, and only the statements of runyard.admit have it. Postgres therefore uses this index for no other
-- statement. With this index, a search for the runs of one thread would read the delayed runs of all threads.
CREATE INDEX runs_due ON runyard.runs (coalesce(run_at, accepted_at)) WHERE lane_seq IS NULL AND accept_no > 0;
CREATE INDEX runs_waiting ON runyard.runs (thread_key, after_run_id) WHERE after_run_id IS NOT NULL;
CREATE INDEX runs_started_by ON runyard.runs (started_by_key, started_by_run_id) WHERE started_by_key IS NOT NULL;
-- The indexes of lists (runyard.list_runs).
CREATE INDEX runs_list ON runyard.runs (tenant, accepted_at, accept_no) WHERE NOT deleted AND emptied_at IS NULL AND accept_no > 0;
CREATE INDEX runs_list_of_agent ON runyard.runs (tenant, agent, accepted_at, accept_no)
    WHERE NOT deleted AND emptied_at IS NULL AND agent IS NOT NULL AND accept_no > -1;
CREATE INDEX runs_list_of_thread ON runyard.runs (thread_key, accepted_at, accept_no) WHERE NOT deleted AND emptied_at IS NULL AND accept_no > 0;
CREATE INDEX runs_list_hosted ON runyard.runs (tenant, thread_id, accepted_at, accept_no)
    WHERE NOT deleted AND emptied_at IS NULL AND thread_key IS NULL AND accept_no > -1;

-- The places of messages that were appended under the id of a run that was never claimed.
CREATE TABLE runyard.unclaimed (
    thread_key      bigint NOT NULL,
    run_id          text NOT NULL,
    branch_id       bigint NOT NULL,
    first_seq       bigint NOT NULL,
    last_seq        bigint NOT NULL,
    last_message_id uuid NOT NULL,
    has_tools       boolean NOT NULL,
    PRIMARY KEY (thread_key, run_id)
);

-- Attempts that did not complete their run. The row of the run has the last attempt.
CREATE TABLE runyard.attempts (
    accept_no   bigint NOT NULL,
    fence       bigint NOT NULL,
    worker_id   text,
    started_at  runyard.moment,
    ended_at    runyard.moment NOT NULL DEFAULT now(),
    outcome     text NOT NULL,
    error       jsonb,
    PRIMARY KEY (accept_no, fence)
);

-- The steps of runs. done: true if the step is finished. fence: of the attempt that began or finished the step.
CREATE TABLE runyard.steps (
    accept_no bigint NOT NULL,
    step_key  text NOT NULL,
    done      boolean NOT NULL DEFAULT false,
    fence     bigint NOT NULL,
    result    bytea,
    PRIMARY KEY (accept_no, step_key)
);

-- HITL requests.
-- body: msgpack of payload, answer_schema and on_deadline.
-- otherwise: the answer that is stored at the deadline. With NULL, the run fails at the deadline.
-- closed_at: the time at which the run ended without an answer to the request.
-- answered_by: the author of the answer, as the API authenticated them. on_behalf_of: the person for whom the
-- author answers, as the author states it.
CREATE TABLE runyard.hitl_requests (
    tenant      text NOT NULL,
    request_id  text NOT NULL,
    thread_key  bigint NOT NULL,
    run_id      text,
    kind        text NOT NULL,
    body        bytea NOT NULL,
    deadline_at runyard.moment,
    otherwise   bytea,
    answer      bytea,
    response_id text,
    answered_by text,
    on_behalf_of text,
    answered_at runyard.moment,
    closed_at   runyard.moment,
    event_id    text,
    created_at  runyard.moment NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant, request_id)
) WITH (fillfactor = 90, autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05);
CREATE UNIQUE INDEX hitl_responses ON runyard.hitl_requests (thread_key, response_id) WHERE response_id IS NOT NULL;
CREATE INDEX hitl_run ON runyard.hitl_requests (thread_key, run_id);
CREATE INDEX hitl_deadlines ON runyard.hitl_requests (deadline_at) WHERE answered_at IS NULL AND closed_at IS NULL;
CREATE INDEX hitl_pending ON runyard.hitl_requests (tenant, created_at, request_id)
    WHERE answered_at IS NULL AND closed_at IS NULL;
CREATE INDEX hitl_list ON runyard.hitl_requests (tenant, created_at, request_id) WHERE created_at > '-infinity';
CREATE INDEX hitl_list_of_thread ON runyard.hitl_requests (thread_key, created_at, request_id) WHERE created_at > '-infinity';
CREATE INDEX hitl_list_pending_of_thread ON runyard.hitl_requests (thread_key, created_at, request_id)
    WHERE answered_at IS NULL AND closed_at IS NULL AND created_at >= '-infinity';

-- HITL requests as clients see them, with the ids of their threads and the agents of their runs.
CREATE VIEW runyard.requests AS
SELECT h.*, t.thread_id, r.agent FROM runyard.hitl_requests h JOIN runyard.threads t USING (tenant, thread_key)
LEFT JOIN runyard.runs r ON r.thread_key = h.thread_key AND r.run_id = h.run_id
WHERE t.deleted_at IS NULL;

-- The parameters of an accept, as one value.
CREATE TYPE runyard.request AS (
    thread_id text, run_id text, kind text, agent text, queue text, priority text,
    input bytea, input_id uuid, input_role text, input_calls text[], input_results text[],
    request_hash text, options jsonb, metadata jsonb, multitask_strategy text, parallel boolean,
    parent_id uuid, after_run_id text, fork jsonb, run_at timestamptz, delay double precision, app_version text, trace_context text,
    candidates bytea[], started_by_key bigint, started_by_run_id text
);

-- The result of one accept. n: the number of the request in its batch, from 1.
CREATE TYPE runyard.accepted AS (
    n integer, created boolean, status text, lane text, agent text, queue text, after_run_id text, run_at timestamptz,
    expires_at timestamptz, accepted_at timestamptz, admitted_at timestamptz, effects jsonb, refused jsonb
);

-- The result of one claim.
CREATE TYPE runyard.claimed AS (
    thread_key bigint, run_id text, outcome text, retry_in double precision, takeover boolean, leaf_id uuid, thread_extra jsonb,
    version_before text, effects jsonb, run runyard.runs
);

-- The last write of an attempt. first_event: the number of its first event.
CREATE TYPE runyard.attempt_write AS (
    thread_key bigint, run_id text, fence bigint, messages runyard.new_message[],
    extra jsonb, usage jsonb, result bytea, first_event integer
);

-- A HITL request to store. timeout: seconds until the deadline, if deadline_at is NULL.
CREATE TYPE runyard.new_request AS (
    request_id text, kind text, body bytea, deadline_at timestamptz, timeout double precision, otherwise bytea
);

-- The result of a verb that ends an attempt. refused: the error code if the attempt does not hold the run.
CREATE TYPE runyard.ended AS (thread_key bigint, run_id text, status text, event_id text, error jsonb, effects jsonb, refused text);
