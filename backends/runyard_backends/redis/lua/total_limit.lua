--[[
Set the limit of all streams of a shard. Drop streams until all streams are within the limit, in the order that the header of
streams.lua describes. Subtract expired streams from the sum. append.lua applies the limit of one run's stream and sets its
expiry. StreamLimits (runyard/ports/scheduling.py) has the default numbers of all limits.

By default the streams take at most half of the server's memory limit. If other data takes more than half, the streams
take less. Jobs and locks then still have memory.

This script may also free memory for a call that the server has refused. If the server does not report its memory, such
a call drops a tenth of the streams and stores a lower limit. Appends apply this limit until the leader sets the limit
again.

KEYS[1]  the shard's prefix, "runyard:{n}:"; its hash tag puts every key that is built from it into one hash slot
ARGV     the maximum bytes of the streams of several shards (0: half of the server's memory), the same maximum for a server
         without a memory limit, the number of these shards, the maximum number of streams to drop (STREAMS_PER_CALL,
         redis/events.py), 1 to set the limit, 0 to make room under the limit that is set already
Returns  the bytes of the streams, the number of streams ever dropped, 1 if more streams have to be dropped, else 0, the bytes
         that count against the server's memory limit, the memory limit; the last two are 0 if the user lacks the right to INFO
]]
-- allow-oom
-- include streams.lua
-- include drops.lua
local HIGH = 0.8 -- share of the server's memory limit above which streams are dropped, even if other data takes the memory
local LEFT = 0.9 -- share of the streams that stay when a call frees memory and the server does not report its memory

local prefix, most, decides = KEYS[1], tonumber(ARGV[4]), ARGV[5] == '1'

-- Return two numbers of bytes: the memory that counts against the server's limit, and the limit. The limit is 0 if there is
-- none. Both are 0 if they are unknown.
local function memory()
  local info = redis.pcall('INFO', 'memory')
  if type(info) ~= 'string' then
    return 0, 0 -- the user may lack the right to INFO
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
return {total, tonumber(redis.call('GET', prefix .. 'streams_dropped') or 0), more and 1 or 0, used, maximum}
