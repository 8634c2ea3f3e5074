--[[
Drop streams. This file is included after streams.lua. The header of streams.lua describes the order in which streams are
dropped. In each call, the server defines all functions of a script again. Most appends need none of these functions.
append.lua therefore includes this file after an early return.

KEYS[1]  not used (the including script defines it)
ARGV     not used (the including script defines it)
Returns  nothing, but defines `INDEXES`, `add_bytes`, `sweep`, `shrink` and `delete_stream`
]]
local INDEXES = {'stopped_streams', 'running_streams', 'emptied_streams'} -- in the order in which streams are dropped

-- Add to the sum over all streams. Return the sum. The sum never goes below 0: with a lower sum, later streams would take more than
-- the limit. A server that has lost the sum and has kept the sizes of streams would go below 0.
local function add_bytes(prefix, bytes)
  local sum = redis.call('INCRBY', prefix .. 'stream_bytes', string.format('%.0f', bytes + 0)) -- + 0 prevents "-0", which the server refuses
  if sum < 0 then
    redis.call('SET', prefix .. 'stream_bytes', 0, 'KEEPTTL')
    return 0
  end
  return sum
end

-- Delete a stream that was removed from its index. Return the bytes that the stream took.
local function delete_stream(prefix, member)
  local stream, sizes, run = names_of(prefix, member)
  local size = tonumber(redis.call('HGET', sizes, run))
  redis.call('DEL', stream)
  redis.call('HDEL', sizes, run)
  return size and cost(size) or 0
end

-- Remove the events of a running run's stream. The empty stream remains, so that readers notice the loss. expiry: the time at
-- which the stream expires. Return the freed bytes.
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

-- Remove up to `most` expired streams from each index. Return the bytes that they took, and true if more streams may have
-- expired.
local function sweep(prefix, now, most)
  local freed, more = 0, false
  for _, name in ipairs(INDEXES) do
    local expired = redis.call('ZRANGEBYSCORE', prefix .. name, '-inf', now, 'LIMIT', 0, most)
    for _, member in ipairs(expired) do
      redis.call('ZREM', prefix .. name, member)
      freed = freed + delete_stream(prefix, member)
    end
    more = more or #expired == most
  end
  return freed, more
end

-- Drop up to `most` streams until all streams together take `limit` bytes. total: the bytes that they take before. Return the
-- freed bytes, and true if more streams should be dropped.
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
