-- The reads of an import from a SQLite database of cubepi or cubeloop. A statement whose name ends in _v3 is for databases that
-- were made before runs had ids.

-- name: columns
-- Return the columns of the tables.
SELECT m.name AS "table", c.name AS "column" FROM sqlite_master m JOIN pragma_table_info(m.name) c WHERE m.type = 'table'

-- name: threads
-- Return ids of threads in order, after a given id.
SELECT DISTINCT thread_id FROM (SELECT thread_id FROM messages UNION SELECT thread_id FROM thread_extra UNION SELECT thread_id FROM runs
UNION SELECT thread_id FROM thread_pending_request) WHERE thread_id > CAST(?1 AS TEXT) ORDER BY thread_id LIMIT ?2

-- name: threads_v3
-- Return ids of threads in order, after a given id.
SELECT DISTINCT thread_id FROM (SELECT thread_id FROM messages UNION SELECT thread_id FROM thread_extra
UNION SELECT thread_id FROM thread_pending_request) WHERE thread_id > CAST(?1 AS TEXT) ORDER BY thread_id LIMIT ?2

-- name: thread
-- Return the extra and the parent of a thread.
SELECT extra_json AS extra, parent_thread_id FROM thread_extra WHERE thread_id = CAST(?1 AS TEXT)

-- name: thread_v3
-- Return the extra of a thread.
SELECT extra_json AS extra, NULL AS parent_thread_id FROM thread_extra WHERE thread_id = CAST(?1 AS TEXT)

-- name: pending
-- Return the pending request of a thread and its run id.
SELECT request_json AS request, run_id FROM thread_pending_request WHERE thread_id = CAST(?1 AS TEXT)

-- name: pending_v2
-- Return the pending request of a thread.
SELECT request_json AS request, NULL AS run_id FROM thread_pending_request WHERE thread_id = CAST(?1 AS TEXT)

-- name: runs
-- Return the runs of a thread.
SELECT run_id, completion_seq, CAST(claimed_at AS TEXT) AS claimed_at, CAST(completed_at AS TEXT) AS completed_at FROM runs
WHERE thread_id = CAST(?1 AS TEXT) ORDER BY claimed_at, rowid

-- name: answers
-- Return the answers of a thread.
SELECT run_id, question_id, answer_json AS answer FROM thread_hitl_answers WHERE thread_id = CAST(?1 AS TEXT) ORDER BY answered_at, question_id

-- name: bounds
-- Return the number of messages of each run of a thread, and the rows of its first and last message.
SELECT run_id, count(*) AS messages, min(id) AS first_row, max(id) AS last_row FROM messages WHERE thread_id = CAST(?1 AS TEXT) GROUP BY run_id

-- name: bounds_v3
-- Return the number of messages of a thread, and the rows of its first and last message.
SELECT NULL AS run_id, count(*) AS messages, min(id) AS first_row, max(id) AS last_row FROM messages WHERE thread_id = CAST(?1 AS TEXT)
HAVING count(*) > 0

-- name: messages
-- Return messages of a thread in order.
SELECT id AS row, run_id, message_json AS payload FROM messages WHERE thread_id = CAST(?1 AS TEXT) AND id > ?2 AND id <= ?3 ORDER BY id LIMIT ?4

-- name: messages_v3
-- Return messages of a thread in order.
SELECT id AS row, NULL AS run_id, message_json AS payload FROM messages WHERE thread_id = CAST(?1 AS TEXT) AND id > ?2 AND id <= ?3
ORDER BY id LIMIT ?4
