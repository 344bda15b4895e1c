"""Messages and memories are found together, in pages, and no one else's under any query."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.callers.rest import RestClient, client_with_key
from tests.support.events import final
from tests.support.profiles import examples
from tests.support.rows import every_row
from tests.support.services import Serve
from voicemem.app import App
from voicemem.protocol.types import JsonObject

PATH = "/v1/memories/search"
SAID = "I cannot eat walnuts."
NUTS = "Ann is allergic to walnuts."


async def search(api: RestClient, query: str, **wanted: Any) -> JsonObject:
    answered = await api.post(PATH, {"query": query, **wanted})
    assert 200 == answered.status, answered.body
    return dict(answered.json)


async def found(api: RestClient, query: str, **wanted: Any) -> list[str]:
    return [memory["text"] for memory in (await search(api, query, **wanted))["memories"]]


async def keep(api: RestClient, *given: JsonObject) -> list[str]:
    answered = await api.post("/v1/memories", {"memories": [{"text": NUTS, "user_id": "ann"} | one for one in given]})
    assert 200 == answered.status, answered.body
    return [memory["id"] for memory in answered.json["memories"]]


async def call_of_ann(api: RestClient, *said: str, ts: int = 1_000) -> None:
    await api.create("call", user_id="ann")
    await api.send(*(final(turn, text, ts * turn) for turn, text in enumerate(said, 1)), session_id="call")


async def test_messages_and_memories_are_found_together(api: RestClient) -> None:
    """Each as what it is; a memory first where both fit equally well."""
    await call_of_ann(api, SAID, "And I like tea.")
    (id,) = await keep(api, {"topics": ["food"], "session_id": "call", "metadata": {"a": 1}})
    memory, message = (await search(api, "walnuts", user_id="ann", limit=2))["memories"]
    assert (NUTS, SAID) == (memory["text"], message["text"])
    assert (id, "fact", 1.0, ["words"], ["food"], {"a": 1}, "call") == tuple(
        memory[name] for name in ("id", "kind", "score", "by", "topics", "metadata", "session_id")
    )
    assert "role" not in memory
    assert ("message", "user", 1.0) == (message["kind"], message["role"], message["score"])
    assert "topics" not in message


async def test_kinds_choose(api: RestClient) -> None:
    """Messages alone, or memories of some kinds alone."""
    await call_of_ann(api, SAID)
    await keep(api, {}, {"text": "She prefers walnuts.", "kind": "preference"})
    assert [SAID] == await found(api, "walnuts", kinds=["message"])
    assert ["She prefers walnuts."] == await found(api, "walnuts", kinds=["preference", "episode"])
    assert {SAID, NUTS} == set(await found(api, "walnuts", kinds=["message", "fact"]))


async def test_topics_and_entities_are_those_of_memories(api: RestClient) -> None:
    """Messages have none, so none is found with them; a topic is also a word to be found by."""
    await call_of_ann(api, SAID)
    await keep(api, {"topics": ["food"]}, {"text": "Walnuts grow in Grenoble.", "entities": ["Grenoble"]})
    assert [NUTS] == await found(api, "walnuts", topics=["food", "x"])
    assert ["Walnuts grow in Grenoble."] == await found(api, "walnuts", entities=["Grenoble"])
    assert [] == await found(api, "walnuts", topics=["x"])
    assert [NUTS] == await found(api, "food", user_id="ann")


async def test_times_bound_both(api: RestClient) -> None:
    """When it was said; what was known at a time."""
    await call_of_ann(api, SAID, "No walnuts!", ts=1_000_000)
    await keep(api, {"said_at": 1_500_000}, {"text": "Walnuts were fine.", "said_at": 500_000})
    assert {NUTS, SAID} == set(await found(api, "walnuts", since=1_000_000, until=2_000_000))
    assert {SAID} == set(await found(api, "walnuts", as_of=1_000_000))


async def test_what_is_out_of_date_expired_or_removed_is_not_found(api: RestClient) -> None:
    """Unless what is out of date is asked for; what is removed never is."""
    old, other = await keep(api, {"text": "Ann lives in Bern."}, {"text": "Ann lives in Basel or Bern."})
    (new,) = await keep(api, {"text": "Ann lives in Basel.", "supersedes": [old]})
    await api.delete(f"/v1/memories/{other}")
    assert ["Ann lives in Basel."] == await found(api, "where does Ann live? lives")
    both = (await search(api, "lives", superseded=True))["memories"]
    assert {old: new, new: None} == {one["id"]: one["superseded_by"] for one in both}
    shown = (await api.get(f"/v1/memories/{new}")).json["created_at"]
    assert [] == await found(api, "lives", as_of=shown - 60_000)


async def test_pages_show_each_once(api: RestClient) -> None:
    """In the order of one large page; the cursor belongs to its search."""
    await call_of_ann(api, *(f"Tea number {n} " + "with milk " * n for n in range(12)))
    await keep(api, *({"text": f"Ann drank tea {n} " + "and rum " * n} for n in range(9)))
    whole = [one["id"] for one in (await search(api, "tea", limit=100))["memories"]]
    assert 21 == len(whole)
    seen, cursor = list[str](), None
    while True:
        page = await search(api, "tea", limit=4, **({} if cursor is None else {"cursor": cursor}))
        seen += [one["id"] for one in page["memories"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert whole == seen
    cursor = (await search(api, "tea", limit=4))["next_cursor"]
    for other in (
        {"query": "rum"},
        {"kinds": ["message"]},
        {"superseded": True},
        {"topics": ["a"]},
        {"user_id": "bob"},
    ):
        answered = await api.post(PATH, {"query": "tea", "cursor": cursor} | other)
        assert (400, "invalid_cursor") == answered.problem
        assert "of a page of this same search" in answered.json["detail"]


async def test_finding_is_using(app: App, api: RestClient) -> None:
    """A memory that was found was used, at most once in a minute."""
    (id,) = await keep(api, {})
    for _ in range(3):
        await found(api, "walnuts")
        await app.services.long_term.note_used()
    shown = (await api.get(f"/v1/memories/{id}")).json
    assert 1 == shown["access_count"]
    assert shown["last_accessed"] >= shown["created_at"]


BAD: list[tuple[JsonObject, str]] = [
    ({"kinds": ["note"]}, "message, fact, preference, episode, summary"),
    ({"kinds": "fact"}, "a list"),
    ({"kinds": []}, "kinds"),
    ({"topics": ["a,b"]}, "commas"),
    ({"topics": [1]}, "topics"),
    ({"entities": "Grenoble"}, "a list"),
    ({"as_of": "2026-05-03"}, "as_of"),
    ({"since": 1.5}, "since"),
    ({"superseded": "yes"}, "true or false"),
    ({"user_id": 5}, "user_id"),
    ({"namespace": ["a"]}, "namespace"),
    ({"session_id": "a b"}, "session"),
    ({"limit": 101}, "limit"),
    ({"mode": "vectors"}, "embedder"),
    ({"mode": "vectors", "kinds": ["fact"]}, "embedder"),
    ({"topic": "food"}, "no field `topic`"),
]


@every_row(("body", "what"), BAD, ids=[str(body) for body, _ in BAD])
async def test_filters_of_wrong_types(api: RestClient, body: JsonObject, what: str) -> None:
    """No filter is dropped: what cannot be one is refused, with what would have been right."""
    answered = await api.post(PATH, {"query": "walnuts"} | body)
    assert (400, "invalid_field") == answered.problem
    assert what in answered.json["detail"]


# Tenants

USERS, SPACES, SESSIONS = ("ann", "bob", None), ("shop", "bank", None), ("s1", "s2", None)
WORDS = ("walnuts", "tea", "a* OR walnuts", 'NEAR("tea")', "核桃", "u0", "p0 walnuts")


@pytest.fixture
async def tenants(serve: Serve) -> dict[str, RestClient]:
    """Two projects with the same users, namespaces and ids, whose texts say whose they are."""
    app = await serve()
    clients = {name: await client_with_key(app, "read", "ingest", project=name) for name in ("one", "two")}
    for project, client in clients.items():
        for user in USERS:
            for space in SPACES:
                session_id = f"{user}-{space}"
                config: JsonObject = {"user_id": user} | ({} if space is None else {"labels": {"namespace": space}})
                await client.create(session_id, **{k: v for k, v in config.items() if v is not None})
                whose = f"[{project} {user} {space} {session_id}]"
                await client.send(final(1, f"walnuts tea 核桃 {whose}", 1_000), session_id=session_id)
                owner = {"user_id": user, "namespace": space, "session_id": session_id}
                texts = [f"walnuts tea 核桃 {whose} {where}" for where in ("in it", "about it")]
                drafts: list[JsonObject] = [{"text": texts[0], **owner}, {"text": texts[1], **owner}]
                answered = await client.post("/v1/memories", {"memories": drafts})
                assert 200 == answered.status, answered.body
    return clients


@examples(1.0)
@given(
    project=st.sampled_from(["one", "two"]),
    user=st.sampled_from([*USERS, "[one ann"]),
    space=st.sampled_from(SPACES),
    session=st.sampled_from(["ann-shop", "bob-None", "None-bank", None]),
    query=st.sampled_from(WORDS) | st.text(min_size=1, max_size=20),
    kinds=st.sampled_from([None, ["message"], ["fact"], ["fact", "message"]]),
    superseded=st.booleans(),
)
async def test_tenants_never_see_each_other(
    tenants: dict[str, RestClient],
    project: str,
    user: str | None,
    space: str | None,
    session: str | None,
    query: str,
    kinds: list[str] | None,
    superseded: bool,
) -> None:
    """Whatever is asked for, and however: all that is found is of the project, the user, the namespace, the session."""
    scope = {"user_id": user, "namespace": space, "session_id": session, "kinds": kinds}
    given = {name: value for name, value in scope.items() if value is not None}
    for one in (await search(tenants[project], query, superseded=superseded, limit=100, **given))["memories"]:
        owner, its_user, its_space, its_session = one["text"].split("[")[1].split("]")[0].split(" ")
        assert project == owner
        assert user in (None, its_user)
        assert space in (None, its_space)
        assert session in (None, its_session)


async def test_tenants_find_their_own(tenants: dict[str, RestClient]) -> None:
    """The test before does not hold because nothing is found: of each session a message and two memories."""
    for client in tenants.values():
        assert 27 == len(await found(client, "walnuts", limit=100))
        assert 9 == len(await found(client, "walnuts", limit=100, user_id="ann"))
        assert 3 == len(await found(client, "walnuts", limit=100, session_id="ann-shop"))
