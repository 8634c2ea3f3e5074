--[[
Add events to the streams of runs of one shard and publish them to followers.

An event whose id "fence-n" is not above the stream's last id is dropped without an error. Such an event is a repetition, or it
comes from an attempt that was superseded.

KEYS[1]  the shard's prefix, "runyard:{n}:"; its hash tag puts every key that is built from it into the same slot
ARGV     approximate maximal number of events per stream, time to live in ms, then per run: "thread key:run id", number of its
         events, then per event: id, payload
Returns  the number of events added
]]
local prefix, maxlen, ttl = KEYS[1], ARGV[1], ARGV[2]
local added, i = 0, 3

local function parts(id)
  local fence, n = string.match(id, '^(%d+)-(%d+)$')
  return tonumber(fence), tonumber(n)
end

while i <= #ARGV do
  local stream, count = prefix .. 'events:' .. ARGV[i], tonumber(ARGV[i + 1])
  local last = redis.call('XREVRANGE', stream, '+', '-', 'COUNT', 1)[1]
  local fence, n = 0, 0
  if last then
    fence, n = parts(last[1])
  end
  local before = added
  for j = i + 2, i + 2 * count, 2 do
    local id, payload = ARGV[j], ARGV[j + 1]
    local id_fence, id_n = parts(id)
    if id_fence > fence or (id_fence == fence and id_n > n) then
      redis.call('XADD', stream, 'MAXLEN', '~', maxlen, id, 'e', payload)
      redis.call('PUBLISH', stream, id .. ' ' .. payload)
      if id_n == 1 then
        redis.call('PUBLISH', prefix .. 'events:' .. string.match(ARGV[i], '^%d+'), '')
      end
      fence, n, added = id_fence, id_n, added + 1
    end
  end
  if added > before then
    redis.call('PEXPIRE', stream, ttl)
  end
  i = i + 2 + 2 * count
end
return added
