--[[
Read one page of a run's events. Check that no event between the given id and the page is missing. redis/events.py calls
this script, and yields a `gap` if an event may be missing. runyard/events/run_stream.py adds the events that follow
from the state in Postgres.

KEYS[1]  the stream
ARGV     the id after which to read ("": from the start), the maximum number of events, the approximate maximum number of bytes
         (EVENTS_PER_READ and EVENT_BYTES_PER_READ, runyard/ports/scheduling.py; a larger event is a page by itself)
Returns  1 if no event is missing between the id and the page, else 0; 1 if more events may follow the page, else 0; then per
         event: id, payload

The first value is 1 if the stream still has the event with this id. For a read from the start, it is 1 if no event was ever
removed.
]]
local stream, after, count, most = KEYS[1], ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local whole = 1
if redis.call('EXISTS', stream) == 0 then
  return {after == '' and 1 or 0, 0}
end
if after == '' then
  local info = redis.call('XINFO', 'STREAM', stream)
  local facts = {}
  for i = 1, #info, 2 do
    facts[info[i]] = info[i + 1]
  end
  if facts['entries-added'] and facts['entries-added'] > facts['length'] then
    whole = 0
  end
elseif #redis.call('XRANGE', stream, after, after) == 0 then
  whole = 0
end
local out, size, got = {whole, 0}, 0, 0
local from, step = after == '' and '-' or '(' .. after, 1
while got < count and size < most do
  local entries = redis.call('XRANGE', stream, from, '+', 'COUNT', math.min(step, count - got))
  if #entries == 0 then
    return out
  end
  for _, entry in ipairs(entries) do
    local payload = entry[2][1] == 'e' and entry[2][2] or ''
    size = size + #entry[1] + #payload
    if got > 0 and size > most then
      out[2] = 1
      return out
    end
    out[#out + 1] = entry[1]
    out[#out + 1] = payload
    got = got + 1
  end
  from = '(' .. entries[#entries][1]
  -- Estimate from the size of the previous entries how many more entries fit. Read at most 16 entries at once: larger
  -- entries may follow, and reading entries that do not fit is wasted work.
  step = math.max(1, math.min(16, math.floor((most - size) * got / math.max(size, 1))))
end
out[2] = 1
return out
