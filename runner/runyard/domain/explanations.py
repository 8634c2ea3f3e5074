"""The sentences of ``explain``, which say why a run has its present status (R12). Every store uses these sentences."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from .agent_names import served_words
from .crashes import MAX_CRASHES
from .runs import Run

SENTENCES: Final = {
    "suspended": "waiting for an answer to request {request_id} since {since}",
    "sleep": "sleeping until {due_at}",
    "signal": "waiting for signal {name} since {since}",
    "child": "waiting for its child {wait_id} of thread {name} since {since}",
    "not_due": "due at {due_at}",
    "retrying": "retrying at {at} after {error}",
    "fanned_out": "waiting for the runs that it started, {live} of them live",
    "waiting": "waiting for run {run_id} to end",
    "paused": "queue {queue} is paused since {since}",
    "behind": "behind run {run_id} ({status}) of its lane",
    "limited": "waiting for a permit of {permit} (limit {most})",
    "no_worker": "no live worker serves queue {queue}",
    "no_agent": "no live worker of queue {queue} serves {served}",
    "no_version": "waiting for a worker of version {version}; workers of queue {queue} run {versions}",
    "no_redis": "waiting for Redis, which the workers of queue {queue} have not reached since {redis_since}: {redis_error}",
    "next": "waiting for a free worker",
    "next_of_some": "{lacking} not serve the run's agent; waiting for a free worker that serves it",
    "running": "running on worker {worker_id}, attempt {attempt}",
    "external": "running outside any worker",
    "orphaned": "lost its worker {worker_id}",
    "ended": "{status} at {finished_at}",
}
"""Reason → sentence. A name in braces stands for the fact with this name.

Facts of every run are ``status``, ``attempt``, ``finished_at`` and ``error``. ``permit`` is the kind and the name of a
subject, such as ``agent writer``.
"""
SILENT_SECONDS: Final = 10.0
"""If a run's worker has sent no heartbeat for more than this number of seconds, the sentence about the run says so.

A leader declares such a worker dead earlier. The sentence therefore shows that the deployment has no leader.
"""
TIMES: Final = ("since", "redis_since", "due_at", "at", "finished_at")
"""The facts that are times: a datetime, or a text in the format of ISO 8601."""


def moment(time: datetime | str) -> str:
    """Return ``time`` as text for a sentence: in UTC, to the second."""
    found = datetime.fromisoformat(time) if isinstance(time, str) else time
    return f"{found.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def explanation(run: Run, reason: str, facts: Mapping[str, Any]) -> str:
    """Return the sentence about ``run``.

    ``reason``: a key of SENTENCES. If several keys apply to a run that waits, ``reason`` is the first of them. ``facts``: the
    values in the sentence, and the following facts if they are known.

    - ``wait``: the kind of the wait, for a suspended run that waits for no answer. This kind replaces ``reason`` as the key of
      the sentence.
    - ``isolated``: whether the attempt runs alone in its process.
    - ``workers``: the versions of the live workers of the run's queue.
    - ``nobody``, for ``orphaned``: the reason why no worker can take the run, or None. The reason is ``no_worker``,
      ``no_agent``, ``no_version`` or ``no_redis``, and its facts are added. If the queue is paused, the facts of ``paused``
      are added.
    - ``lacking``, for ``next``: the id of a live worker of the queue that does not serve the run's agent. If several workers do
      not serve the agent, this is the lowest of their ids, and ``others_lacking`` is the number of the remaining workers.
    - ``silent_for`` (seconds), for ``running``: the time since the last heartbeat of the run's worker.
    - ``blocked_for`` (seconds) and ``blocked_at`` (file and line), if the main loop of the run's worker is blocked: the time
      since the block began, and its place in the code. For a queued run, the main loops of all workers that could take the run
      are blocked.
    """
    known: dict[str, Any] = {"status": run.status, "attempt": run.attempt, "finished_at": run.finished_at}
    known |= {"error": run.error.headline if run.error else "an error"} | dict(facts)
    versions = sorted({version for version in known.get("workers") or () if version})
    known |= {"version": run.app_version, "versions": ", ".join(versions)}
    known |= {"served": served_words(known.get("agent"))}
    known |= {name: moment(known[name]) for name in TIMES if known.get(name) is not None}
    key = known.get("wait") or reason
    if reason == "next" and known.get("lacking"):
        key = "next_of_some"
        known["lacking"] = _lacking(known["lacking"], known.get("others_lacking") or 0)
    parts = [SENTENCES[key].format(**known)]
    if reason == "ended" and run.error:
        parts[0] += f": {run.error.headline}"
    if reason == "running" and run.crash_count >= MAX_CRASHES - 1:
        alone = ", alone" if known.get("isolated") else ", waiting there to run alone"
        parts[0] += f"{alone}, after {run.crash_count} crashes without progress"
    if reason == "running" and run.cancel_requested_at:
        parts.append("a cancel was requested")
    if reason in ("running", "next") and known.get("blocked_at"):
        parts.append(f"the main loop of the worker has been blocked for {known['blocked_for']:.0f} s at {known['blocked_at']}")
    if reason == "running" and not known.get("blocked_at") and (known.get("silent_for") or 0) > SILENT_SECONDS:
        silent = f"the worker has sent no heartbeat for {known['silent_for']:.0f} s"
        parts.append(f"{silent}, but no leader has declared it dead; does another worker run?")
    nobody = known.get("nobody")
    if reason == "orphaned":
        parts.append(SENTENCES[nobody].format(**known) if nobody else "another worker will take it over")
        if "since" in known:
            parts.append(SENTENCES["paused"].format(**known))
    if run.status == "queued" and run.expires_at and not run.attempt:
        parts.append(f"the run fails if it has not started by {moment(run.expires_at)}")
    waits = run.status == "queued" or reason == "orphaned"
    if waits and "no_version" not in (reason, nobody) and run.app_version and versions and run.app_version not in versions:
        parts.append(f"accepted by version {run.app_version}, workers run {', '.join(versions)}")
    if run.damaged:
        parts.append(f"its {', '.join(run.damaged)} cannot be read (data_corrupted)")
    return "; ".join(parts)


def _lacking(worker_id: str, others: int) -> str:
    """Return the beginning of a sentence about workers that do not serve an agent."""
    if not others:
        return f"worker {worker_id} does"
    return f"worker {worker_id} and {others} {'other' if others == 1 else 'others'} do"
