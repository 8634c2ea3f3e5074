--[[
Offer jobs of one shard to the workers. A repeated call has no effect. If a job is already offered and due, it keeps its
position among the due jobs. If it is already offered but not due, it keeps the earlier of the two due times. A delayed
job waits in later:<queue> until make_due (claim.lua) moves it to the due jobs.

KEYS[1]  the shard's prefix, "runyard:{n}:"; its hash tag puts every key that is built from it into the same slot
ARGV     per job: id, payload, queue, priority, delay in ms (-1: the run ended; withdraw the offer), tenant
Returns  nothing
]]
-- include turns.lua
local TOKENS = 100    -- maximum number per queue; few tokens are enough: a claim that leaves due jobs adds a token
local HORIZON = 2000  -- ms between two claims of a waiting worker; a job that is due sooner needs a token

local prefix = KEYS[1]
local wanted = {}

-- Remove a job from its queue. Remove the tokens that have no job left.
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

for i = 1, #ARGV, 6 do
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
  end
  if delay >= 0 and delay <= HORIZON then
    wanted[queue] = (wanted[queue] or 0) + 1
  end
end

for queue, count in pairs(wanted) do
  add_tokens(prefix .. 'wake:' .. queue, count)
end
