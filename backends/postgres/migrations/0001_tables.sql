-- Tables, types and indexes. Everything lives in the schema "runyard"; names are those of docs/concepts.md.
--
-- Functions that are called from outside fix the search_path, and what they call inherits it: under a caller's own, a function or operator that
-- somebody made in another schema could fit better than the one of pg_catalog. Inside, everything of runyard's is named with its schema.

CREATE SEQUENCE runyard.branch_numbers;
CREATE SEQUENCE runyard.accept_numbers;
CREATE SEQUENCE runyard.lane_numbers;
CREATE SEQUENCE runyard.fences;

CREATE TABLE runyard.threads (
    thread_key          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant              text NOT NULL,
    thread_id           text NOT NULL,
    parent_thread_id    text,
    forked_after_run_id text,
    forked_at_seq       bigint,
    fork_hash           text,
    head_branch         bigint NOT NULL,
    next_seq            bigint NOT NULL DEFAULT 1,
    next_completion_seq bigint NOT NULL DEFAULT 1,
    agent               text,
    title               text,
    tags                jsonb NOT NULL DEFAULT '{}',
    base_extra          jsonb NOT NULL DEFAULT '{}',
    extra               jsonb NOT NULL DEFAULT '{}',
    extra_changed       boolean NOT NULL DEFAULT false,
    config              jsonb NOT NULL DEFAULT '{}',
    usage               jsonb NOT NULL DEFAULT '{}',
    created_at          timestamptz NOT NULL DEFAULT now(),
    updated_at          timestamptz NOT NULL DEFAULT now(),
    deleted_at          timestamptz
) WITH (fillfactor = 70);
CREATE UNIQUE INDEX threads_id ON runyard.threads (tenant, thread_id) WHERE deleted_at IS NULL;
-- What lists read (runyard.list_threads). A condition that always holds, and that only its list states, keeps each of these indexes out of the
-- plans of verbs and of other lists: made while a table is small, such a plan may look a row up by its tenant alone, and go on so as the table
-- grows. The same for runs and requests.
CREATE INDEX threads_list ON runyard.threads (tenant, thread_key) WHERE deleted_at IS NULL AND thread_key > 0;
CREATE INDEX threads_list_of_agent ON runyard.threads (tenant, agent, thread_key)
    WHERE deleted_at IS NULL AND agent IS NOT NULL AND thread_key > -1;
CREATE INDEX threads_list_of_parent ON runyard.threads (tenant, parent_thread_id, thread_key)
    WHERE deleted_at IS NULL AND parent_thread_id IS NOT NULL AND thread_key > -1;

-- Which threads carry a tag, in the order of their lists. A side table, because an inverted index gives a tag's threads in no order: a page
-- would cost as much as all threads that carry the tag. term: runyard.tag_term of one name and value.
CREATE TABLE runyard.thread_tags (
    tenant     text NOT NULL,
    term       bytea NOT NULL,
    thread_key bigint NOT NULL,
    PRIMARY KEY (tenant, term, thread_key)
);

-- A digest, since the value of a tag may be longer than an entry of an index. Readers check the tag itself.
CREATE FUNCTION runyard.tag_term(name text, value text) RETURNS bytea
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN substr(sha256(convert_to(length(name) || ':' || name || value, 'UTF8')), 1, 12);
END $$;

CREATE FUNCTION runyard.note_tags() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    IF jsonb_typeof(NEW.tags) <> 'object' OR TG_OP = 'UPDATE' AND jsonb_typeof(OLD.tags) <> 'object' THEN RETURN NULL; END IF; -- a damaged row
    IF TG_OP = 'UPDATE' THEN
        DELETE FROM runyard.thread_tags g USING (SELECT * FROM jsonb_each_text(OLD.tags) EXCEPT SELECT * FROM jsonb_each_text(NEW.tags)) gone
        WHERE g.tenant = NEW.tenant AND g.term = runyard.tag_term(gone.key, gone.value) AND g.thread_key = NEW.thread_key;
    END IF;
    INSERT INTO runyard.thread_tags (tenant, term, thread_key)
    SELECT NEW.tenant, runyard.tag_term(t.key, t.value), NEW.thread_key FROM jsonb_each_text(NEW.tags) t
    ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;
CREATE TRIGGER tagged AFTER INSERT ON runyard.threads FOR EACH ROW WHEN (NEW.tags <> '{}') EXECUTE FUNCTION runyard.note_tags();
CREATE TRIGGER tagged_anew AFTER UPDATE OF tags ON runyard.threads FOR EACH ROW WHEN (OLD.tags <> NEW.tags)
    EXECUTE FUNCTION runyard.note_tags();

-- leaf: the last visible message of the branch, its own or inherited. base: the message at which it was opened.
CREATE TABLE runyard.branches (
    branch_id      bigint PRIMARY KEY DEFAULT nextval('runyard.branch_numbers'),
    thread_key     bigint NOT NULL,
    lane           text NOT NULL,
    base_id        uuid,
    leaf_id        uuid,
    leaf_seq       bigint NOT NULL DEFAULT 0,
    high_water_seq bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 70);
CREATE INDEX branches_thread ON runyard.branches (thread_key);

CREATE TABLE runyard.levels (
    branch_id      bigint NOT NULL,
    ancestor_id    bigint NOT NULL,
    high_water_seq bigint NOT NULL,
    cutoff         bigint NOT NULL,
    open_run_id    text,
    PRIMARY KEY (branch_id, ancestor_id)
);
CREATE INDEX levels_ancestor ON runyard.levels (ancestor_id);

-- payload NULL marks a tool result that the store wrote itself to close open calls; note is its text.
CREATE TABLE runyard.messages (
    branch_id  bigint NOT NULL,
    seq        bigint NOT NULL,
    message_id uuid NOT NULL,
    parent_id  uuid,
    run_id     text,
    role       text NOT NULL,
    payload    bytea,
    note       text,
    calls      text[],
    results    text[],
    event_id   text,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (branch_id, seq)
);
CREATE INDEX messages_id ON runyard.messages (message_id, branch_id);
CREATE INDEX messages_tools ON runyard.messages (branch_id, seq) WHERE calls IS NOT NULL OR results IS NOT NULL;

-- A status and its timestamps belong together. A function, because a constraint's expression is read anew for every statement.
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

-- candidates: the messages of a fan-out. job: what started the run and is offered again when it ends; until_fewer: such a job waits until
-- fewer of the runs that it started are unfinished. abort_words: what closes the open calls of a run that was aborted, and its last message.
-- emptied_at: when its content was deleted; deleted: with its thread. usage_before: what a run that was redriven had used by then.
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
    job_key             bigint,
    job_run_id          text,
    until_fewer         integer,
    run_at              timestamptz,
    expires_at          timestamptz,
    not_before          timestamptz,
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
    attempt             integer NOT NULL DEFAULT 0,
    error_count         integer NOT NULL DEFAULT 0,
    crash_count         integer NOT NULL DEFAULT 0,
    progressed          boolean NOT NULL DEFAULT false,
    isolated            boolean NOT NULL DEFAULT false,
    cancel_requested_at timestamptz,
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
    accepted_at         timestamptz NOT NULL DEFAULT now(),
    admitted_at         timestamptz,
    started_at          timestamptz,
    suspended_at        timestamptz,
    finished_at         timestamptz,
    changed_at          timestamptz NOT NULL DEFAULT now(),
    waits_for_slot      text,
    place_in_line       bigint,
    emptied_at          timestamptz,
    deleted             boolean NOT NULL DEFAULT false,
    usage_before        jsonb,
    CHECK (runyard.run_is_sound(status, kind, finished_at, suspended_at, started_at, fence, lane_seq, admitted_at, completion_seq,
                               priority, multitask_strategy))
) WITH (fillfactor = 70);
CREATE UNIQUE INDEX runs_id ON runyard.runs (tenant, thread_id, run_id) WHERE NOT deleted;
CREATE UNIQUE INDEX runs_key ON runyard.runs (thread_key, run_id);
CREATE UNIQUE INDEX runs_lane ON runyard.runs (thread_key, lane, lane_seq) WHERE finished_at IS NULL;
CREATE UNIQUE INDEX runs_active ON runyard.runs (thread_key, lane)
    WHERE finished_at IS NULL AND (worker_id IS NOT NULL OR suspended_at IS NOT NULL);
CREATE INDEX runs_unadmitted ON runyard.runs (tenant, thread_id) WHERE lane_seq IS NULL;
CREATE INDEX runs_due ON runyard.runs (coalesce(run_at, accepted_at)) WHERE lane_seq IS NULL;
CREATE INDEX runs_expiring ON runyard.runs (expires_at) WHERE expires_at IS NOT NULL AND attempt = 0 AND finished_at IS NULL;
CREATE INDEX runs_completed ON runyard.runs (branch_id, completion_seq) WHERE completion_seq IS NOT NULL;
CREATE INDEX runs_extra ON runyard.runs (thread_key, completion_seq) WHERE extra IS NOT NULL;
CREATE INDEX runs_waiting ON runyard.runs (thread_key, after_run_id) WHERE after_run_id IS NOT NULL;
CREATE INDEX runs_of_job ON runyard.runs (job_key, job_run_id) WHERE job_key IS NOT NULL;
CREATE INDEX runs_worker ON runyard.runs (worker_id) WHERE worker_id IS NOT NULL AND finished_at IS NULL;
CREATE INDEX runs_queued ON runyard.runs (tenant, accept_no) WHERE finished_at IS NULL AND worker_id IS NULL AND suspended_at IS NULL;
CREATE INDEX runs_of_agent ON runyard.runs (agent) WHERE worker_id IS NOT NULL AND finished_at IS NULL;
CREATE INDEX runs_of_tenant ON runyard.runs (tenant, accepted_at, accept_no) WHERE worker_id IS NOT NULL AND finished_at IS NULL;
CREATE INDEX runs_line ON runyard.runs (waits_for_slot, tenant, place_in_line) WHERE waits_for_slot IS NOT NULL;
CREATE INDEX runs_results ON runyard.runs (finished_at) WHERE fork IS NOT NULL AND result IS NOT NULL;
-- No index names what an append changes, last_seq above all: its update of the run then touches no index.
CREATE INDEX runs_unsuccessful ON runyard.runs (thread_key) WHERE finished_at IS NOT NULL AND completion_seq IS NULL;
-- What lists read (runyard.list_runs). The first three hold nothing that a verb changes; the others hold few runs, or none for long.
CREATE INDEX runs_list ON runyard.runs (tenant, accepted_at, accept_no) WHERE NOT deleted AND emptied_at IS NULL AND accept_no > 0;
CREATE INDEX runs_list_of_agent ON runyard.runs (tenant, agent, accepted_at, accept_no)
    WHERE NOT deleted AND emptied_at IS NULL AND agent IS NOT NULL AND accept_no > -1;
CREATE INDEX runs_list_of_thread ON runyard.runs (thread_key, accepted_at, accept_no) WHERE NOT deleted AND emptied_at IS NULL AND accept_no > 0;
CREATE INDEX runs_list_by_status ON runyard.runs (tenant, status, accepted_at, accept_no)
    WHERE NOT deleted AND emptied_at IS NULL AND accept_no > -1
      AND (status IN ('failed', 'dead', 'cancelled', 'suspended') OR (status = 'running' AND worker_id IS NULL));
CREATE INDEX runs_list_hosted ON runyard.runs (tenant, thread_id, accepted_at, accept_no)
    WHERE NOT deleted AND emptied_at IS NULL AND thread_key IS NULL AND accept_no > -1;

-- Messages appended under a run id that nobody has claimed: where they are, for the claim that may come.
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

-- Attempts that ended otherwise than by completing; the run itself tells of that one.
CREATE TABLE runyard.attempts (
    accept_no   bigint NOT NULL,
    fence       bigint NOT NULL,
    worker_id   text,
    started_at  timestamptz,
    ended_at    timestamptz NOT NULL DEFAULT now(),
    outcome     text NOT NULL,
    error       jsonb,
    PRIMARY KEY (accept_no, fence)
);

CREATE TABLE runyard.steps (
    accept_no bigint NOT NULL,
    step_key  text NOT NULL,
    done      boolean NOT NULL DEFAULT false,
    fence     bigint NOT NULL,
    result    bytea,
    PRIMARY KEY (accept_no, step_key)
);

-- body: msgpack of payload, answer_schema and on_deadline. otherwise: the answer that applies at the deadline; NULL fails the run.
-- A request whose run ended without an answer is closed. answered_by: as far as who recorded the answer knows; on_behalf_of: as they say.
CREATE TABLE runyard.hitl_requests (
    tenant      text NOT NULL,
    request_id  text NOT NULL,
    thread_key  bigint NOT NULL,
    run_id      text,
    kind        text NOT NULL,
    body        bytea NOT NULL,
    deadline_at timestamptz,
    otherwise   bytea,
    answer      bytea,
    response_id text,
    answered_by text,
    on_behalf_of text,
    answered_at timestamptz,
    closed_at   timestamptz,
    event_id    text,
    created_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant, request_id)
);
CREATE UNIQUE INDEX hitl_responses ON runyard.hitl_requests (thread_key, response_id) WHERE response_id IS NOT NULL;
CREATE INDEX hitl_run ON runyard.hitl_requests (thread_key, run_id);
CREATE INDEX hitl_deadlines ON runyard.hitl_requests (deadline_at) WHERE answered_at IS NULL AND closed_at IS NULL;
CREATE INDEX hitl_pending ON runyard.hitl_requests (tenant, created_at, request_id)
    WHERE answered_at IS NULL AND closed_at IS NULL;
CREATE INDEX hitl_list ON runyard.hitl_requests (tenant, created_at, request_id) WHERE created_at > '-infinity';
CREATE INDEX hitl_list_of_thread ON runyard.hitl_requests (thread_key, created_at, request_id) WHERE created_at > '-infinity';
CREATE INDEX hitl_list_pending_of_thread ON runyard.hitl_requests (thread_key, created_at, request_id)
    WHERE answered_at IS NULL AND closed_at IS NULL AND created_at >= '-infinity';

-- Requests as clients see them: on which thread, and which agent asks.
CREATE VIEW runyard.requests AS
SELECT h.*, t.thread_id, r.agent FROM runyard.hitl_requests h JOIN runyard.threads t USING (tenant, thread_key)
LEFT JOIN runyard.runs r ON r.thread_key = h.thread_key AND r.run_id = h.run_id
WHERE t.deleted_at IS NULL;

CREATE TABLE runyard.workers (
    worker_id    text PRIMARY KEY,
    queues       text[] NOT NULL,
    agents       jsonb NOT NULL DEFAULT '{}',
    app_version  text,
    on_version_mismatch text NOT NULL DEFAULT 'run',
    slots        integer NOT NULL DEFAULT 0,
    address      text,
    draining     boolean NOT NULL DEFAULT false,
    started_at   timestamptz NOT NULL DEFAULT now(),
    heartbeat_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    dead_at      timestamptz
) WITH (fillfactor = 50);

CREATE TABLE runyard.paused_queues (
    queue     text PRIMARY KEY,
    paused_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE runyard.agents (
    agent       text PRIMARY KEY,
    queue       text NOT NULL,
    asks        boolean NOT NULL DEFAULT false,
    app_version text,
    updated_at  timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE runyard.leases (
    name       text PRIMARY KEY,
    holder     text NOT NULL,
    expires_at timestamptz NOT NULL
);

-- subject: the tenant or agent of which a limit speaks; NULL: each, or all.
CREATE TABLE runyard.limits (
    limit_name text NOT NULL,
    subject    text,
    most       bigint NOT NULL,
    UNIQUE NULLS NOT DISTINCT (limit_name, subject)
);

-- The tenants in the line for a slot, in the order in which they are served next; one may have left the line. Changed under the slot's lock only.
CREATE TABLE runyard.slot_turns (
    slot   text NOT NULL,
    tenant text NOT NULL,
    turn   bigint NOT NULL DEFAULT nextval('runyard.lane_numbers'),
    PRIMARY KEY (slot, tenant)
) WITH (fillfactor = 50);
CREATE INDEX slot_turns_order ON runyard.slot_turns (slot, turn);

-- How many runs waited when it was measured, of those that were accepted by then. name: "all" or "tenant …".
CREATE TABLE runyard.queue_sizes (
    name        text PRIMARY KEY,
    queued      bigint NOT NULL,
    newest      bigint NOT NULL,
    measured_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- What may be told of: runner.models.FeedType. A domain, because a table's constraint is read anew for every statement.
CREATE DOMAIN runyard.feed_type AS text CHECK (VALUE IN ('run.completed', 'run.failed', 'run.cancelled', 'run.dead', 'run.suspended',
    'message.stored', 'thread.forked', 'thread.deleted'));

-- The feed. Read in the order of (transaction, position), never past the oldest open transaction. usage: of a run that ended; agent: of one that had
-- an attempt. redriven: it had ended before, and usage is what it used since. created_at: later than the transaction had its number.
CREATE TABLE runyard.outbox (
    tenant      text NOT NULL,
    transaction xid8 NOT NULL DEFAULT pg_current_xact_id(),
    position    bigint GENERATED ALWAYS AS IDENTITY,
    thread_key  bigint,
    thread_id   text NOT NULL,
    run_id      text,
    type        runyard.feed_type NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    agent       text,
    usage       jsonb,
    redriven    boolean NOT NULL DEFAULT false,
    PRIMARY KEY (tenant, transaction, position)
);

-- Up to where a tenant's feed was pruned.
CREATE TABLE runyard.pruned (
    tenant      text PRIMARY KEY,
    transaction xid8 NOT NULL,
    position    bigint NOT NULL
);

-- What the runs of a tenant that ended on a day (UTC) used: an agent's, and under '' all of them. Counted from the outbox.
CREATE TABLE runyard.usage_days (
    tenant        text NOT NULL,
    agent         text NOT NULL,
    day           date NOT NULL,
    runs          bigint NOT NULL,
    requests      numeric NOT NULL,
    input_tokens  numeric NOT NULL,
    output_tokens numeric NOT NULL,
    cost          numeric NOT NULL,
    seconds       numeric NOT NULL,
    PRIMARY KEY (tenant, agent, day)
) WITH (fillfactor = 70);

-- How far the outbox was counted; one row. Entries of transactions before `counted` were, which are all that were committed by counted_until.
-- Entries of transactions before `goal`, which are all that were committed by goal_at, are being counted, tenant by tenant: those of tenants
-- before `tenant` were, and of it those up to (transaction, position).
CREATE TABLE runyard.usage_counter (
    one           boolean PRIMARY KEY DEFAULT true CHECK (one),
    counted       xid8 NOT NULL DEFAULT '0',
    counted_until timestamptz,
    goal          xid8 NOT NULL,
    goal_at       timestamptz NOT NULL,
    tenant        text NOT NULL DEFAULT '',
    transaction   xid8 NOT NULL DEFAULT '0',
    position      bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50);

-- Subscriptions to the feed; tenant NULL: of every tenant. Entries of transactions before `cursor` were turned into deliveries; those that were
-- committed when it was made (`since`) are left out. disabled_at: the receiver said that it is gone. version: of the secret that signs, which is
-- derived and stored nowhere; until both_until the version before signs as well. rotation_id: of the rotation that made it, for repetitions.
CREATE TABLE runyard.webhooks (
    webhook_id  text PRIMARY KEY,
    tenant      text,
    url         text NOT NULL,
    events      runyard.feed_type[] NOT NULL,
    version     integer NOT NULL DEFAULT 1,
    both_until  timestamptz,
    rotation_id text,
    since       pg_snapshot NOT NULL DEFAULT pg_current_snapshot(),
    cursor      xid8 NOT NULL DEFAULT pg_snapshot_xmin(pg_current_snapshot()),
    created_at  timestamptz NOT NULL DEFAULT now(),
    disabled_at timestamptz
);
CREATE INDEX webhooks_of_tenant ON runyard.webhooks (tenant, created_at, webhook_id);

-- The same of the URLs of a tenant's runs; version 1 signs for a tenant without a row.
CREATE TABLE runyard.webhook_keys (
    tenant      text PRIMARY KEY,
    version     integer NOT NULL,
    both_until  timestamptz,
    rotation_id text
);

-- What is sent to whom. webhook_id NULL: to the URL that came with the run. next_at: when to try; NULL once it was delivered or has failed.
CREATE TABLE runyard.webhook_deliveries (
    delivery_no  bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    delivery_id  text NOT NULL UNIQUE DEFAULT 'msg_' || replace(gen_random_uuid()::text, '-', ''),
    tenant       text NOT NULL,
    webhook_id   text,
    url          text NOT NULL,
    endpoint     text GENERATED ALWAYS AS (lower(substring(url from '^[^:]+://[^/?#]+'))) STORED,
    type         runyard.feed_type NOT NULL,
    thread_id    text NOT NULL,
    run_id       text,
    created_at   timestamptz NOT NULL DEFAULT now(),
    tries        integer NOT NULL DEFAULT 0,
    next_at      timestamptz DEFAULT now(),
    delivered_at timestamptz,
    failed_at    timestamptz,
    http_status  integer,
    error        text,
    CHECK ((next_at IS NULL) = (delivered_at IS NOT NULL OR failed_at IS NOT NULL))
) WITH (fillfactor = 70);
CREATE INDEX webhook_deliveries_due ON runyard.webhook_deliveries (endpoint, next_at, delivery_no) WHERE next_at IS NOT NULL;
CREATE INDEX webhook_deliveries_oldest ON runyard.webhook_deliveries (created_at) WHERE next_at IS NOT NULL;
CREATE INDEX webhook_deliveries_of_tenant ON runyard.webhook_deliveries (tenant, delivery_no);
CREATE INDEX webhook_deliveries_failed ON runyard.webhook_deliveries (tenant, delivery_no) WHERE failed_at IS NOT NULL;
CREATE INDEX webhook_deliveries_delivered ON runyard.webhook_deliveries (tenant, delivery_no) WHERE delivered_at IS NOT NULL;
CREATE INDEX webhook_deliveries_pending ON runyard.webhook_deliveries (tenant, delivery_no) WHERE next_at IS NOT NULL;
CREATE INDEX webhook_deliveries_over ON runyard.webhook_deliveries (coalesce(delivered_at, failed_at)) WHERE next_at IS NULL;

CREATE TYPE runyard.level AS (branch_id bigint, high_water_seq bigint, cutoff bigint, open_run_id text);
CREATE TYPE runyard.new_message AS (message_id uuid, role text, payload bytea, calls text[], results text[]);
CREATE TYPE runyard.attempt_write AS (
    thread_key bigint, run_id text, fence bigint, messages runyard.new_message[],
    extra jsonb, usage jsonb, result bytea, first_event integer
);
-- timeout: seconds from now on to the deadline, where no deadline_at is given.
CREATE TYPE runyard.new_request AS (
    request_id text, kind text, body bytea, deadline_at timestamptz, timeout double precision, otherwise bytea
);
