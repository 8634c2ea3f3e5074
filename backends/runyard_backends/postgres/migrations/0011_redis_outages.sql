-- The workers that do not reach Redis, as they report it. redis_error: the reason.
ALTER TABLE runyard.workers ADD COLUMN redis_lost_at timestamptz, ADD COLUMN redis_error text;
