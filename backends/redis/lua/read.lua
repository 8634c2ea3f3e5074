--[[
One page of a run's events, and what the stream can prove about those before it.

KEYS[1]  the stream
ARGV     the id after which to read ("" from the start), how many events at most, about how many bytes (one event is read whatever its
         size)
Returns  1 if nothing can be missing between the id and the page because the stream still holds the id (or, from the start, because
         nothing was ever trimmed), else 0; 1 if there may be more after the page, else 0; then per event: id, payload
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
  -- as many as fit by what was seen, and few: larger ones may follow, and what does not fit is read to be thrown away
  step = math.max(1, math.min(16, math.floor((most - size) * got / math.max(size, 1))))
end
out[2] = 1
return out
