-- Webhooks: make deliveries from the feed, take due deliveries, and record the outcomes of their tries.
-- runyard/worker/webhook_dispatcher.py chooses `most` (MAX_IN_FLIGHT), `each` (MAX_IN_FLIGHT_PER_ENDPOINT) and `lease`.

-- Make deliveries from committed entries. Then take at most `most` due deliveries, endpoint by endpoint in the order of the
-- endpoints' names, beginning after the endpoint `after`. An endpoint gets at most `each` deliveries, minus its number in
-- `busy` (endpoint → number of deliveries that are being sent). A taken delivery that is not settled is due again after `lease`
-- seconds. versions: the versions of the secret that sign; empty if the delivery's webhook was removed.
CREATE OR REPLACE FUNCTION runyard.take_webhooks(busy jsonb, after text, most integer, each integer, lease double precision)
RETURNS TABLE (delivery_no bigint, delivery_id text, tenant text, webhook_id text, versions integer[], url text, endpoint text, type text,
               thread_id text, run_id text, created_at timestamptz, tries integer)
LANGUAGE plpgsql SECURITY DEFINER SET enable_seqscan = off SET jit = off SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    w runyard.webhooks;
    place text;
    found integer;
BEGIN
    IF pg_try_advisory_xact_lock(hashtext('runyard.webhooks')) THEN
        FOR w IN SELECT x.* FROM runyard.webhooks x WHERE x.disabled_at IS NULL ORDER BY x.webhook_id LOOP
            PERFORM runyard.spread_webhook(w, 1000);
        END LOOP;
    END IF;
    place := (SELECT min(d.endpoint) FROM runyard.webhook_deliveries d WHERE d.next_at IS NOT NULL AND d.endpoint > after);
    WHILE place IS NOT NULL AND most > 0 LOOP
        RETURN QUERY
            UPDATE runyard.webhook_deliveries d SET next_at = clock_timestamp() + make_interval(secs => lease), tries = d.tries + 1
            FROM (SELECT x AS made, x.delivery_no AS no, x.webhook_id AS of, x.tenant AS whose FROM runyard.webhook_deliveries x
                  WHERE x.endpoint = place AND x.next_at <= clock_timestamp() ORDER BY x.next_at, x.delivery_no
                  LIMIT greatest(0, least(most, each - coalesce((busy->>place)::integer, 0))) FOR UPDATE SKIP LOCKED) due
                 LEFT JOIN runyard.webhooks s ON s.webhook_id = due.of AND runyard.is_delivery_of(due.made, s)
                 LEFT JOIN runyard.webhook_keys k ON k.tenant = due.whose AND due.of IS NULL
            WHERE d.delivery_no = due.no
            RETURNING d.delivery_no, d.delivery_id, d.tenant, d.webhook_id,
                      array_remove(ARRAY[coalesce(s.version, k.version, CASE WHEN due.of IS NULL THEN 1 END),
                                         CASE WHEN coalesce(s.both_until, k.both_until) > clock_timestamp()
                                              THEN coalesce(s.version, k.version) - 1 END], NULL), d.url, d.endpoint, d.type::text, d.thread_id, d.run_id,
                      d.created_at::timestamptz, d.tries::integer;
        GET DIAGNOSTICS found = ROW_COUNT;
        most := most - found;
        place := (SELECT min(d.endpoint) FROM runyard.webhook_deliveries d WHERE d.next_at IS NOT NULL AND d.endpoint > place);
    END LOOP;
END $$;

-- Return true if a delivery was made for a webhook. A webhook with the same id may have been made after the delivery. It then
-- has another owner or another URL. A webhook for all tenants belongs to ''.
CREATE OR REPLACE FUNCTION runyard.is_delivery_of(d runyard.webhook_deliveries, w runyard.webhooks) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
    SELECT d.webhook_id = w.webhook_id AND coalesce(d.owner, d.tenant) = coalesce(w.tenant, '') AND d.url = w.url
$$;

-- Make about `most` deliveries from the feed's entries for a webhook, and move the webhook's cursor, in one transaction. The
-- function reads all entries of each transaction, and only transactions that are older than the oldest open transaction. No entry
-- can therefore appear before the cursor. Without entries, nothing is written.
CREATE OR REPLACE FUNCTION runyard.spread_webhook(w runyard.webhooks, most integer) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off SET enable_sort = off SET jit = off AS $$
DECLARE
    tenants text[] := CASE WHEN w.tenant IS NULL THEN runyard.feed_tenants() ELSE ARRAY[w.tenant] END;
    upto xid8 := pg_snapshot_xmin(pg_current_snapshot());
    whose text;
    beyond xid8;
BEGIN
    FOREACH whose IN ARRAY tenants LOOP
        beyond := (SELECT o.transaction FROM runyard.outbox o WHERE o.tenant = whose AND o.transaction >= w.cursor AND o.transaction < upto
                   ORDER BY o.transaction, o.position OFFSET most LIMIT 1);
        IF beyond > w.cursor THEN upto := beyond; END IF;
    END LOOP;
    FOREACH whose IN ARRAY tenants LOOP
        INSERT INTO runyard.webhook_deliveries (tenant, owner, webhook_id, url, type, thread_id, run_id, created_at)
        SELECT o.tenant, coalesce(w.tenant, ''), w.webhook_id, w.url, o.type, o.thread_id, o.run_id, o.created_at FROM runyard.outbox o
        WHERE o.tenant = whose AND o.transaction >= w.cursor AND o.transaction < upto AND o.type = ANY (w.events)
          AND NOT pg_visible_in_snapshot(o.transaction, w.since)
        ORDER BY o.transaction, o.position;
    END LOOP;
    IF EXISTS (SELECT 1 FROM unnest(tenants) x(tenant) JOIN LATERAL (
        SELECT 1 FROM runyard.outbox o WHERE o.tenant = x.tenant AND o.transaction >= w.cursor AND o.transaction < upto LIMIT 1) o ON true)
    THEN
        UPDATE runyard.webhooks SET cursor = upto WHERE webhook_id = w.webhook_id;
    END IF;
END $$;

-- Set the owner of a delivery that code of the previous release makes. The owner is the owner of the delivery's webhook.
CREATE OR REPLACE FUNCTION runyard.choose_delivery_owner() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM runyard.webhooks w WHERE w.webhook_id = NEW.webhook_id AND w.tenant IS NOT NULL) THEN NEW.owner := ''; END IF;
    RETURN NEW;
END $$;
CREATE OR REPLACE TRIGGER delivery_of_webhook BEFORE INSERT ON runyard.webhook_deliveries
    FOR EACH ROW WHEN (NEW.webhook_id IS NOT NULL AND NEW.owner IS NULL) EXECUTE FUNCTION runyard.choose_delivery_owner();

-- Return the tenants that have entries in the outbox.
CREATE OR REPLACE FUNCTION runyard.feed_tenants() RETURNS text[]
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET jit = off AS $$
DECLARE
    found text[] := '{}';
    whose text := (SELECT min(o.tenant) FROM runyard.outbox o);
BEGIN
    WHILE whose IS NOT NULL LOOP
        found := found || whose;
        whose := (SELECT min(o.tenant) FROM runyard.outbox o WHERE o.tenant > whose);
    END LOOP;
    RETURN found;
END $$;

-- Record the outcome of a try: `delivered`, `retried` (due again after `pause` seconds), `failed`, or `gone`. `gone` also disables the
-- webhook. If a later try has begun, only `delivered` is recorded.
CREATE OR REPLACE FUNCTION runyard.settle_webhook(delivery_no bigint, of_try integer, outcome text, answered integer, why text, pause double precision)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET enable_seqscan = off SET jit = off SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    done runyard.webhook_deliveries;
BEGIN
    UPDATE runyard.webhook_deliveries d SET
        next_at = CASE WHEN outcome = 'retried' THEN clock_timestamp() + make_interval(secs => pause) END,
        delivered_at = CASE WHEN outcome = 'delivered' THEN clock_timestamp() END,
        failed_at = CASE WHEN outcome IN ('failed', 'gone') THEN clock_timestamp() END,
        http_status = answered, error = why
    WHERE d.delivery_no = settle_webhook.delivery_no AND d.next_at IS NOT NULL AND (d.tries = of_try OR outcome = 'delivered')
    RETURNING d.* INTO done;
    IF done.webhook_id IS NULL OR outcome <> 'gone' THEN RETURN; END IF;
    UPDATE runyard.webhooks w SET disabled_at = clock_timestamp()
    WHERE w.webhook_id = done.webhook_id AND runyard.is_delivery_of(done, w) AND w.disabled_at IS NULL;
    UPDATE runyard.webhook_deliveries d SET next_at = NULL, failed_at = clock_timestamp(), error = 'the webhook was disabled'
    WHERE coalesce(d.owner, d.tenant) = coalesce(done.owner, done.tenant) AND d.webhook_id = done.webhook_id AND d.url = done.url
      AND d.next_at IS NOT NULL;
END $$;

-- Add a webhook. If a webhook of any tenant has the id already, return that webhook. Raises too_many_webhooks if the tenant has `most`
-- webhooks.
CREATE OR REPLACE FUNCTION runyard.add_webhook(webhook_id text, of_tenant text, url text, events text[], most integer) RETURNS runyard.webhooks
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    w runyard.webhooks;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('runyard.add_webhook'), hashtext(coalesce(of_tenant, '')));
    SELECT x.* INTO w FROM runyard.webhooks x WHERE x.webhook_id = add_webhook.webhook_id;
    IF FOUND THEN RETURN w; END IF;
    IF most <= (SELECT count(*) FROM runyard.webhooks x WHERE x.tenant = of_tenant OR of_tenant IS NULL AND x.tenant IS NULL) THEN
        PERFORM runyard.refuse('too_many_webhooks', format('there are %s webhooks, which is the maximum; remove one', most),
                               jsonb_build_object('limit', most));
    END IF;
    INSERT INTO runyard.webhooks (webhook_id, tenant, url, events, version)
    VALUES (webhook_id, of_tenant, url, events,
            coalesce((SELECT max(r.version) FROM runyard.removed_webhooks r WHERE r.webhook_id IN ('', add_webhook.webhook_id)), 0) + 1)
    ON CONFLICT ON CONSTRAINT webhooks_pkey DO NOTHING;
    SELECT x.* INTO w FROM runyard.webhooks x WHERE x.webhook_id = add_webhook.webhook_id;
    RETURN w;
END $$;

-- Remove a webhook of a tenant and its pending deliveries. Keep the highest version of the secrets of all removed webhooks, in
-- one row. A webhook that is made later begins after this version. It therefore has another secret, for any owner. Return true
-- if the webhook existed.
CREATE OR REPLACE FUNCTION runyard.remove_webhook(for_tenant text, webhook_id text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    last integer;
BEGIN
    DELETE FROM runyard.webhooks w WHERE w.webhook_id = remove_webhook.webhook_id AND coalesce(w.tenant, '') = for_tenant
    RETURNING w.version INTO last;
    IF NOT FOUND THEN RETURN false; END IF;
    INSERT INTO runyard.removed_webhooks AS r (webhook_id, version) VALUES ('', last)
    ON CONFLICT ON CONSTRAINT removed_webhooks_pkey DO UPDATE SET version = greatest(r.version, excluded.version);
    DELETE FROM runyard.webhook_deliveries d
    WHERE coalesce(d.owner, d.tenant) = for_tenant AND d.webhook_id = remove_webhook.webhook_id AND d.next_at IS NOT NULL;
    RETURN true;
END $$;

-- Make a delivery due again if it arrived or failed. Return false if there is no such delivery, or if its webhook was removed
-- or disabled.
CREATE OR REPLACE FUNCTION runyard.redeliver(for_tenant text, delivery_id text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE runyard.webhook_deliveries d SET next_at = clock_timestamp(), tries = 0, delivered_at = NULL, failed_at = NULL, http_status = NULL,
           error = NULL
    WHERE coalesce(d.owner, d.tenant) = for_tenant AND d.delivery_id = redeliver.delivery_id AND d.next_at IS NULL
      AND (d.webhook_id IS NULL OR EXISTS (SELECT 1 FROM runyard.webhooks w WHERE w.webhook_id = d.webhook_id
                                            AND runyard.is_delivery_of(d, w) AND w.disabled_at IS NULL));
    RETURN FOUND;
END $$;
