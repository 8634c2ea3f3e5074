"""Mutants of the histories that a process keeps, and of lazy messages."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant, mutant

SQL: Final = "backends/runyard_backends/postgres/functions"
HISTORY: Final = f"{SQL}/history.sql"
CACHE: Final = "backends/runyard_backends/postgres/history_cache.py"
LAZY: Final = "backends/runyard_backends/codec/lazy_messages.py"
TESTS: Final = "tests/integration/postgres/test_history_cache.py"
POSTGRES: Final = "tests/conformance/test_postgres.py"
LAZY_TESTS: Final = "tests/unit/backends/test_lazy_messages.py"

HISTORIES: Final[tuple[Mutant, ...]] = (
    mutant(
        "an erasure leaves kept histories valid", f"{SQL}/removal.sql",
        "SET steps = e.steps + 1", "SET steps = e.steps",
        TESTS, "-k", "erasure",
    ),
    mutant(
        "a kept history is used after an erasure", HISTORY,
        "          AND h.generation = held_until.generation\n", "",
        POSTGRES, "-k", "Contexts and erasure",
    ),
    mutant(
        "the reads of a history are planned at each call", HISTORY,
        "\nSET plan_cache_mode = force_generic_plan", "",
        "tests/integration/postgres/test_generic_plans.py", "-k", "kept",
    ),
    mutant(
        "an admit reads all delayed runs", f"{SQL}/admit.sql",
        " SET enable_sort = off", "",
        "tests/integration/postgres/test_generic_plans.py", "-k", "sizes",
    ),
    mutant(
        "a short thread is loaded without its external runs", f"{SQL}/reading.sql",
        "              UNION ALL\n              SELECT u.* FROM runyard.uncompleted(t.thread_key, t.head_branch) u) m", ") m",
        "tests/integration/postgres/test_long_reads.py", "-k", "loaded_alike",
    ),
    mutant(
        "a long thread is loaded as a short one", "backends/runyard_backends/postgres/checkpointer.py",
        "        if thread is not None and thread.more:\n", "        if False:\n",
        "tests/integration/postgres/test_long_reads.py", "-k", "loaded_alike",
    ),
    mutant(
        "only erasures of the own branch count", HISTORY,
        "WHERE e.branch_id = ANY (branches)", "WHERE e.branch_id = own.branch_id",
        POSTGRES, "-k", "Contexts and erasure",
    ),
    mutant(
        "a restarted server has the same generation", HISTORY,
        "extract(epoch FROM pg_postmaster_start_time())", "'1'",
        TESTS, "-k", "another_state",
    ),
    mutant(
        "a kept history of another branch is used", HISTORY,
        "WHERE h.branch_id = own.branch_id AND h.seq", "WHERE h.seq",
        POSTGRES, "-k", "Contexts",
    ),
    mutant(
        "a kept history may be later than the snapshot", HISTORY,
        "AND h.seq <= own.high_water_seq AND h.cutoff <= own.cutoff", "",
        TESTS, "-k", "another_state",
    ),
    mutant(
        "a kept history whose last message was replaced is used", HISTORY,
        "m.message_id = h.message_id AND m.branch_id", "m.branch_id",
        TESTS, "-k", "replaced",
    ),
    mutant(
        "a run that completes late is left out", HISTORY,
        "WHERE r.accept_no = c.accept_no) <= h.seq)", "WHERE false) <= h.seq)",
        POSTGRES, "-k", "Contexts",
    ),
    mutant(
        "a lazy message is decoded again after a change", LAZY,
        '    _set(lazy, "__class__", Message)\n', "",
        LAZY_TESTS,
    ),
    mutant(
        "kept histories have no bound", CACHE,
        "while self._size > self._max_bytes:", "while False:",
        TESTS, "-k", "kept or bounded",
    ),
    mutant(
        "a thread keeps all its branches", CACHE,
        "if len(of_thread) > MAX_BRANCHES:", "if False:",
        TESTS, "-k", "few_branches",
    ),
    mutant(
        "a kept history loses its place", CACHE,
        "        self._drop(history.branch_id)\n", "",
        TESTS, "-k", "used_last",
    ),
)  # fmt: skip
