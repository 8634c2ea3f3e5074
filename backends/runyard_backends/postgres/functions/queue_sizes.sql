-- The numbers of queued runs, for the limits queued and queued_per_tenant. A number is the last measurement plus the runs that were
-- accepted after it.

-- Return the number of queued runs of a tenant, or of all tenants if for_tenant is NULL. Measure first if three conditions
-- hold: the last measurement is older than a second, the number is not small, and the caller may write. most: the number up to
-- which runs are counted.
CREATE OR REPLACE FUNCTION runyard.queue_size(for_tenant text, most bigint, may_write boolean) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    size runyard.queue_sizes;
    since bigint;
BEGIN
    FOR look IN 1 .. 2 LOOP
        SELECT s.* INTO size FROM runyard.queue_sizes s WHERE s.name = coalesce('tenant ' || for_tenant, 'all');
        IF for_tenant IS NULL THEN
            since := (SELECT count(*) FROM (SELECT 1 FROM runyard.live_runs r WHERE r.accept_no > coalesce(size.newest, 0)
                      AND r.status = 'queued' LIMIT most) x);
        ELSE
            since := (SELECT count(*) FROM (SELECT 1 FROM runyard.live_runs r WHERE r.tenant = for_tenant
                      AND r.accept_no > coalesce(size.newest, 0) AND r.status = 'queued' LIMIT most) x);
        END IF;
        EXIT WHEN NOT may_write OR (coalesce(size.queued, 0) < least(100, most) AND since < 100)
            OR size.measured_at > clock_timestamp() - interval '1 second';
        PERFORM runyard.measure_queue(for_tenant, most);
    END LOOP;
    RETURN coalesce(size.queued, 0) + since;
END $$;

-- Measure the number of queued runs of a tenant, or of all tenants if for_tenant is NULL, up to `most`. Do nothing if another transaction
-- measures the same number.
CREATE OR REPLACE FUNCTION runyard.measure_queue(for_tenant text, most bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    name text := coalesce('tenant ' || for_tenant, 'all');
    newest bigint := (SELECT s.last_value FROM runyard.accept_numbers s);
    counted bigint;
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtext('runyard.queue_sizes'), hashtext(name)) THEN RETURN; END IF;
    IF for_tenant IS NULL THEN
        counted := (SELECT count(*) FROM (SELECT 1 FROM runyard.live_runs r WHERE r.status = 'queued' AND r.accept_no <= newest LIMIT most) x);
    ELSE
        counted := (SELECT count(*) FROM (SELECT 1 FROM runyard.live_runs r WHERE r.status = 'queued' AND r.tenant = for_tenant AND r.accept_no <= newest LIMIT most) x);
    END IF;
    INSERT INTO runyard.queue_sizes AS s (name, queued, newest) VALUES (name, counted, newest)
    ON CONFLICT ON CONSTRAINT queue_sizes_pkey DO UPDATE SET queued = excluded.queued, newest = excluded.newest, measured_at = clock_timestamp();
END $$;

-- Repeat the measurements that were not zero. The leader calls this function, because some callers of queue_size may not write.
CREATE OR REPLACE FUNCTION runyard.measure_queues() RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off SET jit = off AS $$
DECLARE
    name text;
    for_tenant text;
    most bigint;
BEGIN
    FOR name IN SELECT s.name FROM runyard.queue_sizes s WHERE s.queued > 0 ORDER BY s.name LOOP
        for_tenant := CASE WHEN name <> 'all' THEN substr(name, length('tenant ') + 1) END;
        most := CASE WHEN for_tenant IS NULL THEN runyard.limit_of('queued') ELSE runyard.limit_of('queued_per_tenant', for_tenant) END;
        PERFORM runyard.measure_queue(for_tenant, coalesce(most, 0));
    END LOOP;
END $$;
