--[[
Account for the bytes of event streams and drop streams. Included by the scripts that write or delete streams.

A stream is in one index, with the time at which it expires. Streams are dropped in this order: those of the runs that stopped
longest ago (stopped_streams), those without an event for the longest time (running_streams), and those of running runs that
have no events left (emptied_streams). The hash sizes:<thread> has the bytes of the events of each run. Its field '' says that the thread was deleted. stream_bytes is the
sum over all streams.

KEYS[1]  not used (the including script defines it)
ARGV     not used (the including script defines it)
Returns  nothing, but defines `clock`, `cost`, `names_of`, `add_bytes`, `sweep`, `shrink` and `delete_stream`
]]
local STREAM = 512  -- bytes of a stream without events, with its places in the indexes
local NODE = 4096   -- bytes that the server reserves for the first events of a stream
local ENTRY = 32    -- bytes of an event besides its payload
local INDEXES = {'stopped_streams', 'running_streams', 'emptied_streams'} -- in the order in which streams are dropped

-- Return the time in ms.
local function clock()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Return the bytes that a stream takes. size: the bytes of its events.
local function cost(size)
  return size == 0 and STREAM or STREAM + math.max(NODE, size)
end

-- Return the keys of a stream and of the sizes of its thread, and its run. member: "thread key:run id".
local function names_of(prefix, member)
  local thread, run = string.match(member, '^(%d+):(.*)$')
  return prefix .. 'events:' .. member, prefix .. 'sizes:' .. thread, run
end

-- Add to the sum over all streams. Return the sum.
local function add_bytes(prefix, bytes)
  return redis.call('INCRBY', prefix .. 'stream_bytes', string.format('%.0f', bytes + 0)) -- without + 0, minus zero would be refused
end

-- Delete a stream that is not in an index any more. Return the bytes that it took.
local function delete_stream(prefix, member)
  local stream, sizes, run = names_of(prefix, member)
  local size = tonumber(redis.call('HGET', sizes, run))
  redis.call('DEL', stream)
  redis.call('HDEL', sizes, run)
  return size and cost(size) or 0
end

-- Remove the events of a running run's stream. The empty stream remains, so that readers notice the loss. expiry: the time at
-- which the stream expires. Return the bytes that this freed.
local function empty_stream(prefix, member, expiry)
  local stream, sizes, run = names_of(prefix, member)
  local size = tonumber(redis.call('HGET', sizes, run) or 0)
  if redis.call('EXISTS', stream) == 0 then
    return delete_stream(prefix, member)
  end
  redis.call('XTRIM', stream, 'MAXLEN', 0)
  redis.call('HSET', sizes, run, 0)
  redis.call('ZADD', prefix .. 'emptied_streams', expiry, member)
  return cost(size) - STREAM
end

-- Remove up to `most` expired streams of each index from the account. Return the bytes that they took.
local function sweep(prefix, now, most)
  local freed = 0
  for _, name in ipairs(INDEXES) do
    for _, member in ipairs(redis.call('ZRANGEBYSCORE', prefix .. name, '-inf', now, 'LIMIT', 0, most)) do
      redis.call('ZREM', prefix .. name, member)
      freed = freed + delete_stream(prefix, member)
    end
  end
  return freed
end

-- Drop up to `most` streams until all of them together take `limit` bytes. total: the bytes that they take. Return the bytes
-- that this freed, and true if streams are left that should be dropped.
local function shrink(prefix, total, limit, most)
  local freed, dropped = 0, 0
  while total - freed > limit and dropped < most do
    local index, first = nil, {}
    for _, name in ipairs(INDEXES) do
      if #first == 0 then
        index, first = name, redis.call('ZPOPMIN', prefix .. name)
      end
    end
    if #first == 0 then
      freed = total -- no stream is left
      break
    elseif index == 'running_streams' then
      freed = freed + empty_stream(prefix, first[1], first[2])
    else
      freed = freed + delete_stream(prefix, first[1])
    end
    dropped = dropped + 1
  end
  if dropped > 0 then
    redis.call('INCRBY', prefix .. 'streams_dropped', dropped)
  end
  return freed, total - freed > limit
end
