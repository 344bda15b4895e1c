"""Memories go along when a session is copied by a checkpoint; a fork has none."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import json
from typing import Any

from tests.support.callers.rest import RestClient, client_with_key
from tests.support.events import final
from tests.support.services import Serve
from voicemem.app import App
from voicemem.memory.long_term.records import MemoryDraft
from voicemem.protocol.events import MemoriesExtracted
from voicemem.protocol.memories import Evidence
from voicemem.protocol.types import JsonObject

PATH = "/v1/sessions/call/memories?superseded=true"


async def memories(api: RestClient, path: str = PATH) -> dict[str, JsonObject]:
    """By text."""
    return {memory["text"]: memory for memory in (await api.get(path)).json["memories"]}


async def call_with_memories(app: App, api: RestClient, project: str = "default") -> JsonObject:
    """The checkpoint of a session with a memory that was extracted, one that was changed, and one that was removed."""
    await api.create("call", user_id="ann")
    await api.send(final(1, "No walnuts, please.", 1_000), session_id="call")
    stream = await app.services.store.journal.find_session(project, "call")
    assert stream is not None
    draft = MemoryDraft(text="Eats no walnuts.", source="extracted", evidence=(Evidence("call", 1, 1, (1,)),))
    mark = MemoriesExtracted(through=1, strategy="discrete", version="1")
    assert await app.services.long_term.add_extracted(stream, [draft], mark)
    given = {"topics": ["places"], "event_at": "2026-05-03", "metadata": {"a": 1}, "session_id": "call"}
    kept = (await api.post("/v1/memories", {"text": "Lives in Bern.", "id": "mine", **given})).json["memories"][0]
    await api.patch(f"/v1/memories/{kept['id']}", {"text": "Lives in Basel.", "topics": ["homes"], "pinned": True})
    await api.post("/v1/memories", {"text": "Lives in Rome.", "session_id": "call", "supersedes": ["mine"]})
    gone = (await api.post("/v1/memories", {"text": "Hates opera.", "session_id": "call"})).json["memories"][0]
    await api.delete(f"/v1/memories/{gone['id']}")
    return dict((await api.get("/v1/sessions/call/checkpoint")).json)


def timeless(memory: JsonObject, **more: Any) -> JsonObject:
    return {name: value for name, value in memory.items() if name not in ("updated_at", "superseded_at")} | more


async def test_memories_are_restored_elsewhere(serve: Serve) -> None:
    """With ids, evidence, and what is out of date; the journal has none of their texts there either."""
    app, other = await serve(), await serve()
    api, there = RestClient(app), RestClient(other)
    checkpoint = await call_with_memories(app, api)
    assert "Hates opera" not in json.dumps(checkpoint)
    answered = await there.post("/v1/restore", {"checkpoint": checkpoint})
    assert 201 == answered.status, answered.body
    new_id = answered.json["session_id"]
    expected = {
        text: timeless(one, session_id=new_id, **{"from": [source | {"session_id": new_id} for source in one["from"]]})
        for text, one in (await memories(api)).items()
    }
    found = await memories(there, f"/v1/sessions/{new_id}/memories?superseded=true")
    assert expected == {text: timeless(one) for text, one in found.items()}
    assert {"Eats no walnuts.", "Lives in Basel.", "Lives in Rome."} == found.keys()
    assert (["homes"], "2026-05-03", {"a": 1}, True) == tuple(
        found["Lives in Basel."][name] for name in ("topics", "event_at", "metadata", "pinned")
    )
    shown = (await there.get(f"/v1/memories/{found['Eats no walnuts.']['id']}?evidence=true")).json
    assert ["No walnuts, please."] == [line["text"] for line in shown["evidence"]]
    journal = json.dumps(await there.journal(new_id))
    assert [] == [word for word in ("Basel", "Bern", "homes", "2026-05-03", "Eats") if word in journal]
    answer = await there.post("/v1/memories/search", {"query": "walnuts", "kinds": ["fact"]})
    assert ["Eats no walnuts."] == [one["text"] for one in answer.json["memories"]]


async def test_a_copy_beside_the_original_has_its_own_memories(app: App) -> None:
    """Their ids are others, and each session takes its own with it."""
    api = RestClient(app)
    checkpoint = await call_with_memories(app, api)
    answered = await api.post("/v1/restore", {"checkpoint": checkpoint, "session_id": "copy"})
    assert 201 == answered.status, answered.body
    one, other = await memories(api), await memories(api, "/v1/sessions/copy/memories?superseded=true")
    assert one.keys() == other.keys()
    assert set() == {memory["id"] for memory in one.values()} & {memory["id"] for memory in other.values()}
    assert other["Lives in Rome."]["id"] == other["Lives in Basel."]["superseded_by"]
    added = [row["event"]["memory_id"] for row in await api.journal("copy") if row["event"]["type"] == "memory.added"]
    assert {memory["id"] for memory in other.values()} <= set(added)
    await api.delete("/v1/sessions/call")
    assert other.keys() == (await memories(api, "/v1/sessions/copy/memories?superseded=true")).keys()
    assert 200 == (await api.get(f"/v1/memories/{other['Lives in Basel.']['id']}")).status


async def test_restored_memories_are_redacted(serve: Serve) -> None:
    """What a service must not keep it does not take from a checkpoint either."""
    app, strict = await serve(), await serve(redact=("cards",))
    api, there = RestClient(app), RestClient(strict)
    await api.create("call", user_id="ann")
    await api.post("/v1/memories", {"text": "Pays with 4111 1111 1111 1111.", "session_id": "call"})
    checkpoint = (await api.get("/v1/sessions/call/checkpoint")).json
    await there.post("/v1/restore", {"checkpoint": checkpoint, "session_id": "call"})
    (text,) = await memories(there)
    assert "1111 1111 1111" not in text
    assert text.startswith("Pays with")


async def test_a_fork_has_no_memories(app: App) -> None:
    """They stay with the session that they come from."""
    api = RestClient(app)
    await call_with_memories(app, api)
    assert 201 == (await api.post("/v1/sessions/call/fork", {"at_turn": 1, "session_id": "fork"})).status
    assert {} == await memories(api, "/v1/sessions/fork/memories")
    assert 3 == len(await memories(api))


async def test_projects_restore_their_own(serve: Serve) -> None:
    """The ids of one project's memories are free in another."""
    app = await serve()
    ours = await client_with_key(app, "ingest", "read", "admin")
    theirs = await client_with_key(app, "ingest", "read", "admin", project="other")
    checkpoint = await call_with_memories(app, ours)
    assert 201 == (await theirs.post("/v1/restore", {"checkpoint": checkpoint, "session_id": "call"})).status
    assert {one["id"] for one in (await memories(ours)).values()} == {
        one["id"] for one in (await memories(theirs)).values()
    }
