--[[
Count the bytes of event streams. The scripts that write or delete streams include this file, together with drops.lua.

A stream is in one of three indexes, with the time at which it expires. Streams are dropped in the order of the indexes,
and within an index in the order of these times. stopped_streams is first: the streams of runs that stopped, the longest
stopped first. running_streams is second: the streams of running runs, the longest without an event first.
emptied_streams is last: the streams of running runs whose events were dropped. The hash sizes:<thread> has the bytes of
the events of each run. If its field '' exists, the thread was deleted. stream_bytes is the sum over all streams.

KEYS[1]  not used (the including script defines it)
ARGV     not used (the including script defines it)
Returns  nothing, but defines `ENTRY`, `clock`, `cost` and `names_of`
]]
local STREAM = 512  -- bytes of a stream without events, including its entry in an index
local NODE = 4096   -- bytes that the server reserves for the first events of a stream
local ENTRY = 32    -- bytes of an event besides its payload

-- Return the time in ms.
local function clock()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Return the bytes that a stream takes. size: the bytes of its events.
local function cost(size)
  return size == 0 and STREAM or STREAM + math.max(NODE, size)
end

-- Return four values: the key of a stream, the key of the sizes of its thread, its run id, and its thread key. member: "thread
-- key:run id".
local function names_of(prefix, member)
  local thread, run = string.match(member, '^(%d+):(.*)$')
  return prefix .. 'events:' .. member, prefix .. 'sizes:' .. thread, run, thread
end
