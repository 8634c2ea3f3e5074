"""Guards of deployments: in the chart, and in the number by which workers are scaled."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant, mutant

TEMPLATES: Final = "charts/runyard/templates"
OBJECTS: Final = "tests/deployment/test_chart_objects.py"

DEPLOYMENT: Final[tuple[Mutant, ...]] = (
    mutant(
        "the last worker leaves while something has a deadline",
        "backends/runyard_backends/postgres/functions/worker_demand.sql",
        "slots = 0 AND (runyard.has_deadline(in_queues) OR ", "slots = 0 AND (false OR ",
        "tests/integration/postgres/test_worker_demand.py", "-k", "deadline",
    ),
    mutant(
        "a worker is killed while it releases its runs", f"{TEMPLATES}/workers.yaml",
        "{{ add $worker.grace 30 }}", "{{ $worker.grace }}", OBJECTS, "-k", "stopping",
    ),
    mutant(
        "the migration waits for the release that waits for it", f"{TEMPLATES}/migrate.yaml",
        '.Values.serviceAccount.create | ternary $name (include "runyard.serviceAccount" .)',
        'include "runyard.serviceAccount" .',
        OBJECTS, "-k", "migration",
    ),
    mutant(
        "a model asks the cloud for credentials", f"{TEMPLATES}/_network.tpl",
        ", except: [169.254.169.254/32]", "", OBJECTS, "-k", "metadata",
    ),
)  # fmt: skip
