"""The clocks of hosts play no part (design §7): only those of Redis and of Postgres are compared."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]

HARMLESS = {
    "runner/executor.py": "tells the agent when its attempt ends; the attempt is ended by a timer",
    "runner/agents/solo.py": "tells the agent of an external run when it began",
    "runner/agents/keeper.py": "deadlines of one process, over a checkpointer that has no clock",
    "backends/redis/jobs.py": "a field of arq's job format that nothing reads",
    "backends/memory/state.py": "this store is a server with a clock of its own",
    "backends/conformance/world.py": "tests",
    "backends/postgres/diagnosis.py": "tells people how far the clocks are apart",
    "backends/redis/diagnosis.py": "as above",
    "runner/testing/harness.py": "where a clock begins that a test moves",
    "api/http/auth.py": "for how many minutes a stream token is good",
    "api/http/tokens.py": "as above",
    "api/http/sse.py": "as above, of a stream that is open",
    "runner/webhooks/dispatcher.py": "tells receivers when it was sent, as the scheme of the signature asks",
    "api/cli/output.py": "for people",
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
