"""Runs that are not prompts: a fork that a worker makes, and a probe (F5, F9)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ..client.accepting import accept_request
from ..client.client import Client
from ..domain.agent_names import namespace_of, wanted
from ..domain.messages import Message, StopReason
from ..domain.runs import ForkOnceResult
from ..domain.size_limits import JsonObject, JsonValue
from ..errors import CapabilityMissingError, HitlNotAllowedError, RunyardError
from ..ports.commands import AcceptRequest, ForkRequest
from ..ports.results import Claim
from ..ports.stores import Backend
from ..support import metrics
from ..support.tracebacks import TracebackFilter
from .end_records import describe

if TYPE_CHECKING:
    from ..app import AgentSpec


async def fork(backend: Backend, claim: Claim) -> JsonValue:
    """Make the fork of a fork job. Enqueue the first prompt of the fork if there is one. Return the result of the fork job.

    A repeated call changes nothing and returns the same result.
    """
    request, run = request_of(claim), claim.run
    of_tenant = backend.for_tenant(claim.tenant)
    with metrics.FORK.time():
        forked = await of_tenant.threads.fork(request)
    if run is None or request.prompt_run_id is None:
        return {"thread_id": forked.thread.thread_id}
    agent = wanted(namespace_of(run.agent), None)
    prompt = AcceptRequest(thread_id=request.new, run_id=request.prompt_run_id, input=run.input, agent=agent)
    handle = await accept_request(Client(of_tenant, app_version=run.app_version, namespace=""), prompt)
    return {"thread_id": forked.thread.thread_id, "run_id": handle.run_id}


async def snapshot(backend: Backend, claim: Claim, spec: AgentSpec) -> tuple[list[Message], JsonObject]:
    """Return the messages and the extra from which a probe starts.

    Raises HitlNotAllowedError for an agent that may ask a human (F9). This check is made before any read.
    """
    refuse_asking(spec)
    request = request_of(claim)
    return await backend.for_tenant(claim.tenant).threads.cut_messages(request.src, request.cut)


def refuse_asking(spec: AgentSpec) -> None:
    """Raise HitlNotAllowedError for an agent that may ask a human."""
    if spec.hitl:
        raise HitlNotAllowedError(f"agent {spec.name!r} may ask a human, and a probe cannot ask", agent=spec.name)


def probe_result(written: list[Message], error: BaseException | None, keep: TracebackFilter | None) -> JsonValue:
    """Return the result of :func:`probe_outcome` as JSON. The result contains the agent's error in the form of
    :func:`describe`."""
    outcome = probe_outcome(written, error)
    messages: JsonValue = [message.model_dump(mode="json") for message in outcome.messages]
    found: JsonObject = {"text": outcome.text, "messages": messages, "stop_reason": outcome.stop_reason}
    if error is not None:
        found["error"] = describe(error, keep).model_dump(mode="json")
    return found


def probe_outcome(written: list[Message], error: BaseException | None) -> ForkOnceResult:
    """Return a probe's result. After an error of the agent, the stop reason is ``error``.

    Raises ``error`` again if it is an error of runyard with an HTTP status below 500.
    """
    if isinstance(error, RunyardError) and error.http_status < 500:
        raise error
    last = next((message for message in reversed(written) if message.role == "assistant"), None)
    reason: StopReason = "error" if error is not None else (last.stop_reason if last else None) or "stop"
    return ForkOnceResult(last.text if last else "", written, reason)


def request_of(claim: Claim) -> ForkRequest:
    """Return the request of a fork job."""
    if claim.fork is None:
        raise CapabilityMissingError("the store returned a fork job without its request", method="claim")
    cut, run = claim.fork.cut, claim.run
    if run is not None and cut.after_run_id is None and cut.at_message_id is None and cut.at_seq is None:
        # The cut is the last completed run. The store chose this run when it accepted the fork job.
        return replace(claim.fork, cut=replace(cut, after_run_id=run.after_run_id))
    return claim.fork
