"""The client for code without an event loop."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading

import pytest

import runyard
from runyard import Client, RunStatus, errors

FORKING = """
import os
from runyard import Client

client = Client.sync("memory://")
if child := os.fork():
    os.waitpid(child, 0)
else:
    try:
        client.threads()
    except RuntimeError as error:
        print(error, flush=True)
    os._exit(0)
"""


def test_m2_formats_without_an_event_loop() -> None:
    with Client.sync("memory://") as client:
        blob = {"role": "user", "content": "hi", "name": "ann"}
        client.store_message("t", blob, format="openai")
        assert client.messages("t", format="openai").items == [blob]
        assert [message.text for message in client.messages("t").items] == ["hi"]


def test_the_same_calls_without_an_event_loop() -> None:
    with Client.sync("memory://") as client:
        handle = client.enqueue("t", "hello", "r")
        assert handle.status() is RunStatus.QUEUED
        assert client.thread("t").thread_id == "t"
        handle.cancel()
        assert handle.result(timeout=5).status is RunStatus.CANCELLED
        assert [event.type for event in handle.stream()] == ["run.queued", "run.cancelled"]
        with pytest.raises(errors.RunNotFoundError):
            client.run("t", "other")
    client.close()


def test_a_client_that_is_closed_or_of_another_process_says_so() -> None:
    """The thread that does the work is not there after a fork: a call would wait for ever."""
    client = Client.sync("memory://")
    client.close()
    with pytest.raises(RuntimeError, match="is closed, or was made before a fork"):
        client.threads()
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", FORKING], capture_output=True, text=True, timeout=20)
    assert "before a fork" in done.stdout, done.stderr


def test_a_stream_that_is_collected_in_the_clients_own_thread() -> None:
    """Nothing waits there for what only that thread can do."""
    with Client.sync("memory://") as client:
        client.enqueue("t", "hello", "r")
        circle: list[object] = [client.stream("t", "r")]
        next(circle[0])  # type: ignore[call-overload]
        circle.append(circle)
        del circle
        client.portal.loop.call_soon_threadsafe(gc.collect)
        asked = threading.Thread(target=client.threads, daemon=True)
        asked.start()
        asked.join(10)
        assert not asked.is_alive()


def test_every_call_of_the_client_is_there() -> None:
    calls = {name for name in dir(Client) if not name.startswith("_")} - {"connect", "sync", "result_of", "close"}
    assert calls <= set(dir(runyard.SyncClient))


def test_a_bad_url_leaves_no_thread_behind() -> None:
    with pytest.raises(errors.InvalidInputError):
        Client.sync("nothing://here")
    assert "runyard-client" not in {thread.name for thread in threading.enumerate()}
