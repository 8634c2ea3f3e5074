--[[
Take due jobs, high priority first and tenants by turns, and the lock of each one's lane. The job key goes with the offer: were it left to the release, a
worker that dies before it would leave it for ever.

A job whose lane is locked goes back, due when that lock runs out, and is noted under wait:<lane>, so that the release of the lock
makes it due at once. One lock gives way: that of the same run in another worker's hands passes to the claimant, because a holder that
cannot reach Postgres may renew for ever what was taken over long ago. A worker never takes its own run from itself.

KEYS[1]  the shard's prefix, "runyard:{n}:"; its hash tag puts every key that is built from it into the same slot
ARGV     worker id (without "|"), limit, lock in ms, then the queues
Returns  ms until the next job is due (0: one is due already, -1: there is none), then per job: id, payload, token, "queue:priority"
]]
-- include turns.lua
local PRIORITIES = {'high', 'normal', 'low'}
local HORIZON = 2000 -- ms; see submit.lua
local BOUND = 1000   -- jobs that one call looks at beyond those that it takes

local prefix, worker, limit, lock_ms = KEYS[1], ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local time = redis.call('TIME')
local now = time[1] * 1000 + time[2] / 1000
local claimed, scanned, out = 0, 0, {-1}

local function next_token()
  local token = redis.call('INCR', prefix .. 'token')
  if token == 1 then
    -- A server that was emptied must not issue the tokens of before once more: go on from the time.
    token = time[1] * 1000000 + time[2]
    redis.call('SET', prefix .. 'token', string.format('%.0f', token))
  end
  return string.format('%.0f', token)
end

local function take(zset, name, id)
  local lane, run = string.match(id, '^([^:]*):(.*)$')
  local payload = lane and redis.call('GET', prefix .. 'job:' .. id)
  if not payload then
    redis.call('ZREM', zset, id)
    return
  end
  local lock, wait = prefix .. 'lock:' .. lane, prefix .. 'wait:' .. lane
  local held = redis.call('GET', lock)
  if held then
    local owner, owned = string.match(held, '^([^|]*)|(.*)|%d+$')
    if owned ~= run or owner == worker then
      local left = redis.call('PTTL', lock)
      if left < 0 then
        left = lock_ms
      end
      redis.call('ZADD', zset, now + left + 1, id)
      redis.call('HSET', wait, id, name)
      redis.call('PEXPIRE', wait, left + lock_ms)
      return
    end
  end
  local token = next_token()
  redis.call('SET', lock, worker .. '|' .. run .. '|' .. token, 'PX', lock_ms)
  redis.call('ZREM', zset, id)
  redis.call('DEL', prefix .. 'job:' .. id)
  redis.call('HDEL', wait, id)
  claimed = claimed + 1
  out[#out + 1] = id
  out[#out + 1] = payload
  out[#out + 1] = token
  out[#out + 1] = name
end

-- Those whose time has come get their turns.
local function make_due(zset, name)
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', zset, TIMES, now, 'LIMIT', 0, BOUND)) do
    local tenant = tenant_of(redis.call('GET', prefix .. 'job:' .. id))
    redis.call('ZADD', zset, turn(zset, prefix .. 'turns:' .. name, tenant), id)
  end
end

for _, priority in ipairs(PRIORITIES) do
  for q = 4, #ARGV do
    local name = ARGV[q] .. ':' .. priority
    local zset = prefix .. 'queue:' .. name
    make_due(zset, name)
    -- Each job looked at leaves the due range; the bound keeps one call short where many lanes are locked.
    while claimed < limit and scanned < limit + BOUND do
      local ids = redis.call('ZRANGEBYSCORE', zset, '-inf', now, 'LIMIT', 0, limit - claimed)
      if #ids == 0 then
        break
      end
      scanned = scanned + #ids
      for _, id in ipairs(ids) do
        take(zset, name, id)
      end
    end
  end
end

for q = 4, #ARGV do
  local next_due = nil
  for _, priority in ipairs(PRIORITIES) do
    local first = redis.call('ZRANGE', prefix .. 'queue:' .. ARGV[q] .. ':' .. priority, 0, 0, 'WITHSCORES')
    if first[2] then
      local left = math.max(0, math.ceil(tonumber(first[2]) - now))
      next_due = math.min(next_due or left, left)
    else
      redis.call('DEL', prefix .. 'turns:' .. ARGV[q] .. ':' .. priority)
    end
  end
  local wake = prefix .. 'wake:' .. ARGV[q]
  if next_due and (next_due == 0 or (claimed >= limit and next_due <= HORIZON)) then
    -- This worker has its fill; another must hear of the rest.
    if redis.call('LLEN', wake) == 0 then
      redis.call('RPUSH', wake, '1')
    end
  else
    redis.call('DEL', wake) -- tokens without a job would only wake workers in vain
  end
  if next_due and (out[1] < 0 or next_due < out[1]) then
    out[1] = next_due
  end
end
return out
