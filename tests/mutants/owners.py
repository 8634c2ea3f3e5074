"""Guards that keep rows with their owners, and rights from other roles."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant, mutant

FUNCTIONS: Final = "backends/runyard_backends/postgres/functions"
QUERIES: Final = "backends/runyard_backends/postgres/queries.sql"
CHILDREN: Final = f"{FUNCTIONS}/children.sql"
WEBHOOKS: Final = f"{FUNCTIONS}/webhooks.sql"
POSTGRES: Final = "tests/conformance/test_postgres.py"
OWNERS_OF_WEBHOOKS: Final = "tests/integration/webhooks/test_webhook_owners.py"
RIGHTS: Final = "tests/acceptance/test_schema_rights.py"

OWNERS: Final[tuple[Mutant, ...]] = (
    mutant(
        "the webhook of another tenant signs a delivery", WEBHOOKS,
        " AND coalesce(d.owner, d.tenant) = coalesce(w.tenant, '') AND d.url = w.url", " AND d.url = w.url",
        OWNERS_OF_WEBHOOKS, "-k", "another_tenant",
    ),
    mutant(
        "a webhook with another URL signs a delivery", WEBHOOKS,
        " = coalesce(w.tenant, '') AND d.url = w.url", " = coalesce(w.tenant, '')",
        OWNERS_OF_WEBHOOKS, "-k", "another_url",
    ),
    mutant(
        "the removal of a webhook takes another tenant's deliveries along", WEBHOOKS,
        "WHERE coalesce(d.owner, d.tenant) = for_tenant AND d.webhook_id", "WHERE d.webhook_id",
        OWNERS_OF_WEBHOOKS, "-k", "removal",
    ),
    mutant(
        "a delivery of a webhook that was just removed is nobody's", WEBHOOKS,
        "SELECT o.tenant, coalesce(w.tenant, ''), w.webhook_id", "SELECT o.tenant, NULL, w.webhook_id",
        OWNERS_OF_WEBHOOKS, "-k", "just_removed",
    ),
    mutant(
        "two children have one id", CHILDREN,
        "AND w.wait_id = q.run_id\n                   AND w.name = q.thread_id)", "AND w.wait_id = q.run_id)",
        POSTGRES, "-k", "on_one_thread",
    ),
    mutant(
        "a run gets the result of a child on another thread", "runner/runyard/execution/parking.py",
        "            check_thread(known, thread_id)\n", "            pass\n",
        "tests/unit/execution/test_waits.py", "-k", "another_thread",
    ),
    mutant(
        "the rights of everybody on columns stay", QUERIES,
        "WHERE x.attrelid = c.oid AND a.grantee = 0))", "WHERE false))",
        RIGHTS, "-k", "everybody",
    ),
    mutant(
        "the role of workers may call every function", QUERIES,
        " AND p.prosecdef) || ' TO %I'", ") || ' TO %I'",
        RIGHTS, "-k", "no_others",
    ),
    mutant(
        "a webhook with a private address is accepted", "api/runyard_api/http/field_types.py",
        "    if allowed is not None and", "    if False and",
        "tests/http/test_webhook_urls.py", "-k", "no_delivery_reaches",
    ),
)  # fmt: skip
