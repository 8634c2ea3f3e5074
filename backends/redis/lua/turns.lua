--[[
Included by the scripts that make jobs due: a queue's order among what is due, fair between tenants.

A job's score in its queue is the time at which it is due or, once it is due, its turn: the first free place of its tenant, not before the
first place that waits. So the n-th job of a tenant stands beside the n-th jobs of the others, however many one of them has and however
early they came (start-time fair queueing; Goyal, Vin, Cheng 1996). Turns are far below any time, and begin anew when nothing waits.

KEYS[1]  that of the including script; not read here
ARGV     those of the including script; not read here
Returns  nothing, but defines `turn` and `tenant_of`
]]
local TIMES = 1e12 -- ms; scores from here on are times

local function turn(zset, turns, tenant)
  local first = redis.call('ZRANGE', zset, 0, 0, 'WITHSCORES')[2]
  local front = first and tonumber(first)
  if not front or front >= TIMES then
    redis.call('DEL', turns)
    front = 1
  end
  local last = redis.call('HGET', turns, tenant)
  local place = last and math.max(front, tonumber(last) + 1) or front
  redis.call('HSET', turns, tenant, string.format('%.0f', place))
  return place
end

-- The tenant of a job that lies in Redis. What another version wrote counts as one tenant's.
local function tenant_of(payload)
  local read, job = pcall(cmsgpack.unpack, payload or '')
  local named = read and type(job) == 'table' and type(job.k) == 'table' and job.k.tenant
  return type(named) == 'string' and named or ''
end
