--[[
Move delayed jobs to the due jobs when their time has come. Then take due jobs, and lock their lanes. turns.lua decides the
order: tenants take turns, and within a tenant high priority comes first. The claim deletes the job's key. It does not
leave this to the release, because a worker may die before the release.

If the lane of a job is locked, the job is put back and becomes due when the lock expires. The job is also recorded
under wait:<lane>. The release of the lock then makes it due at once. A job that is put back does not use up a turn of
its tenant. A worker takes over a lock only if another worker holds the lock for the same run. This is necessary,
because a holder that cannot reach Postgres could renew the lock for ever, although the run has a new worker. A worker
never takes over the lock of a run that it executes itself.

A delayed job with a requirement is offered to the workers that fulfil the requirement (submit.lua). The claim of such a worker
makes offered jobs due, at most as many as it may take. They come before the other due jobs of their tenant and priority. Then
tenants take turns as usual. If a worker takes the job in another way, the offer is withdrawn. Every second claim makes offered
jobs due before it takes due jobs. The other claims make offered jobs due only if they found too few due jobs.

KEYS[1]  the shard's prefix, "runyard:{n}:"; its hash tag puts every key that is built from it into one hash slot
ARGV     worker id (without "|"), maximum number of jobs (CLAIM_BATCH, runyard/worker/claim_loop.py), lifetime of a lock in ms
         (LANE_LOCK_SECONDS, runyard/ports/scheduling.py), number of the claim, number of queues, the queues in the order of
         service, then the requirements that the worker fulfils
Returns  ms until the next job is due (0: a job is due, -1: there is no job), then per job taken: id, payload, token, queue
]]
-- allow-oom
-- include turns.lua
local HORIZON = 2000 -- ms; see submit.lua
local BOUND = 1000   -- maximum number of jobs with a locked lane that one call examines
local PART = 500     -- maximum number of jobs that are taken out of a queue at once

local prefix, worker, limit, lock_ms = KEYS[1], ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local turn, last_queue = tonumber(ARGV[4]), 5 + tonumber(ARGV[5])
local claimed, scanned, out = 0, 0, {-1}
local home = nil -- the queue of the jobs that are taken
local any_offered = false -- true if delayed jobs of the queues are offered to workers with some requirement
local time, put_back = nil, {} -- the server's time once it was read; the queues to which a job was put back

-- Return the server's time in ms.
local function now()
  time = time or redis.call('TIME')
  return time[1] * 1000 + time[2] / 1000
end

-- Issue `count` tokens. Return the number before the first of them.
local function tokens(count)
  local last = redis.call('INCRBY', prefix .. 'token', count)
  if last == count then
    -- The server is new or has lost its data. Tokens begin at the time in µs. No token is therefore issued twice.
    now()
    last = time[1] * 1000000 + time[2] + count
    redis.call('SET', prefix .. 'token', string.format('%.0f', last))
  end
  return last - count
end

-- Put a job back. The job is due when the lock of its lane expires or is released.
local function wait_for(lock, lane, queue, id)
  local later, wait, left = prefix .. 'later:' .. queue, prefix .. 'wait:' .. lane, redis.call('PTTL', lock)
  if left < 0 then
    left = lock_ms
  end
  redis.call('ZADD', later, now() + left + 1, id)
  keep(later, KEPT)
  redis.call('HSET', wait, id, queue)
  redis.call('PEXPIRE', wait, left + lock_ms)
  put_back[queue] = true
end

-- Lock a lane for a run of this worker. Return true if the worker got the lock.
local function locked(lock, run, token)
  local value = worker .. '|' .. run .. '|' .. string.format('%.0f', token)
  if redis.call('SET', lock, value, 'NX', 'PX', lock_ms) then
    return true
  end
  local owner, owned = string.match(redis.call('GET', lock), '^([^|]*)|(.*)|%d+$')
  if owned ~= run or owner == worker then
    return false
  end
  redis.call('SET', lock, value, 'PX', lock_ms)
  return true
end

-- Withdraw the offers of jobs that were taken. ids: their ids. of_id: their payloads.
local function drop_offers(ids, of_id)
  local requirements = redis.call('HMGET', prefix .. 'offers:' .. home, unpack(ids))
  for n, id in ipairs(ids) do
    if requirements[n] then
      drop_offer(prefix, home, id, owner_of(of_id[id]), requirements[n])
    end
  end
end

-- Lock the lanes of jobs that were taken out of a queue. Add the jobs to `out` whose lanes the worker has locked. Put back the
-- other jobs.
local function take(ids)
  local names, taken, waits, taken_ids, of_id = {}, {}, {}, {}, {}
  for i, id in ipairs(ids) do
    names[i] = prefix .. 'job:' .. id
  end
  local payloads, token = redis.call('MGET', unpack(names)), tokens(#ids)
  for i, id in ipairs(ids) do
    local lane, run = string.match(id, '^([^:]*):(.*)$')
    if lane and payloads[i] then
      local lock = prefix .. 'lock:' .. lane
      token = token + 1
      if locked(lock, run, token) then
        local n = #out
        out[n + 1], out[n + 2], out[n + 3], out[n + 4] = id, payloads[i], string.format('%.0f', token), home
        taken[#taken + 1], waits[#waits + 1] = names[i], prefix .. 'wait:' .. lane
        taken_ids[#taken], of_id[id] = id, payloads[i]
      else
        wait_for(lock, lane, home, id)
      end
    end
  end
  if #taken > 0 then
    redis.call('DEL', unpack(taken))
    claimed = claimed + #taken
    if any_offered then
      drop_offers(taken_ids, of_id)
    end
    if redis.call('EXISTS', unpack(waits)) > 0 then
      for n, wait in ipairs(waits) do
        redis.call('HDEL', wait, taken_ids[n])
      end
    end
  end
end

-- Return the earliest due time in ms of a queue's jobs that are not due yet, nil if there are none.
local function first_later(queue)
  return tonumber(redis.call('ZRANGE', prefix .. 'later:' .. queue, 0, 0, 'WITHSCORES')[2] or nil)
end

-- Move the jobs of `later` that have become due to the due jobs of their tenants.
local function make_due(queue)
  local later = prefix .. 'later:' .. queue
  look_again()
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', later, '-inf', now(), 'LIMIT', 0, BOUND)) do
    local payload = redis.call('GET', prefix .. 'job:' .. id)
    if payload then
      enter(prefix, queue, id, owner_of(payload))
    else
      redis.call('ZREM', later, id)
    end
  end
end

-- Return true if the call may take more jobs. If many lanes are locked, BOUND limits the work of the call.
local function has_room()
  return claimed < limit and scanned < limit + BOUND
end

-- Take one job of a tenant. alone: true if no other tenant has due jobs. Then take as many jobs as the call may take. Return
-- true if the tenant has no more due jobs.
local function serve(queue, tenant, alone)
  local due = due_jobs(prefix, queue, tenant)
  local enough = alone and limit or claimed + 1
  while claimed < enough and has_room() do
    local wanted, ids = math.min(enough - claimed, PART), {}
    local popped = redis.call('ZPOPMIN', due, wanted)
    for i = 1, #popped, 2 do
      ids[#ids + 1] = popped[i]
    end
    scanned = scanned + #ids
    if #ids > 0 then
      take(ids)
    end
    if #ids < wanted then
      return true
    end
  end
  return redis.call('EXISTS', due) == 0
end

-- Serve a queue. Return ms until its next job is due (0: a job is due), nil if it has no job.
local function serve_queue(queue)
  home = queue
  local later = first_later(queue)
  local moved = later and later <= now()
  if moved then
    make_due(queue)
  end
  if not take_turns(prefix, queue, has_room, serve) then
    return 0
  end
  if moved or put_back[queue] then
    later = first_later(queue)
  end
  return later and math.max(0, math.ceil(later - now()))
end

local waits = {} -- by queue: ms until its next job is due, -1 if it has no job

local function serve_queues()
  for q = 6, last_queue do
    waits[ARGV[q]] = serve_queue(ARGV[q]) or -1
  end
end

-- Add a token that wakes a worker, if there is none.
local function add_token(wake)
  if redis.call('LLEN', wake) == 0 then
    redis.call('RPUSH', wake, '1')
    redis.call('PEXPIRE', wake, KEPT)
  end
end

-- Make offered jobs of a queue due, up to the maximum of the call, in the turns of their tenants. `recalled` counts them.
local recalled = 0

local function recall_turns(offered, queue)
  local function may_recall()
    return recalled < limit and scanned < limit + BOUND
  end
  return take_turns(prefix, offered, may_recall, function(_, tenant)
    local due = due_jobs(prefix, offered, tenant)
    local id = redis.call('ZPOPMIN', due, 1)[1]
    scanned = scanned + 1
    if id then
      redis.call('HDEL', prefix .. 'offers:' .. queue, id)
    end
    local payload = id and redis.call('ZSCORE', prefix .. 'later:' .. queue, id) and redis.call('GET', prefix .. 'job:' .. id)
    if payload then
      local owner, priority = owner_of(payload)
      enter(prefix, queue, id, owner, priority, true)
      recalled = recalled + 1
    end
    return redis.call('EXISTS', due) == 0
  end)
end

local fulfilled = nil -- the requirements that the worker fulfils

-- Return true if the worker fulfils a requirement.
local function fulfils(requirement)
  if not fulfilled then
    fulfilled = {}
    for r = last_queue + 1, #ARGV do
      fulfilled[ARGV[r]] = true
    end
  end
  return fulfilled[requirement]
end

-- Make the jobs due that a queue offers under requirements that the worker fulfils. The ring of the queue then decides which
-- tenant is served next, as for all due jobs.
local function recall(queue)
  local mark = prefix .. 'offered:' .. queue
  local wanted = redis.call('ZRANGEBYSCORE', mark, now(), '+inf', 'LIMIT', 0, REQUIREMENTS)
  if #wanted == 0 then
    return
  end
  look_again()
  local first = math.floor(turn / 2) -- each claim that makes offered jobs due begins with another requirement
  for n = 0, #wanted - 1 do
    local requirement = wanted[(first + n) % #wanted + 1]
    if fulfils(requirement) then
      local offered = offers(queue, requirement)
      if recall_turns(offered, queue) then
        redis.call('ZREM', mark, requirement)
        redis.call('DEL', prefix .. 'wake:' .. offered)
      else
        out[1] = 0 -- offered jobs are left
        add_token(prefix .. 'wake:' .. offered)
      end
    end
  end
end

local function recall_all()
  for q = 6, last_queue do
    recall(ARGV[q])
  end
end

local marks = {}
for q = 6, last_queue do
  marks[#marks + 1] = prefix .. 'offered:' .. ARGV[q]
end
any_offered = #marks > 0 and redis.call('EXISTS', unpack(marks)) > 0
local recalls = any_offered and #ARGV > last_queue
local recalls_first = turn % 2 == 1
if recalls and recalls_first then
  recall_all()
end
serve_queues()
if recalls and not recalls_first and claimed < limit then
  recall_all()
  if recalled > 0 then
    serve_queues()
  end
end

for queue, next_due in pairs(waits) do
  local wake = prefix .. 'wake:' .. queue
  if next_due >= 0 and (next_due == 0 or (claimed >= limit and next_due <= HORIZON)) then
    add_token(wake) -- this worker has the maximum number of jobs; wake another worker for the rest
  else
    redis.call('DEL', wake) -- a token without a job would wake a worker although there is no work
  end
  if next_due >= 0 and (out[1] < 0 or next_due < out[1]) then
    out[1] = next_due
  end
end
return out
