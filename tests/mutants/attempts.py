"""Mutants of attempts: held messages, usage, batched writes, recorded errors, unread signals, and offers of delayed jobs."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant, mutant

SQL: Final = "backends/runyard_backends/postgres/functions"
SIGNALS: Final = f"{SQL}/signals.sql"
INTERIM: Final = f"{SQL}/interim_writes.sql"
LUA: Final = "backends/runyard_backends/redis/lua"
EXECUTION: Final = "runner/runyard/execution"
CONTEXT: Final = f"{EXECUTION}/context.py"
LOCAL: Final = "runner/runyard/agents/local_attempt.py"
TRANSCRIPT: Final = f"{EXECUTION}/transcript.py"
SUPPORT: Final = "runner/runyard/support"
POSTGRES: Final = "tests/conformance/test_postgres.py"
WRITES: Final = "tests/integration/postgres/test_interim_writes.py"
HELD: Final = "tests/unit/execution/test_held_messages.py"
TOTALS: Final = "tests/unit/execution/test_usage_totals.py"
RECORDS: Final = "tests/unit/execution/test_end_records.py"
BATCHES: Final = "tests/unit/support/test_batching.py"
STREAMS: Final = "tests/integration/redis/test_stream_memory.py"
SCHEDULER: Final = "tests/integration/redis/test_scheduler.py"

ATTEMPTS: Final[tuple[Mutant, ...]] = (
    mutant(
        "an append commits behind the end of its attempt", TRANSCRIPT,
        "            self._check()  # the attempt may have ended while this call waited for the lock\n", "",
        HELD, "-k", "behind_the_end",
    ),
    mutant(
        "what the end of an attempt commits stays held", CONTEXT,
        "held, self._held = self._held, []", "held = self._held",
        HELD, "-k", "behind_the_end",
    ),
    mutant(
        "a second cancel parts an append from its lock", TRANSCRIPT,
        "            cancel = cancel or error\n", "            raise error from None\n",
        HELD, "-k", "second_cancel",
    ),
    mutant(
        "the timer commits without the lock", TRANSCRIPT,
        "        async with self._lock:\n            if self._held and self._signal is None:\n"
        "                await self._commit(self._held)\n",
        "        if self._held and self._signal is None:\n            await self._commit(self._held)\n",
        HELD, "-k", "commit_of_the_timer",
    ),
    mutant(
        "a step counts usage behind the end of its attempt", CONTEXT,
        "            self._check()  # the end of the attempt counts the usage\n", "",
        TOTALS, "-k", "behind_the_end",
    ),
    mutant(
        "the usage of an unanswered write counts twice", f"{EXECUTION}/remainder.py",
        "return self.usage if self.settled is None else await self.settled()", "return self.usage",
        TOTALS, "-k", "away_until_its_end",
    ),
    mutant(
        "the usage of a repeated suspension counts twice", f"{SQL}/suspend.sql",
        "        w.usage := NULL;\n", "        NULL;\n",
        POSTGRES, "-k", "usage_of_a_repeated_suspension",
    ),
    mutant(
        "an attempt continues without an event", f"{EXECUTION}/executor.py",
        '            self._stream.emit("run.resumed", {"attempt": self.record.attempt, "message_id": leaf}, urgent=True)\n', "",
        "tests/unit/execution/test_waits.py", "-k", "need_not_be_suspended",
    ),
    mutant(
        "groups inside each other are described whole", f"{EXECUTION}/end_records.py",
        "and levels else str(value)", "else str(value)",
        RECORDS, "-k", "bounded_time",
    ),
    mutant(
        "the causes of an error are formatted whole", f"{SUPPORT}/tracebacks.py",
        "causes = {id(error.__cause__), id(error.__context__)}", "causes = None",
        RECORDS, "-k", "deep_context",
    ),
    mutant(
        "a batch that fails is sent one by one", f"{SUPPORT}/batching.py",
        "halves = part[: len(part) // 2], part[len(part) // 2 :]",
        "halves = part[: min(1, len(part) - 1)], part[min(1, len(part) - 1) :]",
        BATCHES, "-k", "one_bad_item",
    ),
    mutant(
        "the writes of one thread are divided", f"{SUPPORT}/batching.py",
        "halves = [n for n in part if thread(items[n]) in first], [n for n in part if thread(items[n]) not in first]",
        "halves = part[: len(part) // 2], part[len(part) // 2 :]",
        BATCHES, "-k", "locked_item_among_many",
    ),
    mutant(
        "the lock of a run is the fault of its batch", "backends/runyard_backends/postgres/interim_writes.py",
        ", items, lambda write: write.thread_key)", ", items)",
        WRITES, "-k", "locked_run_among_many",
    ),
    mutant(
        "a refused write of a batch is stored", INTERIM,
        "        IF done.refused IS NULL THEN\n", "        IF true THEN\n",
        WRITES, "-k", "refused_write_does_not",
    ),
    mutant(
        "a stale attempt appends in a batch", f"{SQL}/plain_appends.sql",
        "AND x.run_id = w.run_id AND x.fence = w.fence AND", "AND x.run_id = w.run_id AND",
        WRITES, "-k", "refused_write_does_not",
    ),
    mutant(
        "a cancelled run appends in a batch", f"{SQL}/plain_appends.sql",
        "AND x.cancel_requested_at IS NULL AND", "AND",
        WRITES, "-k", "refused_write_does_not",
    ),
    mutant(
        "a run takes its unread signals along", f"{SQL}/end_run.sql",
        "        woken := runyard.leave_waits(r);\n", "",
        POSTGRES, "-k", "gives_its_unread_signals",
    ),
    mutant(
        "a signal that an attempt had is given back", SIGNALS,
        "AND w.signal_id IS NOT NULL\n                AND w.received_by IS NULL\n", "AND w.signal_id IS NOT NULL\n",
        POSTGRES, "-k", "signal_that_an_attempt_had",
    ),
    mutant(
        "an attempt that goes on has not received its signals", f"{SQL}/suspend.sql",
        "        PERFORM runyard.receive_answers(r);\n", "",
        POSTGRES, "-k", "need_not_happen",
    ),
    mutant(
        "signals are given back in any order", SIGNALS,
        "FROM given g ORDER BY g.signal_no", "FROM given g WHERE false",
        POSTGRES, "-k", "takes_what_an_ended_run",
    ),
    mutant(
        "a request without an event id is an event", f"{SQL}/run_events.sql",
        "IMMUTABLE STRICT AS", "IMMUTABLE AS",
        POSTGRES, "-k", "external_run_has_no_proven_event",
    ),
    mutant(
        "a release takes bytes of streams that are not counted", f"{LUA}/drops.lua",
        "  if sum < 0 then\n", "  if false then\n",
        STREAMS, "-k", "below_zero",
    ),
    mutant(
        "an append takes bytes of streams that are not counted", f"{LUA}/append.lua",
        "if total < 0 then", "if false then",
        STREAMS, "-k", "below_zero",
    ),
    mutant(
        "the offer of a taken job stays", f"{LUA}/claim.lua",
        "    if any_offered then\n", "    if false then\n",
        SCHEDULER, "-k", "offer_of_a_job_that_is_gone",
    ),
    mutant(
        "the offer of an ended run stays", f"{LUA}/submit.lua",
        "  if requirement then\n", "  if false then\n",
        SCHEDULER, "-k", "offer_of_a_job_that_is_gone or jobs_that_are_gone",
    ),
    mutant(
        "a job is offered under two requirements", f"{LUA}/submit.lua",
        "  if before and before ~= requirement then\n", "  if false then\n",
        SCHEDULER, "-k", "offer_of_a_job_that_is_gone",
    ),
    mutant(
        "the error of a setting shows its value", f"{SUPPORT}/settings.py",
        "raise _configuration_error(cls, error) from None", "raise ValueError(str(error)) from error",
        "tests/unit/support/test_settings.py",
    ),
    mutant(
        "the start of a step replaces the end of another step", LOCAL,
        "        async with self._saving:\n            ledger =", "        if True:\n            ledger =",
        "tests/unit/agents/test_local_runs.py", "-k", "start_of_a_step",
    ),
    mutant(
        "an answer resumes a run that is being aborted", "runner/runyard/agents/agent.py",
        "with self._active.begin():\n            async with self._store.own_thread() as local_thread:\n                for",
        "if True:\n            async with self._store.own_thread() as local_thread:\n                for",
        "tests/unit/agents/test_local_runs.py", "-k", "abort_and_an_answer",
    ),
    mutant(
        "a run that was answered is not cancelled as its reader leaves", "api/runyard_api/http/sse.py",
        "self.stopped = entry.event.type in STREAM_ENDS", "self.stopped = self.stopped or entry.event.type in STREAM_ENDS",
        "tests/http/test_streams.py", "-k", "went_on_cancels_it",
    ),
    mutant(
        "an attempt that begins during the release of a lost one is released", "runner/runyard/worker/lost_tasks.py",
        "            if not self._has_task(attempt):", "            if True:",
        "tests/unit/worker/test_lost_tasks.py",
    ),
)  # fmt: skip
