"""Guards that keep a promise, each with a way to take it away and the tests that must notice."""

from __future__ import annotations

from typing import Final

from tests.mutants.attempts import ATTEMPTS
from tests.mutants.batches import BATCHES
from tests.mutants.chains import CHAINS
from tests.mutants.deployment import DEPLOYMENT
from tests.mutants.failovers import FAILOVERS
from tests.mutants.fan_outs import FAN_OUTS
from tests.mutants.histories import HISTORIES
from tests.mutants.locked_threads import LOCKED_THREADS
from tests.mutants.mutant import Edit, Mutant, mutant
from tests.mutants.outside import OUTSIDE
from tests.mutants.owners import OWNERS
from tests.mutants.plain_runs import PLAIN_RUNS
from tests.mutants.timelines import TIMELINES
from tests.mutants.waits import WAITING

SQL: Final = "backends/runyard_backends/postgres"
APPEND: Final = f"{SQL}/functions/append.sql"
CLAIM: Final = f"{SQL}/functions/claim.sql"
COMPLETE: Final = f"{SQL}/functions/complete.sql"
END_RUN: Final = f"{SQL}/functions/end_run.sql"
PRUNE: Final = f"{SQL}/functions/prune.sql"
REDRIVE: Final = f"{SQL}/functions/redrive.sql"
REPETITIONS: Final = f"{SQL}/functions/same_request.sql"
RESPOND: Final = f"{SQL}/functions/respond.sql"
LIVE_RUNS: Final = f"{SQL}/functions/live_runs.sql"
LIVE_TABLES: Final = f"{SQL}/migrations/0006_live_runs.sql"
STARTABLE: Final = f"{SQL}/functions/startable.sql"
STEPS: Final = f"{SQL}/functions/steps.sql"
TAKE_OVER: Final = f"{SQL}/functions/take_over.sql"
THREADS: Final = f"{SQL}/functions/threads.sql"
USAGE: Final = f"{SQL}/functions/usage.sql"
VISIBILITY: Final = f"{SQL}/functions/visible_messages.sql"
WORKERS: Final = f"{SQL}/functions/workers.sql"
WRITE: Final = f"{SQL}/functions/write.sql"
LUA: Final = "backends/runyard_backends/redis/lua"
LEFTOVERS: Final = "tests/integration/postgres/test_leftovers.py"
POSTGRES: Final = "tests/conformance/test_postgres.py"
STREAMS: Final = "tests/integration/redis/test_stream_memory.py"

MUTANTS: Final[tuple[Mutant, ...]] = (
    mutant(
        "any fence may end a run", WRITE,
        "WHEN r.fence IS DISTINCT FROM with_fence OR r.kind = 'external' THEN 'stale_fence'",
        "WHEN r.kind = 'external' THEN 'stale_fence'",
        POSTGRES, "-k", "stale_writes",
    ),
    mutant(
        "a cancelled run may append", WRITE,
        "WHEN r.cancel_requested_at IS NOT NULL THEN 'cancel_requested' END",
        "END",
        POSTGRES, "-k", "cancel",
    ),
    mutant(
        "two runs of a lane may be active", LIVE_TABLES,
        "CREATE UNIQUE INDEX live_runs_active",
        "CREATE INDEX live_runs_active",
        "tests/integration/postgres/test_last_guards.py",
    ),
    mutant(
        "accept takes no thread lock", THREADS,
        "        t := runyard.live_thread(for_tenant, thread_id);\n        IF t.thread_key",
        "        SELECT x.* INTO t FROM runyard.threads x WHERE x.tenant = for_tenant AND x.thread_id = ensure_thread.thread_id"
        " AND x.deleted_at IS NULL;\n        IF t.thread_key",
        "tests/integration/postgres/test_verb_pairs.py",
    ),
    mutant(
        "a run id fits any request", REPETITIONS,
        "IF FOUND AND r.request_hash IS DISTINCT FROM q.request_hash THEN",
        "IF false THEN",
        POSTGRES, "-k", "conflicts",
    ),
    Mutant(
        "a request is answered twice", (POSTGRES, "-k", "answer or respond"),
        (
            Edit(
                RESPOND,
                "request.request_id <> checked_request_id OR request.answered_at IS NOT NULL",
                "request.request_id <> checked_request_id",
            ),
            Edit(
                RESPOND,
                "y.request_id = respond.checked_request_id AND y.answered_at IS NULL AND y.closed_at IS NULL",
                "y.request_id = respond.checked_request_id",
            ),
        ),
    ),
    mutant(
        "a fork sees what completed later", VISIBILITY,
        "OR m.run_id = l.open_run_id OR r.completion_seq <= l.cutoff);\n    END LOOP;",
        "OR m.run_id = l.open_run_id OR r.completion_seq IS NOT NULL);\n    END LOOP;",
        POSTGRES, "-k", "Fork or Cut or snapshot",
    ),
    mutant(
        "a dead worker may claim", CLAIM,
        "SELECT w.* INTO claimant FROM runyard.workers w WHERE w.worker_id = claim.worker_id AND w.dead_at IS NULL;",
        "SELECT w.* INTO claimant FROM runyard.workers w WHERE w.worker_id = claim.worker_id;",
        POSTGRES, "-k", "living_worker or death",
    ),
    mutant(
        "a dead worker may beat", WORKERS,
        "SET heartbeat_at = clock_timestamp() WHERE w.worker_id = beat.worker_id AND w.dead_at IS NULL",
        "SET heartbeat_at = clock_timestamp() WHERE w.worker_id = beat.worker_id",
        POSTGRES, "-k", "death",
    ),
    mutant(
        "the living are taken over", TAKE_OVER,
        "IF NOT died AND r.worker_id <> claimant.worker_id THEN",
        "IF false THEN",
        POSTGRES, "-k", "busy",
    ),
    mutant(
        "a crash is not counted", TAKE_OVER,
        "    IF died THEN\n", "    IF false THEN\n",
        POSTGRES, "-k", "Poison",
    ),
    mutant(
        "a worker that leaves blames its runs", TAKE_OVER,
        "    IF died THEN\n", "    IF died IS NOT FALSE THEN\n",
        POSTGRES, "-k", "left_behind",
    ),
    mutant(
        "usage of a retried attempt is lost", COMPLETE,
        "usage = CASE WHEN used IS NULL THEN y.usage ELSE", "usage = CASE WHEN true THEN y.usage ELSE",
        POSTGRES, "-k", "before_a_retry",
    ),
    mutant(
        "usage of a cancelled attempt is lost", WRITE,
        "        IF used IS NOT NULL THEN r.usage :=", "        IF false THEN r.usage :=",
        POSTGRES, "-k", "usage_of_a_cancelled_attempt",
    ),
    mutant(
        "an agent's errors at other deployments are never counted", "runner/runyard/execution/executor.py",
        "        if isinstance(error, StoreUnansweredError):", "        if isinstance(error, BackendUnavailableError):",
        "tests/unit/execution/test_executor.py", "-k", "deployment",
    ),
    mutant(
        "runs of a lane overtake", STARTABLE,
        "ELSIF EXISTS (SELECT 1 FROM runyard.live_runs y WHERE y.thread_key = r.thread_key AND y.lane = r.lane",
        "ELSIF false AND EXISTS (SELECT 1 FROM runyard.live_runs y WHERE y.thread_key = r.thread_key AND y.lane = r.lane",
        POSTGRES, "-k", "Lanes",
    ),
    mutant(
        "open tool calls complete", COMPLETE,
        "IF r.has_tools AND NOT runyard.cycles_closed(r) THEN",
        "IF false THEN",
        POSTGRES, "-k", "tool_cycle",
    ),
    mutant(
        "an abort leaves calls open", END_RUN,
        "        IF open_calls <> '{}' THEN",
        "        IF open_calls <> '{}' AND r.abort_words IS NULL THEN",
        POSTGRES, "-k", "Abort",
    ),
    mutant(
        "nobody rescues", "runner/runyard/worker/reconciler.py",
        "            await self._rescue.step()\n",
        "            pass\n",
        "tests/integration/worker/test_worker_host.py", "-k", "rescue",
    ),
    mutant(
        "the leader's work delays the heartbeats", "runner/runyard/worker/failure_detector.py",
        "            self._on_change()\n        for",
        "            self._on_change()\n            await backend.workers.waiting(unchanged=None)\n        for",
        "tests/integration/worker/test_worker_host.py", "-k", "keeps_no_worker_alive",
    ),
    mutant(
        "a death wakes nobody", "runner/runyard/worker/reconciler.py",
        "        self._wake.set()\n",
        "",
        "tests/integration/worker/test_worker_host.py", "-k", "death_begins_a_pass",
    ),
    mutant(
        "runs of dead workers are no orphans", WORKERS,
        "w.worker_id = orphans.worker_id AND w.dead_at IS NULL",
        "w.worker_id = orphans.worker_id",
        POSTGRES, "-k", "orphans_are_the_running",
    ),
    mutant(
        "orphans of live workers are read", WORKERS,
        "        CONTINUE WHEN EXISTS (SELECT 1 FROM runyard.workers w",
        "        CONTINUE WHEN false AND EXISTS (SELECT 1 FROM runyard.workers w",
        POSTGRES, "-k", "orphans_are_the_running",
    ),
    mutant(
        "a run behind another waits for a worker", WORKERS,
        "AND y.lane_seq < l.lane_seq ORDER", "AND y.lane_seq < 0 ORDER",
        POSTGRES, "-k", "heads_of_lanes_wait",
    ),
    mutant(
        "a run behind another still waits for a worker", WORKERS,
        "AND x.lane_seq < l.lane_seq ORDER", "AND x.lane_seq < 0 ORDER",
        POSTGRES, "-k", "still_waiting_are",
    ),
    mutant(
        "a run that ended stays live", LIVE_RUNS,
        "    DELETE FROM runyard.live_runs WHERE accept_no = r.accept_no;",
        "    DELETE FROM runyard.live_runs WHERE false AND accept_no = r.accept_no;",
        POSTGRES, "-k", "Lanes",
    ),
    mutant(
        "a deleted run stays live", LIVE_RUNS,
        "    DELETE FROM runyard.live_runs x USING gone g WHERE x.accept_no = g.accept_no;\n",
        "",
        "tests/integration/postgres/test_live_runs.py",
    ),
    mutant(
        "a later claim has no input", CLAIM,
        "c.run := CASE WHEN r.input IS NULL THEN runyard.with_input(r) ELSE r END;",
        "c.run := r;",
        "tests/integration/postgres/test_inputs.py",
    ),
    mutant(
        "an append changes the indexes of live runs", f"{SQL}/functions/append.sql",
        "has_tools = r.has_tools,\n", "has_tools = r.has_tools, changed_at = now(),\n",
        "tests/integration/postgres/test_updates_in_place.py", "-k", "tools",
    ),
    mutant(
        "the rotation stays where it is", "runner/runyard/worker/lost_jobs.py",
        "            self._rotation.advance(page.after)\n",
        "            self._rotation.advance(None)\n",
        "tests/unit/worker/test_lost_jobs.py", "-k", "rotation_examines",
    ),
    mutant(
        "a failure begins no sweep", "runner/runyard/worker/lost_jobs.py",
        "        except RunyardError:\n            self.sweep()\n",
        "        except RunyardError:\n",
        "tests/unit/worker/test_lost_jobs.py", "-k", "without_the_scheduler",
    ),
    mutant(
        "a sweep is not repeated", "runner/runyard/worker/lost_jobs.py",
        "        if self._clock() >= self._sweep_again_at:\n",
        "        if False:\n",
        "tests/unit/worker/test_lost_jobs.py", "-k", "locks_have_expired",
    ),
    mutant(
        "a run that was executed is lost", "runner/runyard/worker/lost_jobs.py",
        "await self._submit(await self._backend.workers.still_waiting(lost, unchanged=MIN_HEAD_AGE))",
        "await self._submit([job for job in missing if job.ref in lost])",
        "tests/unit/worker/test_lost_jobs.py", "-k", "executed_between",
    ),
    mutant(
        "one look makes a run lost", "runner/runyard/worker/lost_jobs.py",
        "if now - since >= MIN_MISSING_SECONDS]",
        "]",
        "tests/unit/worker/test_lost_jobs.py", "-k", "two_looks",
    ),
    mutant(
        "no watchdog", "runner/runyard/worker/heartbeat.py",
        "return self.silence > self.watchdog",
        "return False",
        "tests/unit/worker/test_heartbeat.py",
    ),
    mutant(
        "the heartbeat process has no watchdog", "api/runyard_api/worker/heartbeat_sender.py",
        "time.monotonic() - sign.turned <= order.watchdog and ",
        "",
        "tests/unit/worker/test_heartbeat_process.py",
    ),
    mutant(
        "a stopped worker gets heartbeats", "api/runyard_api/worker/heartbeat_sender.py",
        'fields.get("State", "")[:1] in {"R", "S", "D"} and ',
        "",
        "tests/unit/worker/test_heartbeat_process.py",
    ),
    mutant(
        "the heartbeat process outlives its worker", "api/runyard_api/worker/heartbeat_sender.py",
        "while os.getppid() == self._order.worker_pid:",
        "while True:",
        "tests/unit/worker/test_heartbeat_process.py",
    ),
    mutant(
        "a heartbeat is sent however long it took to connect", f"{SQL}/single_heartbeat.py",
        "if not permitted():",
        "if False:",
        "tests/integration/postgres/test_single_heartbeat.py",
    ),
    mutant(
        "native code loses the runs of its worker", "api/runyard_api/worker/process.py",
        "heartbeat_process=_heartbeat_process(settings),",
        "",
        "tests/integration/worker/test_heartbeat_process.py", "-k", "asleep",
    ),
    mutant(
        "one look makes a worker dead", "runner/runyard/worker/failure_detector.py",
        "if silent.reads >= MIN_READS and asked - silent.since >= MIN_SPAN_SECONDS",
        "if silent.reads >= 1",
        "tests/unit/worker/test_failure_detector.py",
    ),
    mutant(
        "the lease does not expire by itself", "runner/runyard/worker/failure_detector.py",
        "return time.monotonic() < self._leads_until",
        "return self._leads_until > 0",
        "tests/unit/worker/test_failure_detector.py",
    ),
    mutant(
        "a blocked worker leads", "runner/runyard/worker/failure_detector.py",
        "if worker_id is None or self._silence() > LEASE_SECONDS:",
        "if worker_id is None:",
        "tests/unit/worker/test_failure_detector.py",
    ),
    mutant(
        "the locks of workers count that died before they claimed a run", "runner/runyard/worker/lost_jobs.py",
        "self._backend.scheduler.missing_jobs(waiting, self._dead)", "self._backend.scheduler.missing_jobs(waiting)",
        "tests/unit/worker/test_lost_jobs.py", "-k", "from_its_queue",
    ),
    mutant(
        "the locks of dead workers count", "runner/runyard/worker/lost_jobs.py",
        "self._backend.scheduler.missing_jobs(jobs, dead)",
        "self._backend.scheduler.missing_jobs(jobs)",
        "tests/unit/worker/test_lost_jobs.py",
    ),
    mutant(
        "a recorded step is repeated", "runner/runyard/execution/steps.py",
        "        if known is not None and known.done:\n",
        "        if False:\n",
        "tests/unit/execution/test_steps.py",
    ),
    mutant(
        "any worker may release a lock", f"{LUA}/release.lua",
        "if held[i] == values[i] or same_lock(held[i], values[i]) then",
        "if true then",
        "tests/integration/redis/test_scheduler.py", "tests/stateful/test_scheduler_model.py",
    ),
    mutant(
        "any worker may renew a lock", f"{LUA}/renew.lua",
        "  if value == ARGV[i + 1] then",
        "  if value then",
        "tests/integration/redis/test_scheduler.py", "tests/stateful/test_scheduler_model.py",
    ),
    mutant(
        "a zombie may speak", f"{LUA}/append.lua",
        "    if stored then\n",
        "    if true then\n",
        "tests/integration/redis/test_events.py",
    ),
    mutant(
        "a tool whose result is stored is called again", "runner/runyard/agents/durable_tools.py",
        "        if (known := self.results.get(call.tool_call_id)) is not None:\n            return known.again()\n",
        "",
        "tests/unit/agents/test_engine.py",
    ),
    mutant(
        "a tool that asks takes the others down", "runner/runyard/execution/parking.py",
        "        if self._steps.inside_tool:\n",
        "        if False:\n",
        "tests/unit/agents/test_engine_humans.py",
    ),
    mutant(
        "an answer that is not completed is asked for again", "runner/runyard/agents/engine.py",
        "if tail.answered and isinstance(node, ModelRequestNode):",
        "if False:",
        "tests/unit/agents/test_engine.py",
    ),
    mutant(
        "usage is counted past an open transaction", USAGE,
        "    IF c.goal > pg_snapshot_xmin(pg_current_snapshot()) THEN RETURN; END IF;\n", "",
        "tests/integration/postgres/test_usage.py",
    ),
    mutant(
        "two leaders count usage at once", USAGE,
        "runyard.usage_counter x FOR UPDATE SKIP LOCKED;", "runyard.usage_counter x;",
        "tests/integration/postgres/test_usage.py",
    ),
    mutant(
        "a redriven run counts twice", REDRIVE,
        "usage_before = coalesce(y.usage, '{}')", "usage_before = NULL",
        POSTGRES, "-k", "redriven_counts",
    ),
    mutant(
        "what was not counted is pruned", PRUNE,
        "coalesce((SELECT u.counted FROM runyard.usage_counter u), '0')", "pg_snapshot_xmin(pg_current_snapshot())",
        POSTGRES, "-k", "not_counted",
    ),
    mutant(
        "streams have no limit together", f"{LUA}/append.lua",
        "if limit and total > limit then", "if false then",
        STREAMS, "-k", "keep_to_their_limit",
    ),
    mutant(
        "streams of running runs go first", f"{LUA}/drops.lua",
        "{'stopped_streams', 'running_streams', ", "{'running_streams', 'stopped_streams', ",
        STREAMS, "-k", "keep_to_their_limit",
    ),
    mutant(
        "a dropped stream is forgotten", f"{LUA}/drops.lua",
        "redis.call('XTRIM', stream, 'MAXLEN', 0)", "redis.call('DEL', stream)",
        STREAMS, "-k", "superseded or middle_of",
    ),
    mutant(
        "a stream has no limit in bytes", f"{LUA}/append.lua",
        " and size <= most_bytes * 1.1", "",
        STREAMS, "-k", "keeps_to_its_bytes",
    ),
    mutant(
        "events of a deleted thread are stored", f"{LUA}/append.lua",
        "deleted, created = account[2], true", "deleted, created = false, true",
        STREAMS, "-k", "deleted_threads",
    ),
    mutant(
        "the stream of a running run expires although it goes on", f"{LUA}/append.lua",
        "if expiry and expiry >= now + lifetime - math.min(TOLERANCE, lifetime / 10) then", "if expiry then",
        STREAMS, "-k", "while_it_goes_on",
    ),
    mutant(
        "all events of a call are one message", f"{LUA}/append.lua",
        "if n == #positions or size >= MESSAGE then", "if n == #positions then",
        "tests/integration/redis/test_events.py", "-k", "are_one_message",
    ),
    mutant(
        "a job that finds no memory is refused", "backends/runyard_backends/redis/connection.py",
        "room = self.room() if refused else ()", "room = ()",
        STREAMS, "-k", "finds_room",
    ),
    mutant(
        "a full server that does not tell its memory stays full", f"{LUA}/total_limit.lua",
        "elseif not decides then", "elseif false then",
        STREAMS, "-k", "tell_its_memory",
    ),
    mutant(
        "the sizes of streams that are left expire", f"{LUA}/forget.lua",
        "if redis.call('HLEN', sizes) > 1 then", "redis.call('PEXPIRE', sizes, kept)\n  if redis.call('HLEN', sizes) > 1 then",
        STREAMS, "-k", "in_parts",
    ),
    mutant(
        "a claim needs free memory", f"{LUA}/claim.lua",
        "-- allow-oom\n", "",
        STREAMS, "-k", "other_data",
    ),
    mutant(
        "the job of an ended run stays for ever", f"{LUA}/submit.lua",
        ", 'PX', string.format('%.0f', delay + KEPT)", "",
        STREAMS, "-k", "nobody_serves",
    ),
    mutant(
        "a reader does not hear of a loss between attempts", "runner/runyard/events/run_stream.py",
        "doubtful = self.doubt and self.cursor.turns(event)", "doubtful = False",
        STREAMS, "-k", "between_attempts",
    ),
    mutant(
        "all events of a deletion are one script", "backends/runyard_backends/redis/events.py",
        "if sizes[shard] >= EVENTS_PER_APPEND:", "if False:",
        "tests/integration/redis/test_events.py", "-k", "short_scripts",
    ),
    mutant(
        "the limit of a lane reads the runs that ended", f"{SQL}/functions/queue_limits.sql",
        "(SELECT t.lane_floor FROM runyard.threads t WHERE t.thread_key = key)", "0",
        "tests/integration/postgres/test_long_lanes.py", "-k", "limit",
    ),
    mutant(
        "threads that cannot be removed starve the others", f"{SQL}/functions/removal.sql",
        "first + floor(random() *", "first + floor(0 *",
        LEFTOVERS, "-k", "starve",
    ),
    mutant(
        "a removal that takes too long undoes the pruning", f"{SQL}/functions/removal.sql",
        "WHEN query_canceled THEN", "WHEN division_by_zero THEN",
        LEFTOVERS, "-k", "too_long",
    ),
    mutant(
        "nobody is told of a deletion whose caller was cancelled", f"{SQL}/threads.py",
        "except asyncio.CancelledError:", "except ZeroDivisionError:",
        LEFTOVERS, "-k", "cancelled",
    ),
    mutant(
        "a pass cleans one fork of an erased thread", "runner/runyard/worker/reconciler.py",
        "            if time.monotonic() - began >= PRUNE_PART_SECONDS:\n                return\n", "            return\n",
        "tests/unit/worker/test_pruning.py",
    ),
    *LOCKED_THREADS,
    *OUTSIDE,
    *OWNERS,
    *BATCHES,
    *CHAINS,
    *PLAIN_RUNS,
    *DEPLOYMENT,
    *FAILOVERS,
    *FAN_OUTS,
    *HISTORIES,
    *WAITING,
    *ATTEMPTS,
    *TIMELINES,
)  # fmt: skip
