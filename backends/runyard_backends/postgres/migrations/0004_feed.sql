-- The feed, and what is made of it: usage and webhooks.

-- The types of entries: runyard.models.FeedType. A domain, because a table's constraint is parsed anew for every statement.
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

-- How far the outbox was counted; one row. Entries of transactions before `counted` were: all that are older than counted_until. Entries of
-- transactions before `goal`, which are all that are older than goal_at, are being counted, tenant by tenant: those of tenants before `tenant`
-- were, and of it those up to (transaction, position).
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

-- The secrets that sign for the URLs of a tenant's runs. A tenant without a row has version 1.
CREATE TABLE runyard.webhook_keys (
    tenant      text PRIMARY KEY,
    version     integer NOT NULL,
    both_until  timestamptz,
    rotation_id text
);

-- What is to be sent, and where to. webhook_id NULL: to the URL that came with the run. next_at: when to try; NULL once it was delivered or has failed.
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
