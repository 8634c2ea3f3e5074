--[[
Take due jobs and the locks of their lanes. Tenants take turns. Within a tenant, high priority comes first. The job key is
deleted here and not at the release, because a worker that dies before the release would leave the key for ever.

A job whose lane is locked is put back with the expiry of that lock as due time. It is also recorded under wait:<lane>, so that
the release of the lock makes it due at once. A job that is put back does not use up a turn of its tenant. A worker takes over a
lock in one case: another worker holds it for the same run. Otherwise a holder that cannot reach Postgres could renew for ever
the lock of a run that another worker has taken over. A worker never takes over the lock of a run that it executes itself.

KEYS[1]  the shard's prefix, "runyard:{n}:"; its hash tag puts every key that is built from it into the same slot
ARGV     worker id (without "|"), maximal number of jobs, lock in ms, then the queues in the order of service
Returns  ms until the next job is due (0: a job is due, -1: there is no job), then per job taken: id, payload, token, queue
]]
-- allow-oom
-- include turns.lua
local HORIZON = 2000 -- ms; see submit.lua
local BOUND = 1000   -- maximal number of jobs with a locked lane that one call examines

local prefix, worker, limit, lock_ms = KEYS[1], ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local time = redis.call('TIME')
local now = time[1] * 1000 + time[2] / 1000
local claimed, scanned, out = 0, 0, {-1}

local function next_token()
  local token = redis.call('INCR', prefix .. 'token')
  if token == 1 then
    -- The server is new or lost its data. Start from the time in µs, so that it issues no token twice.
    token = time[1] * 1000000 + time[2]
    redis.call('SET', prefix .. 'token', string.format('%.0f', token))
  end
  return string.format('%.0f', token)
end

-- Remove a job from `due` and lock its lane for the worker. Return true if the worker got the job.
local function take(due, queue, id)
  redis.call('ZREM', due, id)
  local lane, run = string.match(id, '^([^:]*):(.*)$')
  local payload = lane and redis.call('GET', prefix .. 'job:' .. id)
  if not payload then
    return false
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
      redis.call('ZADD', prefix .. 'later:' .. queue, now + left + 1, id)
      keep(prefix .. 'later:' .. queue, KEPT)
      redis.call('HSET', wait, id, queue)
      redis.call('PEXPIRE', wait, left + lock_ms)
      return false
    end
  end
  local token = next_token()
  redis.call('SET', lock, worker .. '|' .. run .. '|' .. token, 'PX', lock_ms)
  redis.call('DEL', prefix .. 'job:' .. id)
  redis.call('HDEL', wait, id)
  claimed = claimed + 1
  out[#out + 1] = id
  out[#out + 1] = payload
  out[#out + 1] = token
  out[#out + 1] = queue
  return true
end

-- Move the jobs of `later` that have become due to the due jobs of their tenants.
local function make_due(queue)
  local later = prefix .. 'later:' .. queue
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', later, '-inf', now, 'LIMIT', 0, BOUND)) do
    local payload = redis.call('GET', prefix .. 'job:' .. id)
    if payload then
      enter(prefix, queue, id, owner_of(payload))
    else
      redis.call('ZREM', later, id)
    end
  end
end

-- BOUND limits the work of a call if many lanes are locked.
local function has_room()
  return claimed < limit and scanned < limit + BOUND
end

-- Take one job of a tenant, or as many as there is room for if the tenant is `alone` in the queue. Return true if the tenant has
-- no more due jobs.
local function serve(queue, tenant, alone)
  local due = due_jobs(prefix, queue, tenant)
  local enough = alone and limit or claimed + 1
  while claimed < enough and has_room() do
    local ids = redis.call('ZRANGE', due, 0, enough - claimed - 1)
    if #ids == 0 then
      return true
    end
    scanned = scanned + #ids
    for _, id in ipairs(ids) do
      take(due, queue, id)
    end
  end
  return redis.call('EXISTS', due) == 0
end

for q = 4, #ARGV do
  make_due(ARGV[q])
  take_turns(prefix, ARGV[q], has_room, serve)
end

for q = 4, #ARGV do
  local next_due = nil
  if redis.call('EXISTS', prefix .. 'turns:' .. ARGV[q]) == 1 then
    next_due = 0
  else
    local first = redis.call('ZRANGE', prefix .. 'later:' .. ARGV[q], 0, 0, 'WITHSCORES')[2]
    next_due = first and math.max(0, math.ceil(tonumber(first) - now))
  end
  local wake = prefix .. 'wake:' .. ARGV[q]
  if next_due and (next_due == 0 or (claimed >= limit and next_due <= HORIZON)) then
    -- This worker has its limit of jobs. Wake another worker for the rest.
    if redis.call('LLEN', wake) == 0 then
      redis.call('RPUSH', wake, '1')
      keep(wake, KEPT)
    end
  else
    redis.call('DEL', wake) -- a token without a job would wake a worker in vain
  end
  if next_due and (out[1] < 0 or next_due < out[1]) then
    out[1] = next_due
  end
end
return out
