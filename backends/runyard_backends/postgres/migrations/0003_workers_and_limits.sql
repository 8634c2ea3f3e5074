-- Workers and what they share: queues, agents, the leader's lease, limits and the lines that these make.

-- The register of workers. dead_at: when others declared it dead.
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

-- Queues from which no run is claimed.
CREATE TABLE runyard.paused_queues (
    queue     text PRIMARY KEY,
    paused_at timestamptz NOT NULL DEFAULT now()
);

-- Agents that workers have registered, and the queue of each. asks: it may ask humans.
CREATE TABLE runyard.agents (
    agent       text PRIMARY KEY,
    queue       text NOT NULL,
    asks        boolean NOT NULL DEFAULT false,
    app_version text,
    updated_at  timestamptz NOT NULL DEFAULT now()
);

-- Leases, of which one worker at a time holds each.
CREATE TABLE runyard.leases (
    name       text PRIMARY KEY,
    holder     text NOT NULL,
    expires_at timestamptz NOT NULL
);

-- Limits that are set. subject: the tenant or agent that a limit is for; NULL: for each, or in all.
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
