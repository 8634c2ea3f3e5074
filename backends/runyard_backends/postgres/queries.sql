-- Every statement that Python sends, by name. A line `-- name:` begins a statement. The next line describes the statement and its
-- result. Statements that return messages begin with the same ten columns.

-- name: accept
-- Accept and admit runs. Return one row per request, in the order of the requests: the accepted run, or the refusal.
SELECT * FROM runyard.accept_many($1, $2::runyard.request[], $3) ORDER BY n

-- name: accept_request
-- Accept a run in a host's transaction. Return true if the run is new. The request is passed as one text, because the host's
-- connection may have its own codecs for JSON and composite types.
SELECT runyard.accept_request($1, jsonb_populate_record(NULL::runyard.request, $2::text::jsonb)) AS created

-- name: admit
-- Admit the runs that are due. Return the effects, and the seconds until the next call has work.
SELECT effects, next_due FROM runyard.admit($1)

-- name: claim
-- Claim runs for a worker. Return one row per run: the outcome, and the run if it was claimed.
SELECT c.thread_key AS key, c.run_id AS id, c.outcome, c.retry_in, c.takeover, c.leaf_id::text AS leaf_id, c.version_before, c.thread_extra, c.effects,
       CASE WHEN c.outcome = 'claimed' THEN (SELECT t.config FROM runyard.threads t WHERE t.thread_key = c.thread_key) END AS config, (c.run).*
FROM runyard.claim($1, $2, $3, $4) c

-- name: complete_and_claim
-- Complete runs, and claim the next runs of their lanes. Return one row per write: its end (ended_…), and the columns of a claim.
SELECT e.thread_key AS ended_thread_key, e.run_id AS ended_run_id, e.status AS ended_status, e.event_id AS ended_event_id, e.error AS ended_error,
       e.effects AS ended_effects, e.refused AS ended_refused,
       c.thread_key AS key, c.run_id AS id, c.outcome, c.retry_in, c.takeover, c.leaf_id::text AS leaf_id, c.version_before, c.thread_extra, c.effects,
       CASE WHEN c.outcome = 'claimed' THEN (SELECT t.config FROM runyard.threads t WHERE t.thread_key = c.thread_key) END AS config, (c.run).*
FROM runyard.complete_and_claim($1::runyard.attempt_write[], $2, $3, $4) e, LATERAL (SELECT (e.next).*) c

-- name: context
-- Return a part of the messages that an attempt's run sees, in order, without those that the caller holds. The first row is no
-- message. Its note says what the others are (runyard.history). found: the number of messages, including messages that were omitted
-- because of their size. own: true for messages of the run.
SELECT x.seq, x.id, x.parent_id, x.of_run AS run_id, x.role, x.payload, x.note, x.calls, x.results, x.created_at, x.found, x.own
FROM (
    SELECT c.*, count(*) OVER () - 1 AS found,
           c.ordinality <= 2 OR sum(512 + coalesce(octet_length(c.payload), 0)) OVER (ORDER BY c.ordinality) <= $8 AS fits
    FROM runyard.history($1, $2, $3, $4::jsonb, $5, $6, $7) WITH ORDINALITY c
) x
WHERE x.fits ORDER BY x.ordinality

-- name: recent
-- Return messages that an attempt's run sees, the last one first, up to a number of bytes.
SELECT x.seq, x.message_id::text AS id, x.parent_id::text AS parent_id, x.run_id, x.role, x.payload, x.note, x.calls, x.results, x.created_at
FROM (
    SELECT c.*, c.ordinality = 1 OR sum(512 + coalesce(octet_length(c.payload), 0)) OVER (ORDER BY c.ordinality) <= $7 AS fits
    FROM runyard.recent($1, $2, $3, $4, $5, $6) WITH ORDINALITY c
) x
WHERE x.fits ORDER BY x.ordinality

-- name: ledger
-- Return the ledger of a run in one row: arrays of its steps, its HITL requests (pending or not), and its waits (open or ended)
-- with the signals that they took. codec/ledger_rows.py names the columns of these records. The columns have no domains,
-- because the driver cannot decode domains in a record. Steps that are candidates of a fan-out have no result here. received:
-- true if the attempt with this fence is the first that has the answer. outcome_before: the outcome of the previous attempt.
WITH r AS MATERIALIZED (SELECT x.accept_no FROM runyard.runs x WHERE x.thread_key = $1 AND x.run_id = $2)
SELECT ARRAY(SELECT ROW(s.step_key, s.done, CASE WHEN s.outcome IS NULL THEN s.result END, s.fence, s.outcome)
             FROM r JOIN runyard.steps s USING (accept_no)) AS steps,
       ARRAY(SELECT ROW(q.request_id, q.kind, q.body, q.deadline_at::timestamptz, q.thread_id, q.run_id, q.agent, q.created_at::timestamptz, q.answer,
                        q.response_id, q.answered_by, q.on_behalf_of, q.answered_at::timestamptz, h.received_by = $3)
             FROM runyard.requests q JOIN runyard.hitl_requests h USING (tenant, request_id)
             WHERE q.thread_key = $1 AND q.run_id = $2) AS requests,
       ARRAY(SELECT ROW(w.wait_id, w.kind, w.name, w.due_at::timestamptz, w.ended_at::timestamptz, w.signal_id, s.value)
             FROM runyard.waits w LEFT JOIN runyard.signals s ON s.thread_key = w.thread_key AND s.signal_id = w.signal_id
             WHERE w.thread_key = $1 AND w.run_id = $2) AS waits,
       (SELECT a.outcome FROM r JOIN runyard.attempts a USING (accept_no) WHERE a.fence < $3 ORDER BY a.fence DESC LIMIT 1) AS outcome_before

-- name: store_candidates
-- Store a page of the messages of a large fan-out.
SELECT runyard.store_candidates($1, $2, $3)

-- name: candidate_messages
-- Return the messages of candidates of the attempt's fork job.
SELECT c.number, c.message FROM runyard.candidate_messages($1, $2, $3, $4) c

-- name: begin_candidates
-- Record that an attempt has begun candidates.
SELECT runyard.begin_candidates($1, $2, $3, $4)

-- name: end_candidates
-- Record the ends of candidates and of the judge.
SELECT runyard.end_candidates($1, $2, $3, $4, $5, $6, $7)

-- name: begin_batch
-- Begin the batch of a large fan-out. Return false if its run exists.
SELECT runyard.begin_batch($1, $2::runyard.request)

-- name: fan_out
-- Return the fork job of a fan-out, with arrays of the records of its candidates and of the runs that it has started on
-- threads. All are read in one state of the database. codec/fan_out_rows.py names the columns of the records.
SELECT f.total, f.threads, f.status, f.fence, f.usage, f.expired,
       ARRAY(SELECT ROW(c.number, c.fence, c.outcome, c.usage, c.size, c.value)
             FROM runyard.candidate_records($1, $2, $3, $4, $5, NULL) c) AS records,
       ARRAY(SELECT ROW(x.of_thread, x.status, x.usage) FROM runyard.candidate_runs($1, $2, $3) x) AS runs
FROM runyard.fan_out($1, $2, $3) f

-- name: candidates
-- Return the fork job of a fan-out, with arrays of the records of some of its candidates and of their runs on threads. All are
-- read in one state of the database.
SELECT f.total, f.threads, f.status, f.fence, f.usage, f.expired,
       ARRAY(SELECT ROW(c.number, c.fence, c.outcome, c.usage, c.size, c.value)
             FROM runyard.candidate_records($1, $2, $3, $4, $5, $6) c) AS records,
       ARRAY(SELECT ROW(o.place, o.status, o.usage, o.error, o.unread, o.cut, (o.message).seq, (o.message).message_id::text,
                        (o.message).parent_id::text, (o.message).run_id, (o.message).role, (o.message).payload, (o.message).note,
                        (o.message).calls, (o.message).results, (o.message).created_at::timestamptz)
             FROM runyard.candidate_outcomes($1, $7, $8, $6) o) AS outcomes
FROM runyard.fan_out($1, $2, $3) f

-- name: start_child
-- Accept a child of an attempt's run. Return the run, the effects, and true as `created` if the run is new.
SELECT x.created, x.effects, (x.run).status, (x.run).lane, (x.run).agent, (x.run).queue, (x.run).after_run_id, (x.run).run_at, (x.run).expires_at,
       (x.run).accepted_at, (x.run).admitted_at
FROM runyard.start_child($1, $2::runyard.request, $3, $4, $5) x

-- name: send_signal
-- Send a signal to a thread. Return the signal, the effects, and true as `created` if the signal is new.
SELECT x.created, x.effects, $2::text AS thread_id, (x.signal).* FROM runyard.send_signal($1, $2, $3, $4, $5, $6, $7) x

-- name: write_interim
-- Store writes of attempts before their last writes. Return the outcome of each write, in a row for each of its stored messages, or in one
-- row.
SELECT m.seq, m.message_id::text AS id, m.parent_id::text AS parent_id, m.run_id, m.role, m.payload, m.note, m.calls, m.results, m.created_at,
       x.place, x.refused, (x.step).step_key, (x.step).done, (x.step).result, (x.step).fence, (x.step).outcome
FROM runyard.write_interim($1::runyard.interim_write[], $2) x LEFT JOIN LATERAL unnest(x.messages) m ON true

-- name: complete
-- Complete the runs of attempts. Return one row per attempt: the end of its run, or the refusal.
SELECT * FROM runyard.complete($1::runyard.attempt_write[], $2)

-- name: suspend
-- Suspend an attempt's run until a request is answered or a wait ends. Return the run's new status.
SELECT * FROM runyard.suspend_v2($1::runyard.attempt_write, $2::runyard.new_request[], $3::text[], $4::runyard.new_wait[])

-- name: fail
-- Fail an attempt's run. Return the end of the run.
SELECT * FROM runyard.fail($1::runyard.attempt_write, $2::jsonb)

-- name: release
-- Release an attempt's run to the queue. Return the run's new status.
SELECT * FROM runyard.release($1, $2, $3, $4, $5::jsonb, $6, $7, $8::jsonb)

-- name: request_for
-- Return the HITL request that an answer is for.
SELECT q.* FROM runyard.request_for($1, $2, $3, $4) q

-- name: isolate
-- Record that an attempt runs alone in its process.
SELECT runyard.isolate($1, $2, $3)

-- name: bury
-- Record the death of the process in which an attempt ran alone. Return the run's new status.
SELECT * FROM runyard.bury($1, $2, $3, $4)

-- name: respond
-- Record an answer. Return the HITL request. created: true if this call answered it. is_last: true if its run waits for no other answer.
SELECT (a.request).*, a.created, a.effects, a.is_last FROM runyard.respond($1, $2, $3, $4, $5, $6, $7, $8) a

-- name: cancel
-- Cancel a run. Return the changed run.
SELECT (c.run).*, c.effects FROM runyard.cancel($1, $2, $3, $4) c

-- name: abort_pending
-- Cancel the run of a thread that waits for an answer. Return the changed run, or a row of NULLs if no run waits.
SELECT (a.run).*, a.effects FROM runyard.abort_pending($1, $2, $3, $4) a

-- name: redrive
-- Queue a failed or dead run again. Return the changed run.
SELECT (c.run).*, c.effects FROM runyard.redrive($1, $2, $3) c

-- name: run
-- Return one run by its ids. stored_input: the payload of its input, if the first claim has stored the input as a message.
SELECT r.*, CASE WHEN r.input IS NULL THEN runyard.stored_input(r.input_id, r.branch_id) END AS stored_input FROM runyard.runs r WHERE r.tenant = $1 AND r.thread_id = $2 AND r.run_id = $3 AND NOT r.deleted
  AND NOT EXISTS (SELECT 1 FROM runyard.removals s WHERE s.thread_key = r.thread_key)

-- name: run_entries
-- Return the runs with the given ids as a list does. A run lacks values of more than 8192 bytes, and `omitted` names them.
SELECT r.thread_id, r.run_id, r.kind, r.status, r.agent, r.queue, r.priority, r.lane, r.attempt, r.error_count, r.crash_count, r.input_id,
       r.input_role, r.parent_id, r.after_run_id, r.options, r.run_at, r.expires_at, r.accepted_at, r.admitted_at, r.started_at, r.suspended_at,
       r.waiting_for, r.finished_at, r.cancel_requested_at, r.completion_seq, r.fence, r.worker_id, r.app_version, r.error, r.usage, r.trace_context,
       r.event_id, r.emptied_at,
       CASE WHEN NOT v.large_input THEN v.input END AS input, CASE WHEN NOT v.large_result THEN r.result END AS result,
       CASE WHEN v.large_metadata THEN '{}' ELSE r.metadata END AS metadata,
       array_remove(ARRAY[CASE WHEN v.large_input THEN 'input' END, CASE WHEN v.large_result THEN 'result' END,
                          CASE WHEN v.large_metadata THEN 'metadata' END], NULL) AS omitted
FROM unnest($2::text[], $3::text[]) q(thread_id, run_id)
CROSS JOIN LATERAL (
    SELECT s.* FROM runyard.runs s WHERE s.tenant = $1 AND s.thread_id = q.thread_id AND s.run_id = q.run_id AND NOT s.deleted
    AND NOT EXISTS (SELECT 1 FROM runyard.removals d WHERE d.thread_key = s.thread_key) LIMIT 1) r
CROSS JOIN LATERAL (SELECT coalesce(r.input, runyard.stored_input(r.input_id, r.branch_id)) AS input OFFSET 0) i
CROSS JOIN LATERAL (
    SELECT i.input, coalesce(octet_length(i.input) > 8192, false) AS large_input, coalesce(octet_length(r.result) > 8192, false) AS large_result,
           octet_length(r.metadata::text) > 8192 AS large_metadata) v

-- name: inherited_run
-- Return the run of an ancestor if the thread shows all messages of the run.
SELECT w.*, CASE WHEN w.input IS NULL THEN runyard.stored_input(w.input_id, w.branch_id) END AS stored_input
FROM runyard.threads t CROSS JOIN LATERAL runyard.whole_run(t.thread_key, $3) w
WHERE t.tenant = $1 AND t.thread_id = $2 AND t.deleted_at IS NULL

-- name: run_statuses
-- Return the statuses of the runs with the given ids, in the same order. NULL means that there is no such run.
SELECT f.status FROM unnest($2::text[], $3::text[]) WITH ORDINALITY q(thread_id, run_id, place) LEFT JOIN LATERAL (
    SELECT r.status FROM runyard.runs r WHERE r.tenant = $1 AND r.thread_id = q.thread_id AND r.run_id = q.run_id AND NOT r.deleted
    AND NOT EXISTS (SELECT 1 FROM runyard.removals s WHERE s.thread_key = r.thread_key) LIMIT 1) f ON true
ORDER BY q.place

-- name: last_message
-- Return the id of the last message of a run.
SELECT m.message_id::text FROM runyard.runs r JOIN runyard.messages m ON m.branch_id = r.branch_id AND m.seq = r.last_seq AND m.run_id = r.run_id
WHERE r.tenant = $1 AND r.thread_id = $2 AND r.run_id = $3 AND NOT r.deleted
  AND NOT EXISTS (SELECT 1 FROM runyard.removals s WHERE s.thread_key = r.thread_key)

-- name: runs
-- Return a page of runs, the newest first.
SELECT f.omitted, f.place_time, f.place_no, (f.run).* FROM runyard.list_runs($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) f

-- name: explain
-- Return a run, and the key and the facts of the sentence that explains its state.
SELECT (e.run).*, e.reason, e.facts FROM runyard.explain($1, $2, $3) e

-- name: attempts
-- Return a page of the attempts of a run, the oldest first.
SELECT a.more, (a.attempt).* FROM runyard.list_attempts($1, $2, $3, $4, $5, $6) a

-- name: find_runs
-- Return the thread ids and the run ids of runs by the beginning of their ids.
SELECT f.thread_id, f.run_id FROM runyard.find_runs($1, $2, $3) f

-- name: children
-- Return descendants of a thread's runs, level by level.
SELECT c.* FROM runyard.list_children($1, $2, $3, $4) c

-- name: run_durations
-- Return the times of a run and its last message.
SELECT (d.message).seq, (d.message).message_id::text AS id, (d.message).parent_id::text AS parent_id, (d.message).run_id, (d.message).role,
       (d.message).payload, (d.message).note, (d.message).calls, (d.message).results, (d.message).created_at,
       d.queued, d.running, d.parked, d.waiting
FROM runyard.run_durations($1, $2, $3) d

-- name: run_timeline
-- Return a page of the timeline of a run.
SELECT (e.message).seq, (e.message).message_id::text AS id, (e.message).parent_id::text AS parent_id, (e.message).run_id AS of_run, (e.message).role,
       (e.message).payload, (e.message).note, (e.message).calls, (e.message).results, (e.message).created_at AS stored_at,
       e.kind AS entry_kind, e.at, e.key, e.since, e.of_fence, e.call_seq, e.size, e.total,
       (e.attempt).fence, (e.attempt).worker_id, (e.attempt).started_at, (e.attempt).ended_at, (e.attempt).outcome, (e.attempt).error,
       (e.step).step_key, (e.step).done, (e.step).result, (e.step).input, (e.step).started_at AS step_started_at,
       (e.step).ended_at AS step_ended_at,
       (e.request).*
FROM runyard.run_timeline($1, $2, $3, $4, $5, $6, $7, $8, $9) e

-- name: run_waits
-- Return a page of the waits of a run, for its timeline.
SELECT w.* FROM runyard.run_waits($1, $2, $3, $4, $5, $6, $7, $8, $9) w

-- name: messages_of_run
-- Return messages of a run by their numbers.
SELECT seq, message_id::text AS id, parent_id::text AS parent_id, run_id, role, payload, note, calls, results, created_at
FROM runyard.messages_of_run($1, $2, $3, $4)

-- name: request
-- Return one HITL request by its id.
SELECT q.* FROM runyard.requests q WHERE q.tenant = $1 AND q.request_id = $2

-- name: answered_request
-- Return the HITL request of a thread that has an answer with this response id.
SELECT q.* FROM runyard.threads t JOIN runyard.requests q USING (tenant, thread_key)
WHERE t.tenant = $1 AND t.thread_id = $2 AND t.deleted_at IS NULL AND q.response_id = $3

-- name: requests
-- Return a page of HITL requests, the oldest first.
SELECT f.more, (f.request).* FROM runyard.list_requests($1, $2, $3, $4, $5, $6, $7) f

-- name: run_events
-- Return the proven events of a run after an event id.
SELECT (e.message).seq, (e.message).message_id::text AS id, (e.message).parent_id::text AS parent_id, (e.message).run_id AS of_run, (e.message).role,
       (e.message).payload, (e.message).note, (e.message).calls, (e.message).results, (e.message).created_at AS stored_at,
       e.type, e.proved_id, e.in_thread, e.why, e.asked, e.attempt, (e.request).*
FROM runyard.run_events($1, $2, $3, $4, $5) e

-- name: thread
-- Return one thread by its id.
SELECT t.* FROM runyard.threads t WHERE t.tenant = $1 AND t.thread_id = $2 AND t.deleted_at IS NULL

-- name: parent
-- Return the parent of a thread. If the parent is deleted, return the nearest ancestor in the thread's levels. This ancestor
-- may also be deleted. A parent has a smaller key than its fork. If a thread has the parent's id and a larger key, it is
-- therefore another thread.
SELECT a.* FROM runyard.threads a WHERE a.thread_key = coalesce(
    (SELECT p.thread_key FROM runyard.threads t
     JOIN runyard.threads p ON p.tenant = t.tenant AND p.thread_id = t.parent_thread_id AND p.deleted_at IS NULL
     WHERE t.thread_key = $1 AND p.thread_key < $1),
    (SELECT max(o.thread_key) FROM runyard.branches b JOIN runyard.levels l USING (branch_id)
     JOIN runyard.branches o ON o.branch_id = l.ancestor_id WHERE b.thread_key = $1 AND o.thread_key < $1))

-- name: threads
-- Return a page of threads, in the order of their keys, or the newest first.
SELECT f.omitted, f.place, (f.thread).* FROM runyard.list_threads_v2($1, $2, $3, $4::jsonb, $5, $6, $7, $8) f

-- name: create_thread
-- Make an empty thread. Return the thread, and true as `created` if the thread is new.
SELECT (c.thread).*, c.created FROM runyard.create_thread($1, $2, $3, $4, $5, $6::jsonb, $7::jsonb, $8::jsonb) c

-- name: update_thread
-- Change fields of a thread. Return the changed thread.
SELECT t.* FROM runyard.update_thread($1, $2, $3::jsonb, $4) t

-- name: page
-- Return a page of the messages of a branch, or of the path to a message. Each message has the status of its run. Also return
-- the branch for the next page.
SELECT x.seq, x.message_id::text AS id, x.parent_id::text AS parent_id, x.run_id, x.role, x.payload, x.note, x.calls, x.results, x.created_at,
       x.run_status, x.found,
       coalesce($8, (SELECT t.head_branch FROM runyard.threads t WHERE t.tenant = $1 AND t.thread_id = $2 AND t.deleted_at IS NULL)) AS branch
FROM (
    SELECT (p.message).*, p.run_status, p.ordinality, count(*) OVER () AS found,
           p.ordinality = 1 OR sum(512 + coalesce(octet_length((p.message).payload), 0)) OVER (ORDER BY p.ordinality) <= $9 AS fits
    FROM runyard.path_page($1, $2, $3, $4, $5, $6, $7, $8) WITH ORDINALITY p
) x
WHERE x.fits ORDER BY x.ordinality

-- name: cut
-- Return the view and the extra of a cut of a thread.
SELECT c.view, runyard.extra_at(c.view) AS extra
FROM runyard.known_snapshot($1, $2) t, runyard.cut(t, $3::jsonb) c

-- name: cut_messages
-- Return the messages that a cut of a thread shows, in order.
SELECT v.seq, v.message_id::text AS id, v.parent_id::text AS parent_id, v.run_id, v.role, v.payload, v.note, v.calls, v.results, v.created_at
FROM runyard.known_snapshot($1, $2) t, runyard.cut(t, $3::jsonb) c, runyard.visible(c.view) v
ORDER BY v.seq

-- name: branches
-- Return a page of the leaves of a thread, the oldest first.
SELECT l.message_id::text AS message_id, l.depth, l.created_at, l.run_id, l.run_status, l.head, l.trunk, l.labels,
       l.segment, l.until_seq, l.inherited
FROM runyard.list_leaves($1, $2, $3, $4, $5, $6) l

-- name: branch_keys
-- Return the keys of a thread's branches, in the order in which they were opened.
SELECT b.branch_id FROM runyard.known_snapshot($1, $2) t JOIN runyard.branches b ON b.thread_key = t.thread_key ORDER BY b.branch_id

-- name: branch_at
-- Return the number of a thread's branches, and the key of the branch at a place of their order.
SELECT (SELECT count(*) FROM runyard.branches b WHERE b.thread_key = t.thread_key) AS branches,
       (SELECT b.branch_id FROM runyard.branches b WHERE b.thread_key = t.thread_key ORDER BY b.branch_id OFFSET $3 LIMIT 1) AS branch_id
FROM runyard.known_snapshot($1, $2) t

-- name: branch_messages
-- Return own messages of a thread's branch, in order, up to a number of bytes.
SELECT m.seq, m.message_id::text AS id, m.parent_id::text AS parent_id, m.run_id, m.role, m.payload, m.note, m.calls, m.results, m.created_at
FROM (
    SELECT s.*, row_number() OVER (ORDER BY s.seq) AS place, sum(512 + coalesce(octet_length(s.payload), 0)) OVER (ORDER BY s.seq) AS bytes
    FROM runyard.known_snapshot($1, $2) t
    JOIN runyard.branches b ON b.thread_key = t.thread_key AND b.branch_id = $3
    CROSS JOIN LATERAL (SELECT x.* FROM runyard.messages x WHERE x.branch_id = b.branch_id AND x.seq > $4 ORDER BY x.seq LIMIT $5) s
) m
WHERE m.place = 1 OR m.bytes <= $6
ORDER BY m.seq

-- name: import_lock
-- Take the lock of a tenant's imports until this transaction ends. Return true if the lock was free.
SELECT pg_try_advisory_xact_lock(hashtext('runyard.import'), hashtext($1))

-- name: set_head
-- Make the branch that ends at a message the head.
SELECT runyard.set_head($1, $2, $3)

-- name: set_label
-- Give a label to a branch.
SELECT runyard.set_label($1, $2, $3, $4, $5)

-- name: remove_label
-- Remove a label.
SELECT runyard.remove_label($1, $2, $3)

-- name: store_message
-- Store a message without a run. Return the stored message.
SELECT seq, message_id::text AS id, parent_id::text AS parent_id, run_id, role, payload, note, calls, results, created_at
FROM runyard.store_message($1, $2, $3::runyard.new_message, $4, $5)

-- name: fork
-- Fork a thread. Return the fork, and true as `created` if the fork is new.
SELECT (f.thread).*, f.created FROM runyard.fork($1, $2::jsonb, $3) f

-- name: delete_thread
-- Delete or erase a thread. Return the effects, and the keys of the deleted threads that still have rows.
SELECT effects, unremoved FROM runyard.delete_thread($1, $2, $3, $4, $5)

-- name: remove_step
-- Remove some rows of a deleted thread. Return true if more rows are possibly left.
SELECT runyard.remove_step($1, $2)

-- name: delete_run
-- Delete the content of a run that ended and is in no context.
SELECT runyard.delete_run($1, $2, $3)

-- name: load
-- Return a thread and, if it has few messages, the messages that a checkpointer loads. The first row is no message. Its note says what the
-- thread has (runyard.load).
SELECT * FROM runyard.load($1, $2, $3)

-- name: load_long
-- Return the messages that a checkpointer loads: the visible messages of the head, and the head's messages of external and unclaimed runs.
-- The first part is runyard.visible without its function: Postgres sends the first rows before it has found the last ones. Its plan
-- reads only the runs of the threads of its levels, if it must use indexes (Database.snapshot). created_at: in the form of a history.
SELECT m.seq, m.message_id::text AS id, m.parent_id::text AS parent_id, m.run_id, m.role, m.payload, m.note,
       CASE WHEN m.payload IS NULL THEN m.calls END AS calls, CASE WHEN m.payload IS NULL THEN m.results END AS results,
       timestamptz_send(m.created_at) AS created_at
FROM (
    SELECT v.* FROM runyard.threads t
    CROSS JOIN LATERAL unnest(runyard.branch_view(t.head_branch)) l
    CROSS JOIN LATERAL (SELECT x.thread_key FROM runyard.branches x WHERE x.branch_id = l.branch_id OFFSET 0) b
    CROSS JOIN LATERAL (
        SELECT x.* FROM runyard.messages x
        LEFT JOIN runyard.runs r ON r.thread_key = b.thread_key AND r.run_id = x.run_id
        WHERE x.branch_id = l.branch_id AND x.seq <= l.high_water_seq
          AND (x.run_id IS NULL OR x.run_id = l.open_run_id OR r.completion_seq <= l.cutoff)
        OFFSET 0) v
    WHERE t.tenant = $1 AND t.thread_id = $2 AND t.deleted_at IS NULL
    UNION ALL
    SELECT u.* FROM runyard.threads t CROSS JOIN LATERAL runyard.uncompleted(t.thread_key, t.head_branch) u
    WHERE t.tenant = $1 AND t.thread_id = $2 AND t.deleted_at IS NULL
) m

-- name: checkpoint_append
-- Store messages of a checkpointer.
SELECT runyard.checkpoint_append($1, $2, $3::runyard.new_message[], $4)

-- name: save_extra
-- Merge values into the extra of a thread.
SELECT runyard.save_extra($1, $2, $3::jsonb)

-- name: save_pending
-- Replace the one pending request that a checkpointer keeps for a thread.
SELECT runyard.save_pending($1, $2, $3::runyard.new_request, $4)

-- name: remove_request
-- Remove one pending request that a checkpointer keeps for a thread. Return true if it was removed.
SELECT runyard.remove_request($1, $2, $3)

-- name: save_requests
-- Store requests of an external run.
SELECT runyard.save_requests($1, $2, $3::runyard.new_request[], $4)

-- name: load_requests
-- Return the pending and answered requests of a thread or of a run.
SELECT q.* FROM runyard.load_requests($1, $2, $3) q

-- name: tell
-- Send effects to the workers through NOTIFY.
SELECT runyard.tell($1::jsonb)

-- name: pending
-- Return the newest pending request of a thread. It is found by an index of the thread's requests, also before the first ANALYZE. With
-- conditions on tenant and thread_id, the whole inbox of the tenant could be read.
SELECT q.* FROM (
    SELECT h.tenant, h.request_id FROM runyard.hitl_requests h
    WHERE h.thread_key = (SELECT t.thread_key FROM runyard.threads t WHERE t.tenant = $1 AND t.thread_id = $2 AND t.deleted_at IS NULL)
      AND h.answered_at IS NULL AND h.closed_at IS NULL AND h.created_at >= '-infinity'
    ORDER BY h.created_at DESC, h.request_id DESC LIMIT 1) newest
CROSS JOIN LATERAL (SELECT x.* FROM runyard.requests x WHERE x.tenant = newest.tenant AND x.request_id = newest.request_id LIMIT 1) q

-- name: claim_external
-- Claim an external run.
SELECT runyard.claim_external($1, $2, $3)

-- name: complete_external
-- Complete an external run.
SELECT runyard.complete_external($1, $2, $3)

-- name: register
-- Register a worker and its agents.
SELECT runyard.register_v2($1, $2, $3::jsonb, $4, $5, $6, $7, $8, $9)

-- name: announce_budgets
-- Record the budgets of the agents of a worker.
UPDATE runyard.workers SET budgets = $2::jsonb WHERE worker_id = $1

-- name: beat
-- Record a worker's heartbeat. Return `draining` (true if the worker drains), the paused queues, and the oldest code that can
-- run on the schema.
SELECT draining, paused, oldest_code FROM runyard.beat($1)

-- name: leave
-- Remove a worker from the register.
DELETE FROM runyard.workers WHERE worker_id = $1

-- name: drain
-- Mark a worker as draining. Return one row if the worker is not dead.
UPDATE runyard.workers SET draining = true WHERE worker_id = $1 AND dead_at IS NULL RETURNING worker_id

-- name: report_block
-- Record the place at which the main loop of a worker is blocked, and the seconds since the block began. NULL ends the block.
UPDATE runyard.workers SET blocked_since = clock_timestamp() - make_interval(secs => $2::float8), blocked_at = $3, blocked_stack = $4
WHERE worker_id = $1 AND dead_at IS NULL

-- name: report_redis
-- Record the reason why a worker does not reach Redis. NULL means that the worker reaches Redis.
UPDATE runyard.workers SET redis_error = $2, redis_lost_at = CASE WHEN $2::text IS NOT NULL THEN coalesce(redis_lost_at, clock_timestamp()) END
WHERE worker_id = $1 AND dead_at IS NULL

-- name: workers
-- Return all workers, the seconds since their last heartbeats, and the seconds of their blocks. The block of a dead worker no longer grows.
SELECT w.*, extract(epoch FROM clock_timestamp() - w.heartbeat_at)::float8 AS silent_for,
    extract(epoch FROM coalesce(w.dead_at, clock_timestamp()) - w.blocked_since)::float8 AS blocked_for
FROM runyard.workers w ORDER BY w.started_at, w.worker_id

-- name: lead
-- Take or renew the leader's lease. Return true if the worker holds the lease.
SELECT runyard.lead('reconciler', $1, $2)

-- name: mark_dead
-- Declare a worker dead if its last heartbeat was at the given time. Return one row if it was declared dead.
UPDATE runyard.workers SET dead_at = clock_timestamp() WHERE worker_id = $1 AND heartbeat_at = $2 AND dead_at IS NULL
RETURNING worker_id

-- name: running
-- Return the attempts that a worker holds in Postgres.
SELECT r.thread_key, r.run_id, r.fence FROM runyard.live_runs l JOIN runyard.runs r USING (accept_no) WHERE l.worker_id = $1 AND l.status = 'running'

-- name: cancelling
-- Return the running runs of a worker for which a cancel was requested.
SELECT r.thread_key, r.run_id FROM runyard.live_runs l JOIN runyard.runs r USING (accept_no)
WHERE l.worker_id = $1 AND l.status = 'running' AND r.cancel_requested_at IS NOT NULL

-- name: orphans
-- Return the running runs of workers that are dead or have left.
SELECT o.job, o.cancelled, o.worker_id FROM runyard.orphans($1, $2) o

-- name: waiting
-- Return the jobs of runs that wait only for a worker. The last row has no job. It has the place after which the next call
-- continues.
SELECT w.job, w.place_time, w.place_no FROM runyard.waiting($1, $2, $3, $4, $5) w

-- name: still_waiting
-- Return the jobs of the given runs that wait only for a worker.
SELECT w AS job FROM runyard.still_waiting($1, $2::bigint[], $3::text[]) w

-- name: limits
-- Return all limits that are set.
SELECT l.limit_name AS name, l.subject, l.most FROM runyard.limits l ORDER BY l.limit_name, l.subject NULLS FIRST

-- name: set_limit
-- Set a limit.
INSERT INTO runyard.limits (limit_name, subject, most) VALUES ($1, $2, $3)
ON CONFLICT (limit_name, subject) DO UPDATE SET most = excluded.most

-- name: clear_limit
-- Remove a limit. Return one row if the limit was set.
DELETE FROM runyard.limits WHERE limit_name = $1 AND subject IS NOT DISTINCT FROM $2 RETURNING limit_name

-- name: review_limits
-- Count the waiting runs. Return effects with the jobs of waiting runs for which a permit is free.
SELECT runyard.review_limits()

-- name: feed
-- Return a page of the feed, and the transaction up to which it was read.
SELECT * FROM runyard.feed_v2($1, $2, $3, $4)

-- name: usage
-- Return the usage of a tenant's runs, day by day.
SELECT * FROM runyard.usage_of($1, $2, $3, $4)

-- name: today
-- Return the current day in UTC.
SELECT (clock_timestamp() AT TIME ZONE 'UTC')::date

-- name: count_usage
-- Add entries of the feed to the totals of usage. Return the delay of the feed in seconds, and the transaction that causes it.
SELECT d.seconds, d.holder FROM runyard.count_usage($1) c, runyard.feed_delay() d

-- name: feed_delay
-- Return the delay of the feed in seconds, and the transaction that causes it.
SELECT d.seconds, d.holder FROM runyard.feed_delay() d

-- name: add_webhook
-- Add a webhook, or return the webhook that has its id.
SELECT w.webhook_id, w.tenant, w.url, w.events, w.created_at, w.disabled_at FROM runyard.add_webhook($1, $2, $3, $4, $5) w

-- name: webhook
-- Return a webhook that a tenant owns.
SELECT w.webhook_id, w.tenant, w.url, w.events, w.created_at, w.disabled_at FROM runyard.webhooks w
WHERE w.webhook_id = $2 AND coalesce(w.tenant, '') = $1

-- name: webhooks
-- Return a page of the webhooks that a tenant owns. The tenant '' also owns the webhooks for all tenants.
SELECT w.webhook_id, w.tenant, w.url, w.events, w.created_at, w.disabled_at FROM (
    SELECT x.* FROM runyard.webhooks x WHERE x.tenant = $1 UNION ALL SELECT x.* FROM runyard.webhooks x WHERE x.tenant IS NULL AND $1 = '') w
WHERE (w.created_at, w.webhook_id) > ($2, $3) ORDER BY w.created_at, w.webhook_id LIMIT $4

-- name: remove_webhook
-- Remove a webhook. Return true if the webhook existed.
SELECT runyard.remove_webhook($1, $2)

-- name: webhook_key
-- Return the version of a webhook's secret, and the time until which the previous version also signs.
SELECT w.version, w.both_until FROM runyard.webhooks w WHERE w.webhook_id = $2 AND coalesce(w.tenant, '') = $1

-- name: webhook_key_of_tenant
-- Return the version of the secret for a tenant's runs, and the time until which the previous version also signs.
SELECT k.version, k.both_until FROM runyard.webhook_keys k WHERE k.tenant = $1

-- name: rotate_webhook_key
-- Rotate the secret of a webhook. Return no row if this rotation was made before.
UPDATE runyard.webhooks w SET version = w.version + 1,
       both_until = CASE WHEN $3::float8 > 0 THEN clock_timestamp() + make_interval(secs => $3::float8) END, rotation_id = $4::text
WHERE w.webhook_id = $2 AND coalesce(w.tenant, '') = $1 AND ($4::text IS NULL OR w.rotation_id IS DISTINCT FROM $4::text)
RETURNING w.version, w.both_until

-- name: rotate_webhook_key_of_tenant
-- Rotate the secret for a tenant's runs. Return no row if this rotation was made before.
INSERT INTO runyard.webhook_keys AS k (tenant, version, both_until, rotation_id)
VALUES ($1, 2, CASE WHEN $2::float8 > 0 THEN clock_timestamp() + make_interval(secs => $2::float8) END, $3::text)
ON CONFLICT (tenant) DO UPDATE SET version = k.version + 1, both_until = excluded.both_until, rotation_id = excluded.rotation_id
WHERE excluded.rotation_id IS NULL OR k.rotation_id IS DISTINCT FROM excluded.rotation_id
RETURNING k.version, k.both_until

-- name: webhook_deliveries
-- Return a page of deliveries, the newest first.
SELECT d.* FROM runyard.list_deliveries($1, $2, $3, $4) d

-- name: redeliver
-- Schedule a delivery again if it arrived or failed. Return true if this was possible.
SELECT runyard.redeliver($1, $2)

-- name: take_webhooks
-- Make deliveries from committed events. Take deliveries that are due, and return them.
SELECT * FROM runyard.take_webhooks($1::jsonb, $2, $3, $4, $5)

-- name: settle_webhook
-- Record the outcome of a delivery's try.
SELECT runyard.settle_webhook($1, $2, $3, $4, $5, $6)

-- name: oldest_webhook
-- Return the age in seconds of the oldest pending delivery.
SELECT extract(epoch FROM clock_timestamp() - min(d.created_at))::float8 FROM runyard.webhook_deliveries d WHERE d.next_at IS NOT NULL

-- name: prune
-- Delete data whose retention has passed. Return the number of deleted rows of the kind with the most deleted rows.
SELECT runyard.prune($1, $2, $3, $4)

-- name: queues
-- Return the queues that have live runs, are paused or have a live worker, by name.
SELECT q.* FROM runyard.queue_states() q
WHERE q.queue COLLATE "C" > $2 AND (q.known OR NOT $1) ORDER BY q.queue COLLATE "C" LIMIT $3

-- name: suspended_runs
-- Return the numbers of suspended runs of these queues, by what they wait for.
SELECT s.* FROM runyard.suspended_runs_v2($1) s

-- name: measure
-- Return the figures of the deployment that only the leader reads.
SELECT m.* FROM runyard.measure() m

-- name: pause
-- Pause a queue. Return the time at which the pause began.
INSERT INTO runyard.paused_queues AS p (queue) VALUES ($1) ON CONFLICT (queue) DO UPDATE SET queue = excluded.queue RETURNING p.paused_at

-- name: resume
-- Resume a queue. Return one row if the queue was paused.
DELETE FROM runyard.paused_queues WHERE queue = $1 RETURNING queue

-- name: schema_version
-- Return the version of the schema.
SELECT max(version) FROM runyard.schema_versions

-- name: schema_exists
-- Return true if the database has the schema "runyard".
SELECT to_regclass('runyard.schema_versions') IS NOT NULL

-- name: schema_start
-- Make the schema.
CREATE SCHEMA IF NOT EXISTS runyard

-- name: schema_table
-- Make the table that records the applied versions.
CREATE TABLE IF NOT EXISTS runyard.schema_versions (
    version integer PRIMARY KEY, name text NOT NULL, oldest_code integer NOT NULL, applied_at timestamptz NOT NULL DEFAULT now()
)

-- name: schema_lock
-- Wait for the end of other migrations, and exclude further migrations until this transaction ends.
SELECT pg_advisory_xact_lock(hashtext('runyard.migrate'))

-- name: functions_table
-- Make the table that records the applied files of functions: the digest of each file, the release that applied it, and the
-- digests of the functions and triggers that it made, by name.
CREATE TABLE IF NOT EXISTS runyard.schema_functions (
    file text PRIMARY KEY, digest text NOT NULL, release integer[] NOT NULL, made jsonb NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
)

-- name: functions_of_newer_release
-- Return the newest release that has applied functions, if it is newer than the given release.
SELECT max(f.release) FROM runyard.schema_functions f WHERE f.release > $1::integer[]

-- name: functions_applied
-- Return the digest of each applied file of functions, and the digests of the objects that it made.
SELECT f.file, f.digest, f.made FROM runyard.schema_functions f

-- name: functions_stored
-- Return the digests of the functions and triggers of the schema. Before the digest is made, the name of the schema is removed
-- from the texts, because the search_path determines whether they contain it. Operators may add settings to a function. The
-- digest therefore contains only the setting search_path.
SELECT d.name, md5(string_agg(replace(d.definition, 'runyard.', ''), '' ORDER BY d.definition)) AS digest FROM (
    SELECT p.proname AS name, concat_ws(' ', p.prosrc, pg_get_function_sqlbody(p.oid), p.prosecdef,
        (SELECT c FROM unnest(p.proconfig) c WHERE c LIKE 'search_path=%')) AS definition
    FROM pg_proc p WHERE p.pronamespace = 'runyard'::regnamespace
    UNION ALL
    SELECT t.tgname, concat_ws(' ', pg_get_triggerdef(t.oid), t.tgenabled)
    FROM pg_trigger t JOIN pg_class r ON r.oid = t.tgrelid
    WHERE r.relnamespace = 'runyard'::regnamespace AND NOT t.tgisinternal
) d GROUP BY d.name

-- name: functions_parsed
-- Parse the bodies of all functions.
SELECT plpgsql_validator(p.oid) FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang
WHERE p.pronamespace = 'runyard'::regnamespace AND l.lanname = 'plpgsql'

-- name: functions_record
-- Record the files of functions of a release. Delete the records of files that the release does not have.
WITH gone AS (DELETE FROM runyard.schema_functions f WHERE f.file <> ALL ($1::text[]))
INSERT INTO runyard.schema_functions AS f (file, digest, release, made)
SELECT n.file, n.digest, $4::integer[], n.made::jsonb FROM unnest($1::text[], $2::text[], $3::text[]) n(file, digest, made)
ON CONFLICT (file) DO UPDATE SET digest = excluded.digest, release = excluded.release, made = excluded.made,
    applied_at = CASE WHEN f.digest = excluded.digest THEN f.applied_at ELSE now() END
WHERE (f.digest, f.release, f.made) IS DISTINCT FROM (excluded.digest, excluded.release, excluded.made)

-- name: public_rights
-- Return the statements that revoke the rights of PUBLIC in the schema. Postgres gives PUBLIC the right to call each new function.
SELECT 'REVOKE ALL ON SCHEMA runyard FROM PUBLIC' AS statement FROM pg_namespace n
WHERE n.nspname = 'runyard' AND EXISTS (SELECT 1 FROM aclexplode(n.nspacl) a WHERE a.grantee = 0)
UNION ALL
SELECT format('REVOKE ALL ON %s %s FROM PUBLIC', CASE c.relkind WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END, c.oid::regclass) FROM pg_class c
WHERE c.relnamespace = 'runyard'::regnamespace AND (EXISTS (SELECT 1 FROM aclexplode(c.relacl) a WHERE a.grantee = 0)
      OR EXISTS (SELECT 1 FROM pg_attribute x, aclexplode(x.attacl) a WHERE x.attrelid = c.oid AND a.grantee = 0))
UNION ALL
SELECT format('REVOKE ALL ON ROUTINE %s FROM PUBLIC', p.oid::regprocedure) FROM pg_proc p
WHERE p.pronamespace = 'runyard'::regnamespace
      AND EXISTS (SELECT 1 FROM aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a WHERE a.grantee = 0)

-- name: role_facts
-- Return `unlimited`: true if a role has all rights in the schema, as a superuser or as a member of the owner. Return no row if
-- there is no such role.
SELECT r.rolsuper OR pg_has_role(r.oid, n.nspowner, 'MEMBER') AS unlimited FROM pg_roles r, pg_namespace n
WHERE r.rolname = $1 AND n.nspname = 'runyard'

-- name: grants
-- Return the statements that give a role the rights of workers, API processes and clients. The role may change only tables that
-- statements of this file change. It may call only functions that have the rights of their owner.
SELECT format(s.text, $1::text) AS statement FROM (VALUES
    ('REVOKE ALL ON SCHEMA runyard FROM %I'),
    ('REVOKE ALL ON ALL TABLES IN SCHEMA runyard FROM %I'),
    ('REVOKE ALL ON ALL SEQUENCES IN SCHEMA runyard FROM %I'),
    ('REVOKE ALL ON ALL ROUTINES IN SCHEMA runyard FROM %I'),
    ('GRANT USAGE ON SCHEMA runyard TO %I'),
    ('GRANT SELECT ON ALL TABLES IN SCHEMA runyard TO %I'),
    ('GRANT EXECUTE ON ROUTINE ' || (SELECT string_agg(p.oid::regprocedure::text, ', ') FROM pg_proc p
                                     WHERE p.pronamespace = 'runyard'::regnamespace AND p.prosecdef) || ' TO %I'),
    ('GRANT UPDATE, DELETE ON runyard.workers TO %I'),
    ('GRANT INSERT, UPDATE, DELETE ON runyard.limits, runyard.paused_queues TO %I'),
    ('GRANT UPDATE (version, both_until, rotation_id) ON runyard.webhooks TO %I'),
    ('GRANT INSERT, UPDATE ON runyard.webhook_keys, runyard.api_keys TO %I')
) s(text)

-- name: schema_applied
-- Record an applied version.
INSERT INTO runyard.schema_versions (version, name, oldest_code) VALUES ($1, $2, $3)

-- name: schema_state
-- Return the version of the schema, the oldest code that can run on it, and the given functions that are missing in the schema. Also
-- return the role, and the given functions that it may not call.
SELECT max(v.version) AS version, max(v.oldest_code) AS oldest_code,
       ARRAY(SELECT n.name FROM unnest($1::text[]) n(name)
             WHERE NOT EXISTS (SELECT 1 FROM pg_proc p WHERE p.pronamespace = 'runyard'::regnamespace AND p.proname = n.name)) AS missing,
       current_user::text AS role,
       ARRAY(SELECT p.oid::regprocedure::text FROM pg_proc p
             WHERE p.pronamespace = 'runyard'::regnamespace AND p.proname = ANY ($1) AND NOT has_function_privilege(p.oid, 'EXECUTE')
             ORDER BY p.oid::regprocedure::text) AS forbidden
FROM runyard.schema_versions v

-- name: server_facts
-- Return the facts about a server that `runyard doctor` shows.
SELECT current_setting('server_version') AS version, clock_timestamp() AS now, pg_is_in_recovery() AS in_recovery,
       current_setting('fsync') AS fsync, current_setting('synchronous_commit') AS synchronous_commit,
       current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int AS max_connections,
       (SELECT count(*) FROM pg_stat_activity a WHERE a.backend_type = 'client backend') AS connections,
       ARRAY(SELECT s.name FROM pg_settings s
             WHERE s.name IN ('statement_timeout', 'lock_timeout', 'idle_in_transaction_session_timeout') AND s.setting = '0'
             ORDER BY s.name) AS no_timeout

-- name: leader
-- Return the id of the worker that holds the leader's lease.
SELECT l.holder FROM runyard.leases l WHERE l.name = 'reconciler' AND l.expires_at > clock_timestamp()

-- name: create_key
-- Store an API key. Return no row if the tenant has the maximum number of valid keys. $7: this maximum. $8: the latest time of the expiry.
INSERT INTO runyard.api_keys (key_id, tenant, name, scopes, digest, expires_at)
SELECT $1, $2, $3, $4, $5, least(clock_timestamp() + make_interval(secs => $6), $8::timestamptz)
WHERE $7 > (SELECT count(*) FROM runyard.api_keys k
    WHERE k.tenant = $2 AND k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > clock_timestamp())) RETURNING *

-- name: keys
-- Return the valid API keys of a tenant, and the newest $2 of its other keys. The oldest keys come first.
SELECT x.* FROM (
    SELECT k.* FROM runyard.api_keys k
    WHERE k.tenant = $1 AND k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > clock_timestamp())
    UNION ALL
    (SELECT k.* FROM runyard.api_keys k WHERE k.tenant = $1 AND (k.revoked_at IS NOT NULL OR k.expires_at <= clock_timestamp())
    ORDER BY k.created_at DESC, k.key_id DESC LIMIT $2)) x
ORDER BY x.created_at, x.key_id

-- name: revoke_key
-- Revoke an API key. Return one row if this statement revoked it.
UPDATE runyard.api_keys SET revoked_at = clock_timestamp() WHERE tenant = $1 AND key_id = $2 AND revoked_at IS NULL RETURNING key_id

-- name: find_key
-- Return a valid API key by its id.
SELECT k.* FROM runyard.api_keys k
WHERE k.key_id = $1 AND k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > clock_timestamp())

-- name: graph_put
-- Store a checkpoint of a graph. Return the segments of its lists, or a row of NULLs if a stream or a version is deleted.
SELECT * FROM runyard.graph_put($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11::jsonb, $12, $13, $14::runyard.new_graph_value[])

-- name: graph_put_writes
-- Store pending writes of a task of a graph.
SELECT runyard.graph_put_writes($1, $2, $3, $4, $5, $6, $7, $8, $9, $10::runyard.new_graph_write[])

-- name: graph_latest
-- Return the checkpoint of a graph with an id, or the newest checkpoint, or no row.
SELECT * FROM runyard.graph_latest($1, $2, $3, $4, $5)

-- name: graph_read
-- Return a page of checkpoints of graphs, the newest first.
SELECT * FROM runyard.graph_read($1, $2, $3, $4, $5, $6, $7::jsonb, $8, $9, $10, $11)

-- name: graph_items
-- Return the chunks of a list, in order.
SELECT * FROM runyard.graph_items($1)

-- name: graph_copy
-- Copy the checkpoints of a saver's thread to a new thread.
SELECT runyard.graph_copy($1, $2, $3)

-- name: graph_delete
-- Delete the checkpoints of a saver's thread.
SELECT runyard.graph_delete($1, $2)

-- name: graph_prune
-- Keep only the newest checkpoints of a saver's thread.
SELECT runyard.graph_prune($1, $2)

-- name: graph_delete_runs
-- Delete the checkpoints that runs made. Return the threads that showed them.
SELECT runyard.graph_delete_runs_v2($1, $2) AS graph_ids

-- name: graph_state
-- Return the state of a graph from which a probe of a thread begins.
SELECT message_id::text AS message_id, base_id::text AS base_id, namespace, checkpoint_id, parent_id, kind, content, details, "values", writes
FROM runyard.graph_state($1, $2, $3::uuid[], $4)

-- name: graph_begin
-- Begin or continue the graph of an attempt's run. Return its line.
SELECT graph_id, began, message_id::text AS message_id, base_id::text AS base_id FROM runyard.graph_begin($1, $2, $3, $4::uuid[], $5::uuid)

-- name: graph_unseen
-- List the messages before a message that the state of the message's run does not contain.
SELECT message_id::text AS message_id FROM runyard.graph_unseen($1, $2, $3, $4::uuid)

-- name: graph_mark
-- Mark a message with the present state of a run's graph.
SELECT runyard.graph_mark($1, $2, $3, $4, $5::uuid)
