--[[
Add events to the streams of runs of one shard, and publish the events to followers. Drop streams while all streams together
exceed the limit that total_limit.lua has set. StreamLimits (runyard/ports/scheduling.py) has the default numbers of all limits.

An event is dropped without an error if its id "fence-n" is not higher than the stream's last id. Such an event is a
repetition, or comes from a superseded attempt. XADD itself refuses such an id. Events of a deleted thread are published but
not stored. A deleted thread has no streams. The script therefore checks only for an event without an existing stream whether
its thread was deleted.

The first write of the script is XADD. If the server has no free memory, it therefore refuses the call before any
change.

The events of a run are published as one message on its channel, or as a few messages if the events are large. The message of
one event is "id payload". The message of several events is "* ", then for each event "id length " and a payload of that length.
A follower that cannot decode a message reads the stream.

In the stream, each event has its own entry, for two reasons. If a repeated call divided the events differently, shared entries
would store events twice. Readers of older versions would count the other events of a shared entry as lost.

KEYS[1]  the shard's prefix, "runyard:{n}:"; its hash tag puts every key that is built from it into one hash slot
ARGV     approximate maximum number and bytes of events per stream; time to live in ms of the stream of a run that has not
         stopped; time to live in ms of the stream of a stopped run; then per run: "thread key:run id", "1" if the last event
         stops the run, "2" if the run probably has no stream yet, else "0", number of its events, then per event: id, payload
Returns  the number of events added
]]
-- include streams.lua
local MESSAGE = 32768 -- bytes of events after which a new message begins
local TOLERANCE = 1000 -- ms by which the expiry of a running run's stream can be too early, so that few appends write the expiry
local SWEPT = 1000 -- ms between two sweeps by appends; after a sweep that leaves expired streams, the next append sweeps again
local SWEEP = 100 -- maximum number of streams per index that one sweep removes

local prefix, most_events, most_bytes = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2])
local running, stopped = tonumber(ARGV[3]), tonumber(ARGV[4])
local running_streams, stopped_streams = prefix .. 'running_streams', prefix .. 'stopped_streams'
-- Ms for which the byte counts of streams are kept. They are kept 30 days longer than the streams. A sweep in these
-- days corrects the sum.
local kept = running + stopped + 30 * 86400000
local now, runs, added, made, grown, i = clock(), 0, 0, 0, 0, 5
local begun = {} -- by thread: true if the call adds an event numbered 1 to one of its runs

-- Remove the oldest events of a stream that exceeds its limits by a tenth. size: the bytes of its events. Return the bytes of
-- the events that are left. The newest event stays.
local function trimmed(stream, size)
  if size <= most_bytes and size <= most_events * ENTRY then
    return size -- a stream of so few bytes cannot have too many events
  end
  local length = redis.call('XLEN', stream)
  if length <= most_events * 1.1 and size <= most_bytes * 1.1 then
    return size
  end
  local from = '-'
  while length > 1 and (length > most_events or size > most_bytes) do
    local oldest = redis.call('XRANGE', stream, from, '+', 'COUNT', 16)
    for _, entry in ipairs(oldest) do
      if length > 1 and (length > most_events or size > most_bytes) then
        length, size = length - 1, size - ENTRY - #(entry[2][2] or '')
      else
        from = entry[1]
        break
      end
      from = '(' .. entry[1]
    end
  end
  redis.call('XTRIM', stream, 'MAXLEN', length)
  return math.max(size, 0)
end

-- Store an event. Return its id, or nil if the id is not higher than the stream's last id. make: true to create the
-- stream if it does not exist. If make is false and the stream does not exist, return false.
local function store(stream, make, id, payload)
  local reply
  if make then
    reply = redis.pcall('XADD', stream, id, 'e', payload)
  else
    reply = redis.pcall('XADD', stream, 'NOMKSTREAM', id, 'e', payload)
  end
  if type(reply) ~= 'table' then
    return reply
  elseif not string.find(tostring(reply.err), 'equal or smaller', 1, true) then
    redis.call('XADD', stream, id, 'e', payload) -- raises the error
  end
end

-- Publish the events at the given positions of ARGV. Each event is an id and a payload.
local function publish(stream, positions)
  local parts, size = {}, 0
  for n, j in ipairs(positions) do
    parts[#parts + 1] = ARGV[j] .. ' ' .. #ARGV[j + 1] .. ' '
    parts[#parts + 1] = ARGV[j + 1]
    size = size + #ARGV[j + 1]
    if n == #positions or size >= MESSAGE then
      if #parts == 2 then
        redis.call('SPUBLISH', stream, ARGV[j] .. ' ' .. ARGV[j + 1])
      else
        redis.call('SPUBLISH', stream, '* ' .. table.concat(parts))
      end
      parts, size = {}, 0
    end
  end
end

-- Set the expiry of a run's stream. size: the bytes of its events before the call, nil if they were not counted. created: true
-- if the call made the stream. stops: true if the run has stopped.
local function keep(member, stream, sizes, size, created, stops)
  local index, lifetime = running_streams, running
  if stops then
    index, lifetime = stopped_streams, stopped
  elseif not created then
    local expiry = tonumber(redis.call('ZSCORE', index, member) or nil)
    if expiry and expiry >= now + lifetime - math.min(TOLERANCE, lifetime / 10) then
      return
    end
  end
  if size then
    redis.call('ZREM', size == 0 and prefix .. 'emptied_streams' or stops and running_streams or stopped_streams, member)
  end
  redis.call('ZADD', index, now + lifetime, member)
  redis.call('PEXPIRE', stream, lifetime)
  if created or not stops then
    redis.call('PEXPIRE', sizes, kept)
  end
end

-- Count the bytes of new events in an existing stream. Return two numbers: the bytes of its events before the call (nil if they
-- were not counted), and after the call.
local function counted(member, sizes, run, bytes)
  local size = redis.call('HINCRBY', sizes, run, bytes)
  local emptied = size == bytes and redis.call('ZSCORE', prefix .. 'emptied_streams', member)
  if size > bytes or emptied then
    return size - bytes, size
  end
  redis.call('PEXPIRE', sizes, kept)
  return nil, size
end

-- Add the events at positions `first` to `last` of ARGV to the stream of a run. make: true if the run probably has no stream
-- yet.
local function append(member, first, last, make, stops)
  local stream, sizes, run, thread = names_of(prefix, member)
  local account = make and redis.call('HMGET', sizes, run, '')
  local created = account and not account[1] and not account[2]
  local deleted, bytes, told = false, 0, {}
  for j = first, last, 2 do
    local id, payload = ARGV[j], ARGV[j + 1]
    local stored = deleted or store(stream, created, id, payload)
    if stored == false then
      account = account or redis.call('HMGET', sizes, run, '')
      deleted, created = account[2], true
      stored = deleted or store(stream, true, id, payload)
    end
    if stored then
      bytes, told[#told + 1] = bytes + ENTRY + #payload, j
      if string.sub(id, -2) == '-1' then
        begun[thread] = true
      end
    end
  end
  if #told == 0 then
    return
  end
  added = added + #told
  publish(stream, told)
  if deleted then
    return
  end
  local before, size
  if created then
    before, size = tonumber(account[1] or nil), bytes
    redis.call('HSET', sizes, run, size)
  else
    before, size = counted(member, sizes, run, bytes)
  end
  local left = trimmed(stream, size)
  if left < size then
    redis.call('HSET', sizes, run, left)
  end
  keep(member, stream, sizes, before, created, stops)
  made = made + (before and 0 or 1)
  grown = grown + cost(left) - (before and cost(before) or 0)
end

while i <= #ARGV do
  local member, state, last = ARGV[i], ARGV[i + 1], i + 2 + 2 * tonumber(ARGV[i + 2])
  append(member, i + 3, last, state == '2', state == '1')
  runs = runs + 1
  i = last + 1
end
for thread in pairs(begun) do
  redis.call('SPUBLISH', prefix .. 'events:' .. thread, '')
end

-- Most calls add to counted streams that stay below NODE bytes. Such calls do not change the sum over all streams.
if made == 0 and grown == 0 then
  return added
end
local sum = prefix .. 'stream_bytes'
local sweeps = made > 0 and redis.call('PTTL', sum) < kept - SWEPT
local total = redis.call('INCRBY', sum, string.format('%.0f', grown))
if total < 0 then -- as in `add_bytes` (drops.lua)
  redis.call('SET', sum, 0, 'KEEPTTL')
  total = 0
end
local limit = tonumber(redis.call('GET', prefix .. 'stream_limit') or nil)
if not sweeps and not (limit and total > limit) then
  return added
end
-- include drops.lua
if sweeps then
  local freed, more = sweep(prefix, now, SWEEP)
  if freed > 0 then
    total = add_bytes(prefix, -freed)
  end
  for _, name in ipairs(more and {} or {'stream_bytes', 'streams_dropped', unpack(INDEXES)}) do
    redis.call('PEXPIRE', prefix .. name, kept)
  end
end
if limit and total > limit then
  add_bytes(prefix, -shrink(prefix, total, limit, 2 * runs + 2)) -- the call has made fewer streams than this
end
return added
