--[[
Store the time of the next look for jobs of an arq queue that have no result yet. A job with another token is not changed,
because it was answered and added again.

KEYS[1]  the prefix of shard 0, "runyard:{0}:"; arq's own keys have no hash tag
ARGV     queue, ms for which arq shows a job as in progress (IN_PROGRESS_SECONDS, redis/arq_queue.py), then per job: id, token,
         the record of its run to store, or '' to store no record, ms until the next look, "1" if its run has started and else
         "0"
Returns  nothing
]]
local prefix, queue = KEYS[1], ARGV[1]
local jobs, runs, looks = prefix .. 'arq_jobs:' .. queue, prefix .. 'arq_runs:' .. queue, prefix .. 'arq_looks:' .. queue
local time = redis.call('TIME')
local now = math.floor(time[1] * 1000 + time[2] / 1000)

for i = 3, #ARGV, 5 do
  local id, record = ARGV[i], ARGV[i + 2]
  if redis.call('HGET', jobs, id) == ARGV[i + 1] then
    if record ~= '' then
      redis.call('HSET', runs, id, record)
    end
    redis.call('ZADD', looks, now + ARGV[i + 3], id)
    if ARGV[i + 4] == '1' then
      redis.call('SET', 'arq:in-progress:' .. id, '1', 'PX', ARGV[2])
    else
      redis.call('DEL', 'arq:in-progress:' .. id)
    end
  end
end
