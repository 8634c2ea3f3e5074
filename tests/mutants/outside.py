"""Guards against what comes from outside: callers of the API, what they store, and who reads what was stored."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Edit, Mutant, mutant

ACONTEXT: Final = "api/runyard_api/http/compat/acontext"
SQL: Final = "backends/runyard_backends/postgres"
ACCEPT: Final = f"{SQL}/functions/accept.sql"
ACCEPT_ARGUMENTS: Final = f"{SQL}/functions/accept_arguments.sql"
ARGUMENTS: Final = "tests/integration/postgres/test_accept_arguments.py"
DEADLINES: Final = f"{SQL}/functions/deadlines.sql"
DELETION: Final = f"{SQL}/functions/deletion.sql"
LISTS: Final = f"{SQL}/functions/lists.sql"
LIST_RUNS: Final = f"{SQL}/functions/list_runs.sql"
STARTABLE: Final = f"{SQL}/functions/startable.sql"
THREADS: Final = f"{SQL}/functions/threads.sql"
LUA: Final = "backends/runyard_backends/redis/lua"
TOKENS, ACCESS, PROTOCOL, IDEMPOTENCY = (
    f"api/runyard_api/http/{name}.py" for name in ("tokens", "routes/route_access", "protocol", "idempotency")
)
BOUNDS, READING, CURSOR, FETCHING, CODEC = (
    f"runner/runyard/{name}.py"
    for name in ("domain/size_limits", "domain/json_text", "events/thread_cursor", "agents/downloads", "agents/message_codec")
)
POSTGRES: Final = "tests/conformance/test_postgres.py"
REDRIVEN: Final = "tests/unit/events/test_thread_stream_redriven.py"
THREAD_STREAM: Final = "runner/runyard/events/thread_stream.py"

OUTSIDE: Final[tuple[Mutant, ...]] = (
    mutant(
        "SQL accepts numbers of any size", ACCEPT_ARGUMENTS,
        "(@ > 18446744073709551615 || @ < -9223372036854775808)", "(@ > 1e100)",
        ARGUMENTS,
    ),
    mutant(
        "SQL accepts any time", f"{SQL}/functions/accept_in_transaction.sql",
        "    IF NOT (run_at >= ", "    IF false AND NOT (run_at >= ",
        ARGUMENTS,
    ),
    mutant(
        "SQL accepts unprintable ids", ACCEPT_ARGUMENTS, " OR runyard.unprintable(given)", "",
        ARGUMENTS,
    ),
    mutant(
        "SQL accepts options of any value", ACCEPT_ARGUMENTS, "            END) IS NOT TRUE", "            END) IS NULL",
        ARGUMENTS,
    ),
    mutant(
        "the database holds any time", f"{SQL}/migrations/0001_threads.sql",
        " CHECK (VALUE >= '1970-01-01T00:00:00Z' AND VALUE < '9100-01-01T00:00:00Z')", "",
        "tests/integration/postgres/test_last_guards.py",
    ),
    mutant(
        "a damaged record of an earlier attempt is read for ever", "runner/runyard/execution/executor.py",
        "        except DataCorruptedError as error:", "        except NotImplementedError as error:",
        "tests/unit/execution/test_executor.py", "-k", "earlier_attempt",
    ),
    mutant(
        "a reset deletes the lock of dev", "api/runyard_api/cli/dev/servers.py",
        "elif path.name != LOCK:",
        "else:",
        "tests/unit/cli/test_dev_file.py",
    ),
    mutant(
        "a process id proves a running dev", "runner/runyard/support/dev_file.py",
        "return deployment if deployment is not None and _is_locked(folder) else None",
        "return deployment",
        "tests/unit/cli/test_dev_file.py",
    ),
    mutant(
        "functions that were edited by hand stay", "backends/runyard_backends/postgres/migrate.py",
        " or edited & set(file.objects)]",
        "]",
        "tests/acceptance/test_schema_functions.py", "-k", "edited",
    ),
    mutant(
        "HTTP shows every tenant the same", "api/runyard_api/http/tenant_client.py",
        ".for_tenant(principal.tenant)", ".for_tenant(\"\")",
        "tests/http/test_tenants.py",
    ),
    mutant(
        "HTTP asks for no scope", ACCESS,
        "        if self.scope is not None:\n", "        if False:\n",
        "tests/http/test_tenants.py",
    ),
    mutant(
        "Acontext's clients cannot read the errors of middleware", "api/runyard_api/http/app.py",
        "        app.add_middleware(ErrorShapes, mounted=mounted)\n", "        pass\n",
        "tests/http/test_acontext.py",
    ),
    mutant(
        "a message makes the session of Acontext that it names", f"{ACONTEXT}/messages.py",
        "    await caller.client.thread(thread_id)  # ", "    # ",
        "tests/http/test_acontext.py",
    ),
    mutant(
        "a message makes the thread of events that it names", "api/runyard_api/http/compat/events/commands.py",
        "    await caller.client.thread(body.thread_id)  # ", "    # ",
        "tests/http/test_events.py",
    ),
    mutant(
        "a thread that does not exist has no branches", "api/runyard_api/http/compat/events/reads.py",
        "    await caller.client.thread(thread_id)\n    return _listed", "    return _listed",
        "tests/http/test_events.py",
    ),
    mutant(
        "a projection moves on before it has written", "examples/projection/projection.py",
        "    page = await client.feed(cursor)\n", "    page = await client.feed(cursor)\n    move(database, page.next)\n",
        "tests/examples/test_projection.py", "-k", "dying",
    ),
    mutant(
        "one file of a form becomes data of any number of parts", f"{ACONTEXT}/uploads.py",
        "files.pop(name, None)", "files.get(name)",
        "tests/http/test_acontext.py",
    ),
    mutant(
        "JSON in a form has no bounds", f"{ACONTEXT}/uploads.py",
        "            shape.feed(given[at : at + PIECE_BYTES])\n", "",
        "tests/http/test_acontext.py",
    ),
    mutant(
        "a change of configs undoes another one", f"{ACONTEXT}/sessions.py",
        "extra={CONFIGS: merged}, expected=thread.updated_at", "extra={CONFIGS: merged}",
        "tests/http/test_acontext.py",
    ),
    mutant(
        "a taken id of OpenHands is a success", "api/runyard_api/http/compat/openhands/conversations.py",
        "    if given.id is not None and not made.created:\n", "    if False:\n",
        "tests/http/test_openhands.py",
    ),
    mutant(
        "the key header of OpenHands is read everywhere", "api/runyard_api/http/compat/layer.py",
        "                if path.startswith(prefix) and not native:\n", "                if not native:\n",
        "tests/http/test_openhands.py",
    ),
    mutant(
        "a task of a side branch is read with the trunk", "examples/task_extraction/tasks.py",
        "client.messages(thread_id, leaf, newest_first", "client.messages(thread_id, newest_first",
        "tests/examples/test_task_extraction.py", "-k", "side",
    ),
    mutant(
        "a place in the feed is saved before its messages", "examples/task_extraction/tasks.py",
        "                await handle(client, tasks, extract, entry)\n                tasks.move(entry.cursor)\n",
        "                tasks.move(entry.cursor)\n                await handle(client, tasks, extract, entry)\n",
        "tests/examples/test_task_extraction.py", "-k", "error",
    ),
    mutant(
        "HTTP takes any secret of a key", "api/runyard_api/http/keyring.py",
        " and hmac.compare_digest(principal.key, digest)", "",
        "tests/http/test_access.py",
    ),
    mutant(
        "HTTP asks for each key that does not exist again", "api/runyard_api/http/keyring.py",
        "            _keep(self._unknown, key_id, now)\n", "",
        "tests/http/test_strangers.py",
    ),
    mutant(
        "HTTP looks up any number of keys for an address", "api/runyard_api/http/keyring.py",
        "        address = self._failures.count(request)\n", '        address = ""\n',
        "tests/http/test_strangers.py",
    ),
    mutant(
        "HTTP takes any signature of a stream token", "api/runyard_api/http/tokens.py",
        "self._serializer.loads(text)", "self._serializer.loads_unsafe(text)[1]",
        "tests/http/test_tokens.py",
    ),
    mutant(
        "HTTP takes many texts of one signature", "api/runyard_api/http/tokens.py",
        " or not _FORM.fullmatch(text)", "",
        "tests/http/test_tokens.py",
    ),
    mutant(
        "a stream token may last for ever", "api/runyard_api/http/tokens.py",
        "return 0 < left <= self._lifetime + CLOCK_SKEW_SECONDS", "return 0 < left",
        "tests/http/test_tokens.py",
    ),
    mutant(
        "a stream token is worth more than its key", "api/runyard_api/http/authentication.py",
        "        owner.require(\"read\")\n", "",
        "tests/http/test_tokens.py",
    ),
    mutant(
        "a stream token of another scheme opens", "api/runyard_api/http/authentication.py",
        "case ByHost() if callable(self.auth):", "case ByHost():",
        "tests/http/test_tokens.py",
    ),
    mutant(
        "a stream goes on without its scope", "api/runyard_api/http/authentication.py",
        "            and all(holder.has(scope) for scope in principal.scopes)\n", "",
        "tests/http/test_tokens.py", "--timeout", "30",
    ),
    mutant(
        "a stream outlasts its token", "api/runyard_api/http/sse.py",
        "call_later(self.seat.lasts(), _expire, end)", "call_later(streams.most, _expire, end)",
        "tests/http/test_tokens.py", "--timeout", "30",
    ),
    mutant(
        "HTTP without keys answers to any page", "api/runyard_api/http/authentication.py",
        "        if origin is not None and origin not in self._origins", "        if False",
        "tests/http/test_access.py",
    ),
    mutant(
        "a thread's stream passes a higher fence without a look at the runs", "runner/runyard/events/thread_stream.py",
        "if event is None or (at is not None and at[0] > self.place.top):", "if event is None:",
        "tests/unit/events/test_thread_stream.py",
    ),
    mutant(
        "a reader that returns while its run starts gets an event twice", "runner/runyard/events/run_stream.py",
        " or at < _latest(await self._run())", "",
        "tests/unit/events/test_run_stream.py",
    ),
    mutant(
        "a reader does not wait for what a run says last", "runner/runyard/events/run_stream.py",
        "            await self._underway(ref, run)\n", "",
        "tests/http/test_streams.py",
    ),
    mutant(
        "a store keeps what a caller says for an agent", "backends/runyard_backends/codec/message_rows.py",
        "if by_agent and message.provider_details", "if message.provider_details",
        POSTGRES, "-k", "m5",
    ),
    mutant(
        "a reader in a format gets an original that says something else", "runner/runyard/formats/conversion.py",
        "    return read if same and said.stop_reason in (None, message.stop_reason) else None", "    return read",
        "tests/unit/formats/test_originals.py",
    ),
    mutant(
        "a store drops the original of a message", "backends/runyard_backends/codec/message_rows.py",
        "if message.source is not None:", "if False:",
        POSTGRES, "-k", "original",
    ),
    mutant(
        "a run id is found again with another original", "runner/runyard/ports/commands.py",
        "return words if message.source is None else {**words, \"source\": message.source.__dict__}", "return words",
        "tests/conformance/test_memory.py", "-k", "another_original",
    ),
    mutant(
        "the original of a message has no bounds", BOUNDS,
        "message.provider_details, original) if value]", "message.provider_details) if value]",
        "tests/conformance/test_memory.py", "-k", "for_its_original",
    ),
    mutant(
        "the JSON in texts of a message has no bounds", "runner/runyard/formats/wire.py",
        "        shape.feed_all(content)\n", "",
        "tests/unit/formats/test_faults.py",
    ),
    mutant(
        "an original may have values of other types than the message", "runner/runyard/formats/conversion.py",
        "one.type == other.type and same_json(one.__dict__, other.__dict__)", "one == other",
        "tests/unit/formats/test_originals.py",
    ),
    mutant(
        "an original sets the ids of a message", "runner/runyard/formats/acontext.py",
        "**without_store_fields(blob), \"created_at\"", "**blob, \"created_at\"",
        "tests/unit/formats/test_originals.py",
    ),
    mutant(
        "the parts of tool results are not counted", "runner/runyard/formats/wire.py",
        "        self.nested += len(parts)\n", "",
        "tests/unit/formats/test_faults.py",
    ),
    mutant(
        "an unknown field of a message is dropped", "runner/runyard/domain/base_models.py",
        "extra=\"forbid\", populate_by_name=True", "extra=\"ignore\", populate_by_name=True",
        "tests/unit/domain/test_models.py",
    ),
    mutant(
        "a model is told what a caller says in metadata", "runner/runyard/agents/message_codec.py",
        "kept = (message.provider_details or {}).get(KEPT)", "kept = (message.provider_details or message.metadata).get(KEPT)",
        "tests/unit/agents/test_message_content.py",
    ),
    Mutant(
        "what a tool returned becomes a file if it looks like one",
        ("tests/unit/agents/test_message_content.py",),
        (
            Edit(CODEC, "else {**part, \"content\": None}", "else part"),
            Edit(CODEC, "                made.content = part[\"content\"]\n", "                pass\n"),
        ),
    ),
    mutant(
        "a worker fetches what a message names", "runner/runyard/agents/downloads.py",
        "        check_host(url)\n        token", "        token",
        "tests/unit/agents/test_downloads.py",
    ),
    mutant(
        "a question's schema is fetched", "runner/runyard/domain/requests.py",
        ", registry=EMPTY_REGISTRY", "",
        "tests/unit/domain/test_approvals.py",
    ),
    mutant(
        "a stream token of another version opens", TOKENS,
        "version: int = Field(ge=VERSION, le=VERSION)", "version: int",
        "tests/http/test_tokens.py", "-k", "claims_that_are_none",
    ),
    mutant(
        "a stream token says what it likes beside its claims", TOKENS,
        "extra=\"forbid\"", "extra=\"ignore\"",
        "tests/http/test_tokens.py", "-k", "claims_that_are_none",
    ),
    mutant(
        "a stream token names a key by any text", TOKENS,
        "key_id: str = Field(pattern=\"^[0-9a-f]{16}$\")", "key_id: str",
        "tests/http/test_tokens.py", "-k", "what_a_key_can_be",
    ),
    mutant(
        "a stream token names threads that cannot be", TOKENS,
        "AfterValidator(checked_id)", "AfterValidator(str)",
        "tests/http/test_tokens.py", "-k", "claims_that_are_none",
    ),
    mutant(
        "a stream token outlives its time", TOKENS,
        "return 0 < left <=", "return left <=",
        "tests/http/test_tokens.py", "-k", "claims_that_are_none",
    ),
    mutant(
        "a stream token opens every stream", ACCESS,
        "if asked.get(\"thread_id\") != thread_id or run_id not in (None, asked.get(\"run_id\")):", "if False:",
        "tests/http/test_tokens.py", "-k", "opens_what_its_key_may_see",
    ),
    mutant(
        "a value may be as deep as it likes", BOUNDS,
        "if level > MAX_NESTING:", "if False:",
        "tests/conformance/test_memory.py", "-k", "TestNesting",
    ),
    mutant(
        "a value may have any number of members", BOUNDS,
        "                if count > values:", "                if False:",
        "tests/unit/domain/test_size_limits.py", "-k", "every_level",
    ),
    mutant(
        "a value may have any number of bytes", BOUNDS,
        "if most is not None and size > most:", "if False:",
        "tests/unit/domain/test_size_limits.py", "-k", "bytes",
    ),
    mutant(
        "an integer may have any number of bits", BOUNDS,
        "if part not in _INTEGERS:", "if False:",
        "tests/unit/domain/test_size_limits.py", "-k", "integers",
    ),
    mutant(
        "a message may have any number of parts", BOUNDS,
        "if parts > MAX_PARTS:", "if False:",
        "tests/conformance/test_memory.py", "-k", "parts_of_a_message",
    ),
    mutant(
        "a body is decoded whatever its number of values", READING,
        "if self.values >= self.most or self._quotes > 4 * self.most:", "if False:",
        "tests/unit/domain/test_size_limits.py", "-k", "outside_of_strings",
    ),
    mutant(
        "a number in a body may have any number of digits", READING,
        "if _TOO_LONG in (self._number + outside).translate(_DIGITS):", "if False:",
        "tests/unit/domain/test_size_limits.py", "-k", "outside_of_strings",
    ),
    mutant(
        "a body brings infinity", READING,
        "    _check_finite(value)\n", "",
        "tests/http/test_bounds.py", "-k", "hostile_bodies",
    ),
    mutant(
        "a download leaves the hosts by a redirect", FETCHING,
        "{\"allowed_domains\": [*hosts]} if hosts is not None else {}", "{}",
        "tests/unit/agents/test_downloads.py", "-k", "redirect",
    ),
    mutant(
        "a download goes to private addresses", FETCHING,
        "allow_local=from_environment().fetch_private", "allow_local=True",
        "tests/unit/agents/test_downloads.py",
    ),
    mutant(
        "a host that only ends like an allowed one is fetched from", "runner/runyard/support/fetch_hosts.py",
        "or host.rstrip(\".\") not in from_environment().fetch_hosts:",
        "or not host.rstrip(\".\").endswith(tuple(from_environment().fetch_hosts)):",
        "tests/unit/agents/test_downloads.py", "-k", "compared_whole",
    ),
    mutant(
        "a user calls tools in the model's words", "runner/runyard/agents/message_content.py",
        "case ToolCallPart() if role == \"assistant\":", "case ToolCallPart():",
        "tests/unit/agents/test_message_content.py",
    ),
    mutant(
        "a list by tags shows every tenant's threads", LISTS,
        "WHERE g.tenant = $1 AND g.term = $4 AND", "WHERE g.term = $4 AND",
        POSTGRES, "-k", "another_tenants",
    ),
    mutant(
        "a list of what waits goes on into the next tenant", LIST_RUNS,
        "(k.tenant, k.accept_no) < ($1, $8) AND k.tenant >= $1", "(k.tenant, k.accept_no) < ($1, $8)",
        POSTGRES, "-k", "another_tenants",
    ),
    mutant(
        "a list by agent shows every tenant's runs", LIST_RUNS,
        "'k.tenant = $1 AND k.agent = $4'", "'k.agent = $4'",
        POSTGRES, "-k", "another_tenants",
    ),
    mutant(
        "a list of deliveries goes on into the next tenant", LISTS,
        "d.delivery_no) < ($1, $2) AND coalesce(d.owner, d.tenant) >= $1", "d.delivery_no) < ($1, $2)",
        POSTGRES, "-k", "TestWebhookOwners and tenants",
    ),
    mutant(
        "a page of runs has any number of bytes", LIST_RUNS,
        "octet_length(r.options::text);\n            more := found > 0 AND total + size > bytes;",
        "octet_length(r.options::text);\n            more := false;",
        "tests/conformance/test_page_bytes.py", "-k", "runs",
    ),
    mutant(
        "a page of requests has any number of bytes", LISTS,
        "total := total + 512 + octet_length(q.body) + coalesce(octet_length(q.answer), 0);\n", "",
        POSTGRES, "-k", "requests_come_in_pages",
    ),
    mutant(
        "the first tenant is served until it has no more", f"{LUA}/claim.lua",
        "alone and limit or claimed + 1", "limit",
        "tests/integration/redis/test_scheduler.py", "-k", "starve_another or share",
    ),
    mutant(
        "a tenant that comes back goes to the front", f"{LUA}/turns.lua",
        "redis.call('ZADD', turns, last + 1, tenant)", "redis.call('ZADD', turns, 0, tenant)",
        "tests/integration/redis/test_scheduler.py", "-k", "starves_nobody",
    ),
    mutant(
        "what a caller calls an agent becomes a label", "runner/runyard/support/metrics.py",
        "agent if agent in _agents else \"\"", "agent or \"\"",
        "tests/unit/support/test_metrics.py", "-k", "nobody_serves",
    ),
    mutant(
        "headers may take for ever", PROTOCOL,
        "\"head\": settings.body_timeout, ", "",
        "tests/http/test_serve.py", "-k", "head_that_does_not_come", "--timeout", "30",
    ),
    mutant(
        "a connection may say nothing for ever", PROTOCOL,
        "\"first\": settings.body_timeout, ", "",
        "tests/http/test_serve.py", "-k", "head_that_does_not_come", "--timeout", "30",
    ),
    mutant(
        "an answered connection may stay for ever", PROTOCOL,
        ", \"idle\": settings.idle_timeout", "",
        "tests/http/test_serve.py", "-k", "follows_an_answer and line", "--timeout", "30",
    ),
    mutant(
        "headers without end are read on", PROTOCOL,
        "        if self._fruitless > self._most_bytes:", "        if False:",
        "tests/http/test_serve.py", "-k", "head_without_end",
    ),
    mutant(
        "any number of requests wait on a connection", PROTOCOL,
        "if len(self.pipeline) >= MAX_PIPELINED:", "if False:",
        "tests/http/test_serve.py", "-k", "requests_ahead",
    ),
    mutant(
        "a slow reader of one channel holds any number of bytes", "backends/runyard_backends/redis/pubsub.py",
        "return held <= most and len", "return len",
        "tests/unit/backends/test_redis_parts.py", "-k", "bounded_in_bytes",
    ),
    mutant(
        "all slow readers together hold any number of bytes", "backends/runyard_backends/redis/pubsub.py",
        "GUARANTEED_BYTES if self._unread.size + size > MAX_UNREAD_BYTES_IN_ALL else MAX_UNREAD_BYTES", "MAX_UNREAD_BYTES",
        "tests/integration/redis/test_events.py", "-k", "what_a_process_holds",
    ),
    mutant(
        "a thread's stream reads a run again whose end it told", "runner/runyard/events/thread_stream.py",
        "if run.run_id not in self.place.open or self._follow(run):", "if self._follow(run):",
        "tests/unit/events/test_thread_stream_bounds.py", "-k", "no_further_turn",
    ),
    mutant(
        "a thread's stream reads a run twice at once", "runner/runyard/events/thread_stream.py",
        " or run.run_id == self.passing", "",
        "tests/unit/events/test_thread_stream_bounds.py", "-k", "goes_on_during",
    ),
    mutant(
        "a thread's stream says a run twice that ended during a listing", "runner/runyard/events/thread_stream.py",
        "run_id, None if skips else last)", "run_id, self._last(run_id))",
        "tests/unit/events/test_thread_stream.py", "-k", "ends_during",
    ),
    mutant(
        "a thread's stream takes a run that said nothing yet as read", "runner/runyard/events/thread_stream.py",
        "            if whole and (position(self._last(run.run_id)) or START)[1]:", "            if whole:",
        "tests/unit/events/test_thread_stream_bounds.py", "-k", "come_late",
    ),
    mutant(
        "a thread's stream forgets what runs beside those that it follows", "runner/runyard/events/thread_stream.py",
        "        if again:\n", "        if False:\n",
        "tests/unit/events/test_thread_stream_bounds.py", "-k", "looked_at_soon",
    ),
    mutant(
        "a thread's stream takes a failure for the last that a run says", CURSOR,
        "if event.type in FINAL_ENDS:", "if event.type in (*FINAL_ENDS, \"run.failed\"):",
        REDRIVEN, "-k", "completes_before or comes_back_at",
    ),
    mutant(
        "a thread's stream keeps every run that failed", THREAD_STREAM,
        "                del self.place.open[run.run_id]\n                self.read_up_to", "                self.read_up_to",
        REDRIVEN, "-k", "leaves_the_cursor",
    ),
    mutant(
        "a thread's stream does not look whether a run that stopped went on", THREAD_STREAM,
        "        if live and not over:\n", "        if False:\n",
        REDRIVEN, "-k", "followed_at_once or after_one_failed_read",
    ),
    mutant(
        "a thread's stream begins a redriven run again", CURSOR,
        "return f\"{self.top}-0\" if redriven and self.since is None and self.top >= 0 else \"\"", "return \"\"",
        REDRIVEN, "-k", "does_not_begin_again",
    ),
    mutant(
        "a thread's stream begins a redriven run again that was cancelled", "runner/runyard/events/thread_cursor.py",
        "max(run.fence, end[0]) > self.top", "run.fence > self.top",
        REDRIVEN, "-k", "away",
    ),
    mutant(
        "a thread's stream does not read a run in turn again after a failed read", THREAD_STREAM,
        "again |= not whole or run.status", "again |= run.status",
        "tests/unit/events/test_thread_stream_by_chance.py",
    ),
    mutant(
        "a thread's stream misses a run that suspends while its reader begins", THREAD_STREAM,
        "(RunStatus.QUEUED, RunStatus.RUNNING, RunStatus.SUSPENDED, RunStatus.QUEUED)",
        "(RunStatus.SUSPENDED, RunStatus.QUEUED, RunStatus.RUNNING)",
        REDRIVEN, "-k", "suspends_while",
    ),
    mutant(
        "two budgets of a run share their questions", "runner/runyard/agents/budgets.py",
        ' if seen[what] == 1 else f"budget:{what}:no-{seen[what]}"', "",
        "tests/unit/agents/test_budgets.py", "-k", "one_budget",
    ),
    mutant(
        "a page of runs in memory begins at the first run again", "backends/runyard_backends/memory/run_pages.py",
        "last is None or _place(run) < last", "True",
        "tests/unit/backends/test_memory_pages.py",
    ),
    mutant(
        "a page of requests in memory begins at the first request again", "backends/runyard_backends/memory/run_pages.py",
        "if _asked(request) > last", "if last",
        "tests/conformance/test_memory.py", "-k", "may_leave",
    ),
    mutant(
        "a page of deliveries in memory begins at the first delivery again", "backends/runyard_backends/memory/webhooks.py",
        " and each.number < last]", "]",
        "tests/conformance/test_memory.py", "-k", "may_leave",
    ),
    mutant(
        "a thread's stream lists the runs after each run", THREAD_STREAM,
        "        if live and not over:\n", "        if live:\n",
        REDRIVEN, "-k", "completion_none",
    ),
    mutant(
        "a thread's stream reads again at once what it could not read", THREAD_STREAM,
        "            if live:\n                await asyncio.sleep(RETRY_SECONDS)\n", "",
        REDRIVEN, "-k", "after_one_failed_read",
    ),
    mutant(
        "a slow reader holds large events decoded", "backends/runyard_backends/redis/events.py",
        "    if payload is not None and len(payload) >= SEALED_BYTES:\n", "    if False:\n",
        "tests/integration/redis/test_events.py", "-k", "held_as_json",
    ),
    mutant(
        "a slow reader of a thread holds any number of bytes", "runner/runyard/events/unread.py",
        "while self._text and self._text + text > MAX_UNREAD_CHARACTERS:", "while False:",
        "tests/unit/events/test_thread_stream.py", "-k", "bounded_in_text",
    ),
    mutant(
        "a cursor names any number of runs", CURSOR,
        "            and len(self.open) <= MAX_NAMED_RUNS\n", "",
        "tests/unit/events/test_thread_stream_bounds.py", "-k", "cursor_says",
    ),
    mutant(
        "a cursor names runs of any length", CURSOR,
        "            and sum(_room(run_id, last) for run_id, last in self.open.items()) <= MAX_CURSOR_BYTES\n", "",
        "tests/unit/events/test_thread_stream_bounds.py", "-k", "cursor_says",
    ),
    mutant(
        "a cursor claims a fence that no store has", CURSOR,
        "and -1 <= self.top < MAX_NUMBER", "and -1 <= self.top",
        "tests/unit/events/test_thread_stream_bounds.py", "-k", "cursor_says",
    ),
    mutant(
        "all subscriptions sign with one secret", "runner/runyard/domain/webhook_secrets.py",
        "(\"subscription\", webhook_id)", "(\"subscription\", \"\")",
        "tests/unit/domain/test_webhooks.py", "-k", "no_two_owners",
    ),
    mutant(
        "all tenants sign with one secret", "runner/runyard/domain/webhook_secrets.py",
        "(\"tenant\", tenant)", "(\"tenant\", \"\")",
        "tests/unit/domain/test_webhooks.py", "-k", "no_two_owners",
    ),
    mutant(
        "a terminal obeys what was stored", "runner/runyard/domain/quoting.py",
        "return _UNSEEN.sub(_sign, text)", "return text",
        "tests/unit/cli/test_terminal.py", "-k", "signs",
    ),
    mutant(
        "a terminal obeys what was stored as JSON", "runner/runyard/domain/quoting.py",
        "return _IN_JSON.sub(lambda found: f\"\\\\u{ord(found[0]):04x}\", text)", "return text",
        "tests/unit/cli/test_terminal.py", "-k", "json_stays_json",
    ),
    mutant(
        "an Idempotency-Key is every tenant's", IDEMPOTENCY,
        "self.tenant, operation, *of, self.value", "operation, *of, self.value",
        "tests/http/test_idempotency.py", "-k", "its_tenants",
    ),
    mutant(
        "an Idempotency-Key is every thread's", IDEMPOTENCY,
        "self.tenant, operation, *of, self.value", "self.tenant, operation, self.value",
        "tests/http/test_idempotency.py", "-k", "its_threads",
    ),
    mutant(
        "an Idempotency-Key is every operation's", IDEMPOTENCY,
        "self.tenant, operation, *of, self.value", "self.tenant, *of, self.value",
        "tests/http/test_idempotency.py", "-k", "its_operations",
    ),
    mutant(
        "two Idempotency-Keys are one", IDEMPOTENCY,
        "if len(request.headers.getlist(\"idempotency-key\")) > 1:", "if False:",
        "tests/http/test_idempotency.py", "-k", "one_key",
    ),
    mutant(
        "a change is made whatever If-Match says", "api/runyard_api/http/routes/threads.py",
        "    if if_match is None:\n", "    if True:\n",
        "tests/http/test_conditions.py", "-k", "stale_change",
    ),
    mutant(
        "a change is made whatever changed since it was read", THREADS,
        "IF t.updated_at IS DISTINCT FROM coalesce(seen, t.updated_at) THEN", "IF false THEN",
        POSTGRES, "-k", "what_has_changed",
    ),
    mutant(
        "a parameter that is misspelt is passed over", ACCESS,
        "            known.check(request)\n", "",
        "tests/http/test_bounds.py", "-k", "does_not_know",
    ),
    mutant(
        "a run that is too late is claimed", STARTABLE,
        "IF r.attempt = 0 AND r.expires_at <= clock_timestamp() THEN", "IF false THEN",
        POSTGRES, "-k", "comes_too_late",
    ),
    mutant(
        "a run that nobody starts waits for ever", DEADLINES,
        "WHERE l.thread_key = t.thread_key AND l.expires_at <= (SELECT clock_timestamp())",
        "WHERE false",
        POSTGRES, "-k", "nobody_starts",
    ),
    mutant(
        "a run that started expires", STARTABLE,
        "IF r.attempt = 0 AND r.expires_at <= clock_timestamp() THEN", "IF r.expires_at <= clock_timestamp() THEN",
        POSTGRES, "-k", "started_does_not_expire",
    ),
    mutant(
        "the limit of waiting holds for nobody", ACCEPT,
        "CASE WHEN q.kind <> 'fork' THEN runyard.limit_of('queued_seconds') END);", "NULL);",
        POSTGRES, "-k", "limit_holds_for_all",
    ),
    mutant(
        "a run in a context is deleted", DELETION,
        "    ELSIF r.completion_seq IS NOT NULL THEN\n        PERFORM runyard.refuse('run_in_use'",
        "    ELSIF false THEN\n        PERFORM runyard.refuse('run_in_use'",
        POSTGRES, "-k", "lives_or_counts",
    ),
    mutant(
        "a run is deleted without the thread's lock", DELETION,
        "DECLARE\n    t runyard.threads := runyard.known_thread(for_tenant, thread_id);\n    r runyard.runs",
        "DECLARE\n    t runyard.threads := (SELECT x FROM runyard.threads x WHERE x.tenant = for_tenant"
        " AND x.thread_id = delete_run.thread_id);\n    r runyard.runs",
        "tests/integration/postgres/test_verb_pairs.py", "-k", "accept_after_failed",
    ),
    mutant(
        "a run is deleted under who goes on from it", DELETION,
        "y.branch_id IS NULL AND y.status <> 'cancelled' AND y.parent_id = ANY (doomed)", "false",
        POSTGRES, "-k", "RunDeletion and go_on",
    ),
    mutant(
        "a run is deleted under a fork that waits", DELETION,
        "            OR y.finished_at IS NULL AND ((y.fork", "            OR false AND ((y.fork",
        POSTGRES, "-k", "yet_to_fork",
    ),
    mutant(
        "a fork loses what a deleted run said", DELETION,
        "m.seq BETWEEN greatest(r.first_seq, shown + 1) AND r.last_seq", "m.seq BETWEEN r.first_seq AND r.last_seq",
        POSTGRES, "-k", "RunDeletion and forks_keep",
    ),
    mutant(
        "one run that cannot be decoded stops its claim", "backends/runyard_backends/postgres/runs.py",
        "return claim, error\n", "raise\n",
        "tests/integration/postgres/test_corrupt_rows.py", "-k", "when_it_is_claimed",
    ),
)  # fmt: skip
