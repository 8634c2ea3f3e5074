--[[
Find the jobs that are lost: not offered, and their lane not locked for their own run.

KEYS[1]  the shard's prefix, "runyard:{n}:"; its hash tag puts every key that is built from it into the same slot
ARGV     the workers whose locks do not count: "|", then each with a "|" after it; then per job: id, queue, tenant
Returns  the positions, from 1, of the lost jobs
]]
-- include turns.lua
local prefix, unknown = KEYS[1], {}

-- Return true if a claim can find the job. Its payload must be stored, and it must be a due job of a tenant in the ring or have a
-- due time. A job that is only partly stored counts as lost.
local function offered(id, queue, tenant)
  local due = redis.call('ZSCORE', due_jobs(prefix, queue, tenant), id) and redis.call('ZSCORE', prefix .. 'turns:' .. queue, tenant)
  return (due or redis.call('ZSCORE', prefix .. 'later:' .. queue, id)) and redis.call('EXISTS', prefix .. 'job:' .. id) == 1
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
  if not offered(id, ARGV[i + 1], ARGV[i + 2]) and not executed(lane, run) then
    unknown[#unknown + 1] = (i + 1) / 3
  end
end
return unknown
