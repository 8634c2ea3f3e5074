-- Workers and the data that they share: queues, agents, the leader's lease, limits, and the lines of runs that wait for permits.

-- The register of workers. dead_at: the time at which another worker declared this worker dead.
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
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 1000); -- one heartbeat per worker and second; Postgres prunes the pages itself

-- Queues whose runs no worker claims.
CREATE TABLE runyard.paused_queues (
    queue     text PRIMARY KEY,
    paused_at timestamptz NOT NULL DEFAULT now()
);

-- Agents that workers have registered. queue: the queue of the agent. asks: true if the agent may ask humans.
CREATE TABLE runyard.agents (
    agent       text PRIMARY KEY,
    queue       text NOT NULL,
    asks        boolean NOT NULL DEFAULT false,
    app_version text,
    updated_at  timestamptz NOT NULL DEFAULT now()
);

-- Leases. One worker at a time holds a lease.
CREATE TABLE runyard.leases (
    name       text PRIMARY KEY,
    holder     text NOT NULL,
    expires_at timestamptz NOT NULL
);

-- Limits that are set. subject: the tenant or agent to which a limit applies. With NULL, the limit applies to each tenant or
-- agent that has no limit of its own, or to the whole deployment.
CREATE TABLE runyard.limits (
    limit_name text NOT NULL,
    subject    text,
    most       bigint NOT NULL,
    UNIQUE NULLS NOT DISTINCT (limit_name, subject)
);

-- The turns of tenants in the line for a permit (runyard.permits_of). A lower turn is served first. A tenant without a run in the
-- line may have a row. Rows are changed under the lock of the permit only.
CREATE TABLE runyard.permit_turns (
    permit text NOT NULL,
    tenant text NOT NULL,
    turn   bigint NOT NULL DEFAULT nextval('runyard.lane_numbers'),
    PRIMARY KEY (permit, tenant)
) WITH (fillfactor = 50);
CREATE INDEX permit_turns_order ON runyard.permit_turns (permit, turn);

-- The measured numbers of queued runs. name: "all" or "tenant …". queued: the number at the measurement. newest: the highest
-- accept_no that the measurement covers.
CREATE TABLE runyard.queue_sizes (
    name        text PRIMARY KEY,
    queued      bigint NOT NULL,
    newest      bigint NOT NULL,
    measured_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
