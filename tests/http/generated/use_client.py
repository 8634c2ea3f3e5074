"""Calls operations of a running API through a client that openapi-python-client made: ``use_client.py <url> <key>``.

Type checked before it runs: what an operation answers has the type that is written here.
"""

from __future__ import annotations

import sys
from typing import TypeVar

from runyard_client.api.forks import fork_thread
from runyard_client.api.messages import list_branches, list_messages, store_message
from runyard_client.api.requests import list_requests, respond_on_thread
from runyard_client.api.runs import create_run, get_run, list_thread_runs, wait_new_run, wait_run
from runyard_client.api.threads import create_thread, delete_thread, get_thread, update_thread
from runyard_client.client import AuthenticatedClient
from runyard_client.models.branch_page import BranchPage
from runyard_client.models.create_thread import CreateThread
from runyard_client.models.fork import Fork
from runyard_client.models.fork_made import ForkMade
from runyard_client.models.hitl_request import HitlRequest
from runyard_client.models.message import Message
from runyard_client.models.message_page import MessagePage
from runyard_client.models.problem import Problem
from runyard_client.models.prompt import Prompt
from runyard_client.models.request_page import RequestPage
from runyard_client.models.respond_on_thread import RespondOnThread
from runyard_client.models.run import Run
from runyard_client.models.run_outcome import RunOutcome
from runyard_client.models.run_page import RunPage
from runyard_client.models.run_status import RunStatus
from runyard_client.models.store_message import StoreMessage
from runyard_client.models.text_part import TextPart
from runyard_client.models.thread import Thread
from runyard_client.models.update_thread import UpdateThread

T = TypeVar("T")


def is_a(kind: type[T], answer: T | Problem | Run | None) -> T:
    """``answer`` if it is what was hoped for."""
    assert isinstance(answer, kind), answer
    return answer


def main(url: str, key: str) -> None:
    client = AuthenticatedClient(base_url=url, token=key, raise_on_unexpected_status=True)
    made = is_a(Thread, create_thread.sync(client=client, body=CreateThread(thread_id="python", title="one")))
    assert (made.thread_id, made.title) == ("python", "one")
    changed = is_a(Thread, update_thread.sync("python", client=client, body=UpdateThread(title="two")))
    assert changed.title == "two"
    told = is_a(Message, store_message.sync("python", client=client, body=StoreMessage(message="by the way")))
    assert told.seq == 1

    run = is_a(Run, create_run.sync("python", client=client, body=Prompt(message="say hello", run_id="r1")))
    assert run.run_id == "r1"
    stopped = is_a(RunOutcome, wait_run.sync("python", "r1", client=client))
    assert (stopped.text, stopped.run.status) == ("hello", RunStatus.COMPLETED)
    assert stopped.run.usage.input_tokens == 0
    runs = is_a(RunPage, list_thread_runs.sync("python", client=client))
    assert [each.run_id for each in runs.items] == ["r1"]
    said = is_a(MessagePage, list_messages.sync("python", client=client))
    [part] = said.items[-1].content
    assert isinstance(part, TextPart) and part.text == "hello"
    branches = is_a(BranchPage, list_branches.sync("python", client=client))
    assert branches.items[0].depth == 3

    waits = is_a(RunOutcome, wait_new_run.sync("python", client=client, body=Prompt(message="ask color?", run_id="r2")))
    assert waits.run.status is RunStatus.SUSPENDED and len(waits.requests) == 1
    inbox = is_a(RequestPage, list_requests.sync(client=client))
    assert inbox.items[0].request_id == waits.requests[0].request_id
    answered = is_a(HitlRequest, respond_on_thread.sync("python", client=client, body=RespondOnThread(answer="blue")))
    assert answered.answer == "blue"
    is_a(RunOutcome, wait_run.sync("python", "r2", client=client))
    assert is_a(Run, get_run.sync("python", "r2", client=client)).status is RunStatus.COMPLETED

    forked = is_a(ForkMade, fork_thread.sync("python", client=client, body=Fork(new_thread_id="fork", after_run_id="r1")))
    assert forked.thread.parent_thread_id == "python"
    assert delete_thread.sync_detailed("fork", client=client).status_code == 204
    gone = get_thread.sync("fork", client=client)
    assert isinstance(gone, Problem) and gone.code == "thread_not_found"


if __name__ == "__main__":
    main(*sys.argv[1:])
