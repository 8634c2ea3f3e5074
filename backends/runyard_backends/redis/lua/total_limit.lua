--[[
Set the limit of all streams of a shard, and drop streams until they keep to it. drops.lua drops them, in the order that the
header of streams.lua describes.
Remove streams that have expired from the account. append.lua limits the stream of one run and sets its expiry. StreamLimits
(runyard/ports/scheduling.py) has the default numbers of all limits.

By default the streams take at most half of the server's memory limit. They take less while other data takes more than the other
half, so that jobs and locks have room.

A call that makes room for a refused call drops a tenth of the streams if the server does not report its memory. It stores the lower
limit. Appends keep to this limit until the leader sets the limit again.

KEYS[1]  the shard's prefix, "runyard:{n}:"; its hash tag puts every key that is built from it into the same slot
ARGV     the most bytes of the streams of several shards (0: half of the server's memory), the same for a server without a memory
         limit, the number of these shards, the maximal number of streams to drop (STREAMS_PER_CALL, redis/events.py), 1 to set
         the limit, 0 to make room under the one that is set
Returns  the bytes of the streams, the number of streams ever dropped, 1 if more have to be dropped, else 0, the bytes that count
         against the server's memory limit, and that limit, both 0 if the user lacks the right to ask
]]
-- allow-oom
-- include streams.lua
-- include drops.lua
local HIGH = 0.8 -- share of the server's memory limit above which streams are dropped, whichever data takes the memory
local LEFT = 0.9 -- share of the streams that is left after a call made room on a server that does not report its memory

local prefix, most, decides = KEYS[1], tonumber(ARGV[4]), ARGV[5] == '1'

-- Return the memory that counts against the server's limit, and the limit, 0 if there is none or it is not known. Both in
-- bytes.
local function memory()
  local info = redis.pcall('INFO', 'memory')
  if type(info) ~= 'string' then
    return 0, 0 -- a user may lack the right to ask
  end
  local function field(name)
    return tonumber(string.match(info, '[\r\n]' .. name .. ':(%d+)') or 0)
  end
  return field('used_memory') - field('mem_not_counted_for_evict'), field('maxmemory')
end

local total = add_bytes(prefix, -sweep(prefix, clock(), most))
local used, maximum = memory()
local limit = not decides and tonumber(redis.call('GET', prefix .. 'stream_limit') or nil)
if not limit then
  local all = tonumber(ARGV[1])
  if all == 0 then
    all = maximum > 0 and maximum / 2 or tonumber(ARGV[2])
  end
  limit = all / tonumber(ARGV[3])
end
if maximum > 0 then
  limit = math.max(0, math.min(limit, total + HIGH * maximum - used))
elseif not decides then
  limit = math.max(0, math.min(limit, LEFT * total))
end
local freed, more = shrink(prefix, total, limit, most)
if freed > 0 then
  total = add_bytes(prefix, -freed)
end
if decides or maximum == 0 then
  redis.call('SET', prefix .. 'stream_limit', string.format('%.0f', limit))
end
return {math.max(0, total), tonumber(redis.call('GET', prefix .. 'streams_dropped') or 0), more and 1 or 0, used, maximum}
