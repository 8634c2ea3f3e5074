"""The clocks of hosts play no part (O6): only those of Redis and of Postgres are compared."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[3]

HARMLESS = {
    "runner/runyard/execution/executor.py": "tells the agent when its attempt ends; the attempt is ended by a timer",
    "runner/runyard/agents/local_attempt.py": "tells the agent of an external run when it began",
    "runner/runyard/agents/local_thread.py": "deadlines of one process, over a checkpointer that has no clock",
    "backends/runyard_backends/redis/job_codec.py": "a field of arq's job format that nothing reads",
    "backends/runyard_backends/memory/state.py": "this store is a server with a clock of its own",
    "backends/runyard_backends/sql/sqlite.py": "a SQLite file has the clock of its machine, as memory has that of its process",
    "backends/runyard_backends/conformance/world.py": "tests",
    "backends/runyard_backends/postgres/health.py": "tells people how far the clocks are apart",
    "backends/runyard_backends/redis/health.py": "as above",
    "runner/runyard/testing/harness.py": "where a clock begins that a test moves",
    "api/runyard_api/http/authentication.py": "for how many minutes a stream token is good",
    "api/runyard_api/http/tokens.py": "as above",
    "api/runyard_api/http/sse.py": "as above, of a stream that is open",
    "runner/runyard/worker/webhook_dispatcher.py": "tells receivers when it was sent, as the scheme of the signature asks",
    "api/runyard_api/quantities.py": "for people",
}
"""Who may ask for the time of day, and why it decides nothing."""


def test_nobody_compares_the_time_of_day_of_a_host() -> None:
    asking = {
        str(path.relative_to(ROOT))
        for package in ("runner", "backends", "api")
        for path in (ROOT / package).rglob("*.py")
        if any(_asks(node) for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    }
    assert asking == HARMLESS.keys()


def _asks(node: ast.AST) -> bool:
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return False
    return ast.unparse(node.func) in {"datetime.now", "datetime.utcnow", "datetime.today", "date.today", "time.time"}
