--[[
Order the due jobs of a queue fairly between tenants. Included by the scripts that make jobs due.

The tenants that have due jobs in a queue form a ring, turns:<queue>, ordered by the number of their next turn. A tenant that
was served moves to the end of the ring, and a tenant that joins the ring joins at its end. So a tenant waits for at most one
job of each other tenant, however many jobs those have, of whatever priority and however early they were submitted. Within a
tenant, high priority comes first, then the earlier due job.

KEYS[1]  of the including script; not read here
ARGV     of the including script; not read here
Returns  nothing, but defines `due_jobs`, `enter`, `last_turn` and `owner_of`
]]
local CLASS = 2 ^ 50 -- number of positions of one priority among a tenant's jobs
local CLASSES = {high = 0, normal = CLASS, low = 2 * CLASS}

-- Return the key of a tenant's due jobs. Queue and tenant are free text, so the length of the queue's name is part of the key.
local function due_jobs(prefix, queue, tenant)
  return prefix .. 'due:' .. #queue .. ':' .. queue .. ':' .. tenant
end

local function last_turn(turns)
  return tonumber(redis.call('ZREVRANGE', turns, 0, 0, 'WITHSCORES')[2] or 0)
end

-- Make a job due: put it behind the due jobs of its tenant and priority, and put its tenant into the turns. A job that is due
-- already keeps its place.
local function enter(prefix, queue, id, tenant, priority)
  local due, turns = due_jobs(prefix, queue, tenant), prefix .. 'turns:' .. queue
  local class = CLASSES[priority] or CLASSES.normal
  local last = redis.call('ZREVRANGEBYSCORE', due, class + CLASS - 1, class, 'WITHSCORES', 'LIMIT', 0, 1)[2]
  redis.call('ZADD', due, 'NX', last and tonumber(last) + 1 or class, id)
  redis.call('ZREM', prefix .. 'later:' .. queue, id)
  if not redis.call('ZSCORE', turns, tenant) then
    redis.call('ZADD', turns, last_turn(turns) + 1, tenant)
  end
end

-- Return the tenant and the priority of a stored job. Jobs that cannot be decoded, such as those of another version, count for
-- the empty tenant.
local function owner_of(payload)
  local read, job = pcall(cmsgpack.unpack, payload or '')
  local named = read and type(job) == 'table' and type(job.k) == 'table' and job.k or {}
  return type(named.tenant) == 'string' and named.tenant or '', named.priority
end
