"""Conditional requests on threads (RFC 9110), and what null means in a PATCH (RFC 7396)."""

from __future__ import annotations

import httpx
import pytest

from runyard import Client
from runyard.errors import InvalidInputError, PreconditionFailedError


async def test_a_thread_that_did_not_change_is_not_sent_again(http: httpx.AsyncClient) -> None:
    await http.post("/v1/threads", json={"thread_id": "t"})
    tag = (await http.get("/v1/threads/t")).headers["etag"]
    for known in (tag, f'"other", W/{tag}', "*"):
        again = await http.get("/v1/threads/t", headers={"If-None-Match": known})
        assert (again.status_code, again.headers["etag"], again.content) == (304, tag, b"")
    await http.post("/v1/threads/t/messages", json={"message": "a"})
    changed = await http.get("/v1/threads/t", headers={"If-None-Match": tag})
    assert changed.status_code == 200 and changed.headers["etag"] != tag


async def test_a_stale_change_is_refused(http: httpx.AsyncClient) -> None:
    await http.post("/v1/threads", json={"thread_id": "t"})
    tag = (await http.get("/v1/threads/t")).headers["etag"]
    first = await http.patch("/v1/threads/t", json={"title": "mine"}, headers={"If-Match": tag})
    assert first.status_code == 200 and first.headers["etag"] == (await http.get("/v1/threads/t")).headers["etag"] != tag
    for stale in (tag, '"nonsense"', "nonsense", f"W/{first.headers['etag']}"):
        refused = await http.patch("/v1/threads/t", json={"title": "theirs"}, headers={"If-Match": stale})
        assert (refused.status_code, refused.json()["code"]) == (412, "precondition_failed")
        assert (await http.delete("/v1/threads/t", headers={"If-Match": stale})).status_code == 412
        assert (await http.delete("/v1/threads/t?erase=true", headers={"If-Match": stale})).status_code == 412
    assert (await http.patch("/v1/threads/t", json={}, headers={"If-Match": "*"})).json()["title"] == "mine"
    tag = (await http.get("/v1/threads/t")).headers["etag"]
    refused = await http.delete("/v1/threads/t?descendants=true", headers={"If-Match": tag})
    assert (refused.status_code, refused.json()["code"]) == (400, "invalid_input")
    assert (await http.delete("/v1/threads/t", headers={"If-Match": f'"0", {tag}'})).status_code == 204
    assert (await http.delete("/v1/threads/t", headers={"If-Match": tag})).status_code == 404


async def test_a_star_stands_alone(http: httpx.AsyncClient) -> None:
    """RFC 9110 (13.1.1, 13.1.2): in a list it is no tag."""
    await http.post("/v1/threads", json={"thread_id": "t"})
    for mixed in ('"x",*', '*, "x"', '"x, *, y"'):
        assert (await http.patch("/v1/threads/t", json={}, headers={"If-Match": mixed})).status_code == 412, mixed
        assert (await http.delete("/v1/threads/t", headers={"If-Match": mixed})).status_code == 412, mixed
        assert (await http.get("/v1/threads/t", headers={"If-None-Match": mixed})).status_code == 200, mixed


async def test_lines_of_a_condition_are_one_list(http: httpx.AsyncClient) -> None:
    """RFC 9110 (5.3)."""
    await http.post("/v1/threads", json={"thread_id": "t"})
    tag = (await http.get("/v1/threads/t")).headers["etag"]
    for path in ("/v1/threads/t", "/v1/threads/t/messages"):
        known = (await http.get(path)).headers["etag"]
        lines = [("If-None-Match", '"x"'), ("If-None-Match", known)]
        assert (await http.get(path, headers=lines)).status_code == 304, path
    stars = [("If-Match", "*"), ("If-Match", '"x"')]
    assert (await http.patch("/v1/threads/t", json={}, headers=stars)).status_code == 412
    changed = await http.patch("/v1/threads/t", json={"title": "a"}, headers=[("If-Match", '"x"'), ("If-Match", tag)])
    assert changed.status_code == 200
    lines = [("If-Match", '"x"'), ("If-Match", changed.headers["etag"])]
    assert (await http.delete("/v1/threads/t", headers=lines)).status_code == 204


async def test_null_clears(http: httpx.AsyncClient) -> None:
    """What the body does not name stays."""
    body = {"thread_id": "t", "title": "a", "tags": {"k": "v"}, "extra": {"a": 1, "b": 2}}
    await http.post("/v1/threads", json=body)
    thread = (await http.patch("/v1/threads/t", json={"extra": {"a": None}})).json()
    assert (thread["title"], thread["extra"]) == ("a", {"b": 2})
    thread = (await http.patch("/v1/threads/t", json={"title": None})).json()
    assert (thread["title"], thread["tags"]) == (None, {"k": "v"})
    thread = (await http.patch("/v1/threads/t", json={"tags": None, "extra": None})).json()
    assert (thread["tags"], thread["extra"]) == ({}, {})


async def test_the_client_expects_and_clears(remote: Client) -> None:
    """Over HTTP as directly."""
    made = (await remote.create_thread("t", title="a", extra={"k": 1})).thread
    await remote.create_thread("other")
    changed = await remote.update_thread("t", title=None, extra={"k": None}, expected=made.updated_at)
    assert (await remote.update_thread("other", agent="writer")).agent == "writer"
    assert (await remote.update_thread("other", agent=None)).agent is None
    with pytest.raises(InvalidInputError):
        await remote.update_thread("other", agent="\n")
    assert (changed.title, changed.extra) == (None, {})
    with pytest.raises(PreconditionFailedError):
        await remote.update_thread("t", title="b", expected=made.updated_at)
    with pytest.raises(PreconditionFailedError):
        await remote.delete_thread("t", expected=made.updated_at)
    await remote.delete_thread("t", expected=changed.updated_at)
