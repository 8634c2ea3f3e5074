-- The default agent of each namespace. A run on a new thread gets this agent if its request names no agent. namespace: '' for apps without
-- a namespace. functions/agents.sql chooses the agent from the live workers.
CREATE TABLE runyard.default_agents (
    namespace text PRIMARY KEY,
    agent     text NOT NULL
);
-- The default agent of the worker's app. NULL for an app without agents, and for a worker of an older release.
ALTER TABLE runyard.workers ADD COLUMN default_agent text;

CREATE FUNCTION runyard.choose_default_agent() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE TRIGGER live_workers_changed AFTER INSERT OR DELETE OR UPDATE OF dead_at ON runyard.workers
    FOR EACH ROW EXECUTE FUNCTION runyard.choose_default_agent();
