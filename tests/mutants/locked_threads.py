"""Mutants of what keeps a locked thread to itself, and of the removal of deleted threads."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant, mutant

SQL: Final = "backends/runyard_backends/postgres/functions"
ACCEPT: Final = f"{SQL}/accept.sql"
ADMIT: Final = f"{SQL}/admit.sql"
DUE: Final = f"{SQL}/due.sql"
END_RUN: Final = f"{SQL}/end_run.sql"
REMOVAL: Final = f"{SQL}/removal.sql"
THREADS: Final = f"{SQL}/threads.sql"
WRITE: Final = f"{SQL}/write.sql"
LOCKED: Final = "tests/integration/postgres/test_locked_threads.py"
DELETION: Final = "tests/integration/postgres/test_deletion_steps.py"

LOCKED_THREADS: Final[tuple[Mutant, ...]] = (
    mutant(
        "a batch of accepts waits for its threads", ACCEPT,
        "    IF patience IS NOT NULL THEN PERFORM set_config('lock_timeout', greatest(1, patience)::text, true); END IF;", "",
        LOCKED, "-k", "their_patience",
    ),
    mutant(
        "a batch of completions locks its threads in any order", f"{SQL}/complete.sql",
        "WHERE y.thread_key <> ALL (done) ORDER BY y.thread_key, y.run_id LOOP", "WHERE y.thread_key <> ALL (done) LOOP",
        "tests/integration/postgres/test_lock_order.py",
    ),
    mutant(
        "an insert waits with the thread's lock", ACCEPT,
        "    ignored := set_config('lock_timeout', '5ms', true);\n    run :=", "    run :=",
        LOCKED, "-k", "insert_of_an_accept",
    ),
    mutant(
        "an attempt whose thread is locked is lost", WRITE,
        "IF patience IS NOT NULL AND t.thread_key IS NULL THEN", "IF false THEN",
        LOCKED, "-k", "refused_as_locked",
    ),
    mutant(
        "a batch waits for each of its locked threads", WRITE,
        "greatest(1, patience)::text, true);\n    SELECT", "'250', true);\n    SELECT",
        LOCKED, "-k", "waits_for_many",
    ),
    mutant(
        "admit waits for a locked thread", ADMIT,
        "WHERE x.thread_key = key FOR UPDATE SKIP LOCKED;", "WHERE x.thread_key = key FOR UPDATE;",
        LOCKED, "-k", "takes_what_is_free",
    ),
    mutant(
        "runs of a locked thread hide the others", DUE,
        "AND y.tenant || E'\\x1f' || y.thread_id <> ALL (locked)", "",
        LOCKED, "-k", "many_runs_of_a_locked_thread",
    ),
    mutant(
        "admit makes a deleted thread again", ADMIT,
        "IF NOT EXISTS (SELECT 1 FROM runyard.runs x WHERE x.tenant = for_tenant AND x.thread_id = due_thread.thread_id",
        "IF false AND NOT EXISTS (SELECT 1 FROM runyard.runs x WHERE x.tenant = for_tenant"
        " AND x.thread_id = due_thread.thread_id",
        LOCKED, "-k", "makes_no_thread",
    ),
    mutant(
        "the floor of a lane is above its head", END_RUN,
        "coalesce(head.lane_seq - 1,", "coalesce(head.lane_seq,",
        "tests/conformance/test_postgres.py", "-k", "TestLanes",
    ),
    mutant(
        "a lane is read from its begin", END_RUN,
        "IF r.lane = '' THEN t.lane_floor", "IF false THEN t.lane_floor",
        "tests/integration/postgres/test_long_lanes.py",
    ),
    mutant(
        "a new run is taken for one of a deleted thread", THREADS,
        "IF EXISTS (SELECT 1 FROM runyard.removals s WHERE s.tenant",
        "IF false AND EXISTS (SELECT 1 FROM runyard.removals s WHERE s.tenant",
        DELETION, "-k", "taken_again",
    ),
    mutant(
        "the rows that a dead client left stay", f"{SQL}/prune.sql",
        "IF runyard.remove_leftovers(least(most, 1000)) THEN", "IF false THEN",
        DELETION, "-k", "leader_removes",
    ),
    mutant(
        "messages that a fork shows are removed", REMOVAL,
        "WHERE l.ancestor_id = shown_levels.branch_id AND t.deleted_at IS NULL);",
        "WHERE l.ancestor_id = shown_levels.branch_id AND t.deleted_at IS NOT NULL);",
        DELETION, "-k", "forks_keep",
    ),
    mutant(
        "forks keep the extra of an erased thread", REMOVAL,
        "IF s.erase AND s.after_fork IS DISTINCT FROM", "IF false AND s.after_fork IS DISTINCT FROM",
        "tests/conformance/test_postgres.py", "-k", "extra_that_forks_inherited",
    ),
    mutant(
        "a thread that cannot be removed stops the pruning", REMOVAL,
        "EXCEPTION WHEN OTHERS THEN", "EXCEPTION WHEN division_by_zero THEN",
        DELETION, "-k", "stops_no_other",
    ),
    mutant(
        "the runs of an erased thread keep their extra while forks are made", REMOVAL,
        "CASE WHEN s.after_fork < key THEN runyard.erase_own_extra(s, most) ELSE", "CASE WHEN s.after_fork < key AND"
        " s.erased IS NULL THEN runyard.erase_own_extra(s, most) ELSE",
        DELETION, "-k", "made_during",
    ),
    mutant(
        "the leader locks many forks at once", REMOVAL,
        "    RETURN most;\nEND $$;", "    RETURN 1;\nEND $$;",
        DELETION, "-k", "locks_one_fork",
    ),
    mutant(
        "the effects of a deletion are lost", "backends/runyard_backends/postgres/threads.py",
        'error=%s", thread_id, error)\n        except Exception:',
        'error=%s", thread_id, error)\n            raise\n        except ZeroDivisionError:',
        DELETION, "-k", "returns_its_effects",
    ),
)  # fmt: skip
