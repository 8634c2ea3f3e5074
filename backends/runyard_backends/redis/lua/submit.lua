--[[
Offer jobs of one shard to the workers. A repeated call has no effect. A job that is due already keeps its position among the
due jobs. A delayed job keeps the earlier of its old and its new due time. A delayed job waits in later:<queue> until make_due
(claim.lua) moves it to the due jobs. Workers that fulfil the requirement of a delayed job may take the job during the delay
(claim.lua). This offer only saves time. It expires, and it is not made if too many jobs are offered already. The claim and the
end of a job withdraw its offer.

KEYS[1]  the shard's prefix, "runyard:{n}:"; its hash tag puts every key that is built from it into one hash slot
ARGV     per job: id, payload, queue, priority, delay in ms (-1: the run ended; withdraw the offer), tenant,
         requirement of a delayed job or ''
Returns  nothing
]]
-- include turns.lua
local TOKENS = 100    -- maximum number per queue; few are enough, because a claim that leaves due jobs adds a token
local OFFERED = 30000 -- ms for which a delayed job is offered; longer than the delay of a job that a worker has put back
local OFFERS = 1000   -- maximum number of delayed jobs that are offered per queue, requirement and tenant
local HORIZON = 2000  -- ms between two claims of a waiting worker; a job that is due sooner needs a token

local prefix = KEYS[1]
local wanted = {}

-- Remove a job from its queue. Remove the tokens that have no job left.
local function withdraw(queue, id, tenant)
  local due, turns, later = due_jobs(prefix, queue, tenant), prefix .. 'turns:' .. queue, prefix .. 'later:' .. queue
  local requirement = redis.call('HGET', prefix .. 'offers:' .. queue, id)
  if requirement then
    drop_offer(prefix, queue, id, tenant, requirement)
  end
  redis.call('DEL', prefix .. 'job:' .. id)
  redis.call('ZREM', later, id)
  redis.call('ZREM', due, id)
  if redis.call('EXISTS', due) == 0 then
    redis.call('ZREM', turns, tenant)
  end
  if redis.call('EXISTS', turns, later) == 0 then
    redis.call('DEL', prefix .. 'wake:' .. queue)
  end
  look_again()
end

-- Make a job due in `delay` ms. A job that is due keeps its position.
local function put_off(queue, id, tenant, delay)
  if not redis.call('ZSCORE', due_jobs(prefix, queue, tenant), id) then
    local time = redis.call('TIME')
    redis.call('ZADD', prefix .. 'later:' .. queue, 'LT', time[1] * 1000 + time[2] / 1000 + delay, id)
    keep(prefix .. 'later:' .. queue, delay + KEPT)
    look_again()
  end
end

-- Add tokens to the list `wake`, which has TOKENS at most.
local function add_tokens(wake, count)
  local tokens = {}
  for n = 1, math.min(TOKENS, count) do
    tokens[n] = '1'
  end
  local length = redis.call('RPUSH', wake, unpack(tokens))
  if length == #tokens then
    redis.call('PEXPIRE', wake, KEPT)
  else
    keep(wake, KEPT)
    if length > TOKENS then
      redis.call('LTRIM', wake, 0, TOKENS - 1)
    end
  end
end

-- Return true if a sorted set has at least `count` entries.
local function reaches(key, count)
  return redis.call('ZRANGE', key, count - 1, count - 1)[1] ~= nil
end

-- Offer a delayed job to workers that fulfil its requirement, and wake one of them. A claim that leaves such jobs wakes the
-- next worker.
local function offer(queue, id, tenant, priority, requirement)
  local offered, mark, time = offers(queue, requirement), prefix .. 'offered:' .. queue, redis.call('TIME')
  local now, names = time[1] * 1000 + time[2] / 1000, prefix .. 'offers:' .. queue
  local before = redis.call('HGET', names, id)
  if before and before ~= requirement then
    drop_offer(prefix, queue, id, tenant, before)
  end
  for _, expired in ipairs(redis.call('ZRANGEBYSCORE', mark, '-inf', now, 'LIMIT', 0, REQUIREMENTS)) do
    redis.call('ZREM', mark, expired)
  end
  if reaches(mark, REQUIREMENTS) and not redis.call('ZSCORE', mark, requirement) then
    return
  end
  local due, wake = due_jobs(prefix, offered, tenant), prefix .. 'wake:' .. offered
  if not reaches(due, OFFERS) then
    enter(prefix, offered, id, tenant, priority)
    redis.call('HSET', names, id, requirement)
  end
  if redis.call('LLEN', wake) == 0 then
    redis.call('RPUSH', wake, '1')
  end
  redis.call('ZADD', mark, now + OFFERED, requirement)
  for _, key in ipairs({mark, names, due, prefix .. 'turns:' .. offered, wake}) do
    redis.call('PEXPIRE', key, OFFERED)
  end
end

for i = 1, #ARGV, 7 do
  local id, queue, priority, delay, tenant = ARGV[i], ARGV[i + 2], ARGV[i + 3], tonumber(ARGV[i + 4]), ARGV[i + 5]
  if delay >= 0 then
    redis.call('SET', prefix .. 'job:' .. id, ARGV[i + 1], 'PX', string.format('%.0f', delay + KEPT))
  end
  if delay < 0 then
    withdraw(queue, id, tenant)
  elseif delay == 0 then
    enter(prefix, queue, id, tenant, priority)
  else
    put_off(queue, id, tenant, delay)
    if ARGV[i + 6] ~= '' then
      offer(queue, id, tenant, priority, ARGV[i + 6])
    end
  end
  if delay >= 0 and delay <= HORIZON then
    wanted[queue] = (wanted[queue] or 0) + 1
  end
end

for queue, count in pairs(wanted) do
  add_tokens(prefix .. 'wake:' .. queue, count)
end
