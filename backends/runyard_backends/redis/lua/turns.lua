--[[
Order the due jobs of a queue fairly between tenants. Included by the scripts that make jobs due, and by claim.lua, which serves
the turns.

The tenants that have due jobs in a queue form a ring, turns:<queue>, ordered by the number of their next turn. A tenant that was
served moves to the end of the ring. A tenant that joins the ring joins at its end. A tenant therefore waits for at most one job
of each other tenant. The number, priority and age of the other tenants' jobs do not matter. Within a tenant, high priority comes
first, and among jobs of one priority the job that became due first.

KEYS[1]  not used (the including script defines it)
ARGV     not used (the including script defines it)
Returns  nothing, but defines `keep`, `KEPT`, `due_jobs`, `enter`, `take_turns` and `owner_of`
]]
local KEPT = 86400000 -- most ms for which a job and its queue are kept after the last look of the leader at the job; at least half
local CLASS = 2 ^ 50 -- number of positions of one priority among a tenant's jobs
local CLASSES = {high = 0, normal = CLASS, low = 2 * CLASS}

-- Keep a key for `ms`, which is at least KEPT, or for up to KEPT / 2 less: few looks at a key write. The job of a run that has ended expires if no call has withdrawn it, and so do the keys of a queue
-- without jobs. The leader looks at the jobs of waiting runs again and again (unknown.lua).
local function keep(key, ms)
  if redis.call('PTTL', key) < ms - KEPT / 2 then
    redis.call('PEXPIRE', key, ms)
  end
end

-- Return the key of a tenant's due jobs. Queue and tenant are free text. The length of the queue's name in the key keeps two
-- pairs of queue and tenant from having one key.
local function due_jobs(prefix, queue, tenant)
  return prefix .. 'due:' .. #queue .. ':' .. queue .. ':' .. tenant
end

-- Return the number of the last turn in the ring, 0 if it is empty.
local function last_turn(turns)
  return tonumber(redis.call('ZREVRANGE', turns, 0, 0, 'WITHSCORES')[2] or 0)
end

-- Put a job behind the due jobs of its tenant and priority, and its tenant into the ring. A job that is due already keeps its
-- position.
local function enter(prefix, queue, id, tenant, priority)
  local due, turns = due_jobs(prefix, queue, tenant), prefix .. 'turns:' .. queue
  local class = CLASSES[priority] or CLASSES.normal
  local last = redis.call('ZREVRANGEBYSCORE', due, class + CLASS - 1, class, 'WITHSCORES', 'LIMIT', 0, 1)[2]
  redis.call('ZADD', due, 'NX', last and tonumber(last) + 1 or class, id)
  redis.call('ZREM', prefix .. 'later:' .. queue, id)
  if not redis.call('ZSCORE', turns, tenant) then
    redis.call('ZADD', turns, last_turn(turns) + 1, tenant)
  end
  keep(due, KEPT)
  keep(turns, KEPT)
end

-- Return the tenant and the priority of a stored job. A job that cannot be decoded, such as one of another version, belongs to
-- the empty tenant.
local function owner_of(payload)
  local read, job = pcall(cmsgpack.unpack, payload or '')
  local named = read and type(job) == 'table' and type(job.k) == 'table' and job.k or {}
  return type(named.tenant) == 'string' and named.tenant or '', named.priority
end

-- Let the tenants of a queue take turns while has_room() is true. serve(queue, tenant, alone) serves a tenant, and returns true
-- if the tenant has no more due jobs. alone: true if no other tenant has due jobs in the queue.
local function take_turns(prefix, queue, has_room, serve)
  local turns = prefix .. 'turns:' .. queue
  local last = nil
  while has_room() do
    local first = redis.call('ZRANGE', turns, 0, 1)
    if #first == 0 then
      return
    end
    local alone = first[2] == nil
    if serve(queue, first[1], alone) then
      redis.call('ZREM', turns, first[1])
    elseif not alone then
      last = (last or last_turn(turns)) + 1
      redis.call('ZADD', turns, last, first[1])
    end
  end
end
