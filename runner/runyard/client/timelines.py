"""Timelines of runs, and the search for a run by the beginning of its id."""

from __future__ import annotations

from ..domain.runs import Run
from ..domain.timeline import Timeline
from ..domain.validation import check_id
from ..errors import RunAmbiguousError, RunNotFoundError
from ..ports.queries import PageRequest
from ..ports.timelines import FOUND_RUNS
from .runs import RunCalls


class TimelineCalls(RunCalls):
    """Find a run, and read what happened in it."""

    async def timeline(self, thread_id: str, run_id: str, *, limit: int = 100, cursor: str | None = None) -> Timeline:
        """Return a page of the timeline of a run: attempts, model requests, tools, steps and HITL requests.

        The run and its totals are on every page. All data come from Postgres. Inputs and results are shortened to a few
        hundred characters (:mod:`runyard.domain.timeline`). As long as the run has not ended, a later read may return further
        entries.

        Raises RunNotFoundError, ThreadNotFoundError, InvalidInputError, InvalidCursorError.
        """
        return await self.backend.timelines.timeline(thread_id, run_id, PageRequest(limit=limit, cursor=cursor))

    async def find_run(self, prefix: str) -> Run:
        """Return the run whose id is ``prefix`` or begins with ``prefix``, on any thread of the tenant.

        If the id of a run is exactly ``prefix``, runs with longer ids are ignored. Runs whose content was deleted are not
        found.

        Raises RunNotFoundError, InvalidInputError, and RunAmbiguousError with the ids of the first runs if several runs match.
        """
        found = await self.backend.timelines.find(check_id(prefix, "run_id"))
        if not found:
            raise RunNotFoundError(f"no run has an id that begins with {prefix!r}", run_id=prefix)
        if len(found) > 1:
            shown = ", ".join(f"{run_id} on {thread_id}" for thread_id, run_id in found[:3])
            many = str(len(found)) if len(found) < FOUND_RUNS else f"at least {FOUND_RUNS}"
            raise RunAmbiguousError(
                f"{many} runs have an id that begins with {prefix!r}, such as {shown}; give more of the id, or the thread",
                run_id=prefix,
                runs=[{"thread_id": thread_id, "run_id": run_id} for thread_id, run_id in found],
            )
        return await self.run(*found[0])
