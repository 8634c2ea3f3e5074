-- The reads of an import from a Postgres database of cubepi or cubeloop. A statement whose name ends in _v3 is for schema 3. This
-- schema has no runs.

-- name: columns
-- Return the columns of the tables that the search path finds.
SELECT c.relname AS "table", a.attname AS "column" FROM pg_catalog.pg_class c JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid
WHERE c.relname LIKE 'cubepi\_%' AND c.relkind IN ('r', 'p') AND pg_catalog.pg_table_is_visible(c.oid) AND a.attnum > 0
  AND NOT a.attisdropped

-- name: version
-- Return the version of the schema.
SELECT version FROM cubepi_schema_version LIMIT 1

-- name: threads
-- Return ids of threads in order, after a given id.
SELECT thread_id FROM cubepi_threads WHERE thread_id COLLATE "C" > $1 ORDER BY thread_id COLLATE "C" LIMIT $2

-- name: thread
-- Return the extra, the parent, the pending request and its run id of a thread.
SELECT extra::text AS extra, parent_thread_id, pending_request::text AS request, run_id FROM cubepi_threads WHERE thread_id = $1

-- name: runs
-- Return the runs of a thread.
SELECT run_id, completion_seq, claimed_at::text AS claimed_at, completed_at::text AS completed_at FROM cubepi_runs WHERE thread_id = $1
ORDER BY claimed_at, run_id

-- name: answers
-- Return the answers of a thread.
SELECT run_id, question_id, answer::text AS answer FROM cubepi_hitl_answers WHERE thread_id = $1 ORDER BY answered_at, question_id

-- name: bounds
-- Return the number of messages of each run of a thread, and the rows of its first and last message.
SELECT run_id, count(*) AS messages, min(seq) AS first_row, max(seq) AS last_row FROM cubepi_messages WHERE thread_id = $1
GROUP BY run_id

-- name: bounds_v3
-- Return the number of messages of a thread, and the rows of its first and last message.
SELECT NULL AS run_id, count(*) AS messages, min(seq) AS first_row, max(seq) AS last_row FROM cubepi_messages WHERE thread_id = $1
HAVING count(*) > 0

-- name: messages
-- Return messages of a thread in order.
SELECT seq AS row, run_id, role, metadata::text AS metadata, payload FROM cubepi_messages
WHERE thread_id = $1 AND seq > $2 AND seq <= $3 ORDER BY seq LIMIT $4

-- name: messages_v3
-- Return messages of a thread in order.
SELECT seq AS row, NULL AS run_id, role, metadata::text AS metadata, payload FROM cubepi_messages
WHERE thread_id = $1 AND seq > $2 AND seq <= $3 ORDER BY seq LIMIT $4
