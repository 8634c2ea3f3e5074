"""Mutants of the accepts of many prompts in one call."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant, mutant

ACCEPTS: Final = "backends/runyard_backends/postgres/accepts.py"
QUERIES: Final = "backends/runyard_backends/postgres/queries.sql"
BATCHING: Final = "runner/runyard/support/batching.py"
CALLS: Final = "runner/runyard/client/accepting.py"
MANY: Final = "tests/integration/postgres/test_accept_many.py"

BATCHES: Final[tuple[Mutant, ...]] = (
    mutant(
        "a batch of prompts has any number of bytes", BATCHING,
        "if count and total > self._most_bytes:", "if False:",
        MANY, "-k", "companions",
    ),
    mutant(
        "a bad prompt fails its batch", BATCHING,
        "halves = part[: len(part) // 2], part[len(part) // 2 :]", "halves = [], []",
        MANY, "-k", "breaks",
    ),
    mutant(
        "a repeated batch returns large values", QUERIES,
        "coalesce(octet_length(r.result) > 8192, false)", "false",
        "tests/conformance/test_postgres.py", "-k", "lacks_large_values",
    ),
    mutant(
        "a prompt overtakes a prompt of a lost transaction", ACCEPTS,
        "item.series.lost = item.series.lost or outage_of([row])", "pass",
        MANY, "-k", "lost_transaction",
    ),
    mutant(
        "a prompt of a later call overtakes a prompt of a lost transaction", "backends/runyard_backends/postgres/runs.py",
        "many(requests, series or PromptSeries())", "many(requests, PromptSeries())",
        MANY, "-k", "series",
    ),
    mutant(
        "single accepts wait for a batch of prompts", ACCEPTS,
        "else self._many(item)", "else self._single(item)",
        MANY, "-k", "thousand",
    ),
    mutant(
        "a prompt with a wrong value fails its batch", CALLS,
        "    except RunyardError as error:\n        return error\n", "    finally:\n        pass\n",
        "tests/unit/client/test_enqueue_many.py", "-k", "wrong_value",
    ),
)  # fmt: skip
