--[[
Read one page of a run's events, and tell whether the stream can prove that no event before the page is missing.

KEYS[1]  the stream
ARGV     the id after which to read ("" for the start), the maximal number of events, the approximate maximal number of bytes
         (at least one event is read, whatever its size)
Returns  1 if no event can be missing between the id and the page, because the stream still holds the id (or, from the start,
         because no event was ever trimmed), else 0; 1 if there may be more after the page, else 0; then per event: id, payload
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
  -- Estimate how many entries fit from those seen so far, but read few at once: larger ones may follow, and entries that do not
  -- fit are discarded.
  step = math.max(1, math.min(16, math.floor((most - size) * got / math.max(size, 1))))
end
out[2] = 1
return out
