-- The feed, and the usage totals and webhook deliveries that are made from it.

-- The types of entries: runyard.models.FeedType. feed_type is a domain, because Postgres parses the constraint of a table again for every
-- statement.
CREATE DOMAIN runyard.feed_type AS text CHECK (VALUE IN ('run.completed', 'run.failed', 'run.cancelled', 'run.dead', 'run.suspended',
    'message.stored', 'thread.forked', 'thread.deleted'));

-- The feed. Readers read it in the order of (transaction, position). They read only entries of transactions that are older than
-- the oldest open transaction.
-- agent: the agent of an ended run that had an attempt.
-- usage: the usage of an ended run since its last redrive.
-- redriven: true if the run had ended before.
-- created_at: a time after the transaction got its number.
CREATE TABLE runyard.outbox (
    tenant      text NOT NULL,
    transaction xid8 NOT NULL DEFAULT pg_current_xact_id(),
    position    bigint GENERATED ALWAYS AS IDENTITY,
    thread_key  bigint,
    thread_id   text NOT NULL,
    run_id      text,
    type        runyard.feed_type NOT NULL,
    created_at  runyard.moment NOT NULL DEFAULT clock_timestamp(),
    agent       text,
    usage       jsonb,
    redriven    boolean NOT NULL DEFAULT false,
    PRIMARY KEY (tenant, transaction, position)
) WITH ( -- Pruning deletes from the start of each tenant's part of the index, and a reader begins there.
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.1, autovacuum_analyze_scale_factor = 0.05
);

-- The last entry that was pruned from a tenant's feed.
CREATE TABLE runyard.pruned (
    tenant      text PRIMARY KEY,
    transaction xid8 NOT NULL,
    position    bigint NOT NULL
);

-- The tenant with which the next pruning of the outbox begins, in one row.
CREATE TABLE runyard.prune_place (
    one    boolean PRIMARY KEY DEFAULT true CHECK (one),
    tenant text NOT NULL
) WITH (fillfactor = 50);

-- The usage of the runs of a tenant that ended on a day (UTC), counted from the outbox. A row has the runs of one agent. The row
-- with agent '' has all runs.
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

-- The progress of counting the outbox, in one row.
-- counted: all entries of transactions before this one were counted. All entries older than counted_until are among them.
-- goal: the current round counts the entries of transactions before this one, tenant by tenant. They include all entries older
-- than goal_at.
-- tenant, transaction, position: the last entry that the current round counted.
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

-- Subscriptions to the feed.
-- tenant: NULL for a subscription to the feeds of all tenants.
-- version: the version of the secret that signs. The secret is derived and not stored.
-- both_until: the time until which the version before it also signs.
-- rotation_id: the id of the rotation that made the version. A repetition of the rotation has the same id.
-- since: the snapshot at which the webhook was made. Entries that were committed before it get no delivery.
-- cursor: the entries of transactions before this one were made into deliveries.
-- disabled_at: the time at which the receiver replied that it does not exist any more.
CREATE TABLE runyard.webhooks (
    webhook_id  text PRIMARY KEY,
    tenant      text,
    url         text NOT NULL,
    events      runyard.feed_type[] NOT NULL,
    version     integer NOT NULL DEFAULT 1,
    both_until  runyard.moment,
    rotation_id text,
    since       pg_snapshot NOT NULL DEFAULT pg_current_snapshot(),
    cursor      xid8 NOT NULL DEFAULT pg_snapshot_xmin(pg_current_snapshot()),
    created_at  runyard.moment NOT NULL DEFAULT now(),
    disabled_at runyard.moment
);
CREATE INDEX webhooks_of_tenant ON runyard.webhooks (tenant, created_at, webhook_id);

-- The versions of the secrets that sign for the URLs of a tenant's runs. A tenant without a row has version 1.
CREATE TABLE runyard.webhook_keys (
    tenant      text PRIMARY KEY,
    version     integer NOT NULL,
    both_until  timestamptz,
    rotation_id text
);

-- Deliveries of feed entries to URLs. webhook_id: NULL for a delivery to the URL of a run. next_at: the time of the next try;
-- NULL after the delivery arrived or failed.
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
    created_at   runyard.moment NOT NULL DEFAULT now(),
    tries        runyard.small_count NOT NULL DEFAULT 0,
    next_at      runyard.moment DEFAULT now(),
    delivered_at runyard.moment,
    failed_at    runyard.moment,
    http_status  integer,
    error        text,
    CHECK ((next_at IS NULL) = (delivered_at IS NOT NULL OR failed_at IS NOT NULL))
) WITH ( -- Each delivery is updated at least twice, and each update changes indexes.
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.05
);
CREATE INDEX webhook_deliveries_due ON runyard.webhook_deliveries (endpoint, next_at, delivery_no) WHERE next_at IS NOT NULL;
CREATE INDEX webhook_deliveries_oldest ON runyard.webhook_deliveries (created_at) WHERE next_at IS NOT NULL;
CREATE INDEX webhook_deliveries_of_tenant ON runyard.webhook_deliveries (tenant, delivery_no);
CREATE INDEX webhook_deliveries_failed ON runyard.webhook_deliveries (tenant, delivery_no) WHERE failed_at IS NOT NULL;
CREATE INDEX webhook_deliveries_delivered ON runyard.webhook_deliveries (tenant, delivery_no) WHERE delivered_at IS NOT NULL;
CREATE INDEX webhook_deliveries_pending ON runyard.webhook_deliveries (tenant, delivery_no) WHERE next_at IS NOT NULL;
CREATE INDEX webhook_deliveries_over ON runyard.webhook_deliveries (coalesce(delivered_at, failed_at)) WHERE next_at IS NULL;
