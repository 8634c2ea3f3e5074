--[[
Offer runs of one shard to the workers. Repeating a call changes nothing; an earlier due time or turn that is already there stays.

KEYS[1]  the shard's prefix, "runyard:{n}:"; its hash tag puts every key that is built from it into the same slot
ARGV     per job: id, payload, queue, priority, delay in ms, tenant
Returns  nothing
]]
-- include turns.lua
local TOKENS = 100    -- per queue; a claim that leaves due jobs behind adds the next one, so few are enough
local HORIZON = 2000  -- ms; workers look by themselves that often, so only a job that is due sooner needs a token

local prefix = KEYS[1]
local time = redis.call('TIME')
local now = time[1] * 1000 + time[2] / 1000
local wanted = {}

for i = 1, #ARGV, 6 do
  local id, queue, delay = ARGV[i], ARGV[i + 2], tonumber(ARGV[i + 4])
  redis.call('SET', prefix .. 'job:' .. id, ARGV[i + 1])
  local name = queue .. ':' .. ARGV[i + 3]
  local zset = prefix .. 'queue:' .. name
  if delay > 0 then
    redis.call('ZADD', zset, 'LT', now + delay, id)
  elseif tonumber(redis.call('ZSCORE', zset, id) or TIMES) >= TIMES then
    redis.call('ZADD', zset, turn(zset, prefix .. 'turns:' .. name, ARGV[i + 5]), id)
  end
  if delay <= HORIZON then
    wanted[queue] = (wanted[queue] or 0) + 1
  end
end

for queue, count in pairs(wanted) do
  local wake = prefix .. 'wake:' .. queue
  for _ = redis.call('LLEN', wake) + 1, math.min(TOKENS, redis.call('LLEN', wake) + count) do
    redis.call('RPUSH', wake, '1')
  end
end
