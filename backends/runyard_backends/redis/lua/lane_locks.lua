--[[
Compare the locks of lanes. claim.lua makes a lock, with the value "worker|run|token". Each lock has a token of its own. The
run of a lock may change, because a worker passes the lock on to the next run of the lane.

KEYS[1]  not used (the including script defines it)
ARGV     not used (the including script defines it)
Returns  nothing, but defines `same_lock`
]]

-- Return true if `held`, the value of a key or false, has the worker and the token of `value`.
local function same_lock(held, value)
  local owner, token = string.match(held or '', '^([^|]*)|.*|(%d+)$')
  local wanted, number = string.match(value, '^([^|]*)|.*|(%d+)$')
  return owner ~= nil and owner == wanted and token == number
end
