"""Guards that keep a promise, each with a way to take it away and the tests that must notice."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

TABLES, VISIBILITY, ADMISSION, ATTEMPTS, PEOPLE, FEED, USAGE = (
    f"backends/postgres/migrations/{name}.sql"
    for name in (
        *("0001_tables", "0002_visibility", "0003_admission", "0004_attempts", "0005_people", "0010_feed"),
        "0014_usage",
    )
)
LUA: Final = "backends/redis/lua"
POSTGRES: Final = "tests/conformance/test_postgres.py"


@dataclass(frozen=True, slots=True)
class Edit:
    """In ``file``, ``old`` (found exactly once) becomes ``new``."""

    file: str
    old: str
    new: str

    def apply(self, root: Path) -> None:
        """Make the change below ``root``. ValueError if the text is not there exactly once."""
        path = root / self.file
        text = path.read_text("utf-8")
        if text.count(self.old) != 1:
            raise ValueError(f"{self.file} has {text.count(self.old)} times what a mutant replaces: {self.old!r}")
        path.write_text(text.replace(self.old, self.new), "utf-8")


@dataclass(frozen=True, slots=True)
class Mutant:
    """One guard removed. ``tests``: arguments for pytest."""

    name: str
    tests: tuple[str, ...]
    edits: tuple[Edit, ...]


def _mutant(name: str, file: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant(name, tests, (Edit(file, old, new),))


MUTANTS: Final = (
    _mutant(
        "any fence may append", ATTEMPTS,
        "    PERFORM runyard.refuse_write(r, with_fence);\n    PERFORM runyard.check_size(messages",
        "    PERFORM runyard.check_size(messages",
        POSTGRES, "-k", "stale_writes",
    ),
    _mutant(
        "any fence may record a step", ATTEMPTS,
        "    PERFORM runyard.refuse_write(r, with_fence);\n    INSERT INTO runyard.steps (accept_no, step_key, done",
        "    INSERT INTO runyard.steps (accept_no, step_key, done",
        POSTGRES, "-k", "stale",
    ),
    _mutant(
        "any fence may end a run", ATTEMPTS,
        "WHEN r.fence IS DISTINCT FROM with_fence OR r.kind = 'external' THEN 'stale_fence'",
        "WHEN r.kind = 'external' THEN 'stale_fence'",
        POSTGRES, "-k", "stale_writes",
    ),
    _mutant(
        "a cancelled run may append", ATTEMPTS,
        "WHEN r.cancel_requested_at IS NOT NULL THEN 'cancel_requested' END",
        "END",
        POSTGRES, "-k", "cancel",
    ),
    _mutant(
        "two runs of a lane may be active", TABLES,
        "CREATE UNIQUE INDEX runs_active",
        "CREATE INDEX runs_active",
        "tests/race/test_last_guards.py",
    ),
    _mutant(
        "accept takes no thread lock", ADMISSION,
        "AND x.deleted_at IS NULL FOR UPDATE;\n        IF FOUND THEN RETURN t; END IF;",
        "AND x.deleted_at IS NULL;\n        IF FOUND THEN RETURN t; END IF;",
        "tests/race/test_verb_pairs.py",
    ),
    _mutant(
        "a run id fits any request", ADMISSION,
        "IF FOUND AND r.request_hash IS DISTINCT FROM q.request_hash THEN",
        "IF false THEN",
        POSTGRES, "-k", "conflicts",
    ),
    Mutant(
        "a request is answered twice", (POSTGRES, "-k", "answer or respond"),
        (
            Edit(PEOPLE, "request.request_id <> checked OR request.answered_at IS NOT NULL", "request.request_id <> checked"),
            Edit(PEOPLE, "y.request_id = checked AND y.answered_at IS NULL AND y.closed_at IS NULL", "y.request_id = checked"),
        ),
    ),
    _mutant(
        "a fork sees what completed later", VISIBILITY,
        "OR m.run_id = l.open_run_id OR r.completion_seq <= l.cutoff);\n    END LOOP;",
        "OR m.run_id = l.open_run_id OR r.completion_seq IS NOT NULL);\n    END LOOP;",
        POSTGRES, "-k", "Fork or Cut or snapshot",
    ),
    _mutant(
        "a dead worker may claim", ATTEMPTS,
        "SELECT w.* INTO claimant FROM runyard.workers w WHERE w.worker_id = worker AND w.dead_at IS NULL;",
        "SELECT w.* INTO claimant FROM runyard.workers w WHERE w.worker_id = worker;",
        POSTGRES, "-k", "living_worker or death",
    ),
    _mutant(
        "a dead worker may beat", PEOPLE,
        "SET heartbeat_at = clock_timestamp() WHERE w.worker_id = worker AND w.dead_at IS NULL",
        "SET heartbeat_at = clock_timestamp() WHERE w.worker_id = worker",
        POSTGRES, "-k", "death",
    ),
    _mutant(
        "the living are taken over", ATTEMPTS,
        "IF EXISTS (SELECT 1 FROM runyard.workers w WHERE w.worker_id = r.worker_id AND w.dead_at IS NULL) THEN",
        "IF false THEN",
        POSTGRES, "-k", "busy",
    ),
    _mutant(
        "runs of a lane overtake", ATTEMPTS,
        "ELSIF EXISTS (SELECT 1 FROM runyard.runs y WHERE y.thread_key = r.thread_key AND y.lane = r.lane",
        "ELSIF false AND EXISTS (SELECT 1 FROM runyard.runs y WHERE y.thread_key = r.thread_key AND y.lane = r.lane",
        POSTGRES, "-k", "Lanes",
    ),
    _mutant(
        "open tool calls complete", ATTEMPTS,
        "IF r.has_tools AND NOT runyard.cycles_closed(r) THEN",
        "IF false THEN",
        POSTGRES, "-k", "tool_cycle",
    ),
    _mutant(
        "nobody tells a job that its run ended", ADMISSION,
        "effects := runyard.merge_effects(effects, runyard.offer_job(r));",
        "NULL;",
        POSTGRES, "-k", "FanOut",
    ),
    _mutant(
        "a job does not wait for its runs", ADMISSION,
        "RETURN r.until_fewer IS NOT NULL AND runyard.started_by(r) >= r.until_fewer",
        "RETURN false",
        POSTGRES, "-k", "FanOut",
    ),
    _mutant(
        "a finished probe is asked again", "runner/fanout.py",
        "return step.result if step is not None and step.done else None",
        "return None",
        "tests/race/test_fanout.py", "-k", "handed_over",
    ),
    _mutant(
        "losers go on", "runner/fanout.py",
        "                            _finish(enough)\n",
        "                            pass\n",
        "tests/race/test_fanout.py", "-k", "first_that_succeeds",
    ),
    _mutant(
        "an abort leaves calls open", ADMISSION,
        "        IF open_calls <> '{}' THEN",
        "        IF open_calls <> '{}' AND r.abort_words IS NULL THEN",
        POSTGRES, "-k", "Abort",
    ),
    _mutant(
        "nobody rescues", "runner/reconciler.py",
        "            await self._rescue()\n",
        "            pass\n",
        "tests/race/test_worker_host.py", "-k", "rescue",
    ),
    _mutant(
        "no watchdog", "runner/liveness.py",
        "return self.silence > self.watchdog",
        "return False",
        "tests/unit/test_liveness.py",
    ),
    _mutant(
        "one look makes a worker dead", "runner/recovery.py",
        "if silent.reads >= READS and asked - silent.since >= SPAN",
        "if silent.reads >= 1",
        "tests/unit/test_recovery.py",
    ),
    _mutant(
        "a recorded step is repeated", "runner/agents/context.py",
        "        if known is not None and known.done:\n",
        "        if False:\n",
        "tests/unit/test_context.py",
    ),
    _mutant(
        "any worker may release a lock", f"{LUA}/release.lua",
        "if redis.call('GET', lock) == ARGV[i + 1] then",
        "if true then",
        "tests/race/test_scheduler.py", "tests/stateful/test_scheduler_model.py",
    ),
    _mutant(
        "any worker may renew a lock", f"{LUA}/renew.lua",
        "if redis.call('GET', lock) == ARGV[i + 1] then",
        "if redis.call('GET', lock) then",
        "tests/race/test_scheduler.py", "tests/stateful/test_scheduler_model.py",
    ),
    _mutant(
        "a zombie may speak", f"{LUA}/append.lua",
        "if id_fence > fence or (id_fence == fence and id_n > n) then",
        "if true then",
        "tests/race/test_events.py",
    ),
    _mutant(
        "a tool whose result is stored is called again", "runner/agents/durable.py",
        "        if (known := self.results.get(call.tool_call_id)) is not None:\n            return known.again()\n",
        "",
        "tests/unit/test_driver.py",
    ),
    _mutant(
        "a tool that asks takes the others down", "runner/agents/context.py",
        "        if self._names() is not self._scope:\n",
        "        if False:\n",
        "tests/unit/test_driver_humans.py",
    ),
    _mutant(
        "an answer that is not completed is asked for again", "runner/agents/driver.py",
        "if tail.answered and isinstance(node, ModelRequestNode):",
        "if False:",
        "tests/unit/test_driver.py",
    ),
    _mutant(
        "HTTP shows every tenant the same", "api/http/service.py",
        ".for_tenant(principal.tenant)", ".for_tenant(\"\")",
        "tests/http/test_tenants.py",
    ),
    _mutant(
        "HTTP asks for no scope", "api/http/routes/parts.py",
        "        principal.require(scope)\n", "",
        "tests/http/test_tenants.py",
    ),
    _mutant(
        "HTTP takes any secret of a key", "api/http/keyring.py",
        " and hmac.compare_digest(principal.key, digest)", "",
        "tests/http/test_access.py",
    ),
    _mutant(
        "HTTP asks for each key that does not exist again", "api/http/keyring.py",
        "            _keep(self._unknown, key_id, now)\n", "",
        "tests/http/test_strangers.py",
    ),
    _mutant(
        "HTTP looks up any number of keys for an address", "api/http/keyring.py",
        "        address = self._failures.count(request)\n", '        address = ""\n',
        "tests/http/test_strangers.py",
    ),
    _mutant(
        "HTTP takes any signature of a stream token", "api/http/tokens.py",
        "self._serializer.loads(text)", "self._serializer.loads_unsafe(text)[1]",
        "tests/http/test_tokens.py",
    ),
    _mutant(
        "HTTP takes many texts of one signature", "api/http/tokens.py",
        " or not _FORM.fullmatch(text)", "",
        "tests/http/test_tokens.py",
    ),
    _mutant(
        "a stream token may last for ever", "api/http/tokens.py",
        "return 0 < left <= self._lifetime + SKEW", "return 0 < left",
        "tests/http/test_tokens.py",
    ),
    _mutant(
        "a stream token is worth more than its key", "api/http/auth.py",
        "        owner.require(\"read\")\n", "",
        "tests/http/test_tokens.py",
    ),
    _mutant(
        "a stream token of another scheme opens", "api/http/auth.py",
        "case ByHost() if callable(self.auth):", "case ByHost():",
        "tests/http/test_tokens.py",
    ),
    _mutant(
        "a stream goes on without its scope", "api/http/auth.py",
        "            and all(holder.has(scope) for scope in principal.scopes)\n", "",
        "tests/http/test_tokens.py",
    ),
    _mutant(
        "a stream outlasts its token", "api/http/sse.py",
        "call_later(self.seat.lasts(), _expire, end)", "call_later(streams.most, _expire, end)",
        "tests/http/test_tokens.py",
    ),
    _mutant(
        "HTTP without keys answers to any page", "api/http/auth.py",
        "        if origin is not None and origin not in self._origins", "        if False",
        "tests/http/test_access.py",
    ),
    _mutant(
        "a thread's stream passes a higher fence without a look at the runs", "runner/threadstream.py",
        "if event is None or (at is not None and at[0] > self.place.top):", "if event is None:",
        "tests/unit/test_thread_stream.py",
    ),
    _mutant(
        "a reader does not wait for what a run says last", "runner/streams.py",
        "            await self._underway(ref, run)\n", "",
        "tests/http/test_streams.py",
    ),
    _mutant(
        "a store keeps what a caller says for an agent", "backends/postgres/codec.py",
        "if by_agent and message.provider_details", "if message.provider_details",
        POSTGRES, "-k", "m5",
    ),
    _mutant(
        "a model is told what a caller says in metadata", "runner/agents/dialect.py",
        "kept = (message.provider_details or {}).get(KEPT)", "kept = (message.provider_details or message.metadata).get(KEPT)",
        "tests/unit/test_callers_words.py",
    ),
    Mutant(
        "what a tool returned becomes a file if it looks like one",
        ("tests/unit/test_callers_words.py",),
        (
            Edit("runner/agents/dialect.py", "else {**part, \"content\": None}", "else part"),
            Edit("runner/agents/dialect.py", "                made.content = part[\"content\"]\n", "                pass\n"),
        ),
    ),
    _mutant(
        "a worker fetches what a message names", "runner/agents/fetching.py",
        "        check_host(url)\n        token", "        token",
        "tests/unit/test_fetching.py",
    ),
    _mutant(
        "usage is counted past an open transaction", USAGE,
        "    IF c.goal > pg_snapshot_xmin(pg_current_snapshot()) THEN RETURN; END IF;\n", "",
        "tests/race/test_usage.py",
    ),
    _mutant(
        "two leaders count usage at once", USAGE,
        "runyard.usage_counter x FOR UPDATE SKIP LOCKED;", "runyard.usage_counter x;",
        "tests/race/test_usage.py",
    ),
    _mutant(
        "a redriven run counts twice", PEOPLE,
        "usage_before = coalesce(y.usage, '{}')", "usage_before = NULL",
        POSTGRES, "-k", "redriven_counts",
    ),
    _mutant(
        "what was not counted is pruned", FEED,
        "coalesce((SELECT u.counted FROM runyard.usage_counter u), '0')", "pg_snapshot_xmin(pg_current_snapshot())",
        POSTGRES, "-k", "not_counted",
    ),
    _mutant(
        "a question's schema is fetched", "runner/agents/answers.py",
        ", registry=EMPTY_REGISTRY", "",
        "tests/unit/test_answers.py",
    ),
)  # fmt: skip
