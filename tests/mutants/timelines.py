"""Mutants of timelines, of the search of runs, of inherited runs, and of files of threads."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant, mutant

TIMELINE: Final = "backends/runyard_backends/postgres/functions/timeline.sql"
WAITS: Final = "backends/runyard_backends/postgres/functions/timeline_waits.sql"
FILES: Final = "backends/runyard_backends/thread_files"
POSTGRES: Final = "tests/conformance/test_postgres.py"
HOSTILE: Final = "tests/integration/thread_files/test_hostile_files.py"
IMPORT: Final = "tests/integration/thread_files/test_import.py"

TIMELINES: Final[tuple[Mutant, ...]] = (
    mutant(
        "a timeline is every tenant's", TIMELINE,
        "WHERE x.tenant = for_tenant AND x.thread_id = seen_run.thread_id", "WHERE x.thread_id = seen_run.thread_id",
        POSTGRES, "-k", "timelines_of_another_tenant",
    ),
    mutant(
        "a page of a timeline has any number of bytes", TIMELINE,
        "OR (c.n <= most AND c.used <= bytes)", "OR c.n <= most",
        POSTGRES, "-k", "large_contents",
    ),
    mutant(
        "a step without a result is started for ever", TIMELINE,
        " OR (c.kind = 2 AND c.size IS NULL)", "",
        POSTGRES, "-k", "says_how_its_attempt_ended",
    ),
    mutant(
        "a wait that was due is shown as cancelled", "runner/runyard/domain/timeline.py",
        "== run.finished_at and not due:", "== run.finished_at:",
        "tests/conformance/test_memory.py", "-k", "due_before",
    ),
    mutant(
        "a step that is repeated keeps the input of its first start", "backends/runyard_backends/postgres/functions/steps.sql",
        "DO UPDATE SET fence = r.fence, input = arguments,", "DO UPDATE SET fence = r.fence,",
        POSTGRES, "-k", "input_of_a_step",
    ),
    mutant(
        "a timeline reads large results", TIMELINE,
        "    IF octet_length(s.result) > large THEN s.result := NULL; END IF;\n", "",
        POSTGRES, "-k", "large_contents",
    ),
    mutant(
        "a cursor has a name of any length", TIMELINE,
        "RETURN CASE WHEN octet_length(name) > 255 THEN encode(sha256(convert_to(name, 'UTF8')), 'hex') ELSE name END;",
        "RETURN name;",
        POSTGRES, "-k", "neither_drop_nor_repeat",
    ),
    mutant(
        "a page of waits has any number of bytes", WAITS,
        "OR (c.n <= most AND c.used <= bytes)", "OR c.n <= most",
        POSTGRES, "-k", "large_signals",
    ),
    mutant(
        "a page of a timeline ends after waits that its rows do not reach", "backends/runyard_backends/postgres/timelines.py",
        "if not ends or place <= min(ends)", "",
        "tests/integration/postgres/test_timeline_reads.py", "-k", "waits_end",
    ),
    mutant(
        "a message that the run has is announced again", "runner/runyard/execution/transcript.py",
        "if message.id not in stored and message.id not in held:", "if True:",
        "tests/unit/execution/test_context.py", "-k", "ReplayedMessages",
    ),
    mutant(
        "a later attempt does not read which messages are stored", "runner/runyard/execution/transcript.py",
        "None if continues else {run.input.id}", "{run.input.id}",
        "tests/unit/execution/test_context.py", "-k", "ReplayedMessages",
    ),
    mutant(
        "a search of runs has wildcards", TIMELINE,
        'r.run_id COLLATE "C" > prefix AND r.run_id COLLATE "C" < after', "r.run_id LIKE prefix || '%'",
        POSTGRES, "-k", "TestFindRun",
    ),
    mutant(
        "an exact id finds longer ids too", TIMELINE,
        "    IF FOUND THEN RETURN; END IF;\n", "",
        POSTGRES, "-k", "TestFindRun",
    ),
    mutant(
        "a search of runs is unbounded", TIMELINE,
        'ORDER BY r.run_id COLLATE "C", r.accept_no LIMIT most', 'ORDER BY r.run_id COLLATE "C", r.accept_no',
        POSTGRES, "-k", "search_is_bounded",
    ),
    mutant(
        "the stream of an inherited run is that of another thread", "runner/runyard/events/inherited_runs.py",
        " or held.accepted_at != run.accepted_at:", ":",
        "tests/http/test_streams.py", "-k", "inherited",
    ),
    mutant(
        "a cut file is imported", f"{FILES}/checks.py",
        "if line.lines != number - 1:", "if False:",
        HOSTILE, "-k", "missing",
    ),
    mutant(
        "a file adds to a run that has ended", f"{FILES}/checks.py",
        "if run_id in self.over:", "if False:",
        HOSTILE, "-k", "refused_file",
    ),
    mutant(
        "a file has a thread that is no fork of the others", f"{FILES}/checks.py",
        "if self.threads and fork is None:", "if False:",
        HOSTILE, "-k", "refused_file",
    ),
    mutant(
        "a line of a file has any number of values", f"{FILES}/records.py",
        "        Shape(MAX_LINE_VALUES).feed_all(text)\n", "",
        HOSTILE, "-k", "refused_file",
    ),
    mutant(
        "an import writes to a thread with the same id", f"{FILES}/importer.py",
        "if mark.origin != line.origin:", "if False:",
        IMPORT, "-k", "another_thread_with_an_id",
    ),
    mutant(
        "an import answers a request of another thread", f"{FILES}/requests.py",
        "if known.thread_id != section.id:", "if False:",
        HOSTILE, "-k", "requests_of_another_thread",
    ),
    mutant(
        "a repeated import appends messages again", f"{FILES}/section.py",
        "            if not await self._stored(message):\n", "            if True:\n",
        IMPORT, "-k", "interrupted_anywhere or later_export",
    ),
    mutant(
        "a later import takes back the changes of the deployment", f"{FILES}/section.py",
        "        if not self.added:\n            await set_extra(",
        "        if True:\n            await set_extra(",
        IMPORT, "-k", "later_export",
    ),
)  # fmt: skip
