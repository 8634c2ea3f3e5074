-- Removing the rows of deleted threads. Each step is a short transaction. A deleted thread is invisible at once. Only deletions of forks
-- and other steps wait for its lock.
--
-- `most` is the maximum number of runs and messages that a call examines. Three callers choose it: the process that deletes a thread
-- (REMOVAL_ROWS in postgres/threads.py), the leader (runyard.prune in prune.sql), and runyard.delete_thread in deletion.sql (left_over).

-- Make one step for a deleted thread. Return true if more steps can be needed. Raises locked if another transaction holds a
-- lock that the remaining steps need. This is the lock of a fork, or of a wait whose child is ending.
CREATE OR REPLACE FUNCTION runyard.remove_step(thread_key bigint, most integer) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
DECLARE
    examined integer;
BEGIN
    PERFORM 1 FROM runyard.threads t WHERE t.thread_key = remove_step.thread_key FOR UPDATE;
    examined := runyard.remove_part(remove_step.thread_key, most);
    IF NOT EXISTS (SELECT 1 FROM runyard.removals s WHERE s.thread_key = remove_step.thread_key) THEN
        RETURN false;
    ELSIF examined = 0 THEN
        PERFORM runyard.refuse('locked', 'another transaction has locked rows of the deleted thread; they are removed later');
    END IF;
    RETURN true;
END $$;

-- Make steps for deleted threads that still have rows, until about `most` rows are examined. Return true if more steps can be needed. If a
-- step of a thread fails or takes too long, the other threads and the caller continue. Each call begins at a random thread and examines up
-- to 100 threads. A thread whose steps always fail therefore does not delay the others.
CREATE OR REPLACE FUNCTION runyard.remove_leftovers(most integer) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    first bigint := (SELECT min(s.thread_key) FROM runyard.removals s);
    start bigint := first + floor(random() * ((SELECT max(s.thread_key) FROM runyard.removals s) - first + 1))::bigint;
    keys bigint[] := ARRAY(SELECT s.thread_key FROM runyard.removals s WHERE s.thread_key >= start ORDER BY s.thread_key LIMIT 100);
    key bigint;
    part integer;
    examined integer := 0;
BEGIN
    keys := keys || ARRAY(SELECT s.thread_key FROM runyard.removals s WHERE s.thread_key < start ORDER BY s.thread_key LIMIT 100 - cardinality(keys));
    FOREACH key IN ARRAY keys LOOP
        PERFORM 1 FROM runyard.threads t WHERE t.thread_key = key FOR UPDATE SKIP LOCKED;
        CONTINUE WHEN NOT FOUND;
        LOOP
            EXIT WHEN examined >= most;
            BEGIN
                part := runyard.remove_part(key, most - examined);
            EXCEPTION WHEN OTHERS THEN
                RAISE WARNING 'cannot remove the rows of deleted thread %: % (%)', key, SQLERRM, SQLSTATE;
                part := 0;
            WHEN query_canceled THEN -- not included in OTHERS; the time limit of the call is reached
                RAISE WARNING 'the removal of the rows of deleted thread % takes too long: %', key, SQLERRM;
                RETURN true;
            END;
            EXIT WHEN part = 0;
            examined := examined + part;
        END LOOP;
        EXIT WHEN examined >= most;
    END LOOP;
    RETURN examined >= most;
END $$;

-- Remove up to `most` rows of a deleted thread. The caller must have locked the thread. Return the number of examined rows. The number is 0
-- if nothing is left, or if a fork or a wait is locked.
CREATE OR REPLACE FUNCTION runyard.remove_part(key bigint, most integer) RETURNS integer
LANGUAGE plpgsql AS $$
DECLARE
    s runyard.removals;
    examined integer := 0;
    branch bigint;
BEGIN
    SELECT x.* INTO s FROM runyard.removals x WHERE x.thread_key = key;
    IF NOT FOUND THEN RETURN 0; END IF;
    IF s.erase AND s.after_fork IS DISTINCT FROM 9223372036854775807 THEN
        RETURN CASE WHEN s.after_fork < key THEN runyard.erase_own_extra(s, most) ELSE runyard.erase_extra(s, most) END;
    END IF;
    examined := runyard.remove_runs(s, most);
    IF examined >= most THEN RETURN examined; END IF;
    LOOP
        SELECT max(b.branch_id) INTO branch FROM runyard.branches b WHERE b.thread_key = key AND b.branch_id < s.below_branch;
        EXIT WHEN branch IS NULL;
        examined := examined + runyard.remove_messages(s, branch, most - examined);
        IF examined >= most THEN RETURN examined; END IF;
        SELECT x.* INTO s FROM runyard.removals x WHERE x.thread_key = key;
    END LOOP;
    PERFORM runyard.graph_remove(key, s.erase);
    IF runyard.has_waits_to_forget(key) THEN RETURN examined; END IF;
    IF NOT EXISTS (SELECT 1 FROM runyard.branches b WHERE b.thread_key = key) THEN
        DELETE FROM runyard.runs r WHERE r.accept_no = ANY (ARRAY(
            SELECT x.accept_no FROM runyard.runs x WHERE x.thread_key = key LIMIT most - examined));
        IF EXISTS (SELECT 1 FROM runyard.runs x WHERE x.thread_key = key) THEN RETURN most; END IF;
        DELETE FROM runyard.threads t WHERE t.thread_key = key;
    END IF;
    DELETE FROM runyard.removals x WHERE x.thread_key = key;
    RETURN greatest(examined, 1);
END $$;

-- Return the levels through which live threads show a branch of a deleted thread.
CREATE OR REPLACE FUNCTION runyard.shown_levels(branch_id bigint) RETURNS runyard.level[]
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN ARRAY(
        SELECT DISTINCT (shown_levels.branch_id, l.high_water_seq, l.cutoff, l.open_run_id)::runyard.level
        FROM runyard.levels l JOIN runyard.branches b USING (branch_id) JOIN runyard.threads t USING (thread_key)
        WHERE l.ancestor_id = shown_levels.branch_id AND t.deleted_at IS NULL);
END $$;

-- Examine up to `most` runs of a deleted thread. Remove those that no live thread shows, and hide the others. Return the number of examined
-- runs. Bitmap scans and sorts are off, because they could read all rows of a large thread in each step.
CREATE OR REPLACE FUNCTION runyard.remove_runs(s runyard.removals, most integer) RETURNS integer
LANGUAGE plpgsql SET enable_bitmapscan = off SET enable_sort = off AS $$
DECLARE
    -- A cut shows the latest extra of its thread. A run on another branch may have saved this extra. Therefore all runs with an
    -- extra stay, up to the last cut that a live thread shows.
    last_cut bigint := (
        SELECT max(l.cutoff) FROM runyard.branches own JOIN runyard.levels l ON l.ancestor_id = own.branch_id
        JOIN runyard.branches b ON b.branch_id = l.branch_id JOIN runyard.threads t ON t.thread_key = b.thread_key
        WHERE own.thread_key = s.thread_key AND t.deleted_at IS NULL);
    part bigint[];
    names text[];
    seen runyard.level[];
    of_branch bigint;
BEGIN
    SELECT array_agg(x.accept_no), array_agg(x.run_id ORDER BY x.run_id) INTO part, names FROM (
        SELECT y.accept_no, y.run_id FROM runyard.runs y WHERE y.thread_key = s.thread_key AND y.run_id > s.after_run
        ORDER BY y.run_id LIMIT most) x;
    IF part IS NOT NULL THEN
        -- Runs are locked before their steps and attempts, because prune locks the rows in this order too.
        PERFORM 1 FROM runyard.runs r WHERE r.accept_no = ANY (part) FOR UPDATE;
        IF runyard.drop_records(part, most) >= most THEN RETURN most; END IF; -- the next step goes on with the same runs
        FOR of_branch IN SELECT DISTINCT r.branch_id FROM runyard.runs r WHERE r.accept_no = ANY (part) LOOP
            seen := CASE WHEN of_branch IS NULL THEN '{}' ELSE runyard.shown_levels(of_branch) END;
            DELETE FROM runyard.runs r
            WHERE r.accept_no = ANY (part) AND r.branch_id IS NOT DISTINCT FROM of_branch
              AND NOT coalesce(r.extra IS NOT NULL AND r.completion_seq <= last_cut, false) AND NOT EXISTS (
                SELECT 1 FROM unnest(seen) l
                WHERE r.run_id = l.open_run_id OR (r.completion_seq <= l.cutoff AND coalesce(r.first_seq, 0) <= l.high_water_seq));
        END LOOP;
        UPDATE runyard.runs y SET deleted = true, input = NULL, candidates = NULL, result = NULL, error = NULL, metadata = '{}',
               extra = CASE WHEN y.completion_seq IS NOT NULL THEN y.extra END
        WHERE y.accept_no = ANY (part) AND (NOT y.deleted OR s.erase);
        DELETE FROM runyard.attempts x WHERE x.accept_no = ANY (part);
        DELETE FROM runyard.hitl_requests h WHERE h.thread_key = s.thread_key AND h.run_id = ANY (names);
        PERFORM runyard.forget_waits(s.thread_key, names);
    END IF;
    IF part IS NULL OR cardinality(part) < most THEN
        DELETE FROM runyard.hitl_requests h WHERE h.thread_key = s.thread_key;
        PERFORM runyard.forget_waits(s.thread_key, NULL);
        DELETE FROM runyard.signals g WHERE g.thread_key = s.thread_key;
        DELETE FROM runyard.unclaimed v WHERE v.thread_key = s.thread_key;
        s.runs_hidden := true;
    END IF;
    UPDATE runyard.removals x SET after_run = coalesce(names[cardinality(names)], s.after_run), runs_hidden = s.runs_hidden
    WHERE x.thread_key = s.thread_key;
    RETURN coalesce(cardinality(part), 0);
END $$;

-- Examine up to `most` messages of a branch of a deleted thread. Remove those that no live thread shows. Replace the others by
-- tombstones if the thread is erased. Remove the branch after its last message if no live thread shows it. Return the number of
-- examined messages.
CREATE OR REPLACE FUNCTION runyard.remove_messages(s runyard.removals, of_branch bigint, most integer) RETURNS integer
LANGUAGE plpgsql SET enable_bitmapscan = off SET enable_sort = off AS $$
DECLARE
    seen runyard.level[] := runyard.shown_levels(of_branch);
    last_seq bigint;
    examined integer;
BEGIN
    SELECT max(x.seq), count(*) INTO last_seq, examined FROM (
        SELECT m.seq FROM runyard.messages m WHERE m.branch_id = of_branch AND m.seq > s.after_seq ORDER BY m.seq LIMIT most) x;
    DELETE FROM runyard.messages m
    WHERE m.branch_id = of_branch AND m.seq > s.after_seq AND m.seq <= last_seq AND NOT EXISTS (
        SELECT 1 FROM unnest(seen) l
        WHERE m.seq <= l.high_water_seq AND (m.run_id IS NULL OR m.run_id = l.open_run_id
            OR (SELECT r.completion_seq <= l.cutoff FROM runyard.runs r WHERE r.thread_key = s.thread_key AND r.run_id = m.run_id)));
    IF s.erase THEN
        UPDATE runyard.messages m SET payload = NULL, note = '[erased]'
        WHERE m.branch_id = of_branch AND m.seq > s.after_seq AND m.seq <= last_seq;
        IF FOUND THEN
            INSERT INTO runyard.erasures AS e (branch_id, steps) VALUES (of_branch, 1) ON CONFLICT (branch_id) DO UPDATE SET steps = e.steps + 1;
        END IF;
    END IF;
    IF examined >= most THEN
        UPDATE runyard.removals x SET after_seq = last_seq WHERE x.thread_key = s.thread_key;
        RETURN examined;
    END IF;
    IF seen = '{}' THEN
        DELETE FROM runyard.levels l WHERE l.branch_id = of_branch;
        DELETE FROM runyard.branches b WHERE b.branch_id = of_branch;
        DELETE FROM runyard.erasures e WHERE e.branch_id = of_branch;
    END IF;
    UPDATE runyard.removals x SET below_branch = of_branch, after_seq = 0 WHERE x.thread_key = s.thread_key;
    RETURN examined;
END $$;

-- Remove the entries of an erased thread's extra that the thread has not inherited, and record their hashes. Remove them from the thread
-- and from up to `most` of its runs. Return the number of examined runs, at least 1.
CREATE OR REPLACE FUNCTION runyard.erase_own_extra(s runyard.removals, most integer) RETURNS integer
LANGUAGE plpgsql AS $$
DECLARE
    t runyard.threads;
    inherited jsonb;
    part record := runyard.runs_with_extra(s.thread_key, s.after_completion, most);
BEGIN
    SELECT x.* INTO t FROM runyard.threads x WHERE x.thread_key = s.thread_key;
    inherited := CASE WHEN t.parent_thread_id IS NULL THEN '{}' ELSE t.base_extra - 'fork' END;
    s.erased := coalesce(s.erased, '{}') || (
        SELECT coalesce(jsonb_object_agg(h.hash, true), '{}') FROM (
            SELECT DISTINCT runyard.extra_hash(e.key, e.value) AS hash
            FROM (SELECT t.base_extra AS extra UNION ALL SELECT t.extra
                  UNION ALL SELECT r.extra FROM runyard.runs r WHERE r.accept_no = ANY (part.numbers)) x, jsonb_each(x.extra) e
            WHERE e.key <> 'fork' AND inherited->e.key IS DISTINCT FROM e.value) h);
    UPDATE runyard.threads x SET base_extra = inherited, extra = '{}' WHERE x.thread_key = s.thread_key;
    UPDATE runyard.runs r SET extra = runyard.without_extra(r.extra - 'fork', s.erased) WHERE r.accept_no = ANY (part.numbers);
    UPDATE runyard.removals x SET erased = s.erased, after_completion = coalesce(part.last, 0),
           after_fork = CASE WHEN part.last IS NULL THEN s.thread_key ELSE 0 END
    WHERE x.thread_key = s.thread_key;
    RETURN greatest(cardinality(part.numbers), 1);
END $$;

-- Remove the extra of an erased thread from the next thread that inherits from it, and from up to `most` runs of that thread. The function
-- locks the inheriting thread. Return 0 if another transaction has locked it. After a step that has locked a thread, return
-- `most`, because the transaction must not lock a second thread.
CREATE OR REPLACE FUNCTION runyard.erase_extra(s runyard.removals, most integer) RETURNS integer
LANGUAGE plpgsql AS $$
DECLARE
    hashes jsonb := s.erased || '{}'; -- || makes a copy; without it, the value would be read from its row again for each run
    heir bigint;
    part record;
BEGIN
    SELECT min(b.thread_key) INTO heir
    FROM runyard.branches own JOIN runyard.levels l ON l.ancestor_id = own.branch_id JOIN runyard.branches b ON b.branch_id = l.branch_id
    WHERE own.thread_key = s.thread_key AND b.thread_key > s.after_fork;
    IF heir IS NULL THEN
        UPDATE runyard.removals x SET after_fork = 9223372036854775807 WHERE x.thread_key = s.thread_key;
        RETURN 1;
    END IF;
    PERFORM 1 FROM runyard.threads t WHERE t.thread_key = heir FOR UPDATE SKIP LOCKED;
    IF NOT FOUND AND EXISTS (SELECT 1 FROM runyard.threads t WHERE t.thread_key = heir) THEN RETURN 0; END IF;
    part := runyard.runs_with_extra(heir, s.after_completion, most);
    UPDATE runyard.threads t SET base_extra = runyard.without_extra(t.base_extra, hashes), extra = runyard.without_extra(t.extra, hashes)
    WHERE t.thread_key = heir;
    UPDATE runyard.runs r SET extra = runyard.without_extra(r.extra, hashes)
    WHERE r.accept_no = ANY (part.numbers) AND r.extra <> runyard.without_extra(r.extra, hashes);
    UPDATE runyard.removals x SET after_completion = coalesce(part.last, 0), after_fork = CASE WHEN part.last IS NULL THEN heir ELSE s.after_fork END
    WHERE x.thread_key = s.thread_key;
    RETURN most;
END $$;
