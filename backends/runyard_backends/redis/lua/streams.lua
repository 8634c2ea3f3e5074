--[[
Account for the bytes of event streams. Included by the scripts that write or delete streams, together with drops.lua.

A stream is in one index, with the time at which it expires. Streams are dropped in this order: those of the runs that stopped
longest ago (stopped_streams), those without an event for the longest time (running_streams), and those of running runs that
have no events left (emptied_streams). The hash sizes:<thread> has the bytes of the events of each run. If its field '' exists, the
thread was deleted. stream_bytes is the sum over all streams.

KEYS[1]  not used (the including script defines it)
ARGV     not used (the including script defines it)
Returns  nothing, but defines `ENTRY`, `clock`, `cost` and `names_of`
]]
local STREAM = 512  -- bytes of a stream without events, with its places in the indexes
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

-- Return the keys of a stream and of the sizes of its thread, its run and its thread. member: "thread key:run id".
local function names_of(prefix, member)
  local thread, run = string.match(member, '^(%d+):(.*)$')
  return prefix .. 'events:' .. member, prefix .. 'sizes:' .. thread, run, thread
end
