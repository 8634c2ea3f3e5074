"""Decide whether a request with a known id is a repetition of an earlier request."""

from __future__ import annotations

import json

from runyard.errors import RunConflictError
from runyard.models import JsonObject
from runyard.ports.commands import COMPARED_OPTIONS, AcceptRequest

from .state import RunState, ThreadState


def existing_run(thread: ThreadState, request: AcceptRequest) -> RunState | None:
    """Return the run that an equal request created under this id, or None if the id is new. Raises RunConflictError if the id
    belongs to another request."""
    run = thread.runs.get(request.run_id)
    if run is None:
        return None
    if run.request is None:
        raise RunConflictError(f"run id {run.id!r} belongs to an external run", run_id=run.id, differs=["kind"])
    ours, theirs = request.request_hash, run.request.request_hash
    if differs := sorted(name for name in ours | theirs if ours.get(name) != theirs.get(name)):
        options = _differing_options(run.request, request) if "options" in differs else {}
        if options:
            differs = sorted({*differs, *options} - {"options"})
        named = (
            name + (" ({}, got {})".format(*map(json.dumps, options[name])) if name in options else "") for name in differs
        )
        raise RunConflictError(
            f"run id {run.id!r} is taken by a request with another {', '.join(named)}; choose another id",
            run_id=run.id,
            differs=differs,
            values=options,
        )
    return run


def _differing_options(one: AcceptRequest, two: AcceptRequest) -> JsonObject:
    """Return the compared options in which two requests differ, with the value of each request."""
    values = {name: [getattr(one.options, name), getattr(two.options, name)] for name in COMPARED_OPTIONS}
    return {name: pair for name, pair in values.items() if pair[0] != pair[1]}
