-- The schema "runyard": every sequence, type and table, and the signature of every function, with the comments of migrations/
-- and functions/. Written by `make schema`. To read, not to edit or run: `runyard migrate` applies the files of those folders.

CREATE SEQUENCE runyard.branch_numbers;

CREATE SEQUENCE runyard.accept_numbers;

CREATE SEQUENCE runyard.lane_numbers;

CREATE SEQUENCE runyard.fences;

-- Threads. A deleted one stays as long as a fork shows something of it. fork_hash: of the request that made the thread.
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
    agent text,
    title text,
    tags jsonb DEFAULT '{}' NOT NULL,
    base_extra jsonb DEFAULT '{}' NOT NULL,
    extra jsonb DEFAULT '{}' NOT NULL,
    extra_changed boolean DEFAULT false NOT NULL,
    config jsonb DEFAULT '{}' NOT NULL,
    usage jsonb DEFAULT '{}' NOT NULL,
    created_at timestamptz DEFAULT now() NOT NULL,
    updated_at timestamptz DEFAULT now() NOT NULL,
    deleted_at timestamptz,
    CONSTRAINT threads_pkey PRIMARY KEY (thread_key)
)
WITH (fillfactor='70');
CREATE UNIQUE INDEX threads_id ON runyard.threads (tenant, thread_id)
    WHERE (deleted_at IS NULL);
-- The indexes of lists (runyard.list_threads). Each has a condition that always holds, and that only its list states. It keeps the index
-- out of the plans of verbs and of other lists: a plan made while the table is small could find a row by its tenant alone, and would
-- stay as the table grows. The same holds for runs and requests.
CREATE INDEX threads_list ON runyard.threads (tenant, thread_key)
    WHERE ((deleted_at IS NULL) AND (thread_key > 0));
CREATE INDEX threads_list_of_agent ON runyard.threads (tenant, agent, thread_key)
    WHERE ((deleted_at IS NULL) AND (agent IS NOT NULL) AND (thread_key > -1));
CREATE INDEX threads_list_of_parent ON runyard.threads (tenant, parent_thread_id, thread_key)
    WHERE ((deleted_at IS NULL) AND (parent_thread_id IS NOT NULL) AND (thread_key > -1));
CREATE TRIGGER tagged AFTER INSERT ON runyard.threads FOR EACH ROW WHEN ((new.tags <> '{}')) EXECUTE FUNCTION runyard.note_tags();
CREATE TRIGGER tagged_anew AFTER UPDATE OF tags ON runyard.threads FOR EACH ROW WHEN ((old.tags <> new.tags)) EXECUTE FUNCTION runyard.note_tags();

-- The threads that carry a tag, in the order of lists. An inverted index would give them in no order: a page would cost as much as all
-- threads that carry the tag. term: runyard.tag_term of one name and value.
CREATE TABLE runyard.thread_tags (
    tenant text NOT NULL,
    term bytea NOT NULL,
    thread_key bigint NOT NULL,
    CONSTRAINT thread_tags_pkey PRIMARY KEY (tenant, term, thread_key)
);

-- The branches of a thread. leaf: the last visible message, the branch's own or inherited. base: the message at which it begins.
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
WITH (fillfactor='70');
CREATE INDEX branches_thread ON runyard.branches (thread_key);

-- What a branch inherits: of each ancestor, the messages up to a number whose runs completed up to a cutoff, and those of one open run.
CREATE TABLE runyard.levels (
    branch_id bigint NOT NULL,
    ancestor_id bigint NOT NULL,
    high_water_seq bigint NOT NULL,
    cutoff bigint NOT NULL,
    open_run_id text,
    CONSTRAINT levels_pkey PRIMARY KEY (branch_id, ancestor_id)
);
CREATE INDEX levels_ancestor ON runyard.levels (ancestor_id);

-- The messages of a branch. payload NULL: a tool result that the store wrote itself to close open calls; note is its text.
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
    created_at timestamptz DEFAULT now() NOT NULL,
    CONSTRAINT messages_pkey PRIMARY KEY (branch_id, seq)
);
CREATE INDEX messages_id ON runyard.messages (message_id, branch_id);
CREATE INDEX messages_tools ON runyard.messages (branch_id, seq)
    WHERE ((calls IS NOT NULL) OR (results IS NOT NULL));

-- A level of a view: what is visible of one branch.
CREATE TYPE runyard.level AS (
    branch_id bigint,
    high_water_seq bigint,
    cutoff bigint,
    open_run_id text
);

-- A message that is to be stored.
CREATE TYPE runyard.new_message AS (
    message_id uuid,
    role text,
    payload bytea,
    calls text[],
    results text[]
);

-- Whether a status and its timestamps fit. A function, because a constraint's expression is parsed anew for every statement.
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

-- Runs of every kind, live and ended. candidates: the messages of a fan-out. started_by: the run that started this one, which is offered again when this one ends; until_fewer:
-- such a run waits until fewer of those that it started are unfinished. abort_words: what closes the open calls of a run that was aborted, and its last message.
-- emptied_at: when its content was deleted; deleted: with its thread. usage_before: what a run that was redriven had used by then.
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
    run_at timestamptz,
    expires_at timestamptz,
    not_before timestamptz,
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
    attempt integer DEFAULT 0 NOT NULL,
    error_count integer DEFAULT 0 NOT NULL,
    crash_count integer DEFAULT 0 NOT NULL,
    progressed boolean DEFAULT false NOT NULL,
    isolated boolean DEFAULT false NOT NULL,
    cancel_requested_at timestamptz,
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
    accepted_at timestamptz DEFAULT now() NOT NULL,
    admitted_at timestamptz,
    started_at timestamptz,
    suspended_at timestamptz,
    finished_at timestamptz,
    changed_at timestamptz DEFAULT now() NOT NULL,
    waits_for_slot text,
    place_in_line bigint,
    emptied_at timestamptz,
    deleted boolean DEFAULT false NOT NULL,
    usage_before jsonb,
    CONSTRAINT runs_check CHECK (runyard.run_is_sound(status, kind, finished_at, suspended_at, started_at, fence, lane_seq, admitted_at, completion_seq, priority, multitask_strategy)),
    CONSTRAINT runs_pkey PRIMARY KEY (accept_no)
)
WITH (fillfactor='70');
CREATE UNIQUE INDEX runs_id ON runyard.runs (tenant, thread_id, run_id)
    WHERE (NOT deleted);
CREATE UNIQUE INDEX runs_key ON runyard.runs (thread_key, run_id);
CREATE UNIQUE INDEX runs_lane ON runyard.runs (thread_key, lane, lane_seq)
    WHERE (finished_at IS NULL);
CREATE UNIQUE INDEX runs_active ON runyard.runs (thread_key, lane)
    WHERE ((finished_at IS NULL) AND ((worker_id IS NOT NULL) OR (suspended_at IS NOT NULL)));
CREATE INDEX runs_unadmitted ON runyard.runs (tenant, thread_id)
    WHERE (lane_seq IS NULL);
CREATE INDEX runs_due ON runyard.runs (COALESCE(run_at, accepted_at))
    WHERE (lane_seq IS NULL);
CREATE INDEX runs_expiring ON runyard.runs (expires_at)
    WHERE ((expires_at IS NOT NULL) AND (attempt = 0) AND (finished_at IS NULL));
CREATE INDEX runs_completed ON runyard.runs (branch_id, completion_seq)
    WHERE (completion_seq IS NOT NULL);
CREATE INDEX runs_extra ON runyard.runs (thread_key, completion_seq)
    WHERE (extra IS NOT NULL);
CREATE INDEX runs_waiting ON runyard.runs (thread_key, after_run_id)
    WHERE (after_run_id IS NOT NULL);
CREATE INDEX runs_started_by ON runyard.runs (started_by_key, started_by_run_id)
    WHERE (started_by_key IS NOT NULL);
CREATE INDEX runs_worker ON runyard.runs (worker_id)
    WHERE ((worker_id IS NOT NULL) AND (finished_at IS NULL));
CREATE INDEX runs_queued ON runyard.runs (tenant, accept_no)
    WHERE ((finished_at IS NULL) AND (worker_id IS NULL) AND (suspended_at IS NULL));
CREATE INDEX runs_of_agent ON runyard.runs (agent)
    WHERE ((worker_id IS NOT NULL) AND (finished_at IS NULL));
CREATE INDEX runs_of_tenant ON runyard.runs (tenant, accepted_at, accept_no)
    WHERE ((worker_id IS NOT NULL) AND (finished_at IS NULL));
CREATE INDEX runs_line ON runyard.runs (waits_for_slot, tenant, place_in_line)
    WHERE (waits_for_slot IS NOT NULL);
CREATE INDEX runs_results ON runyard.runs (finished_at)
    WHERE ((fork IS NOT NULL) AND (result IS NOT NULL));
-- No index names what an append changes, last_seq above all: its update of the run then touches no index.
CREATE INDEX runs_unsuccessful ON runyard.runs (thread_key)
    WHERE ((finished_at IS NOT NULL) AND (completion_seq IS NULL));
-- What lists read (runyard.list_runs). The first three hold nothing that a verb changes; the others hold few runs, or none for long.
CREATE INDEX runs_list ON runyard.runs (tenant, accepted_at, accept_no)
    WHERE ((NOT deleted) AND (emptied_at IS NULL) AND (accept_no > 0));
CREATE INDEX runs_list_of_agent ON runyard.runs (tenant, agent, accepted_at, accept_no)
    WHERE ((NOT deleted) AND (emptied_at IS NULL) AND (agent IS NOT NULL) AND (accept_no > -1));
CREATE INDEX runs_list_of_thread ON runyard.runs (thread_key, accepted_at, accept_no)
    WHERE ((NOT deleted) AND (emptied_at IS NULL) AND (accept_no > 0));
CREATE INDEX runs_list_by_status ON runyard.runs (tenant, status, accepted_at, accept_no)
    WHERE ((NOT deleted) AND (emptied_at IS NULL) AND (accept_no > -1) AND ((status = ANY (ARRAY['failed', 'dead', 'cancelled', 'suspended'])) OR ((status = 'running') AND (worker_id IS NULL))));
CREATE INDEX runs_list_hosted ON runyard.runs (tenant, thread_id, accepted_at, accept_no)
    WHERE ((NOT deleted) AND (emptied_at IS NULL) AND (thread_key IS NULL) AND (accept_no > -1));

-- Where the messages are that were appended under a run id that nobody has claimed.
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

-- Attempts that did not complete. The row of the run has the one that did.
CREATE TABLE runyard.attempts (
    accept_no bigint NOT NULL,
    fence bigint NOT NULL,
    worker_id text,
    started_at timestamptz,
    ended_at timestamptz DEFAULT now() NOT NULL,
    outcome text NOT NULL,
    error jsonb,
    CONSTRAINT attempts_pkey PRIMARY KEY (accept_no, fence)
);

-- The ledger of steps. A step that is not done was begun by the attempt with this fence.
CREATE TABLE runyard.steps (
    accept_no bigint NOT NULL,
    step_key text NOT NULL,
    done boolean DEFAULT false NOT NULL,
    fence bigint NOT NULL,
    result bytea,
    CONSTRAINT steps_pkey PRIMARY KEY (accept_no, step_key)
);

-- Requests to humans. body: msgpack of payload, answer_schema and on_deadline. otherwise: the answer that applies at the deadline; NULL
-- fails the run. A request whose run ended without an answer is closed. answered_by: who answered, as the API knows them;
-- on_behalf_of: for whom, as they say.
CREATE TABLE runyard.hitl_requests (
    tenant text NOT NULL,
    request_id text NOT NULL,
    thread_key bigint NOT NULL,
    run_id text,
    kind text NOT NULL,
    body bytea NOT NULL,
    deadline_at timestamptz,
    otherwise bytea,
    answer bytea,
    response_id text,
    answered_by text,
    on_behalf_of text,
    answered_at timestamptz,
    closed_at timestamptz,
    event_id text,
    created_at timestamptz DEFAULT now() NOT NULL,
    CONSTRAINT hitl_requests_pkey PRIMARY KEY (tenant, request_id)
);
CREATE UNIQUE INDEX hitl_responses ON runyard.hitl_requests (thread_key, response_id)
    WHERE (response_id IS NOT NULL);
CREATE INDEX hitl_run ON runyard.hitl_requests (thread_key, run_id);
CREATE INDEX hitl_deadlines ON runyard.hitl_requests (deadline_at)
    WHERE ((answered_at IS NULL) AND (closed_at IS NULL));
CREATE INDEX hitl_pending ON runyard.hitl_requests (tenant, created_at, request_id)
    WHERE ((answered_at IS NULL) AND (closed_at IS NULL));
CREATE INDEX hitl_list ON runyard.hitl_requests (tenant, created_at, request_id)
    WHERE (created_at > '-infinity'::timestamptz);
CREATE INDEX hitl_list_of_thread ON runyard.hitl_requests (thread_key, created_at, request_id)
    WHERE (created_at > '-infinity'::timestamptz);
CREATE INDEX hitl_list_pending_of_thread ON runyard.hitl_requests (thread_key, created_at, request_id)
    WHERE ((answered_at IS NULL) AND (closed_at IS NULL) AND (created_at >= '-infinity'::timestamptz));

-- Requests as clients see them: on which thread, and which agent asks.
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
  WHERE (t.deleted_at IS NULL);

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

-- A request that is to be stored. timeout: seconds from now to the deadline, where no deadline_at is given.
CREATE TYPE runyard.new_request AS (
    request_id text,
    kind text,
    body bytea,
    deadline_at timestamptz,
    timeout double precision,
    otherwise bytea
);

-- The result of ending an attempt's turn.
CREATE TYPE runyard.ended AS (
    thread_key bigint,
    run_id text,
    status text,
    event_id text,
    error jsonb,
    effects jsonb,
    refused text
);

-- The register of workers. dead_at: when others declared it dead.
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
    CONSTRAINT workers_pkey PRIMARY KEY (worker_id)
)
WITH (fillfactor='50');

-- Queues from which no run is claimed.
CREATE TABLE runyard.paused_queues (
    queue text NOT NULL,
    paused_at timestamptz DEFAULT now() NOT NULL,
    CONSTRAINT paused_queues_pkey PRIMARY KEY (queue)
);

-- Agents that workers have registered, and the queue of each. asks: it may ask humans.
CREATE TABLE runyard.agents (
    agent text NOT NULL,
    queue text NOT NULL,
    asks boolean DEFAULT false NOT NULL,
    app_version text,
    updated_at timestamptz DEFAULT now() NOT NULL,
    CONSTRAINT agents_pkey PRIMARY KEY (agent)
);

-- Leases, of which one worker at a time holds each.
CREATE TABLE runyard.leases (
    name text NOT NULL,
    holder text NOT NULL,
    expires_at timestamptz NOT NULL,
    CONSTRAINT leases_pkey PRIMARY KEY (name)
);

-- Limits that are set. subject: the tenant or agent that a limit is for; NULL: for each, or in all.
CREATE TABLE runyard.limits (
    limit_name text NOT NULL,
    subject text,
    most bigint NOT NULL,
    CONSTRAINT limits_limit_name_subject_key UNIQUE NULLS NOT DISTINCT (limit_name, subject)
);

-- The tenants in the line for a slot, in the order in which they are served next; one may have left the line. Changed under the slot's lock only.
CREATE TABLE runyard.slot_turns (
    slot text NOT NULL,
    tenant text NOT NULL,
    turn bigint DEFAULT nextval('runyard.lane_numbers') NOT NULL,
    CONSTRAINT slot_turns_pkey PRIMARY KEY (slot, tenant)
)
WITH (fillfactor='50');
CREATE INDEX slot_turns_order ON runyard.slot_turns (slot, turn);

-- How many runs waited when it was measured, of those that were accepted by then. name: "all" or "tenant …".
CREATE TABLE runyard.queue_sizes (
    name text NOT NULL,
    queued bigint NOT NULL,
    newest bigint NOT NULL,
    measured_at timestamptz DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT queue_sizes_pkey PRIMARY KEY (name)
);

-- The types of entries: runyard.models.FeedType. A domain, because a table's constraint is parsed anew for every statement.
CREATE DOMAIN runyard.feed_type AS text
    CONSTRAINT feed_type_check CHECK ((VALUE = ANY (ARRAY['run.completed', 'run.failed', 'run.cancelled', 'run.dead', 'run.suspended', 'message.stored', 'thread.forked', 'thread.deleted'])));

-- The feed. Read in the order of (transaction, position), never past the oldest open transaction. usage: of a run that ended; agent: of one that had
-- an attempt. redriven: it had ended before, and usage is what it used since. created_at: later than the transaction had its number.
CREATE TABLE runyard.outbox (
    tenant text NOT NULL,
    transaction xid8 DEFAULT pg_current_xact_id() NOT NULL,
    "position" bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    thread_key bigint,
    thread_id text NOT NULL,
    run_id text,
    type runyard.feed_type NOT NULL,
    created_at timestamptz DEFAULT clock_timestamp() NOT NULL,
    agent text,
    usage jsonb,
    redriven boolean DEFAULT false NOT NULL,
    CONSTRAINT outbox_pkey PRIMARY KEY (tenant, transaction, "position")
);

-- Up to where a tenant's feed was pruned.
CREATE TABLE runyard.pruned (
    tenant text NOT NULL,
    transaction xid8 NOT NULL,
    "position" bigint NOT NULL,
    CONSTRAINT pruned_pkey PRIMARY KEY (tenant)
);

-- What the runs of a tenant that ended on a day (UTC) used: an agent's, and under '' all of them. Counted from the outbox.
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

-- How far the outbox was counted; one row. Entries of transactions before `counted` were: all that are older than counted_until. Entries of
-- transactions before `goal`, which are all that are older than goal_at, are being counted, tenant by tenant: those of tenants before `tenant`
-- were, and of it those up to (transaction, position).
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

-- Subscriptions to the feed; tenant NULL: of every tenant. Entries of transactions before `cursor` were turned into deliveries; those that were
-- committed when it was made (`since`) are left out. disabled_at: the receiver said that it is gone. version: of the secret that signs, which is
-- derived and stored nowhere; until both_until the version before signs as well. rotation_id: of the rotation that made it, for repetitions.
CREATE TABLE runyard.webhooks (
    webhook_id text NOT NULL,
    tenant text,
    url text NOT NULL,
    events runyard.feed_type[] NOT NULL,
    version integer DEFAULT 1 NOT NULL,
    both_until timestamptz,
    rotation_id text,
    since pg_snapshot DEFAULT pg_current_snapshot() NOT NULL,
    cursor xid8 DEFAULT pg_snapshot_xmin(pg_current_snapshot()) NOT NULL,
    created_at timestamptz DEFAULT now() NOT NULL,
    disabled_at timestamptz,
    CONSTRAINT webhooks_pkey PRIMARY KEY (webhook_id)
);
CREATE INDEX webhooks_of_tenant ON runyard.webhooks (tenant, created_at, webhook_id);

-- The secrets that sign for the URLs of a tenant's runs. A tenant without a row has version 1.
CREATE TABLE runyard.webhook_keys (
    tenant text NOT NULL,
    version integer NOT NULL,
    both_until timestamptz,
    rotation_id text,
    CONSTRAINT webhook_keys_pkey PRIMARY KEY (tenant)
);

-- What is to be sent, and where to. webhook_id NULL: to the URL that came with the run. next_at: when to try; NULL once it was delivered or has failed.
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
    created_at timestamptz DEFAULT now() NOT NULL,
    tries integer DEFAULT 0 NOT NULL,
    next_at timestamptz DEFAULT now(),
    delivered_at timestamptz,
    failed_at timestamptz,
    http_status integer,
    error text,
    CONSTRAINT webhook_deliveries_check CHECK (((next_at IS NULL) = ((delivered_at IS NOT NULL) OR (failed_at IS NOT NULL)))),
    CONSTRAINT webhook_deliveries_delivery_id_key UNIQUE (delivery_id),
    CONSTRAINT webhook_deliveries_pkey PRIMARY KEY (delivery_no)
)
WITH (fillfactor='70');
CREATE INDEX webhook_deliveries_due ON runyard.webhook_deliveries (endpoint, next_at, delivery_no)
    WHERE (next_at IS NOT NULL);
CREATE INDEX webhook_deliveries_oldest ON runyard.webhook_deliveries (created_at)
    WHERE (next_at IS NOT NULL);
CREATE INDEX webhook_deliveries_of_tenant ON runyard.webhook_deliveries (tenant, delivery_no);
CREATE INDEX webhook_deliveries_failed ON runyard.webhook_deliveries (tenant, delivery_no)
    WHERE (failed_at IS NOT NULL);
CREATE INDEX webhook_deliveries_delivered ON runyard.webhook_deliveries (tenant, delivery_no)
    WHERE (delivered_at IS NOT NULL);
CREATE INDEX webhook_deliveries_pending ON runyard.webhook_deliveries (tenant, delivery_no)
    WHERE (next_at IS NOT NULL);
CREATE INDEX webhook_deliveries_over ON runyard.webhook_deliveries (COALESCE(delivered_at, failed_at))
    WHERE (next_at IS NULL);

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
    CONSTRAINT api_keys_scopes_check CHECK (((scopes <@ ARRAY['read', 'write', 'respond', 'admin']) AND (scopes <> '{}'[]))),
    CONSTRAINT api_keys_pkey PRIMARY KEY (key_id)
);
CREATE INDEX api_keys_tenant ON runyard.api_keys (tenant, created_at);

CREATE TABLE runyard.schema_functions (
    file text NOT NULL,
    digest text NOT NULL,
    release integer[] NOT NULL,
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
-- Accepting runs: the client's verb, which admits in the same transaction, and what it shares with a host's.

-- Accept many runs in one transaction. Threads are taken in the order of their keys, so that batches cannot deadlock; requests
-- for one thread keep their order. A request that is refused leaves nothing behind, and the others are accepted. A single
-- request that is refused raises.
FUNCTION runyard.accept_many(for_tenant text, requests runyard.request[]) RETURNS SETOF runyard.accepted;

-- Accept and admit a client's run in one step, so that a refusal reaches the caller. limited: there are limits to check.
FUNCTION runyard.accept_and_admit(for_tenant text, q runyard.request, limited boolean, OUT run runyard.runs, OUT created boolean, OUT effects jsonb);

FUNCTION runyard.accepted_as(n integer, r runyard.runs, created boolean, effects jsonb) RETURNS runyard.accepted;

-- Insert the run of a request. A run without a lane waits to be admitted. limited: there are limits to check.
FUNCTION runyard.insert_run(
    for_tenant text, q runyard.request, thread_key bigint, in_lane text, for_agent text, due_at timestamptz, limited boolean
) RETURNS runyard.runs;

-- Return the run that has this id, if its request was the same; a NULL row if the id is free. Raises run_conflict.
FUNCTION runyard.existing_run(for_tenant text, q runyard.request) RETURNS runyard.runs;

FUNCTION runyard.due_at(q runyard.request) RETURNS timestamptz;

-- Return the time by which the first attempt has to start: the shorter of the request's own time and the deployment's, counted
-- from when the run is due. A fork has no such time of the deployment, since it may wait for another run.
FUNCTION runyard.expires_at(q runyard.request, due_at timestamptz) RETURNS timestamptz;

-- Refuse a run without a message where the last message asks for nothing. A run that is ahead in the lane may still bring a
-- message.
FUNCTION runyard.check_something_to_run(t runyard.threads, parent_id uuid, busy text) RETURNS void;

-- Refuse a probe whose agent, or whose judge, asks humans: nobody can answer a probe. The workers' registrations say which
-- agents ask.
FUNCTION runyard.refuse_asking(q runyard.request, for_agent text) RETURNS void;

-- Fix the cut of a fork run when it is accepted.
FUNCTION runyard.fix_cut(t runyard.threads, INOUT fork jsonb, OUT after_run text);

-- functions/accept_in_transaction.sql -----------------------------------------------------------------------------------------
-- Accepting a run inside a host's own transaction: no thread is locked, and workers admit the run after the commit.

-- Accept a prompt with SQL alone, inside any transaction: SELECT runyard.accept('thread', 'hello', run_id => 'r1'). With the owner's rights, so
-- that a host which may call this needs no right to read or change a table.
FUNCTION runyard.accept(
    thread_id text, message text, run_id text DEFAULT gen_random_uuid()::text, agent text DEFAULT NULL, queue text DEFAULT NULL,
    priority text DEFAULT 'normal', run_at timestamptz DEFAULT NULL, metadata jsonb DEFAULT '{}', options jsonb DEFAULT '{}',
    tenant text DEFAULT ''
) RETURNS text;

-- Accept a run in a host's own transaction, from any driver. Takes no lock that the transaction could hold. Workers admit the
-- run after the commit.
FUNCTION runyard.accept_request(for_tenant text, q runyard.request) RETURNS boolean;

-- Refuse options that runyard.models.RunOptions would refuse.
FUNCTION runyard.check_options(options jsonb) RETURNS void;

-- Refuse metadata that runner/runyard/domain/json_bounds.py would refuse.
FUNCTION runyard.check_metadata(metadata jsonb) RETURNS void;

-- True if Python calls a character of the text unprintable, as runyard.models.check_id refuses it: control and format characters, private ones,
-- and separators except the space. Characters that Unicode has not assigned depend on its version and are not among them.
FUNCTION runyard.unprintable(given text) RETURNS boolean;

-- functions/admit.sql ---------------------------------------------------------------------------------------------------------
-- Admitting runs that were accepted in a host's transaction or for a later time; deadlines and expiry, which come due with them.

-- Admit the runs that are committed and due on any thread, apply the deadlines of requests, and end the runs that did not start
-- in time. next_due: seconds until something is due next, NULL if nothing waits for its time. The clock is read once per
-- statement: a query that reads it for each row uses no index.
FUNCTION runyard.admit(most integer, OUT effects jsonb, OUT next_due double precision);

-- Admit the thread's runs that are committed and due, in order, so that no later run overtakes them.
FUNCTION runyard.admit_thread(INOUT t runyard.threads, OUT effects jsonb);

-- Give a run its place in its lane that was accepted in a host's own transaction or for a later time. A refusal fails the run.
FUNCTION runyard.admit_late(INOUT t runyard.threads, r runyard.runs, OUT effects jsonb);

-- Return the error that keeps a run off this thread; NULL if there is none.
FUNCTION runyard.why_not(t runyard.threads, run_id text, parent_id uuid) RETURNS jsonb;

-- End a run that did not start in time.
FUNCTION runyard.expire_run(INOUT t runyard.threads, r runyard.runs, OUT effects jsonb);

-- End the thread's admitted runs that did not start in time. lines: the slots that they waited for.
FUNCTION runyard.expire_runs(INOUT t runyard.threads, OUT effects jsonb, OUT lines text[]);

-- functions/append.sql --------------------------------------------------------------------------------------------------------
-- Appending messages to a run.

-- Append messages to an attempt's run. Returns the messages as they are stored; one that the run has stored before is returned
-- as it was then.
FUNCTION runyard.append(thread_key bigint, run_id text, with_fence bigint, messages runyard.new_message[], first_event integer)
RETURNS SETOF runyard.messages;

-- Insert messages of a run after its last one. A message that the run has was stored by a call whose reply was lost, and is
-- left out. The caller saves the rows of the thread and the run. first_event: the number of the first message's event; NULL for
-- a run that has no events.
FUNCTION runyard.put_messages(
    INOUT t runyard.threads, INOUT r runyard.runs, messages runyard.new_message[], first_event integer
);

-- Return the message that has this id on the thread, its own or inherited; a NULL row if there is none. Almost every id is new.
-- An id that many threads have (the same words sent to all of them) is looked up branch by branch.
FUNCTION runyard.holder_of(thread_key bigint, message_id uuid, OUT holder runyard.messages);

FUNCTION runyard.check_size(messages runyard.new_message[], most bigint) RETURNS void;

-- functions/branches.sql ------------------------------------------------------------------------------------------------------
-- Branches of a thread: where a run or a message is written, and the leaves of the tree.

FUNCTION runyard.open_branch(
    t runyard.threads, in_lane text, base uuid, view runyard.level[], OUT branch runyard.branches
);

-- Return the branch for a first claim or a stored message: the one that ends at parent_id, or a new one that begins there.
-- Without parent_id: the head's.
FUNCTION runyard.branch_for(
    INOUT t runyard.threads, in_lane text, parent_id uuid, alone boolean, OUT branch runyard.branches
);

-- Return the branch whose last visible message is message_id; NULL if the thread has none.
FUNCTION runyard.branch_ending_at(thread_key bigint, message_id uuid) RETURNS runyard.branches;

-- List the leaves of the thread's tree, by age: the end of every branch, and the end of every run that does not count. A branch
-- without messages that count has no end of its own, except the thread's first branch. depth is computed for the returned
-- leaves only.
FUNCTION runyard.leaves(t runyard.threads, after_time timestamptz, after_id uuid, most integer)
RETURNS TABLE (message_id uuid, depth bigint, created_at timestamptz, run_id text, run_status text);

-- functions/cancel.sql --------------------------------------------------------------------------------------------------------
-- Cancelling runs.

FUNCTION runyard.cancel(for_tenant text, thread_id text, run_id text, keep boolean, OUT run runyard.runs, OUT effects jsonb);

-- Cancel a live run under the thread's lock: record the request if a worker has the run, else end it.
FUNCTION runyard.cancel_run(INOUT t runyard.threads, INOUT r runyard.runs, keep boolean, OUT effects jsonb);

-- Cancel the run that has pending requests. `words` become the results of its open calls and its last message. Returns a NULL
-- run if no run has any.
FUNCTION runyard.abort_pending(for_tenant text, thread_id text, run_id text, words text, OUT run runyard.runs, OUT effects jsonb);

-- functions/checkpointer.sql --------------------------------------------------------------------------------------------------
-- The checkpointer's own messages, extra and requests, and the runs that it keeps for a process outside.

-- Append a checkpointer's messages, each under its own run id or none. A message is stored once under its id, however often it
-- is sent.
FUNCTION runyard.checkpoint_append(for_tenant text, thread_id text, messages runyard.new_message[], run_ids text[]) RETURNS void;

-- Insert messages of a run that nobody has claimed, after its earlier ones. The caller has checked their ids and sizes.
FUNCTION runyard.put_unclaimed(INOUT t runyard.threads, run_id text, messages runyard.new_message[]);

-- Return those of `messages` that the thread does not have yet. An id that belongs to a message of another run, or of none, is
-- refused.
FUNCTION runyard.not_held(t runyard.threads, run_id text, messages runyard.new_message[]) RETURNS runyard.new_message[];

FUNCTION runyard.save_extra(for_tenant text, thread_id text, more jsonb) RETURNS void;

-- Refuse a value that is too large to be a thread's extra. It is merged of values that were each small enough.
FUNCTION runyard.check_extra(merged jsonb) RETURNS void;

-- Replace the one request that a checkpointer keeps for a thread; NULL removes it. A request of a worker's run has an event,
-- and stays.
FUNCTION runyard.save_pending(for_tenant text, thread_id text, q runyard.new_request, run_id text) RETURNS void;

-- Store requests of an external run beside each other. A request whose id is known stays as it is.
FUNCTION runyard.save_requests(for_tenant text, thread_id text, requests runyard.new_request[], run_id text) RETURNS void;

-- List the requests of the run or the thread that are answered or closed. Overdue requests are settled first: there may be no
-- reconciler to do it.
FUNCTION runyard.load_requests(for_tenant text, thread_id text, run_id text) RETURNS SETOF runyard.requests;

-- functions/claim.sql ---------------------------------------------------------------------------------------------------------
-- Claiming runs for a worker.

-- Claim many runs for a worker in one transaction. Threads are taken in the order of their keys, so that batches cannot
-- deadlock. A thread that another transaction has locked is skipped; a single claim waits for it.
FUNCTION runyard.claim(worker_id text, thread_keys bigint[], run_ids text[]) RETURNS SETOF runyard.claimed;

-- Claim a run whose thread is locked. paused: the queues from which nothing is claimed; a run with a cancel request is ended
-- all the same. limited: there are limits on running runs.
FUNCTION runyard.claim_locked(
    t runyard.threads, claimant runyard.workers, run_id text, paused text[], limited boolean
) RETURNS runyard.claimed;

-- Take a running run over from its worker, if that is dead, or from an earlier attempt of the claimant itself. outcome: of a claim that ends
-- here, because the worker lives or the run has crashed too often; else NULL.
FUNCTION runyard.take_over(
    INOUT t runyard.threads, INOUT r runyard.runs, claimant runyard.workers, limited boolean, OUT outcome text, OUT effects jsonb
);

-- Why a queued run cannot start, as the outcome of its claim; NULL if it can. A run that did not start in time is ended. retry_in: seconds.
FUNCTION runyard.not_startable(
    t runyard.threads, r runyard.runs, OUT outcome text, OUT retry_in double precision, OUT effects jsonb
);

-- Fail a run whose message has an id that another message of the thread has by now.
FUNCTION runyard.fail_taken(t runyard.threads, r runyard.runs) RETURNS jsonb;

-- Begin a prompt: fix its branch and what it sees, and store its message. Messages that were appended under its id before it was claimed are
-- its own. The run's row is the caller's to save.
FUNCTION runyard.begin_run(INOUT t runyard.threads, INOUT r runyard.runs);

-- Whether a worker has an agent. Every worker has the agent `default`. A worker that names no agents gets every run.
FUNCTION runyard.serves(w runyard.workers, for_agent text) RETURNS boolean;

-- functions/complete.sql ------------------------------------------------------------------------------------------------------
-- Ending an attempt: completed, failed, or back in the queue.

-- Complete many runs in one transaction, in the order of their threads.
FUNCTION runyard.complete(writes runyard.attempt_write[]) RETURNS SETOF runyard.ended;

FUNCTION runyard.fail(w runyard.attempt_write, why jsonb) RETURNS runyard.ended;

-- Put a run back into the queue: to be retried after an error (counted) or handed over (not counted). fewer: the run waits
-- until fewer of the runs that it started are unfinished.
FUNCTION runyard.release(
    thread_key bigint, run_id text, with_fence bigint, delay double precision, why jsonb, first_event integer, fewer integer
) RETURNS runyard.ended;

-- functions/crashes.sql -------------------------------------------------------------------------------------------------------
-- Crashes: how many a run survives, the attempt that runs alone, and the end of a run that took its workers down.

-- The number of crashes without progress that make a run dead. The attempt after the last but one runs alone.
FUNCTION runyard.max_crashes() RETURNS integer;

-- The number of a run's crashes without progress, now that its attempt has crashed. An attempt that was to run alone and had not begun to
-- is not counted: another run has taken its worker down.
FUNCTION runyard.crashes(r runyard.runs) RETURNS integer;

-- End a run whose attempt has crashed, if a cancel was requested or the run has crashed too often; else e.status is NULL.
FUNCTION runyard.end_crashed(INOUT t runyard.threads, INOUT r runyard.runs, how text, OUT e runyard.ended);

-- Record that the attempt has begun to run alone. From now on a crash is its own.
FUNCTION runyard.isolate(thread_key bigint, run_id text, with_fence bigint) RETURNS void;

-- Record that the process of an attempt that ran alone has died. The run is dead, unless the attempt had committed something or
-- had not begun to run alone: then it is queued again.
FUNCTION runyard.bury(thread_key bigint, run_id text, with_fence bigint, how text) RETURNS runyard.ended;

-- functions/cuts.sql ----------------------------------------------------------------------------------------------------------
-- Cuts: from the message, number or run that a request names to the view that a fork, a probe or a page begins with.

-- Find where a request cuts the thread: the view, and the run that the cut is after, if any.
FUNCTION runyard.cut(t runyard.threads, q jsonb, OUT view runyard.level[], OUT after_run runyard.runs);

-- Cut at a message, which is included. `view` sees exactly its path; `whole` sees the branch that it is on, as the thread does.
FUNCTION runyard.cut_at_message(
    t runyard.threads, message_id uuid, OUT view runyard.level[], OUT whole runyard.level[], OUT message runyard.messages, OUT run runyard.runs
);

-- Cut after a completed run, own or inherited.
FUNCTION runyard.cut_after_run(t runyard.threads, run_id text, OUT view runyard.level[], OUT run runyard.runs);

-- Return the message that has a number, on the thread's own branches or on those of its ancestors that it sees.
FUNCTION runyard.message_at(t runyard.threads, number bigint) RETURNS uuid;

-- functions/deletion.sql ------------------------------------------------------------------------------------------------------
-- Deletion: a thread goes at once; what others see of it stays until the last of them goes.

FUNCTION runyard.delete_thread(for_tenant text, thread_id text, cancel_first boolean, seen timestamptz, OUT effects jsonb);

-- Delete the part of a deleted thread's branch that no live thread sees.
FUNCTION runyard.sweep_branch(branch_id bigint) RETURNS void;

-- Return the thread, locked after its ancestors. Their keys are smaller, and every function that locks several threads does so
-- in the order of keys.
FUNCTION runyard.find_family(for_tenant text, thread_id text) RETURNS runyard.threads;

-- Delete the content of a run that has ended and counts nowhere. Its row stays, so that the same request again finds it.
-- Messages that a live fork or branch still shows stay; the same call later deletes those that nothing shows any more.
FUNCTION runyard.delete_run(for_tenant text, thread_id text, run_id text) RETURNS void;

-- Replace the content of the thread's own messages, wherever they are seen.
FUNCTION runyard.erase_content(for_tenant text, thread_id text) RETURNS void;

-- functions/effects.sql -------------------------------------------------------------------------------------------------------
-- Effects: what a verb asks of Redis, as JSON: {"jobs": […], "events": […], "cancels": […], "withdrawn": […]}, or NULL for nothing.

FUNCTION runyard.merge_effects(a jsonb, b jsonb) RETURNS jsonb;

-- Return a run as a job for Redis. `queued`: the data of the event that is written when the job is submitted; NULL once an
-- attempt writes events of its own.
FUNCTION runyard.job(r runyard.runs) RETURNS jsonb;

-- Send effects to the workers through NOTIFY, for a function that returns nothing. What does not fit into a notification is
-- found by the reconciler.
FUNCTION runyard.tell(effects jsonb) RETURNS void;

-- Return effects that write the last event of a run that ends outside an attempt, and withdraw its job if it waited for a
-- worker.
FUNCTION runyard.outside_event(t runyard.threads, r runyard.runs, event text, kind text, body jsonb) RETURNS jsonb;

-- Return the lane's first unfinished run, as effects, if it only waits for a worker.
FUNCTION runyard.next_head(thread_key bigint, in_lane text) RETURNS jsonb;

-- Return the fork runs that wait for a run, as effects.
FUNCTION runyard.waiting_for(thread_key bigint, run_id text) RETURNS jsonb;

-- Return the run that started the given one, as effects. Its claim checks whether it may go on: other runs that it started may
-- be ending at the same time.
FUNCTION runyard.offer_job(r runyard.runs) RETURNS jsonb;

-- Return the run as effects if it may start at once: a lane's head, or a fork run whose cut has ended.
FUNCTION runyard.startable(r runyard.runs) RETURNS jsonb;

FUNCTION runyard.count_started_by(r runyard.runs) RETURNS bigint;

-- Whether a fork run waits for another run to end, or for runs that it started.
FUNCTION runyard.cut_pending(r runyard.runs) RETURNS boolean;

-- functions/end_run.sql -------------------------------------------------------------------------------------------------------
-- The end of a run, whatever the verb: completion number, visibility, requests, history, feed, webhook, and what may start after it.

-- End a run: completion number, visibility, requests, history, feed, webhook, and the runs that may start now. `event`: the id
-- of the run's last event. The messages of a cancelled run count only if every provider would accept them.
FUNCTION runyard.end_run(
    INOUT t runyard.threads, INOUT r runyard.runs, to_status text, why jsonb, event text, OUT effects jsonb
);

-- Store the messages that close a cancelled run: results for its open calls, and the last message of an aborted run. The caller
-- saves the rows of the run and the thread.
FUNCTION runyard.close_cancelled(INOUT t runyard.threads, INOUT r runyard.runs);

-- functions/explain.sql -------------------------------------------------------------------------------------------------------
-- Why a run is not running.

-- Return the reason why a run is not running, and facts about it. The client makes sentences of them.
FUNCTION runyard.explain(for_tenant text, thread_id text, run_id text, OUT run runyard.runs, OUT reason text, OUT facts jsonb);

-- functions/external_runs.sql -------------------------------------------------------------------------------------------------
-- External runs: claimed and completed by a process that is not a worker.

FUNCTION runyard.claim_external(for_tenant text, thread_id text, run_id text) RETURNS void;

FUNCTION runyard.complete_external(for_tenant text, thread_id text, run_id text) RETURNS void;

-- Return the external run that has this id, if it is open; a NULL row if nobody has claimed the id. Refuses a run that cannot
-- be written.
FUNCTION runyard.open_external(t runyard.threads, run_id text) RETURNS runyard.runs;

-- functions/feed.sql ----------------------------------------------------------------------------------------------------------
-- The feed: reading the outbox in order, and pruning what was kept for its time.

-- Return the entries after a place, in the order of (transaction, position), of transactions that are older than every open
-- one. So no entry can appear before the place that a reader has reached. Each row has the horizon: everything before it was
-- read. Without entries there is one row that has only the horizon.
FUNCTION runyard.feed(for_tenant text, after_transaction bigint, after_position bigint, most integer)
RETURNS TABLE (horizon bigint, transaction bigint, "position" bigint, thread_id text, run_id text, type text, created_at timestamptz);

-- Delete up to `most` entries that are older than `kept`, tenant by tenant, and record up to where. Entries that were not
-- counted yet (runyard.count_usage), or that a webhook has not read yet, stay. The former include all that are not older than
-- the oldest open transaction.
FUNCTION runyard.prune_feed(kept interval, most integer) RETURNS integer;

-- Delete what has been kept for its time, up to `most` of each kind: entries of the feed, results of fork runs, finished
-- deliveries (kept as long as the feed), rows of dead workers. The leader calls this. Returns the largest of the counts.
FUNCTION runyard.prune(feed interval, results interval, workers interval, most integer) RETURNS integer;

-- functions/fork.sql ----------------------------------------------------------------------------------------------------------
-- Forking a thread.

FUNCTION runyard.fork(for_tenant text, q jsonb, hash text, OUT thread runyard.threads, OUT created boolean);

FUNCTION runyard.same_fork(for_tenant text, thread_id text, hash text) RETURNS runyard.threads;

-- Refuse an id that belongs to a thread other than this fork.
FUNCTION runyard.check_free(for_tenant text, thread_id text, hash text) RETURNS void;

-- Close the open calls of a view with one error result at the end of a branch.
FUNCTION runyard.repair(INOUT t runyard.threads, branch_id bigint, view runyard.level[], reason text);

-- functions/lanes.sql ---------------------------------------------------------------------------------------------------------
-- Lanes: which one a run belongs to, and what it does to the run that is there before it.

-- Return the lane of a run that is being admitted.
FUNCTION runyard.lane_of(t runyard.threads, kind text, alone boolean, run_id text, parent_id uuid) RETURNS text;

-- Apply a run's strategy to the run that is ahead of it in the lane. busy: the lane's first unfinished run afterwards. refused:
-- an error.
FUNCTION runyard.make_way(INOUT t runyard.threads, in_lane text, strategy text, OUT busy text, OUT refused jsonb, OUT effects jsonb);

-- functions/limits.sql --------------------------------------------------------------------------------------------------------
-- Limits: what one allows, and whether a request or a late run finds room.

-- Return what a limit allows for `of` (a tenant or an agent; NULL for a limit without subjects); NULL if no limit is set.
FUNCTION runyard.limit_of(which text, of text DEFAULT NULL) RETURNS bigint;

-- The limit message_bytes where none is set, for one message as it is stored. runner/runyard/domain/json_bounds.py has the same
-- number.
FUNCTION runyard.default_message_bytes() RETURNS bigint;

-- Refuse a request for which there is no room. The limit of a lane counts runs that are not due yet, too.
FUNCTION runyard.check_room(for_tenant text, q runyard.request, key bigint, in_lane text, may_write boolean) RETURNS void;

-- Return the error for a run that is admitted late and finds no room in its lane; NULL if there is room. One more run than the
-- limit is allowed, since the lane's first may have come back to the queue.
FUNCTION runyard.lane_full(r runyard.runs) RETURNS jsonb;

-- functions/list_runs.sql -----------------------------------------------------------------------------------------------------
-- The list of runs. Lists in general: lists.sql.

-- List runs, the newest first. If there are more, the last row has only the place to go on from.
FUNCTION runyard.list_runs(
    for_tenant text, thread_id text, with_status text, of_agent text, since timestamptz, before timestamptz,
    after_time timestamptz, after_no bigint, most integer, bytes bigint
) RETURNS TABLE (run runyard.runs, omitted text[], place_time timestamptz, place_no bigint);

-- The statement that finds the runs of a list in their order, by the one index that fits what is asked. Its parameters: $1 tenant, $2 the
-- thread's key, $3 its id, $4 agent, $5 since, $6 and $7 the place to go on from, $8 the same by accept_no. enough: rows of each of two sources.
FUNCTION runyard.runs_statement(
    for_tenant text, thread_id text, of_thread bigint, with_status text, of_agent text, enough integer
) RETURNS text;

-- functions/lists.sql ---------------------------------------------------------------------------------------------------------
-- Lists of threads, requests, attempts and deliveries. The list of runs: list_runs.sql.
--
-- A page ends at `most` entries, before the entry with which it would have more than `bytes` (but for its first), or after a thousand
-- rows that did not match: then it comes short, and says where to go on. Values of more than 8192 bytes are left out of an entry;
-- `omitted` names them. Each function reads one index, which gives the order, and compares the rows with the other filters itself. Its
-- statement is planned for what is asked: one plan for all cases would read the whole table for some. Each index has a condition that
-- only its list states. Where a primary key has the same order once all else is given, one column is given as a range, and ordered by.
-- The range ends with a comparison of that column alone: a comparison of rows that a later column decides does not end a scan.

-- List threads, in the order in which they were made. If there are more, the last row has only the place to go on from.
FUNCTION runyard.list_threads(
    for_tenant text, parent text, of_agent text, with_tags jsonb, after bigint, most integer, bytes bigint
) RETURNS TABLE (thread runyard.threads, omitted text[], place bigint);

-- List requests, the oldest first: those that wait, or all. If there are more, the last row says only that.
FUNCTION runyard.list_requests(
    for_tenant text, thread_id text, pending boolean, after_time timestamptz, after_id text, most integer, bytes bigint
) RETURNS TABLE (request runyard.requests, more boolean);

-- List the attempts of a run, in their order. If there are more, the last row says only that.
FUNCTION runyard.list_attempts(for_tenant text, thread_id text, run_id text, after bigint, most integer, bytes bigint)
RETURNS TABLE (attempt runyard.attempts, more boolean);

-- List deliveries, the newest first. A caller that wants to know whether there are more asks for one more.
FUNCTION runyard.list_deliveries(for_tenant text, with_status text, before bigint, most integer)
RETURNS SETOF runyard.webhook_deliveries;

-- Return how many bytes a value has as JSON. The stored size of a compressed value does not say that.
FUNCTION runyard.json_bytes(value jsonb) RETURNS bigint;

-- functions/queue_sizes.sql ---------------------------------------------------------------------------------------------------
-- How many runs wait, for the limits of a tenant and of all: measured now and then, and counted on from there.

-- Return how many runs wait, of a tenant or in all: the last measure, plus the runs that were accepted since and still wait. A
-- measure that is old and not small is renewed if the caller may write.
FUNCTION runyard.queue_size(for_tenant text, most bigint, may_write boolean) RETURNS bigint;

-- Count the runs that wait, of a tenant or in all, up to `most`, unless another transaction is doing it.
FUNCTION runyard.measure_queue(for_tenant text, most bigint) RETURNS void;

-- Renew the measures of queues that are not empty. The leader calls this for callers that may not write.
FUNCTION runyard.measure_queues() RETURNS void;

-- functions/queues.sql --------------------------------------------------------------------------------------------------------
-- Queues: what waits in each.

-- List the queues that hold runs, are paused or are served, with what waits in each. Reads the unfinished runs once, by their
-- index.
FUNCTION runyard.queues() RETURNS TABLE (
    queue text, queued bigint, deepest bigint, oldest double precision, suspended bigint, workers bigint, paused_at timestamptz,
    known boolean
);

-- functions/reading.sql -------------------------------------------------------------------------------------------------------
-- Reading a thread's messages and a run's context.

-- Return one page of a path, by number. at NULL: all of a branch, by default the head's. A later page names the branch of the
-- first page.
FUNCTION runyard.page(
    for_tenant text, thread_id text, at uuid, after bigint, before bigint, most bigint, newest_first boolean, of_branch bigint
) RETURNS SETOF runyard.messages;

-- Return the messages that a run sees: its branch as of its snapshot, then its own messages. Some of those may have been stored
-- before the run was claimed.
FUNCTION runyard.context(thread_key bigint, run_id text, with_fence bigint) RETURNS SETOF runyard.messages;

-- functions/redrive.sql -------------------------------------------------------------------------------------------------------
-- Redriving a failed or dead run.

FUNCTION runyard.redrive(for_tenant text, thread_id text, run_id text, OUT run runyard.runs, OUT effects jsonb);

-- functions/refusals.sql ------------------------------------------------------------------------------------------------------
-- Refusals: a typed error that a client understands, raised here or handed on as JSON.

FUNCTION runyard.refuse(code text, message text, details jsonb DEFAULT '{}') RETURNS void;

FUNCTION runyard.raise(refused jsonb) RETURNS void;

FUNCTION runyard.queue_full(which text, of text, most bigint) RETURNS jsonb;

FUNCTION runyard.id_taken(t runyard.threads, message_id uuid) RETURNS jsonb;

-- functions/respond.sql -------------------------------------------------------------------------------------------------------
-- Answers to requests, and what applies at a request's deadline.

-- Record an answer once, for the request whose schema the caller has checked it against. created: NULL if another request waits
-- by now; false if the request was answered before, and the caller compares the answers.
FUNCTION runyard.respond(
    for_tenant text, thread_id text, request_id text, response_id text, checked_request_id text, value bytea, who text, for_whom text,
    OUT request runyard.requests, OUT created boolean, OUT effects jsonb, OUT is_last boolean
);

-- Return the request that an answer is for. An answered request is found again by its response id, so that a repeated answer is
-- recognised.
FUNCTION runyard.request_for(for_tenant text, thread_id text, request_id text, response_id text) RETURNS runyard.requests;

-- Queue the run of an answered request. It keeps its place, so it is next in its lane.
FUNCTION runyard.wake_run(thread_key bigint, run_id text, OUT effects jsonb);

-- Settle each overdue request of the thread as the request says: its default answer applies, or the run that waits fails.
FUNCTION runyard.fire_deadlines(INOUT t runyard.threads, OUT effects jsonb);

-- functions/run_events.sql ----------------------------------------------------------------------------------------------------
-- The events that a run's rows prove, for readers whose stream has lost them.

-- Return the events that a run's rows prove, in the order of their ids, after the place `after`: up to `most` of them, and up
-- to `bytes` in all, but always one. An attempt numbers its messages as it appends them, and a later attempt has a higher
-- fence. So messages are in the order of seq, and a binary search finds the first one after a place. A wrong `first_event` can
-- give two events the same number; then the later kind is returned, because readers wait for the end of the run. asked: the
-- requests that a suspended run waits for. attempt: the number of the attempt that is queued.
FUNCTION runyard.run_events(thread_key bigint, run_id text, after bigint[], most integer, bytes bigint)
RETURNS TABLE (type text, proved_id text, in_thread text, message runyard.messages, request runyard.requests, why jsonb, asked text[], attempt integer);

-- Return the id of an event, "<fence>-<n>", as numbers that can be compared; NULL for a text that is no such id.
FUNCTION runyard.event_place(event_id text) RETURNS bigint[];

-- functions/slots.sql ---------------------------------------------------------------------------------------------------------
-- Permits to run under a limit on an agent's or a tenant's runs, and the lines of runs that wait for one.

-- Return the slots that a run takes while it runs: "agent …" and "tenant …" where a limit is set. A run that names no agent
-- counts for "default".
FUNCTION runyard.slots_of(r runyard.runs) RETURNS text[];

-- Lock slots, so that transactions count and free them one after the other. Slots are locked in one order. A transaction that
-- holds them never waits for a thread's lock.
FUNCTION runyard.lock_slots(slots text[]) RETURNS void;

FUNCTION runyard.limit_of_slot(slot text) RETURNS bigint;

-- Return how many slots are free; NULL without a limit. Reads no more index entries than the limit allows runs.
FUNCTION runyard.free_slots(slot text) RETURNS bigint;

-- Return the slot that a run has to wait for; NULL if it may take all of its slots. Runs ahead of it in a line come first.
FUNCTION runyard.missing_slot(r runyard.runs) RETURNS text;

-- Return the first `most` runs in the line for a slot: the first of each tenant, by turns, then the second of each, and so on.
FUNCTION runyard.first_in_line(slot text, most bigint) RETURNS SETOF bigint;

-- Put a run into the line for a slot. Tenants take turns, as in lua/turns.lua; a tenant's runs are ordered by priority. Returns
-- as effects the runs that may go on: in the line that the run leaves, or in the line where it already stands.
FUNCTION runyard.wait_for_slot(r runyard.runs, slot text) RETURNS jsonb;

-- Move a tenant whose run has left the line for its slot to the end of the turns, or out of them.
FUNCTION runyard.take_turn(from_slot text, for_tenant text) RETURNS void;

-- Take a run that cannot be claimed for another reason out of the line, so that the runs behind it do not wait for it. Returns
-- as effects the runs that may go on.
FUNCTION runyard.leave_line(r runyard.runs) RETURNS jsonb;

-- Return the first runs in the line for a slot, as many as are free, as effects. They stay in the line until they are claimed.
FUNCTION runyard.next_for_slot(slot text) RETURNS jsonb;

-- Return as effects the runs that take the slots that other runs have given up. Call this when no further thread is going to be
-- locked.
FUNCTION runyard.free(slots text[]) RETURNS jsonb;

-- Count the queues; offer the runs for which a slot is free although no run has just given it up (a limit was raised or
-- cleared, a run was taken from a dead worker, or a submission was lost); remove the turns of tenants that have left a line.
-- The leader calls this.
FUNCTION runyard.review_limits() RETURNS jsonb;

-- functions/steps.sql ---------------------------------------------------------------------------------------------------------
-- The ledger of steps: what an attempt has begun and finished.

-- Begin a step. Returns the row as it was before; no row if the step is new or was begun by this attempt, whose call is
-- repeated because its reply was lost.
FUNCTION runyard.start_step(thread_key bigint, run_id text, with_fence bigint, step text) RETURNS SETOF runyard.steps;

FUNCTION runyard.finish_step(thread_key bigint, run_id text, with_fence bigint, step text, value bytea) RETURNS void;

-- functions/store_message.sql -------------------------------------------------------------------------------------------------
-- Storing messages outside any run.

-- Store a message outside any run. If a message with its id is stored already, that one is returned; the caller compares the
-- two.
FUNCTION runyard.store_message(for_tenant text, thread_id text, m runyard.new_message, parent_id uuid, expected uuid)
RETURNS SETOF runyard.messages;

-- Insert messages without a run at the end of a branch, each as the child of the one before. The caller has checked their ids
-- and sizes.
FUNCTION runyard.put_plain(INOUT t runyard.threads, branch runyard.branches, messages runyard.new_message[]);

-- functions/suspend.sql -------------------------------------------------------------------------------------------------------
-- Suspending a run until its requests are answered.

FUNCTION runyard.suspend(w runyard.attempt_write, requests runyard.new_request[]) RETURNS runyard.ended;

-- functions/tags.sql ----------------------------------------------------------------------------------------------------------
-- Tags of threads: the side table that lists read, kept by triggers.

-- Return the digest of a tag. The tag itself may be longer than an index entry can be. Readers check the tag, too.
FUNCTION runyard.tag_term(name text, value text) RETURNS bytea;

FUNCTION runyard.note_tags() RETURNS trigger;

-- functions/threads.sql -------------------------------------------------------------------------------------------------------
-- Threads: find, lock, make and change one.

FUNCTION runyard.live_thread(for_tenant text, thread_id text) RETURNS runyard.threads;

FUNCTION runyard.known_thread(for_tenant text, thread_id text) RETURNS runyard.threads;

-- Return the thread as it is, without a lock, for reads. Raises thread_not_found.
FUNCTION runyard.known_snapshot(for_tenant text, thread_id text) RETURNS runyard.threads;

FUNCTION runyard.known_run(t runyard.threads, run_id text) RETURNS runyard.runs;

-- Return the thread, locked. A thread that does not exist is made, with its first branch.
FUNCTION runyard.ensure_thread(for_tenant text, thread_id text, of_agent text DEFAULT NULL) RETURNS runyard.threads;

-- Return the thread of a run, locked. It is made if the run was accepted in a host's transaction before its thread existed.
FUNCTION runyard.ensure_for_run(for_tenant text, thread_id text, run_id text) RETURNS runyard.threads;

-- Make an empty thread. A thread that a request with the same hash has made is returned as it is.
FUNCTION runyard.create_thread(
    for_tenant text, thread_id text, hash text, of_agent text, with_title text, with_tags jsonb, with_extra jsonb, with_config jsonb,
    OUT thread runyard.threads, OUT created boolean
);

-- Refuse if the thread has changed since the caller read it. NULL expects nothing.
FUNCTION runyard.check_unchanged(t runyard.threads, seen timestamptz) RETURNS void;

-- Set the fields that are in `patch`, and clear those that are null there. `extra` is merged at its top level. Two changes
-- never leave the same updated_at: callers use it as the version.
FUNCTION runyard.update_thread(for_tenant text, thread_id text, patch jsonb, seen timestamptz) RETURNS runyard.threads;

-- Record a thread's agent: the first that one of its runs names.
FUNCTION runyard.note_agent(t runyard.threads, name text) RETURNS void;

-- functions/tool_cycles.sql ---------------------------------------------------------------------------------------------------
-- Tool cycles: calls that wait for their results, and where a thread may be cut.

-- Return the tool calls of a view that have no result in it, in order. Reads only the messages that have calls or results.
FUNCTION runyard.open_calls(levels runyard.level[]) RETURNS text[];

-- Whether every call of the run is directly followed by exactly its results. The run's first results may close calls that its
-- context left open.
FUNCTION runyard.cycles_closed(r runyard.runs) RETURNS boolean;

FUNCTION runyard.repeats(ids text[]) RETURNS boolean;

-- Refuse a cut inside a tool cycle. Names the nearest messages of the branch at which no call is open.
FUNCTION runyard.check_boundary(view runyard.level[], whole runyard.level[], at runyard.messages) RETURNS void;

-- functions/usage.sql ---------------------------------------------------------------------------------------------------------
-- Usage of runs: adding and subtracting it, and totals by tenant, agent and day, counted from the feed.

-- Return the sum of two usages. A damaged sum is left as it is: an error would stop the leader, who adds for every tenant.
FUNCTION runyard.add_usage(a jsonb, b jsonb) RETURNS jsonb;

-- Return a number of a usage. A value that is no number, or larger than a usage can be, counts as 0, so that a damaged row
-- stops nothing.
FUNCTION runyard.amount(usage jsonb, name text) RETURNS numeric;

FUNCTION runyard.less_usage(a jsonb, b jsonb) RETURNS jsonb;

-- Add up to `most` entries of the tenant in c to its totals: those after (c.transaction, c.position) and before c.goal. Returns
-- their number. c then stands at the last one.
FUNCTION runyard.count_entries(INOUT c runyard.usage_counter, most integer, OUT entries integer);

-- Return the next tenant after c.tenant that has entries to count, or the tenant at which the search stopped after `most`
-- tenants; NULL if there is none. A tenant without entries costs one look into the index, which finds the first entry of a
-- later tenant.
FUNCTION runyard.next_to_count(c runyard.usage_counter, most integer, OUT tenant text, OUT looks integer);

-- Bring the totals forward by about `most` entries. The leader calls this. A round counts, tenant by tenant, what was committed
-- when the round before ended. It begins once every transaction that was open then has ended, so no entry can appear before its
-- place. Totals and place are written together. A second leader finds the row locked and does nothing.
FUNCTION runyard.count_usage(most integer) RETURNS void;

-- Return the totals of a tenant's days from `since` to `until`, both included; for the agent '', of all agents. Every row has
-- the time up to which totals are complete. If there are no days, one row has only that.
FUNCTION runyard.usage_of(for_tenant text, for_agent text, since date, until date)
RETURNS TABLE (counted_until timestamptz, day date, runs bigint, requests numeric, input_tokens numeric, output_tokens numeric, cost numeric,
               seconds numeric);

-- functions/visibility.sql ----------------------------------------------------------------------------------------------------
-- Visibility: which messages a branch, a run or a cut sees.
-- A view is an array of levels; a message is visible through its level if its number is not above the high water and it has no run, or
-- belongs to the level's open run, or its run completed not after the cutoff. Numbers grow along every path, so seq orders a view.

-- Return all messages of a view, level by level. The join stays within one thread whichever way it is planned. A subquery per
-- message would cost three times as much.
FUNCTION runyard.visible(levels runyard.level[]) RETURNS SETOF runyard.messages;

-- Return at most `most` messages of a level between two numbers, from either end. Reads only these and the invisible ones
-- between them.
FUNCTION runyard.visible_part(l runyard.level, after bigint, before bigint, most bigint, newest_first boolean)
RETURNS SETOF runyard.messages;

FUNCTION runyard.inherited(branch_id bigint) RETURNS runyard.level[];

-- Return the view of everything that counts on a branch at this moment.
FUNCTION runyard.branch_view(branch_id bigint) RETURNS runyard.level[];

-- Return the view of what a run sees of other runs: its branch as of its snapshot.
FUNCTION runyard.run_view(r runyard.runs) RETURNS runyard.level[];

FUNCTION runyard.last_visible(levels runyard.level[], OUT message_id uuid, OUT seq bigint);

-- Return the level through which a thread sees a message of an ancestor; no row if it does not see it. The thread's first
-- branch sees all that any of its branches inherits.
FUNCTION runyard.seen_through(thread_key bigint, message_id uuid)
RETURNS TABLE (level runyard.level, message runyard.messages, run runyard.runs);

-- Return an inherited run as the thread sees it: completed (with the level through which it is seen), or the open run of a
-- level.
FUNCTION runyard.inherited_run(thread_key bigint, run_id text)
RETURNS TABLE (run runyard.runs, level runyard.level, open boolean);

-- Return the last completed run on the head's path, which is the default cut.
FUNCTION runyard.last_completed(t runyard.threads) RETURNS text;

-- Return the extra that a cut carries: the latest one that was saved with a run before the cut, else the one that the thread
-- began with.
FUNCTION runyard.extra_at(view runyard.level[]) RETURNS jsonb;

-- functions/webhooks.sql ------------------------------------------------------------------------------------------------------
-- Webhooks: from the feed to deliveries, and from one try to the next.

-- Turn committed entries into deliveries, then take up to `most` deliveries that are due. Endpoints take turns from `after` on,
-- so that none waits for another. At most `each` deliveries of an endpoint are in flight, those in `busy` (endpoint → number)
-- included. A delivery that is taken is due again after `lease` seconds unless it is settled. `versions`: of the secrets that
-- sign; empty if the webhook is gone.
FUNCTION runyard.take_webhooks(busy jsonb, after text, most integer, each integer, lease double precision)
RETURNS TABLE (delivery_no bigint, delivery_id text, tenant text, webhook_id text, versions integer[], url text, endpoint text, type text,
               thread_id text, run_id text, created_at timestamptz, tries integer);

-- Turn the feed's entries for a webhook into about `most` deliveries, in the transaction that moves its cursor. Whole
-- transactions that are older than the oldest open one are read, so no entry can appear before the cursor. Without entries
-- nothing is written.
FUNCTION runyard.spread_webhook(w runyard.webhooks, most integer) RETURNS void;

FUNCTION runyard.feed_tenants() RETURNS text[];

-- Record the outcome of a try: delivered; retried after `pause` seconds; failed; or gone, which disables the webhook. If
-- another try has begun since, only `delivered` is recorded.
FUNCTION runyard.settle_webhook(delivery_no bigint, of_try integer, outcome text, answered integer, why text, pause double precision)
RETURNS void;

-- Remove a webhook and its pending deliveries. Returns whether there was one.
FUNCTION runyard.remove_webhook(for_tenant text, webhook_id text) RETURNS boolean;

-- Send a delivery that failed or was delivered once more. Returns whether that can be done.
FUNCTION runyard.redeliver(for_tenant text, delivery_id text) RETURNS boolean;

-- functions/workers.sql -------------------------------------------------------------------------------------------------------
-- The register of workers, the leader's lease, and the lane heads that the leader offers again.

-- Register a worker and its agents. A repetition, after a reply was lost, is the same registration.
FUNCTION runyard.register(
    worker_id text, in_queues text[], with_agents jsonb, version text, on_mismatch text, with_slots integer, at_address text,
    asking text[]
) RETURNS void;

-- Record a worker's heartbeat. Returns what a worker has to know every second.
FUNCTION runyard.beat(worker_id text, OUT draining boolean, OUT paused text[], OUT oldest_code integer);

FUNCTION runyard.lead(lease text, worker_id text, ttl double precision) RETURNS boolean;

-- Return lane heads that should have been claimed: queued and due, or running on a dead worker, and unchanged for a while. Goes
-- from lane to lane by the index, so that the runs behind a head cost nothing.
FUNCTION runyard.heads(unchanged interval, after_key bigint, after_lane text, most integer) RETURNS SETOF runyard.runs;

-- functions/write.sql ---------------------------------------------------------------------------------------------------------
-- The right of an attempt to write: its run, locked, and its fence, compared.

FUNCTION runyard.lock_run(thread_key bigint, run_id text, OUT t runyard.threads, OUT r runyard.runs);

-- Return NULL if the attempt may write; else 'stale_fence', 'cancel_requested', or 'repeated' (the attempt has ended the run's
-- turn before).
FUNCTION runyard.write_refused(r runyard.runs, with_fence bigint) RETURNS text;

FUNCTION runyard.refuse_write(r runyard.runs, with_fence bigint) RETURNS void;

-- Lock an attempt's run for its last write. over: the turn has ended as `e` says, whatever the caller asks for, because a
-- cancel was requested before, or because the write is stale or repeated. first_event NULL: the caller is not the attempt, and
-- a last event gets a fence of its own.
FUNCTION runyard.lock_attempt(
    thread_key bigint, run_id text, with_fence bigint, first_event integer,
    OUT t runyard.threads, OUT r runyard.runs, OUT e runyard.ended, OUT over boolean
);

-- Store the messages, extra, usage and result of an attempt's last write.
FUNCTION runyard.keep_write(
    INOUT t runyard.threads, INOUT r runyard.runs, w runyard.attempt_write, message_bytes bigint
);

FUNCTION runyard.note_attempt(r runyard.runs, how text, why jsonb) RETURNS void;
