-- The writes of attempts before their last writes, of many runs in one transaction.

-- Store the writes. Threads are locked in the order of their keys, and the writes of a run keep their order. A refused write stores nothing
-- and does not affect other writes. An error, for example a message that is too large, undoes all writes. patience: milliseconds to wait for
-- a locked thread. After this time the writes of the thread are refused as locked. In a write that only starts a step, `result` is the text
-- of the step's arguments in UTF-8. The type of the writes has no attribute for this text, because workers of the previous release send
-- values of the type.
CREATE OR REPLACE FUNCTION runyard.write_interim(writes runyard.interim_write[], patience integer) RETURNS SETOF runyard.interim_written
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    w record;
    got record;
    done runyard.interim_written;
    locked bigint; -- the last thread whose writes were refused as locked
    message_bytes bigint := runyard.limit_of('message_bytes');
    stored bigint[] := '{}'; -- the places of the plain writes, which are stored together
BEGIN
    IF cardinality(writes) > 1 THEN -- one write would save nothing
        IF EXISTS (SELECT 1 FROM unnest(writes) x WHERE x.messages <> '{}') THEN
            FOR done IN SELECT p.* FROM runyard.append_plain(writes, message_bytes, patience) p LOOP
                stored := stored || done.place::bigint;
                RETURN NEXT done;
            END LOOP;
            IF cardinality(stored) = cardinality(writes) THEN RETURN; END IF;
        END IF;
    END IF;
    FOR w IN SELECT x.* FROM unnest(writes) WITH ORDINALITY
                 x(thread_key, run_id, fence, messages, first_event, start_key, finish_key, result, usage, place)
             WHERE x.place <> ALL (stored) ORDER BY x.thread_key, x.place LOOP
        done := NULL;
        done.place := w.place;
        IF w.thread_key = locked THEN
            done.refused := 'locked';
        ELSE
            got := runyard.lock_run(w.thread_key, w.run_id, patience);
            done.refused := runyard.interim_refused(got.t, got.r, w.thread_key, w.fence, patience);
        END IF;
        IF done.refused = 'locked' AND w.thread_key IS DISTINCT FROM locked THEN
            locked := w.thread_key;
            patience := patience / 2; -- so that all waits together take at most twice this time
        END IF;
        IF done.refused IS NULL THEN
            IF w.finish_key IS NOT NULL THEN PERFORM runyard.end_step(got.r, w.finish_key, w.result, w.usage); END IF;
            IF w.messages <> '{}' OR w.usage IS NOT NULL AND w.finish_key IS NULL THEN
                done.messages := runyard.add_messages(got.t, got.r, w.messages, w.first_event, w.usage, message_bytes);
            END IF;
            IF w.start_key IS NOT NULL THEN
                done.step := runyard.begin_step_v2(
                    got.r, w.start_key, CASE WHEN w.finish_key IS NULL THEN convert_from(w.result, 'UTF8') END);
            END IF;
        END IF;
        RETURN NEXT done;
    END LOOP;
END $$;

-- Return NULL if the attempt with the fence may write. Otherwise return 'locked', 'stale_fence' or 'cancel_requested'. t and r:
-- the locked thread and its run. t is NULL if the thread does not exist or stays locked.
CREATE OR REPLACE FUNCTION runyard.interim_refused(t runyard.threads, r runyard.runs, thread_key bigint, with_fence bigint, patience integer)
RETURNS text LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF r.run_id IS NOT NULL THEN
        RETURN CASE runyard.write_refused(r, with_fence) WHEN 'cancel_requested' THEN 'cancel_requested'
                    WHEN 'stale_fence' THEN 'stale_fence' WHEN 'repeated' THEN 'stale_fence' END;
    END IF;
    RETURN CASE WHEN patience IS NOT NULL AND t.thread_key IS NULL
                     AND EXISTS (SELECT 1 FROM runyard.threads x WHERE x.thread_key = interim_refused.thread_key)
                THEN 'locked' ELSE 'stale_fence' END;
END $$;
