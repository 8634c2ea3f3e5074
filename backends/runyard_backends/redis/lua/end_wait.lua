--[[
End the current wait of one worker. If the worker is not waiting, end its next wait.

KEYS[1]  the list of tokens of that worker, "runyard:{0}:end_wait:<worker>"
ARGV     ms after which the list expires (END_WAIT_MS, redis/scheduler.py)
Returns  nothing
]]
-- allow-oom
redis.call('RPUSH', KEYS[1], '1')
redis.call('PEXPIRE', KEYS[1], ARGV[1])
