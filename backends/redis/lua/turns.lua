--[[
Included by the scripts that make jobs due: a queue's order among what is due, fair between tenants.

The tenants that have due jobs in a queue stand in a ring, turns:<queue>, by the number of their next turn. Whoever was served goes to the end of it,
and so does who joins it: a tenant waits for at most one job of each other one, however many these have, of whatever priority and
however early they came. Within a tenant, high priority comes first, then who became due first.

KEYS[1]  that of the including script; not read here
ARGV     those of the including script; not read here
Returns  nothing, but defines `due_jobs`, `enter`, `last_turn` and `owner_of`
]]
local CLASS = 2 ^ 50 -- places of a priority among a tenant's jobs
local CLASSES = {high = 0, normal = CLASS, low = 2 * CLASS}

-- The key of a tenant's due jobs. Both names are free text; the length says where the first one ends.
local function due_jobs(prefix, queue, tenant)
  return prefix .. 'due:' .. #queue .. ':' .. queue .. ':' .. tenant
end

local function last_turn(turns)
  return tonumber(redis.call('ZREVRANGE', turns, 0, 0, 'WITHSCORES')[2] or 0)
end

-- A job is due: it stands behind those of its tenant and priority, and its tenant takes part in the turns. Once there, it stays where it is.
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

-- The tenant and the priority of a job that lies in Redis. What another version wrote counts as one tenant's.
local function owner_of(payload)
  local read, job = pcall(cmsgpack.unpack, payload or '')
  local named = read and type(job) == 'table' and type(job.k) == 'table' and job.k or {}
  return type(named.tenant) == 'string' and named.tenant or '', named.priority
end
