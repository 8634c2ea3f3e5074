"""A sealed event holds JSON in place of data, and is the same event to everybody."""

from __future__ import annotations

import copy
import json
import pickle
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter

from runyard.domain.events import SealedEvent
from runyard.models import Event


def made() -> Event:
    return Event(
        id="1-2", type="message.completed", thread_id="t", run_id="r", data={"rows": [1, {"text": "a\ud800"}, 2**64 - 1]}
    )


def test_a_trusted_event_is_like_a_validated_one() -> None:
    event, other = (
        Event.trusted("1-2", "gap", "t", "r", {"n": 1}),
        Event(id="1-2", type="gap", thread_id="t", run_id="r", data={"n": 1}),
    )
    assert event == other and event.to_json() == other.to_json() and pickle.loads(pickle.dumps(event)) == other
    assert event.model_dump(exclude_unset=True) == event.model_copy().model_dump() == other.model_dump()


def sealed() -> Event:
    event = made()
    event.seal()
    assert type(event) is SealedEvent
    return event


class Holder(BaseModel):
    event: Event


@pytest.mark.parametrize(
    "use",
    [
        lambda event: event.data["rows"],
        lambda event: event.model_dump(),
        lambda event: event.model_copy(update={"id": "1-3"}).data,
        lambda event: event == made() and made() == event and event != made().model_copy(update={"id": "2-1"}),
        lambda event: repr(event).partition("(")[2],
        copy.copy,
        copy.deepcopy,
        lambda event: pickle.loads(pickle.dumps(event)),
        lambda event: Holder(event=event).event.data,
        lambda event: TypeAdapter(list[Event]).dump_python([event]),
        lambda event: sorted(event.model_fields_set),
    ],
)
def test_a_sealed_event_is_used_like_any_other(use: Callable[[Event], Any]) -> None:
    assert use(sealed()) == use(made())


def test_what_streams_ask_leaves_an_event_sealed() -> None:
    event, json = sealed(), made().to_json()
    event.share()
    event.seal()
    assert (event.id, event.type, event.thread_id, event.run_id, event.to_json()) == (
        "1-2",
        "message.completed",
        "t",
        "r",
        json,
    )
    assert type(event) is SealedEvent and weakref.ref(event)() is event


def test_an_opened_event_is_a_plain_one_and_tells_of_its_changes() -> None:
    event = sealed()
    event.data["more"] = True
    assert type(event) is Event and b'"more"' in event.to_json()


def test_event_that_two_threads_open_at_once_has_one_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other thread reads the data while the first one decodes it. A change by either thread is seen by both."""
    event, read, decode = sealed(), [], json.loads
    other = threading.Thread(target=lambda: read.append(event.data))

    def loads(text: bytes) -> Any:
        monkeypatch.setattr(json, "loads", decode)
        other.start()
        other.join(0.1)  # it ends here only if nothing makes it wait for the first thread
        return decode(text)

    monkeypatch.setattr(json, "loads", loads)
    first = event.data
    other.join()
    assert read == [made().data] and read[0] is first is event.data


def test_event_that_is_opened_before_a_pending_call_answers_it() -> None:
    """The methods of the sealed event are looked up before another thread opens the event, and called afterwards."""
    event = sealed()
    to_json, peek, again = event.to_json, event.peek, event.open  # type: ignore[attr-defined]
    event.data["more"] = True
    assert (to_json(), peek(), again()) == (event.to_json(), event.data, event)


def test_an_unknown_attribute_is_an_error() -> None:
    with pytest.raises(AttributeError, match="no 'nothing'"):
        _ = sealed().nothing  # type: ignore[attr-defined]


def test_a_sealed_event_holds_no_values() -> None:
    event = Event(id="1-2", type="x", thread_id="t", run_id="r", data={"rows": [{} for _ in range(100_000)]})
    before = sys.getallocatedblocks()
    event.seal()
    assert before - sys.getallocatedblocks() > 90_000
