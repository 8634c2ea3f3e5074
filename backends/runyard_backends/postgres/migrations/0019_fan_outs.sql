-- The messages of large fan-outs, and the outcomes of candidates.

-- The messages of a fan-out that one statement should not store. Each page is stored in a transaction of its own, before the job is
-- accepted. The messages of a small fan-out are in runs.candidates.
-- batch: an id that is derived from the request. accept_no: of the job that took the batch; NULL before its accept.
-- stored_at: the time of the last page.
CREATE TABLE runyard.candidate_batches (
    batch     uuid PRIMARY KEY,
    accept_no bigint,
    stored_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX candidate_batches_of_run ON runyard.candidate_batches (accept_no) WHERE accept_no IS NOT NULL;
CREATE INDEX candidate_batches_left ON runyard.candidate_batches (stored_at) WHERE accept_no IS NULL;

CREATE TABLE runyard.candidates (
    batch   uuid NOT NULL,
    number  integer NOT NULL,
    message bytea NOT NULL,
    PRIMARY KEY (batch, number)
);

-- outcome: the status with which a candidate of a fan-out ended; NULL for other steps. usage: of this candidate.
ALTER TABLE runyard.steps ADD COLUMN outcome text, ADD COLUMN usage jsonb;
