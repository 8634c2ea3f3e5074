-- The fence of the first attempt that had the signal of the wait. The end of the run gives a signal that no attempt had back to the thread.
ALTER TABLE runyard.waits ADD COLUMN received_by bigint;

-- Attempts of an earlier schema have received the signals of the waits that ended before these attempts ended. Only the waits of runs that
-- can still end are changed, because the transaction locks the table. Failed and dead runs can be redriven.
UPDATE runyard.waits w SET received_by = r.fence
FROM (SELECT l.accept_no FROM runyard.live_runs l
      UNION ALL SELECT u.accept_no FROM runyard.unsuccessful_runs u WHERE u.status IN ('failed', 'dead')) k
JOIN runyard.runs r USING (accept_no)
WHERE w.thread_key = r.thread_key AND w.run_id = r.run_id AND w.signal_id IS NOT NULL
  AND (r.status <> 'queued' OR w.ended_at <= (SELECT max(a.ended_at) FROM runyard.attempts a WHERE a.accept_no = r.accept_no));
