"""What each route answers: statuses, headers, idempotence, pages (A, and the rules that the docstrings name)."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from typing import Any

import fastapi.dependencies.utils
import fastapi.routing
import httpx
import pytest

from runyard import Client
from runyard.models import ROOT_ID, Message, Run, new_id
from runyard.worker.worker import Worker
from runyard_backends.memory.runs import MemoryRunStore
from tests.http.conftest import ask


async def post(http: httpx.AsyncClient, path: str, status: int, /, **body: Any) -> Any:
    reply = await http.post(path, json=body)
    assert reply.status_code == status, reply.text
    return reply.json() if reply.content else None


async def get(http: httpx.AsyncClient, path: str, expected: int = 200, /, **query: Any) -> Any:
    reply = await http.get(path, params=query)
    assert reply.status_code == expected, reply.text
    return reply.json()


async def test_no_request_waits_for_a_thread(http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """FastAPI calls a dependency that is a plain function in a thread, which costs a request more than the function does."""

    async def refuse(call: Callable[..., Any], *_: Any) -> None:
        raise AssertionError(f"{call} is called in a thread")

    for module in (fastapi.dependencies.utils, fastapi.routing):
        monkeypatch.setattr(module, "run_in_threadpool", refuse)
    await post(http, "/v1/threads", 201, thread_id="t")
    await post(http, "/v1/threads/t/runs", 202, message="x", run_id="r")
    await post(http, "/v1/threads/t/runs/r/cancel", 200)
    await post(http, "/v1/threads/t/respond", 404, answer="yes")
    await get(http, "/v1/runs", status="queued", limit=1)
    assert (await http.get("/v1/threads/t", headers={"If-None-Match": "other"})).status_code == 200
    assert (await http.patch("/v1/threads/t", json={"title": "x"}, headers={"If-Match": "*"})).status_code == 200


class TestThreads:
    async def test_create_is_idempotent(self, http: httpx.AsyncClient) -> None:
        """A: 201 and Location, then 200, then 409 for another thread under the id."""
        first = await http.post("/v1/threads", json={"thread_id": "a", "title": "x", "tags": {"k": "v"}})
        again = await http.post("/v1/threads", json={"thread_id": "a", "title": "x", "tags": {"k": "v"}})
        assert (first.status_code, again.status_code) == (201, 200)
        assert first.headers["location"] == again.headers["location"] == "/v1/threads/a"
        assert first.json() == again.json() == await get(http, "/v1/threads/a")
        assert (await post(http, "/v1/threads", 409, thread_id="a", title="y"))["code"] == "thread_already_exists"

    async def test_an_id_is_made(self, http: httpx.AsyncClient) -> None:
        made = await http.post("/v1/threads", json={})
        assert made.status_code == 201 and made.headers["location"].endswith(made.json()["thread_id"])

    @pytest.mark.parametrize("thread_id", ["a/b", "50%", "%2F", "%252f", "ü/ö ä", "a?b#c", "+ +", ".hidden", "..."])
    async def test_any_printable_id_can_be_addressed(self, http: httpx.AsyncClient, thread_id: str) -> None:
        made = await http.post("/v1/threads", json={"thread_id": thread_id})
        assert (await get(http, made.headers["location"]))["thread_id"] == thread_id
        run = await http.post(f"{made.headers['location']}/runs", json={"message": "x", "run_id": thread_id})
        assert (await get(http, run.headers["location"]))["run_id"] == thread_id

    async def test_list_filter_and_page(self, http: httpx.AsyncClient) -> None:
        for n in range(5):
            await post(http, "/v1/threads", 201, thread_id=f"t{n}", agent=f"a{n % 2}", tags={"n": str(n), "all": "yes"})
        ids = [f"t{n}" for n in range(5)]
        for order, expected in (({}, ids), ({"order": "oldest_first"}, ids), ({"order": "newest_first"}, ids[::-1])):
            seen, cursor = list[str](), None
            while True:
                page = await get(http, "/v1/threads", limit=2, **order, **({"cursor": cursor} if cursor else {}))
                seen += [thread["thread_id"] for thread in page["items"]]
                if (cursor := page["next"]) is None:
                    break
            assert seen == expected
        assert [t["thread_id"] for t in (await get(http, "/v1/threads", agent="a1"))["items"]] == ["t1", "t3"]
        found = await http.get("/v1/threads", params=[("tag", "n:3"), ("tag", "all:yes")])
        assert [t["thread_id"] for t in found.json()["items"]] == ["t3"]
        assert (await get(http, "/v1/threads", 400, cursor="nonsense"))["code"] == "invalid_cursor"
        newest = (await get(http, "/v1/threads", limit=2, order="newest_first"))["next"]
        assert (await get(http, "/v1/threads", 400, cursor=newest))["code"] == "invalid_cursor"
        assert (await get(http, "/v1/threads", 400, tag="no-colon"))["code"] == "invalid_input"

    async def test_change_and_delete(self, http: httpx.AsyncClient) -> None:
        await post(http, "/v1/threads", 201, thread_id="a", extra={"x": 1})
        changed = (await http.patch("/v1/threads/a", json={"title": "T", "tags": {"k": "v"}, "extra": {"y": 2}})).json()
        assert (changed["title"], changed["tags"], changed["extra"]) == ("T", {"k": "v", "title": "T"}, {"x": 1, "y": 2})
        assert (await http.delete("/v1/threads/a")).status_code == 204
        assert (await get(http, "/v1/threads/a", 404))["code"] == "thread_not_found"
        assert (await http.delete("/v1/threads/a")).status_code == 404

    async def test_delete_with_descendants_or_erase(self, http: httpx.AsyncClient) -> None:
        await post(http, "/v1/threads/a/messages", 201, message="secret")
        await post(http, "/v1/threads/a/fork", 201, new_thread_id="b", at_seq=1)
        await post(http, "/v1/threads/b/fork", 201, new_thread_id="c", at_seq=1)
        assert (await http.delete("/v1/threads/a?erase=true&descendants=true")).status_code == 400
        assert (await http.delete("/v1/threads/a?erase=true")).status_code == 204
        assert "secret" not in (await http.get("/v1/threads/c/messages")).text
        assert (await http.delete("/v1/threads/b?descendants=true")).status_code == 204
        assert (await get(http, "/v1/threads"))["items"] == []

    async def test_a_busy_thread_is_not_deleted(self, http: httpx.AsyncClient) -> None:
        await post(http, "/v1/threads/a/runs", 202, message="x")
        assert (await http.delete("/v1/threads/a")).status_code == 409
        assert (await http.delete("/v1/threads/a?cancel=true")).status_code == 204

    async def test_lineage_and_diff(self, http: httpx.AsyncClient) -> None:
        """F12: ancestors, children, the nearest common ancestor, and what each says after the last common message."""
        first = await post(http, "/v1/threads/a/messages", 201, message="1")
        await post(http, "/v1/threads/a/fork", 201, new_thread_id="b", at_message_id=first["id"])
        await post(http, "/v1/threads/b/fork", 201, new_thread_id="c", at_message_id=first["id"])
        await post(http, "/v1/threads/a/messages", 201, message="a2")
        for text in ("c2", "c3"):
            await post(http, "/v1/threads/c/messages", 201, message=text)
        lineage = await get(http, "/v1/threads/b/lineage")
        assert [t["thread_id"] for t in lineage["ancestors"]] == ["a"]
        assert [t["thread_id"] for t in lineage["children"]] == ["c"] and lineage["next_children"] is None
        assert [t["thread_id"] for t in (await get(http, "/v1/threads/c/lineage"))["ancestors"]] == ["b", "a"]
        diff = await get(http, "/v1/threads/a/diff", other="c")
        texts = [[m["content"][0]["text"] for m in diff[side]] for side in ("ours", "theirs")]
        assert (diff["common_ancestor"], diff["common_message_id"], texts) == ("a", first["id"], [["a2"], ["c2", "c3"]])
        assert (await get(http, "/v1/threads/c/diff", other="a", limit=1))["truncated"]
        await post(http, "/v1/threads/z/messages", 201, message="else")
        unrelated = await get(http, "/v1/threads/z/diff", other="c")
        assert unrelated["common_ancestor"] is None and len(unrelated["theirs"]) == 3 and not unrelated["truncated"]


class TestRuns:
    async def test_accept_is_idempotent(self, http: httpx.AsyncClient) -> None:
        """R1, R2: 202 and Location, then 200 with the same run, then 409 that names what differs."""
        first = await http.post("/v1/threads/t/runs", json={"message": "hi", "run_id": "r", "metadata": {"k": 1}})
        again = await http.post("/v1/threads/t/runs", json={"message": "hi", "run_id": "r"})
        assert (first.status_code, again.status_code) == (202, 200)
        assert first.headers["location"] == again.headers["location"] == "/v1/threads/t/runs/r"
        run = first.json()
        assert (run["status"], run["metadata"], run["input"]["content"]) == (
            "queued",
            {"k": 1},
            [{"type": "text", "text": "hi"}],
        )
        assert again.json()["accepted_at"] == run["accepted_at"]
        refused = await post(http, "/v1/threads/t/runs", 409, message="ho", run_id="r")
        assert (refused["code"], refused["details"]["differs"]) == ("run_conflict", ["message"])

    async def test_a_url_that_is_told_of_the_end(self, http: httpx.AsyncClient) -> None:
        """R11: it is kept with the run; what is no URL is refused."""
        run = await post(http, "/v1/threads/w/runs", 202, message="x", run_id="r1", webhook="https://example.com/hook?a=1")
        assert run["options"]["webhook"] == "https://example.com/hook?a=1"
        for wrong in ("", "ftp://example.com/", "https://a@b/", "https://example.com/#x", "https://" + "x" * 2048, 7):
            await post(http, "/v1/threads/w/runs", 422, message="x", webhook=wrong)
        await post(http, "/v1/threads/w/runs", 400, message="x", webhook="https://bücher.example/")

    async def test_wait_answers_with_what_the_run_said(self, http: httpx.AsyncClient, worker: Worker) -> None:
        done = await post(http, "/v1/threads/t/runs/wait", 200, message="say hello", run_id="r")
        assert (done["run"]["status"], done["text"]) == ("completed", "hello")
        assert [m["role"] for m in done["messages"]] == ["user", "assistant"]
        assert await get(http, "/v1/threads/t/runs/r/wait") == done
        attempts = await get(http, "/v1/threads/t/runs/r/attempts")
        assert [a["outcome"] for a in attempts["items"]] == ["completed"]

    async def test_wait_is_bounded(self, http: httpx.AsyncClient) -> None:
        reply = await http.post("/v1/threads/t/runs/wait?wait=0.05", json={"message": "x", "run_id": "r"})
        assert (reply.status_code, reply.json()["status"]) == (202, "queued")
        assert reply.headers["retry-after"] == "1" and reply.headers["location"] == "/v1/threads/t/runs/r"
        assert (await http.get("/v1/threads/t/runs/r/wait?wait=0")).status_code == 202

    async def test_a_look_at_a_run_that_ended_needs_no_wait(
        self, http: httpx.AsyncClient, worker: Worker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """However long the store takes to answer."""
        await post(http, "/v1/threads/t/runs/wait", 200, message="say hello", run_id="r")
        look = MemoryRunStore.run

        async def slow(self: MemoryRunStore, thread_id: str, run_id: str) -> Run | None:
            await asyncio.sleep(0.01)
            return await look(self, thread_id, run_id)

        monkeypatch.setattr(MemoryRunStore, "run", slow)
        assert (await get(http, "/v1/threads/t/runs/r/wait", wait=0))["text"] == "hello"
        assert (await post(http, "/v1/threads/t/fork_once", 200, message="say x", run_id="p"))["text"] == "x"
        assert (await post(http, "/v1/threads/t/fork_once?wait=0", 200, message="say x", run_id="p"))["text"] == "x"

    async def test_explain_cancel_redrive(self, http: httpx.AsyncClient, worker: Worker) -> None:
        await post(http, "/v1/threads/t/runs", 202, message="x", run_id="later", delay=3600)
        assert "due" in (await get(http, "/v1/threads/t/runs/later/explain"))["explanation"]
        assert (await http.post("/v1/threads/t/runs/later/cancel")).json()["status"] == "cancelled"
        assert (await http.post("/v1/threads/t/runs/later/cancel", json={"keep": True})).json()["status"] == "cancelled"
        assert (await post(http, "/v1/threads/t/runs/later/redrive", 409))["code"] == "run_ended"
        failed = await post(http, "/v1/threads/u/runs/wait", 200, message="fail", run_id="f")
        assert failed["run"]["status"] == "failed"
        assert (await post(http, "/v1/threads/u/runs/f/redrive", 202))["status"] == "queued"

    async def test_delete(self, http: httpx.AsyncClient, worker: Worker) -> None:
        """What is left says that it was there: in no list, without a result."""
        await post(http, "/v1/threads/t/runs/wait", 200, message="say hi", run_id="good")
        await post(http, "/v1/threads/t/runs/wait", 200, message="fail", run_id="bad")
        assert (await http.delete("/v1/threads/t/runs/good")).json()["code"] == "run_in_use"
        assert [(await http.delete("/v1/threads/t/runs/bad")).status_code for _ in range(2)] == [204, 204]
        assert (await http.delete("/v1/threads/t/runs/none")).status_code == 404
        found = await get(http, "/v1/threads/t/runs/bad")
        assert (found["status"], found["input"], found["error"]) == ("failed", None, None) and found["deleted_at"]
        assert [run["run_id"] for run in (await get(http, "/v1/threads/t/runs"))["items"]] == ["good"]
        assert (await http.get("/v1/threads/t/runs/bad/wait")).json()["code"] == "result_expired"

    async def test_list_newest_first_with_filters(self, http: httpx.AsyncClient) -> None:
        for n in range(4):
            await post(http, f"/v1/threads/t{n % 2}/runs", 202, message="x", run_id=f"r{n}", agent=f"a{n % 2}")
        runs = (await get(http, "/v1/runs"))["items"]
        assert [run["run_id"] for run in runs] == ["r3", "r2", "r1", "r0"]
        assert [run["run_id"] for run in (await get(http, "/v1/runs", agent="a1"))["items"]] == ["r3", "r1"]
        assert [run["run_id"] for run in (await get(http, "/v1/threads/t0/runs"))["items"]] == ["r2", "r0"]
        assert (await get(http, "/v1/runs", status="running"))["items"] == []
        page = await get(http, "/v1/runs", limit=3)
        assert [r["run_id"] for r in (await get(http, "/v1/runs", limit=3, cursor=page["next"]))["items"]] == ["r0"]
        moment = runs[2]["accepted_at"]
        older = (await get(http, "/v1/runs", before=moment))["items"]
        younger = (await get(http, "/v1/runs", since=moment))["items"]
        assert len(older) + len(younger) == 4 and all(run["accepted_at"] < moment for run in older)
        own = "/v1/threads/t0/runs"
        found = (await get(http, own, before=moment))["items"], (await get(http, own, since=moment))["items"]
        assert [[run["run_id"] for run in part] for part in found] == [["r0"], ["r2"]]
        assert (await get(http, "/v1/runs", 422, status="asleep"))["code"] == "invalid_request"
        assert (await get(http, "/v1/threads/none/runs", 404))["code"] == "thread_not_found"

    async def test_a_trace_is_kept_with_the_run(self, http: httpx.AsyncClient, client: Client) -> None:
        """T2: without the flag that it is recorded."""
        trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
        await http.post("/v1/threads/t/runs", json={"message": "x", "run_id": "r"}, headers={"traceparent": trace})
        await http.post("/v1/threads/u/runs", json={"message": "x", "run_id": "r"}, headers={"traceparent": "nonsense"})
        assert (await client.run("t", "r")).trace_context == trace[:-2] + "00"
        assert (await client.run("u", "r")).trace_context is None

    async def test_regenerate(self, http: httpx.AsyncClient, worker: Worker) -> None:
        """B5: the same question again, and another one in its place."""
        await post(http, "/v1/threads/t/runs/wait", 200, message="say 1")
        await post(http, "/v1/threads/t/runs/wait", 200, message="say 2")
        again = await post(http, "/v1/threads/t/regenerate", 202, run_id="again")
        assert (await get(http, "/v1/threads/t/runs/again/wait"))["text"] == "2" and again["parent_id"]
        await post(http, "/v1/threads/t/regenerate", 202, run_id="edited", message="say 3")
        assert (await get(http, "/v1/threads/t/runs/edited/wait"))["text"] == "3"
        assert len((await get(http, "/v1/threads/t/branches"))["items"]) == 3
        assert (await post(http, "/v1/threads/none/regenerate", 404))["code"] == "thread_not_found"

    async def test_edit_of_the_first_message(self, http: httpx.AsyncClient, worker: Worker) -> None:
        """B5, B1: a second first message, by a prompt in place of the first one, and stored."""
        await post(http, "/v1/threads/t/runs/wait", 200, message="say 1")
        await post(http, "/v1/threads/t/regenerate", 202, run_id="edited", message="say 2")
        assert (await get(http, "/v1/threads/t/runs/edited/wait"))["text"] == "2"
        assert len((await get(http, "/v1/threads/t/messages"))["items"]) == 2
        stored = await post(http, "/v1/threads/t/messages", 201, message="note", parent_id=ROOT_ID)
        assert stored["parent_id"] is None
        assert [leaf["depth"] for leaf in (await get(http, "/v1/threads/t/branches"))["items"]] == [2, 2, 1]
        assert (await get(http, "/v1/threads/t/messages", 404, leaf_id=ROOT_ID))["code"] == "message_not_found"


class TestMessages:
    async def test_the_messages_of_a_branch(self, http: httpx.AsyncClient) -> None:
        """Branch 0 of a thread without messages is empty."""
        path = "/v1/threads/t/branches"
        await post(http, "/v1/threads", 201, thread_id="t")
        assert (await get(http, f"{path}/0/messages"))["items"] == []
        await post(http, "/v1/threads/t/messages", 201, message="a")
        await post(http, "/v1/threads/t/messages", 201, message="b", parent_id=ROOT_ID)
        found = [await get(http, f"{path}/{number}/messages") for number in (0, 1)]
        assert [(len(page["items"]), page["branches"]) for page in found] == [(1, 2), (1, 2)]
        refused = await get(http, f"{path}/2/messages", 404)
        assert refused["code"] == "message_not_found" and "2 branches" in refused["detail"]
        for wrong in ("%2B1", "1_0", "%201", "-0", "x", "%D9%A1"):
            assert (await get(http, f"{path}/{wrong}/messages", 422))["errors"][0]["pointer"] == "number", wrong

    async def test_store_and_read(self, http: httpx.AsyncClient) -> None:
        """B1, B2: a path in both directions, page by page."""
        stored = [await post(http, "/v1/threads/t/messages", 201, message=f"m{n}") for n in range(5)]
        ids = [message["id"] for message in stored]
        for order, expected in (("oldest_first", ids), ("newest_first", ids[::-1])):
            page = await get(http, "/v1/threads/t/messages", order=order, limit=3)
            rest = await get(http, "/v1/threads/t/messages", order=order, limit=3, cursor=page["next"])
            assert [m["id"] for m in (*page["items"], *rest["items"])] == expected and rest["next"] is None
        branch = await post(http, "/v1/threads/t/messages", 201, message={"role": "user", "content": "b"}, parent_id=ids[1])
        path = await get(http, "/v1/threads/t/messages", leaf_id=branch["id"])
        assert [m["id"] for m in path["items"]] == [*ids[:2], branch["id"]]
        leaves = (await get(http, "/v1/threads/t/branches"))["items"]
        assert [(leaf["message_id"], leaf["depth"]) for leaf in leaves] == [(ids[4], 5), (branch["id"], 3)]
        for message in (*stored, branch):
            assert await get(http, f"/v1/threads/t/messages/{message['id']}") == message
        assert (await get(http, f"/v1/threads/t/messages/{uuid.uuid4()}", 404))["code"] == "message_not_found"
        assert (await get(http, "/v1/threads/t/messages/nope", 400))["code"] == "invalid_input"
        moved = await post(http, "/v1/threads/t/messages", 409, message="x", expected_leaf=ids[0])
        assert moved["code"] == "leaf_moved"
        assert (await get(http, "/v1/threads/t/messages", 400, leaf_id="nope"))["code"] == "invalid_input"

    async def test_labels(self, http: httpx.AsyncClient) -> None:
        """B9, A2: a label is set, moves, is listed and removed. Nothing that a caller sends in its place is a fault of ours."""
        one = (await post(http, "/v1/threads/t/messages", 201, message="one"))["id"]
        two = (await post(http, "/v1/threads/t/messages", 201, message="two", parent_id=ROOT_ID))["id"]
        named = "/v1/threads/t/labels/a%2Fb%20%C3%A9"
        for body in ({"json": {}}, {}, {"json": None}, {"json": {"message_id": None}}, {"json": {"message_id": one.upper()}}):
            put = await http.put(named, **body)
            assert (put.status_code, put.content) == (204, b"")
        listed = (await get(http, "/v1/threads/t/branches", labelled=True))["items"]
        assert [(leaf["message_id"], leaf["labels"]) for leaf in listed] == [(one, ["a/b é"])]
        assert [leaf["labels"] for leaf in (await get(http, "/v1/threads/t/branches"))["items"]] == [["a/b é"], []]
        for wrong in ({"message_id": "nope"}, {"message_id": ROOT_ID}, {"message_id": str(uuid.uuid4())}, {"message_id": 1}):
            assert (await http.put(named, json=wrong)).status_code in (400, 404, 422)
        for wrong in ([], "x", 10**30, {"label": "y"}, {"message_id": [two]}, {"message_id": {"a": {}}}):
            assert (await http.put(named, json=wrong)).status_code == 422
        for content in (
            b'{"message_id": "\\ud800"}',
            b'{"message_id": "\\u0000"}',
            b"{" * 1000,
            b"\xff",
            b'{"message_id": NaN}',
        ):
            put = await http.put(named, content=content, headers={"Content-Type": "application/json"})
            assert put.status_code in (400, 422), put.text
        for label in ("x" * 65, "%00", "%0A", "%ED%A0%80", "%FF", "%2E", "%2e%2e", "", "%E2%80%AE"):
            for refused in (
                await http.put(f"/v1/threads/t/labels/{label}"),
                await http.delete(f"/v1/threads/t/labels/{label}"),
            ):
                assert refused.status_code in (400, 404, 405, 422), (label, refused.text)
        assert "label must be 1 to 64 printable" in (await http.put("/v1/threads/t/labels/a%0Ab")).json()["detail"]
        assert (await http.put(named, params={"force": "1"})).status_code == 422
        assert (await get(http, "/v1/threads/t/branches", 422, labelled="perhaps"))["code"] == "invalid_request"
        assert (await http.put("/v1/threads/none/labels/x")).json()["code"] == "thread_not_found"
        assert (await http.delete("/v1/threads/none/labels/x")).json()["code"] == "thread_not_found"
        for _ in range(2):
            assert (await http.delete(named)).status_code == 204
        assert (await get(http, "/v1/threads/t/branches", labelled=True))["items"] == []

    async def test_the_turn_under_way(self, http: httpx.AsyncClient, worker: Worker) -> None:
        """B2: the path has the messages of a run that waits for a human, with its status; the page's ETag follows it."""
        await post(http, "/v1/threads/t/runs/wait", 200, message="ask colour")
        waiting = await http.get("/v1/threads/t/messages")
        assert {m["run_status"] for m in waiting.json()["items"]} == {"suspended"}
        assert waiting.json()["items"][0]["content"][0]["text"] == "ask colour"
        await post(http, "/v1/threads/t/abort", 200, reason="no time")
        ended = await http.get("/v1/threads/t/messages", headers={"If-None-Match": waiting.headers["etag"]})
        assert {m["run_status"] for m in ended.json()["items"]} == {"cancelled"}

    async def test_etag(self, http: httpx.AsyncClient) -> None:
        await post(http, "/v1/threads/t/messages", 201, message="one")
        first = await http.get("/v1/threads/t/messages")
        tag = first.headers["etag"]
        for header in (tag, f"W/{tag}", f'"other", {tag}', "*"):
            same = await http.get("/v1/threads/t/messages", headers={"If-None-Match": header})
            assert (same.status_code, same.content, same.headers["etag"]) == (304, b"", tag)
        await post(http, "/v1/threads/t/messages", 201, message="two")
        changed = await http.get("/v1/threads/t/messages", headers={"If-None-Match": tag})
        assert changed.status_code == 200 and changed.headers["etag"] != tag

    async def test_text_that_is_no_unicode_can_be_read(self, http: httpx.AsyncClient, client: Client) -> None:
        """An agent in Python can store a lone surrogate; JSON shows it as an escape."""
        await client.store_message("t", Message.user("a\ud800b"))
        assert (await get(http, "/v1/threads/t/messages"))["items"][0]["content"][0]["text"] == "a\ud800b"


class TestFormats:
    async def test_m2_a_blob_comes_back_in_its_format(self, http: httpx.AsyncClient) -> None:
        """M1, M2, M3: and in another format with what that format lacks."""
        blob = {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]}
        stored = await post(http, "/v1/threads/t/messages", 201, blob=blob, format="anthropic")
        results = [{"role": "tool", "tool_call_id": call, "content": call} for call in "ab"]
        await post(http, "/v1/threads/t/messages", 201, blob=results, format="openai")
        page = await get(http, "/v1/threads/t/messages", format="anthropic")
        assert page["items"][0] == blob and page["message_ids"][0] == stored["id"]
        page = await get(http, "/v1/threads/t/messages", format="openai")
        assert page["items"] == [{"role": "user", "content": "a"}, *results]
        assert [(loss["message_id"], loss["path"]) for loss in page["losses"]] == [(stored["id"], "/content/0/cache_control")]
        page = await get(http, "/v1/threads/t/messages", format="acontext")
        assert page["items"][1]["parent_id"] == stored["id"]

    async def test_b1_a_blob_has_the_arguments_of_a_message(self, http: httpx.AsyncClient) -> None:
        """B1: a parent, an expected leaf, and a key that makes a repetition safe."""
        body = {"blob": {"role": "user", "content": "a"}, "format": "openai"}
        first, again = [
            (await http.post("/v1/threads/t/messages", json=body, headers={"Idempotency-Key": "k"})).json() for _ in range(2)
        ]
        assert first == again
        child = await post(http, "/v1/threads/t/messages", 201, **body, parent_id=first["id"])
        assert child["parent_id"] == first["id"]
        await post(http, "/v1/threads/t/messages", 409, **body, expected_leaf=first["id"])

    async def test_b1_the_id_of_a_native_blob_takes_precedence(self, http: httpx.AsyncClient) -> None:
        """B1: over a key, as the id of a message does."""
        body = {"blob": {"id": new_id(), "role": "user", "content": "a"}, "format": "native"}
        made = await http.post("/v1/threads/t/messages", json=body, headers={"Idempotency-Key": "k"})
        assert (made.status_code, made.json()["id"]) == (201, body["blob"]["id"])

    async def test_m6_a_fault_of_a_blob_is_named_and_nothing_is_stored(self, http: httpx.AsyncClient) -> None:
        """M6."""
        fault = await post(http, "/v1/threads/t/messages", 422, blob={"role": "user", "content": [{}]}, format="openai")
        assert (fault["code"], fault["details"]["path"]) == ("invalid_blob", "/content/0")
        for body in (
            {"blob": {}, "format": "odd"},
            {"blob": {}},
            {"format": "openai"},
            {"blob": "hi", "format": "openai"},
            {"blob": {}, "format": "openai", "message": "hi"},
            {"message": {"role": "user", "content": [{"type": "text", "text": "a", "odd": 1}]}},
        ):
            assert (await post(http, "/v1/threads/t/messages", 422, **body))["code"] == "invalid_request"
        for odd in ("hi", [], 3, None):
            assert (await http.post("/v1/threads/t/messages", json=odd)).status_code == 422
        assert (await http.get("/v1/threads/t")).status_code == 404
        assert (await http.get("/v1/threads/t/messages", params={"format": "odd"})).status_code == 422


class TestForks:
    async def test_fork_is_idempotent(self, http: httpx.AsyncClient, worker: Worker) -> None:
        """F1, F4, F7: 201, then 200, then 409; with a first prompt in the same call."""
        await post(http, "/v1/threads/t/runs/wait", 200, message="say 1", run_id="r")
        first = await http.post(
            "/v1/threads/t/fork", json={"new_thread_id": "f", "after_run_id": "r", "title": "T", "message": "say 2"}
        )
        assert first.status_code == 201 and first.headers["location"] == "/v1/threads/f"
        made = first.json()
        assert (made["thread"]["parent_thread_id"], made["thread"]["forked_after_run_id"]) == ("t", "r")
        assert (await get(http, f"/v1/threads/f/runs/{made['run']['run_id']}/wait"))["text"] == "2"
        again = await post(http, "/v1/threads/t/fork", 200, new_thread_id="f", after_run_id="r", title="T", message="say 2")
        assert again["run"]["run_id"] == made["run"]["run_id"]
        assert (await post(http, "/v1/threads/t/fork", 409, new_thread_id="f"))["code"] == "thread_already_exists"
        assert (await post(http, "/v1/threads/t/fork", 404, after_run_id="no"))["code"] == "cut_run_not_found"
        assert (await post(http, "/v1/threads/no/fork", 404))["code"] == "thread_not_found"

    async def test_no_option_of_a_fork_is_ignored(self, http: httpx.AsyncClient) -> None:
        """F5, F7: a fork without a prompt has no run id, and a fork that is no job has no id of a job; nothing is forked."""
        await post(http, "/v1/threads/t/messages", 201, message="x")
        cut = {"new_thread_id": "f", "at_seq": 1}
        for options in ({"wait": True, "run_id": "r"}, {"job_id": "j"}, {"run_id": "r"}):
            assert (await post(http, "/v1/threads/t/fork", 400, **cut, **options))["code"] == "invalid_input", options
        assert (await http.get("/v1/threads/f")).status_code == 404

    async def test_fork_at_a_number_and_a_message(self, http: httpx.AsyncClient) -> None:
        """F6, F7: an inclusive cut at a number or a message, repaired inside a tool cycle; options are those of the fork."""
        call = {"type": "tool_call", "id": "c", "name": "look", "arguments": {}}
        await post(http, "/v1/threads/t/messages", 201, message="x")
        made = await post(http, "/v1/threads/t/messages", 201, message={"role": "assistant", "content": [call]})
        first = await post(
            http, "/v1/threads/t/fork", 201, new_thread_id="a", at_seq=1, tags={"k": "v"}, metadata={"why": 1}, agent="b"
        )
        thread = first["thread"]
        assert (thread["forked_at_seq"], thread["tags"], thread["extra"], thread["agent"]) == (
            1,
            {"k": "v"},
            {"fork": {"why": 1}},
            "b",
        )
        refused = await post(http, "/v1/threads/t/fork", 409, new_thread_id="b", at_message_id=made["id"])
        assert refused["code"] == "fork_boundary" and refused["details"]["before"] and refused["details"]["after"] is None
        await post(http, "/v1/threads/t/fork", 201, new_thread_id="b", at_message_id=made["id"], repair=True)
        items = (await get(http, "/v1/threads/b/messages"))["items"]
        assert [message["role"] for message in items] == ["user", "assistant", "tool"]
        assert items[-1]["content"][0]["is_error"]
        assert (await post(http, "/v1/threads/t/fork", 400, at_seq=1, at_message_id=made["id"]))["code"] == "invalid_input"

    async def test_fork_when_the_run_completes(self, http: httpx.AsyncClient, client: Client) -> None:
        """F5: a job that waits for the run at the cut."""
        await post(http, "/v1/threads/t/runs", 202, message="x", run_id="r")
        job = await post(http, "/v1/threads/t/fork", 202, new_thread_id="f", after_run_id="r", wait=True, job_id="j")
        assert (job["kind"], job["status"]) == ("fork", "queued")
        again = await post(http, "/v1/threads/t/fork", 200, new_thread_id="f", after_run_id="r", wait=True, job_id="j")
        assert again["run_id"] == "j"

    async def test_fork_once_answers_and_writes_nothing(self, http: httpx.AsyncClient, worker: Worker) -> None:
        """F9: an answer, and nothing written."""
        await post(http, "/v1/threads/t/runs/wait", 200, message="say 1")
        probe = await post(http, "/v1/threads/t/fork_once", 200, message="say what", run_id="p")
        assert (probe["text"], probe["stop_reason"], len(probe["messages"])) == ("what", "stop", 2)
        assert len((await get(http, "/v1/threads/t/messages"))["items"]) == 2
        assert await post(http, "/v1/threads/t/fork_once", 200, message="say what", run_id="p") == probe

    async def test_fan_out(self, http: httpx.AsyncClient, worker: Worker) -> None:
        """F11: one job, an answer for each message, and the same again under the same id."""
        await post(http, "/v1/threads/t/runs/wait", 200, message="say 1")
        body = {"messages": ["say a", {"content": "say b"}], "run_id": "many"}
        found = await post(http, "/v1/threads/t/fork_many", 200, **body)
        assert [result["text"] for result in found["results"]] == ["a", "b"] and found["winner"] is None
        assert await post(http, "/v1/threads/t/fork_many", 200, **body) == found
        refused = await post(http, "/v1/threads/t/fork_many", 422, messages=["x"] * 1001)
        assert refused["code"] == "invalid_request"
        assert (await post(http, "/v1/threads/t/fork_many", 422, messages=["x"], max_parallel=101))["code"] == "invalid_request"

    async def test_progress_and_candidates_of_a_fan_out(self, http: httpx.AsyncClient, worker: Worker) -> None:
        """F14, F15: the answer has the first page, and the job has all of them."""
        await post(http, "/v1/threads/t/runs/wait", 200, message="say 1", run_id="r")
        messages = [f"say {n}" for n in range(120)]
        body = {"messages": messages, "run_id": "many", "max_parallel": 50}
        found = await post(http, "/v1/threads/t/fork_many", 200, **body)
        assert [one["number"] for one in found["results"]] == list(range(100)) and found["run_id"] == "many"
        rest = await get(http, "/v1/threads/t/runs/many/candidates", cursor=found["next"])
        assert [one["text"] for one in rest["items"]] == [str(n) for n in range(100, 120)] and rest["next"] is None
        few = await get(http, "/v1/threads/t/runs/many/candidates", limit=3)
        assert [one["number"] for one in few["items"]] == [0, 1, 2]
        progress = await get(http, "/v1/threads/t/runs/many/progress")
        assert (progress["total"], progress["completed"], progress["usage"]) == (120, 120, found["usage"])
        for path in ("progress", "candidates"):
            assert (await get(http, f"/v1/threads/t/runs/r/{path}", 400))["code"] == "invalid_input"
            assert (await get(http, f"/v1/threads/t/runs/none/{path}", 404))["code"] == "run_not_found"
        assert (await get(http, "/v1/threads/t/runs/many/candidates", 400, cursor="x"))["code"] == "invalid_cursor"

    async def test_a_probe_that_takes_longer_goes_on(self, http: httpx.AsyncClient, client: Client) -> None:
        await post(http, "/v1/threads/t/runs", 202, message="x", run_id="r")
        await post(http, "/v1/threads/t/fork_once?wait=0", 202, message="?", after_run_id="r", run_id="p")


class TestRequests:
    @pytest.fixture
    async def asked(self, client: Client) -> str:
        return await ask(client, "t", "r")

    async def test_inbox_and_answers(self, http: httpx.AsyncClient, client: Client, asked: str) -> None:
        """H3, H10: the inbox; 422 leaves the request pending; the same answer again is the same; another one is refused."""
        other = await ask(client, "u", "r", agent="planner")
        inbox = (await get(http, "/v1/requests"))["items"]
        assert {(q["request_id"], q["thread_id"], q["agent"]) for q in inbox} == {(asked, "t", None), (other, "u", "planner")}
        assert [q["request_id"] for q in (await get(http, "/v1/requests", thread_id="u"))["items"]] == [other]
        assert (await get(http, "/v1/requests", 404, thread_id="none"))["code"] == "thread_not_found"
        assert (await post(http, "/v1/threads/t/respond", 422, answer=7))["code"] == "hitl_invalid_answer"
        answered = await post(http, "/v1/threads/t/respond", 200, answer="blue", response_id="x")
        assert (answered["answer"], answered["answered_by"]) == ("blue", "test")
        assert await post(http, "/v1/threads/t/respond", 200, answer="blue", response_id="x") == answered
        late = await post(http, f"/v1/requests/{asked}/respond", 409, answer="red")
        assert late["code"] == "hitl_already_answered"
        await post(http, f"/v1/requests/{other}/respond", 422, answer="red", answered_by="ann")
        named = await post(http, f"/v1/requests/{other}/respond", 200, answer="red", on_behalf_of="ann")
        assert (named["answered_by"], named["on_behalf_of"]) == ("test", "ann")
        assert (await get(http, "/v1/requests"))["items"] == []
        assert len((await get(http, "/v1/requests", pending=False))["items"]) == 2
        assert (await post(http, "/v1/requests/none/respond", 404, answer=1))["code"] == "hitl_no_pending_request"

    async def test_request_is_found_by_its_id_while_it_waits_and_after(self, http: httpx.AsyncClient, asked: str) -> None:
        """Whether it waits or not."""
        [waiting] = (await get(http, "/v1/requests"))["items"]
        assert await get(http, f"/v1/requests/{asked}") == waiting
        answered = await post(http, f"/v1/requests/{asked}/respond", 200, answer="blue")
        assert await get(http, f"/v1/requests/{asked}") == answered and answered["answer"] == "blue"
        assert (await get(http, "/v1/requests/none", 404))["code"] == "hitl_request_not_found"

    async def test_abort(self, http: httpx.AsyncClient, asked: str) -> None:
        """H8: given up, kept, and nothing the second time."""
        run = await post(http, "/v1/threads/t/abort", 200, reason="nobody there")
        assert run["status"] == "cancelled"
        assert (await http.post("/v1/threads/t/abort")).status_code == 204


class TestDeployment:
    async def test_agents_and_workers(self, http: httpx.AsyncClient, worker: Worker) -> None:
        [agent] = (await get(http, "/v1/agents"))["items"]
        assert (agent["name"], agent["queues"], agent["workers"]) == ("scripted", ["default"], 1)
        assert await get(http, "/v1/agents/scripted") == agent
        assert agent["budgets"] == []
        assert (await get(http, "/v1/agents/none", 404))["code"] == "agent_not_found"
        [shown] = (await get(http, "/v1/workers"))["items"]
        assert shown["worker_id"] == worker.worker_id

    async def test_feed_continues_from_a_cursor(self, http: httpx.AsyncClient) -> None:
        """E5: from a cursor on, without end."""
        await post(http, "/v1/threads/t/messages", 201, message="1")
        page = await get(http, "/v1/feed")
        assert [(e["type"], e["thread_id"]) for e in page["items"]] == [("message.stored", "t")]
        await post(http, "/v1/threads/u/messages", 201, message="1")
        following = await get(http, "/v1/feed", cursor=page["next"])
        assert [e["thread_id"] for e in following["items"]] == ["u"] and following["next"]

    async def test_usage_report_covers_30_days_by_default_and_is_bounded(
        self, http: httpx.AsyncClient, client: Client, worker: Worker
    ) -> None:
        """Of 30 days unless they are named; days are days, and a report is bounded."""
        await post(http, "/v1/threads/t/runs/wait", 200, message="say hi")
        found = await get(http, "/v1/usage")
        assert (found["total"]["runs"], len(found["days"]), found["agent"]) == (1, 30, None)
        assert (found["days"][-1]["day"], found["counted_until"] is not None) == (found["until"], True)
        day = found["until"]
        one = await get(http, "/v1/usage", since=day, until=day, agent="nobody")
        assert (one["agent"], one["total"]["runs"], [each["day"] for each in one["days"]]) == ("nobody", 0, [day])
        assert len((await get(http, "/v1/usage", since="2024-01-01", until="2024-12-31"))["days"]) == 366
        for wrong in ({"since": "2023-12-31"}, {"since": "2025-01-01"}, {"agent": ""}):
            refused = await get(http, "/v1/usage", 400, **{"until": "2024-12-31", **wrong})
            assert refused["code"] == "invalid_input", wrong
        for name, value in {"since": "2024-01-01T00:00:00Z", "until": "2024-02-30", "before": "2024-01-01"}.items():
            assert (await get(http, "/v1/usage", 422, **{name: value}))["code"] == "invalid_request", value
        assert (await get(http, "/v1/usage", 422, until="1700000000"))["code"] == "invalid_request"
