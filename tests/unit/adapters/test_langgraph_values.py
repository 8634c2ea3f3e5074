"""Lists of a graph's state. The stored list is the list that was put, after any change since the last version."""

from __future__ import annotations

import copy
import threading
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.base import empty_checkpoint
from pydantic import BaseModel, PrivateAttr

from runyard.adapters.langgraph_cache import KnownList, ListCache, copied, part_of
from runyard.adapters.langgraph_saver import RunyardSaver
from runyard.adapters.langgraph_values import MAX_SEGMENTS
from runyard.ports.graph_checkpoints import StoredList

THREAD = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}


class Puts:
    """Puts versions of one list. ``items``: the number of items that the store got."""

    def __init__(self, saver: RunyardSaver, namespace: str = "") -> None:
        self.saver, self.count, self.items = saver, 0, 0
        self.at = {"configurable": {"thread_id": "t", "checkpoint_ns": namespace}}

    async def put(self, value: list[Any]) -> dict[str, Any]:
        self.count += 1
        version = f"{self.count:012}.0"
        store = await self.saver._store()
        before = sum(map(sum, store.graphs.counts.values()))  # type: ignore[attr-defined]
        checkpoint = {
            **empty_checkpoint(),
            "id": f"{self.count:06}",
            "channel_values": {"messages": value},
            "channel_versions": {"messages": version},
        }
        config: Any = await self.saver.aput(self.at, checkpoint, {}, {"messages": version})  # type: ignore[arg-type,typeddict-item]
        self.items = sum(map(sum, store.graphs.counts.values())) - before  # type: ignore[attr-defined]
        return config

    async def stored(self, config: Any = THREAD) -> list[Any]:
        """Return the list as another process reads it."""
        other = copy.copy(self.saver)
        other._cache = ListCache()
        found = await other.aget_tuple(config)
        assert found is not None
        return found.checkpoint["channel_values"].get("messages")  # type: ignore[no-any-return]


def said(*numbers: int) -> list[Any]:
    return [HumanMessage(f"m{n}", id=f"m{n}") for n in numbers]


EDITS = ["add", "remove", "replace", "move", "change", "drop"]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(EDITS), st.integers(0, 30)), max_size=30), st.booleans())
async def test_any_edit_is_stored(edits: list[tuple[str, int]], dicts: bool) -> None:
    """The writer and another process read every version of a list as it was put."""
    async with RunyardSaver("memory://") as saver:
        puts = Puts(saver)
        value: list[Any] = [{"n": n} for n in range(40)] if dicts else said(*range(40))
        versions = []
        for n, (edit, place) in enumerate([("add", 0), *edits]):
            new = {"n": 100 + n} if dicts else AIMessage(f"new {n}", id=f"new{n}")
            at = place % max(len(value), 1)
            if edit == "add":
                value = [*value, new]
            elif edit == "remove":
                value = value[:at] + value[at + 1 :]
            elif edit == "replace":
                value = [*value[:at], new, *value[at + 1 :]]
            elif edit == "move":
                value = value[at:] + value[:at]
            elif edit == "drop":
                saver._cache = ListCache()
            elif value and dicts:
                value[at]["n"] = -n
            elif value:
                value[at].content = f"changed {n}"
            if value:
                versions.append((await puts.put(value), copy.deepcopy(value)))
        for config, expected in versions:
            assert await puts.stored(config) == expected
        if versions:
            found = await saver.aget_tuple(THREAD)  # type: ignore[arg-type]
            assert found is not None and found.checkpoint["channel_values"]["messages"] == versions[-1][1]


async def test_an_edit_costs_its_items() -> None:
    """Only new items are stored after additions, removals and replacements. A list with too many segments is stored whole."""
    async with RunyardSaver("memory://") as saver:
        puts, value = Puts(saver), said(*range(1000))
        await puts.put(value)
        assert puts.items == 1000
        value = [*value, *said(1000, 1001)]
        await puts.put(value)
        assert puts.items == 2
        value = [*value[:500], *said(-1), *value[501:]]
        await puts.put(value)
        assert puts.items == 1
        value = value[100:]
        await puts.put(value)
        assert puts.items == 0
        for place in range(0, 6 * MAX_SEGMENTS, 3):
            value = [*value[:place], *said(10_000 + place), *value[place + 1 :]]
            await puts.put(value)
            if puts.items > 1:
                assert puts.items == len(value)
                break
        else:
            pytest.fail("the list was never stored as a whole")
        assert await puts.stored() == value


async def test_a_message_that_a_node_changes_in_place_is_stored() -> None:
    """Any change inside a message of a list that is put again is found, also in fields that pydantic does not know."""
    async with RunyardSaver("memory://") as saver:
        puts, value = Puts(saver), [*said(*range(100)), AIMessage("x", id="extra", unknown=[1])]  # type: ignore[call-arg]
        await puts.put(value)
        value[3].additional_kwargs["seen"] = True
        value[100].unknown.append(2)
        await puts.put([*value])
        assert puts.items == 2
        stored = await puts.stored()
        assert [n for n, message in enumerate(stored) if message.additional_kwargs] == [3]
        assert stored == value
        await puts.put([*value])
        assert puts.items == 0


async def test_any_part_of_a_message_may_be_changed_in_place() -> None:
    """A change in a part that is not a list or dict is found. So is a field that pydantic does not know, added later."""
    async with RunyardSaver("memory://") as saver:
        puts, value = Puts(saver), [ToolMessage("x", tool_call_id="c", id="a", artifact=([1],)), *said(1)]
        await puts.put(value)
        first, second = await messages(saver), await messages(saver)
        first[0].artifact[0].append("mine")
        first[1].mine = True
        assert second[0].artifact == ([1],) and not hasattr(second[1], "mine")
        del first, second
        read = await messages(saver)
        assert read[0].artifact == ([1],) and not hasattr(read[1], "mine")
        value[0].artifact[0].append(2)
        value[1].later = 5
        await puts.put([*value])
        assert puts.items == 2
        stored = await puts.stored()
        assert [*stored[0].artifact] == [[1, 2]] and stored[1].later == 5
        await puts.put([*value])
        assert puts.items == 0


@pytest.mark.parametrize("dicts", [False, True])
async def test_a_change_by_a_caller_that_has_gone_is_not_read(dicts: bool) -> None:
    """A changed item to which nobody refers is not given to a reader. A reader's change does not reach the next reader."""
    async with RunyardSaver("memory://") as saver:
        value: list[Any] = [{"n": n} for n in range(40)] if dicts else said(*range(40))
        expected = copy.deepcopy(value)

        def change(item: Any) -> None:
            if dicts:
                item["n"] = "changed"
            else:
                item.content = "changed"

        await Puts(saver).put(value)
        change(value[3])
        del value
        for _ in range(3):
            first, second = await messages(saver), await messages(saver)
            assert first == second == expected
            change(first[4])
            change(second[5])
            del first, second


@dataclass(eq=False)
class Odd:
    """An object that cannot be compared, like an array."""

    n: int

    def __eq__(self, other: object) -> bool:
        raise ValueError("ambiguous")


async def test_objects_that_cannot_be_compared_are_stored_again() -> None:
    async with RunyardSaver("memory://") as saver:
        puts, value = Puts(saver), [Odd(n) for n in range(40)]
        await puts.put(value)
        value[3].n = -3
        await puts.put([*value])
        assert [item.n for item in await messages(saver)] == [item.n for item in value]


def test_the_cache_has_a_maximum() -> None:
    """The lists that were used last stay. A list that is larger than the cache is not kept."""

    def known(count: int) -> KnownList:
        items = said(*range(count))
        copies = copied(items)
        assert copies is not None
        return KnownList(items, [*map(part_of, items)], copies, StoredList((1, 0, count), 1, count))

    cache = ListCache(3)
    keys = [("store", 0, "t", "", name) for name in "abcd"]
    for key in keys[:3]:
        cache.put(key, known(1))
    assert cache.get(keys[0]) is not None
    cache.put(keys[3], known(1))
    assert [key[-1] for key in keys if cache.get(key) is not None] == ["a", "c", "d"]
    cache.put(keys[0], known(4))
    assert [key[-1] for key in keys if cache.get(key) is not None] == ["c", "d"]


async def test_namespaces_have_lists_of_their_own() -> None:
    """An addition costs its items also after the graph of another namespace was stored."""
    async with RunyardSaver("memory://") as saver:
        puts, other = Puts(saver), Puts(saver, "inner")
        await puts.put(said(*range(100)))
        await other.put(said(*range(200, 300)))
        await puts.put(said(*range(101)))
        assert puts.items == 1


class Held(BaseModel):
    """An object that cannot be copied."""

    n: int
    _lock: Any = PrivateAttr(default_factory=threading.Lock)


async def test_a_list_of_objects_that_cannot_be_copied_is_stored_whole() -> None:
    """It is not in the cache, so that a change in place is never lost, and readers get objects of their own."""
    async with RunyardSaver("memory://") as saver:
        puts, value = Puts(saver), [Held(n=n) for n in range(40)]
        await puts.put(value)
        value[3].n = -3
        await puts.put([*value])
        assert puts.items == 40
        first, second = await messages(saver), await messages(saver)
        assert [item.n for item in first] == [item.n for item in value] and first[0] is not second[0]


async def messages(saver: RunyardSaver) -> list[Any]:
    found = await saver.aget_tuple(THREAD)  # type: ignore[arg-type]
    assert found is not None
    return found.checkpoint["channel_values"]["messages"]  # type: ignore[no-any-return]


async def test_callers_do_not_share_objects() -> None:
    """What a caller changes in place reaches neither another reader nor the store, whoever put or read the objects."""
    async with RunyardSaver("memory://") as saver:
        puts, value = Puts(saver), [*said(*range(40)), HumanMessage([{"type": "text", "text": "deep"}], id="deep")]
        await puts.put(value)
        expected = copy.deepcopy(value)
        value[3].additional_kwargs["mine"] = value[40].content[0]["mine"] = True
        first, second = await messages(saver), await messages(saver)
        assert first == second == expected
        assert not set(map(id, first)) & set(map(id, second)) and not set(map(id, first)) & set(map(id, value))
        first[4].content, first[40].content[0]["text"] = "changed", "changed"
        first.append("more")
        del first, second, value
        read = await messages(saver)
        assert read == expected
        await puts.put([*read, *said(41)])
        assert puts.items == 1
        assert await messages(saver) == [*expected, *said(41)]
        observer = await messages(saver)
        await puts.put([*read, *said(41), *said(42)])
        assert puts.items == 1 and observer == [*expected, *said(41)]


async def test_savers_of_two_deployments_may_share_a_cache() -> None:
    """The key of a list has the store of the list: threads, owners and versions with equal names are different lists."""
    cache = ListCache()
    async with RunyardSaver("memory://", cache=cache) as one, RunyardSaver("memory://", cache=cache) as other:
        await Puts(one).put(said(1, 2))
        await Puts(other).put(said(3))
        assert [m.id for m in await messages(one)] == ["m1", "m2"]
        assert [m.id for m in await messages(other)] == ["m3"]
        await one.adelete_thread("t")
        assert [m.id for m in await messages(other)] == ["m3"]


async def test_another_process_reads_what_is_new() -> None:
    """A process with an older version reads only the rest. Its own additions do not disturb the first process."""
    async with RunyardSaver("memory://") as saver:
        puts = Puts(saver)
        value = said(*range(50))
        await puts.put(value)
        other = copy.copy(saver)
        other._cache = ListCache()
        mine = await other.aget_tuple(THREAD)  # type: ignore[arg-type]
        assert mine is not None
        await puts.put([*value, *said(50)])
        theirs = Puts(other)
        theirs.count = 10
        await theirs.put([*mine.checkpoint["channel_values"]["messages"], *said(60)])
        assert theirs.items == 1
        assert [m.id for m in await puts.stored()] == [f"m{n}" for n in [*range(50), 60]]
        found = await saver.aget_tuple({"configurable": {**THREAD["configurable"], "checkpoint_id": "000002"}})
        assert found is not None and found.checkpoint["channel_values"]["messages"][-1].id == "m50"
