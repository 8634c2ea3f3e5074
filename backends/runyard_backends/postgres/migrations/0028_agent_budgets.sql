-- The budgets of the agents that a worker serves: a map from the names of agents to lists of budgets. NULL for a worker whose agents show
-- no budgets, and for a worker of an older release.
ALTER TABLE runyard.workers ADD COLUMN budgets jsonb;
