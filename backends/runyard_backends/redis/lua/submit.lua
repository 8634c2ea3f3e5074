--[[
Offer jobs of one shard to the workers. A repeated call has no effect. A job that is offered already keeps its earlier due time
or its position among the due jobs.

KEYS[1]  the shard's prefix, "runyard:{n}:"; its hash tag puts every key that is built from it into the same slot
ARGV     per job: id, payload, queue, priority, delay in ms (-1: the run ended; withdraw the offer), tenant
Returns  nothing
]]
-- include turns.lua
local TOKENS = 100    -- maximal number per queue; few are enough, because a claim that leaves due jobs adds a token
local HORIZON = 2000  -- ms between two looks of a waiting worker; a job that is due later needs no token

local prefix = KEYS[1]
local time = redis.call('TIME')
local now = time[1] * 1000 + time[2] / 1000
local wanted = {}

-- Remove a job from its queue, and tokens that have no job left.
local function withdraw(queue, id, tenant)
  local due, turns, later = due_jobs(prefix, queue, tenant), prefix .. 'turns:' .. queue, prefix .. 'later:' .. queue
  redis.call('DEL', prefix .. 'job:' .. id)
  redis.call('ZREM', later, id)
  redis.call('ZREM', due, id)
  if redis.call('EXISTS', due) == 0 then
    redis.call('ZREM', turns, tenant)
  end
  if redis.call('EXISTS', turns, later) == 0 then
    redis.call('DEL', prefix .. 'wake:' .. queue)
  end
end

for i = 1, #ARGV, 6 do
  local id, queue, priority, delay, tenant = ARGV[i], ARGV[i + 2], ARGV[i + 3], tonumber(ARGV[i + 4]), ARGV[i + 5]
  if delay >= 0 then
    redis.call('SET', prefix .. 'job:' .. id, ARGV[i + 1], 'PX', string.format('%.0f', delay + KEPT))
  end
  if delay < 0 then
    withdraw(queue, id, tenant)
  elseif delay == 0 then
    enter(prefix, queue, id, tenant, priority)
  elseif not redis.call('ZSCORE', due_jobs(prefix, queue, tenant), id) then
    redis.call('ZADD', prefix .. 'later:' .. queue, 'LT', now + delay, id)
    keep(prefix .. 'later:' .. queue, delay + KEPT)
  end
  if delay >= 0 and delay <= HORIZON then
    wanted[queue] = (wanted[queue] or 0) + 1
  end
end

for queue, count in pairs(wanted) do
  local wake = prefix .. 'wake:' .. queue
  for _ = redis.call('LLEN', wake) + 1, math.min(TOKENS, redis.call('LLEN', wake) + count) do
    redis.call('RPUSH', wake, '1')
  end
  keep(wake, KEPT)
end
