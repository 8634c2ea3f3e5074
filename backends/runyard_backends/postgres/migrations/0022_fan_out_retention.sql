-- The bounds of fan-outs: the open batches of a tenant, and the retention of fan-outs that did not complete.

-- tenant: of the batch; NULL for a batch that an earlier schema stored.
ALTER TABLE runyard.candidate_batches ADD COLUMN tenant text;
CREATE INDEX candidate_batches_of_tenant ON runyard.candidate_batches (tenant) WHERE accept_no IS NULL;

-- fork_results also has the fan-outs that failed or were cancelled, because their answers and messages expire, too. Add those that ended
-- before, and those whose messages the earlier release kept.
INSERT INTO runyard.fork_results (accept_no, finished_at)
SELECT r.accept_no, r.finished_at FROM runyard.runs r WHERE r.kind = 'fork_many' AND r.finished_at IS NOT NULL AND NOT r.deleted
ON CONFLICT DO NOTHING;
