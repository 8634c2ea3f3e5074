--[[
Extend the locks that still have the given tokens. An expired lock is not created again.

KEYS[1]  the shard's prefix, "runyard:{n}:"; its hash tag puts every key that is built from it into the same slot
ARGV     lock in ms (LANE_LOCK_SECONDS, runyard/ports/scheduling.py), then per lock: lane key, "worker|run|token"
Returns  the positions, from 1, of the locks that were lost
]]
-- allow-oom
local lost = {}
for i = 2, #ARGV, 2 do
  local lock = KEYS[1] .. 'lock:' .. ARGV[i]
  if redis.call('GET', lock) == ARGV[i + 1] then
    redis.call('PEXPIRE', lock, ARGV[1])
  else
    lost[#lost + 1] = i / 2
  end
end
return lost
