--[[
Add events to the streams of runs of one shard and publish them to followers. Drop streams while all streams together take more
than their limit, which trim.lua sets.

An event whose id "fence-n" is not above the stream's last id is dropped without an error. Such an event is a repetition, or it
comes from an attempt that was superseded. Events of a deleted thread are published only.

The first write is XADD, so that a server without free memory refuses the call before it has changed anything.

KEYS[1]  the shard's prefix, "runyard:{n}:"; its hash tag puts every key that is built from it into the same slot
ARGV     approximate maximal number and bytes of events per stream; time to live in ms of the stream of a run that has not
         stopped, and of one that has; then per run: "thread key:run id", 1 if the last event stops the run, else 0, number of
         its events, then per event: id, payload
Returns  the number of events added
]]
-- include streams.lua
-- Ms for which the account of a stream is kept longer than the stream. The account is right as long as a sweep comes in this time.
local KEPT = 30 * 86400000

local prefix, most_events, most_bytes = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2])
local lifetimes = {['0'] = tonumber(ARGV[3]), ['1'] = tonumber(ARGV[4])}
local indexes = {['0'] = prefix .. 'running_streams', ['1'] = prefix .. 'stopped_streams'}
local kept = math.max(lifetimes['0'], lifetimes['1']) + KEPT
local now, runs, added, grown, i = clock(), 0, 0, 0, 5

local function parts(id)
  local fence, n = string.match(id, '^(%d+)-(%d+)$')
  return tonumber(fence), tonumber(n)
end

-- Return fence and n of a stream's last event, and the bytes of its events. known: the bytes by the account, or nil.
local function state(stream, known)
  local last = redis.call('XREVRANGE', stream, '+', '-', 'COUNT', 1)[1]
  if last then
    local fence, n = parts(last[1])
    return fence, n, known or 0
  end
  local info = known and redis.call('EXISTS', stream) == 1 and redis.call('XINFO', 'STREAM', stream) or {}
  for at = 1, #info, 2 do
    if info[at] == 'last-generated-id' then -- an empty stream
      local fence, n = parts(info[at + 1])
      return fence, n, 0
    end
  end
  return 0, 0, 0
end

-- Remove the oldest events of a stream that has a tenth more than it may keep. size: the bytes of its events. Return the bytes
-- of those that are left. The newest event stays.
local function trimmed(stream, size)
  if size <= most_bytes and size <= most_events * ENTRY then
    return size -- the events cannot be too many
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

while i <= #ARGV do
  local member, stops, count = ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2])
  local stream, sizes, run = names_of(prefix, member)
  local account = redis.call('HMGET', sizes, run, '')
  local known, deleted = tonumber(account[1] or nil), account[2]
  local fence, n, size = state(stream, known)
  local before = added
  for j = i + 3, i + 1 + 2 * count, 2 do
    local id, payload = ARGV[j], ARGV[j + 1]
    local id_fence, id_n = parts(id)
    if id_fence > fence or (id_fence == fence and id_n > n) then
      if not deleted then
        redis.call('XADD', stream, id, 'e', payload)
      end
      redis.call('PUBLISH', stream, id .. ' ' .. payload)
      if id_n == 1 then
        redis.call('PUBLISH', prefix .. 'events:' .. string.match(member, '^%d+'), '')
      end
      fence, n, size, added = id_fence, id_n, size + ENTRY + #payload, added + 1
    end
  end
  if added > before and not deleted then
    size = trimmed(stream, size)
    redis.call('PEXPIRE', stream, lifetimes[stops])
    redis.call('HSET', sizes, run, size)
    redis.call('PEXPIRE', sizes, kept)
    if known then
      redis.call('ZREM', known == 0 and prefix .. 'emptied_streams' or indexes[stops == '1' and '0' or '1'], member)
    end
    redis.call('ZADD', indexes[stops], now + lifetimes[stops], member)
    grown = grown + cost(size) - (known and cost(known) or 0)
  end
  runs = runs + 1
  i = i + 3 + 2 * count
end

if added > 0 then
  local room = 2 * runs + 2 -- more streams than the call can have added
  local total = add_bytes(prefix, grown - sweep(prefix, now, room))
  local limit = tonumber(redis.call('GET', prefix .. 'stream_limit') or nil)
  if limit and total > limit then
    add_bytes(prefix, -shrink(prefix, total, limit, room))
  end
  for _, name in ipairs({'stream_bytes', 'streams_dropped', unpack(INDEXES)}) do
    redis.call('PEXPIRE', prefix .. name, kept)
  end
end
return added
