--[[
Delete the streams of deleted threads. For some time, later events of these threads are not stored.

KEYS[1]  the shard's prefix, "runyard:{n}:"; its hash tag puts every key that is built from it into one hash slot
ARGV     ms for which later events are not stored, maximum number of streams to delete (FORGOTTEN_MS and STREAMS_PER_CALL,
         redis/events.py), then the thread keys
Returns  the number of threads whose streams are deleted; repeat the call with the other threads
]]
-- allow-oom
-- include streams.lua
-- include drops.lua
local prefix, kept, room = KEYS[1], ARGV[1], tonumber(ARGV[2])
local freed, done = 0, 0

for i = 3, #ARGV do
  local sizes = prefix .. 'sizes:' .. ARGV[i]
  redis.call('HSET', sizes, '', 1)
  for _, run in ipairs(redis.call('HKEYS', sizes)) do
    if run ~= '' and room > 0 then
      local member = ARGV[i] .. ':' .. run
      for _, name in ipairs(INDEXES) do
        redis.call('ZREM', prefix .. name, member)
      end
      freed = freed + delete_stream(prefix, member)
      room = room - 1
    end
  end
  if redis.call('HLEN', sizes) > 1 then
    break -- the sizes of the remaining streams must not expire
  end
  redis.call('PEXPIRE', sizes, kept)
  done = done + 1
end
add_bytes(prefix, -freed)
return done
