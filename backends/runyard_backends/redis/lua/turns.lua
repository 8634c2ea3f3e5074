--[[
Order the due jobs of a queue fairly between tenants. The scripts that make jobs due include this file. claim.lua includes it as
well, to serve the turns.

The tenants that have due jobs in a queue form a ring, turns:<queue>, ordered by the number of their next turn. A tenant that
was served moves to the end of the ring. A new tenant joins at the end. A tenant therefore waits for at most one job of
each other tenant, for any number, priority and age of the other tenants' jobs. A worker may execute several runs of a lane after it
has taken one job; worker/slots.py bounds their number. Within a tenant, high priority comes first. Jobs of one priority are
ordered by the time at which they became due.

KEYS[1]  not used (the including script defines it)
ARGV     not used (the including script defines it)
Returns  nothing, but defines `keep`, `KEPT`, `REQUIREMENTS`, `due_jobs`, `offers`, `drop_offer`, `look_again`, `enter`, `take_turns`
         and `owner_of`
]]
-- Maximum ms for which a job and its queue are kept after the leader's last look-up of the job. The minimum is half of this
-- time.
local KEPT = 86400000
local REQUIREMENTS = 100 -- maximum number of requirements for which delayed jobs of one queue are offered
local CLASS = 2 ^ 50 -- number of positions of one priority among a tenant's jobs
local CLASSES = {high = 0, normal = CLASS, low = 2 * CLASS}

-- Keep a key for about `ms`: at most `ms`, and at least `ms` - KEPT / 2. ms: at least KEPT. Because of this tolerance, only few
-- calls write the expiry. Each look-up of a waiting run's job by the leader (missing_jobs.lua) keeps the job. A job of an ended
-- run expires if no call has withdrawn it. The keys of a queue without jobs also expire.
local function keep(key, ms)
  if redis.call('PTTL', key) < ms - KEPT / 2 then
    redis.call('PEXPIRE', key, ms)
  end
end

-- Return the key of a tenant's due jobs. Queue and tenant are free text. The key contains the length of the queue's
-- name. Otherwise two pairs of queue and tenant could have the same key.
local function due_jobs(prefix, queue, tenant)
  return prefix .. 'due:' .. #queue .. ':' .. queue .. ':' .. tenant
end

-- Return the name of the queue in which the delayed jobs of `queue` with a requirement are offered to workers that fulfil it. Names
-- of clients contain no line break.
local function offers(queue, requirement)
  return queue .. '\n' .. requirement
end

-- Withdraw the offer of a delayed job to workers that fulfil a requirement. The job was taken, has ended, or has another requirement.
local function drop_offer(prefix, queue, id, tenant, requirement)
  local offered = offers(queue, requirement)
  local due, turns = due_jobs(prefix, offered, tenant), prefix .. 'turns:' .. offered
  redis.call('HDEL', prefix .. 'offers:' .. queue, id)
  redis.call('ZREM', due, id)
  if redis.call('EXISTS', due) == 0 then
    redis.call('ZREM', turns, tenant)
    if redis.call('EXISTS', turns) == 0 then
      redis.call('ZREM', prefix .. 'offered:' .. queue, requirement)
      redis.call('DEL', prefix .. 'wake:' .. offered)
    end
  end
end

-- A cache of facts about the queues, so that the call reads each fact once. By key of due jobs: true if the tenant is in the
-- ring and the expiry was checked. By priority and key of due jobs: the last position. By key of a ring: true if the expiry was
-- checked. By key of the jobs that are not due: true if there may be some, false if there are none.
local known = {}

-- Clear the cache, because jobs were removed from a queue or delayed.
local function look_again()
  known = {}
end

-- Return the number of the last turn in the ring, and the tenant that has it. The number is 0 if the ring is empty.
local function last_turn(turns)
  local last = redis.call('ZREVRANGE', turns, 0, 0, 'WITHSCORES')
  return tonumber(last[2] or 0), last[1]
end

-- Add a tenant to the ring if the ring does not have it. due: the key of the tenant's due jobs. Return true if the ring had the
-- tenant before.
local function join(turns, tenant, due)
  local last, whose = last_turn(turns)
  local there = whose == tenant or (last > 0 and redis.call('ZSCORE', turns, tenant))
  if there then
    keep(due, KEPT)
  else
    redis.call('ZADD', turns, last + 1, tenant)
  end
  if not known[turns] and last > 0 then
    keep(turns, KEPT)
  elseif last == 0 then
    redis.call('PEXPIRE', turns, KEPT)
  end
  known[due], known[turns] = true, true
  return there
end

-- Add a job behind the due jobs of its tenant and priority, or beside the first of them if `ahead` is true. Add the tenant to the
-- ring. A job that is due already keeps its position.
local function enter(prefix, queue, id, tenant, priority, ahead)
  local due, turns, later = due_jobs(prefix, queue, tenant), prefix .. 'turns:' .. queue, prefix .. 'later:' .. queue
  local class = CLASSES[priority] or CLASSES.normal
  local place = class .. due
  local joined = known[due] or join(turns, tenant, due)
  if ahead then
    local first = redis.call('ZRANGEBYSCORE', due, class, class + CLASS - 1, 'WITHSCORES', 'LIMIT', 0, 1)[2]
    redis.call('ZADD', due, 'NX', first or class, id)
  else
    local last = known[place]
    if joined and not last then
      last = tonumber(redis.call('ZREVRANGEBYSCORE', due, class + CLASS - 1, class, 'WITHSCORES', 'LIMIT', 0, 1)[2] or nil)
    end
    known[place] = last and last + 1 or class
    redis.call('ZADD', due, 'NX', known[place], id)
  end
  if not joined then
    redis.call('PEXPIRE', due, KEPT) -- the first due job of the tenant
  end
  if known[later] == nil then
    known[later] = redis.call('EXISTS', later) == 1
  end
  if known[later] then
    redis.call('ZREM', later, id)
  end
end

-- Return the tenant and the priority of a stored job. A job of another version may not be decodable. Such a job belongs to the
-- tenant with the empty name.
local function owner_of(payload)
  local read, job = pcall(cmsgpack.unpack, payload or '')
  local named = read and type(job) == 'table' and type(job.k) == 'table' and job.k or {}
  return type(named.tenant) == 'string' and named.tenant or '', named.priority
end

-- Serve the tenants of a queue in turns while has_room() is true. serve(queue, tenant, alone) serves a tenant. It returns true
-- if the tenant has no more due jobs. alone: true if no other tenant has due jobs in the queue. Return true if no due job is
-- left.
local function take_turns(prefix, queue, has_room, serve)
  local turns = prefix .. 'turns:' .. queue
  local last = nil
  while has_room() do
    local first = redis.call('ZRANGE', turns, 0, 1)
    if #first == 0 then
      return true
    end
    local alone = first[2] == nil
    if serve(queue, first[1], alone) then
      redis.call('ZREM', turns, first[1])
      if alone then
        return true
      end
    elseif not alone then
      last = (last or last_turn(turns)) + 1
      redis.call('ZADD', turns, last, first[1])
    end
  end
  return redis.call('EXISTS', turns) == 0
end
