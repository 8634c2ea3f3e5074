-- Threads, their branches and messages. Everything lives in the schema "runyard"; names are those of docs/concepts.md.

CREATE SEQUENCE runyard.branch_numbers;
CREATE SEQUENCE runyard.accept_numbers;
CREATE SEQUENCE runyard.lane_numbers;
CREATE SEQUENCE runyard.fences;

-- Threads. A deleted one stays as long as a fork shows something of it. fork_hash: of the request that made the thread.
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
-- The indexes of lists (runyard.list_threads). Each has a condition that always holds, and that only its list states. It keeps the index
-- out of the plans of verbs and of other lists: a plan made while the table is small could find a row by its tenant alone, and would
-- stay as the table grows. The same holds for runs and requests.
CREATE INDEX threads_list ON runyard.threads (tenant, thread_key) WHERE deleted_at IS NULL AND thread_key > 0;
CREATE INDEX threads_list_of_agent ON runyard.threads (tenant, agent, thread_key)
    WHERE deleted_at IS NULL AND agent IS NOT NULL AND thread_key > -1;
CREATE INDEX threads_list_of_parent ON runyard.threads (tenant, parent_thread_id, thread_key)
    WHERE deleted_at IS NULL AND parent_thread_id IS NOT NULL AND thread_key > -1;

-- The threads that carry a tag, in the order of lists. An inverted index would give them in no order: a page would cost as much as all
-- threads that carry the tag. term: runyard.tag_term of one name and value.
CREATE TABLE runyard.thread_tags (
    tenant     text NOT NULL,
    term       bytea NOT NULL,
    thread_key bigint NOT NULL,
    PRIMARY KEY (tenant, term, thread_key)
);

-- The branches of a thread. leaf: the last visible message, the branch's own or inherited. base: the message at which it begins.
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

-- What a branch inherits: of each ancestor, the messages up to a number whose runs completed up to a cutoff, and those of one open run.
CREATE TABLE runyard.levels (
    branch_id      bigint NOT NULL,
    ancestor_id    bigint NOT NULL,
    high_water_seq bigint NOT NULL,
    cutoff         bigint NOT NULL,
    open_run_id    text,
    PRIMARY KEY (branch_id, ancestor_id)
);
CREATE INDEX levels_ancestor ON runyard.levels (ancestor_id);

-- The messages of a branch. payload NULL: a tool result that the store wrote itself to close open calls; note is its text.
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

-- A level of a view: what is visible of one branch.
CREATE TYPE runyard.level AS (branch_id bigint, high_water_seq bigint, cutoff bigint, open_run_id text);
-- A message that is to be stored.
CREATE TYPE runyard.new_message AS (message_id uuid, role text, payload bytea, calls text[], results text[]);
