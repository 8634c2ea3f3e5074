-- Threads, branches, levels, messages, external runs and HITL requests. The names of columns and their meaning are those of
-- postgres/migrations. A time is a number of microseconds since 1970 (UTC). JSON is text. A list of tool call ids is a JSON list.

-- is_live: NULL after the thread was deleted, so that its id is free. root_branch: the first branch.
CREATE TABLE runyard_threads (
    thread_key          INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant              TEXT NOT NULL,
    thread_id           TEXT NOT NULL,
    is_live             INTEGER,
    parent_thread_id    TEXT,
    forked_after_run_id TEXT,
    forked_at_seq       INTEGER,
    fork_hash           TEXT,
    root_branch         INTEGER,
    head_branch         INTEGER,
    next_seq            INTEGER NOT NULL,
    next_completion_seq INTEGER NOT NULL,
    agent               TEXT,
    title               TEXT,
    tags                TEXT NOT NULL,
    base_extra          TEXT NOT NULL,
    extra               TEXT NOT NULL,
    extra_changed       INTEGER NOT NULL DEFAULT 0,
    config              TEXT NOT NULL,
    created_at          INTEGER NOT NULL,
    updated_at          INTEGER NOT NULL,
    UNIQUE (tenant, thread_id, is_live)
);
CREATE INDEX runyard_threads_list ON runyard_threads (tenant, is_live, thread_key);
CREATE INDEX runyard_threads_of_agent ON runyard_threads (tenant, is_live, agent, thread_key);
CREATE INDEX runyard_threads_of_parent ON runyard_threads (tenant, is_live, parent_thread_id, thread_key);

-- term: the hash of a tag's name and value.
CREATE TABLE runyard_thread_tags (
    tenant     TEXT NOT NULL,
    term       TEXT NOT NULL,
    thread_key INTEGER NOT NULL,
    PRIMARY KEY (tenant, term, thread_key)
) WITHOUT ROWID;
CREATE INDEX runyard_thread_tags_of_thread ON runyard_thread_tags (thread_key);

CREATE TABLE runyard_branches (
    branch_id      INTEGER PRIMARY KEY AUTOINCREMENT,
    thread_key     INTEGER NOT NULL,
    base_id        TEXT,
    leaf_id        TEXT,
    leaf_seq       INTEGER NOT NULL,
    high_water_seq INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX runyard_branches_of_thread ON runyard_branches (thread_key, leaf_id);

CREATE TABLE runyard_levels (
    branch_id      INTEGER NOT NULL,
    ancestor_id    INTEGER NOT NULL,
    high_water_seq INTEGER NOT NULL,
    cutoff         INTEGER NOT NULL,
    open_run_id    TEXT,
    PRIMARY KEY (branch_id, ancestor_id)
) WITHOUT ROWID;
CREATE INDEX runyard_levels_of_ancestor ON runyard_levels (ancestor_id);

-- payload: NULL for the tombstone of an erased message, whose text is its note. tools: 1 for a message with tool calls or results.
CREATE TABLE runyard_messages (
    branch_id  INTEGER NOT NULL,
    seq        INTEGER NOT NULL,
    message_id TEXT NOT NULL,
    parent_id  TEXT,
    run_id     TEXT,
    role       TEXT NOT NULL,
    payload    BLOB,
    note       TEXT,
    tools      INTEGER NOT NULL,
    calls      TEXT,
    results    TEXT,
    created_at INTEGER NOT NULL,
    PRIMARY KEY (branch_id, seq)
);
CREATE INDEX runyard_messages_by_id ON runyard_messages (message_id, branch_id);
CREATE INDEX runyard_messages_with_tools ON runyard_messages (branch_id, tools, seq);

-- The places of messages that were appended under the id of a run that was never claimed.
CREATE TABLE runyard_unclaimed (
    thread_key      INTEGER NOT NULL,
    run_id          TEXT NOT NULL,
    branch_id       INTEGER NOT NULL,
    first_seq       INTEGER NOT NULL,
    last_seq        INTEGER NOT NULL,
    last_message_id TEXT NOT NULL,
    PRIMARY KEY (thread_key, run_id)
) WITHOUT ROWID;

-- External runs. extra: the extra of the thread after the run, if it changed since the last completed run.
CREATE TABLE runyard_runs (
    accept_no           INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant              TEXT NOT NULL,
    thread_key          INTEGER NOT NULL,
    thread_id           TEXT NOT NULL,
    run_id              TEXT NOT NULL,
    is_live             INTEGER,
    status              TEXT NOT NULL,
    fence               INTEGER NOT NULL,
    branch_id           INTEGER NOT NULL,
    base_id             TEXT,
    snapshot_tip        INTEGER NOT NULL,
    snapshot_cutoff     INTEGER NOT NULL,
    first_seq           INTEGER,
    last_seq            INTEGER,
    last_message_id     TEXT,
    completion_seq      INTEGER,
    high_water_seq      INTEGER,
    extra               TEXT,
    error               TEXT,
    event_id            TEXT,
    accepted_at         INTEGER NOT NULL,
    cancel_requested_at INTEGER,
    finished_at         INTEGER,
    emptied_at          INTEGER,
    UNIQUE (thread_key, run_id)
);
CREATE INDEX runyard_runs_by_completion ON runyard_runs (branch_id, completion_seq);
CREATE INDEX runyard_runs_of_thread ON runyard_runs (thread_key, completion_seq);
CREATE INDEX runyard_runs_list ON runyard_runs (tenant, is_live, accept_no);
CREATE INDEX runyard_runs_list_of_thread ON runyard_runs (thread_key, accept_no);

CREATE TABLE runyard_labels (
    thread_key INTEGER NOT NULL,
    label      TEXT NOT NULL,
    branch_id  INTEGER NOT NULL,
    PRIMARY KEY (thread_key, label)
) WITHOUT ROWID;

CREATE TABLE runyard_requests (
    tenant       TEXT NOT NULL,
    request_id   TEXT NOT NULL,
    thread_key   INTEGER NOT NULL,
    thread_id    TEXT NOT NULL,
    run_id       TEXT,
    kind         TEXT NOT NULL,
    body         BLOB NOT NULL,
    deadline_at  INTEGER,
    otherwise    BLOB,
    answer       BLOB,
    response_id  TEXT,
    answered_by  TEXT,
    on_behalf_of TEXT,
    answered_at  INTEGER,
    closed_at    INTEGER,
    created_at   INTEGER NOT NULL,
    PRIMARY KEY (tenant, request_id),
    UNIQUE (thread_key, response_id)
);
CREATE INDEX runyard_requests_of_thread ON runyard_requests (thread_key, created_at, request_id);
CREATE INDEX runyard_requests_list ON runyard_requests (tenant, created_at, request_id);
CREATE INDEX runyard_requests_overdue ON runyard_requests (tenant, answered_at, closed_at, deadline_at);
