--[[
One page of a run's events, and what the stream can prove about those before it.

KEYS[1]  the stream
ARGV     the id after which to read ("" from the start), how many events at most
Returns  1 if nothing can be missing between the id and the page because the stream still holds the id (or, from the start, because
         nothing was ever trimmed), else 0; then per event: id, payload
]]
local stream, after, count = KEYS[1], ARGV[1], ARGV[2]
local whole = 1
if redis.call('EXISTS', stream) == 0 then
  return {after == '' and 1 or 0}
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
local out = {whole}
for _, entry in ipairs(redis.call('XRANGE', stream, after == '' and '-' or '(' .. after, '+', 'COUNT', count)) do
  out[#out + 1] = entry[1]
  out[#out + 1] = entry[2][2]
end
return out
