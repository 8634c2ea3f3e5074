-- Signals to threads. A signal is one row, whether it comes before or after a run waits for it.
-- run_id, wait_id: the wait that took the signal (runyard.waits). They are NULL while no run has taken it.
-- sent_by: the sender, as the API authenticated them.
CREATE TABLE runyard.signals (
    thread_key bigint NOT NULL,
    signal_id  text NOT NULL,
    signal_no  bigint GENERATED ALWAYS AS IDENTITY,
    name       text NOT NULL,
    value      bytea NOT NULL,
    sent_by    text,
    sent_at    runyard.moment NOT NULL DEFAULT now(),
    run_id     text,
    wait_id    text,
    PRIMARY KEY (thread_key, signal_id)
) WITH (fillfactor = 90, autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05);
-- Signals that no run has taken.
CREATE INDEX signals_open ON runyard.signals (thread_key, name, signal_no) WHERE wait_id IS NULL;
-- The signal that a wait took.
ALTER TABLE runyard.waits ADD COLUMN signal_id text;
-- Waits for a signal that was not sent yet.
CREATE INDEX waits_for_signals ON runyard.waits (thread_key, name, wait_no) WHERE kind = 'signal' AND ended_at IS NULL;
