-- Threads, branches, levels, messages, external runs and HITL requests. The names of columns and their meaning are those of
-- postgres/migrations. A time is a number of microseconds since 1970 (UTC). JSON is text. A list of tool call ids is a JSON list.
-- {collation} is the server's collation that compares names and ids byte by byte. An interrupted migration is repeated, because this server
-- cannot roll back the creation of a table.

-- is_live: NULL after the thread was deleted, so that its id is free. root_branch: the first branch.
CREATE TABLE IF NOT EXISTS runyard_threads (
    thread_key          BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    tenant              VARCHAR(255) NOT NULL,
    thread_id           VARCHAR(255) NOT NULL,
    is_live             TINYINT,
    parent_thread_id    VARCHAR(255),
    forked_after_run_id VARCHAR(255),
    forked_at_seq       BIGINT,
    fork_hash           VARCHAR(100),
    root_branch         BIGINT,
    head_branch         BIGINT,
    next_seq            BIGINT NOT NULL,
    next_completion_seq BIGINT NOT NULL,
    agent               VARCHAR(255),
    title               TEXT,
    tags                LONGTEXT NOT NULL,
    base_extra          LONGTEXT NOT NULL,
    extra               LONGTEXT NOT NULL,
    extra_changed       TINYINT NOT NULL DEFAULT 0,
    config              LONGTEXT NOT NULL,
    created_at          BIGINT NOT NULL,
    updated_at          BIGINT NOT NULL,
    UNIQUE (tenant, thread_id, is_live),
    INDEX runyard_threads_list (tenant, is_live, thread_key),
    INDEX runyard_threads_of_agent (tenant, is_live, agent, thread_key),
    INDEX runyard_threads_of_parent (tenant, is_live, parent_thread_id, thread_key)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE {collation};

-- term: the hash of a tag's name and value.
CREATE TABLE IF NOT EXISTS runyard_thread_tags (
    tenant     VARCHAR(255) NOT NULL,
    term       VARCHAR(100) NOT NULL,
    thread_key BIGINT NOT NULL,
    PRIMARY KEY (tenant, term, thread_key),
    INDEX runyard_thread_tags_of_thread (thread_key)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE {collation};

CREATE TABLE IF NOT EXISTS runyard_branches (
    branch_id      BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    thread_key     BIGINT NOT NULL,
    base_id        CHAR(36),
    leaf_id        CHAR(36),
    leaf_seq       BIGINT NOT NULL,
    high_water_seq BIGINT NOT NULL DEFAULT 0,
    INDEX runyard_branches_of_thread (thread_key, leaf_id)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE {collation};

CREATE TABLE IF NOT EXISTS runyard_levels (
    branch_id      BIGINT NOT NULL,
    ancestor_id    BIGINT NOT NULL,
    high_water_seq BIGINT NOT NULL,
    cutoff         BIGINT NOT NULL,
    open_run_id    VARCHAR(255),
    PRIMARY KEY (branch_id, ancestor_id),
    INDEX runyard_levels_of_ancestor (ancestor_id)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE {collation};

-- payload: NULL for the tombstone of an erased message, whose text is its note. tools: 1 for a message with tool calls or results.
CREATE TABLE IF NOT EXISTS runyard_messages (
    branch_id  BIGINT NOT NULL,
    seq        BIGINT NOT NULL,
    message_id CHAR(36) NOT NULL,
    parent_id  CHAR(36),
    run_id     VARCHAR(255),
    role       VARCHAR(20) NOT NULL,
    payload    LONGBLOB,
    note       TEXT,
    tools      TINYINT NOT NULL,
    calls      LONGTEXT,
    results    LONGTEXT,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (branch_id, seq),
    INDEX runyard_messages_by_id (message_id, branch_id),
    INDEX runyard_messages_with_tools (branch_id, tools, seq)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE {collation};

-- The places of messages that were appended under the id of a run that was never claimed.
CREATE TABLE IF NOT EXISTS runyard_unclaimed (
    thread_key      BIGINT NOT NULL,
    run_id          VARCHAR(255) NOT NULL,
    branch_id       BIGINT NOT NULL,
    first_seq       BIGINT NOT NULL,
    last_seq        BIGINT NOT NULL,
    last_message_id CHAR(36) NOT NULL,
    PRIMARY KEY (thread_key, run_id)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE {collation};

-- External runs. extra: the extra of the thread after the run, if it changed since the last completed run.
CREATE TABLE IF NOT EXISTS runyard_runs (
    accept_no           BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    tenant              VARCHAR(255) NOT NULL,
    thread_key          BIGINT NOT NULL,
    thread_id           VARCHAR(255) NOT NULL,
    run_id              VARCHAR(255) NOT NULL,
    is_live             TINYINT,
    status              VARCHAR(20) NOT NULL,
    fence               BIGINT NOT NULL,
    branch_id           BIGINT NOT NULL,
    base_id             CHAR(36),
    snapshot_tip        BIGINT NOT NULL,
    snapshot_cutoff     BIGINT NOT NULL,
    first_seq           BIGINT,
    last_seq            BIGINT,
    last_message_id     CHAR(36),
    completion_seq      BIGINT,
    high_water_seq      BIGINT,
    extra               LONGTEXT,
    error               LONGTEXT,
    event_id            VARCHAR(50),
    accepted_at         BIGINT NOT NULL,
    cancel_requested_at BIGINT,
    finished_at         BIGINT,
    emptied_at          BIGINT,
    UNIQUE (thread_key, run_id),
    INDEX runyard_runs_by_completion (branch_id, completion_seq),
    INDEX runyard_runs_of_thread (thread_key, completion_seq),
    INDEX runyard_runs_list (tenant, is_live, accept_no),
    INDEX runyard_runs_list_of_thread (thread_key, accept_no)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE {collation};

CREATE TABLE IF NOT EXISTS runyard_labels (
    thread_key BIGINT NOT NULL,
    label      VARCHAR(64) NOT NULL,
    branch_id  BIGINT NOT NULL,
    PRIMARY KEY (thread_key, label)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE {collation};

CREATE TABLE IF NOT EXISTS runyard_requests (
    tenant       VARCHAR(255) NOT NULL,
    request_id   VARCHAR(255) NOT NULL,
    thread_key   BIGINT NOT NULL,
    thread_id    VARCHAR(255) NOT NULL,
    run_id       VARCHAR(255),
    kind         VARCHAR(20) NOT NULL,
    body         LONGBLOB NOT NULL,
    deadline_at  BIGINT,
    otherwise    LONGBLOB,
    answer       LONGBLOB,
    response_id  VARCHAR(255),
    answered_by  TEXT,
    on_behalf_of TEXT,
    answered_at  BIGINT,
    closed_at    BIGINT,
    created_at   BIGINT NOT NULL,
    PRIMARY KEY (tenant, request_id),
    UNIQUE (thread_key, response_id),
    INDEX runyard_requests_of_thread (thread_key, created_at, request_id),
    INDEX runyard_requests_list (tenant, created_at, request_id),
    INDEX runyard_requests_overdue (tenant, answered_at, closed_at, deadline_at)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE {collation};
