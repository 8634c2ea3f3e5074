-- The main loops that user code blocks, as the heartbeat threads of their workers report them.
-- blocked_at: file and line. blocked_stack: the stack of the main thread.
ALTER TABLE runyard.workers ADD COLUMN blocked_since timestamptz, ADD COLUMN blocked_at text, ADD COLUMN blocked_stack text;
