-- The agent of a run. A request can name the agent. Otherwise the run gets the agent of its thread. If the thread has none, the
-- run gets the default agent of a namespace. runyard/domain/agent_names.py describes the names.

-- Return true if a name names one agent. Any other name stands for the default agent of a namespace.
CREATE OR REPLACE FUNCTION runyard.is_agent(name text) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(right(name, 1) <> '/', false)
$$;

-- Return the namespace of a name, or ''.
CREATE OR REPLACE FUNCTION runyard.namespace_of(name text) RETURNS text
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN strpos(name, '/') > 0 THEN split_part(name, '/', 1) ELSE '' END
$$;

-- Return the agent of a run. wanted: the agent of the request. of_thread: the agent of the thread. If no worker of the namespace was ever
-- registered, its default agent is unknown. Then return the name that stands for the default agent, or NULL for programs without a
-- namespace. The first claim of the run replaces this name.
CREATE OR REPLACE FUNCTION runyard.agent_of(wanted text, of_thread text) RETURNS text
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF runyard.is_agent(wanted) THEN RETURN wanted; END IF;
    IF runyard.is_agent(of_thread) THEN RETURN of_thread; END IF;
    of_thread := coalesce(of_thread, wanted);
    RETURN coalesce((SELECT d.agent FROM runyard.default_agents d WHERE d.namespace = runyard.namespace_of(of_thread)), of_thread);
END $$;

-- Return the queue of the runs of an agent. Before a worker of the namespace was registered, return the queue that all workers of the
-- namespace serve.
CREATE OR REPLACE FUNCTION runyard.queue_of(for_agent text) RETURNS text
LANGUAGE plpgsql STABLE AS $$
DECLARE
    own text;
BEGIN
    IF for_agent IS NOT NULL THEN own := (SELECT a.queue FROM runyard.agents a WHERE a.agent = for_agent); END IF;
    RETURN coalesce(own, nullif(runyard.namespace_of(for_agent), ''), 'default');
END $$;

-- Record the agent of a locked thread's first prompt as the agent of the thread. If the thread has an agent already, change nothing.
CREATE OR REPLACE FUNCTION runyard.set_thread_agent(INOUT t runyard.threads, name text)
LANGUAGE plpgsql AS $$
BEGIN
    IF NOT runyard.is_agent(t.agent) AND t.agent IS DISTINCT FROM name AND name IS NOT NULL THEN
        UPDATE runyard.threads x SET agent = CASE WHEN runyard.is_agent(x.agent) THEN x.agent ELSE name END
        WHERE x.thread_key = t.thread_key RETURNING x.agent INTO t.agent;
    END IF;
END $$;

-- Return the agent that a thread without an agent will get from its first prompt that is not admitted. Return NULL without such a prompt.
CREATE OR REPLACE FUNCTION runyard.agent_of_unadmitted(for_tenant text, thread_id text) RETURNS text
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (
    SELECT x.agent FROM runyard.runs x
    WHERE x.tenant = for_tenant AND x.thread_id = agent_of_unadmitted.thread_id AND x.lane_seq IS NULL AND x.kind = 'prompt' AND NOT x.deleted
    ORDER BY x.accept_no + 0 LIMIT 1 -- with + 0, the plan cannot scan the primary key, which has all runs
    );
END $$;

-- Return true if a worker serves an agent. A name may stand for the default agent of a namespace. A worker that lists no agents serves all
-- agents.
CREATE OR REPLACE FUNCTION runyard.serves(w runyard.workers, for_agent text) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
    SELECT w.agents = '{}' OR CASE WHEN runyard.is_agent(for_agent) THEN w.agents ? for_agent
                                   ELSE runyard.namespace_of(w.default_agent) = runyard.namespace_of(for_agent) END
$$;

-- Return the agent of a run at its claim. name: the run's agent, or a name for a default agent. Replace such a name by the agent of the
-- thread, or else by the default agent of the claimant. If the claimant does not serve the namespace, return the name.
CREATE OR REPLACE FUNCTION runyard.agent_at_claim(name text, of_thread text, claimant runyard.workers) RETURNS text
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN runyard.is_agent(name) THEN name WHEN runyard.is_agent(of_thread) THEN of_thread
                WHEN runyard.serves(claimant, name) THEN coalesce(claimant.default_agent, name) ELSE name END
$$;

-- Return a run with the agent that a claim gives it.
CREATE OR REPLACE FUNCTION runyard.as_claimed(r runyard.runs, of_thread text, claimant runyard.workers) RETURNS runyard.runs
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF r.kind <> 'fork' THEN r.agent := runyard.agent_at_claim(r.agent, of_thread, claimant); END IF;
    RETURN r;
END $$;

-- Give a run the agent of agent_at_claim, even if the claimant does not serve this agent. The locked thread of a prompt gets the same
-- agent.
CREATE OR REPLACE FUNCTION runyard.name_agent(INOUT t runyard.threads, INOUT r runyard.runs, claimant runyard.workers)
LANGUAGE plpgsql AS $$
DECLARE
    before text := r.agent;
BEGIN
    r := runyard.as_claimed(r, t.agent, claimant);
    IF r.agent IS DISTINCT FROM before THEN
        UPDATE runyard.runs SET agent = r.agent, changed_at = now() WHERE accept_no = r.accept_no;
        IF r.kind = 'prompt' THEN t := runyard.set_thread_agent(t, r.agent); END IF;
    END IF;
END $$;

-- Choose the default agent of a worker's namespace after the worker was registered, left or died. The namespace keeps its default agent
-- while a live worker has the same default agent. If no live worker has it, take the default agent of the live worker that was registered
-- last. Without any live worker, change nothing.
CREATE OR REPLACE FUNCTION runyard.choose_default_agent() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    of_namespace text;
    name text := CASE WHEN TG_OP = 'DELETE' THEN OLD.default_agent ELSE NEW.default_agent END;
BEGIN
    IF name IS NULL OR TG_OP = 'DELETE' AND OLD.dead_at IS NOT NULL THEN RETURN NULL; END IF;
    of_namespace := runyard.namespace_of(name);
    -- The statement after the lock sees the workers of every transaction that chose a default agent earlier.
    PERFORM pg_advisory_xact_lock(hashtext('runyard.default_agents'), hashtext(of_namespace));
    INSERT INTO runyard.default_agents AS d (namespace, agent)
    SELECT of_namespace, w.default_agent FROM runyard.workers w
    WHERE w.dead_at IS NULL AND w.default_agent IS NOT NULL AND runyard.namespace_of(w.default_agent) = of_namespace
    ORDER BY w.started_at DESC, w.worker_id LIMIT 1
    ON CONFLICT (namespace) DO UPDATE SET agent = excluded.agent
    WHERE NOT EXISTS (SELECT 1 FROM runyard.workers w WHERE w.dead_at IS NULL AND w.default_agent = d.agent);
    RETURN NULL;
END $$;
