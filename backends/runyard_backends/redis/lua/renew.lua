--[[
Extend the locks that still have the given tokens. An expired lock is not created again. A worker may have passed a lock on to
the next run of the lane. The lock then gets the name of this run, so that only a takeover of this run may take over the lock.

KEYS[1]  the shard's prefix, "runyard:{n}:"; its hash tag puts every key that is built from it into one hash slot
ARGV     lifetime of a lock in ms (LANE_LOCK_SECONDS, runyard/ports/scheduling.py), then per lock: lane key, "worker|run|token"
Returns  the positions, from 1, of the locks that were lost
]]
-- allow-oom
-- include lane_locks.lua
local lost = {}
for i = 2, #ARGV, 2 do
  local lock = KEYS[1] .. 'lock:' .. ARGV[i]
  local value = redis.call('GET', lock)
  if value == ARGV[i + 1] then
    redis.call('PEXPIRE', lock, ARGV[1])
  elseif same_lock(value, ARGV[i + 1]) then
    redis.call('SET', lock, ARGV[i + 1], 'PX', ARGV[1])
  else
    lost[#lost + 1] = i / 2
  end
end
return lost
