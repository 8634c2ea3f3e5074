"""Explain in one sentence why a run is not running (R12)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runyard.domain.crashes import MAX_CRASHES
from runyard.models import Run

_SENTENCES = {
    "suspended": "waiting for an answer to request {request_id} since {since}",
    "not_due": "due at {due_at}",
    "retrying": "retrying after error {error_code} at {at}",
    "paused": "queue {queue} is paused since {since}",
    "waiting": "waiting for run {run_id} to end",
    "fanned_out": "waiting for the runs that it started, {live} of them live",
    "behind": "behind run {run_id} ({status}) of its lane",
    "limited": "waiting for a permit of {permit} (limit {most})",
    "no_worker": "no live worker serves queue {queue}",
    "no_agent": "no live worker of queue {queue} serves agent {agent}",
    "next": "waiting for a free worker",
    "running": "running on worker {worker_id}",
    "external": "running outside any worker",
    "orphaned": "lost its worker {worker_id}",
}


def sentence(run: Run, reason: str, facts: Mapping[str, Any]) -> str:
    """Return the sentence for ``reason`` and ``facts``, which ``runyard.explain`` returned."""
    code = run.error.code if run.error else None
    text = _SENTENCES.get(reason, f"{reason} at {run.finished_at}").format(**facts, error_code=code)
    if run.ended and run.error:
        text += f": {run.error.message}"
    if reason == "running" and run.crash_count >= MAX_CRASHES - 1:
        text += ", alone" if facts.get("isolated") else ", waiting there to run alone"
        text += f", after {run.crash_count} crashes without progress"
    if reason == "running" and run.cancel_requested_at:
        text += "; a cancel was requested"
    if reason == "orphaned":
        text += "; " + _SENTENCES.get(facts["nobody"], "another worker will take it over").format(**facts)
        if "since" in facts:
            text += "; " + _SENTENCES["paused"].format(**facts)
    if run.status == "queued" and run.expires_at and not run.attempt:
        text += f"; it fails if not started by {run.expires_at}"
    workers = [version for version in facts.get("workers") or () if version]
    if (run.status == "queued" or reason == "orphaned") and run.app_version and workers and run.app_version not in workers:
        text += f"; accepted by version {run.app_version}, workers run {', '.join(workers)}"
    if run.damaged:
        text += f"; its {', '.join(run.damaged)} cannot be read (data_corrupted)"
    return text
