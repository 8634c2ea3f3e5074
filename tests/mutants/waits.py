"""Mutants of waits: sleeps, signals and children, and of the retries that a run has by default."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant, mutant

SQL: Final = "backends/runyard_backends/postgres/functions"
DUE: Final = f"{SQL}/due.sql"
CHILDREN: Final = f"{SQL}/children.sql"
END_RUN: Final = f"{SQL}/end_run.sql"
SIGNALS: Final = f"{SQL}/signals.sql"
SUSPEND: Final = f"{SQL}/suspend.sql"
WAITS: Final = f"{SQL}/waits.sql"
DOMAIN: Final = "runner/runyard/domain/waits.py"
PARKING: Final = "runner/runyard/execution/parking.py"
RETRIES: Final = "runner/runyard/execution/retries.py"
POSTGRES: Final = "tests/conformance/test_postgres.py"
LOCKS: Final = "tests/integration/postgres/test_children_locks.py"
AGENTS: Final = "tests/unit/execution/test_waits.py"
OUTAGES: Final = "tests/unit/execution/test_provider_outages.py"

WAITING: Final[tuple[Mutant, ...]] = (
    mutant(
        "a later attempt begins a sleep again", WAITS,
        "ON CONFLICT (thread_key, run_id, wait_id) DO NOTHING;\n    PERFORM",
        "ON CONFLICT (thread_key, run_id, wait_id) DO UPDATE SET due_at = EXCLUDED.due_at;\n    PERFORM",
        POSTGRES, "-k", "first_due_time",
    ),
    mutant(
        "a run is suspended although its wait has ended", SUSPEND,
        "CASE WHEN ended OR EXISTS (", "CASE WHEN EXISTS (",
        POSTGRES, "-k", "has_passed_parks_nothing or child_that_ended_before",
    ),
    mutant(
        "a due time wakes nobody", f"{SQL}/deadlines.sql",
        "effects := runyard.end_waits(t.thread_key);", "effects := NULL;",
        POSTGRES, "-k", "time_wakes_the_run",
    ),
    mutant(
        "the leader does not see due waits", DUE,
        "WHERE w.ended_at IS NULL AND w.due_at > '-infinity' AND w.due_at <=", "WHERE false AND w.due_at <=",
        POSTGRES, "-k", "time_wakes_the_run",
    ),
    mutant(
        "an ended run leaves its waits", WAITS,
        "DELETE FROM runyard.waits w WHERE", "DELETE FROM runyard.waits w WHERE false AND",
        POSTGRES, "-k", "EndedWaits or redriven_run_sleeps",
    ),
    mutant(
        "the waits of a cancelled run vanish", WAITS,
        "IF r.status = 'cancelled' THEN", "IF false THEN",
        POSTGRES, "-k", "open_waits_of_a_cancelled_run",
    ),
    mutant(
        "a run that ends in its first attempt leaves its waits", END_RUN,
        " OR r.event_id IS NOT NULL OR r.kind = 'external' THEN", " OR r.kind = 'external' THEN",
        POSTGRES, "-k", "no_open_request",
    ),
    mutant(
        "a suspended run has a worker", SUSPEND,
        "        worker_id = CASE WHEN e.status = 'suspended' THEN NULL ELSE r.worker_id END,\n", "",
        POSTGRES, "-k", "parked_until_its_time",
    ),
    mutant(
        "a suspended run keeps its permit", SUSPEND,
        "    IF e.status = 'suspended' THEN e.effects := runyard.free(runyard.permits_of(r)); END IF;\n", "",
        POSTGRES, "-k", "whatever_ends_an_attempt_frees",
    ),
    mutant(
        "errors before a suspension count", SUSPEND,
        "        error_count = CASE WHEN e.status = 'suspended' THEN 0 ELSE r.error_count END,\n", "",
        POSTGRES, "-k", "TestSleep or TestAttempts",
    ),
    mutant(
        "a run has any number of waits", DOMAIN,
        "if len(found) > MAX_WAITS:", "if False:",
        POSTGRES, "-k", "waits_of_a_run_are_bounded",
    ),
    mutant(
        "a sleep has any length", DOMAIN,
        "or not 0 <= seconds <= MAX_WAIT_SECONDS:", "or seconds < 0:",
        AGENTS, "-k", "impossible_time",
    ),
    mutant(
        "a probe waits", PARKING,
        "if not self._attempt_store.durable:", "if False:",
        AGENTS, "-k", "probes_do_not_sleep",
    ),
    mutant(
        "an agent without a worker waits", PARKING,
        "if not self._attempt_store.waits:", "if False:",
        AGENTS, "-k", "without_a_worker",
    ),
    mutant(
        "a suspension cuts a parallel step", PARKING,
        "while self._calls:", "while False:",
        AGENTS, "-k", "lets_a_parallel_step_finish",
    ),
    mutant(
        "a suspension waits for the step that suspends", PARKING,
        "        self._calls.difference_update(_around.get())\n", "",
        AGENTS, "-k", "functions_wait", "--timeout", "20",
    ),
    mutant(
        "two waits take one signal", SIGNALS,
        "AND o.name = w.name AND o.wait_id IS NULL\n", "AND o.name = w.name\n",
        POSTGRES, "-k", "may_come_first",
    ),
    mutant(
        "the latest signal is taken first", SIGNALS,
        "ORDER BY o.signal_no LIMIT 1", "ORDER BY o.signal_no DESC LIMIT 1",
        POSTGRES, "-k", "may_come_first",
    ),
    mutant(
        "a wait takes a signal of another name", SIGNALS,
        "w.kind = 'signal' AND w.name = signal_name", "w.kind = 'signal'",
        POSTGRES, "-k", "name_for_which_nobody_waits",
    ),
    mutant(
        "a run that is being cancelled takes a signal", SIGNALS,
        " AND r.cancel_requested_at IS NULL", "",
        POSTGRES, "-k", "asked_to_cancel_takes_no_signal",
    ),
    mutant(
        "a signal wakes nobody", SIGNALS,
        "runyard.wake_run(t.thread_key, waiting.run_id)", "NULL",
        POSTGRES, "-k", "wakes_the_run_that_waits",
    ),
    mutant(
        "a thread keeps any number of signals", SIGNALS,
        "IF waiting.wait_id IS NULL AND most <= (", "IF false AND most <= (",
        POSTGRES, "-k", "nobody_takes_are_bounded",
    ),
    mutant(
        "another signal is taken for a repetition", DOMAIN,
        "        if differs:\n", "        if False:\n",
        POSTGRES, "-k", "repeated_signal",
    ),
    mutant(
        "an agent gets a value that does not fit", PARKING,
        "timeout=after), schema)", "timeout=after), None)",
        AGENTS, "-k", "does_not_fit",
    ),
    mutant(
        "a child waits for its own parent", CHILDREN,
        "IF above.thread_id = q.thread_id AND", "IF false AND",
        POSTGRES, "-k", "thread_that_waits_for_it",
    ),
    mutant(
        "children have any depth", CHILDREN,
        "IF depth > most_depth THEN", "IF false THEN",
        POSTGRES, "-k", "children_are_bounded",
    ),
    mutant(
        "a run that is cancelled meanwhile starts a child", CHILDREN,
        "    PERFORM runyard.refuse_write(parent, with_fence);\n    UPDATE", "    UPDATE",
        LOCKS, "-k", "beside_a_cancel",
    ),
    mutant(
        "the end of a child ends no wait", END_RUN,
        "        PERFORM runyard.end_child(r);\n", "",
        POSTGRES, "-k", "end_of_a_child_wakes",
    ),
    mutant(
        "a claim does not see the end of a child", f"{SQL}/claim.sql",
        "IF r.status = 'suspended' THEN got := runyard.wake_parent(r)", "IF false THEN got := runyard.wake_parent(r)",
        POSTGRES, "-k", "end_of_a_child_wakes",
    ),
    mutant(
        "a claimed parent is offered again", CHILDREN,
        "WHERE j->>'run_id' <> r.run_id));", "));",
        POSTGRES, "-k", "end_of_a_child_wakes",
    ),
    mutant(
        "a redriven child counts as ended", f"{SQL}/redrive.sql",
        "    PERFORM runyard.reopen_wait(run);\n", "",
        POSTGRES, "-k", "redriven_child",
    ),
    mutant(
        "a cancel leaves the children", END_RUN,
        "        IF to_status = 'cancelled' THEN PERFORM runyard.doom_children(r); END IF;\n", "",
        POSTGRES, "-k", "reaches_children_and_theirs",
    ),
    mutant(
        "the wait for a child to cancel ends", WAITS,
        "\n              AND NOT runyard.child_lives(w)", "",
        POSTGRES, "-k", "verb_on_a_cancelled_parents_thread",
    ),
    mutant(
        "a deletion forgets the children to cancel", CHILDREN,
        " AND NOT runyard.child_lives(x)\n", "\n",
        POSTGRES, "-k", "children_of_deleted_parents",
    ),
    mutant(
        "a removed thread leaves the waits of children", f"{SQL}/removal.sql",
        "    IF runyard.has_waits_to_forget(key) THEN RETURN examined; END IF;\n", "",
        LOCKS, "-k", "deletion_beside",
    ),
    mutant(
        "the failure of a child is final", PARKING,
        'if record["status"] == RunStatus.COMPLETED.value:', "if True:",
        AGENTS, "-k", "result_of_a_redriven_child",
    ),
    mutant(
        "the result of a child is read again", PARKING,
        "if recorded is not None and recorded.done:", "if False:",
        AGENTS, "-k", "outlives_the_thread",
    ),
    mutant(
        "a step is taken for a child", "runner/runyard/execution/steps.py",
        "if key.startswith(CHILD_STEP):", "if False:",
        AGENTS, "-k", "key_of_a_child",
    ),
    mutant(
        "any error is retried by default", RETRIES,
        "(OUTAGE_ATTEMPTS if is_temporary(error) else 1)", "OUTAGE_ATTEMPTS",
        OUTAGES, "-k", "only_on_request",
    ),
    mutant(
        "no error is retried by default", RETRIES,
        "(OUTAGE_ATTEMPTS if is_temporary(error) else 1)", "1",
        OUTAGES, "-k", "retried_by_default",
    ),
    mutant(
        "an error asks for any pause", RETRIES,
        "min(asked, MAX_ASKED_DELAY_SECONDS)", "asked",
        "tests/unit/execution/test_executor.py", "-k", "backoff",
    ),
)  # fmt: skip
