-- The schema "runyard": every sequence, type and table, and the signature of every function, with the comments of migrations/
-- and functions/. Written by `make schema`. To read, not to edit or run: `runyard migrate` applies the files of those folders.

-- Times to which programs can add durations. Python's calendar ends with the year 9999, and a driver cannot read a row with a later time.
-- moment and small_count are domains, because Postgres parses the constraint of a table again for every statement.
CREATE DOMAIN runyard.moment AS timestamptz
    CONSTRAINT moment_check CHECK (((VALUE >= '1970-01-01 00:00:00+00'::timestamptz) AND (VALUE < '9100-01-01 00:00:00+00'::timestamptz)));

-- Counts that can grow. A count out of range would stop every statement that reads its row together with other rows.
CREATE DOMAIN runyard.small_count AS integer
    CONSTRAINT small_count_check CHECK (((VALUE >= 0) AND (VALUE < 1000000000)));

CREATE SEQUENCE runyard.branch_numbers;

CREATE SEQUENCE runyard.accept_numbers;

CREATE SEQUENCE runyard.lane_numbers;

CREATE SEQUENCE runyard.fences;

-- Threads. A deleted thread stays as long as a fork shows a part of it. fork_hash: the hash of the request that made the thread.
-- lane_floor: all runs of the lane '' whose lane_seq is at most this number have ended. Reads of the lane begin after this number, because
-- the index entries of ended runs stay as long as any transaction is older than the end of the run.
-- base_extra: the extra with which the thread began. extra_changed: true if the extra changed since the last completed run.
CREATE TABLE runyard.threads (
    thread_key bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    tenant text NOT NULL,
    thread_id text NOT NULL,
    parent_thread_id text,
    forked_after_run_id text,
    forked_at_seq bigint,
    fork_hash text,
    head_branch bigint NOT NULL,
    next_seq bigint DEFAULT 1 NOT NULL,
    next_completion_seq bigint DEFAULT 1 NOT NULL,
    lane_floor bigint DEFAULT 0 NOT NULL,
    agent text,
    title text,
    tags jsonb DEFAULT '{}' NOT NULL,
    base_extra jsonb DEFAULT '{}' NOT NULL,
    extra jsonb DEFAULT '{}' NOT NULL,
    extra_changed boolean DEFAULT false NOT NULL,
    config jsonb DEFAULT '{}' NOT NULL,
    usage jsonb DEFAULT '{}' NOT NULL,
    created_at runyard.moment DEFAULT now() NOT NULL,
    updated_at runyard.moment DEFAULT now() NOT NULL,
    deleted_at runyard.moment,
    CONSTRAINT threads_pkey PRIMARY KEY (thread_key)
)
WITH (fillfactor='70', autovacuum_vacuum_scale_factor='0.05', autovacuum_analyze_scale_factor='0.05');
CREATE UNIQUE INDEX threads_id ON runyard.threads (tenant, thread_id)
    WHERE (deleted_at IS NULL);
-- The indexes of lists (runyard.list_threads). Each has a condition that is always true and that only its list has. The condition keeps the
-- index out of the plans of verbs and of other lists. Without the condition, a plan for a small table could find a row by its tenant alone,
-- and this plan would stay in use as the table grows. The indexes of lists of runs and of requests have such conditions too.
CREATE INDEX threads_list ON runyard.threads (tenant, thread_key)
    WHERE ((deleted_at IS NULL) AND (thread_key > 0));
CREATE INDEX threads_list_of_agent ON runyard.threads (tenant, agent, thread_key)
    WHERE ((deleted_at IS NULL) AND (agent IS NOT NULL) AND (thread_key > -1));
CREATE INDEX threads_list_of_parent ON runyard.threads (tenant, parent_thread_id, thread_key)
    WHERE ((deleted_at IS NULL) AND (parent_thread_id IS NOT NULL) AND (thread_key > -1));
CREATE TRIGGER tagged AFTER INSERT ON runyard.threads FOR EACH ROW WHEN ((new.tags <> '{}')) EXECUTE FUNCTION runyard.note_tags();
CREATE TRIGGER tagged_anew AFTER UPDATE OF tags ON runyard.threads FOR EACH ROW WHEN ((old.tags <> new.tags)) EXECUTE FUNCTION runyard.note_tags();

-- The threads that have a tag, in the order of lists. An inverted index has no order, so that a page would cost as much as all threads with
-- the tag. term: runyard.tag_term of one name and value.
CREATE TABLE runyard.thread_tags (
    tenant text NOT NULL,
    term bytea NOT NULL,
    thread_key bigint NOT NULL,
    CONSTRAINT thread_tags_pkey PRIMARY KEY (tenant, term, thread_key)
);

-- The branches of a thread. leaf_id, leaf_seq: the last visible message of the branch, own or inherited. base_id: the message after which
-- the branch begins. high_water_seq: the highest message number that the branch's completed runs have as their last_seq or snapshot_tip.
CREATE TABLE runyard.branches (
    branch_id bigint DEFAULT nextval('runyard.branch_numbers') NOT NULL,
    thread_key bigint NOT NULL,
    lane text NOT NULL,
    base_id uuid,
    leaf_id uuid,
    leaf_seq bigint DEFAULT 0 NOT NULL,
    high_water_seq bigint DEFAULT 0 NOT NULL,
    CONSTRAINT branches_pkey PRIMARY KEY (branch_id)
)
WITH (fillfactor='70', autovacuum_vacuum_scale_factor='0.05', autovacuum_analyze_scale_factor='0.05');
CREATE INDEX branches_thread ON runyard.branches (thread_key);

-- The levels of a branch, one per ancestor. The branch inherits these messages of an ancestor up to high_water_seq: messages without a run,
-- messages of runs whose completion number is at most cutoff, and messages of the run open_run_id. This run need not be completed.
CREATE TABLE runyard.levels (
    branch_id bigint NOT NULL,
    ancestor_id bigint NOT NULL,
    high_water_seq bigint NOT NULL,
    cutoff bigint NOT NULL,
    open_run_id text,
    CONSTRAINT levels_pkey PRIMARY KEY (branch_id, ancestor_id)
);
CREATE INDEX levels_ancestor ON runyard.levels (ancestor_id);

-- The messages of a branch. payload: NULL for a message that the store wrote itself: results that close open tool calls, or the
-- tombstone of an erased message. note: the text of such a message. calls, results: the ids of its tool calls, and of the tool
-- calls of its results.
CREATE TABLE runyard.messages (
    branch_id bigint NOT NULL,
    seq bigint NOT NULL,
    message_id uuid NOT NULL,
    parent_id uuid,
    run_id text,
    role text NOT NULL,
    payload bytea,
    note text,
    calls text[],
    results text[],
    event_id text,
    created_at runyard.moment DEFAULT now() NOT NULL,
    CONSTRAINT messages_pkey PRIMARY KEY (branch_id, seq)
)
WITH (autovacuum_vacuum_insert_scale_factor='0.05', autovacuum_analyze_scale_factor='0.05');
CREATE INDEX messages_id ON runyard.messages (message_id, branch_id);
CREATE INDEX messages_tools ON runyard.messages (branch_id, seq)
    WHERE ((calls IS NOT NULL) OR (results IS NOT NULL));

-- The progress of the removal of deleted threads (runyard.remove_step). after_run: runs up to this id are removed, except those that forks
-- show. runs_hidden: true after all runs were removed or hidden. Then messages are removed, from the highest branch to the lowest.
-- below_branch: the messages of the branches from this number on are removed. after_seq: the messages of the next lower branch are removed
-- up to this number. For an erased thread, entries are first removed from the extra of the thread and then from the extra of its forks.
-- erased: the hashes (runyard.extra_hash) of these entries, as keys of an object. after_fork: 0 until the thread itself is done. Then the
-- forks up to this key are done. after_completion: in the next thread or fork, the runs up to this completion number are done.
CREATE TABLE runyard.removals (
    thread_key bigint NOT NULL,
    tenant text NOT NULL,
    thread_id text NOT NULL,
    erase boolean NOT NULL,
    erased jsonb,
    after_fork bigint DEFAULT 0 NOT NULL,
    after_completion bigint DEFAULT 0 NOT NULL,
    after_run text DEFAULT '' NOT NULL,
    runs_hidden boolean DEFAULT false NOT NULL,
    below_branch bigint DEFAULT 9223372036854775807 NOT NULL,
    after_seq bigint DEFAULT 0 NOT NULL,
    CONSTRAINT removals_pkey PRIMARY KEY (thread_key)
);
CREATE INDEX removals_id ON runyard.removals (tenant, thread_id)
    WHERE (NOT runs_hidden);

-- A level of a view: the part of one branch that is visible. The columns are those of runyard.levels.
CREATE TYPE runyard.level AS (
    branch_id bigint,
    high_water_seq bigint,
    cutoff bigint,
    open_run_id text
);

-- A message to store.
CREATE TYPE runyard.new_message AS (
    message_id uuid,
    role text,
    payload bytea,
    calls text[],
    results text[]
);

-- Return true if a run's status fits its other columns. The check is a function, because Postgres parses the expression of a constraint
-- again for every statement.
CREATE FUNCTION runyard.run_is_sound(status text, kind text, finished_at timestamptz, suspended_at timestamptz, started_at timestamptz, fence bigint, lane_seq bigint, admitted_at timestamptz, completion_seq bigint, priority text, multitask_strategy text) RETURNS boolean
    LANGUAGE plpgsql IMMUTABLE
    AS $$
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
    accept_no bigint DEFAULT nextval('runyard.accept_numbers') NOT NULL,
    tenant text NOT NULL,
    thread_id text NOT NULL,
    run_id text NOT NULL,
    thread_key bigint,
    kind text NOT NULL,
    status text NOT NULL,
    lane text,
    lane_seq bigint,
    agent text,
    queue text NOT NULL,
    priority text NOT NULL,
    input bytea,
    input_id uuid,
    input_role text,
    input_calls text[],
    input_results text[],
    request_hash text NOT NULL,
    options jsonb DEFAULT '{}' NOT NULL,
    metadata jsonb DEFAULT '{}' NOT NULL,
    multitask_strategy text DEFAULT 'enqueue' NOT NULL,
    parallel boolean DEFAULT false NOT NULL,
    parent_id uuid,
    after_run_id text,
    fork jsonb,
    candidates bytea[],
    started_by_key bigint,
    started_by_run_id text,
    until_fewer integer,
    run_at runyard.moment,
    expires_at runyard.moment,
    not_before runyard.moment,
    branch_id bigint,
    base_id uuid,
    snapshot_tip bigint,
    snapshot_cutoff bigint,
    first_seq bigint,
    last_seq bigint,
    last_message_id uuid,
    has_tools boolean DEFAULT false NOT NULL,
    queued_fence bigint DEFAULT nextval('runyard.fences') NOT NULL,
    fence bigint,
    worker_id text,
    attempt runyard.small_count DEFAULT 0 NOT NULL,
    error_count runyard.small_count DEFAULT 0 NOT NULL,
    crash_count runyard.small_count DEFAULT 0 NOT NULL,
    progressed boolean DEFAULT false NOT NULL,
    isolated boolean DEFAULT false NOT NULL,
    cancel_requested_at runyard.moment,
    cancel_keep boolean DEFAULT false NOT NULL,
    abort_words text,
    completion_seq bigint,
    high_water_seq bigint,
    extra jsonb,
    usage jsonb,
    result bytea,
    error jsonb,
    event_id text,
    app_version text,
    trace_context text,
    accepted_at runyard.moment DEFAULT now() NOT NULL,
    admitted_at runyard.moment,
    started_at runyard.moment,
    suspended_at runyard.moment,
    finished_at runyard.moment,
    changed_at runyard.moment DEFAULT now() NOT NULL,
    waits_for_permit text,
    place_in_line bigint,
    emptied_at runyard.moment,
    deleted boolean DEFAULT false NOT NULL,
    usage_before jsonb,
    waiting_for text,
    CONSTRAINT runs_check CHECK (runyard.run_is_sound(status, kind, (finished_at)::timestamptz, (suspended_at)::timestamptz, (started_at)::timestamptz, fence, lane_seq, (admitted_at)::timestamptz, completion_seq, priority, multitask_strategy)),
    CONSTRAINT runs_pkey PRIMARY KEY (accept_no)
)
WITH (fillfactor='70', autovacuum_vacuum_scale_factor='0.05', autovacuum_analyze_scale_factor='0.05');
-- No index has a column that a claim, an append or the end of a run changes. If the page of the row has room for the new version, such an
-- update therefore writes no index. Values that these verbs change and other statements search are in the tables of 0006_live_runs.sql.
CREATE UNIQUE INDEX runs_id ON runyard.runs (tenant, thread_id, run_id)
    WHERE (NOT deleted);
CREATE UNIQUE INDEX runs_key ON runyard.runs (thread_key, run_id);
CREATE INDEX runs_unadmitted ON runyard.runs (tenant, thread_id)
    WHERE (lane_seq IS NULL);
-- The last condition is always true, and only the statements of runyard.admit have it. Postgres therefore uses this index for no other
-- statement. With this index, a search for the runs of one thread would read the delayed runs of all threads.
CREATE INDEX runs_due ON runyard.runs (COALESCE(run_at, accepted_at))
    WHERE ((lane_seq IS NULL) AND (accept_no > 0));
CREATE INDEX runs_waiting ON runyard.runs (thread_key, after_run_id)
    WHERE (after_run_id IS NOT NULL);
CREATE INDEX runs_started_by ON runyard.runs (started_by_key, started_by_run_id)
    WHERE (started_by_key IS NOT NULL);
-- The indexes of lists (runyard.list_runs).
CREATE INDEX runs_list ON runyard.runs (tenant, accepted_at, accept_no)
    WHERE ((NOT deleted) AND (emptied_at IS NULL) AND (accept_no > 0));
CREATE INDEX runs_list_of_agent ON runyard.runs (tenant, agent, accepted_at, accept_no)
    WHERE ((NOT deleted) AND (emptied_at IS NULL) AND (agent IS NOT NULL) AND (accept_no > -1));
CREATE INDEX runs_list_of_thread ON runyard.runs (thread_key, accepted_at, accept_no)
    WHERE ((NOT deleted) AND (emptied_at IS NULL) AND (accept_no > 0));
CREATE INDEX runs_list_hosted ON runyard.runs (tenant, thread_id, accepted_at, accept_no)
    WHERE ((NOT deleted) AND (emptied_at IS NULL) AND (thread_key IS NULL) AND (accept_no > -1));
CREATE TRIGGER runs_accepted AFTER INSERT ON runyard.runs REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION runyard.follow_accepts();
-- No verb inserts a run that has ended. A program that copies runs may.
CREATE TRIGGER ended_run_inserted AFTER INSERT ON runyard.runs FOR EACH ROW WHEN ((new.finished_at IS NOT NULL)) EXECUTE FUNCTION runyard.follow_run();
-- The last two conditions exclude claims and ends of runs, which are too frequent for a trigger of each row. The functions that claim or
-- end runs write these tables themselves.
CREATE TRIGGER run_changed AFTER UPDATE OF changed_at, status, worker_id, lane_seq, thread_key, waits_for_permit ON runyard.runs FOR EACH ROW WHEN (((NOT (new.fence IS DISTINCT FROM old.fence)) AND (new.finished_at IS NULL))) EXECUTE FUNCTION runyard.follow_run();
CREATE TRIGGER runs_deleted AFTER DELETE ON runyard.runs REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION runyard.forget_runs();
-- The index of the search of a run by the beginning of its id (runyard.find_runs). Only this search has the last condition.
CREATE INDEX runs_search ON runyard.runs (tenant, run_id COLLATE "C", accept_no)
    WHERE ((NOT deleted) AND (emptied_at IS NULL) AND ((run_id COLLATE "C") > ''));
CREATE TRIGGER ended_run_emptied AFTER UPDATE OF deleted, emptied_at ON runyard.runs FOR EACH ROW WHEN ((new.status = ANY (ARRAY['failed', 'dead', 'cancelled']))) EXECUTE FUNCTION runyard.follow_run();

-- The places of messages that were appended under the id of a run that was never claimed.
CREATE TABLE runyard.unclaimed (
    thread_key bigint NOT NULL,
    run_id text NOT NULL,
    branch_id bigint NOT NULL,
    first_seq bigint NOT NULL,
    last_seq bigint NOT NULL,
    last_message_id uuid NOT NULL,
    has_tools boolean NOT NULL,
    CONSTRAINT unclaimed_pkey PRIMARY KEY (thread_key, run_id)
);

-- Attempts that did not complete their run. The row of the run has the last attempt.
CREATE TABLE runyard.attempts (
    accept_no bigint NOT NULL,
    fence bigint NOT NULL,
    worker_id text,
    started_at runyard.moment,
    ended_at runyard.moment DEFAULT now() NOT NULL,
    outcome text NOT NULL,
    error jsonb,
    CONSTRAINT attempts_pkey PRIMARY KEY (accept_no, fence)
);

-- The steps of runs. done: true if the step is finished. fence: of the attempt that began or finished the step.
CREATE TABLE runyard.steps (
    accept_no bigint NOT NULL,
    step_key text NOT NULL,
    done boolean DEFAULT false NOT NULL,
    fence bigint NOT NULL,
    result bytea,
    started_at timestamptz DEFAULT now(),
    ended_at timestamptz,
    outcome text,
    usage jsonb,
    input text,
    CONSTRAINT steps_pkey PRIMARY KEY (accept_no, step_key)
);

-- HITL requests.
-- body: msgpack of payload, answer_schema and on_deadline.
-- otherwise: the answer that is stored at the deadline. With NULL, the run fails at the deadline.
-- closed_at: the time at which the run ended without an answer to the request.
-- answered_by: the author of the answer, as the API authenticated them. on_behalf_of: the person for whom the
-- author answers, as the author states it.
CREATE TABLE runyard.hitl_requests (
    tenant text NOT NULL,
    request_id text NOT NULL,
    thread_key bigint NOT NULL,
    run_id text,
    kind text NOT NULL,
    body bytea NOT NULL,
    deadline_at runyard.moment,
    otherwise bytea,
    answer bytea,
    response_id text,
    answered_by text,
    on_behalf_of text,
    answered_at runyard.moment,
    closed_at runyard.moment,
    event_id text,
    created_at runyard.moment DEFAULT now() NOT NULL,
    received_by bigint,
    CONSTRAINT hitl_requests_pkey PRIMARY KEY (tenant, request_id)
)
WITH (fillfactor='90', autovacuum_vacuum_scale_factor='0.05', autovacuum_analyze_scale_factor='0.05');
CREATE UNIQUE INDEX hitl_responses ON runyard.hitl_requests (thread_key, response_id)
    WHERE (response_id IS NOT NULL);
CREATE INDEX hitl_run ON runyard.hitl_requests (thread_key, run_id);
CREATE INDEX hitl_deadlines ON runyard.hitl_requests (deadline_at)
    WHERE ((answered_at IS NULL) AND (closed_at IS NULL) AND ((deadline_at)::timestamptz > '-infinity'::timestamptz));
CREATE INDEX hitl_pending ON runyard.hitl_requests (tenant, created_at, request_id)
    WHERE ((answered_at IS NULL) AND (closed_at IS NULL) AND ((created_at)::timestamptz < 'infinity'::timestamptz));
CREATE INDEX hitl_list ON runyard.hitl_requests (tenant, created_at, request_id)
    WHERE ((created_at)::timestamptz > '-infinity'::timestamptz);
CREATE INDEX hitl_list_of_thread ON runyard.hitl_requests (thread_key, created_at, request_id)
    WHERE ((created_at)::timestamptz > '-infinity'::timestamptz);
CREATE INDEX hitl_pending_of_thread ON runyard.hitl_requests (thread_key, created_at, request_id)
    WHERE ((answered_at IS NULL) AND (closed_at IS NULL) AND ((created_at)::timestamptz >= '-infinity'::timestamptz));

-- HITL requests as clients see them, with the ids of their threads and the agents of their runs.
CREATE VIEW runyard.requests AS
 SELECT h.tenant,
    h.request_id,
    h.thread_key,
    h.run_id,
    h.kind,
    h.body,
    h.deadline_at,
    h.otherwise,
    h.answer,
    h.response_id,
    h.answered_by,
    h.on_behalf_of,
    h.answered_at,
    h.closed_at,
    h.event_id,
    h.created_at,
    t.thread_id,
    r.agent
   FROM ((runyard.hitl_requests h
     JOIN runyard.threads t USING (tenant, thread_key))
     LEFT JOIN runyard.runs r ON (((r.thread_key = h.thread_key) AND (r.run_id = h.run_id))))
  WHERE (COALESCE((t.deleted_at)::timestamptz, 'infinity'::timestamptz) = 'infinity'::timestamptz);

-- The parameters of an accept, as one value.
CREATE TYPE runyard.request AS (
    thread_id text,
    run_id text,
    kind text,
    agent text,
    queue text,
    priority text,
    input bytea,
    input_id uuid,
    input_role text,
    input_calls text[],
    input_results text[],
    request_hash text,
    options jsonb,
    metadata jsonb,
    multitask_strategy text,
    parallel boolean,
    parent_id uuid,
    after_run_id text,
    fork jsonb,
    run_at timestamptz,
    delay double precision,
    app_version text,
    trace_context text,
    candidates bytea[],
    started_by_key bigint,
    started_by_run_id text
);

-- The result of one accept. n: the number of the request in its batch, from 1.
CREATE TYPE runyard.accepted AS (
    n integer,
    created boolean,
    status text,
    lane text,
    agent text,
    queue text,
    after_run_id text,
    run_at timestamptz,
    expires_at timestamptz,
    accepted_at timestamptz,
    admitted_at timestamptz,
    effects jsonb,
    refused jsonb
);

-- The result of one claim.
CREATE TYPE runyard.claimed AS (
    thread_key bigint,
    run_id text,
    outcome text,
    retry_in double precision,
    takeover boolean,
    leaf_id uuid,
    thread_extra jsonb,
    version_before text,
    effects jsonb,
    run runyard.runs
);

-- The last write of an attempt. first_event: the number of its first event.
CREATE TYPE runyard.attempt_write AS (
    thread_key bigint,
    run_id text,
    fence bigint,
    messages runyard.new_message[],
    extra jsonb,
    usage jsonb,
    result bytea,
    first_event integer
);

-- A HITL request to store. timeout: seconds until the deadline, if deadline_at is NULL.
CREATE TYPE runyard.new_request AS (
    request_id text,
    kind text,
    body bytea,
    deadline_at timestamptz,
    timeout double precision,
    otherwise bytea
);

-- The result of a verb that ends an attempt. refused: the error code if the attempt does not hold the run.
CREATE TYPE runyard.ended AS (
    thread_key bigint,
    run_id text,
    status text,
    event_id text,
    error jsonb,
    effects jsonb,
    refused text
);

-- The register of workers. dead_at: the time at which another worker declared this worker dead.
CREATE TABLE runyard.workers (
    worker_id text NOT NULL,
    queues text[] NOT NULL,
    agents jsonb DEFAULT '{}' NOT NULL,
    app_version text,
    on_version_mismatch text DEFAULT 'run' NOT NULL,
    slots integer DEFAULT 0 NOT NULL,
    address text,
    draining boolean DEFAULT false NOT NULL,
    started_at timestamptz DEFAULT now() NOT NULL,
    heartbeat_at timestamptz DEFAULT clock_timestamp() NOT NULL,
    dead_at timestamptz,
    blocked_since timestamptz,
    blocked_at text,
    blocked_stack text,
    redis_lost_at timestamptz,
    redis_error text,
    default_agent text,
    budgets jsonb,
    CONSTRAINT workers_pkey PRIMARY KEY (worker_id)
)
WITH (fillfactor='50', autovacuum_vacuum_threshold='1000');
CREATE TRIGGER live_workers_changed AFTER INSERT OR DELETE OR UPDATE OF dead_at ON runyard.workers FOR EACH ROW EXECUTE FUNCTION runyard.choose_default_agent();

-- Queues whose runs no worker claims.
CREATE TABLE runyard.paused_queues (
    queue text NOT NULL,
    paused_at timestamptz DEFAULT now() NOT NULL,
    CONSTRAINT paused_queues_pkey PRIMARY KEY (queue)
);

-- Agents that workers have registered. queue: the queue of the agent. asks: true if the agent may ask humans.
CREATE TABLE runyard.agents (
    agent text NOT NULL,
    queue text NOT NULL,
    asks boolean DEFAULT false NOT NULL,
    app_version text,
    updated_at timestamptz DEFAULT now() NOT NULL,
    CONSTRAINT agents_pkey PRIMARY KEY (agent)
);

-- Leases. One worker at a time holds a lease.
CREATE TABLE runyard.leases (
    name text NOT NULL,
    holder text NOT NULL,
    expires_at timestamptz NOT NULL,
    CONSTRAINT leases_pkey PRIMARY KEY (name)
);

-- Limits that are set. subject: the tenant or agent to which a limit applies. With NULL, the limit applies to each tenant or
-- agent that has no limit of its own, or to the whole deployment.
CREATE TABLE runyard.limits (
    limit_name text NOT NULL,
    subject text,
    most bigint NOT NULL,
    CONSTRAINT limits_limit_name_subject_key UNIQUE NULLS NOT DISTINCT (limit_name, subject)
);

-- The turns of tenants in the line for a permit (runyard.permits_of). A lower turn is served first. A tenant without a run in the
-- line may have a row. Rows are changed under the lock of the permit only.
CREATE TABLE runyard.permit_turns (
    permit text NOT NULL,
    tenant text NOT NULL,
    turn bigint DEFAULT nextval('runyard.lane_numbers') NOT NULL,
    CONSTRAINT permit_turns_pkey PRIMARY KEY (permit, tenant)
)
WITH (fillfactor='50');
CREATE INDEX permit_turns_order ON runyard.permit_turns (permit, turn);

-- The measured numbers of queued runs. name: "all" or "tenant …". queued: the number at the measurement. newest: the highest
-- accept_no that the measurement covers.
CREATE TABLE runyard.queue_sizes (
    name text NOT NULL,
    queued bigint NOT NULL,
    newest bigint NOT NULL,
    measured_at timestamptz DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT queue_sizes_pkey PRIMARY KEY (name)
);

-- The types of entries: runyard.models.FeedType. feed_type is a domain, because Postgres parses the constraint of a table again for every
-- statement.
CREATE DOMAIN runyard.feed_type AS text
    CONSTRAINT feed_type_check CHECK ((VALUE = ANY (ARRAY['run.completed', 'run.failed', 'run.cancelled', 'run.dead', 'run.suspended', 'message.stored', 'thread.forked', 'thread.deleted'])));

-- The feed. Readers read it in the order of (transaction, position). They read only entries of transactions that are older than
-- the oldest open transaction.
-- agent: the agent of an ended run that had an attempt.
-- usage: the usage of an ended run since its last redrive.
-- redriven: true if the run had ended before.
-- created_at: a time after the transaction got its number.
CREATE TABLE runyard.outbox (
    tenant text NOT NULL,
    transaction xid8 DEFAULT pg_current_xact_id() NOT NULL,
    "position" bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    thread_key bigint,
    thread_id text NOT NULL,
    run_id text,
    type runyard.feed_type NOT NULL,
    created_at runyard.moment DEFAULT clock_timestamp() NOT NULL,
    agent text,
    usage jsonb,
    redriven boolean DEFAULT false NOT NULL,
    CONSTRAINT outbox_pkey PRIMARY KEY (tenant, transaction, "position")
)
WITH (autovacuum_vacuum_scale_factor='0.02', autovacuum_vacuum_insert_scale_factor='0.1', autovacuum_analyze_scale_factor='0.05');

-- The last entry that was pruned from a tenant's feed.
CREATE TABLE runyard.pruned (
    tenant text NOT NULL,
    transaction xid8 NOT NULL,
    "position" bigint NOT NULL,
    CONSTRAINT pruned_pkey PRIMARY KEY (tenant)
);

-- The tenant with which the next pruning of the outbox begins, in one row.
CREATE TABLE runyard.prune_place (
    one boolean DEFAULT true NOT NULL,
    tenant text NOT NULL,
    CONSTRAINT prune_place_one_check CHECK (one),
    CONSTRAINT prune_place_pkey PRIMARY KEY (one)
)
WITH (fillfactor='50');

-- The usage of the runs of a tenant that ended on a day (UTC), counted from the outbox. A row has the runs of one agent. The row
-- with agent '' has all runs.
CREATE TABLE runyard.usage_days (
    tenant text NOT NULL,
    agent text NOT NULL,
    day date NOT NULL,
    runs bigint NOT NULL,
    requests numeric NOT NULL,
    input_tokens numeric NOT NULL,
    output_tokens numeric NOT NULL,
    cost numeric NOT NULL,
    seconds numeric NOT NULL,
    CONSTRAINT usage_days_pkey PRIMARY KEY (tenant, agent, day)
)
WITH (fillfactor='70');

-- The progress of counting the outbox, in one row.
-- counted: all entries of transactions before this one were counted. All entries older than counted_until are among them.
-- goal: the current round counts the entries of transactions before this one, tenant by tenant. They include all entries older
-- than goal_at.
-- tenant, transaction, position: the last entry that the current round counted.
CREATE TABLE runyard.usage_counter (
    one boolean DEFAULT true NOT NULL,
    counted xid8 DEFAULT '0'::xid8 NOT NULL,
    counted_until timestamptz,
    goal xid8 NOT NULL,
    goal_at timestamptz NOT NULL,
    tenant text DEFAULT '' NOT NULL,
    transaction xid8 DEFAULT '0'::xid8 NOT NULL,
    "position" bigint DEFAULT 0 NOT NULL,
    CONSTRAINT usage_counter_one_check CHECK (one),
    CONSTRAINT usage_counter_pkey PRIMARY KEY (one)
)
WITH (fillfactor='50');

-- Subscriptions to the feed.
-- tenant: NULL for a subscription to the feeds of all tenants.
-- version: the version of the secret that signs. The secret is derived and not stored.
-- both_until: the time until which the version before it also signs.
-- rotation_id: the id of the rotation that made the version. A repetition of the rotation has the same id.
-- since: the snapshot at which the webhook was made. Entries that were committed before it get no delivery.
-- cursor: the entries of transactions before this one were made into deliveries.
-- disabled_at: the time at which the receiver replied that it does not exist any more.
CREATE TABLE runyard.webhooks (
    webhook_id text NOT NULL,
    tenant text,
    url text NOT NULL,
    events runyard.feed_type[] NOT NULL,
    version integer DEFAULT 1 NOT NULL,
    both_until runyard.moment,
    rotation_id text,
    since pg_snapshot DEFAULT pg_current_snapshot() NOT NULL,
    cursor xid8 DEFAULT pg_snapshot_xmin(pg_current_snapshot()) NOT NULL,
    created_at runyard.moment DEFAULT now() NOT NULL,
    disabled_at runyard.moment,
    CONSTRAINT webhooks_pkey PRIMARY KEY (webhook_id)
);
CREATE INDEX webhooks_of_tenant ON runyard.webhooks (tenant, created_at, webhook_id);

-- The versions of the secrets that sign for the URLs of a tenant's runs. A tenant without a row has version 1.
CREATE TABLE runyard.webhook_keys (
    tenant text NOT NULL,
    version integer NOT NULL,
    both_until timestamptz,
    rotation_id text,
    CONSTRAINT webhook_keys_pkey PRIMARY KEY (tenant)
);

-- Deliveries of feed entries to URLs. webhook_id: NULL for a delivery to the URL of a run. next_at: the time of the next try;
-- NULL after the delivery arrived or failed.
CREATE TABLE runyard.webhook_deliveries (
    delivery_no bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    delivery_id text DEFAULT ('msg_' || replace((gen_random_uuid()), '-', '')) NOT NULL,
    tenant text NOT NULL,
    webhook_id text,
    url text NOT NULL,
    endpoint text GENERATED ALWAYS AS (lower("substring"(url, '^[^:]+://[^/?#]+'))) STORED,
    type runyard.feed_type NOT NULL,
    thread_id text NOT NULL,
    run_id text,
    created_at runyard.moment DEFAULT now() NOT NULL,
    tries runyard.small_count DEFAULT 0 NOT NULL,
    next_at runyard.moment DEFAULT now(),
    delivered_at runyard.moment,
    failed_at runyard.moment,
    http_status integer,
    error text,
    owner text,
    CONSTRAINT webhook_deliveries_check CHECK (((next_at IS NULL) = ((delivered_at IS NOT NULL) OR (failed_at IS NOT NULL)))),
    CONSTRAINT webhook_deliveries_delivery_id_key UNIQUE (delivery_id),
    CONSTRAINT webhook_deliveries_pkey PRIMARY KEY (delivery_no)
)
WITH (autovacuum_vacuum_scale_factor='0.02', autovacuum_analyze_scale_factor='0.05');
CREATE INDEX webhook_deliveries_due ON runyard.webhook_deliveries (endpoint, next_at, delivery_no)
    WHERE (next_at IS NOT NULL);
CREATE INDEX webhook_deliveries_oldest ON runyard.webhook_deliveries (created_at)
    WHERE (next_at IS NOT NULL);
CREATE INDEX webhook_deliveries_over ON runyard.webhook_deliveries (COALESCE(delivered_at, failed_at))
    WHERE (next_at IS NULL);
CREATE TRIGGER delivery_of_webhook BEFORE INSERT ON runyard.webhook_deliveries FOR EACH ROW WHEN (((new.webhook_id IS NOT NULL) AND (new.owner IS NULL))) EXECUTE FUNCTION runyard.choose_delivery_owner();
CREATE INDEX webhook_deliveries_of_owner ON runyard.webhook_deliveries (COALESCE(owner, tenant), delivery_no);
CREATE INDEX webhook_deliveries_owner_failed ON runyard.webhook_deliveries (COALESCE(owner, tenant), delivery_no)
    WHERE (failed_at IS NOT NULL);
CREATE INDEX webhook_deliveries_owner_delivered ON runyard.webhook_deliveries (COALESCE(owner, tenant), delivery_no)
    WHERE (delivered_at IS NOT NULL);
CREATE INDEX webhook_deliveries_owner_pending ON runyard.webhook_deliveries (COALESCE(owner, tenant), delivery_no)
    WHERE (next_at IS NOT NULL);

-- Keys of the HTTP API. digest: SHA-256 of the secret.
CREATE TABLE runyard.api_keys (
    key_id text NOT NULL,
    tenant text NOT NULL,
    name text NOT NULL,
    scopes text[] NOT NULL,
    digest bytea NOT NULL,
    created_at timestamptz DEFAULT clock_timestamp() NOT NULL,
    expires_at timestamptz,
    revoked_at timestamptz,
    CONSTRAINT api_keys_scopes_check CHECK (((scopes <@ ARRAY['read', 'write', 'respond', 'metrics', 'admin']) AND (scopes <> '{}'[]))),
    CONSTRAINT api_keys_pkey PRIMARY KEY (key_id)
);
CREATE INDEX api_keys_tenant ON runyard.api_keys (tenant, created_at);

-- The live runs: a row for each run that has not ended, with the columns by which live runs are searched.
-- expires_at: NULL for a run without an expiry, and after the first attempt began.
-- waits_since: the time from which a queued run waits for its lane or for a worker; NULL for a job that waits for runs that it started.
CREATE TABLE runyard.live_runs (
    accept_no bigint NOT NULL,
    tenant text NOT NULL,
    thread_id text NOT NULL,
    run_id text NOT NULL,
    thread_key bigint,
    lane text,
    lane_seq bigint,
    queue text NOT NULL,
    agent text,
    status text NOT NULL,
    worker_id text,
    waits_for_permit text,
    place_in_line bigint,
    expires_at timestamptz,
    accepted_at timestamptz NOT NULL,
    changed_at timestamptz NOT NULL,
    waits_since timestamptz,
    waiting_for text,
    chained_fence bigint,
    CONSTRAINT live_runs_pkey PRIMARY KEY (accept_no)
)
WITH (fillfactor='90', autovacuum_vacuum_scale_factor='0.01', autovacuum_vacuum_threshold='1000', autovacuum_vacuum_cost_delay='0', autovacuum_analyze_scale_factor='0.02');
CREATE UNIQUE INDEX live_runs_lane ON runyard.live_runs (thread_key, lane, lane_seq);
CREATE UNIQUE INDEX live_runs_active ON runyard.live_runs (thread_key, lane)
    WHERE (status = ANY (ARRAY['running', 'suspended']));
CREATE INDEX live_runs_expiring ON runyard.live_runs (expires_at)
    WHERE (expires_at IS NOT NULL);
CREATE INDEX live_runs_worker ON runyard.live_runs (worker_id)
    WHERE (worker_id IS NOT NULL);
CREATE INDEX live_runs_of_agent ON runyard.live_runs (agent)
    WHERE (worker_id IS NOT NULL);
CREATE INDEX live_runs_of_tenant ON runyard.live_runs (tenant, status, accepted_at, accept_no)
    WHERE (status <> 'queued');
CREATE INDEX live_runs_suspended ON runyard.live_runs (queue, waiting_for)
    WHERE (status = 'suspended');
CREATE INDEX live_runs_queued ON runyard.live_runs (tenant, accept_no)
    WHERE (status = 'queued');
CREATE INDEX live_runs_waiting_since ON runyard.live_runs (changed_at, accept_no)
    WHERE ((status = 'queued') AND (lane_seq IS NOT NULL) AND (waits_for_permit IS NULL));
CREATE INDEX live_runs_line ON runyard.live_runs (waits_for_permit, tenant, place_in_line)
    WHERE (waits_for_permit IS NOT NULL);

-- The runs that have a completion number. with_extra: true if the run has an extra.
CREATE TABLE runyard.completions (
    branch_id bigint NOT NULL,
    completion_seq bigint NOT NULL,
    thread_key bigint NOT NULL,
    accept_no bigint NOT NULL,
    with_extra boolean NOT NULL,
    CONSTRAINT completions_pkey PRIMARY KEY (branch_id, completion_seq)
);
CREATE INDEX completions_with_extra ON runyard.completions (thread_key, completion_seq)
    WHERE with_extra;

-- The runs that failed, died or were cancelled, and were not deleted.
CREATE TABLE runyard.unsuccessful_runs (
    accept_no bigint NOT NULL,
    tenant text NOT NULL,
    thread_key bigint,
    status text NOT NULL,
    accepted_at timestamptz NOT NULL,
    CONSTRAINT unsuccessful_runs_pkey PRIMARY KEY (accept_no)
);
CREATE INDEX unsuccessful_runs_list ON runyard.unsuccessful_runs (tenant, status, accepted_at, accept_no);
CREATE INDEX unsuccessful_runs_of_thread ON runyard.unsuccessful_runs (thread_key);

-- The ended fork jobs whose results are kept for a time.
CREATE TABLE runyard.fork_results (
    accept_no bigint NOT NULL,
    finished_at timestamptz NOT NULL,
    CONSTRAINT fork_results_pkey PRIMARY KEY (accept_no)
);
CREATE INDEX fork_results_by_age ON runyard.fork_results (finished_at);

-- Labels of branches. A thread has a bounded number of labels (runyard.set_label).
CREATE TABLE runyard.labels (
    thread_key bigint NOT NULL,
    label text NOT NULL,
    branch_id bigint NOT NULL,
    CONSTRAINT labels_pkey PRIMARY KEY (thread_key, label)
);

-- Lines of checkpoints. owner_key: the thread whose runs write the line, or 0 for a line that a checkpoint saver uses by itself. graph_id:
-- the saver's thread id, or the name that the first run of the line gave it. NULL marks a deleted line, which stays because copies show a
-- part of it. next_position: each write has a position, and a copy continues the positions of its source. shown_to: the highest position
-- that a copy or a mark shows; rows up to it are never replaced. holder: the last run that began or continued the line. holder_start: the
-- position at which this run began. holder_base: the last message that the state at that position contains.
CREATE TABLE runyard.graph_lines (
    line_id bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    tenant text NOT NULL,
    owner_key bigint NOT NULL,
    graph_id text COLLATE pg_catalog."C",
    next_position bigint DEFAULT 1 NOT NULL,
    shown_to bigint DEFAULT 0 NOT NULL,
    holder text,
    holder_start bigint DEFAULT 0 NOT NULL,
    holder_base uuid,
    CONSTRAINT graph_lines_pkey PRIMARY KEY (line_id)
)
WITH (fillfactor='70', autovacuum_vacuum_scale_factor='0.05', autovacuum_analyze_scale_factor='0.05');
CREATE UNIQUE INDEX graph_lines_id ON runyard.graph_lines (tenant, owner_key, graph_id)
    WHERE (graph_id IS NOT NULL);
CREATE INDEX graph_lines_owner ON runyard.graph_lines (owner_key, holder)
    WHERE (owner_key > 0);

-- The levels of a line, one per ancestor: the line shows the rows of the ancestor up to this position.
CREATE TABLE runyard.graph_levels (
    line_id bigint NOT NULL,
    ancestor_id bigint NOT NULL,
    "position" bigint NOT NULL,
    CONSTRAINT graph_levels_pkey PRIMARY KEY (line_id, ancestor_id)
);
CREATE INDEX graph_levels_ancestor ON runyard.graph_levels (ancestor_id, "position");

-- Checkpoints. content: the checkpoint without the values of its channels, as the saver encoded it. value_ids: the values of its
-- channels. details: its metadata. Of several rows with one id, readers take the one with the highest visible position.
CREATE TABLE runyard.graph_checkpoints (
    line_id bigint NOT NULL,
    namespace text NOT NULL COLLATE pg_catalog."C",
    checkpoint_id text NOT NULL COLLATE pg_catalog."C",
    "position" bigint NOT NULL,
    parent_id text,
    kind text NOT NULL,
    content bytea NOT NULL,
    details jsonb NOT NULL,
    value_ids bigint[] NOT NULL,
    CONSTRAINT graph_checkpoints_pkey PRIMARY KEY (line_id, namespace, checkpoint_id, "position")
)
WITH (autovacuum_vacuum_insert_scale_factor='0.05', autovacuum_analyze_scale_factor='0.05');
CREATE INDEX graph_checkpoints_run ON runyard.graph_checkpoints (((details ->> 'run_id')))
    WHERE (details ? 'run_id');

-- Values of channels. kind: NULL if the channel is empty. Either data or segments is set. segments: the parts of a list, in order, as
-- triples of a stream, the number of the first item, and the number after the last item.
CREATE TABLE runyard.graph_values (
    value_id bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    line_id bigint NOT NULL,
    namespace text NOT NULL COLLATE pg_catalog."C",
    channel text NOT NULL,
    version text NOT NULL,
    "position" bigint NOT NULL,
    kind text,
    data bytea,
    segments bigint[],
    CONSTRAINT graph_values_pkey PRIMARY KEY (value_id)
)
WITH (autovacuum_vacuum_insert_scale_factor='0.05', autovacuum_analyze_scale_factor='0.05');
CREATE INDEX graph_values_version ON runyard.graph_values (line_id, namespace, channel, version);

-- Streams: items of lists that are only appended. Only the line that made a stream appends to it. length: its number of items.
CREATE TABLE runyard.graph_streams (
    stream_id bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    line_id bigint NOT NULL,
    length bigint DEFAULT 0 NOT NULL,
    CONSTRAINT graph_streams_pkey PRIMARY KEY (stream_id)
)
WITH (fillfactor='70', autovacuum_vacuum_scale_factor='0.05');
CREATE INDEX graph_streams_line ON runyard.graph_streams (line_id);

-- Chunks of streams. first: the number of the chunk's first item. position: the position of the write in the line.
CREATE TABLE runyard.graph_chunks (
    stream_id bigint NOT NULL,
    first bigint NOT NULL,
    count integer NOT NULL,
    "position" bigint NOT NULL,
    items bytea NOT NULL,
    CONSTRAINT graph_chunks_pkey PRIMARY KEY (stream_id, first)
)
WITH (autovacuum_vacuum_insert_scale_factor='0.05', autovacuum_analyze_scale_factor='0.05');

-- Pending writes: what a task wrote after a checkpoint. Of several rows of one task and idx, readers take the one with the highest
-- visible position.
CREATE TABLE runyard.graph_writes (
    line_id bigint NOT NULL,
    namespace text NOT NULL COLLATE pg_catalog."C",
    checkpoint_id text NOT NULL COLLATE pg_catalog."C",
    task_id text NOT NULL COLLATE pg_catalog."C",
    idx integer NOT NULL,
    "position" bigint NOT NULL,
    task_path text NOT NULL COLLATE pg_catalog."C",
    channel text NOT NULL,
    kind text NOT NULL,
    data bytea NOT NULL,
    CONSTRAINT graph_writes_pkey PRIMARY KEY (line_id, namespace, checkpoint_id, task_id, idx, "position")
)
WITH (autovacuum_vacuum_insert_scale_factor='0.05', autovacuum_analyze_scale_factor='0.05');

-- Marks: the state of a graph when a message of the thread was stored (F13). base_id: the last message that the state contains, or NULL if
-- the state contains no message. This is the message itself, or an earlier message if the message is the input of a run.
CREATE TABLE runyard.graph_marks (
    thread_key bigint NOT NULL,
    message_id uuid NOT NULL,
    line_id bigint NOT NULL,
    "position" bigint NOT NULL,
    base_id uuid,
    CONSTRAINT graph_marks_pkey PRIMARY KEY (thread_key, message_id)
);
CREATE INDEX graph_marks_line ON runyard.graph_marks (line_id, "position");

-- A value to store. new items of a list are appended to stream_id if it belongs to the line and has `length` items, and otherwise to a
-- new stream. In `segments`, the stream 0 stands for the new items, which are numbered from 0.
CREATE TYPE runyard.new_graph_value AS (
    channel text,
    version text,
    kind text,
    data bytea,
    segments bigint[],
    stream_id bigint,
    length bigint,
    counts integer[],
    chunks bytea[]
);

CREATE TYPE runyard.new_graph_write AS (
    idx integer,
    channel text,
    kind text,
    data bytea
);

-- A value and a pending write as readers get them.
CREATE TYPE runyard.graph_value AS (
    channel text,
    kind text,
    data bytea,
    segments bigint[]
);

CREATE TYPE runyard.graph_write AS (
    task_id text,
    idx integer,
    task_path text,
    channel text,
    kind text,
    data bytea
);

-- The waits of suspended runs that no human ends. wait_id: the name of the wait in its run. wait_no: the order in which runs asked for
-- their waits. name: the signal or the child's thread, or NULL for a sleep. due_at: the time at which the wait ends, unless it ends before.
-- ended_at: the time from which the run could continue.
CREATE TABLE runyard.waits (
    thread_key bigint NOT NULL,
    run_id text NOT NULL,
    wait_id text NOT NULL,
    wait_no bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    kind text NOT NULL,
    name text,
    due_at runyard.moment,
    ended_at runyard.moment,
    created_at runyard.moment DEFAULT now() NOT NULL,
    signal_id text,
    received_by bigint,
    CONSTRAINT waits_kind_check CHECK ((kind = ANY (ARRAY['sleep', 'signal', 'child']))),
    CONSTRAINT waits_pkey PRIMARY KEY (thread_key, run_id, wait_id)
)
WITH (fillfactor='90', autovacuum_vacuum_scale_factor='0.05', autovacuum_analyze_scale_factor='0.05');
CREATE INDEX waits_due ON runyard.waits (due_at)
    WHERE ((ended_at IS NULL) AND ((due_at)::timestamptz > '-infinity'::timestamptz));
CREATE INDEX waits_open ON runyard.waits (thread_key, name, wait_no)
    WHERE (ended_at IS NULL);

-- A wait to store. timeout: seconds until due_at, if due_at is NULL.
CREATE TYPE runyard.new_wait AS (
    wait_id text,
    kind text,
    name text,
    due_at timestamptz,
    timeout double precision
);

-- Signals to threads. A signal is one row, whether it comes before or after a run waits for it.
-- run_id, wait_id: the wait that took the signal (runyard.waits). They are NULL while no run has taken it.
-- sent_by: the sender, as the API authenticated them.
CREATE TABLE runyard.signals (
    thread_key bigint NOT NULL,
    signal_id text NOT NULL,
    signal_no bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    name text NOT NULL,
    value bytea NOT NULL,
    sent_by text,
    sent_at runyard.moment DEFAULT now() NOT NULL,
    run_id text,
    wait_id text,
    CONSTRAINT signals_pkey PRIMARY KEY (thread_key, signal_id)
)
WITH (fillfactor='90', autovacuum_vacuum_scale_factor='0.05', autovacuum_analyze_scale_factor='0.05');
-- Signals that no run has taken.
CREATE INDEX signals_open ON runyard.signals (thread_key, name, signal_no)
    WHERE (wait_id IS NULL);

-- The default agent of each namespace. A run on a new thread gets this agent if its request names no agent. namespace: '' for apps without
-- a namespace. functions/agents.sql chooses the agent from the live workers.
CREATE TABLE runyard.default_agents (
    namespace text NOT NULL,
    agent text NOT NULL,
    CONSTRAINT default_agents_pkey PRIMARY KEY (namespace)
);

-- The highest version of the secrets of removed webhooks, in the row with the empty id. A webhook that is made later continues after this version,
-- and after that of its own id, which only the previous release records.
CREATE TABLE runyard.removed_webhooks (
    webhook_id text NOT NULL,
    version integer NOT NULL,
    CONSTRAINT removed_webhooks_pkey PRIMARY KEY (webhook_id)
);

-- The messages of a fan-out that one statement should not store. Each page is stored in a transaction of its own, before the job is
-- accepted. The messages of a small fan-out are in runs.candidates.
-- batch: an id that is derived from the request. accept_no: of the job that took the batch; NULL before its accept.
-- stored_at: the time of the last page.
CREATE TABLE runyard.candidate_batches (
    batch uuid NOT NULL,
    accept_no bigint,
    stored_at timestamptz DEFAULT clock_timestamp() NOT NULL,
    tenant text,
    CONSTRAINT candidate_batches_pkey PRIMARY KEY (batch)
);
CREATE INDEX candidate_batches_of_run ON runyard.candidate_batches (accept_no)
    WHERE (accept_no IS NOT NULL);
CREATE INDEX candidate_batches_left ON runyard.candidate_batches (stored_at)
    WHERE (accept_no IS NULL);
CREATE INDEX candidate_batches_of_tenant ON runyard.candidate_batches (tenant)
    WHERE (accept_no IS NULL);

CREATE TABLE runyard.candidates (
    batch uuid NOT NULL,
    number integer NOT NULL,
    message bytea NOT NULL,
    CONSTRAINT candidates_pkey PRIMARY KEY (batch, number)
);

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
CREATE TYPE runyard.interim_written AS (
    place integer,
    refused text,
    messages runyard.messages[],
    step runyard.steps
);

-- steps: the number of transactions that replaced messages of the branch by tombstones.
CREATE TABLE runyard.erasures (
    branch_id bigint NOT NULL,
    steps bigint NOT NULL,
    CONSTRAINT erasures_pkey PRIMARY KEY (branch_id)
);

-- A runyard.ended, and the claim of the next run of the lane (NULL if nothing was claimed).
CREATE TYPE runyard.ended_and_claimed AS (
    thread_key bigint,
    run_id text,
    status text,
    event_id text,
    error jsonb,
    effects jsonb,
    refused text,
    next runyard.claimed
);

CREATE TABLE runyard.schema_functions (
    file text NOT NULL,
    digest text NOT NULL,
    release integer[] NOT NULL,
    made jsonb NOT NULL,
    applied_at timestamptz DEFAULT now() NOT NULL,
    CONSTRAINT schema_functions_pkey PRIMARY KEY (file)
);

CREATE TABLE runyard.schema_versions (
    version integer NOT NULL,
    name text NOT NULL,
    oldest_code integer NOT NULL,
    applied_at timestamptz DEFAULT now() NOT NULL,
    CONSTRAINT schema_versions_pkey PRIMARY KEY (version)
);

-- functions/accept.sql --------------------------------------------------------------------------------------------------------
-- Accepting runs. The verb that clients call also admits the run. The verb that hosts call (accept_in_transaction.sql) uses
-- functions of this file. make_way in lanes.sql applies the multitask_strategy if the lane is busy.

-- Accept many runs in one transaction. Threads are locked in the order of their keys, so that batches cannot deadlock. Requests
-- for one thread keep their order. A refused request does not affect the other requests. If there is only one request, its
-- refusal raises an error. patience: milliseconds to wait for a locked thread, or NULL for the session's lock_timeout. After
-- this time the requests for the thread are refused as locked. A request is also refused as locked if a host's open transaction
-- has inserted its run id.
FUNCTION runyard.accept_many(for_tenant text, requests runyard.request[], patience integer DEFAULT NULL)
RETURNS SETOF runyard.accepted;

-- Accept and admit a client's run in one step, so that a refusal reaches the caller. limited: true if the deployment has limits.
FUNCTION runyard.accept_and_admit(
    for_tenant text, q runyard.request, limited boolean, OUT run runyard.runs, OUT created boolean, OUT effects jsonb
);

FUNCTION runyard.accepted_as(n integer, r runyard.runs, created boolean, effects jsonb) RETURNS runyard.accepted;

-- Insert the run of a request. in_lane: the lane, or NULL for a run that is admitted later. limited: true if the deployment has limits.
FUNCTION runyard.insert_run(
    for_tenant text, q runyard.request, thread_key bigint, in_lane text, for_agent text, due_at timestamptz, limited boolean
) RETURNS runyard.runs;

FUNCTION runyard.due_at(q runyard.request) RETURNS timestamptz;

-- Return the time by which the first attempt must start, or NULL. This is the due time plus the shorter of two times: the
-- request's expires_in, and the deployment's limit queued_seconds. The limit does not apply to a fork, which may wait for
-- another run.
FUNCTION runyard.expires_at(q runyard.request, due_at timestamptz) RETURNS timestamptz;

-- Refuse a run without a message if the last message needs no reply. busy: the live run of the lane, or NULL. If the lane is
-- busy, the run is not refused, because the live run can still add a message.
FUNCTION runyard.check_something_to_run(t runyard.threads, parent_id uuid, busy text) RETURNS void;

-- Refuse a probe whose agent or judge can ask humans, because no human can answer a probe. Workers report such agents at their
-- registration.
FUNCTION runyard.refuse_asking(q runyard.request, for_agent text) RETURNS void;

-- Determine the cut of a fork job when the job is accepted. after_run: the run at whose end the cut is, or NULL for a cut at a message.
FUNCTION runyard.fix_cut(t runyard.threads, INOUT fork jsonb, OUT after_run text);

-- functions/accept_arguments.sql ----------------------------------------------------------------------------------------------
-- Checks of the arguments of a host's accept. They refuse the same values as the client, with the same errors and fields, because no worker
-- can decode a run with such values. runyard.ports.commands, domain.validation, domain.size_limits and domain.webhooks have the checks of
-- the client.

-- Refuse an id or a name that runyard.domain.validation.check_id would refuse. field: the argument.
FUNCTION runyard.check_id(given text, field text) RETURNS void;

-- Refuse options that runyard.models.RunOptions would refuse.
FUNCTION runyard.check_options(options jsonb) RETURNS void;

-- Return true if runyard.domain.webhooks.check_url admits the URL.
FUNCTION runyard.is_webhook_url(url text) RETURNS boolean;

FUNCTION runyard.is_ipv6(address text) RETURNS boolean;

-- Refuse metadata that runyard.domain.size_limits would refuse. jsonb does not distinguish large integers from large
-- floating-point numbers. This function therefore refuses both.
FUNCTION runyard.check_metadata(metadata jsonb) RETURNS void;

-- Return the number of bytes of all strings and names in a value.
FUNCTION runyard.text_bytes(given jsonb) RETURNS integer;

-- functions/accept_in_transaction.sql -----------------------------------------------------------------------------------------
-- Accepting a run inside a host's own transaction. No thread is locked, and workers admit the run after the commit.

-- Accept a prompt by SQL, inside any transaction: SELECT runyard.accept('thread', 'hello', run_id => 'r1'). The function has
-- the rights of its owner. A host therefore needs only the right to call it, and no right on a table.
FUNCTION runyard.accept(
    thread_id text, message text, run_id text DEFAULT gen_random_uuid()::text, agent text DEFAULT NULL, queue text DEFAULT NULL,
    priority text DEFAULT 'normal', run_at timestamptz DEFAULT NULL, metadata jsonb DEFAULT '{}', options jsonb DEFAULT '{}',
    tenant text DEFAULT ''
) RETURNS text;

-- Accept a run in a host's own transaction. Return true if the run is new. The function locks no thread, because the host's
-- transaction would hold the lock until its end. Workers admit the run after the commit.
FUNCTION runyard.accept_request(for_tenant text, q runyard.request) RETURNS boolean;

-- functions/admit.sql ---------------------------------------------------------------------------------------------------------
-- Admitting runs that were accepted in a host's transaction or for a later time. The verb admit also applies deadlines of HITL requests and
-- waits, and the expiry of runs (deadlines.sql). make_way in lanes.sql applies the multitask_strategy if the lane is busy.

-- Admit the committed runs that are due. Apply the deadlines of HITL requests and waits. Fail the runs that were not started
-- by their expires_at. One call covers at most `most` threads of each kind (the `limit` of `admit` in
-- runyard/ports/stores.py). A thread that another transaction has locked is left to a later call. next_due: seconds until the
-- next due time, deadline or expiry; NULL if there is none. If a thread was left to a later call, next_due is the number of
-- seconds for which the thread is overdue, at least 0.01 and at most 1. Calls therefore become rarer while the thread stays
-- locked. enable_sort: only the index runs_due has the runs in the order of their times. Another index may look as cheap, and
-- has all delayed runs.
FUNCTION runyard.admit(most integer, OUT effects jsonb, OUT next_due double precision);

-- Admit the due runs of a locked thread, and apply everything else that is due on the thread. kinds: 'deadline' for a HITL request or a
-- wait, 'child' for a child of a cancelled run, 'expiry' for an expired run. lines: the permits for which the ended runs have waited.
FUNCTION runyard.apply_due(t runyard.threads, kinds text[], OUT effects jsonb, OUT lines text[]);

-- Lock and return a thread on which something is due. Make the thread if it does not exist. key: the key of the thread at the
-- earlier read, or NULL. locked: true if another transaction has locked the thread. t is NULL if the thread is locked, or was
-- deleted after the earlier read.
FUNCTION runyard.due_thread(for_tenant text, thread_id text, key bigint, OUT t runyard.threads, OUT locked boolean);

-- Admit the thread's committed runs that are due, in order, so that no later run overtakes them.
FUNCTION runyard.admit_thread(INOUT t runyard.threads, OUT effects jsonb);

-- Admit a run that was accepted in a host's own transaction or for a later time. A refusal fails the run.
FUNCTION runyard.admit_late(INOUT t runyard.threads, r runyard.runs, OUT effects jsonb);

-- Return the error that forbids a run on this thread, or NULL. Two errors are possible: an inherited run has the run's id, or
-- the parent message is missing or inside an open tool cycle.
FUNCTION runyard.why_not(t runyard.threads, run_id text, parent_id uuid) RETURNS jsonb;

-- functions/agents.sql --------------------------------------------------------------------------------------------------------
-- The agent of a run. A request can name the agent. Otherwise the run gets the agent of its thread. If the thread has none, the
-- run gets the default agent of a namespace. runyard/domain/agent_names.py describes the names.

-- Return true if a name names one agent. Any other name stands for the default agent of a namespace.
FUNCTION runyard.is_agent(name text) RETURNS boolean;

-- Return the namespace of a name, or ''.
FUNCTION runyard.namespace_of(name text) RETURNS text;

-- Return the agent of a run. wanted: the agent of the request. of_thread: the agent of the thread. If no worker of the namespace was ever
-- registered, its default agent is unknown. Then return the name that stands for the default agent, or NULL for programs without a
-- namespace. The first claim of the run replaces this name.
FUNCTION runyard.agent_of(wanted text, of_thread text) RETURNS text;

-- Return the queue of the runs of an agent. Before a worker of the namespace was registered, return the queue that all workers of the
-- namespace serve.
FUNCTION runyard.queue_of(for_agent text) RETURNS text;

-- Record the agent of a locked thread's first prompt as the agent of the thread. If the thread has an agent already, change nothing.
FUNCTION runyard.set_thread_agent(INOUT t runyard.threads, name text);

-- Return the agent that a thread without an agent will get from its first prompt that is not admitted. Return NULL without such a prompt.
FUNCTION runyard.agent_of_unadmitted(for_tenant text, thread_id text) RETURNS text;

-- Return true if a worker serves an agent. A name may stand for the default agent of a namespace. A worker that lists no agents serves all
-- agents.
FUNCTION runyard.serves(w runyard.workers, for_agent text) RETURNS boolean;

-- Return the agent of a run at its claim. name: the run's agent, or a name for a default agent. Replace such a name by the agent of the
-- thread, or else by the default agent of the claimant. If the claimant does not serve the namespace, return the name.
FUNCTION runyard.agent_at_claim(name text, of_thread text, claimant runyard.workers) RETURNS text;

-- Return a run with the agent that a claim gives it.
FUNCTION runyard.as_claimed(r runyard.runs, of_thread text, claimant runyard.workers) RETURNS runyard.runs;

-- Give a run the agent of agent_at_claim, even if the claimant does not serve this agent. The locked thread of a prompt gets the same
-- agent.
FUNCTION runyard.name_agent(INOUT t runyard.threads, INOUT r runyard.runs, claimant runyard.workers);

-- Choose the default agent of a worker's namespace after the worker was registered, left or died. The namespace keeps its default agent
-- while a live worker has the same default agent. If no live worker has it, take the default agent of the live worker that was registered
-- last. Without any live worker, change nothing.
FUNCTION runyard.choose_default_agent() RETURNS trigger;

-- functions/append.sql --------------------------------------------------------------------------------------------------------
-- Appending messages to a run.

-- Append messages to an attempt's run. Return the stored messages. Workers of older releases, whose writes are not batched, call this
-- function.
FUNCTION runyard.append(thread_key bigint, run_id text, with_fence bigint, messages runyard.new_message[], first_event integer)
RETURNS SETOF runyard.messages;

-- Append messages to the run r of the locked thread t. Return the stored messages in the order of `messages`. used: the usage of the run so
-- far, or NULL. For each amount, the record of the run keeps the larger number, so that a repeated or late call changes
-- nothing.
FUNCTION runyard.add_messages(
    t runyard.threads, r runyard.runs, messages runyard.new_message[], first_event integer, used jsonb, message_bytes bigint
) RETURNS runyard.messages[];

-- Insert messages of a run after its last message. Skip messages that the run has already: such a call is a repetition after a lost reply.
-- The caller must save the rows of the thread and the run. first_event: the number of the first message's event, or NULL for a run without
-- events. new: true if the caller knows that no message of the thread has one of the ids.
FUNCTION runyard.put_messages(
    INOUT t runyard.threads, INOUT r runyard.runs, messages runyard.new_message[], first_event integer, new boolean DEFAULT false
);

-- Return the message of the thread with this id, own or inherited, or a NULL row. In the usual case the id is new, and the
-- first query is enough. The second query reads the index once per branch, because many threads may have a message with this
-- id.
FUNCTION runyard.holder_of(thread_key bigint, message_id uuid, OUT holder runyard.messages);

-- functions/branch_of_run.sql -------------------------------------------------------------------------------------------------
-- The branch of a run at its first claim, and the branch of a stored message. visible_messages.sql has the rules for the
-- messages that a branch shows.

-- Make a branch that begins after the message `base` and inherits the levels of `view`.
FUNCTION runyard.open_branch(
    t runyard.threads, in_lane text, base uuid, view runyard.level[], OUT branch runyard.branches
);

-- Return the branch for a run at its first claim, or for a stored message. Without parent_id, return the head. With parent_id, return the
-- branch that ends at this message, or else a new branch after the message. For root_id(), the branch begins another tree. alone: true for
-- a run that always gets a new branch.
FUNCTION runyard.branch_for(
    INOUT t runyard.threads, in_lane text, parent_id uuid, alone boolean, OUT branch runyard.branches
);

-- Choose the head of the thread: the branch that ends at a message. If no branch of the main lane ends at the message, open a
-- branch. For root_id(), the branch begins another tree. Raises thread_not_found, message_not_found.
FUNCTION runyard.set_head(for_tenant text, thread_id text, message_id uuid) RETURNS void;

-- Return the branch whose last visible message is message_id, or NULL. root_id() finds a branch without visible messages. If several
-- branches match, return the head, or else the oldest.
FUNCTION runyard.branch_ending_at(thread_key bigint, message_id uuid) RETURNS runyard.branches;

-- functions/cancel.sql --------------------------------------------------------------------------------------------------------
-- Cancelling runs. end_run.sql decides which messages of the run stay. lock_attempt (write.sql) refuses writes of the attempt
-- after the request to cancel.

-- Cancel a live run. A cancelled run stays unchanged. Raises run_ended for any other ended run. keep: true to keep the run's
-- messages.
FUNCTION runyard.cancel(for_tenant text, thread_id text, run_id text, keep boolean, OUT run runyard.runs, OUT effects jsonb);

-- Cancel a live run whose thread is locked. If a worker executes the run, only record the request. If no worker executes it, end the run.
FUNCTION runyard.cancel_run(INOUT t runyard.threads, INOUT r runyard.runs, keep boolean, OUT effects jsonb);

-- Cancel the run that has pending HITL requests. Return a NULL run if no run has such requests. words: the text of the run's
-- last message, and of the results of its open tool calls.
FUNCTION runyard.abort_pending(for_tenant text, thread_id text, run_id text, words text, OUT run runyard.runs, OUT effects jsonb);

-- functions/candidate_batches.sql ---------------------------------------------------------------------------------------------
-- The messages of large fan-outs. They are stored page by page in a batch before the fork job is accepted. The fork job then
-- takes the batch (FanOut, postgres/runs.py).

-- Begin the batch of a large fan-out, or continue it. Return false if the run exists, so that no page is needed. Raises the refusals of the
-- accept, and queue_full if the tenant has too many batches that no fork job has taken. No thread is locked.
FUNCTION runyard.begin_batch(for_tenant text, q runyard.request) RETURNS boolean;

-- Store a page of the messages of a batch, from the number `first` on. The call changes nothing if it is a repetition, if a
-- fork job has taken the batch, or if the leader has removed the batch.
FUNCTION runyard.store_candidates(of_batch uuid, first integer, messages bytea[]) RETURNS void;

-- Give the batch of a fan-out to the run of its request. Refuse if pages are missing because the leader has removed them in
-- the meantime. The client then stores these pages again.
FUNCTION runyard.take_candidates(r runyard.runs) RETURNS void;

-- Delete batches that no request took within an hour after their last page, because their client stopped. Delete whole batches until about
-- `most` rows are deleted. Return the number of deleted rows.
FUNCTION runyard.prune_candidates(most integer) RETURNS integer;

-- functions/candidate_reads.sql -----------------------------------------------------------------------------------------------
-- Reads of fan-outs by clients: the fork job, the records of its candidates, and the runs of candidates with threads.

-- Return the fork job of a fan-out. total: the number of its candidates. expired: true if its result or its content was
-- deleted. Raises thread_not_found, run_not_found, invalid_input for a run of another kind.
FUNCTION runyard.fan_out(for_tenant text, thread_id text, run_id text)
RETURNS TABLE (total integer, threads boolean, status text, fence bigint, usage jsonb, expired boolean);

-- Return the records of the candidates from the number `first` to `last`. size: the bytes of the value of a record. The first
-- record always has its value. Further records have their values until the returned values have about `bytes` together. If
-- `bytes` is NULL, no record has a value.
FUNCTION runyard.candidate_records(for_tenant text, thread_id text, run_id text, first integer, last integer, bytes bigint)
RETURNS TABLE (number integer, fence bigint, outcome text, usage jsonb, size bigint, value bytea);

-- Return the runs that the fork job has started on threads: their threads, statuses and usages.
FUNCTION runyard.candidate_runs(for_tenant text, thread_id text, run_id text)
RETURNS TABLE (of_thread text, status text, usage jsonb);

-- Return the first runs of threads, with the last messages of those runs that have ended. place: the place of the thread in
-- `threads`, from 1. The first row of a run has no message. unread: true if the messages of the run are not read, because the
-- messages of earlier runs already have `bytes`. The other rows of the run have its messages, the newest first, up to `bytes`.
-- cut: true if earlier messages are left out.
FUNCTION runyard.candidate_outcomes(for_tenant text, threads text[], ids text[], bytes bigint)
RETURNS TABLE (place integer, status text, usage jsonb, error jsonb, unread boolean, cut boolean, message runyard.messages);

-- functions/candidates.sql ----------------------------------------------------------------------------------------------------
-- The candidates of fan-outs: the records of the fork job, and the messages for an attempt. runyard/domain/fan_outs.py has the
-- keys of the steps. runs.candidates has the messages of a small fan-out. The field `batch` of runs.fork names the messages of
-- a large fan-out (candidate_batches.sql).

-- Return the messages of candidates of the attempt's fork job. Raises stale_fence.
FUNCTION runyard.candidate_messages(thread_key bigint, run_id text, with_fence bigint, numbers integer[])
RETURNS TABLE (number integer, message bytea);

-- Record that an attempt has begun candidates. Raises stale_fence, cancel_requested.
FUNCTION runyard.begin_candidates(thread_key bigint, run_id text, with_fence bigint, numbers integer[]) RETURNS void;

-- Record the ends of candidates and of the judge. If an end is recorded already, the record stays unchanged. A worker of the
-- previous release may have recorded the start of a candidate with a thread. The end of the candidate replaces this record.
-- Add the usage of probes and of the judge to the usage of the fork job. The usage of a run on a thread belongs to that run.
-- Raises stale_fence, cancel_requested.
FUNCTION runyard.end_candidates(
    thread_key bigint, run_id text, with_fence bigint, keys text[], outcomes text[], usages text[], results bytea[]
) RETURNS void;

-- Return true if the messages and answers of a fan-out were deleted. They are deleted after their retention, or together with
-- the content of the run.
FUNCTION runyard.fan_out_expired(r runyard.runs) RETURNS boolean;

-- Delete up to `most` steps of runs and messages of large fan-outs. If `most` is NULL, delete all. Return the number of
-- deleted rows.
FUNCTION runyard.drop_records(numbers bigint[], most integer) RETURNS integer;

-- functions/checkpointer.sql --------------------------------------------------------------------------------------------------
-- The messages, the extra and the HITL requests that a checkpointer stores.

-- Append a checkpointer's messages. Each message names its run, or no run. Skip a message whose id is stored already.
FUNCTION runyard.checkpoint_append(for_tenant text, thread_id text, messages runyard.new_message[], run_ids text[]) RETURNS void;

-- Append adjacent messages with the same run id, or without a run. The caller must save the row of the thread.
FUNCTION runyard.append_part(INOUT t runyard.threads, run_id text, messages runyard.new_message[]);

-- Insert messages of a run that was never claimed, after its earlier messages. The caller must have checked their ids and sizes.
FUNCTION runyard.put_unclaimed(INOUT t runyard.threads, run_id text, messages runyard.new_message[]);

-- Return the messages of `messages` whose ids the thread does not have. Refuse an id that a message of another run has. run_id:
-- the run of the messages, or NULL.
FUNCTION runyard.not_held(t runyard.threads, run_id text, messages runyard.new_message[]) RETURNS runyard.new_message[];

-- Merge `more` into the extra of a thread.
FUNCTION runyard.save_extra(for_tenant text, thread_id text, more jsonb) RETURNS void;

-- If a deleted thread still has requests with these ids, delete these requests, because their ids are free.
FUNCTION runyard.drop_deleted_requests(for_tenant text, request_ids text[]) RETURNS void;

-- Refuse a request if another request has its id.
FUNCTION runyard.refuse_request(request_id text) RETURNS void;

-- Replace the one pending request that a checkpointer keeps for a thread. q: NULL to remove it. Requests of workers' runs, which
-- have events, stay.
FUNCTION runyard.save_pending(for_tenant text, thread_id text, q runyard.new_request, run_id text) RETURNS void;

-- Remove one pending request that a checkpointer keeps for a thread. Return false if the thread has no such request, or if it is
-- answered.
FUNCTION runyard.remove_request(for_tenant text, thread_id text, request_id text) RETURNS boolean;

-- Store HITL requests of an external run. A stored request of the run with the same id stays unchanged. Refuse all requests if
-- another run or thread has a request with one of their ids.
FUNCTION runyard.save_requests(for_tenant text, thread_id text, requests runyard.new_request[], run_id text) RETURNS void;

-- Return the pending and answered HITL requests of a run. If run_id is NULL, return those of the thread. Apply the deadlines of overdue
-- requests first, because a program without workers has no reconciler.
FUNCTION runyard.load_requests(for_tenant text, thread_id text, run_id text) RETURNS SETOF runyard.requests;

-- functions/children.sql ------------------------------------------------------------------------------------------------------
-- Children. A child is a run that an attempt of another run (the parent) started. The parent waits for its children.

-- Accept a child of an attempt's run, together with the wait for its end. The id of the wait is the child's run id. A repetition changes
-- nothing. Raises run_conflict if the id is taken by a run that is not the parent's child, or by a child
-- on another thread. Raises child_deadlock if the child would wait for its own parent, and too_many_children beyond most_depth or most_children.
FUNCTION runyard.start_child(
    for_tenant text, q runyard.request, with_fence bigint, most_depth integer, most_children integer,
    OUT run runyard.runs, OUT created boolean, OUT effects jsonb
);

-- Make the wait for an ended child due. Delete the wait if the parent was deleted with its thread. No other part of the parent
-- is changed, because the transaction does not lock the parent's thread.
FUNCTION runyard.end_child(child runyard.runs) RETURNS void;

-- Open the wait of the parent again after a redrive of its child. The wait of a cancelled parent stays due, so that the child is cancelled.
FUNCTION runyard.reopen_wait(child runyard.runs) RETURNS void;

-- End the due waits of a suspended run at its claim, and return the run. The waits end here for the following reason: the end
-- of a child only submits the job of the parent, without a lock of the parent's thread. The effects do not contain the run's
-- own job.
FUNCTION runyard.wake_parent(INOUT r runyard.runs, OUT effects jsonb);

-- Make the waits of a cancelled run for its children due. The reconciler then cancels the children. A locked wait is skipped, because its
-- child is ending.
FUNCTION runyard.doom_children(r runyard.runs) RETURNS void;

-- Delete the waits of these runs of a thread, or of all its runs if run_ids is NULL. A wait for a live child stays, so that the reconciler
-- cancels the child. The end of the child deletes this wait. A locked wait also stays, until the thread is removed. The child
-- of such a wait is ending, and the transaction of its end may need the lock of this thread.
FUNCTION runyard.forget_waits(thread_key bigint, run_ids text[]) RETURNS void;

-- Return true if a deleted thread has waits that must be deleted before the thread. These are waits without a live child, and
-- waits that the end of a child has locked. The end of a live child deletes the other waits. This function locks these other
-- waits. The end of the child therefore sees the removal of the thread.
FUNCTION runyard.has_waits_to_forget(of_thread bigint) RETURNS boolean;

-- Return true if the wait is for a child that has not ended.
FUNCTION runyard.child_lives(w runyard.waits) RETURNS boolean;

-- Return the threads with children to cancel, and the time at which their cancels became due. A child that is not admitted is cancelled
-- after its admission.
FUNCTION runyard.doomed_children(most integer) RETURNS TABLE (tenant text, thread_id text, due_at timestamptz);

-- Cancel the runs of the locked thread whose parents were cancelled. The parents may have been deleted afterwards. lines: the permits for
-- which these runs have waited.
FUNCTION runyard.cancel_children(INOUT t runyard.threads, OUT effects jsonb, OUT lines text[]);

-- functions/claim.sql ---------------------------------------------------------------------------------------------------------
-- Claiming runs for a worker. runyard/worker/claim_loop.py chooses `patience` (LOCK_WAIT_SECONDS, LONG_LOCK_WAIT_SECONDS).

-- Claim many runs for a worker in one transaction. Threads are locked in the order of their keys, so that batches cannot
-- deadlock. A thread that another transaction has locked is skipped. patience: milliseconds to wait for such a thread before
-- it is skipped. With limits on running runs, the function locks permits before threads, and does not wait for a thread. The
-- transaction that has locked the thread may wait for one of these permits. A wait could therefore cause a deadlock.
FUNCTION runyard.claim(worker_id text, thread_keys bigint[], run_ids text[], patience integer DEFAULT 0)
RETURNS SETOF runyard.claimed;

-- Claim a run whose thread is locked. paused: the paused queues. A run of a paused queue is claimed only if a cancel was requested. The
-- worker then ends the run. limited: true if the deployment has limits on running runs.
FUNCTION runyard.claim_locked(
    t runyard.threads, claimant runyard.workers, run_id text, paused text[], limited boolean
) RETURNS runyard.claimed;

-- Fail a run whose input has the id of another message of the thread.
FUNCTION runyard.fail_taken(t runyard.threads, r runyard.runs) RETURNS jsonb;

-- Begin a prompt at its first claim. Determine its branch and its snapshot, and store its input. Messages that were appended under the
-- run's id before the claim become messages of the run. The caller must save the run's row. has_input: true if the input is one of these
-- messages, false if no message of the thread has the input's id.
FUNCTION runyard.begin_run(INOUT t runyard.threads, INOUT r runyard.runs, has_input boolean);

-- functions/complete.sql ------------------------------------------------------------------------------------------------------
-- Ending an attempt: complete, fail and release. plain_runs.sql completes the usual runs of a batch.

-- Complete many runs in one transaction. Threads are locked in the order of their keys. patience: milliseconds to wait for a locked thread.
-- After this time the writes of the thread are refused as locked, and the other writes are stored. If patience is NULL, the
-- session's lock_timeout applies, and the call fails after it.
FUNCTION runyard.complete(writes runyard.attempt_write[], patience integer DEFAULT NULL) RETURNS SETOF runyard.ended;

-- Fail a run. why: the error of the run.
FUNCTION runyard.fail(w runyard.attempt_write, why jsonb) RETURNS runyard.ended;

-- Release a run and queue it again. delay: seconds until the run is due. why: the error that causes a retry, or NULL if the
-- release is no retry. A retry is counted. first_event: the number of the attempt's next event, or NULL. fewer: a number for a
-- fork job, or NULL. The fork job then waits until fewer than this number of its started runs are live. used: the usage to add
-- to the usage of the run, or NULL.
FUNCTION runyard.release(
    thread_key bigint, run_id text, with_fence bigint, delay double precision, why jsonb, first_event integer, fewer integer, used jsonb
) RETURNS runyard.ended;

-- functions/complete_and_claim.sql --------------------------------------------------------------------------------------------
-- Chains: the completion of a run claims the next run of its lane, for the same worker, in the same transaction. The lane then needs no
-- other commit between two runs, and no call of Redis.

-- Complete many runs as runyard.complete does, and claim the next runs of their lanes. claim_next, claim_after: the
-- thread keys and the ids of the runs whose next runs may be claimed. next: the claim, or NULL. If the next run was not claimed, another
-- worker may claim its job, which is in the effects.
FUNCTION runyard.complete_and_claim(
    writes runyard.attempt_write[], claim_next bigint[], claim_after text[], patience integer DEFAULT NULL
) RETURNS SETOF runyard.ended_and_claimed;

-- Return the runs that follow ended runs in their lanes and that the workers of the ended runs may claim, by worker. A worker
-- that is dead or draining claims nothing. If the deployment has a limit on running runs, no worker claims a next run, because
-- the next run may have to wait for other lanes.
FUNCTION runyard.next_of_lanes(
    ended runyard.ended[], claim_next bigint[], claim_after text[], OUT worker_id text, OUT thread_keys bigint[], OUT run_ids text[]
) RETURNS SETOF record;

-- Claim runs for a worker, and record that the end of another run has claimed them (runyard.crashes). The threads are locked already. If the
-- worker has been declared dead in the meantime, or the claim fails, claim nothing: the ends of its runs are stored all the same. An end of
-- the statement from outside ends the whole transaction.
FUNCTION runyard.claim_chained(for_worker text, thread_keys bigint[], run_ids text[]) RETURNS runyard.claimed[];

-- functions/crashes.sql -------------------------------------------------------------------------------------------------------
-- Crashes of runs: their number, the attempt that runs alone, and the end of a run that has crashed too often. MAX_CRASHES in
-- runyard/domain/crashes.py is the same limit.

-- Return the number of crashes without progress after which a run is dead. When a run has one crash fewer, its next attempt
-- runs alone.
FUNCTION runyard.max_crashes() RETURNS integer;

-- Return the number of a run's crashes without progress, including the crash of its current attempt. If the attempt was still
-- waiting for its own process, its crash does not count, because another run must have caused the crash. If the end of another run has
-- claimed the attempt, its crash does not count either, because the worker may have died before the attempt began.
FUNCTION runyard.crashes(r runyard.runs) RETURNS integer;

-- End a run whose attempt has crashed, if a cancel was requested or the run has crashed too often. e.status is NULL if the run continues.
-- how: the description of the crash, for the run's error.
FUNCTION runyard.end_crashed(INOUT t runyard.threads, INOUT r runyard.runs, how text, OUT e runyard.ended);

-- Record that the attempt runs alone in its process. From now on, a crash of the attempt counts.
FUNCTION runyard.isolate(thread_key bigint, run_id text, with_fence bigint) RETURNS void;

-- Count the crash of a process in which an attempt ran alone. End the run if a cancel was requested or the run has crashed too often. In
-- any other case queue the run again.
FUNCTION runyard.bury(thread_key bigint, run_id text, with_fence bigint, how text) RETURNS runyard.ended;

-- functions/cuts.sql ----------------------------------------------------------------------------------------------------------
-- Cuts of forks: find the view of the thread at a message, at a message number or after a run. Refuse a cut inside a tool cycle (F6).

-- Return the cut that a request names: the view of the cut, and the id of the run. The id is NULL for a cut at a message. q: the cut as
-- JSON.
FUNCTION runyard.cut(t runyard.threads, q jsonb, OUT view runyard.level[], OUT after_run runyard.runs);

-- Return the id that stands for the place before the first message. A message with this parent begins a tree. No message has this id.
FUNCTION runyard.root_id() RETURNS uuid;

FUNCTION runyard.refuse_message(t runyard.threads, message_id uuid) RETURNS void;

-- Return the cut at a message. The cut includes the message. view: the view of the path to the message. whole: the view of all visible
-- messages of the message's branch. run: the message's run, or NULL. For root_id() both views are empty.
FUNCTION runyard.cut_at_message(
    t runyard.threads, message_id uuid, OUT view runyard.level[], OUT whole runyard.level[], OUT message runyard.messages, OUT run runyard.runs
);

-- Return the cut after a completed run of the thread or of an ancestor.
FUNCTION runyard.cut_after_run(t runyard.threads, run_id text, OUT view runyard.level[], OUT run runyard.runs);

-- Return the id of the message with this number, own or inherited.
FUNCTION runyard.message_at(t runyard.threads, number bigint) RETURNS uuid;

-- Refuse a cut inside a tool cycle. The error names the nearest messages of the branch at which no tool call is open. view,
-- whole, at: as cut_at_message returns them.
FUNCTION runyard.check_boundary(view runyard.level[], whole runyard.level[], at runyard.messages) RETURNS void;

-- functions/deadlines.sql -----------------------------------------------------------------------------------------------------
-- Deadlines of HITL requests and waits, and the expiry of runs. The verb admit applies the deadlines and the expiry.

-- End the waits of the thread that are due. Apply the deadline of each overdue request of the thread: store the default answer, or fail the
-- suspended run. If the run to fail is not live, close the request.
FUNCTION runyard.fire_deadlines(INOUT t runyard.threads, OUT effects jsonb);

-- Fail a run that has expired, because it had no attempt before its expires_at.
FUNCTION runyard.expire_run(INOUT t runyard.threads, r runyard.runs, OUT effects jsonb);

-- Fail the thread's admitted runs that have expired. lines: the permits for which these runs have waited.
FUNCTION runyard.expire_runs(INOUT t runyard.threads, OUT effects jsonb, OUT lines text[]);

-- functions/deletion.sql ------------------------------------------------------------------------------------------------------
-- Deletion. A thread is deleted at once, and removal.sql removes its rows step by step. A message that a fork sees stays until the last
-- such fork is deleted. left_over in delete_thread is the maximum number of rows to remove in the transaction of the deletion.

-- Delete a thread. cancel_first: true to cancel live runs; false to raise thread_busy for a live run. seen: the updated_at
-- that the caller has read, or NULL. erase: true to erase also the content that forks show. unremoved: the deleted threads
-- that still have rows. postgres/threads.py removes these rows with runyard.remove_step. If the process that deletes the
-- thread stops, the leader removes the rows (prune.sql).
FUNCTION runyard.delete_thread(
    for_tenant text, thread_id text, cancel_first boolean, seen timestamptz, erase boolean DEFAULT false,
    OUT effects jsonb, OUT unremoved bigint[]
);

-- Lock the thread's ancestors and then the thread. Return the thread. Every function locks threads in the order of their keys, and
-- ancestors have smaller keys.
FUNCTION runyard.find_family(for_tenant text, thread_id text) RETURNS runyard.threads;

-- Delete the content of a run that has ended and is in no context. The run's row stays, so that a repeated request finds it.
-- Keep messages that a live thread shows through a fork or a branch. When no live thread shows them any more, another call
-- deletes them.
FUNCTION runyard.delete_run(for_tenant text, thread_id text, run_id text) RETURNS void;

-- functions/depths.sql --------------------------------------------------------------------------------------------------------
-- Depths of leaves. The depth of a leaf is the number of messages on its path. Several paths are counted together.

-- Return the number of messages on each path, in the order of `ends`. ends: the last level of each path. A path also has the
-- levels that the branch of this level inherits. Paths share levels. Therefore the messages of a branch are read once, from the
-- start to the highest high water, and counted between two successive high waters. A run below the high water may have
-- completed after the level's cutoff. The level then does not show the run. Such a level is counted separately.
FUNCTION runyard.count_paths(ends runyard.level[]) RETURNS bigint[];

-- Return the number of messages of a run on a branch up to a message number.
FUNCTION runyard.count_of_run(thread_key bigint, run_id text, branch_id bigint, last bigint) RETURNS bigint;

-- functions/due.sql -----------------------------------------------------------------------------------------------------------
-- What is due: runs to admit, deadlines of HITL requests and waits, children of cancelled runs, and runs that expire.
-- admit.sql applies what is due.

-- Return the next time after `since` at which a HITL request or a wait has its deadline or a run expires. NULL if there is none.
FUNCTION runyard.next_time(since timestamptz) RETURNS timestamptz;

-- Return at most `most` threads of each kind on which something is due. For each thread, return the earliest due time and the
-- kinds (see apply_due). thread_key is NULL if the thread does not exist. Threads in `locked` are left out. only_runs: true if
-- only runs are due. The statement for runs alone is short, because the run of a host that has just committed waits for it.
-- Each statement reads the clock in a subquery: if it read the clock for each row, it could not use an index. The statement
-- also reads the key of the thread in a subquery: a join would read all threads if the planner expected many rows.
FUNCTION runyard.due_threads(most integer, locked text[], only_runs boolean)
RETURNS TABLE (tenant text, thread_id text, thread_key bigint, due_at timestamptz, kinds text[]);

-- Return up to `most` committed runs that are due and not admitted, without those of the threads in `locked`.
FUNCTION runyard.due_runs(most integer, locked text[]) RETURNS TABLE (tenant text, thread_id text, due_at timestamptz);

-- functions/effects.sql -------------------------------------------------------------------------------------------------------
-- Effects: the work that a commit leaves to be done in Redis. They are JSON: {"jobs": […], "events": […], "cancels": […], "withdrawn": […],
-- "deleted": […]}, or NULL for no effects.

-- Return the effects of both arguments together.
FUNCTION runyard.merge_effects(a jsonb, b jsonb) RETURNS jsonb;

-- Return the job of a run as JSON. The field `queued` of the job has the data of the event run.queued. This event is written
-- when the job is submitted. If an attempt has begun since the run was accepted or redriven, `queued` is NULL.
FUNCTION runyard.job(r runyard.runs) RETURNS jsonb;

-- Return the field `queued` of the job of a run. Postgres inlines this function into the statement.
FUNCTION runyard.queued_event(thread_id text, fence bigint, queued_fence bigint, attempt integer) RETURNS jsonb;

-- Return the job of a run from single columns, for statements that do not have the whole row. Postgres inlines this function into the
-- statement.
FUNCTION runyard.job_of(
    thread_key bigint, run_id text, lane text, kind text, queue text, priority text, tenant text, not_before timestamptz, queued jsonb
) RETURNS jsonb;

-- Send effects to the workers through NOTIFY, for a function that does not return its effects. Effects that are too large for a
-- notification are not sent. The reconciler then finds the runs.
FUNCTION runyard.tell(effects jsonb) RETURNS void;

-- Return the effects of the end of a run outside any attempt: the event to write, and the job to withdraw.
FUNCTION runyard.outside_event(t runyard.threads, r runyard.runs, event text, kind text, body jsonb) RETURNS jsonb;

-- functions/end_run.sql -------------------------------------------------------------------------------------------------------
-- The end of a run. Every verb that ends a run calls end_run.

-- End a run. Give it its completion number, close its HITL requests, end its waits, give back its unread signals, record the
-- attempt, and write the feed and the webhook delivery. Return as effects the jobs of the runs that may start next. why: the
-- error, or NULL. event: the id of the run's last event. A cancelled run whose messages are kept gets a completion number only if
-- every tool call has a result.
FUNCTION runyard.end_run(
    INOUT t runyard.threads, INOUT r runyard.runs, to_status text, why jsonb, event text, OUT effects jsonb
);

-- Store the messages that close a cancelled run: results for its open tool calls, and the last message of an aborted run. The
-- caller must save the rows of the run and the thread.
FUNCTION runyard.close_cancelled(INOUT t runyard.threads, INOUT r runyard.runs);

-- functions/erased_extra.sql --------------------------------------------------------------------------------------------------
-- Functions by which an erasure removes entries from the extra of runs and threads (removal.sql).

-- Return up to `most` completed runs of a thread that have an extra, after a completion number. last: the completion number of the last
-- run, or NULL if there are no further runs.
FUNCTION runyard.runs_with_extra(key bigint, after_completion bigint, most integer, OUT numbers bigint[], OUT last bigint);

-- Return the hash of an entry of an extra.
FUNCTION runyard.extra_hash(key text, value jsonb) RETURNS text;

-- Return an extra without the entries whose hashes are keys of `hashes`.
FUNCTION runyard.without_extra(extra jsonb, hashes jsonb) RETURNS jsonb;

-- functions/explain.sql -------------------------------------------------------------------------------------------------------
-- Explaining the state of a run: why it waits, that it runs, or that it has ended.

-- Return the key of the sentence that explains the state of a run. facts: the values that the sentence needs. runyard.domain.explanations
-- makes the sentence.
FUNCTION runyard.explain(for_tenant text, thread_id text, run_id text, OUT run runyard.runs, OUT reason text, OUT facts jsonb);

-- functions/external_runs.sql -------------------------------------------------------------------------------------------------
-- External runs. A process that is not a worker claims and completes them.

-- Claim an external run. Raises run_already_claimed or run_already_completed if a run with this id exists.
FUNCTION runyard.claim_external(for_tenant text, thread_id text, run_id text) RETURNS void;

-- Complete an external run. A completed run stays unchanged. Raises run_not_claimed, and run_already_claimed for a run of a
-- worker.
FUNCTION runyard.complete_external(for_tenant text, thread_id text, run_id text) RETURNS void;

-- Return the live external run that has this id, or a NULL row if no run has it. Refuse the id of any other run.
FUNCTION runyard.open_external(t runyard.threads, run_id text) RETURNS runyard.runs;

-- functions/fan_out.sql -------------------------------------------------------------------------------------------------------
-- Fan-outs. The fork job of a fan-out starts runs, and waits until fewer than runs.until_fewer of them are live. must_wait in
-- startable.sql checks whether the fork job must wait. execution/fan_out_candidates.py chooses the number.

-- Return effects with the job of the starter of run r. The starter is a fan-out, or a suspended parent whose wait has ended.
-- The claim of the starter checks that it may continue, because other runs of the starter may end at the same time.
FUNCTION runyard.wake_starter(r runyard.runs) RETURNS jsonb;

-- Return the number of live runs that a fork job started.
FUNCTION runyard.count_started_by(r runyard.runs) RETURNS bigint;

-- functions/feed.sql ----------------------------------------------------------------------------------------------------------
-- The feed: reading the outbox in order. prune.sql deletes old entries. `most` is the `limit` of PageRequest (runyard/ports/queries.py).

-- Return the entries of the outbox after (after_transaction, after_position), in this order. An entry is returned only if its transaction
-- is older than every open transaction. No new entry can therefore appear before an entry that a reader has already read. horizon:
-- the transaction before which all entries are readable. Without entries, the result is one row that has only the horizon.
FUNCTION runyard.readable_entries(for_tenant text, after_transaction bigint, after_position bigint, most integer)
RETURNS TABLE (horizon bigint, entry runyard.outbox);

-- Return readable entries of the feed. Clients of older releases call this function.
FUNCTION runyard.feed(for_tenant text, after_transaction bigint, after_position bigint, most integer)
RETURNS TABLE (horizon bigint, transaction bigint, "position" bigint, thread_id text, run_id text, type text, created_at timestamptz);

-- Return readable entries of the feed with present facts about their threads and runs. parent_thread_id, forked_after_run_id, forked_at_seq:
-- the source and the cut of a fork. first_seq, last_seq, last_message_id: the messages of the run. They are NULL after a deletion.
FUNCTION runyard.feed_v2(for_tenant text, after_transaction bigint, after_position bigint, most integer)
RETURNS TABLE (
    horizon bigint, transaction bigint, "position" bigint, thread_id text, run_id text, type text, created_at timestamptz,
    parent_thread_id text, forked_after_run_id text, forked_at_seq bigint, first_seq bigint, last_seq bigint, last_message_id uuid
);

-- Return the delay of the feed. This is the time since the commit of the oldest unreadable entry, in seconds. An entry is
-- unreadable while an older transaction is open in any database of the server. A delay of two seconds is usual. holder: if the
-- delay is at least five seconds, the oldest open transaction that has written.
FUNCTION runyard.feed_delay(OUT seconds double precision, OUT holder text);

-- functions/fork.sql ----------------------------------------------------------------------------------------------------------
-- Forking a thread. A fork copies no message. Instead it gets rows in `levels`, which show its source up to the cut (cuts.sql).
-- visible_messages.sql has the rules for the messages that the levels show. cuts.sql also refuses invalid cuts.

-- Fork a thread. A repetition of the request returns the existing fork, with created = false. q: the request as JSON. hash: the
-- request's hash.
FUNCTION runyard.fork(for_tenant text, q jsonb, hash text, OUT thread runyard.threads, OUT created boolean);

-- Close the open tool calls of a view with one message of error results, at the end of a branch. reason: the text of the results.
FUNCTION runyard.repair(INOUT t runyard.threads, branch_id bigint, view runyard.level[], reason text);

-- Return the usage of the runs whose messages a view shows completely. These are completed runs, and cancelled runs whose
-- messages were kept. The function reads each of these runs. A usage that is no object of numbers counts nothing, as in
-- add_usage.
FUNCTION runyard.usage_of_view(view runyard.level[]) RETURNS jsonb;

-- functions/graph_lines.sql ---------------------------------------------------------------------------------------------------
-- Functions that find, copy and delete lines of checkpoints of graphs. graph_writes.sql has the functions that write the rows of a line.

-- Lock and return a line, or return a NULL row.
FUNCTION runyard.graph_line(for_tenant text, of_owner bigint, name text) RETURNS runyard.graph_lines;

-- Lock and return a line for a write. of_run, with_fence: the attempt that writes, or NULL for a saver without runs. If the line of a saver
-- does not exist, make it. Raises stale_fence and cancel_requested. Raises checkpoint_missing if the line of the attempt was erased.
FUNCTION runyard.graph_line_to_write(for_tenant text, of_owner bigint, name text, of_run text, with_fence bigint)
RETURNS runyard.graph_lines;

-- Return the parts of this line and of its ancestors that the line shows, up to the position `upto` of the line.
FUNCTION runyard.graph_view(of_line bigint, upto bigint DEFAULT 9223372036854775807)
RETURNS TABLE (line_id bigint, cut bigint);

-- Make a line that shows the line `source` up to the position `upto`. The time does not depend on the length of the source. The caller must
-- have locked the source.
FUNCTION runyard.graph_copy_line(for_tenant text, of_owner bigint, name text, source bigint, upto bigint)
RETURNS runyard.graph_lines;

-- Copy all checkpoints and writes of a saver's thread to a thread without checkpoints. Do nothing if the source has no checkpoints. Raises
-- thread_already_exists.
FUNCTION runyard.graph_copy(for_tenant text, source text, target text) RETURNS void;

-- Delete a saver's thread. Keep the rows that copies show, in a line without a name. Do nothing for an unknown thread.
FUNCTION runyard.graph_delete(for_tenant text, name text) RETURNS void;

-- Delete the rows of a deleted line after the position `keep`, except rows that copies show. If no rows are left, delete the line, and
-- examine its deleted ancestors in the same way. Lines are locked from the newest to the oldest.
FUNCTION runyard.graph_trim(of_line bigint, keep bigint) RETURNS void;

-- Return the highest position of a line that is the mark of a stored message, or 0.
FUNCTION runyard.graph_marked_to(of_line bigint) RETURNS bigint;

-- Remove the lines of a deleted thread, except the rows that forks of the thread show. erase: true to remove these rows too, and the lines
-- of the forks that continue them. A run of such a fork then raises checkpoint_missing.
FUNCTION runyard.graph_remove(of_thread bigint, erase boolean) RETURNS void;

-- Remove the checkpoints of a run that has ended and is in no context. Keep the checkpoints that marks of stored messages or copies show.
-- The run's lines lose their names, so that no run continues them. A later run gets a copy.
FUNCTION runyard.graph_remove_run(of_thread bigint, of_run text) RETURNS void;

-- functions/graph_prune.sql ---------------------------------------------------------------------------------------------------
-- Functions that remove checkpoints of graphs.

-- Keep only the newest checkpoint of each namespace of a saver's thread, with its pending writes. The kept checkpoints and the values of
-- their channels move to a new line. Copies of the thread keep their checkpoints. Do nothing for an unknown thread. Raises
-- capability_missing if a channel of a kept checkpoint is rebuilt from earlier writes (DeltaChannel).
FUNCTION runyard.graph_prune(for_tenant text, name text) RETURNS void;

-- Copy a value to another line. If the value is a list, copy its chunks too. Return the id of the copy.
FUNCTION runyard.graph_move_value(of_value bigint, into_line bigint, at bigint) RETURNS bigint;

-- Raise capability_missing if a checkpoint with these metadata has a channel that is rebuilt from earlier writes.
FUNCTION runyard.graph_refuse_deltas(names text[], details jsonb) RETURNS void;

-- Delete the checkpoints of runs, with their pending writes, in savers' threads and their copies. Also delete values that no other checkpoint
-- has. Return the threads and copies that showed such a checkpoint. Raises capability_missing if a thread uses a DeltaChannel.
FUNCTION runyard.graph_delete_runs_v2(for_tenant text, run_ids text[]) RETURNS text[];

-- Delete the checkpoints of runs, as graph_delete_runs_v2 does, for callers that do not need the threads.
FUNCTION runyard.graph_delete_runs(for_tenant text, run_ids text[]) RETURNS void;

-- functions/graph_reads.sql ---------------------------------------------------------------------------------------------------
-- Reading checkpoints of graphs. `most` is the `limit` of `page` in runyard/ports/graph_checkpoints.py.

-- Return the checkpoint `id` that a line shows up to a position, with its values and pending writes. If id is NULL, return the newest
-- checkpoint of the namespace.
FUNCTION runyard.graph_newest(of_line bigint, upto bigint, ns text, id text)
RETURNS TABLE (namespace text, checkpoint_id text, parent_id text, kind text, content bytea, details jsonb,
               "values" runyard.graph_value[], writes runyard.graph_write[]);

-- Return the checkpoint of a line with this id. If the id is NULL, return the newest checkpoint of the namespace.
FUNCTION runyard.graph_latest(for_tenant text, of_owner bigint, name text, ns text, id text)
RETURNS TABLE (graph_id text, namespace text, checkpoint_id text, parent_id text, kind text, content bytea, details jsonb,
               "values" runyard.graph_value[], writes runyard.graph_write[]);

-- Return a page of checkpoints of a line in descending order of their ids. name: the name of the line, or NULL for all lines of savers
-- without runs. ns, id, filter: the namespace, the id, and a part of the metadata, or NULL for any value. before: an upper limit of the
-- ids, or NULL. after_id, after_ns, after_name: the last checkpoint of the previous page, or NULL. A page may have fewer than `most` rows.
-- An empty page marks the end.
FUNCTION runyard.graph_read(
    for_tenant text, of_owner bigint, name text, ns text, id text, before text, filter jsonb, after_id text, after_ns text,
    after_name text, most integer
) RETURNS TABLE (graph_id text, namespace text, checkpoint_id text, parent_id text, kind text, content bytea, details jsonb,
                 "values" runyard.graph_value[], writes runyard.graph_write[]);

-- Return the values of channels that are not empty.
FUNCTION runyard.graph_values_of(value_ids bigint[]) RETURNS runyard.graph_value[];

-- Return the pending writes after a checkpoint that a line shows, in the order in which LangGraph applies them.
FUNCTION runyard.graph_writes_of(of_line bigint, upto bigint, ns text, id text) RETURNS runyard.graph_write[];

-- Return the chunks of a list's segments, in order. part: the number of the segment, from 0.
FUNCTION runyard.graph_items(segments bigint[]) RETURNS TABLE (part integer, first bigint, items bytea);

-- functions/graph_runs.sql ----------------------------------------------------------------------------------------------------
-- Functions for graphs in runs (F13). They begin the state of a graph in a run, and store the state at a message as a mark.

-- Return the mark of the first message in `candidates` that has a mark. The mark must belong to the thread, or to a thread whose messages a
-- branch of this thread shows. Raises checkpoint_missing.
FUNCTION runyard.graph_find_mark(t runyard.threads, candidates uuid[]) RETURNS runyard.graph_marks;

-- Return the state from which a probe of the thread begins. Each namespace with a checkpoint has one row. Without any checkpoint, the result
-- is one row with base_id only. candidates: the messages that may have a mark, the newest first. base_id: the last message that the state
-- contains. Raises thread_not_found and checkpoint_missing.
FUNCTION runyard.graph_state(for_tenant text, thread_id text, candidates uuid[], namespaces text[])
RETURNS TABLE (message_id uuid, base_id uuid, namespace text, checkpoint_id text, parent_id text, kind text, content bytea, details jsonb,
               "values" runyard.graph_value[], writes runyard.graph_write[]);

-- Begin or continue the graph of an attempt's run. candidates: the messages before the run that may have a mark, the newest first. The list
-- is empty if the graph has no earlier state. input_id: the run's input, which gets a mark, or NULL. graph_id: the name of the run's line.
-- began: true if the line has a state of this run. base_id: the last message in the state at the run's beginning. Usually the
-- run continues the line of its predecessor. If it begins at an earlier position, or if another live run continues the line,
-- the run gets a copy of the line. Raises checkpoint_missing, stale_fence and cancel_requested.
FUNCTION runyard.graph_begin(of_thread bigint, of_run text, with_fence bigint, candidates uuid[], input_id uuid)
RETURNS TABLE (graph_id text, began boolean, message_id uuid, base_id uuid);

-- Return the messages before the message `base` that the run of `base` did not see when it began. They were stored later, or their runs
-- were redriven and completed later. of_thread: the key of the thread that shows `base`, or NULL to find the thread by its id. Raises
-- thread_not_found.
FUNCTION runyard.graph_unseen(for_tenant text, thread_id text, of_thread bigint, base uuid) RETURNS TABLE (message_id uuid);

-- Store the present state of a run's line as the mark of a message. The state contains the message. Raises stale_fence, cancel_requested
-- and checkpoint_missing.
FUNCTION runyard.graph_mark(of_thread bigint, of_run text, with_fence bigint, name text, message_id uuid) RETURNS void;

-- functions/graph_writes.sql --------------------------------------------------------------------------------------------------
-- Functions that write checkpoints of graphs, and the pending writes of their tasks.

-- Store a checkpoint. of_run, with_fence: the attempt that writes, or NULL. content_kind, content: the encoded checkpoint. channels,
-- versions: the versions of all channels of the checkpoint. new: the new values of channels. For each list in `new`, return the segments of
-- the list, the stream to which the line can append, and the length of this stream. Store nothing and return one row of NULLs in two cases:
-- a stream in `new` is not visible, or neither the line nor `new` has one of the versions. Raises stale_fence, cancel_requested and
-- checkpoint_missing.
FUNCTION runyard.graph_put(
    for_tenant text, of_owner bigint, name text, of_run text, with_fence bigint, ns text, id text, parent text, content_kind text,
    content bytea, details jsonb, channels text[], versions text[], new runyard.new_graph_value[]
) RETURNS TABLE (channel text, segments bigint[], stream_id bigint, length bigint);

-- Append the new items of a list to a stream of the line. Return the segments of the whole list, the stream, and its new length. Join
-- neighbouring segments.
FUNCTION runyard.graph_append(
    l runyard.graph_lines, v runyard.new_graph_value, OUT segments bigint[], OUT stream_id bigint, OUT length bigint
);

-- Store writes of a task after a checkpoint. A stored write with the same idx >= 0 is not replaced. A stored write with the same idx < 0 is
-- replaced. of_run, with_fence: the attempt that writes, or NULL. Raises stale_fence, cancel_requested and checkpoint_missing.
FUNCTION runyard.graph_put_writes(
    for_tenant text, of_owner bigint, name text, of_run text, with_fence bigint, ns text, id text, task text, path text,
    new runyard.new_graph_write[]
) RETURNS void;

-- functions/history.sql -------------------------------------------------------------------------------------------------------
-- Reading the context of an attempt: as a whole, after the messages that a worker keeps in memory, or from its end. context of reading.sql
-- is the same for workers of older releases.

-- Return the number up to which the caller already has the messages of a view, or -1. held: a JSON array with an object for each history
-- that the caller keeps of the thread: branch_id, the number (seq) and the id of its last message, the cutoff up to which its runs were
-- complete, and the generation. The caller gets the generation with a history, and returns it. A kept history is not used if
--   * it is the history of another branch, or of a later state than the view;
--   * the server was restarted or replaced, because a restored server may give its numbers to other messages;
--   * its last message is not there;
--   * messages of the view were erased;
--   * a run completed later that has messages before the last message of the history.
-- Three changes need no condition. A thread that is made again after its deletion has new branches. A deletion without erasure removes only
-- messages that no remaining thread shows. The first claim of a run may move messages that were appended under the run's id, but no kept
-- history has messages of a run that has not completed.
FUNCTION runyard.held_until(view runyard.level[], held jsonb, OUT generation text, OUT seq bigint);

-- Return the run of an attempt. Raises stale_fence if another attempt has claimed the run.
FUNCTION runyard.read_by(thread_key bigint, run_id text, with_fence bigint) RETURNS runyard.runs;

-- Return up to `most` of the messages that a run sees: the messages of its snapshot after the number `after`, then its own
-- messages after the number own_after. The messages that the caller holds are left out (held_until). own: true for messages of
-- the run. The first row is no message. Its column own is NULL, and its column note is a JSON object with branch_id, cutoff,
-- generation, and held: true if messages were left out. created_at: the bytes of the time, because the driver needs as long
-- for a time as for all other columns. calls, results: only for messages without a payload.
FUNCTION runyard.history(
    thread_key bigint, run_id text, with_fence bigint, held jsonb, after bigint, own_after bigint, most bigint
) RETURNS TABLE (
    seq bigint, id text, parent_id text, of_run text, role text, payload bytea, note text, calls text[], results text[], created_at bytea,
    own boolean
);

-- Return up to `most` of the messages that a run sees, the last message first: its own messages before the number own_before,
-- then the messages of its snapshot before the number `before`.
FUNCTION runyard.recent(
    thread_key bigint, run_id text, with_fence bigint, before bigint, own_before bigint, most bigint
) RETURNS SETOF runyard.messages;

-- functions/interim_writes.sql ------------------------------------------------------------------------------------------------
-- The writes of attempts before their last writes, of many runs in one transaction.

-- Store the writes. Threads are locked in the order of their keys, and the writes of a run keep their order. A refused write stores nothing
-- and does not affect other writes. An error, for example a message that is too large, undoes all writes. patience: milliseconds to wait for
-- a locked thread. After this time the writes of the thread are refused as locked. In a write that only starts a step, `result` is the text
-- of the step's arguments in UTF-8. The type of the writes has no attribute for this text, because workers of the previous release send
-- values of the type.
FUNCTION runyard.write_interim(writes runyard.interim_write[], patience integer) RETURNS SETOF runyard.interim_written;

-- Return NULL if the attempt with the fence may write. Otherwise return 'locked', 'stale_fence' or 'cancel_requested'. t and r:
-- the locked thread and its run. t is NULL if the thread does not exist or stays locked.
FUNCTION runyard.interim_refused(t runyard.threads, r runyard.runs, thread_key bigint, with_fence bigint, patience integer)
RETURNS text;

-- functions/labels.sql --------------------------------------------------------------------------------------------------------
-- Labels: names of branches. A label is unique in its thread and follows its branch as the branch grows.

-- Give a label to a branch. If another branch of the thread has the label, the label moves. message_id: a message of the branch, or NULL
-- for the head. An inherited message names the thread's first branch. most: maximum number of labels of a thread (MAX_LABELS,
-- runyard/domain/validation.py). Raises message_not_found. Raises run_not_completed if no path of the branch shows the message. Raises
-- invalid_input if the thread has too many labels.
FUNCTION runyard.set_label(for_tenant text, thread_id text, label text, message_id uuid, most integer) RETURNS void;

-- Remove a label. If the thread does not have the label, change nothing.
FUNCTION runyard.remove_label(for_tenant text, thread_id text, label text) RETURNS void;

-- Return the branch that stores a message and shows it. A branch also shows the messages of its live run. For an inherited message, return
-- the thread's first branch.
FUNCTION runyard.branch_of(t runyard.threads, message_id uuid) RETURNS bigint;

-- Return the last message of every labelled branch, including the messages of its live run. level: the last level of the path to the
-- message. stored_on, stored_seq: the branch and the number of the message.
FUNCTION runyard.labelled_ends(t runyard.threads)
RETURNS TABLE (label text, message_id uuid, level runyard.level, stored_on bigint, stored_seq bigint);

-- functions/lanes.sql ---------------------------------------------------------------------------------------------------------
-- Lanes: the lane of a run, and what a run does on a busy lane (multitask_strategy: enqueue, reject, interrupt, rollback).
-- startable.sql determines which run of a lane may start.

-- Return the lane to which a run is admitted. alone: true for a parallel run.
FUNCTION runyard.lane_of(t runyard.threads, kind text, alone boolean, run_id text, parent_id uuid) RETURNS text;

-- Apply a run's multitask_strategy to the head of its lane. busy: the id of the lane's head afterwards, or NULL. refused: the
-- error of the strategy `reject`, or NULL.
FUNCTION runyard.make_way(INOUT t runyard.threads, in_lane text, strategy text, OUT busy text, OUT refused jsonb, OUT effects jsonb);

-- functions/leaves.sql --------------------------------------------------------------------------------------------------------
-- Leaves of the message tree of a thread. These functions only read. end_run.sql, plain_runs.sql and store_message.sql set a branch's leaf.
-- `most` is the `limit` of PageRequest (runyard/ports/queries.py).

-- Return a page of the leaves, the oldest first. only_labelled: true for the leaves with labels only. Depths are counted for the
-- returned leaves only. segment: the branch on which the path to the leaf ends. until_seq: the highest number of this branch
-- that the path shows. inherited: the earlier branches of the path, each with the highest number that the path shows.
FUNCTION runyard.list_leaves(
    for_tenant text, thread_id text, only_labelled boolean, after_time timestamptz, after_id uuid, most integer
) RETURNS TABLE (
    message_id uuid, depth bigint, created_at timestamptz, run_id text, run_status text, head boolean, trunk boolean, labels text[],
    segment bigint, until_seq bigint, inherited bigint[]
);

-- Return the leaves of the thread's tree: the last visible message of every branch, and the last message of every run that is not
-- completed. A branch without own visible messages has no leaf, except the thread's first branch. If another branch begins at a
-- message, the message is not a leaf, unless it is the end of a labelled branch. level: the last level of the path to the leaf.
-- The path also has the levels that this level's branch inherits.
FUNCTION runyard.tree_leaves(t runyard.threads)
RETURNS TABLE (message_id uuid, created_at timestamptz, run_id text, run_status text, level runyard.level, labels text[]);

-- Return the last message of the thread's head, and the last message of its first branch. The returned messages may belong to
-- live runs.
FUNCTION runyard.branch_ends(t runyard.threads, OUT head uuid, OUT trunk uuid);

-- functions/limits.sql --------------------------------------------------------------------------------------------------------
-- The values of limits. queue_limits.sql applies the limits on queued runs, permits.sql those on running runs, and size_limits.sql the
-- limit on the size of a message.

-- Return the value of a limit for `of`, or NULL if no limit is set. of: a tenant or an agent; NULL for a limit without a subject.
FUNCTION runyard.limit_of(which text, of text DEFAULT NULL) RETURNS bigint;

-- functions/list_children.sql -------------------------------------------------------------------------------------------------
-- The children of a thread's runs, and their children.

-- Return at most `most` descendants of the runs of a thread, level by level: first the children, then their children. Return at
-- most `most_depth` levels. Within a level, the children of one run are together. A child whose content was deleted is omitted,
-- with its children.
FUNCTION runyard.list_children(for_tenant text, of_thread text, most_depth integer, most integer)
RETURNS TABLE (depth integer, thread_id text, run_id text, agent text, status text, started_by_thread_id text, started_by_run_id text,
               accepted_at timestamptz, finished_at timestamptz);

-- Return true if lists show the run. They do not show a run that was deleted, or whose thread was deleted.
FUNCTION runyard.is_listed(r runyard.runs) RETURNS boolean;

-- functions/list_runs.sql -----------------------------------------------------------------------------------------------------
-- The list of runs. lists.sql describes lists in general.

-- Return runs, the newest first. If there are more, the last row has only the place after which the next page begins.
FUNCTION runyard.list_runs(
    for_tenant text, thread_id text, with_status text, of_agent text, since timestamptz, before timestamptz,
    after_time timestamptz, after_no bigint, most integer, bytes bigint
) RETURNS TABLE (run runyard.runs, omitted text[], place_time timestamptz, place_no bigint);

-- Return the statement that reads the runs of a list in order, by the index that fits the filters. Parameters of the statement: $1 tenant,
-- $2 thread key, $3 thread id, $4 agent, $5 since, $6 and $7 the place after which the page begins, $8 the accept_no of this place. enough:
-- the maximum number of rows to read from each index, if the statement combines two.
FUNCTION runyard.runs_statement(
    for_tenant text, thread_id text, of_thread bigint, with_status text, of_agent text, enough integer
) RETURNS text;

-- functions/lists.sql ---------------------------------------------------------------------------------------------------------
-- Lists of threads, HITL requests, attempts and deliveries. The list of runs is in list_runs.sql.
--
-- A page has at most `most` entries (PageRequest, runyard/ports/queries.py) and at most `bytes` (PAGE_BYTES, runyard/ports/results.py). A
-- larger entry is a page of its own. A page also ends after a thousand rows that do not match the filters. Such a page has fewer entries,
-- and the place after which the next page begins. An entry omits values of more than 8192 bytes, and `omitted` lists them.
--
-- Each function reads one index, which has the order of the list. The function itself compares the rows with the other filters.
-- Its statement is planned for the given filters, because one plan for all filters would sometimes read the whole table. Each
-- index has a condition that only the statement of its list contains. For some filters a primary key has the same order, and
-- Postgres could use this key instead. To prevent this, the statement gives one column as a range and orders by this column
-- first. The range ends with a comparison of this column alone. With a comparison of rows, the scan would continue until the
-- first column changes.

-- Return threads, in the order of their keys, or the newest first. after: the place after which the page begins, or NULL for the first page.
-- If there are more, the last row has only the place after which the next page begins. Forks of a deleted thread are not listed as forks of a
-- later thread with the same id. They have lower keys than the later thread.
FUNCTION runyard.list_threads_v2(
    for_tenant text, parent text, of_agent text, with_tags jsonb, after bigint, newest_first boolean, most integer, bytes bigint
) RETURNS TABLE (thread runyard.threads, omitted text[], place bigint);

-- Return threads as list_threads_v2 does, the oldest first, for the code of the previous release.
FUNCTION runyard.list_threads(
    for_tenant text, parent text, of_agent text, with_tags jsonb, after bigint, most integer, bytes bigint
) RETURNS TABLE (thread runyard.threads, omitted text[], place bigint);

-- Return HITL requests, the oldest first. pending: true for pending requests only. If there are more, the last row has `more` and
-- no request.
FUNCTION runyard.list_requests(
    for_tenant text, thread_id text, pending boolean, after_time timestamptz, after_id text, most integer, bytes bigint
) RETURNS TABLE (request runyard.requests, more boolean);

-- Return the attempts of an own or inherited run, the oldest first. If there are more, the last row has `more` and no attempt.
FUNCTION runyard.list_attempts(for_tenant text, thread_id text, run_id text, after bigint, most integer, bytes bigint)
RETURNS TABLE (attempt runyard.attempts, more boolean);

-- Return up to `most` deliveries, the newest first. To find out whether there are more, a caller asks for one more than it needs.
FUNCTION runyard.list_deliveries(for_tenant text, with_status text, before bigint, most integer)
RETURNS SETOF runyard.webhook_deliveries;

-- Return the size of a value as JSON in bytes. The stored size of a compressed value is smaller and cannot be used.
FUNCTION runyard.json_bytes(value jsonb) RETURNS bigint;

-- functions/live_runs.sql -----------------------------------------------------------------------------------------------------
-- The tables that follow the table of runs: live_runs, completions, unsuccessful_runs and fork_results. Triggers of runyard.runs call these
-- functions, so that the tables stay correct after any statement. The functions that claim or end runs call them directly.

-- Write the rows of live_runs for the new runs of a statement.
FUNCTION runyard.follow_accepts() RETURNS trigger;

-- Change the row of live_runs after a worker has claimed the run.
FUNCTION runyard.follow_claim(r runyard.runs) RETURNS void;

-- Delete the row of live_runs of a run that has ended, and write its rows of the other tables.
FUNCTION runyard.follow_end(r runyard.runs) RETURNS void;

-- Write the rows of a run after any other change, or after an insert of an ended run.
FUNCTION runyard.follow_run() RETURNS trigger;

-- Delete the rows of deleted runs from these tables.
FUNCTION runyard.forget_runs() RETURNS trigger;

-- functions/measure.sql -------------------------------------------------------------------------------------------------------
-- Figures of the whole deployment, for the metrics of the leader.

-- Return the number of pending HITL requests by kind, and figures of the Postgres server. commits: the number of transactions that were
-- committed in the database since its statistics began.
FUNCTION runyard.measure() RETURNS TABLE (
    questions bigint, approvals bigint, steps bigint, oldest_request double precision, database_bytes bigint, dead_rows bigint,
    connections bigint, max_connections bigint, commits bigint
);

-- functions/permits.sql -------------------------------------------------------------------------------------------------------
-- Permits under the limits on running runs, and the lines of runs that wait for a permit. The name of a permit contains the agent or the
-- tenant of the limit: "agent …" or "tenant …". There are as many permits of one name as the limit allows.

-- Return the names of the permits that a run holds while it runs. Names without a limit are omitted. A run without an agent counts for the
-- agent "default".
FUNCTION runyard.permits_of(r runyard.runs) RETURNS text[];

-- Lock the permits of these names, in the order of the names. Only one transaction at a time can then count and free them.
-- After this call, the transaction must not wait for the lock of a thread, because this wait could cause a deadlock. A call
-- waits longer for these locks than for the lock of a thread. Transactions that hold these locks are short, and after a failed
-- wait all changes of the call would be undone.
FUNCTION runyard.lock_permits(permits text[]) RETURNS void;

-- Return the limit on the permits of a name, or NULL.
FUNCTION runyard.limit_of_permit(permit text) RETURNS bigint;

-- Return the number of free permits of a name, or NULL without a limit. The function reads at most as many index entries as the
-- limit allows runs.
FUNCTION runyard.free_permits(permit text) RETURNS bigint;

-- Return the name of a permit for which a run must wait, or NULL if all its permits are free. The free permits go to the first runs in the
-- permit's line.
FUNCTION runyard.missing_permit(r runyard.runs) RETURNS text;

-- Return the accept_no of the first `most` runs in the line for a permit. The tenants take turns: the line begins with one run of each
-- tenant, and then has the second run of each tenant.
FUNCTION runyard.first_in_line(permit text, most bigint) RETURNS SETOF bigint;

-- Add a run to the line for a permit. Tenants take turns, as in lua/turns.lua. A tenant's runs are ordered by priority. The run leaves the
-- line of another permit. Return as effects the jobs of runs in that line that may start. If the run is in the line for this permit
-- already, return the jobs of runs in this line that may start.
FUNCTION runyard.wait_for_permit(r runyard.runs, permit text) RETURNS jsonb;

-- Give the last turn to a tenant whose run has left the line. If the tenant has no other run in the line, delete its turn.
FUNCTION runyard.take_turn(from_permit text, for_tenant text) RETURNS void;

-- Remove a run from its line, because its claim was refused for another reason than a missing permit. Return as effects the jobs of the
-- runs behind it that may start.
FUNCTION runyard.leave_line(r runyard.runs) RETURNS jsonb;

-- Return as effects one job for each free permit, for the first runs in the permit's line. The runs stay in the line until a worker claims
-- them.
FUNCTION runyard.next_for_permit(permit text) RETURNS jsonb;

-- Return as effects the jobs of the runs that get the freed permits of these names. Call this function after the transaction has locked its
-- last thread.
FUNCTION runyard.free(permits text[]) RETURNS jsonb;

-- Measure the numbers of queued runs. Return as effects the jobs of waiting runs for which a permit is free. There are such
-- runs after a limit was raised or cleared, after a takeover from a dead worker, and after a lost submission. Delete the turns
-- of tenants without a run in the line. The leader calls this function.
FUNCTION runyard.review_limits() RETURNS jsonb;

-- functions/plain_appends.sql -------------------------------------------------------------------------------------------------
-- The plain path of appends: write_interim stores the usual appends of a batch together, in few statements (plain_runs.sql). It stores all
-- other writes one by one, with the same result.
--
-- A plain write appends messages with new ids, and is the only write for its thread in the batch. The attempt may write.

-- Store the plain writes. Return one row per stored write. The function locks the threads of all writes. message_bytes: the size limit of a message. patience: as in write_interim.
FUNCTION runyard.append_plain(writes runyard.interim_write[], message_bytes bigint, patience integer)
RETURNS SETOF runyard.interim_written;

-- functions/plain_runs.sql ----------------------------------------------------------------------------------------------------
-- The plain path: accept_many, claim and complete process the usual runs of a batch together, in few statements. A statement for 32 runs
-- costs little more than one for a single run. These functions process all other runs one by one, with the same result.
--
-- A plain run is a prompt without a parent message on the lane ''. Its thread is no fork and has no unadmitted runs. The run was never
-- claimed before. It completes with messages that have new ids, and no tool calls or results. The deployment has no limits.
--
-- Each function locks its threads in the order of their keys, in one statement. If a lock is not free in time, the function
-- changes nothing. All its writes are inside the block with the exception handler: it costs more to change a row outside of
-- the subtransaction that has locked the row. With the settings of these functions, generic plans find every row by an index.
-- Such plans suit tables of any size.

-- Accept and admit the plain requests. Return one row per new run. Two kinds of requests are left to the caller: repetitions, and requests
-- for a thread that also has a request that is not plain. The requests and their threads are joined by hash: a nested loop compares each of
-- a thousand requests with each thread. The tables are read by LATERAL subqueries, for which Postgres uses nested loops in any case.
FUNCTION runyard.accept_plain(for_tenant text, requests runyard.request[]) RETURNS SETOF runyard.accepted;

-- Claim the plain runs for a worker. Return one row per claimed run. paused, patience: as in runyard.claim.
FUNCTION runyard.claim_plain(
    claimant runyard.workers, thread_keys bigint[], run_ids text[], paused text[], patience integer
) RETURNS SETOF runyard.claimed;

-- Complete the runs of the plain writes. Return one row per completed run. A thread with two writes is left to the caller. message_bytes:
-- the size limit of a message. patience: as in runyard.complete.
FUNCTION runyard.complete_plain(writes runyard.attempt_write[], message_bytes bigint, patience integer) RETURNS SETOF runyard.ended;

-- functions/printable.sql -----------------------------------------------------------------------------------------------------
-- Ids and names consist of printable characters.

-- Return true if the text has a character that runyard.models.check_id refuses: a control or format character, a separator
-- other than the space, or a private or unassigned character. The ranges are those of Unicode 14, the version of the oldest
-- Python that runyard supports. Most texts are ASCII, and are not compared with the regular expression. Postgres keeps the
-- compiled expression for the connection.
FUNCTION runyard.unprintable(given text) RETURNS boolean;

-- functions/prune.sql ---------------------------------------------------------------------------------------------------------
-- Pruning data whose retention has passed. The settings of the deployment determine the retention (Retention, runyard/ports/workers.py).
-- `most` is the `limit` of `prune` in runyard/ports/stores.py. A call removes at most 1000 rows of deleted threads (the call of
-- remove_leftovers in prune).

-- Delete about `most` entries that are older than `kept`, tenant by tenant, and record the last deleted entry of each tenant. Return the
-- number of deleted entries. An entry stays until runyard.count_usage has counted it and every active webhook has read it. count_usage
-- counts only entries that are older than every open transaction. A call examines the oldest entry of up to 500 tenants. The next call
-- continues with the next tenant.
FUNCTION runyard.prune_feed(kept interval, most integer) RETURNS integer;

-- Delete up to `most` of the oldest entries of a tenant that are older than old_before, and record the last deleted entry. Return
-- their number.
FUNCTION runyard.prune_tenant(whose text, old_before timestamptz, most integer) RETURNS integer;

-- Delete the results of fork jobs that ended more than `kept` ago. Also delete the messages and answers of such fan-outs, even
-- of failed and cancelled ones. A call deletes whole fan-outs until it has deleted about `most` rows. Return the number of
-- fork jobs and of deleted rows.
FUNCTION runyard.prune_results(kept interval, most integer) RETURNS integer;

-- Delete data whose retention has passed: entries of the feed, results of fork jobs, deliveries that arrived or failed,
-- messages of fan-outs that were not accepted, and rows of dead workers. Also remove rows of deleted threads. For each kind, a
-- call deletes at most about `most` rows. For the rows of dead workers there is no maximum. Deliveries have the retention of
-- the feed. Return the largest number of rows that were deleted of one kind. The leader calls this function.
FUNCTION runyard.prune(feed interval, results interval, workers interval, most integer) RETURNS integer;

-- functions/queue_limits.sql --------------------------------------------------------------------------------------------------
-- Limits on queued runs: check whether a queue has room for another run.

-- Refuse a request that exceeds a limit on queued runs or on the size of a message. The limit per lane also counts runs that are not
-- admitted. may_write: see runyard.queue_size.
FUNCTION runyard.check_room(for_tenant text, q runyard.request, key bigint, in_lane text, may_write boolean) RETURNS void;

-- Return the lane_seq up to which all runs of a lane have ended. Reads of the lane begin after this number. Otherwise they
-- would also read the index entries of ended runs. These entries stay while an older transaction is open.
FUNCTION runyard.floor_of(key bigint, in_lane text) RETURNS bigint;

-- Return the error for a run that exceeds the limit of its lane at a later admission, or NULL. The lane may have one run more
-- than the limit, because its head may have been released to the queue.
FUNCTION runyard.lane_full(r runyard.runs) RETURNS jsonb;

-- functions/queue_sizes.sql ---------------------------------------------------------------------------------------------------
-- The numbers of queued runs, for the limits queued and queued_per_tenant. A number is the last measurement plus the runs that were
-- accepted after it.

-- Return the number of queued runs of a tenant, or of all tenants if for_tenant is NULL. Measure first if three conditions
-- hold: the last measurement is older than a second, the number is not small, and the caller may write. most: the number up to
-- which runs are counted.
FUNCTION runyard.queue_size(for_tenant text, most bigint, may_write boolean) RETURNS bigint;

-- Measure the number of queued runs of a tenant, or of all tenants if for_tenant is NULL, up to `most`. Do nothing if another transaction
-- measures the same number.
FUNCTION runyard.measure_queue(for_tenant text, most bigint) RETURNS void;

-- Repeat the measurements that were not zero. The leader calls this function, because some callers of queue_size may not write.
FUNCTION runyard.measure_queues() RETURNS void;

-- functions/queues.sql --------------------------------------------------------------------------------------------------------
-- Queues and their waiting runs.

-- Return the numbers of suspended runs of these queues, by what they wait for.
FUNCTION runyard.suspended_runs_v2(of_queues text[]) RETURNS TABLE (queue text, waiting_for text, runs bigint);

-- Return the numbers of suspended runs of each queue, by what they wait for. The code of previous releases calls this function.
FUNCTION runyard.suspended_runs() RETURNS TABLE (queue text, waiting_for text, runs bigint);

-- Return the queues that have live runs, are paused or have a live worker, with the numbers of their runs. The function reads the live runs
-- by the indexes of their statuses. waiting: the number of queued runs that wait only for a worker. A lane whose runs are in several queues
-- counts in each of them.
FUNCTION runyard.queue_states() RETURNS TABLE (
    queue text, queued bigint, waiting bigint, deepest bigint, oldest double precision, scheduled bigint, running bigint, suspended bigint,
    workers bigint, paused_at timestamptz, known boolean
);

-- functions/reading.sql -------------------------------------------------------------------------------------------------------
-- Reading a thread's messages, a run's context and a run's input.

-- Return the run with its input. After the first claim, the input is not in the run's row, but in a message of the run.
FUNCTION runyard.with_input(r runyard.runs) RETURNS runyard.runs;

-- Return the payload of the message that was the input of a run of this branch, or NULL. input_id and branch_id: NULL if the run has none.
FUNCTION runyard.stored_input(input_id uuid, branch_id bigint) RETURNS bytea;

-- Return one page of messages, each with the present status of its run, in the order of their numbers. at: the last message of the path. If
-- at is NULL, return all visible messages of a branch and the messages of its live run. of_branch: the branch, or NULL for the head. The
-- call for a later page must name the branch of the first page.
FUNCTION runyard.path_page(
    for_tenant text, thread_id text, at uuid, after bigint, before bigint, most bigint, newest_first boolean, of_branch bigint
) RETURNS TABLE (message runyard.messages, run_status text);

-- Return the view of all visible messages of a branch and of the messages of its live run. The live run is the head of the
-- branch's lane, provided that an attempt of it has begun.
FUNCTION runyard.live_view(t runyard.threads, of_branch bigint) RETURNS runyard.level[];

-- Return up to `most` of the messages that a run sees: the messages of its snapshot after the number `after`, then its own messages after
-- the number own_after. Raises stale_fence if another attempt has claimed the run. Workers of older releases call this function. Other
-- workers call runyard.history.
FUNCTION runyard.context(thread_key bigint, run_id text, with_fence bigint, after bigint, own_after bigint, most bigint)
RETURNS TABLE (message runyard.messages, own boolean);

-- Return the thread as the first row, then the messages that a checkpointer loads, if the thread has at most `most` messages. Return no row
-- if the thread does not exist. The first row is no message. Its column note is a JSON object with more (true if the thread may have more
-- messages), extra, config and parent_thread_id. If there are more messages, it has only more, unless `most` is 0. Messages have the form
-- of runyard.history.
FUNCTION runyard.load(for_tenant text, thread_id text, most bigint) RETURNS TABLE (
    seq bigint, id text, parent_id text, run_id text, role text, payload bytea, note text, calls text[], results text[], created_at bytea
);

-- Return the messages of a branch that belong to live external runs, or to runs that were never claimed.
FUNCTION runyard.uncompleted(thread_key bigint, branch_id bigint) RETURNS SETOF runyard.messages;

-- functions/redrive.sql -------------------------------------------------------------------------------------------------------
-- Redriving a failed or dead run.

-- Queue a failed or dead run again, at the end of its lane. Raises run_ended for any other run, and result_expired
-- for a fan-out whose messages have expired.
FUNCTION runyard.redrive(for_tenant text, thread_id text, run_id text, OUT run runyard.runs, OUT effects jsonb);

-- functions/refusals.sql ------------------------------------------------------------------------------------------------------
-- Refusals: typed errors for clients. Functions raise them, or return them as JSON.

-- Raise a typed error. code: the error code. message: the text of the error. details: a JSON object.
FUNCTION runyard.refuse(code text, message text, details jsonb DEFAULT '{}') RETURNS void;

-- Raise the error that another function returned as JSON. Do nothing for NULL.
FUNCTION runyard.raise(refused jsonb) RETURNS void;

-- Return the error of a reached limit on queued runs. which: the name of the limit. of: the lane, tenant or deployment, for the
-- message.
FUNCTION runyard.queue_full(which text, of text, most bigint) RETURNS jsonb;

-- Return the error of a message id that another message of the thread has.
FUNCTION runyard.id_taken(t runyard.threads, message_id uuid) RETURNS jsonb;

-- functions/removal.sql -------------------------------------------------------------------------------------------------------
-- Removing the rows of deleted threads. Each step is a short transaction. A deleted thread is invisible at once. Only deletions of forks
-- and other steps wait for its lock.
--
-- `most` is the maximum number of runs and messages that a call examines. Three callers choose it: the process that deletes a thread
-- (REMOVAL_ROWS in postgres/threads.py), the leader (runyard.prune in prune.sql), and runyard.delete_thread in deletion.sql (left_over).

-- Make one step for a deleted thread. Return true if more steps can be needed. Raises locked if another transaction holds a
-- lock that the remaining steps need. This is the lock of a fork, or of a wait whose child is ending.
FUNCTION runyard.remove_step(thread_key bigint, most integer) RETURNS boolean;

-- Make steps for deleted threads that still have rows, until about `most` rows are examined. Return true if more steps can be needed. If a
-- step of a thread fails or takes too long, the other threads and the caller continue. Each call begins at a random thread and examines up
-- to 100 threads. A thread whose steps always fail therefore does not delay the others.
FUNCTION runyard.remove_leftovers(most integer) RETURNS boolean;

-- Remove up to `most` rows of a deleted thread. The caller must have locked the thread. Return the number of examined rows. The number is 0
-- if nothing is left, or if a fork or a wait is locked.
FUNCTION runyard.remove_part(key bigint, most integer) RETURNS integer;

-- Return the levels through which live threads show a branch of a deleted thread.
FUNCTION runyard.shown_levels(branch_id bigint) RETURNS runyard.level[];

-- Examine up to `most` runs of a deleted thread. Remove those that no live thread shows, and hide the others. Return the number of examined
-- runs. Bitmap scans and sorts are off, because they could read all rows of a large thread in each step.
FUNCTION runyard.remove_runs(s runyard.removals, most integer) RETURNS integer;

-- Examine up to `most` messages of a branch of a deleted thread. Remove those that no live thread shows. Replace the others by
-- tombstones if the thread is erased. Remove the branch after its last message if no live thread shows it. Return the number of
-- examined messages.
FUNCTION runyard.remove_messages(s runyard.removals, of_branch bigint, most integer) RETURNS integer;

-- Remove the entries of an erased thread's extra that the thread has not inherited, and record their hashes. Remove them from the thread
-- and from up to `most` of its runs. Return the number of examined runs, at least 1.
FUNCTION runyard.erase_own_extra(s runyard.removals, most integer) RETURNS integer;

-- Remove the extra of an erased thread from the next thread that inherits from it, and from up to `most` runs of that thread. The function
-- locks the inheriting thread. Return 0 if another transaction has locked it. After a step that has locked a thread, return
-- `most`, because the transaction must not lock a second thread.
FUNCTION runyard.erase_extra(s runyard.removals, most integer) RETURNS integer;

-- functions/respond.sql -------------------------------------------------------------------------------------------------------
-- Answers to HITL requests. postgres/hitl_answers.py compares a repeated answer with the stored one.

-- Record an answer once. checked_request_id: the request against whose schema the caller has checked the answer. created: true if the
-- answer was recorded. created is false if the request was answered before. The caller must then compare the answers. created is NULL if
-- runyard.request_for returns another request than the caller has checked. is_last: true if the run waits for no other answer.
FUNCTION runyard.respond(
    for_tenant text, thread_id text, request_id text, response_id text, checked_request_id text, value bytea, who text, for_whom text,
    OUT request runyard.requests, OUT created boolean, OUT effects jsonb, OUT is_last boolean
);

-- Return the HITL request that an answer is for. This is the request request_id. Without request_id, it is the request that was
-- answered with response_id before: the answer is then a repetition. If there is no such request, it is the only pending
-- request of the thread. enable_sort: only the index of the thread's pending requests has them in order. Before the first ANALYZE, the
-- other indexes of pending requests look as cheap, and have the requests of all threads.
FUNCTION runyard.request_for(for_tenant text, thread_id text, request_id text, response_id text) RETURNS runyard.requests;

-- Queue the suspended run of an answered request. A suspended run stays the head of its lane. Its job has no data for the event run.queued,
-- because the run has had an attempt.
FUNCTION runyard.wake_run(thread_key bigint, run_id text, OUT effects jsonb);

-- functions/run_events.sql ----------------------------------------------------------------------------------------------------
-- The proven events of a run. These are the events that follow from the rows of the run. They are for readers of a stream that
-- Redis has lost. EVENTS_PER_READ and EVENT_BYTES_PER_READ in runyard/ports/scheduling.py are `most` and `bytes`.

-- Return the proven events of a run after the id `after`, in the order of their ids: at most `most` events and at most `bytes` together. A
-- larger event is returned alone. An attempt numbers its messages as it appends them, and a later attempt has a higher fence. Event ids of
-- messages are therefore in the order of seq, and a binary search finds the first message after an id. A wrong first_event can give two
-- events the same id. The function then returns the event with the higher `kind`, because readers wait for the end of the run. why: the
-- error of the run. asked: the ids of the HITL requests for which a suspended run waits. attempt: the number of the queued attempt.
FUNCTION runyard.run_events(thread_key bigint, run_id text, after bigint[], most integer, bytes bigint)
RETURNS TABLE (type text, proved_id text, in_thread text, message runyard.messages, request runyard.requests, why jsonb, asked text[], attempt integer);

-- Return an event id "<fence>-<n>" as an array of its two numbers, which can be compared. Return NULL for NULL and for any other text. An
-- array of NULLs would be greater than every place.
FUNCTION runyard.event_place(event_id text) RETURNS bigint[];

-- functions/same_request.sql --------------------------------------------------------------------------------------------------
-- Repetitions of requests: compare a request that has a known id with the first request. The hashes in
-- runyard/ports/commands.py, and runyard.accept for hosts, determine which fields are compared.

-- Return the run that has the id of the request, or a NULL row if the id is free. Raises run_conflict if the run's request was
-- different.
FUNCTION runyard.existing_run(for_tenant text, q runyard.request) RETURNS runyard.runs;

-- Return the compared options in which a run and a request differ, as an object. Each name has the value of the run and the value of the
-- request.
FUNCTION runyard.differing_options(r runyard.runs, q runyard.request) RETURNS jsonb;

-- Return the names of the fields in which two hashes of requests differ, as an array. The result does not contain the hashes, because a
-- caller could guess the text of a message from its hash.
FUNCTION runyard.differing_fields(one jsonb, two jsonb) RETURNS jsonb;

-- Return the thread that a request with the same hash has made, or a NULL row.
FUNCTION runyard.same_fork(for_tenant text, thread_id text, hash text) RETURNS runyard.threads;

-- Refuse the id if another thread than this fork has it.
FUNCTION runyard.check_free(for_tenant text, thread_id text, hash text) RETURNS void;

-- functions/signals.sql -------------------------------------------------------------------------------------------------------
-- Signals to threads, and the waits that take them. Both sides hold the lock of the thread.

-- Send a signal. The oldest open wait for the signal's name takes it. Waits of runs with a requested cancel take no signal. Without such a
-- wait, the signal stays until a run waits for it. If the thread has a signal with this id, change nothing, and return that signal with
-- created = false. The caller then compares the signals. If the run that took it is queued, also return the run's job. most: maximum number
-- of signals of the thread that no run has taken.
FUNCTION runyard.send_signal(
    for_tenant text, thread_id text, signal_id text, signal_name text, value bytea, who text, most integer,
    OUT signal runyard.signals, OUT created boolean, OUT effects jsonb
);

-- Return the oldest open wait of the thread for a signal. Its run has not ended, and no cancel of the run was requested. The row is NULL if
-- there is none.
FUNCTION runyard.wait_for_signal(thread_key bigint, signal_name text) RETURNS runyard.waits;

-- Return signals of an ended run to the thread: the signals that the run took and that none of its attempts received. Delete
-- the waits that took these signals, so that a redriven run waits again. The oldest open wait of another run takes a signal,
-- and its run is queued. Otherwise a later wait takes the signal.
FUNCTION runyard.give_back_signals(r runyard.runs, OUT effects jsonb);

-- Give the open waits of a run the open signals of their names, the oldest signal first.
FUNCTION runyard.take_signals(r runyard.runs, waits runyard.new_wait[]) RETURNS void;

-- functions/size_limits.sql ---------------------------------------------------------------------------------------------------
-- Limits on sizes: the maximum size of a message, and of the extra and the config of a thread.

-- Return the default of the limit message_bytes: the maximum bytes of one stored message. MESSAGE_BYTES in runyard.domain.size_limits has
-- the same value.
FUNCTION runyard.default_message_bytes() RETURNS bigint;

-- Refuse the messages if one of them has more than `most` bytes.
FUNCTION runyard.check_size(messages runyard.new_message[], most bigint) RETURNS void;

-- Refuse an extra that is too large for a thread.
FUNCTION runyard.check_extra(merged jsonb) RETURNS void;

-- Refuse a field (extra or config) that is too large for a thread. A merge can make a field too large, although each of its parts is small
-- enough.
FUNCTION runyard.check_merged(field text, merged jsonb) RETURNS void;

-- functions/startable.sql -----------------------------------------------------------------------------------------------------
-- The rules for which queued run may start next, and which fork jobs may start when the run of their cut ends. A prompt
-- may start if it is the head of its lane. A fork job may start if it waits for no other run. A fan-out waits until fewer than
-- runs.until_fewer of its started runs are live. execution/fan_out_candidates.py chooses this number. fan_out.sql offers the
-- job of the fan-out again.

-- Return the head of a lane: its first run that has not ended. floor: a number up to which all runs of the lane have ended
-- (threads.lane_floor), or 0 for a lane other than ''. Postgres inlines this function into a statement that names it after
-- FROM. In a statement that needs the whole row, the function therefore costs no extra time. If a statement needs only one
-- column, or only the existence of a head, the statement becomes about ten microseconds slower, because its plan computes
-- every column. The statements of each accept and claim therefore repeat the condition instead (make_way in lanes.sql,
-- plain_runs.sql, startable and not_startable below).
FUNCTION runyard.lane_head(thread_key bigint, in_lane text, floor bigint) RETURNS SETOF runyard.runs;

-- Return effects with the queued fork jobs that wait for the end of a run.
FUNCTION runyard.waiting_for(thread_key bigint, run_id text) RETURNS jsonb;

-- Return effects with the job of the run if the run may start at once: it is the head of its lane, or a fork job that waits for no run.
FUNCTION runyard.startable(t runyard.threads, r runyard.runs) RETURNS jsonb;

-- Return the outcome of a claim of a queued run that cannot start. outcome: the reason, or NULL if the run can start. retry_in: seconds
-- until the run is due. If the run has expired, fail it.
FUNCTION runyard.not_startable(
    t runyard.threads, r runyard.runs, OUT outcome text, OUT retry_in double precision, OUT effects jsonb
);

-- Return true if a fork job must wait for the run at its cut, or for runs that it started.
FUNCTION runyard.must_wait(r runyard.runs) RETURNS boolean;

-- functions/steps.sql ---------------------------------------------------------------------------------------------------------
-- The steps of runs: begin and finish a step.

-- Begin a step of the locked run r. Return NULL if the run's attempt may execute the step. Return the earlier row of the step if it is
-- finished or another attempt began it. A repetition of this call after a lost reply also returns NULL. arguments: of the step, as short
-- text, or NULL.
FUNCTION runyard.begin_step_v2(r runyard.runs, step text, arguments text) RETURNS runyard.steps;

-- Begin a step without arguments, for start_step.
FUNCTION runyard.begin_step(r runyard.runs, step text) RETURNS runyard.steps;

-- Record the result of a step of the locked run r. A result that is already recorded stays unchanged. used: as for add_messages.
FUNCTION runyard.end_step(r runyard.runs, step text, value bytea, used jsonb) RETURNS void;

-- Begin a step of an attempt's run. Return no row if this attempt may execute the step. Workers of older releases, whose writes are not
-- batched, call this function.
FUNCTION runyard.start_step(thread_key bigint, run_id text, with_fence bigint, step text) RETURNS SETOF runyard.steps;

-- Record the result of a step of an attempt's run. Workers of older releases, whose writes are not batched, call this function.
FUNCTION runyard.finish_step(thread_key bigint, run_id text, with_fence bigint, step text, value bytea) RETURNS void;

-- functions/store_message.sql -------------------------------------------------------------------------------------------------
-- Storing messages without a run.

-- Store a message without a run. If a message with its id is stored already, return the stored message. The caller must
-- compare the two messages. parent_id: NULL to add to the head, root_id() to begin another tree. expected: the last message
-- that the caller has seen, or NULL.
FUNCTION runyard.store_message(for_tenant text, thread_id text, m runyard.new_message, parent_id uuid, expected uuid)
RETURNS SETOF runyard.messages;

-- Insert messages without a run at the end of a branch. Each message is the child of the message before it. The caller must have
-- checked their ids and sizes.
FUNCTION runyard.put_plain(INOUT t runyard.threads, branch runyard.branches, messages runyard.new_message[]);

-- functions/suspend.sql -------------------------------------------------------------------------------------------------------
-- Suspending a run until one of its HITL requests is answered or one of its waits ends. A suspended run holds no permit and no worker.

-- Store the attempt's write w, and suspend its run until one of `requests` is answered or one of `waits` ends. If one of them
-- is answered or ended already, the run stays running. known: the ids of stored requests for which the run still waits.
FUNCTION runyard.suspend_v2(w runyard.attempt_write, requests runyard.new_request[], known text[], waits runyard.new_wait[])
RETURNS runyard.ended;

-- Record that the present attempt has the answers and the signals that no earlier attempt had.
FUNCTION runyard.receive_answers(r runyard.runs) RETURNS void;

-- Suspend a run that waits only for answers. Workers of older releases, which have no waits, call this function.
FUNCTION runyard.suspend(w runyard.attempt_write, requests runyard.new_request[]) RETURNS runyard.ended;

-- functions/tags.sql ----------------------------------------------------------------------------------------------------------
-- Tags of threads. Lists read the table thread_tags. Triggers write it.

-- Return the digest of a tag. The digest is indexed, because a tag may be too long for an index entry. Readers also compare the tag
-- itself, because two tags may have the same digest.
FUNCTION runyard.tag_term(name text, value text) RETURNS bytea;

-- Write the changed tags of a thread to thread_tags.
FUNCTION runyard.note_tags() RETURNS trigger;

-- functions/take_over.sql -----------------------------------------------------------------------------------------------------
-- Taking over a run after the death of its worker, or after its worker has lost the run's task.

-- Check that the claimant may take over a running run. This is allowed if the worker of the run is dead or has left, or if it
-- is the claimant itself. Only the death of a worker counts as a crash, because a worker that left has stopped the attempt.
-- outcome: NULL if the claim may continue, 'busy' if the worker is alive or the run is external, 'ended' if this function has
-- ended the run because of its crashes or a cancel.
FUNCTION runyard.take_over(
    INOUT t runyard.threads, INOUT r runyard.runs, claimant runyard.workers, limited boolean, OUT outcome text, OUT effects jsonb
);

-- functions/threads.sql -------------------------------------------------------------------------------------------------------
-- Threads: find, lock, make and change a thread.

-- Lock and return the thread, or return a NULL row.
FUNCTION runyard.live_thread(for_tenant text, thread_id text) RETURNS runyard.threads;

-- Lock and return the thread. Raises thread_not_found.
FUNCTION runyard.known_thread(for_tenant text, thread_id text) RETURNS runyard.threads;

-- Return the thread without a lock, for reads. Raises thread_not_found.
FUNCTION runyard.known_snapshot(for_tenant text, thread_id text) RETURNS runyard.threads;

-- Return a run of the thread. Raises run_not_found.
FUNCTION runyard.known_run(t runyard.threads, run_id text) RETURNS runyard.runs;

-- Lock and return the thread. If it does not exist, make it with its first branch. of_agent: the agent of the request, '/' for a request
-- without an agent, or NULL for a thread without an agent. A new thread with unadmitted runs gets the agent of the first of them.
FUNCTION runyard.ensure_thread(for_tenant text, thread_id text, of_agent text DEFAULT NULL)
RETURNS runyard.threads;

-- Make and return a thread with its first branch. Return a NULL row if the thread exists.
FUNCTION runyard.make_thread(for_tenant text, thread_id text, of_agent text) RETURNS runyard.threads;

-- Lock threads in the order of their keys, and return the keys of those that exist. patience: milliseconds to wait for each lock before
-- lock_not_available is raised, or NULL for the session's limit. 0 skips the threads that another transaction has locked.
FUNCTION runyard.lock_threads(thread_keys bigint[], patience integer) RETURNS bigint[];

-- Make and return the missing threads of plain requests, in the order of their ids. A thread gets the agent of its first request. Raise
-- lock_not_available, which undoes the caller's work, if a deleted thread with such an id is still being removed, or if a host has accepted
-- a run for such an id. The function looks for both after the insert, because the insert may wait for other transactions that make the
-- same threads. If two transactions wait for each other, lock_timeout ends one of the waits.
FUNCTION runyard.make_threads(for_tenant text, requests runyard.request[]) RETURNS SETOF runyard.threads;

-- Raise locked if the runs of a deleted thread with this id are still being removed. Otherwise a new run could not be
-- distinguished from an old run with the same id. run_id: the run of a request, or NULL. If this run was accepted in a host's
-- transaction and has no thread yet, no error is raised, because the request is a repetition.
FUNCTION runyard.check_removed(for_tenant text, thread_id text, run_id text DEFAULT NULL) RETURNS void;

-- Lock and return the thread of a run. Make the thread if a host's transaction has accepted the run before the thread existed.
FUNCTION runyard.ensure_for_run(for_tenant text, thread_id text, run_id text) RETURNS runyard.threads;

-- Make an empty thread. If a request with the same hash made the thread before, return it unchanged, with created = false.
FUNCTION runyard.create_thread(
    for_tenant text, thread_id text, hash text, of_agent text, with_title text, with_tags jsonb, with_extra jsonb, with_config jsonb,
    OUT thread runyard.threads, OUT created boolean
);

-- Raise precondition_failed if the thread has changed since the caller read it. seen: the updated_at that the caller has read, or NULL for
-- no check.
FUNCTION runyard.check_unchanged(t runyard.threads, seen timestamptz) RETURNS void;

-- Return the value of a field (extra or config) of a thread after a change. Each key of the change replaces the whole value of that key. A
-- key that is null is removed. A change that is null empties the field.
FUNCTION runyard.patched(field text, before jsonb, change jsonb) RETURNS jsonb;

-- Set the fields of `patch`, and clear its fields that are null. Merge `extra` and `config`. Each change gives the thread a new updated_at,
-- because callers use updated_at as a version.
FUNCTION runyard.update_thread(for_tenant text, thread_id text, patch jsonb, seen timestamptz) RETURNS runyard.threads;

-- functions/timeline.sql ------------------------------------------------------------------------------------------------------
-- The timeline of a run, and the search for runs by the beginning of their ids.

-- Return at most `most` runs whose ids begin with `prefix`. If runs have exactly this id, return only these.
FUNCTION runyard.find_runs(for_tenant text, prefix text, most integer) RETURNS TABLE (thread_id text, run_id text);

-- Return the durations of a run, and its last message. queued: seconds from the due time to the first attempt. running: seconds in
-- attempts. parked: seconds from suspensions to the next attempts. waiting: seconds from errors, releases and crashes to the next attempts.
-- An external run has no attempts.
FUNCTION runyard.run_durations(for_tenant text, thread_id text, run_id text)
RETURNS TABLE (queued double precision, running double precision, parked double precision, waiting double precision, message runyard.messages);

-- Return a page of a run's timeline: at most `most` entries after the place (after_time, after_kind, after_key), and about `bytes`
-- together. A larger entry is a page of its own. An entry is an attempt (kind 0), a message (1), a step (2) or a HITL request (3). since:
-- the time at which the work for a message began. of_fence: the attempt of the message. call_seq: the number of the message whose tool
-- calls a message answers. attempt: the attempt, or the attempt that started a step without a result. size: the bytes of a step's
-- result. A result of more than `large` bytes is omitted. total: the number of entries, counted up to one more than `most`. With
-- `enable_material` off, each message of the page is found by an index. Otherwise a planner without statistics would compare each
-- entry with all messages of the branch.
FUNCTION runyard.run_timeline(
    for_tenant text, thread_id text, run_id text, after_time timestamptz, after_kind integer, after_key text, most integer, bytes bigint,
    large integer
) RETURNS TABLE (
    kind integer, at timestamptz, key text, since timestamptz, of_fence bigint, call_seq bigint, size bigint, total bigint,
    attempt runyard.attempts, message runyard.messages, step runyard.steps, request runyard.requests
);

-- Return the messages with these numbers on the branch of a run.
FUNCTION runyard.messages_of_run(for_tenant text, thread_id text, run_id text, numbers bigint[]) RETURNS SETOF runyard.messages;

-- Return a run of a thread, or a run that the thread inherited with all its messages. The ancestor can be deleted. Raise an
-- error if there is no such run, or if the thread is deleted.
FUNCTION runyard.seen_run(for_tenant text, thread_id text, run_id text) RETURNS runyard.runs;

-- Return the attempts of a run. Two attempts have no row in `attempts`: a running attempt, and the attempt that completed the
-- run. The run's row has their data.
FUNCTION runyard.attempts_of(r runyard.runs) RETURNS SETOF runyard.attempts;

-- Return one attempt of a run.
FUNCTION runyard.attempt_of(r runyard.runs, fence bigint) RETURNS SETOF runyard.attempts;

-- Return a step. Omit its result if the result has more than `large` bytes.
FUNCTION runyard.without_large_result(accept_no bigint, step_key text, large integer) RETURNS runyard.steps;

-- Return the key of an entry of a timeline. The key orders entries of the same time and is a part of cursors. A long name is hashed,
-- because a cursor has a maximum length.
FUNCTION runyard.place_key(name text) RETURNS text;

-- Return the seconds from one time to another, at least 0. Return 0 if a time is missing.
FUNCTION runyard.seconds_between(since timestamptz, until timestamptz) RETURNS double precision;

-- functions/timeline_waits.sql ------------------------------------------------------------------------------------------------
-- The waits of a run, for its timeline.

-- Return a page of the waits of a run in the order of their begin: at most `most` waits after the place (after_time, after_kind, after_key),
-- and about `bytes` together. A larger wait is a page of its own. Entries of waits have the kind 4 in a timeline (run_timeline). value: the
-- value of the signal that the wait took. A value of more than `large` bytes is omitted. size: the bytes of the value. child_status: the
-- status of the child, or NULL if there is no child. total: the number of waits, counted up to one more than `most`.
FUNCTION runyard.run_waits(
    for_tenant text, thread_id text, run_id text, after_time timestamptz, after_kind integer, after_key text, most integer, bytes bigint,
    large integer
) RETURNS TABLE (
    at timestamptz, key text, wait_id text, kind text, name text, due_at timestamptz, ended_at timestamptz, signal_id text, value bytea,
    size integer, child_status text, total bigint
);

-- functions/tool_cycles.sql ---------------------------------------------------------------------------------------------------
-- Tool cycles: the open tool calls of a view, and the check that all tool calls of a run have results. cuts.sql refuses a fork inside a
-- tool cycle.

-- Return the ids of the tool calls of a view that have no result in the view, in order. The function reads only messages with calls or
-- results.
FUNCTION runyard.open_calls(levels runyard.level[]) RETURNS text[];

-- Return true if every tool call of the run is directly followed by its result, and the run has no other results. The run's first results
-- may belong to open tool calls of its context.
FUNCTION runyard.cycles_closed(r runyard.runs) RETURNS boolean;

-- Return true if an id occurs twice.
FUNCTION runyard.repeats(ids text[]) RETURNS boolean;

-- functions/usage.sql ---------------------------------------------------------------------------------------------------------
-- Usage of runs: sums and differences of usages, and totals by tenant, agent and day. The totals are counted from the feed.
-- end_run.sql writes the usage of a run to the feed.

-- Return the sum of two usages. If one of them is damaged, return `a`. An error would stop every verb that adds to a damaged usage.
FUNCTION runyard.add_usage(a jsonb, b jsonb) RETURNS jsonb;

-- Return the larger amounts of two usages, or `a` if `b` is NULL. If `a` is damaged, return it, as add_usage does.
FUNCTION runyard.most_usage(a jsonb, b jsonb) RETURNS jsonb;

-- Return a number of a usage. A value that is no number or is too large counts as 0. An error would stop the leader, which counts the runs
-- of every tenant.
FUNCTION runyard.amount(usage jsonb, name text) RETURNS numeric;

-- Return the usage `a` minus the usage `b`.
FUNCTION runyard.less_usage(a jsonb, b jsonb) RETURNS jsonb;

-- Add up to `most` entries of the tenant c.tenant to its totals: entries after (c.transaction, c.position) and before c.goal. Move c to the
-- last added entry. Return the number of added entries.
FUNCTION runyard.count_entries(INOUT c runyard.usage_counter, most integer, OUT entries integer);

-- Return the next tenant after c.tenant that has entries to count, or NULL if there is none. If the search stops after `most` tenants,
-- return the tenant at which it stops. A tenant without entries to count costs one read of the index. looks: the number of these reads.
FUNCTION runyard.next_to_count(c runyard.usage_counter, most integer, OUT tenant text, OUT looks integer);

-- Add about `most` entries of the outbox to the totals (the `limit` of `count` in runyard/ports/stores.py). The leader calls this
-- function. The function counts in rounds, tenant by tenant. The end of a round sets the goal of the next round: the entries of
-- all transactions that have begun. The next round begins when all these transactions have ended. No new entry can then appear
-- among the counted entries. One transaction writes the totals and the progress. A second leader finds the row locked and does
-- nothing.
FUNCTION runyard.count_usage(most integer) RETURNS void;

-- Return the totals of a tenant's days from `since` to `until`, both included. for_agent: an agent, or '' for all agents
-- together. counted_until: the time up to which the totals are complete. Without days, the result is one row that has only
-- counted_until.
FUNCTION runyard.usage_of(for_tenant text, for_agent text, since date, until date)
RETURNS TABLE (counted_until timestamptz, day date, runs bigint, requests numeric, input_tokens numeric, output_tokens numeric, cost numeric,
               seconds numeric);

-- functions/visible_messages.sql ----------------------------------------------------------------------------------------------
-- The visible messages of a branch, a run or a cut. A view is an array of levels. A level shows a message of its branch under two
-- conditions. First, the number of the message is at most the high water. Second, the message has no run, or belongs to the level's open
-- run, or the completion number of its run is at most the cutoff. Message numbers grow along every path. The messages of a view
-- are therefore ordered by seq. cuts.sql makes the levels of a fork.

-- Return all messages of a view, level by level. Every plan of the join reads only runs of one thread. A subquery per message would cost
-- three times as much.
FUNCTION runyard.visible(levels runyard.level[]) RETURNS SETOF runyard.messages;

-- Return the number of messages that a view shows.
FUNCTION runyard.count_visible(levels runyard.level[]) RETURNS bigint;

-- Return at most `most` visible messages of a level whose numbers are between `after` and `before`, each with the present status of its
-- run. newest_first: true to begin with the highest number. The function reads only these messages, the invisible messages
-- between them, and the runs of both. Without OFFSET 0, a plan may read all runs of the thread.
FUNCTION runyard.visible_page(l runyard.level, after bigint, before bigint, most bigint, newest_first boolean)
RETURNS TABLE (message runyard.messages, run_status text);

-- Return the first branch of a thread.
FUNCTION runyard.first_branch(thread_key bigint) RETURNS bigint;

-- Return the levels that a branch inherits.
FUNCTION runyard.inherited(branch_id bigint) RETURNS runyard.level[];

-- Return the view of all visible messages of a branch.
FUNCTION runyard.branch_view(branch_id bigint) RETURNS runyard.level[];

-- Return the view of the messages that a run saw at its claim.
FUNCTION runyard.run_view(r runyard.runs) RETURNS runyard.level[];

-- Return the last message of a view, or a NULL row.
FUNCTION runyard.last_visible(levels runyard.level[], OUT message_id uuid, OUT seq bigint);

-- Return a message of an ancestor that a thread shows, with the level that shows the message and with its run. Return no row if the thread
-- does not show it. The function reads only the levels of the thread's first branch, because this branch inherits all messages that any
-- branch of the thread inherits.
FUNCTION runyard.seen_through(thread_key bigint, message_id uuid)
RETURNS TABLE (level runyard.level, message runyard.messages, run runyard.runs);

-- Return an inherited run and the level that shows it, or no row. open: true for the open run of a level, false for a completed run.
FUNCTION runyard.inherited_run(thread_key bigint, run_id text)
RETURNS TABLE (run runyard.runs, level runyard.level, open boolean);

-- Return an inherited run whose messages the thread shows completely, or no row. Readers of the thread do not find other
-- inherited runs. These are runs that were not completed at the cut, or that have messages after the cut.
FUNCTION runyard.whole_run(thread_key bigint, run_id text) RETURNS SETOF runyard.runs;

-- Return the id of the last completed run on the head's path. The end of this run is the default cut.
FUNCTION runyard.last_completed(t runyard.threads) RETURNS text;

-- Return the extra of a cut: the latest extra that was saved with a completed run before the cut, or else the extra with which the thread
-- began.
FUNCTION runyard.extra_at(view runyard.level[]) RETURNS jsonb;

-- functions/waits.sql ---------------------------------------------------------------------------------------------------------
-- Waits of suspended runs for a time, a signal or a child.

-- Store the waits of an attempt's run in the order of `waits`, and end the waits that are due. A repetition changes nothing. ended: true if
-- one of `waits` has ended.
FUNCTION runyard.put_waits(r runyard.runs, waits runyard.new_wait[], OUT ended boolean);

-- Close the open sleeps and signals of a run that ends. Those of a cancelled run stay, with the time of their end. Those of any other
-- run are deleted, because a redriven run begins them again.
FUNCTION runyard.close_waits(r runyard.runs) RETURNS void;

-- Close the waits of a run that ends, and give back its unread signals. Return as effects the jobs of the runs that take these signals.
FUNCTION runyard.leave_waits(r runyard.runs, OUT effects jsonb);

-- End the waits of the thread that are due, and queue their suspended runs.
FUNCTION runyard.end_waits(thread_key bigint, OUT effects jsonb);

-- functions/webhooks.sql ------------------------------------------------------------------------------------------------------
-- Webhooks: make deliveries from the feed, take due deliveries, and record the outcomes of their tries.
-- runyard/worker/webhook_dispatcher.py chooses `most` (MAX_IN_FLIGHT), `each` (MAX_IN_FLIGHT_PER_ENDPOINT) and `lease`.

-- Make deliveries from committed entries. Then take at most `most` due deliveries, endpoint by endpoint in the order of the
-- endpoints' names, beginning after the endpoint `after`. An endpoint gets at most `each` deliveries, minus its number in
-- `busy` (endpoint → number of deliveries that are being sent). A taken delivery that is not settled is due again after `lease`
-- seconds. versions: the versions of the secret that sign; empty if the delivery's webhook was removed.
FUNCTION runyard.take_webhooks(busy jsonb, after text, most integer, each integer, lease double precision)
RETURNS TABLE (delivery_no bigint, delivery_id text, tenant text, webhook_id text, versions integer[], url text, endpoint text, type text,
               thread_id text, run_id text, created_at timestamptz, tries integer);

-- Return true if a delivery was made for a webhook. A webhook with the same id may have been made after the delivery. It then
-- has another owner or another URL. A webhook for all tenants belongs to ''.
FUNCTION runyard.is_delivery_of(d runyard.webhook_deliveries, w runyard.webhooks) RETURNS boolean;

-- Make about `most` deliveries from the feed's entries for a webhook, and move the webhook's cursor, in one transaction. The
-- function reads all entries of each transaction, and only transactions that are older than the oldest open transaction. No entry
-- can therefore appear before the cursor. Without entries, nothing is written.
FUNCTION runyard.spread_webhook(w runyard.webhooks, most integer) RETURNS void;

-- Set the owner of a delivery that code of the previous release makes. The owner is the owner of the delivery's webhook.
FUNCTION runyard.choose_delivery_owner() RETURNS trigger;

-- Return the tenants that have entries in the outbox.
FUNCTION runyard.feed_tenants() RETURNS text[];

-- Record the outcome of a try: `delivered`, `retried` (due again after `pause` seconds), `failed`, or `gone`. `gone` also disables the
-- webhook. If a later try has begun, only `delivered` is recorded.
FUNCTION runyard.settle_webhook(delivery_no bigint, of_try integer, outcome text, answered integer, why text, pause double precision)
RETURNS void;

-- Add a webhook. If a webhook of any tenant has the id already, return that webhook. Raises too_many_webhooks if the tenant has `most`
-- webhooks.
FUNCTION runyard.add_webhook(webhook_id text, of_tenant text, url text, events text[], most integer) RETURNS runyard.webhooks;

-- Remove a webhook of a tenant and its pending deliveries. Keep the highest version of the secrets of all removed webhooks, in
-- one row. A webhook that is made later begins after this version. It therefore has another secret, for any owner. Return true
-- if the webhook existed.
FUNCTION runyard.remove_webhook(for_tenant text, webhook_id text) RETURNS boolean;

-- Make a delivery due again if it arrived or failed. Return false if there is no such delivery, or if its webhook was removed
-- or disabled.
FUNCTION runyard.redeliver(for_tenant text, delivery_id text) RETURNS boolean;

-- functions/worker_demand.sql -------------------------------------------------------------------------------------------------
-- The demand for workers: the number of slots that the runs need. A program that scales workers reads this number (charts/runyard).

-- Return the number of slots that the runs of the queues need. Running runs and runs that wait only for a worker need a slot. At most
-- 100000 waiting runs are counted. Waiting runs of a paused queue need no slot. If no slot is needed now but a worker will be
-- needed later, return 1. A worker is needed later for a delayed run, a run that was accepted in a host's transaction, a run
-- that expires, a HITL request with a deadline, and a wait with a due time. in_queues: the queues, or NULL for all queues. If
-- it is NULL, webhooks and the removal of deleted threads also need a worker. The function has the rights of its owner, so that
-- the caller needs only the right to call it.
FUNCTION runyard.worker_demand(in_queues text[]) RETURNS bigint;

-- Return the first queued run of each lane without a started run, and every queued run without a lane.
FUNCTION runyard.queued_heads() RETURNS SETOF runyard.live_runs;

-- Return true if a run of the queues has a due time, a deadline or an expiry, at which a worker must act.
FUNCTION runyard.has_deadline(in_queues text[]) RETURNS boolean;

-- Return true if a worker has other work than runs: deliveries to a webhook, or the removal of a deleted thread.
FUNCTION runyard.has_chores() RETURNS boolean;

-- functions/workers.sql -------------------------------------------------------------------------------------------------------
-- The register of workers, the leader's lease, and the functions by which the leader finds runs to submit again.
-- runyard/worker/lost_jobs.py chooses their `most` and `unchanged` (ORPHANS_PER_PAGE, RECENT_ROWS, ROTATION_ROWS, MIN_HEAD_AGE).

-- Register a worker and its agents. A repetition after a lost reply only renews the heartbeat. Raises worker_dead for the id of a
-- dead worker.
FUNCTION runyard.register_v2(
    worker_id text, in_queues text[], with_agents jsonb, with_default text, version text, on_mismatch text, with_slots integer, at_address text,
    asking text[]
) RETURNS void;

-- Register a worker of an older release, which has no namespaces.
FUNCTION runyard.register(
    worker_id text, in_queues text[], with_agents jsonb, version text, on_mismatch text, with_slots integer, at_address text,
    asking text[]
) RETURNS void;

-- Record a worker's heartbeat. Return the state to which the worker must react. draining: true if the worker must claim no more runs.
-- paused: the paused queues. oldest_code: the oldest code version that can run on the schema.
FUNCTION runyard.beat(worker_id text, OUT draining boolean, OUT paused text[], OUT oldest_code integer);

-- Return the error for the attempts of a dead worker whose main loop was blocked. Return NULL for any other worker. The place
-- and the stack are shortened to MAX_PLACE_CHARACTERS (ports/workers.py) and MAX_TRACEBACK_BYTES (domain/size_limits.py),
-- because any program with the rights of a worker can write them. A character has at most four bytes.
FUNCTION runyard.blocked_error(of_worker text) RETURNS jsonb;

-- Return the facts about a blocked main loop for runyard.explain: the time and the place. Return {} if the loop is not blocked.
FUNCTION runyard.blocked_facts(w runyard.workers) RETURNS jsonb;

-- Take or renew a lease for `ttl` seconds. Return true if the worker holds the lease.
FUNCTION runyard.lead(lease text, worker_id text, ttl double precision) RETURNS boolean;

-- Return the running runs of workers that are dead or have left, worker by worker, in the order of the workers' ids after
-- `after_worker`. The page ends when it has at least `most` runs and all runs of its last worker. For a live worker, the
-- function reads two index entries, however many runs the worker has.
FUNCTION runyard.orphans(after_worker text, most integer)
RETURNS TABLE (job jsonb, cancelled boolean, worker_id text);

-- Examine at most `most` queued runs after the given place, in the order of (changed_at, accept_no). Return the jobs of the
-- runs that wait only for a worker. If there may be more runs, the last row has the place of the last examined run and no job.
-- unchanged: the shortest time since the last change of an examined run. within: the longest time since this change, or NULL.
FUNCTION runyard.waiting(
    unchanged interval, within interval, after_time timestamptz, after_no bigint, most integer
) RETURNS TABLE (job jsonb, place_time timestamptz, place_no bigint);

-- Return the jobs of the given runs that still wait only for a worker, as in runyard.waiting.
FUNCTION runyard.still_waiting(unchanged interval, thread_keys bigint[], run_ids text[]) RETURNS SETOF jsonb;

-- Return true if an admitted run is the head of its lane. The function reads the index backwards from the run, because the front of a long
-- lane may have index entries of many ended runs.
FUNCTION runyard.leads_lane(l runyard.live_runs) RETURNS boolean;

-- Return true if a queued run at the head of its lane waits only for a worker. The run must have been due for the time `unchanged`, and
-- wait for no other run.
FUNCTION runyard.waits_for_worker(r runyard.runs, unchanged interval) RETURNS boolean;

-- functions/write.sql ---------------------------------------------------------------------------------------------------------
-- The writes of attempts: lock the run, compare the fence, and store the write. complete_plain (plain_runs.sql) repeats these
-- conditions for the completions of a batch.

-- Lock a thread, and return it with one of its runs. A row is NULL if the thread or the run does not exist. patience:
-- milliseconds to wait for the lock. After this time the rows are NULL. If patience is NULL, the session's lock_timeout
-- applies, and the call fails after it.
FUNCTION runyard.lock_run(thread_key bigint, run_id text, patience integer DEFAULT NULL, OUT t runyard.threads, OUT r runyard.runs);

-- Wait for the lock of a thread, and return the thread. The row is NULL if there is no thread, or if another transaction keeps the lock for
-- longer than `patience` milliseconds. This wait has a short lock_timeout and therefore needs a subtransaction.
FUNCTION runyard.wait_for_thread(thread_key bigint, patience integer) RETURNS runyard.threads;

-- Return NULL if the attempt may write. Otherwise return the reason: 'stale_fence', 'cancel_requested', or 'repeated' for an attempt that
-- has already ended.
FUNCTION runyard.write_refused(r runyard.runs, with_fence bigint) RETURNS text;

-- Raise stale_fence or cancel_requested if the attempt may not write.
FUNCTION runyard.refuse_write(r runyard.runs, with_fence bigint) RETURNS void;

-- Lock an attempt's run for its last write. over: true if the caller must return `e` and store nothing. over is true if a cancel was
-- requested, and then this function has cancelled the run. over is also true if the write is stale, a repetition, or refused as locked.
-- first_event: the number of the attempt's next event, or NULL if the caller is not the attempt. With NULL, the event of a cancel gets a
-- new fence. used: the usage of the write, or NULL. The usage counts even if the run is cancelled. patience: milliseconds to wait for the
-- thread's lock before the write is refused as locked.
FUNCTION runyard.lock_attempt(
    thread_key bigint, run_id text, with_fence bigint, first_event integer, used jsonb, patience integer DEFAULT NULL,
    OUT t runyard.threads, OUT r runyard.runs, OUT e runyard.ended, OUT over boolean
);

-- Store the messages of an attempt's last write. Add its extra, usage and result to the row `r`, which the caller must save.
FUNCTION runyard.keep_write(
    INOUT t runyard.threads, INOUT r runyard.runs, w runyard.attempt_write, message_bytes bigint
);

-- Record an attempt that ended without completing its run. how: the outcome. why: the error, or NULL.
FUNCTION runyard.note_attempt(r runyard.runs, how text, why jsonb) RETURNS void;
