--[[
Release the locks that still have the given tokens. A lock may name another run of the lane, because renew.lua can change the
run. The jobs that wait for the lock of the lane become due at once. A repeated call has no effect. If another worker has taken
over a lock, the call does not release it.

KEYS[1]  the shard's prefix, "runyard:{n}:"; its hash tag puts every key that is built from it into one hash slot
ARGV     per job: lane key, "worker|run|token"
Returns  nothing
]]
-- allow-oom
local TOKENS = 100 -- see submit.lua

-- include lane_locks.lua
local prefix = KEYS[1]
local locks, waits, values = {}, {}, {}
for i = 1, #ARGV, 2 do
  local n = #locks + 1
  locks[n], waits[n], values[n] = prefix .. 'lock:' .. ARGV[i], prefix .. 'wait:' .. ARGV[i], ARGV[i + 1]
end
local held, mine, lanes = redis.call('MGET', unpack(locks)), {}, {}
for i, lock in ipairs(locks) do
  if held[i] == values[i] or same_lock(held[i], values[i]) then
    mine[#mine + 1], lanes[#lanes + 1] = lock, waits[i]
  end
end
if #mine == 0 then
  return
end
redis.call('DEL', unpack(mine))
if redis.call('EXISTS', unpack(lanes)) == 0 then
  return -- in the usual case, return before the functions below are defined
end
-- include turns.lua

-- Make the jobs of the hash `wait` due, and wake workers for these jobs.
local function hand_on(wait)
  local waiting = redis.call('HGETALL', wait)
  for i = 1, #waiting, 2 do
    local id, queue = waiting[i], waiting[i + 1]
    local tenant, priority = owner_of(redis.call('GET', prefix .. 'job:' .. id))
    if redis.call('ZSCORE', prefix .. 'later:' .. queue, id) then
      enter(prefix, queue, id, tenant, priority)
    end
    if redis.call('ZSCORE', due_jobs(prefix, queue, tenant), id) then
      local wake = prefix .. 'wake:' .. queue
      if redis.call('LLEN', wake) < TOKENS then
        redis.call('RPUSH', wake, '1')
        keep(wake, KEPT)
      end
    end
  end
  redis.call('DEL', wait)
end

for _, wait in ipairs(lanes) do
  hand_on(wait)
end
