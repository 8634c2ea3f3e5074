--[[
Tell which jobs are neither offered nor in a worker's hands.

KEYS[1]  the shard's prefix, "runyard:{n}:"; its hash tag puts every key that is built from it into the same slot
ARGV     per job: id, "queue:priority"
Returns  the positions, from 1, of the jobs that are not known
]]
local prefix, unknown = KEYS[1], {}
for i = 1, #ARGV, 2 do
  local id = ARGV[i]
  local lane, run = string.match(id, '^([^:]*):(.*)$')
  local offered = redis.call('ZSCORE', prefix .. 'queue:' .. ARGV[i + 1], id) and redis.call('EXISTS', prefix .. 'job:' .. id) == 1
  if not offered then
    local held = redis.call('GET', prefix .. 'lock:' .. lane)
    if not held or string.match(held, '^[^|]*|(.*)|%d+$') ~= run then
      unknown[#unknown + 1] = (i + 1) / 2
    end
  end
end
return unknown
