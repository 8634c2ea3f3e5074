--[[
Return the jobs of an arq queue that a worker must look at. These are jobs that a producer has added, jobs whose next look is
due, and jobs that a producer has aborted since the last look. If no worker keeps the job (arq_keep.lua) or answers it
(arq_answer.lua), a look returns the job again after the time `lease`.

A job stays in arq's queue until its result is written, because arq's client waits only for jobs in the queue. The score
of a job tells arq's client whether the job is deferred. A look replaces the score by `queued` or `deferred`. These two
scores have a fraction. Every other score comes from a producer, because arq's client sends integers.

KEYS[1]  the prefix of shard 0, "runyard:{0}:"; arq's own keys have no hash tag
ARGV     queue, maximum number of jobs, maximum bytes of one body, maximum bytes of all bodies, lease in ms, maximum number of
         aborts to check, score of a job that is due, score of a job that is not due, largest due time in ms, ms for which the
         record of the aborts that were looked at is kept (JOBS_PER_LOOK, JOB_BYTES, BYTES_PER_LOOK, LEASE_SECONDS,
         ABORTS_PER_LOOK, QUEUED_SCORE, DEFERRED_SCORE, MAX_SCORE_MS, ABORT_MS, redis/arq_queue.py)
Returns  the time in ms, the number of all jobs that have neither a run nor a result, then six values per job:
         1. id
         2. token: the due time and the expiry in ms, separated by "|". Expiry -1: none. Expiry -2: the body had expired.
         3. record of the accepted run, or ''
         4. abort: its time in ms, '' for none, or 'begun' if the client has changed the score of a deferred job, which is its first step
         5. body, or '' if a run was accepted, if there is no body, or if the body is too large
         6. bytes of the body, or 0 if a run was accepted
]]
local prefix, queue, most = KEYS[1], ARGV[1], tonumber(ARGV[2])
local most_bytes, room, lease = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local queued, deferred, latest = ARGV[7], ARGV[8], tonumber(ARGV[9])
local jobs, runs, looks = prefix .. 'arq_jobs:' .. queue, prefix .. 'arq_runs:' .. queue, prefix .. 'arq_looks:' .. queue
local seen = prefix .. 'arq_aborts:' .. queue
local time = redis.call('TIME')
local now = math.floor(time[1] * 1000 + time[2] / 1000)

-- Return the bytes of a job's body, or 0 if the key has another type.
local function bytes_of(body)
  local bytes = redis.pcall('STRLEN', body)
  return type(bytes) == 'number' and bytes or 0
end

-- Return a time in ms as text. A time beyond a bound becomes the bound.
local function ms(score)
  return string.format('%.0f', math.max(-latest, math.min(latest, tonumber(score) or latest)))
end

-- Return true if an abort may make a known job due. This is so if the job has a run, or if its lease is over. During
-- the lease, a worker may be accepting the run, and a second worker would answer the job as cancelled.
local function is_free(id)
  return redis.call('HEXISTS', runs, id) == 1 or tonumber(redis.call('ZSCORE', looks, id) or 0) > now + lease
end

-- Remove aborts without a job. They came after the end of their job, and would cancel a later job with the same id.
-- Every other abort makes its job due once.
local aborts = redis.call('ZRANGE', 'arq:abort', 0, ARGV[6] - 1, 'WITHSCORES')
for i = 1, #aborts, 2 do
  local id, at = aborts[i], aborts[i + 1]
  if redis.call('EXISTS', 'arq:job:' .. id) == 0 then
    redis.call('ZREM', 'arq:abort', id)
  elseif redis.call('HEXISTS', jobs, id) == 1 and redis.call('HGET', seen, id) ~= at and is_free(id) then
    redis.call('HSET', seen, id, at)
    redis.call('PEXPIRE', seen, ARGV[10])
    redis.call('ZADD', looks, 'LT', now, id)
  end
end

local aborting, position = {}, 0
-- Due jobs come first, so that deferred jobs do not delay them.
for _, range in ipairs({{'(' .. queued, '(' .. deferred}, {'-inf', '(' .. queued}, {'(' .. deferred, '+inf'}}) do
  local added = redis.call('ZRANGE', queue, range[1], range[2], 'BYSCORE', 'LIMIT', 0, most - position, 'WITHSCORES')
  for i = 1, #added, 2 do
    local id, score, due = added[i], added[i + 1], true
    if redis.call('HEXISTS', jobs, id) == 1 then  -- Job.abort() has changed the score of this job
      aborting[id] = true
      due = is_free(id)
    else
      local body = 'arq:job:' .. id
      redis.call('HSET', jobs, id, ms(score) .. '|' .. ms(redis.call('PEXPIRETIME', body)))
      redis.call('PERSIST', body)
    end
    position = position + 1
    -- Further jobs follow the due jobs, in the order of arq's queue.
    if due then
      redis.call('ZADD', looks, string.format('%.3f', now - 1 + position / 1000), id)
    end
    redis.call('ZADD', queue, queued, id)
  end
end

local found = {tostring(now), redis.call('HLEN', jobs) - redis.call('HLEN', runs)}
for _, id in ipairs(redis.call('ZRANGE', looks, '-inf', now, 'BYSCORE', 'LIMIT', 0, most)) do
  local token = redis.call('HGET', jobs, id)
  if not token then
    redis.call('ZREM', looks, id)
  else
    local record, body, bytes = redis.call('HGET', runs, id) or '', '', 0
    if record == '' then
      bytes = bytes_of('arq:job:' .. id)
      if bytes <= most_bytes and bytes > 0 then
        if bytes > room and #found > 2 then
          break
        end
        room = room - bytes
        body = redis.call('GET', 'arq:job:' .. id)
      end
    end
    local due = tonumber(string.match(token, '^[^|]+'))
    redis.call('ZADD', looks, now + lease, id)
    redis.call('ZADD', queue, 'XX', due > now and deferred or queued, id)
    local abort = redis.call('ZSCORE', 'arq:abort', id)
    for _, value in ipairs({id, token, record, abort and ms(abort) or aborting[id] and 'begun' or '', body, bytes}) do
      found[#found + 1] = value
    end
  end
end
return found
