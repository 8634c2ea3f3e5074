--[[
Find the jobs that are missing from Redis. All given jobs are due in Postgres. A job is missing if its run does not hold the
lane's lock and the job is not due within SOON. Keep the other jobs for at least half a day. runyard/worker/lost_jobs.py calls
this script. lost_jobs.py decides which of the missing jobs are lost, and submits these again.

KEYS[1]  the shard's prefix, "runyard:{n}:"; its hash tag puts every key that is built from it into one hash slot
ARGV     the ids of the workers whose locks do not count: "|", then each id with a "|" after it; then per job: id, queue,
         tenant
Returns  the positions, from 1, of the missing jobs
]]
-- allow-oom
-- include turns.lua
local SOON = 60000 -- ms; longer than the delay of a job that a worker has put back

local prefix, missing = KEYS[1], {}
local time = redis.call('TIME')
local now = time[1] * 1000 + time[2] / 1000

-- Return true if a claim finds the job soon. For this, the payload of the job must be stored, and the job must be due
-- within SOON or be a due job of a tenant in the ring. A job that is only partly stored counts as missing.
local function offered(id, queue, tenant)
  local due = redis.call('ZSCORE', due_jobs(prefix, queue, tenant), id) and redis.call('ZSCORE', prefix .. 'turns:' .. queue, tenant)
  local later = not due and redis.call('ZSCORE', prefix .. 'later:' .. queue, id)
  return (due or later and tonumber(later) <= now + SOON) and redis.call('EXISTS', prefix .. 'job:' .. id) == 1
end

local function keep_offered(id, queue, tenant)
  keep(prefix .. 'job:' .. id, KEPT)
  for _, key in ipairs({due_jobs(prefix, queue, tenant), prefix .. 'turns:' .. queue, prefix .. 'later:' .. queue, prefix .. 'wake:' .. queue}) do
    keep(key, KEPT)
  end
end

-- Return true if a worker whose lock counts executes the run, or is about to claim it.
local function executed(lane, run)
  local held = redis.call('GET', prefix .. 'lock:' .. lane)
  local owner, owned = string.match(held or '', '^([^|]*)|(.*)|%d+$')
  return owned == run and not string.find(ARGV[1], '|' .. owner .. '|', 1, true)
end

for i = 2, #ARGV, 3 do
  local id = ARGV[i]
  local lane, run = string.match(id, '^([^:]*):(.*)$')
  if offered(id, ARGV[i + 1], ARGV[i + 2]) then
    keep_offered(id, ARGV[i + 1], ARGV[i + 2])
  elseif not executed(lane, run) then
    missing[#missing + 1] = (i + 1) / 3
  end
end
return missing
