-- Every statement that the SQL stores send, by name. A line `-- name:` begins a statement. The next line describes the statement and
-- its result. `?` is a value. SQLite gets the statements without FOR UPDATE, because a SQLite file has one writer at a time.

-- name: schema_state
-- Return the version of the schema, and the lowest code version that runs on it.
SELECT COALESCE(MAX(version), 0) AS version, COALESCE(MAX(oldest_code), 0) AS oldest_code FROM runyard_schema

-- name: schema_applied
-- Record an applied migration.
INSERT INTO runyard_schema (version, name, oldest_code) VALUES (?, ?, ?)

-- name: thread
-- Return a thread.
SELECT t.* FROM runyard_threads t WHERE t.tenant = ? AND t.thread_id = ? AND t.is_live = 1

-- name: thread_by_key
-- Return a thread by its key, even if it is deleted.
SELECT t.* FROM runyard_threads t WHERE t.thread_key = ?

-- name: lock_thread
-- Lock a thread, and return it without its large values.
SELECT t.thread_key, t.tenant, t.thread_id, t.parent_thread_id, t.fork_hash, t.root_branch, t.head_branch, t.next_seq,
       t.next_completion_seq, t.agent, t.extra_changed, t.updated_at
FROM runyard_threads t WHERE t.tenant = ? AND t.thread_id = ? AND t.is_live = 1 FOR UPDATE

-- name: lock_free_thread
-- Lock a thread, and return it as lock_thread does. Return no row if another transaction has locked it.
SELECT t.thread_key, t.tenant, t.thread_id, t.parent_thread_id, t.fork_hash, t.root_branch, t.head_branch, t.next_seq,
       t.next_completion_seq, t.agent, t.extra_changed, t.updated_at
FROM runyard_threads t WHERE t.tenant = ? AND t.thread_id = ? AND t.is_live = 1 FOR UPDATE SKIP LOCKED

-- name: find_thread
-- Return a thread without its large values.
SELECT t.thread_key, t.tenant, t.thread_id, t.parent_thread_id, t.fork_hash, t.root_branch, t.head_branch, t.next_seq,
       t.next_completion_seq, t.agent, t.extra_changed, t.updated_at
FROM runyard_threads t WHERE t.tenant = ? AND t.thread_id = ? AND t.is_live = 1

-- name: lock_key
-- Lock a thread that is possibly deleted.
SELECT t.thread_key, t.is_live FROM runyard_threads t WHERE t.thread_key = ? FOR UPDATE

-- name: thread_values
-- Return the values of a thread that `lock_thread` does not return.
SELECT t.thread_id, t.parent_thread_id, t.base_extra, t.extra, t.config, t.title, t.tags FROM runyard_threads t WHERE t.thread_key = ?

-- name: add_thread
-- Make a thread. `set_branches` sets its branches.
INSERT INTO runyard_threads (tenant, thread_id, is_live, parent_thread_id, forked_after_run_id, forked_at_seq, fork_hash,
    next_seq, next_completion_seq, agent, title, tags, base_extra, extra, config, created_at, updated_at)
VALUES (?, ?, 1, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: set_branches
-- Set the first branch and the head of a thread.
UPDATE runyard_threads SET root_branch = ?, head_branch = ? WHERE thread_key = ?

-- name: set_head
-- Set the head of a thread.
UPDATE runyard_threads SET head_branch = ? WHERE thread_key = ?

-- name: save_numbers
-- Save the counters of a thread.
UPDATE runyard_threads SET next_seq = ?, next_completion_seq = ?, updated_at = ? WHERE thread_key = ?

-- name: save_extra
-- Save the extra of a thread.
UPDATE runyard_threads SET extra = ?, extra_changed = ?, updated_at = ? WHERE thread_key = ?

-- name: save_extras
-- Save the extra of a thread and the extra with which it began.
UPDATE runyard_threads SET base_extra = ?, extra = ? WHERE thread_key = ?

-- name: save_values
-- Save the agent, the title, the tags, the extra and the config of a thread.
UPDATE runyard_threads SET agent = ?, title = ?, tags = ?, extra = ?, extra_changed = ?, config = ?, updated_at = ? WHERE thread_key = ?

-- name: add_tag
-- Add a tag to the index of tags.
INSERT INTO runyard_thread_tags (tenant, term, thread_key) VALUES (?, ?, ?)

-- name: clear_tags
-- Remove the tags of a thread from the index of tags.
DELETE FROM runyard_thread_tags WHERE thread_key = ?

-- name: threads
-- Return threads after a key, the oldest first.
SELECT t.* FROM runyard_threads t WHERE t.tenant = ? AND t.is_live = 1 AND t.thread_key > ? ORDER BY t.thread_key LIMIT ?

-- name: threads_of_agent
-- Return the threads of an agent after a key, the oldest first.
SELECT t.* FROM runyard_threads t WHERE t.tenant = ? AND t.is_live = 1 AND t.agent = ? AND t.thread_key > ?
ORDER BY t.thread_key LIMIT ?

-- name: threads_of_parent
-- Return the forks of a thread after a key, the oldest first.
SELECT t.* FROM runyard_threads t WHERE t.tenant = ? AND t.is_live = 1 AND t.parent_thread_id = ? AND t.thread_key > ?
ORDER BY t.thread_key LIMIT ?

-- name: threads_of_tag
-- Return the threads with a tag after a key, the oldest first.
SELECT t.* FROM runyard_thread_tags g JOIN runyard_threads t ON t.thread_key = g.thread_key
WHERE g.tenant = ? AND g.term = ? AND g.thread_key > ? AND t.is_live = 1 ORDER BY g.thread_key LIMIT ?

-- name: threads_newest_first
-- Return threads before a key, the newest first.
SELECT t.* FROM runyard_threads t WHERE t.tenant = ? AND t.is_live = 1 AND t.thread_key < ? ORDER BY t.thread_key DESC LIMIT ?

-- name: threads_of_agent_newest_first
-- Return the threads of an agent before a key, the newest first.
SELECT t.* FROM runyard_threads t WHERE t.tenant = ? AND t.is_live = 1 AND t.agent = ? AND t.thread_key < ?
ORDER BY t.thread_key DESC LIMIT ?

-- name: threads_of_parent_newest_first
-- Return the forks of a thread before a key, the newest first.
SELECT t.* FROM runyard_threads t WHERE t.tenant = ? AND t.is_live = 1 AND t.parent_thread_id = ? AND t.thread_key < ?
ORDER BY t.thread_key DESC LIMIT ?

-- name: threads_of_tag_newest_first
-- Return the threads with a tag before a key, the newest first.
SELECT t.* FROM runyard_thread_tags g JOIN runyard_threads t ON t.thread_key = g.thread_key
WHERE g.tenant = ? AND g.term = ? AND g.thread_key < ? AND t.is_live = 1 ORDER BY g.thread_key DESC LIMIT ?

-- name: add_branch
-- Make a branch.
INSERT INTO runyard_branches (thread_key, base_id, leaf_id, leaf_seq) VALUES (?, ?, ?, ?)

-- name: branch
-- Return a branch.
SELECT b.* FROM runyard_branches b WHERE b.branch_id = ?

-- name: branch_ending_at
-- Return the branches of a thread whose last visible message has this id, the oldest first.
SELECT b.* FROM runyard_branches b WHERE b.thread_key = ? AND b.leaf_id = ? ORDER BY b.branch_id

-- name: empty_branches
-- Return the branches of a thread without a visible message, the oldest first.
SELECT b.* FROM runyard_branches b WHERE b.thread_key = ? AND b.leaf_id IS NULL ORDER BY b.branch_id

-- name: move_leaf
-- Set the last visible message of a branch.
UPDATE runyard_branches SET leaf_id = ?, leaf_seq = ? WHERE branch_id = ?

-- name: save_branch
-- Set the last visible message and the high water of a branch.
UPDATE runyard_branches SET leaf_id = ?, leaf_seq = ?, high_water_seq = ? WHERE branch_id = ?

-- name: add_level
-- Add a level to a branch.
INSERT INTO runyard_levels (branch_id, ancestor_id, high_water_seq, cutoff, open_run_id) VALUES (?, ?, ?, ?, ?)

-- name: levels
-- Return the levels that a branch inherits, the oldest first, each with the thread of the ancestor.
SELECT l.ancestor_id, b.thread_key, l.high_water_seq, l.cutoff, l.open_run_id
FROM runyard_levels l JOIN runyard_branches b ON b.branch_id = l.ancestor_id WHERE l.branch_id = ? ORDER BY l.high_water_seq

-- name: visible
-- Return the visible messages of a level, each with the status of its run.
SELECT m.seq, m.message_id, m.parent_id, m.run_id, m.role, m.payload, m.note, m.calls, m.results, m.created_at, r.status
FROM runyard_messages m LEFT JOIN runyard_runs r ON r.thread_key = ? AND r.run_id = m.run_id
WHERE m.branch_id = ? AND m.seq <= ? AND (m.run_id IS NULL OR m.run_id = ? OR r.completion_seq <= ?) ORDER BY m.seq

-- name: visible_after
-- Return some visible messages of a level after a number, as `visible` does.
SELECT m.seq, m.message_id, m.parent_id, m.run_id, m.role, m.payload, m.note, m.calls, m.results, m.created_at, r.status
FROM runyard_messages m LEFT JOIN runyard_runs r ON r.thread_key = ? AND r.run_id = m.run_id
WHERE m.branch_id = ? AND m.seq <= ? AND (m.run_id IS NULL OR m.run_id = ? OR r.completion_seq <= ?) AND m.seq > ?
ORDER BY m.seq LIMIT ?

-- name: visible_before
-- Return some visible messages of a level before a number, the newest first.
SELECT m.seq, m.message_id, m.parent_id, m.run_id, m.role, m.payload, m.note, m.calls, m.results, m.created_at, r.status
FROM runyard_messages m LEFT JOIN runyard_runs r ON r.thread_key = ? AND r.run_id = m.run_id
WHERE m.branch_id = ? AND m.seq <= ? AND (m.run_id IS NULL OR m.run_id = ? OR r.completion_seq <= ?) AND m.seq < ?
ORDER BY m.seq DESC LIMIT ?

-- name: sizes_after
-- Return the bytes of each message that `visible_after` returns.
SELECT LENGTH(m.payload) FROM runyard_messages m LEFT JOIN runyard_runs r ON r.thread_key = ? AND r.run_id = m.run_id
WHERE m.branch_id = ? AND m.seq <= ? AND (m.run_id IS NULL OR m.run_id = ? OR r.completion_seq <= ?) AND m.seq > ?
ORDER BY m.seq LIMIT ?

-- name: sizes_before
-- Return the bytes of each message that `visible_before` returns.
SELECT LENGTH(m.payload) FROM runyard_messages m LEFT JOIN runyard_runs r ON r.thread_key = ? AND r.run_id = m.run_id
WHERE m.branch_id = ? AND m.seq <= ? AND (m.run_id IS NULL OR m.run_id = ? OR r.completion_seq <= ?) AND m.seq < ?
ORDER BY m.seq DESC LIMIT ?

-- name: stored_after
-- Return some of a branch's own messages after a number, even those of runs that are not completed.
SELECT m.seq, m.message_id, m.parent_id, m.run_id, m.role, m.payload, m.note, m.calls, m.results, m.created_at
FROM runyard_messages m WHERE m.branch_id = ? AND m.seq > ? ORDER BY m.seq LIMIT ?

-- name: stored_sizes
-- Return the bytes of each message that `stored_after` returns.
SELECT LENGTH(m.payload) FROM runyard_messages m WHERE m.branch_id = ? AND m.seq > ? ORDER BY m.seq LIMIT ?

-- name: last_visible
-- Return the last visible message of a level.
SELECT m.message_id, m.seq FROM runyard_messages m LEFT JOIN runyard_runs r ON r.thread_key = ? AND r.run_id = m.run_id
WHERE m.branch_id = ? AND m.seq <= ? AND (m.run_id IS NULL OR m.run_id = ? OR r.completion_seq <= ?) ORDER BY m.seq DESC LIMIT 1

-- name: count_visible
-- Return the number of visible messages of a level.
SELECT COUNT(*) AS messages FROM runyard_messages m LEFT JOIN runyard_runs r ON r.thread_key = ? AND r.run_id = m.run_id
WHERE m.branch_id = ? AND m.seq <= ? AND (m.run_id IS NULL OR m.run_id = ? OR r.completion_seq <= ?)

-- name: count_between
-- Return the number of messages of a branch between two message numbers, and the highest completion number of their runs. Messages of runs
-- that are not completed do not count.
SELECT COUNT(*) AS messages, COALESCE(MAX(r.completion_seq), 0) AS last
FROM runyard_messages m LEFT JOIN runyard_runs r ON r.thread_key = ? AND r.run_id = m.run_id
WHERE m.branch_id = ? AND m.seq > ? AND m.seq <= ? AND (m.run_id IS NULL OR r.completion_seq IS NOT NULL)

-- name: count_of_run
-- Return the number of messages of a run on a branch up to a number.
SELECT COUNT(*) AS messages FROM runyard_messages m WHERE m.branch_id = ? AND m.run_id = ? AND m.seq >= ? AND m.seq <= ?

-- name: visible_tools
-- Return the tool calls and results of a level, in order.
SELECT m.calls, m.results FROM runyard_messages m LEFT JOIN runyard_runs r ON r.thread_key = ? AND r.run_id = m.run_id
WHERE m.branch_id = ? AND m.tools = 1 AND m.seq <= ? AND (m.run_id IS NULL OR m.run_id = ? OR r.completion_seq <= ?) ORDER BY m.seq

-- name: visible_ids
-- Return the id and the tool calls and results of each visible message of a level, in order.
SELECT m.seq, m.message_id, m.calls, m.results FROM runyard_messages m LEFT JOIN runyard_runs r ON r.thread_key = ? AND r.run_id = m.run_id
WHERE m.branch_id = ? AND m.seq <= ? AND (m.run_id IS NULL OR m.run_id = ? OR r.completion_seq <= ?) ORDER BY m.seq

-- name: loaded
-- Return the messages of a branch that `load` shows. They are visible, or belong to live runs or to runs that were never claimed.
SELECT m.seq, m.message_id, m.parent_id, m.run_id, m.role, m.payload, m.note, m.calls, m.results, m.created_at, r.status
FROM runyard_messages m LEFT JOIN runyard_runs r ON r.thread_key = ? AND r.run_id = m.run_id
WHERE m.branch_id = ? AND (m.run_id IS NULL OR r.run_id IS NULL OR r.completion_seq IS NOT NULL OR r.status = 'running') ORDER BY m.seq

-- name: own_message
-- Return a message of a thread with its run.
SELECT m.branch_id, m.seq, m.message_id, m.parent_id, m.run_id, b.thread_key, r.branch_id AS run_branch, r.status, r.completion_seq,
       r.snapshot_cutoff
FROM runyard_messages m JOIN runyard_branches b ON b.branch_id = m.branch_id
LEFT JOIN runyard_runs r ON r.thread_key = b.thread_key AND r.run_id = m.run_id
WHERE m.message_id = ? AND b.thread_key = ? LIMIT 1

-- name: inherited_message
-- Return a message that a branch inherits, with its run and the level that shows it.
SELECT m.branch_id, m.seq, m.message_id, m.parent_id, m.run_id, b.thread_key, r.branch_id AS run_branch, r.status, r.completion_seq,
       r.snapshot_cutoff, l.high_water_seq, l.cutoff, l.open_run_id
FROM runyard_messages m JOIN runyard_levels l ON l.branch_id = ? AND l.ancestor_id = m.branch_id
JOIN runyard_branches b ON b.branch_id = m.branch_id
LEFT JOIN runyard_runs r ON r.thread_key = b.thread_key AND r.run_id = m.run_id
WHERE m.message_id = ? AND m.seq <= l.high_water_seq
  AND (m.run_id IS NULL OR m.run_id = l.open_run_id OR r.completion_seq <= l.cutoff) LIMIT 1

-- name: own_at_seq
-- Return the ids of the messages of a thread with this number.
SELECT m.message_id FROM runyard_branches b JOIN runyard_messages m ON m.branch_id = b.branch_id AND m.seq = ? WHERE b.thread_key = ?

-- name: inherited_at_seq
-- Return the ids of the messages with this number on the branches that a branch inherits.
SELECT m.message_id FROM runyard_levels l JOIN runyard_messages m ON m.branch_id = l.ancestor_id AND m.seq = ?
WHERE l.branch_id = ? AND m.seq <= l.high_water_seq

-- name: known_ids
-- Return the message ids that a thread has, out of fifty ids.
SELECT DISTINCT m.message_id FROM runyard_messages m WHERE m.message_id IN (
    ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?,
    ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: add_message
-- Store a message.
INSERT INTO runyard_messages (branch_id, seq, message_id, parent_id, run_id, role, payload, tools, calls, results, created_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: stored_message
-- Return one message by its place.
SELECT m.seq, m.message_id, m.parent_id, m.run_id, m.role, m.payload, m.note, m.calls, m.results, m.created_at
FROM runyard_messages m WHERE m.branch_id = ? AND m.seq = ?

-- name: unclaimed
-- Return the place of the messages of a run that was never claimed.
SELECT u.* FROM runyard_unclaimed u WHERE u.thread_key = ? AND u.run_id = ?

-- name: add_unclaimed
-- Record the place of the messages of a run that was never claimed.
INSERT INTO runyard_unclaimed (thread_key, run_id, branch_id, first_seq, last_seq, last_message_id) VALUES (?, ?, ?, ?, ?, ?)

-- name: drop_unclaimed
-- Delete the place of the messages of a run that is claimed.
DELETE FROM runyard_unclaimed WHERE thread_key = ? AND run_id = ?

-- name: run
-- Return a run of a thread.
SELECT r.* FROM runyard_runs r WHERE r.thread_key = ? AND r.run_id = ?

-- name: inherited_run
-- Return a run that a branch inherits, with the level that shows it. A completed run comes before an open run.
SELECT r.*, l.ancestor_id, l.high_water_seq AS level_high_water, l.cutoff AS level_cutoff, l.open_run_id AS level_open_run
FROM runyard_levels l JOIN runyard_branches b ON b.branch_id = l.ancestor_id
JOIN runyard_runs r ON r.thread_key = b.thread_key AND r.run_id = ? AND r.branch_id = l.ancestor_id
WHERE l.branch_id = ?
  AND (r.run_id = l.open_run_id OR (r.completion_seq <= l.cutoff AND COALESCE(r.first_seq, 0) <= l.high_water_seq))
ORDER BY CASE WHEN r.completion_seq <= l.cutoff AND COALESCE(r.first_seq, 0) <= l.high_water_seq THEN 0 ELSE 1 END,
         l.high_water_seq DESC, l.cutoff DESC LIMIT 1

-- name: last_completed
-- Return the id of the last completed run of a level.
SELECT r.run_id FROM runyard_runs r WHERE r.branch_id = ? AND r.completion_seq <= ? AND COALESCE(r.first_seq, 0) <= ?
ORDER BY r.completion_seq DESC LIMIT 1

-- name: extra_at
-- Return the extra that a thread last saved with a completed run, up to a completion number.
SELECT r.extra FROM runyard_runs r WHERE r.thread_key = ? AND r.completion_seq <= ? AND r.extra IS NOT NULL
ORDER BY r.completion_seq DESC LIMIT 1

-- name: add_run
-- Claim a run.
INSERT INTO runyard_runs (tenant, thread_key, thread_id, run_id, is_live, status, fence, branch_id, base_id, snapshot_tip,
    snapshot_cutoff, first_seq, last_seq, last_message_id, accepted_at)
VALUES (?, ?, ?, ?, 1, 'running', 1, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: grow_run
-- Record the last message of a run.
UPDATE runyard_runs SET first_seq = ?, last_seq = ?, last_message_id = ? WHERE accept_no = ?

-- name: end_run
-- End a run.
UPDATE runyard_runs SET status = ?, finished_at = ?, cancel_requested_at = ?, error = ?, event_id = ?, first_seq = ?, last_seq = ?,
    last_message_id = ?, completion_seq = ?, high_water_seq = ?, extra = ?
WHERE accept_no = ?

-- name: messages_of_run
-- Return the number and the tool calls and results of each message of a run, in order.
SELECT m.seq, m.calls, m.results FROM runyard_messages m
WHERE m.branch_id = ? AND m.run_id = ? AND m.seq >= ? AND m.seq <= ? ORDER BY m.seq

-- name: last_message
-- Return the id of the last message of a run.
SELECT m.message_id FROM runyard_runs r JOIN runyard_messages m ON m.branch_id = r.branch_id AND m.seq = r.last_seq AND m.run_id = r.run_id
WHERE r.thread_key = ? AND r.run_id = ?

-- name: runs
-- Return a tenant's runs before an accept number, the newest first.
SELECT r.* FROM runyard_runs r WHERE r.tenant = ? AND r.is_live = 1 AND r.accept_no < ? AND r.emptied_at IS NULL
ORDER BY r.accept_no DESC LIMIT ?

-- name: runs_of_thread
-- Return a thread's runs before an accept number, the newest first.
SELECT r.* FROM runyard_runs r WHERE r.thread_key = ? AND r.accept_no < ? AND r.emptied_at IS NULL ORDER BY r.accept_no DESC LIMIT ?

-- name: side_leaves
-- Return the last message of each run of a thread that is not completed, with its run.
SELECT m.message_id, m.created_at, m.seq, r.run_id, r.status, r.branch_id, r.snapshot_cutoff
FROM runyard_runs r JOIN runyard_messages m ON m.branch_id = r.branch_id AND m.seq = r.last_seq
WHERE r.thread_key = ? AND r.completion_seq IS NULL AND r.emptied_at IS NULL

-- name: branch_ends
-- Return the branches of a thread, each with its last visible message. The columns of an inherited message are NULL.
SELECT b.branch_id, b.base_id, b.leaf_id, b.leaf_seq, m.message_id, m.created_at, m.run_id, r.status
FROM runyard_branches b
LEFT JOIN runyard_messages m ON m.branch_id = b.branch_id AND m.seq = b.leaf_seq AND m.message_id = b.leaf_id
LEFT JOIN runyard_runs r ON r.thread_key = b.thread_key AND r.run_id = m.run_id
WHERE b.thread_key = ? ORDER BY b.branch_id

-- name: inherited_end
-- Return the last visible message of a branch if this message is inherited.
SELECT m.message_id, m.created_at, m.run_id, r.status
FROM runyard_levels l JOIN runyard_messages m ON m.branch_id = l.ancestor_id AND m.seq = ? AND m.message_id = ?
JOIN runyard_branches a ON a.branch_id = l.ancestor_id
LEFT JOIN runyard_runs r ON r.thread_key = a.thread_key AND r.run_id = m.run_id
WHERE l.branch_id = ? AND m.seq <= l.high_water_seq

-- name: labels
-- Return the labels of a thread.
SELECT l.label, l.branch_id FROM runyard_labels l WHERE l.thread_key = ? ORDER BY l.label

-- name: add_label
-- Set a label.
INSERT INTO runyard_labels (thread_key, label, branch_id) VALUES (?, ?, ?)

-- name: drop_label
-- Remove a label.
DELETE FROM runyard_labels WHERE thread_key = ? AND label = ?

-- name: request
-- Return a HITL request.
SELECT q.*, NULL AS agent FROM runyard_requests q WHERE q.tenant = ? AND q.request_id = ?

-- name: requests_of_thread
-- Return the HITL requests of a thread, the oldest first.
SELECT q.*, NULL AS agent FROM runyard_requests q WHERE q.thread_key = ? ORDER BY q.created_at, q.request_id

-- name: pending_of_thread
-- Return the pending HITL requests of a thread, the oldest first.
SELECT q.*, NULL AS agent FROM runyard_requests q WHERE q.thread_key = ? AND q.answered_at IS NULL AND q.closed_at IS NULL
ORDER BY q.created_at, q.request_id

-- name: requests
-- Return a tenant's HITL requests after a place, the oldest first.
SELECT q.*, NULL AS agent FROM runyard_requests q
WHERE q.tenant = ? AND q.created_at >= ? AND (q.created_at > ? OR q.request_id > ?)
  AND (? = 0 OR (q.answered_at IS NULL AND q.closed_at IS NULL))
ORDER BY q.created_at, q.request_id LIMIT ?

-- name: overdue_of_thread
-- Return the ids of a thread's pending HITL requests whose deadline has passed, the oldest first.
SELECT q.request_id, q.thread_id FROM runyard_requests q
WHERE q.thread_key = ? AND q.deadline_at <= ? AND q.answered_at IS NULL AND q.closed_at IS NULL ORDER BY q.created_at, q.request_id

-- name: overdue
-- Return the threads of a tenant's pending HITL requests whose deadline has passed, the oldest deadline first.
SELECT q.thread_id FROM runyard_requests q
WHERE q.tenant = ? AND q.answered_at IS NULL AND q.closed_at IS NULL AND q.deadline_at <= ? ORDER BY q.deadline_at LIMIT ?

-- name: request_sizes
-- Return the bytes of each request that `requests` returns.
SELECT LENGTH(q.body), LENGTH(q.answer) FROM runyard_requests q
WHERE q.tenant = ? AND q.created_at >= ? AND (q.created_at > ? OR q.request_id > ?)
  AND (? = 0 OR (q.answered_at IS NULL AND q.closed_at IS NULL))
ORDER BY q.created_at, q.request_id LIMIT ?

-- name: request_sizes_of_thread
-- Return the bytes of each request that `requests_page_of_thread` returns.
SELECT LENGTH(q.body), LENGTH(q.answer) FROM runyard_requests q
WHERE q.thread_key = ? AND q.created_at >= ? AND (q.created_at > ? OR q.request_id > ?)
  AND (? = 0 OR (q.answered_at IS NULL AND q.closed_at IS NULL))
ORDER BY q.created_at, q.request_id LIMIT ?

-- name: requests_page_of_thread
-- Return a thread's HITL requests after a place, the oldest first.
SELECT q.*, NULL AS agent FROM runyard_requests q
WHERE q.thread_key = ? AND q.created_at >= ? AND (q.created_at > ? OR q.request_id > ?)
  AND (? = 0 OR (q.answered_at IS NULL AND q.closed_at IS NULL))
ORDER BY q.created_at, q.request_id LIMIT ?

-- name: add_request
-- Store a HITL request.
INSERT INTO runyard_requests (tenant, request_id, thread_key, thread_id, run_id, kind, body, deadline_at, otherwise, created_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: drop_request
-- Delete a HITL request.
DELETE FROM runyard_requests WHERE tenant = ? AND request_id = ?

-- name: drop_requests_of_run
-- Delete the HITL requests of a run.
DELETE FROM runyard_requests WHERE thread_key = ? AND run_id = ?

-- name: answer_request
-- Record an answer.
UPDATE runyard_requests SET answer = ?, response_id = ?, answered_by = ?, on_behalf_of = ?, answered_at = ?
WHERE tenant = ? AND request_id = ?

-- name: close_request
-- Close a HITL request without an answer.
UPDATE runyard_requests SET closed_at = ? WHERE tenant = ? AND request_id = ?

-- name: close_requests_of_run
-- Close the pending HITL requests of a run.
UPDATE runyard_requests SET closed_at = ? WHERE thread_key = ? AND run_id = ? AND answered_at IS NULL AND closed_at IS NULL

-- name: empty_run
-- Delete the content of a run's row.
UPDATE runyard_runs SET emptied_at = ?, error = NULL, extra = NULL WHERE accept_no = ?

-- name: shown_of_open_run
-- Return the highest message number of an open run that a live thread shows.
SELECT COALESCE(MAX(l.high_water_seq), 0) AS shown FROM runyard_levels l JOIN runyard_branches b ON b.branch_id = l.branch_id
JOIN runyard_threads t ON t.thread_key = b.thread_key
WHERE l.ancestor_id = ? AND l.open_run_id = ? AND t.is_live = 1

-- name: drop_messages_of_run
-- Delete the messages of a run from a given number on.
DELETE FROM runyard_messages WHERE branch_id = ? AND run_id = ? AND seq >= ? AND seq <= ?

-- name: kin
-- Return the keys of the threads whose messages a thread inherits.
SELECT DISTINCT a.thread_key FROM runyard_branches b JOIN runyard_levels l ON l.branch_id = b.branch_id
JOIN runyard_branches a ON a.branch_id = l.ancestor_id WHERE b.thread_key = ? AND a.thread_key <> ? ORDER BY a.thread_key

-- name: heirs
-- Return the keys of the threads that inherit from a thread.
SELECT DISTINCT b.thread_key FROM runyard_branches own JOIN runyard_levels l ON l.ancestor_id = own.branch_id
JOIN runyard_branches b ON b.branch_id = l.branch_id WHERE own.thread_key = ? AND b.thread_key <> ? ORDER BY b.thread_key

-- name: mark_deleted
-- Mark a thread as deleted. Other statements remove its rows.
UPDATE runyard_threads SET is_live = NULL, title = NULL, tags = '{}', config = '{}', updated_at = ? WHERE thread_key = ?

-- name: hide_runs
-- Hide the runs of a deleted thread.
UPDATE runyard_runs SET is_live = NULL, error = NULL WHERE thread_key = ?

-- name: drop_labels_of_thread
-- Delete the labels of a thread.
DELETE FROM runyard_labels WHERE thread_key = ?

-- name: drop_requests_of_thread
-- Delete the HITL requests of a thread.
DELETE FROM runyard_requests WHERE thread_key = ?

-- name: drop_unclaimed_of_thread
-- Delete the places of the messages of runs that were never claimed.
DELETE FROM runyard_unclaimed WHERE thread_key = ?

-- name: branches_of_thread
-- Return the ids of a thread's branches, the newest first.
SELECT b.branch_id FROM runyard_branches b WHERE b.thread_key = ? ORDER BY b.branch_id DESC

-- name: shown_levels
-- Return the levels through which live threads show a branch, without duplicates.
SELECT DISTINCT l.high_water_seq, l.cutoff, l.open_run_id FROM runyard_levels l JOIN runyard_branches b ON b.branch_id = l.branch_id
JOIN runyard_threads t ON t.thread_key = b.thread_key WHERE l.ancestor_id = ? AND t.is_live = 1

-- name: drop_hidden_messages
-- Delete the messages of a branch that no live thread shows.
DELETE FROM runyard_messages WHERE branch_id = ? AND NOT EXISTS (
    SELECT 1 FROM runyard_levels l JOIN runyard_branches b ON b.branch_id = l.branch_id
    JOIN runyard_threads t ON t.thread_key = b.thread_key
    LEFT JOIN runyard_runs r ON r.thread_key = ? AND r.run_id = runyard_messages.run_id
    WHERE l.ancestor_id = runyard_messages.branch_id AND t.is_live = 1 AND runyard_messages.seq <= l.high_water_seq
      AND (runyard_messages.run_id IS NULL OR runyard_messages.run_id = l.open_run_id OR r.completion_seq <= l.cutoff))

-- name: drop_messages_of_branch
-- Delete the messages of a branch.
DELETE FROM runyard_messages WHERE branch_id = ?

-- name: erase_messages
-- Replace the messages of a branch by tombstones.
UPDATE runyard_messages SET payload = NULL, note = '[erased]' WHERE branch_id = ?

-- name: drop_levels
-- Delete the levels of a branch.
DELETE FROM runyard_levels WHERE branch_id = ?

-- name: drop_branch
-- Delete a branch.
DELETE FROM runyard_branches WHERE branch_id = ?

-- name: drop_runs_after
-- Delete the runs of a thread that no cut of a live thread needs: runs that are not completed, or have a higher completion number than the
-- last cut.
DELETE FROM runyard_runs WHERE thread_key = ? AND (completion_seq IS NULL OR completion_seq > ?) AND NOT EXISTS (
    SELECT 1 FROM runyard_levels l JOIN runyard_branches b ON b.branch_id = l.branch_id
    JOIN runyard_threads t ON t.thread_key = b.thread_key
    WHERE l.ancestor_id = runyard_runs.branch_id AND l.open_run_id = runyard_runs.run_id AND t.is_live = 1)

-- name: drop_runs
-- Delete the runs of a thread.
DELETE FROM runyard_runs WHERE thread_key = ?

-- name: drop_thread
-- Delete the row of a thread.
DELETE FROM runyard_threads WHERE thread_key = ?

-- name: extras_of_runs
-- Return the extras that a thread saved with completed runs.
SELECT r.accept_no, r.extra FROM runyard_runs r WHERE r.thread_key = ? AND r.extra IS NOT NULL

-- name: save_extra_of_run
-- Save the extra of a completed run.
UPDATE runyard_runs SET extra = ? WHERE accept_no = ?
