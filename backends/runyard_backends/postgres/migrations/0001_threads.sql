-- Threads, their branches and messages. All objects are in the schema "runyard". Their names are terms of docs/concepts.md.
--
-- Storage settings. The default of Postgres vacuums a table when a fifth of its rows is dead. In a table of 10^7 rows this vacuum begins
-- late and takes long. The tables that each run changes are therefore vacuumed when a twentieth of their rows is dead. They are analyzed as
-- often, because plans depend on the frequencies of values. A fillfactor below 100 leaves room on each page for new versions of its rows,
-- so that an update that changes no indexed column writes no index. Tables of few rows keep the defaults.

-- Times to which programs can add durations. Python's calendar ends with the year 9999, and a driver cannot read a row with a later time.
-- moment and small_count are domains, because Postgres parses the constraint of a table again for every statement.
CREATE DOMAIN runyard.moment AS timestamptz CHECK (VALUE >= '1970-01-01T00:00:00Z' AND VALUE < '9100-01-01T00:00:00Z');

-- Counts that can grow. A count out of range would stop every statement that reads its row together with other rows.
CREATE DOMAIN runyard.small_count AS integer CHECK (VALUE >= 0 AND VALUE < 1000000000);

CREATE SEQUENCE runyard.branch_numbers;
CREATE SEQUENCE runyard.accept_numbers;
CREATE SEQUENCE runyard.lane_numbers;
CREATE SEQUENCE runyard.fences;

-- Threads. A deleted thread stays as long as a fork shows a part of it. fork_hash: the hash of the request that made the thread.
-- lane_floor: all runs of the lane '' whose lane_seq is at most this number have ended. Reads of the lane begin after this number, because
-- the index entries of ended runs stay as long as any transaction is older than the end of the run.
-- base_extra: the extra with which the thread began. extra_changed: true if the extra changed since the last completed run.
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
    lane_floor          bigint NOT NULL DEFAULT 0,
    agent               text,
    title               text,
    tags                jsonb NOT NULL DEFAULT '{}',
    base_extra          jsonb NOT NULL DEFAULT '{}',
    extra               jsonb NOT NULL DEFAULT '{}',
    extra_changed       boolean NOT NULL DEFAULT false,
    config              jsonb NOT NULL DEFAULT '{}',
    usage               jsonb NOT NULL DEFAULT '{}',
    created_at          runyard.moment NOT NULL DEFAULT now(),
    updated_at          runyard.moment NOT NULL DEFAULT now(),
    deleted_at          runyard.moment
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05);
CREATE UNIQUE INDEX threads_id ON runyard.threads (tenant, thread_id) WHERE deleted_at IS NULL;
-- The indexes of lists (runyard.list_threads). Each has a condition that is always true and that only its list has. The condition keeps the
-- index out of the plans of verbs and of other lists. Without the condition, a plan for a small table could find a row by its tenant alone,
-- and this plan would stay in use as the table grows. The indexes of lists of runs and of requests have such conditions too.
CREATE INDEX threads_list ON runyard.threads (tenant, thread_key) WHERE deleted_at IS NULL AND thread_key > 0;
CREATE INDEX threads_list_of_agent ON runyard.threads (tenant, agent, thread_key)
    WHERE deleted_at IS NULL AND agent IS NOT NULL AND thread_key > -1;
CREATE INDEX threads_list_of_parent ON runyard.threads (tenant, parent_thread_id, thread_key)
    WHERE deleted_at IS NULL AND parent_thread_id IS NOT NULL AND thread_key > -1;

-- The threads that have a tag, in the order of lists. An inverted index has no order, so that a page would cost as much as all threads with
-- the tag. term: runyard.tag_term of one name and value.
CREATE TABLE runyard.thread_tags (
    tenant     text NOT NULL,
    term       bytea NOT NULL,
    thread_key bigint NOT NULL,
    PRIMARY KEY (tenant, term, thread_key)
);

-- The branches of a thread. leaf_id, leaf_seq: the last visible message of the branch, own or inherited. base_id: the message after which
-- the branch begins. high_water_seq: the highest message number that the branch's completed runs have as their last_seq or snapshot_tip.
CREATE TABLE runyard.branches (
    branch_id      bigint PRIMARY KEY DEFAULT nextval('runyard.branch_numbers'),
    thread_key     bigint NOT NULL,
    lane           text NOT NULL,
    base_id        uuid,
    leaf_id        uuid,
    leaf_seq       bigint NOT NULL DEFAULT 0,
    high_water_seq bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05);
CREATE INDEX branches_thread ON runyard.branches (thread_key);

-- The levels of a branch, one per ancestor. The branch inherits these messages of an ancestor up to high_water_seq: messages without a run,
-- messages of runs whose completion number is at most cutoff, and messages of the run open_run_id. This run need not be completed.
CREATE TABLE runyard.levels (
    branch_id      bigint NOT NULL,
    ancestor_id    bigint NOT NULL,
    high_water_seq bigint NOT NULL,
    cutoff         bigint NOT NULL,
    open_run_id    text,
    PRIMARY KEY (branch_id, ancestor_id)
);
CREATE INDEX levels_ancestor ON runyard.levels (ancestor_id);

-- The messages of a branch. payload: NULL for a message that the store wrote itself: results that close open tool calls, or the
-- tombstone of an erased message. note: the text of such a message. calls, results: the ids of its tool calls, and of the tool
-- calls of its results.
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
    created_at runyard.moment NOT NULL DEFAULT now(),
    PRIMARY KEY (branch_id, seq)
) WITH (autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05); -- rows are inserted and stay: freeze them in parts
CREATE INDEX messages_id ON runyard.messages (message_id, branch_id);
CREATE INDEX messages_tools ON runyard.messages (branch_id, seq) WHERE calls IS NOT NULL OR results IS NOT NULL;

-- The progress of the removal of deleted threads (runyard.remove_step). after_run: runs up to this id are removed, except those that forks
-- show. runs_hidden: true after all runs were removed or hidden. Then messages are removed, from the highest branch to the lowest.
-- below_branch: the messages of the branches from this number on are removed. after_seq: the messages of the next lower branch are removed
-- up to this number. For an erased thread, entries are first removed from the extra of the thread and then from the extra of its forks.
-- erased: the hashes (runyard.extra_hash) of these entries, as keys of an object. after_fork: 0 until the thread itself is done. Then the
-- forks up to this key are done. after_completion: in the next thread or fork, the runs up to this completion number are done.
CREATE TABLE runyard.removals (
    thread_key   bigint PRIMARY KEY,
    tenant       text NOT NULL,
    thread_id    text NOT NULL,
    erase        boolean NOT NULL,
    erased       jsonb,
    after_fork   bigint NOT NULL DEFAULT 0,
    after_completion bigint NOT NULL DEFAULT 0,
    after_run    text NOT NULL DEFAULT '',
    runs_hidden  boolean NOT NULL DEFAULT false,
    below_branch bigint NOT NULL DEFAULT 9223372036854775807,
    after_seq    bigint NOT NULL DEFAULT 0
);
CREATE INDEX removals_id ON runyard.removals (tenant, thread_id) WHERE NOT runs_hidden;

-- A level of a view: the part of one branch that is visible. The columns are those of runyard.levels.
CREATE TYPE runyard.level AS (branch_id bigint, high_water_seq bigint, cutoff bigint, open_run_id text);
-- A message to store.
CREATE TYPE runyard.new_message AS (message_id uuid, role text, payload bytea, calls text[], results text[]);
