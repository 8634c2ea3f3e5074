-- Indexes of pending requests and open waits. While an index has few rows, a scan of the whole index looks cheapest. If a statement about one
-- thread keeps this plan, it reads the pending rows of all threads as soon as there are many. Indexes of all threads therefore have a
-- condition with infinity that is true for all rows. Only a statement with the same condition can use such an index.
DROP INDEX runyard.hitl_deadlines;
CREATE INDEX hitl_deadlines ON runyard.hitl_requests (deadline_at)
    WHERE answered_at IS NULL AND closed_at IS NULL AND deadline_at > '-infinity';
DROP INDEX runyard.hitl_pending;
CREATE INDEX hitl_pending ON runyard.hitl_requests (tenant, created_at, request_id)
    WHERE answered_at IS NULL AND closed_at IS NULL AND created_at < 'infinity';
ALTER INDEX runyard.hitl_list_pending_of_thread RENAME TO hitl_pending_of_thread; -- verbs read it, too
DROP INDEX runyard.waits_due;
CREATE INDEX waits_due ON runyard.waits (due_at) WHERE ended_at IS NULL AND due_at > '-infinity';

-- The open waits of a thread. For a signal, the oldest wait for its name is read.
DROP INDEX runyard.waits_for_signals;
CREATE INDEX waits_open ON runyard.waits (thread_key, name, wait_no) WHERE ended_at IS NULL;

-- The requests of deleted threads are left out by a condition that no index has. With deleted_at IS NULL, a plan on new tables reads all
-- entries of the index of thread ids.
CREATE OR REPLACE VIEW runyard.requests AS
SELECT h.tenant, h.request_id, h.thread_key, h.run_id, h.kind, h.body, h.deadline_at, h.otherwise, h.answer, h.response_id, h.answered_by,
       h.on_behalf_of, h.answered_at, h.closed_at, h.event_id, h.created_at, t.thread_id, r.agent
FROM runyard.hitl_requests h JOIN runyard.threads t USING (tenant, thread_key)
LEFT JOIN runyard.runs r ON r.thread_key = h.thread_key AND r.run_id = h.run_id
WHERE coalesce(t.deleted_at, 'infinity') = 'infinity';
