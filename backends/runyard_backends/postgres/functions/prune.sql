-- Pruning data whose retention has passed. The settings of the deployment determine the retention (Retention, runyard/ports/workers.py).
-- `most` is the `limit` of `prune` in runyard/ports/stores.py. A call removes at most 1000 rows of deleted threads (the call of
-- remove_leftovers in prune).

-- Delete about `most` entries that are older than `kept`, tenant by tenant, and record the last deleted entry of each tenant. Return the
-- number of deleted entries. An entry stays until runyard.count_usage has counted it and every active webhook has read it. count_usage
-- counts only entries that are older than every open transaction. A call examines the oldest entry of up to 500 tenants. The next call
-- continues with the next tenant.
CREATE OR REPLACE FUNCTION runyard.prune_feed(kept interval, most integer) RETURNS integer
LANGUAGE plpgsql SET enable_seqscan = off SET jit = off AS $$
DECLARE
    old_before timestamptz := clock_timestamp() - kept;
    place text := (SELECT x.tenant FROM runyard.prune_place x FOR UPDATE SKIP LOCKED);
    whose text := (SELECT min(o.tenant) FROM runyard.outbox o WHERE o.tenant >= coalesce(place, ''));
    looked integer := 0;
    deleted integer;
    gone integer := 0;
BEGIN
    WHILE whose IS NOT NULL AND gone < most AND looked < 500 LOOP
        looked := looked + 1;
        LOOP
            EXIT WHEN old_before <= (SELECT x.created_at FROM runyard.outbox x WHERE x.tenant = whose ORDER BY x.transaction, x.position LIMIT 1);
            deleted := runyard.prune_tenant(whose, old_before, least(most - gone, 500));
            gone := gone + deleted;
            EXIT WHEN deleted = 0 OR gone >= most;
        END LOOP;
        EXIT WHEN gone >= most; -- this tenant may have more entries
        whose := (SELECT min(o.tenant) FROM runyard.outbox o WHERE o.tenant > whose);
    END LOOP;
    INSERT INTO runyard.prune_place AS x (tenant) VALUES (coalesce(whose, ''))
    ON CONFLICT (one) DO UPDATE SET tenant = excluded.tenant WHERE x.tenant <> excluded.tenant;
    RETURN gone;
END $$;

-- Delete up to `most` of the oldest entries of a tenant that are older than old_before, and record the last deleted entry. Return
-- their number.
CREATE OR REPLACE FUNCTION runyard.prune_tenant(whose text, old_before timestamptz, most integer) RETURNS integer
LANGUAGE plpgsql AS $$
DECLARE
    unread xid8 := least(coalesce((SELECT u.counted FROM runyard.usage_counter u), '0'), (
        SELECT min(w.cursor) FROM runyard.webhooks w WHERE w.disabled_at IS NULL AND (w.tenant IS NULL OR w.tenant = whose)));
    last record;
BEGIN
    WITH old AS (
        DELETE FROM runyard.outbox o USING (
            SELECT x.transaction, x.position, x.created_at FROM runyard.outbox x
            WHERE x.tenant = whose AND x.transaction < unread
            ORDER BY x.transaction, x.position LIMIT most) first
        WHERE o.tenant = whose AND o.transaction = first.transaction AND o.position = first.position AND first.created_at < old_before
        RETURNING o.transaction, o.position)
    SELECT y.transaction, y.position, count(*) OVER () AS many INTO last FROM old y ORDER BY y.transaction DESC, y.position DESC LIMIT 1;
    IF NOT FOUND THEN RETURN 0; END IF;
    INSERT INTO runyard.pruned AS p (tenant, transaction, position) VALUES (whose, last.transaction, last.position)
    ON CONFLICT (tenant) DO UPDATE SET transaction = excluded.transaction, position = excluded.position
    WHERE (excluded.transaction, excluded.position) > (p.transaction, p.position);
    RETURN last.many;
END $$;

-- Delete the results of fork jobs that ended more than `kept` ago. Also delete the messages and answers of such fan-outs, even
-- of failed and cancelled ones. A call deletes whole fan-outs until it has deleted about `most` rows. Return the number of
-- fork jobs and of deleted rows.
CREATE OR REPLACE FUNCTION runyard.prune_results(kept interval, most integer) RETURNS integer
LANGUAGE plpgsql SET enable_seqscan = off SET jit = off AS $$
DECLARE
    old record;
    expired bigint[] := '{}';
    gone integer := 0;
BEGIN
    FOR old IN
        SELECT x.accept_no, x.kind FROM runyard.fork_results f JOIN runyard.runs x USING (accept_no)
        WHERE f.finished_at < (SELECT clock_timestamp() - kept) AND x.finished_at IS NOT NULL -- no redriven run
        ORDER BY f.finished_at LIMIT most FOR UPDATE OF x SKIP LOCKED
    LOOP
        expired := expired || old.accept_no;
        gone := gone + 1;
        IF old.kind = 'fork_many' THEN gone := gone + runyard.drop_records(ARRAY[old.accept_no], NULL); END IF;
        EXIT WHEN gone >= most;
    END LOOP;
    UPDATE runyard.runs r SET result = NULL, candidates = NULL WHERE r.accept_no = ANY (expired);
    DELETE FROM runyard.fork_results f WHERE f.accept_no = ANY (expired);
    RETURN gone;
END $$;

-- Delete data whose retention has passed: entries of the feed, results of fork jobs, deliveries that arrived or failed,
-- messages of fan-outs that were not accepted, and rows of dead workers. Also remove rows of deleted threads. For each kind, a
-- call deletes at most about `most` rows. For the rows of dead workers there is no maximum. Deliveries have the retention of
-- the feed. Return the largest number of rows that were deleted of one kind. The leader calls this function.
CREATE OR REPLACE FUNCTION runyard.prune(feed interval, results interval, workers interval, most integer) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET enable_seqscan = off SET jit = off SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    gone integer := runyard.prune_feed(feed, most);
    further integer;
BEGIN
    gone := greatest(gone, runyard.prune_results(results, most));
    DELETE FROM runyard.webhook_deliveries d USING (
        SELECT x.delivery_no FROM runyard.webhook_deliveries x
        WHERE x.next_at IS NULL AND coalesce(x.delivered_at, x.failed_at) < clock_timestamp() - feed
        ORDER BY coalesce(x.delivered_at, x.failed_at) LIMIT most) old
    WHERE d.delivery_no = old.delivery_no;
    GET DIAGNOSTICS further = ROW_COUNT;
    gone := greatest(gone, further);
    gone := greatest(gone, runyard.prune_candidates(most));
    IF runyard.remove_leftovers(least(most, 1000)) THEN gone := most; END IF;
    DELETE FROM runyard.workers w WHERE w.dead_at < clock_timestamp() - workers;
    GET DIAGNOSTICS further = ROW_COUNT;
    RETURN greatest(gone, further);
END $$;
