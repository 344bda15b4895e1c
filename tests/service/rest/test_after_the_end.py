"""What can still be said of a call that is over: whose it was, once, its labels, and where a recording is."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.callers.rest import RestClient, client_with_key
from tests.support.events import final
from tests.support.servers.extracting_llm import memory, remembers
from tests.support.servers.llm_server import llm_server
from tests.support.services import Serve, running_service
from tests.support.waiting import eventually
from voicemem.config.session import validate_config
from voicemem.protocol.types import JsonObject
from voicemem.store.engines import open_store

PATH = "/v1/sessions/s"
SAID, NOTED = "I am allergic to walnuts.", "Ann is allergic to walnuts."


async def over(api: RestClient, **config: Any) -> None:
    """A call that has ended, in which something was said and noted."""
    await api.create(**config)
    await api.send(final(1, SAID, 1_000))
    kept = await api.post("/v1/memories", {"text": NOTED, "session_id": "s"})
    assert 200 == kept.status, kept.body
    await api.end()


async def found(api: RestClient, **where: str) -> set[str]:
    answered = await api.post("/v1/memories/search", {"query": "walnuts", **where})
    return {one["text"] for one in answered.json["memories"]}


async def listed(api: RestClient, query: str) -> list[str]:
    return [one["session_id"] for one in (await api.get(f"/v1/sessions?{query}")).json["sessions"]]


async def test_a_call_is_given_to_its_user(api: RestClient) -> None:
    """Once; lists, searches, memories and the next call's context follow, and the journal has it as an event."""
    await over(api)
    assert set() == await found(api, user_id="ann")
    given = await api.patch(PATH, {"user_id": "ann"})
    assert (200, "ann", "ended") == (given.status, given.json["config"]["user_id"], given.json["state"])
    assert ["s"] == await listed(api, "user_id=ann") == await listed(api, "user_id=ann&fields=overview")
    assert {SAID, NOTED} == await found(api, user_id="ann")
    assert [("ann", "s")] == [
        (one["user_id"], one["session_id"]) for one in (await api.get("/v1/users/ann/memories")).json["memories"]
    ]
    assert {"type": "session.update", "user_id": "ann"} in [row["event"] for row in await api.journal()]
    await api.create("next", user_id="ann", memory={"memories": {}})
    assert NOTED in str(await api.context(session_id="next"))
    again = await api.patch(PATH, {"user_id": "ann"})
    assert (200, "ann") == (again.status, again.json["config"]["user_id"])
    for other in ("ben", None):
        assert (409, "user_conflict") == (await api.patch(PATH, {"user_id": other})).problem
    assert 204 == (await api.delete("/v1/users/ann")).status
    assert (404, "unknown_session") == (await api.get(PATH)).problem
    assert set() == await found(api)


async def test_labels_change_after_the_end(api: RestClient) -> None:
    """By a merge patch; sessions are found by them, and what was said in their namespace."""
    await over(api, labels={"line": "shop", "outcome": "open"})
    changed = await api.patch(PATH, {"labels": {"outcome": "sold", "ticket": "17", "line": None}})
    assert (200, {"outcome": "sold", "ticket": "17"}) == (changed.status, changed.json["config"]["labels"])
    assert ["s"] == await listed(api, "label=ticket:17") == await listed(api, "label=ticket:17&fields=overview")
    assert [] == await listed(api, "label=line:shop")
    await api.patch(PATH, {"labels": {"namespace": "bank"}})
    assert SAID in await found(api, namespace="bank")
    labels = [row["event"].get("labels") for row in await api.journal() if row["event"]["type"] == "session.update"]
    assert [{"outcome": "sold", "ticket": "17", "line": None}, {"namespace": "bank"}] == labels


@pytest.mark.parametrize("patch", [{"name": "x"}, {"user_id": "ann", "name": "x"}, {"labels": {}, "llm": {}}])
async def test_nothing_else_changes_after_the_end(api: RestClient, patch: JsonObject) -> None:
    """And nothing of a patch that asks for more."""
    await over(api)
    before = await api.session()
    refused = await api.patch(PATH, patch)
    assert (410, "session_ended") == refused.problem
    assert "labels" in refused.json["detail"]
    assert before == await api.session()


async def test_an_erased_user_gets_no_call(api: RestClient) -> None:
    """One that was over when the user was erased is no one's from then on; a new call makes a new user."""
    await over(api)
    assert 204 == (await api.delete("/v1/users/ann")).status
    refused = await api.patch(PATH, {"user_id": "ann"})
    assert (409, "user_erased") == refused.problem
    await api.create("new", user_id="ann")
    assert (409, "user_erased") == (await api.patch(PATH, {"user_id": "ann"})).problem
    given = await api.patch(PATH, {"user_id": "ben"})
    assert (200, "ben") == (given.status, given.json["config"]["user_id"])


async def test_the_user_is_set_by_admins_and_by_the_key_that_created_the_session(serve: Serve) -> None:
    """Labels by every key that may change a session."""
    app = await serve()
    admin, other = await client_with_key(app, "admin"), await client_with_key(app, "ingest", "read")
    creator = await client_with_key(app, "ingest", "read")
    for session_id in ("a", "b"):
        await creator.create(session_id)
        await creator.end(session_id)
    for patch in ({"user_id": "ann"}, {"user_id": None}, {"user_id": "ann", "labels": {"a": "b"}}):
        assert (403, "forbidden") == (await other.patch("/v1/sessions/a", patch)).problem
    assert 200 == (await other.patch("/v1/sessions/a", {"labels": {"outcome": "sold"}})).status
    assert 200 == (await creator.patch("/v1/sessions/a", {"user_id": "ann"})).status
    assert 200 == (await admin.patch("/v1/sessions/b", {"user_id": "ann"})).status
    reader = await client_with_key(app, "read")
    assert (403, "forbidden") == (await reader.patch("/v1/sessions/a", {"labels": {"a": "b"}})).problem


async def test_memories_of_a_call_follow_the_user_during_it_too(api: RestClient) -> None:
    """Those that were no one's; what names a user stays that user's."""
    await api.create()
    for text, user_id in (("Likes tea.", None), ("Ben likes coffee.", "ben")):
        await api.post("/v1/memories", {"text": text, "session_id": "s", "user_id": user_id})
    await api.patch(PATH, {"user_id": "ann"})
    assert ["Likes tea."] == [one["text"] for one in (await api.get("/v1/users/ann/memories")).json["memories"]]
    assert 1 == len((await api.get("/v1/users/ben/memories")).json["memories"])
    edits = [row["event"] for row in await api.journal() if row["event"]["type"] == "memory.edited"]
    assert ["ann"] == [one["user_id"] for one in edits]


async def test_memories_follow_a_user_whom_a_producer_names(api: RestClient) -> None:
    """By `session.update`, soon after it is stored."""
    await api.create()
    await api.post("/v1/memories", {"text": "Likes tea.", "session_id": "s"})
    await api.send({"type": "session.update", "user_id": "ann"})

    async def of_ann() -> list[str]:
        return [one["text"] for one in (await api.get("/v1/users/ann/memories")).json["memories"]]

    await eventually(["Likes tea."], of_ann)


async def test_memories_follow_after_a_kill(tmp_path: Path) -> None:
    """A service that was killed once the user was stored gives them to the user when it starts again."""
    url = f"sqlite:{tmp_path}/calls.db"
    async with running_service(store=url) as app:
        api = RestClient(app)
        await api.create()
        await api.post("/v1/memories", {"text": "Likes tea.", "session_id": "s"})
    store = open_store(url)
    stream = await store.journal.get_session("default", "s")
    payload = b'{"type":"session.update","user_id":"ann"}'
    await store.journal.change_config(stream.key, validate_config({"user_id": "ann"}), payload, stream.started_ms)
    await store.close_store()
    async with running_service(store=url) as app:
        again = RestClient(app)

        async def of_ann() -> list[str]:
            return [one["text"] for one in (await again.get("/v1/users/ann/memories")).json["memories"]]

        await eventually(["Likes tea."], of_ann)


async def test_what_an_llm_makes_of_the_call_is_the_user_s(serve: Serve) -> None:
    """Before the user is known and after it."""
    async with llm_server(remembers(memory(NOTED, 1)), remembers()) as llm:
        app = await serve(llm_url=llm.url)
        api = RestClient(app)
        await api.create(memory={"extract": {}})
        await api.send(final(1, SAID, 1_000))
        await api.end()

        async def count(path: str) -> int:
            return len((await api.get(path)).json["memories"])

        await eventually(1, lambda: count(f"{PATH}/memories"))
        await api.patch(PATH, {"user_id": "ann"})
        await eventually(1, lambda: count("/v1/users/ann/memories"))


async def test_many_memories_follow(api: RestClient) -> None:
    """More than are written at a time, and none twice."""
    await api.create()
    texts = [{"text": f"Fact {number}.", "session_id": "s"} for number in range(45)]
    await api.post("/v1/memories", {"memories": texts})
    await api.end()
    await api.patch(PATH, {"user_id": "ann"})
    await api.patch(PATH, {"user_id": "ann"})
    assert 45 == len((await api.get("/v1/users/ann/memories?limit=100")).json["memories"])
    edits = [row["event"] for row in await api.journal() if row["event"]["type"] == "memory.edited"]
    assert 45 == len(edits)


async def test_a_recording_may_come_after_the_end(api: RestClient) -> None:
    """Its address is a part of the configuration, and of exports; one that is no http address is refused."""
    await over(api)
    url = "https://example.com/calls/1.ogg?token=a"
    changed = await api.patch("/v1/sessions/s", {"recording": url})
    assert (200, url) == (changed.status, changed.json["config"]["recording"])
    document = (await api.get("/v1/sessions/s/export")).json
    assert ("recording", url) == (document["dialog"][-1]["type"], document["dialog"][-1]["url"])
    assert f"`{url}`" in (await api.get("/v1/sessions/s/export?format=markdown")).body.decode()
    for wrong in (
        "ftp://example.com/a",
        "javascript:alert(1)",
        "https://ann:secret@example.com/",
        f"https://a/{'x' * 2048}",
    ):
        refused = await api.patch("/v1/sessions/s", {"recording": wrong})
        assert (400, "invalid_field") == refused.problem
    assert "recording" not in (await api.patch("/v1/sessions/s", {"recording": None})).json["config"]
