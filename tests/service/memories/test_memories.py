"""Memories over REST: kept, read, changed, removed, listed, and what they were heard from."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from typing import Any

from tests.support.callers.rest import RestClient, client_with_key
from tests.support.events import final
from tests.support.rows import every_row
from tests.support.services import Serve
from voicemem.app import App
from voicemem.memory.long_term.records import MemoryDraft
from voicemem.protocol.events import MemoriesExtracted
from voicemem.protocol.memories import Evidence
from voicemem.protocol.types import JsonObject

NUTS = "Ann is allergic to walnuts."


async def keep(api: RestClient, text: str = NUTS, **more: Any) -> JsonObject:
    """The memory that is answered."""
    answered = await api.post("/v1/memories", {"text": text, **more})
    assert 200 == answered.status, answered.body
    (memory,) = answered.json["memories"]
    return dict(memory)


async def texts(api: RestClient, path: str = "/v1/users/ann/memories") -> list[str]:
    answered = await api.get(path)
    assert 200 == answered.status, answered.body
    return [memory["text"] for memory in answered.json["memories"]]


async def heard(api: RestClient, app: App, session_id: str, *said: str, user_id: str = "ann") -> JsonObject:
    """A memory that was extracted from the first message of a session in which these were said."""
    await api.create(session_id, user_id=user_id)
    await api.send(*(final(turn, text, 1_000 * turn) for turn, text in enumerate(said, 1)), session_id=session_id)
    stream = await app.services.store.journal.find_session("default", session_id)
    assert stream is not None
    draft = MemoryDraft(text=NUTS, source="extracted", evidence=(Evidence(session_id, 1, 1, (1,)),))
    mark = MemoriesExtracted(through=stream.position, strategy="discrete", version="1")
    added = await app.services.long_term.add_extracted(stream, [draft], mark)
    assert added is not None
    return dict((await api.get(f"/v1/memories/{added[0].id}")).json)


# Keeping


async def test_a_memory_is_kept_with_all_that_was_given(api: RestClient) -> None:
    """It is answered as it stands, and can be read and listed at once."""
    given: JsonObject = {
        "kind": "preference",
        "user_id": "ann",
        "namespace": "shop",
        "topics": ["food", "health"],
        "entities": ["walnuts"],
        "event_at": "2026-05-03",
        "said_at": 1_790_000_000_000,
        "expires_at": 4_000_000_000_000,
        "confidence": 0.5,
        "pinned": True,
        "metadata": {"source": "form", "n": 1},
        "source": "tool",
    }
    kept = await keep(api, **given)
    assert given == {name: kept[name] for name in given}
    assert (NUTS, [], None, 0, []) == tuple(
        kept[name] for name in ("text", "from", "superseded_by", "access_count", "supersedes")
    )
    assert kept == (await api.get(f"/v1/memories/{kept['id']}")).json
    assert [NUTS] == await texts(api)


async def test_the_same_is_kept_once(api: RestClient) -> None:
    """Case, spaces and the full stop do not matter; another owner's memory is another one."""
    first = await keep(api, user_id="ann")
    again = await keep(api, " ann is  allergic to WALNUTS", user_id="ann", pinned=True)
    assert (first["id"], NUTS, True) == (again["id"], again["text"], again["pinned"])
    others = [await keep(api, **owner) for owner in ({"user_id": "bob"}, {}, {"user_id": "ann", "namespace": "shop"})]
    assert 4 == len({first["id"], *(other["id"] for other in others)})


async def test_several_are_kept_in_their_order(api: RestClient) -> None:
    """Whosever they are, and one that is there twice is one."""
    given = [{"text": f"Likes tea {n % 30}.", "user_id": f"u{n % 2}"} for n in range(60)]
    kept = (await api.post("/v1/memories", {"memories": given})).json["memories"]
    assert [one["text"] for one in given] == [one["text"] for one in kept]
    assert 30 == len({one["id"] for one in kept})
    assert 15 == len(await texts(api, "/v1/users/u1/memories"))


async def test_an_id_may_be_given(api: RestClient) -> None:
    """The same again changes nothing; another content replaces it; another user gets it as a whole."""
    first = await keep(api, id="a/b ü", user_id="ann", topics=["food"])
    assert first == await keep(api, id="a/b ü", user_id="ann", topics=["food"])
    changed = await keep(api, "Ann loves walnuts.", id="a/b ü", user_id="ann")
    assert ("a/b ü", "Ann loves walnuts.", [], first["created_at"]) == tuple(
        changed[name] for name in ("id", "text", "topics", "created_at")
    )
    moved = await keep(api, id="a/b ü", user_id="bob")
    assert ([], [NUTS]) == (await texts(api), await texts(api, "/v1/users/bob/memories"))
    assert moved == (await api.get("/v1/memories/a%2Fb%20%C3%BC")).json


async def test_an_id_comes_back_after_its_removal(api: RestClient) -> None:
    """Nothing of the removed memory is left in the new one."""
    for user in ("ann", "ann", "bob"):
        await keep(api, id="mine", user_id=user, topics=["food"])
        assert 204 == (await api.delete("/v1/memories/mine")).status
    again = await keep(api, "Another.", id="mine", user_id="ann")
    assert ([], "Another.") == (again["topics"], again["text"])
    first = await keep(api, user_id="ann")
    await api.delete(f"/v1/memories/{first['id']}")
    assert first["id"] == (await keep(api, user_id="ann"))["id"]


async def test_a_memory_that_was_changed_is_not_taken_for_what_it_said(api: RestClient) -> None:
    """What it said before may be kept again beside it."""
    first = await keep(api, user_id="ann")
    await api.patch(f"/v1/memories/{first['id']}", {"text": "Ann is allergic to peanuts."})
    again = await keep(api, user_id="ann")
    assert again["id"] != first["id"]
    assert {"Ann is allergic to peanuts.", NUTS} == set(await texts(api))
    assert first["id"] == (await keep(api, "ann is allergic to peanuts", user_id="ann"))["id"]


# Whose journal


async def test_memories_of_a_session_go_with_it(api: RestClient) -> None:
    """The user and the namespace are the session's; one about a session that is not there is its user's."""
    await api.create("call", user_id="ann", labels={"namespace": "shop"})
    kept = await keep(api, session_id="call")
    assert ("ann", "shop") == (kept["user_id"], kept["namespace"])
    await keep(api, "Ann lives in Bern.", session_id="gone", user_id="ann")
    assert "memory.added" == (await api.journal("call"))[-1]["event"]["type"]
    assert NUTS not in str(await api.journal("call"))
    assert [NUTS] == await texts(api, "/v1/sessions/call/memories")
    await api.delete("/v1/sessions/call")
    assert ["Ann lives in Bern."] == await texts(api)
    assert (404, "unknown_memory") == (await api.get(f"/v1/memories/{kept['id']}")).problem
    await api.delete("/v1/users/ann")
    assert [] == await texts(api)


async def test_another_user_s_memory_does_not_stand_in_a_session(api: RestClient) -> None:
    """Erasing a user finds all that is the user's, and erasing the session leaves it."""
    await api.create("call", user_id="ann")
    await keep(api, session_id="call", user_id="bob")
    assert [] == await texts(api, "/v1/sessions/call/memories")
    await api.delete("/v1/sessions/call")
    assert [NUTS] == await texts(api, "/v1/users/bob/memories")
    await api.delete("/v1/users/bob")
    assert [] == await texts(api, "/v1/users/bob/memories")


async def test_memories_without_a_user_are_the_project_s(api: RestClient) -> None:
    """No user is named by them, and no user's erasure concerns them."""
    kept = await keep(api)
    await api.delete("/v1/users/ann")
    assert kept == (await api.get(f"/v1/memories/{kept['id']}")).json


# Why do you know that?


async def test_evidence_is_what_was_heard(api: RestClient, app: App) -> None:
    """The answer to "why do you know that?": the messages, as they were heard."""
    memory = await heard(api, app, "call", "I cannot eat walnuts.", "Bye.")
    shown = (await api.get(f"/v1/memories/{memory['id']}?evidence=true")).json
    line = {"session_id": "call", "turn_id": 1, "position": 1, "role": "user", "said_at": 1_000}
    assert [line | {"text": "I cannot eat walnuts."}] == shown["evidence"]
    assert [{"session_id": "call", "first": 1, "last": 1, "turn_ids": [1]}] == shown["from"]
    assert "memory.extracted" == (await api.journal("call"))[-1]["event"]["type"]


async def test_what_was_said_in_two_calls_lives_as_long_as_one_of_them(api: RestClient, app: App) -> None:
    """Both are its evidence; either call may be erased, and removing it removes it from both."""
    first = await heard(api, app, "monday", "I cannot eat walnuts.")
    second = await heard(api, app, "tuesday", "Walnuts! I cannot eat them.")
    assert [first["id"]] == second["supersedes"]
    assert ["monday", "tuesday"] == [one["session_id"] for one in second["from"]]
    assert [NUTS] == await texts(api)
    await api.delete("/v1/sessions/monday")
    assert [NUTS] == await texts(api)
    third = await heard(api, app, "wednesday", "No walnuts.")
    lines = (await api.get(f"/v1/memories/{third['id']}?evidence=true")).json["evidence"]
    assert ["Walnuts! I cannot eat them.", "No walnuts."] == [line["text"] for line in lines]
    await api.delete("/v1/sessions/wednesday")
    assert [second["id"]] == [one["id"] for one in (await api.get("/v1/users/ann/memories")).json["memories"]]
    fourth = await heard(api, app, "thursday", "Still no walnuts.")
    await api.delete(f"/v1/memories/{fourth['id']}")
    assert [] == await texts(api)


async def test_extraction_counts_at_its_position_only(api: RestClient, app: App) -> None:
    """When something else was journaled first, nothing is kept; a repeat is the same memory."""
    first = await heard(api, app, "call", "I cannot eat walnuts.")
    stream = await app.services.store.journal.find_session("default", "call")
    assert stream is not None
    draft = MemoryDraft(text=NUTS, source="extracted", evidence=(Evidence("call", 1, 1, (1,)),))
    mark = MemoriesExtracted(through=1, strategy="discrete", version="1")
    again = await app.services.long_term.add_extracted(stream, [draft], mark)
    assert again is not None
    assert [first["id"]] == [memory.id for memory in again]
    assert None is await app.services.long_term.add_extracted(stream, [draft], mark)


# What is out of date


async def test_what_is_out_of_date_is_shown_on_request(api: RestClient) -> None:
    """It keeps its text, names what took its place, and comes back when that goes."""
    old = await keep(api, "Ann lives in Bern.", user_id="ann")
    new = await keep(api, "Ann lives in Basel.", user_id="ann", supersedes=[old["id"]])
    assert ["Ann lives in Basel."] == await texts(api)
    assert ["Ann lives in Basel.", "Ann lives in Bern."] == await texts(api, "/v1/users/ann/memories?superseded=true")
    assert new["id"] == (await api.get(f"/v1/memories/{old['id']}")).json["superseded_by"]
    assert ["Ann lives in Bern."] == await texts(api, f"/v1/users/ann/memories?as_of={new['created_at'] - 1}")
    await api.delete(f"/v1/memories/{new['id']}")
    assert ["Ann lives in Bern."] == await texts(api)


async def test_only_memories_of_the_same_owner_become_out_of_date(api: RestClient) -> None:
    """Neither another user's, nor one that is not there, nor one that was removed."""
    old = await keep(api, user_id="bob")
    removed = await keep(api, user_id="ann")
    await api.delete(f"/v1/memories/{removed['id']}")
    for id in (old["id"], "nothing", removed["id"]):
        answered = await api.post("/v1/memories", {"text": "New.", "user_id": "ann", "supersedes": [id]})
        assert (400, "invalid_field") == answered.problem


# Changing and removing


async def test_a_memory_is_changed(api: RestClient) -> None:
    """Only what is given changes; null takes away; another user's list has it then."""
    kept = await keep(api, user_id="ann", topics=["food"], event_at="2026-05-03", metadata={"a": 1})
    path = f"/v1/memories/{kept['id']}"
    changed = (await api.patch(path, {"text": "Ann eats walnuts.", "event_at": None, "metadata": {"b": 2}})).json
    expected = kept | {"text": "Ann eats walnuts.", "event_at": None, "metadata": {"b": 2}}
    assert expected | {"updated_at": changed["updated_at"]} == changed
    assert kept["updated_at"] <= changed["updated_at"]
    assert changed == (await api.patch(path, {})).json
    moved = (await api.patch(path, {"user_id": "bob"})).json
    assert (kept["id"], kept["created_at"]) == (moved["id"], moved["created_at"])
    assert ([], ["Ann eats walnuts."]) == (await texts(api), await texts(api, "/v1/users/bob/memories"))
    await api.delete("/v1/users/bob")
    assert (404, "unknown_memory") == (await api.patch(path, {"pinned": True})).problem


async def test_a_removed_memory_is_gone_and_its_removal_stays(api: RestClient) -> None:
    """The journal says that it was there, without what it said."""
    await api.create("call", user_id="ann")
    kept = await keep(api, session_id="call", topics=["food"], metadata={"where": "kitchen"})
    assert 204 == (await api.delete(f"/v1/memories/{kept['id']}")).status
    for answered in (await api.get(f"/v1/memories/{kept['id']}"), await api.delete(f"/v1/memories/{kept['id']}")):
        assert (404, "unknown_memory") == answered.problem
    rows = [row["event"] for row in await api.journal("call")]
    assert {"type": "memory.removed", "memory_id": kept["id"], "reason": "deleted"} == rows[-1]
    assert [] == [word for word in ("walnuts", "food", "kitchen") if word in str(rows)]


async def test_lists_have_pages_and_filters(api: RestClient) -> None:
    """Each memory is on one page; a cursor belongs to its list."""
    given = [
        {"text": f"Number {n}.", "user_id": "ann", "topics": [f"t{n % 2}"], "kind": ("fact", "episode")[n % 2]}
        for n in range(7)
    ]
    await api.post("/v1/memories", {"memories": given})
    seen, cursor = list[str](), ""
    while cursor is not None:
        page = (await api.get(f"/v1/users/ann/memories?limit=3{cursor and '&cursor=' + cursor}")).json
        seen += [memory["text"] for memory in page["memories"]]
        cursor = page["next_cursor"]
    assert sorted(one["text"] for one in given) == sorted(seen)
    assert 3 == len(await texts(api, "/v1/users/ann/memories?topic=t1"))
    assert 4 == len(await texts(api, "/v1/users/ann/memories?kind=fact"))
    assert [] == await texts(api, "/v1/users/ann/memories?pinned=true")
    cursor = (await api.get("/v1/users/ann/memories?limit=3")).json["next_cursor"]
    for path in (f"ann/memories?kind=fact&cursor={cursor}", f"bob/memories?cursor={cursor}", "ann/memories?cursor=x"):
        assert (400, "invalid_cursor") == (await api.get(f"/v1/users/{path}")).problem


async def test_null_is_as_if_left_out(api: RestClient) -> None:
    """Of optional fields, and 1.0 is 1; in a patch it takes away what may be empty, and a search has no empty place."""
    unused = dict.fromkeys(("kind", "topics", "expires_at", "confidence", "pinned", "supersedes", "source", "metadata"))
    given = {"text": "Ann has a cat.", "user_id": "ann", "said_at": 1_000.0}
    (memory,) = (await api.post("/v1/memories", {"memories": [given | unused]})).json["memories"]
    assert ("fact", 1_000, 1.0) == (memory["kind"], memory["said_at"], memory["confidence"])
    search = {"query": "cat", "user_id": "ann"}
    found = (await api.post("/v1/memories/search", search)).json["memories"]
    assert ["Ann has a cat."] == [one["text"] for one in found]
    for place in ("user_id", "session_id", "namespace"):
        assert (400, "invalid_field") == (await api.post("/v1/memories/search", {"query": "cat", place: None})).problem
    path = f"/v1/memories/{memory['id']}"
    assert (400, "invalid_field") == (await api.patch(path, {"kind": None})).problem
    assert {"a": None} == (await api.patch(path, {"metadata": {"a": None}})).json["metadata"]
    assert (await api.patch(path, {"metadata": None})).json["metadata"] is None


# What cannot be kept

BAD: dict[str, tuple[JsonObject, str]] = {
    "no text": ({}, "text"),
    "an empty text": ({"text": " \n"}, "not a space"),
    "a number": ({"text": 1}, "a text"),
    "a text of a megabyte": ({"text": "a" * 900_000}, "1,000 bytes"),
    "a long text": ({"text": "ü" * 501}, "1,000 bytes"),
    "a kind": ({"text": "A.", "kind": "message"}, "fact, preference, episode, summary"),
    "a comma": ({"text": "A.", "topics": ["a,b"]}, "commas"),
    "a control": ({"text": "A.", "entities": ["a\u0007"]}, "control"),
    "topics as a text": ({"text": "A.", "topics": "food"}, "a list"),
    "many topics": ({"text": "A.", "topics": [str(n) for n in range(17)]}, "topics"),
    "a day": ({"text": "A.", "event_at": "2026-02-30"}, "no such day"),
    "a word for a day": ({"text": "A.", "event_at": "yesterday"}, "2026-05-03"),
    "a number for a day": ({"text": "A.", "event_at": 5}, "event_at"),
    "seconds": ({"text": "A.", "expires_at": 1_790_000_000}, "future"),
    "a confidence": ({"text": "A.", "confidence": 2}, "confidence"),
    "a control in an id": ({"text": "A.", "id": "a\n"}, "control"),
    "a long id": ({"text": "A.", "id": "a" * 129}, "id"),
    "a session id": ({"text": "A.", "session_id": "a b"}, "session"),
    "an unknown field": ({"text": "A.", "memory_type": "semantic"}, "no field `memory_type`"),
    "a long metadata": ({"text": "A.", "metadata": {"a": "x" * 20_000}}, "16 KiB"),
    "a large number": ({"text": "A.", "metadata": {"a": 2**60}}, "2^53"),
    "a source": ({"text": "A.", "source": "extracted"}, "api, tool"),
    "none": ({"memories": []}, "memories"),
    "a NUL in an id": ({"text": "A.", "id": "a\0b"}, "U+0000"),
    "an unknown one": ({"text": "A.", "supersedes": ["nosuch"]}, "no memory with this id: `supersedes[0]`"),
    "a bad one of two": ({"memories": [{"text": "A."}, {"text": "B.", "kind": 1}]}, "`memories[1].kind`"),
    "a bad text of two": ({"memories": [{"text": "A."}, {"text": " "}]}, "not a space: `memories[1].text`"),
    "a long text of two": ({"memories": [{"text": "A."}, {"text": "b" * 1_001}]}, "`memories[1]`"),
    "an unknown field of two": ({"memories": [{"text": "A."}, {"text": "B.", "colour": 1}]}, "memories[1]"),
    "an unknown one of two": (
        {"memories": [{"text": "A."}, {"text": "B.", "supersedes": ["nosuch"]}]},
        "`memories[1].supersedes[0]`",
    ),
}


@every_row("name", BAD)
async def test_what_cannot_be_kept(api: RestClient, name: str) -> None:
    """The answer says what would have been right, and nothing is kept."""
    body, what = BAD[name]
    answered = await api.post("/v1/memories", body)
    assert answered.problem[0] in (400, 413)
    assert what in answered.json["detail"]
    assert [] == (await api.get("/v1/users/ann/memories")).json["memories"]


async def test_a_nul_in_a_text_is_replaced(api: RestClient) -> None:
    """No store keeps U+0000 in texts; U+FFFD takes its place."""
    assert "a\ufffdb" == (await keep(api, "a\0b", user_id="ann"))["text"]


@every_row("query", ["kind=message", "limit=0", "topic=a,b", "as_of=now", "superseded=maybe", "x=1"])
async def test_lists_that_cannot_be(api: RestClient, query: str) -> None:
    """Every parameter is checked."""
    assert (400, "invalid_query") == (await api.get(f"/v1/users/ann/memories?{query}")).problem


async def test_nothing_is_out_of_date_by_itself(api: RestClient) -> None:
    """Neither at once nor by others, whichever way they are given; what was refused changes nothing."""
    first = await keep(api, "Lives in Bern.", user_id="ann", id="l1")
    await keep(api, "Lives in Basel.", user_id="ann", id="l2", supersedes=["l1"])
    await keep(api, "Lives in Chur.", user_id="ann", id="l3", supersedes=["l2"])
    for answered in (
        await api.patch("/v1/memories/l1", {"supersedes": ["l1"]}),
        await api.patch("/v1/memories/l1", {"supersedes": ["l2"]}),
        await api.patch("/v1/memories/l1", {"supersedes": ["l3"]}),
        await api.post("/v1/memories", {"text": "Lives in Rome.", "user_id": "ann", "id": "l1", "supersedes": ["l3"]}),
        await api.post("/v1/memories", {"text": "Lives in Rome.", "user_id": "ann", "id": "l2", "supersedes": ["l2"]}),
    ):
        assert (400, "invalid_field") == answered.problem
        assert "cannot be out of date by itself" in answered.json["detail"]
    assert ["Lives in Chur."] == await texts(api)
    assert first["text"] == (await api.get("/v1/memories/l1")).json["text"]
    assert ["l2", "l1"] == (await api.patch("/v1/memories/l3", {"supersedes": ["l2", "l1"]})).json["supersedes"]


async def test_what_is_said_again_is_not_out_of_date_by_itself(api: RestClient) -> None:
    """Nor in a batch, nor where it was removed in between."""
    tea = await keep(api, "Likes tea.", user_id="ann")
    await keep(api, "Likes chai.", user_id="ann", id="chai")
    given = [
        {"text": "Likes chai.", "id": "chai", "supersedes": [tea["id"]]},
        {"text": "Likes tea.", "supersedes": ["chai"]},
    ]
    answered = await api.post("/v1/memories", {"memories": [{"user_id": "ann", **one} for one in given]})
    assert (400, "invalid_field") == answered.problem
    await keep(api, "Likes chai.", user_id="ann", id="chai", supersedes=[tea["id"]])
    await api.delete(f"/v1/memories/{tea['id']}")
    again = await keep(api, "Likes tea.", user_id="ann", supersedes=["chai"])
    assert again["id"] != tea["id"]
    assert ["Likes tea."] == await texts(api)


async def test_no_memory_is_of_an_erased_session(serve: Serve) -> None:
    """It would outlive its session; one of a session that never was is the user's, or becomes it."""
    app = await serve()
    api = await client_with_key(app, "admin")
    await api.create("call", user_id="ann")
    await keep(api, user_id="ann", id="mine")
    assert 204 == (await api.delete("/v1/sessions/call")).status
    for answered in (
        await api.post("/v1/memories", {"text": "A.", "session_id": "call"}),
        await api.post("/v1/memories", {"text": "A.", "session_id": "call", "user_id": "ann"}),
        await api.patch("/v1/memories/mine", {"session_id": "call"}),
    ):
        assert (410, "session_erased") == answered.problem
    assert [NUTS] == await texts(api)
    assert "other" == (await keep(api, "Ann likes tea.", user_id="ann", session_id="other"))["session_id"]
    assert "other" == (await api.patch("/v1/memories/mine", {"session_id": "other"})).json["session_id"]


async def test_a_memory_that_comes_back_was_never_used(app: App, api: RestClient) -> None:
    """Under the id of one that was removed."""
    await keep(api, user_id="ann", id="mine")
    await api.post("/v1/memories/search", {"query": "walnuts"})
    await app.services.long_term.note_used()
    assert 1 == (await api.get("/v1/memories/mine")).json["access_count"]
    await api.delete("/v1/memories/mine")
    again = await keep(api, user_id="ann", id="mine")
    assert (None, 0) == (again["last_accessed"], again["access_count"])
    assert again == (await api.get("/v1/memories/mine")).json


# Who may


async def test_scopes_are_those_of_documents(serve: Serve) -> None:
    """A key that may not read gives memories, and sees only their ids; one that may read gives none."""
    app = await serve()
    writer, reader = await client_with_key(app, "ingest"), await client_with_key(app, "read")
    kept = await keep(writer, user_id="ann")
    assert {"id"} == kept.keys()
    assert (403, "forbidden") == (await writer.get(f"/v1/memories/{kept['id']}")).problem
    assert [NUTS] == await texts(reader)
    for answered in (
        await reader.post("/v1/memories", {"text": "A."}),
        await reader.patch(f"/v1/memories/{kept['id']}", {}),
        await reader.delete(f"/v1/memories/{kept['id']}"),
    ):
        assert (403, "forbidden") == answered.problem
    assert {"id"} == (await writer.patch(f"/v1/memories/{kept['id']}", {"pinned": True})).json.keys()
    body = {"query": "walnuts", "dry_run": True}
    for caller in (writer, reader):  # it would tell what is there, and it erases
        assert (403, "forbidden") == (await caller.post("/v1/users/ann/memories/forget", body)).problem
    assert 204 == (await writer.delete(f"/v1/memories/{kept['id']}")).status


async def test_other_projects_have_other_memories(serve: Serve) -> None:
    """An id of another project's is unknown, and may be taken there as well."""
    app = await serve()
    ours = await client_with_key(app, "ingest", "read")
    theirs = await client_with_key(app, "ingest", "read", project="other")
    await keep(ours, id="mine", user_id="ann")
    for answered in (
        await theirs.get("/v1/memories/mine"),
        await theirs.patch("/v1/memories/mine", {"pinned": True}),
        await theirs.delete("/v1/memories/mine"),
    ):
        assert (404, "unknown_memory") == answered.problem
    await keep(theirs, "Theirs.", id="mine", user_id="ann")
    assert ([NUTS], ["Theirs."]) == (await texts(ours), await texts(theirs))


async def test_what_is_redacted_is_redacted_in_memories(serve: Serve) -> None:
    """In texts, topics and metadata, as in documents."""
    app = await serve(redact=("cards", "email"))
    api = RestClient(app)
    kept = await keep(
        api, "Ann's card is 4111 1111 1111 1111.", topics=["ann@example.com"], metadata={"n": "4111111111111111"}
    )
    assert [] == [word for word in ("1111 1111 1111", "ann@example.com", "41111111111") if word in str(kept)]
    again = await api.patch(f"/v1/memories/{kept['id']}", {"text": "It is 4111 1111 1111 1111."})
    assert b"1111 1111 1111" not in again.body
