--[[
Write the result of a job of an arq queue, and remove all other keys of the job. If the job has another token or record, change
nothing. Another token means that the job was answered and added again. Another record means that another worker has accepted
the run of the job.

KEYS[1]  the prefix of shard 0, "runyard:{0}:"; arq's own keys have no hash tag
ARGV     queue, ms for which the result is kept (DEFAULT_ARQ_RESULT_SECONDS, runyard/ports/worker_defaults.py), id, token, record, result
Returns  1, or 0 if nothing was changed
]]
local prefix, queue, id = KEYS[1], ARGV[1], ARGV[3]
local jobs, runs = prefix .. 'arq_jobs:' .. queue, prefix .. 'arq_runs:' .. queue

if redis.call('HGET', jobs, id) ~= ARGV[4] or (redis.call('HGET', runs, id) or '') ~= ARGV[5] then
  return 0
end
redis.call('SET', 'arq:result:' .. id, ARGV[6], 'PX', ARGV[2])
redis.call('DEL', 'arq:job:' .. id, 'arq:in-progress:' .. id, 'arq:retry:' .. id)
redis.call('ZREM', 'arq:abort', id)
redis.call('ZREM', queue, id)
redis.call('HDEL', jobs, id)
redis.call('HDEL', runs, id)
redis.call('HDEL', prefix .. 'arq_aborts:' .. queue, id)
redis.call('ZREM', prefix .. 'arq_looks:' .. queue, id)
return 1
