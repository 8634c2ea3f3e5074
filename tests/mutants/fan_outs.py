"""Mutants of fan-outs: their candidates and judges, their records in the store, and the bounds of both."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant, mutant

SQL: Final = "backends/runyard_backends/postgres/functions"
BATCHES: Final = f"{SQL}/candidate_batches.sql"
END_RUN: Final = f"{SQL}/end_run.sql"
PRUNE: Final = f"{SQL}/prune.sql"
READS: Final = f"{SQL}/candidate_reads.sql"
RECORDS: Final = f"{SQL}/candidates.sql"
REDRIVE: Final = f"{SQL}/redrive.sql"
REMOVAL: Final = f"{SQL}/removal.sql"
STARTABLE: Final = f"{SQL}/startable.sql"
STORE: Final = "backends/runyard_backends/postgres/fan_outs.py"
ACCEPTS: Final = "backends/runyard_backends/postgres/runs.py"
PAGES: Final = "backends/runyard_backends/postgres/codec/fan_out_rows.py"
DOMAIN: Final = "runner/runyard/domain/fan_outs.py"
JOB: Final = "runner/runyard/execution/fan_out.py"
THREADS: Final = "runner/runyard/execution/fan_out_candidates.py"
USAGE: Final = "runner/runyard/execution/probe_usage.py"
POSTGRES: Final = "tests/conformance/test_postgres.py"
MEMORY: Final = "tests/conformance/test_memory.py"
STORED: Final = "tests/integration/postgres/test_candidate_batches.py"
UNIT: Final = "tests/unit/execution/test_fan_out.py"
WORKER: Final = "tests/integration/worker/test_fan_out.py"

FAN_OUTS: Final[tuple[Mutant, ...]] = (
    mutant(
        "nobody tells a job that its run ended", END_RUN,
        "effects := runyard.merge_effects(effects, runyard.wake_starter(r));",
        "NULL;",
        POSTGRES, "-k", "FanOut",
    ),
    mutant(
        "a job does not wait for its runs", STARTABLE,
        "RETURN r.until_fewer IS NOT NULL AND runyard.count_started_by(r) >= r.until_fewer",
        "RETURN false",
        POSTGRES, "-k", "FanOut",
    ),
    mutant(
        "a finished probe is asked again", JOB,
        "        ended = ended_in(self._ledger)\n        first",
        "        ended = dict[int, CandidateStatus]()\n        first",
        WORKER, "-k", "handed_over",
    ),
    mutant(
        "the usage of a probe counts with each record", RECORDS,
        "        WHERE NOT runyard.steps.done OR (runyard.steps.outcome IS NULL AND excluded.outcome IS NOT NULL)\n",
        "",
        POSTGRES, "-k", "usage_of_each_probe",
    ),
    mutant(
        "a job takes a batch with missing pages", BATCHES,
        " OR (r.fork->'batch'->>'total')::bigint <> (SELECT count(*) FROM runyard.candidates c WHERE c.batch = of_batch)",
        "",
        STORED, "-k", "are_lost",
    ),
    mutant(
        "losers go on", JOB,
        "                            _finish(enough)\n",
        "                            pass\n",
        WORKER, "-k", "first_that_succeeds",
    ),
    mutant(
        "a verdict repeats the candidates", JOB,
        'bare = assignment.model_copy(update={"metadata": {}})', "bare = assignment",
        UNIT, "-k", "assignment_once",
    ),
    mutant(
        "the judged texts fill the verdict", JOB,
        "or left < 0 or candidate.omitted", "or candidate.omitted",
        UNIT, "-k", "half_of_the_verdict",
    ),
    mutant(
        "a large verdict loses the job", JOB,
        "        except InvalidInputError as refused:\n            return ForkOnceResult(refused.message",
        "        except ZeroDivisionError as refused:\n            return ForkOnceResult(str(refused)",
        UNIT, "-k", "verdict_that_is_too_large",
    ),
    mutant(
        "any number of digits is converted", JOB,
        "if found is not None and len(found[0]) > MAX_DIGITS:", "if False:",
        UNIT, "-k", "number_that_is_too_long",
    ),
    mutant(
        "the start of a thread counts as its end", DOMAIN,
        'if outcome is None and value is not None and "stop_reason" in value:\n        return outcome_of(value["stop_reason"])',
        'if outcome is None and value is not None:\n        return outcome_of(value.get("stop_reason", "stop"))',
        UNIT, "-k", "start_of_a_thread",
    ),
    mutant(
        "a probe of the previous release has no outcome", DOMAIN,
        'return outcome_of(value["stop_reason"])', "return None",
        MEMORY, "-k", "previous_release_recorded_has_its_status",
    ),
    mutant(
        "progress does not read the records of the previous release", STORE,
        "return bool(record.size) and record.outcome is None and record.value is None", "return False",
        POSTGRES, "-k", "previous_release_recorded_has_its_status",
    ),
    mutant(
        "a start that the previous release recorded stays", RECORDS,
        "WHERE NOT runyard.steps.done OR (runyard.steps.outcome IS NULL AND excluded.outcome IS NOT NULL)",
        "WHERE NOT runyard.steps.done",
        POSTGRES, "-k", "start_of_a_thread",
    ),
    mutant(
        "a start that the previous release recorded stays in memory", "backends/runyard_backends/memory/steps.py",
        " or (known.outcome is None and outcome is not None)", "",
        MEMORY, "-k", "start_of_a_thread",
    ),
    mutant(
        "a loser that was started before a crash is forgotten", THREADS,
        "started = [n for n in next_ones if statuses[n] is not None]", "started = list[int]()",
        UNIT, "-k", "loser_that_was_started",
    ),
    mutant(
        "a deleted run fails its job", THREADS,
        "with suppress(ResultExpiredError, ThreadNotFoundError):", "with suppress(ThreadNotFoundError):",
        UNIT, "-k", "deleted_run",
    ),
    mutant(
        "usage counts twice after a lost reply", USAGE,
        "        if self._sent:\n", "        if False:\n",
        UNIT, "-k", "lost_reply",
    ),
    mutant(
        "the previous release gets a batch", PAGES,
        "if fan is None or fan.total <= INLINE_CANDIDATES:", "if fan is None or fan.total < 5:",
        STORED, "-k", "bounded_in_number_and_bytes",
    ),
    mutant(
        "messages are stored for a thread without a completed run", BATCHES,
        "    PERFORM runyard.fix_cut(t, q.fork);\n", "",
        STORED, "-k", "stores_nothing",
    ),
    mutant(
        "messages are stored beyond the limits of the queue", BATCHES,
        "    PERFORM runyard.check_room(for_tenant, q,", "    PERFORM (for_tenant, q,",
        STORED, "-k", "stores_nothing",
    ),
    mutant(
        "messages are stored for an agent that asks", BATCHES,
        "    PERFORM runyard.refuse_asking(q, runyard.agent_of(q.agent, t.agent));\n", "",
        STORED, "-k", "stores_nothing",
    ),
    mutant(
        "a tenant opens any number of batches", BATCHES,
        "IF most <= (SELECT count(*)", "IF false AND most <= (SELECT count(*)",
        STORED, "-k", "bounded_number_of_open",
    ),
    mutant(
        "the batches of jobs count as open", BATCHES,
        "WHERE b.tenant = for_tenant AND b.accept_no IS NULL AND b.batch <> of_batch LIMIT most",
        "WHERE b.batch <> of_batch LIMIT most",
        STORED, "-k", "bounded_number_of_open",
    ),
    mutant(
        "a page without a batch is stored", BATCHES,
        "IF NOT FOUND OR taken_by IS NOT NULL THEN RETURN; END IF;", "",
        STORED, "-k", "pages_without_a_batch",
    ),
    mutant(
        "lost pages are not stored again", STORE,
        'if tries == 0 or "batch" not in error.details:', "if True:",
        STORED, "-k", "are_lost",
    ),
    mutant(
        "a host's transaction takes a large fan-out", ACCEPTS,
        "            if batch is not None:\n                words", "            if False:\n                words",
        STORED, "-k", "connection_of_the_caller",
    ),
    mutant(
        "five batches are removed at a time", BATCHES,
        "ORDER BY x.stored_at LIMIT most FOR", "ORDER BY x.stored_at LIMIT greatest(1, most / 1000) FOR",
        STORED, "-k", "removed_by_number_of_rows",
    ),
    mutant(
        "a step of a removal deletes all records", REMOVAL,
        "IF runyard.drop_records(part, most) >= most THEN RETURN most; END IF;", "PERFORM runyard.drop_records(part, NULL);",
        STORED, "-k", "removal_of_fan_outs",
    ),
    mutant(
        "a call of prune deletes all answers", PRUNE,
        "        EXIT WHEN gone >= most;\n    END LOOP;\n    UPDATE runyard.runs", "    END LOOP;\n    UPDATE runyard.runs",
        STORED, "-k", "expiry_of_fan_outs",
    ),
    mutant(
        "answers of a failed fan-out stay", f"{SQL}/live_runs.sql",
        "IF r.kind = 'fork_many' OR (r.fork", "IF (r.fork",
        POSTGRES, "-k", "expires_however",
    ),
    mutant(
        "messages of a fan-out stay", PRUNE,
        "SET result = NULL, candidates = NULL WHERE", "SET result = NULL WHERE",
        POSTGRES, "-k", "expires_however",
    ),
    mutant(
        "an expired fan-out is redriven", REDRIVE,
        "IF runyard.fan_out_expired(run) THEN", "IF false THEN",
        POSTGRES, "-k", "expires_however",
    ),
    mutant(
        "a page of candidates has any size", READS,
        "IF cut THEN", "IF false THEN",
        "tests/conformance/test_page_bytes.py", "-k", "candidates_of_a_fan_out",
    ),
)  # fmt: skip
