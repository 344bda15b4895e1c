"""Memories that a session token keeps, finds and removes: of its session, or also of its user."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from typing import Any

import pytest

from tests.support.callers.rest import RestClient, client_with_key
from tests.support.rows import every_row
from tests.support.services import Serve
from voicemem.app import App

PATH = "/v1/memories"
TEA, COFFEE, CHAI = "Ann likes tea.", "Bob likes coffee.", "Ann likes chai."


@pytest.fixture
async def admin(serve: Serve) -> tuple[App, RestClient]:
    """A service with keys: two sessions of ann's in a shop, one of bob's; ann and bob have a memory each."""
    app = await serve()
    admin = await client_with_key(app, "admin")
    for session_id, user_id in (("a1", "ann"), ("a2", "ann"), ("b1", "bob")):
        await admin.create(session_id, user_id=user_id, labels={"namespace": "shop"})
    for text, user_id in ((TEA, "ann"), (COFFEE, "bob")):
        await keep(admin, text, user_id=user_id, namespace="shop")
    return app, admin


async def keep(api: RestClient, text: str, **more: Any) -> str:
    answered = await api.post(PATH, {"text": text, **more})
    assert 200 == answered.status, answered.body
    (memory,) = answered.json["memories"]
    return str(memory["id"])


async def holder_of(app: App, admin: RestClient, session_id: str, **body: Any) -> RestClient:
    made = await admin.post(f"/v1/sessions/{session_id}/tokens", body)
    return RestClient(app, made.json["token"])


async def texts_of(api: RestClient, user_id: str) -> list[str]:
    listed = await api.get(f"/v1/users/{user_id}/memories")
    assert 200 == listed.status, listed.body
    return sorted(memory["text"] for memory in listed.json["memories"])


async def test_what_a_token_keeps_belongs_to_its_session(admin: tuple[App, RestClient]) -> None:
    """And with it to the session's user and namespace; it says nothing of what was there before."""
    app, api = admin
    holder = await holder_of(app, api, "a1")
    answered = await holder.post(PATH, {"text": CHAI, "source": "tool"})
    (memory,) = answered.json["memories"]
    assert ["id"] == list(memory)
    kept = (await api.get(f"{PATH}/{memory['id']}")).json
    assert ("ann", "shop", "a1", "tool") == (kept["user_id"], kept["namespace"], kept["session_id"], kept["source"])
    assert [CHAI, TEA] == await texts_of(api, "ann")


@every_row(
    "owner",
    [
        {"user_id": "bob"},
        {"session_id": "a2"},
        {"session_id": "b1"},
        {"user_id": "bob", "session_id": "a1"},
        {"id": "mine"},
        {"supersedes": ["x"]},
    ],
)
@every_row("made", [{}, {"memories": "user"}])
async def test_a_token_keeps_nothing_for_others(admin: tuple[App, RestClient], owner: Any, made: Any) -> None:
    """Neither of another session or user, nor in place of a memory that there is."""
    app, api = admin
    holder = await holder_of(app, api, "a1", **made)
    assert (403, "forbidden") == (await holder.post(PATH, {"text": CHAI, **owner})).problem
    assert ([TEA], [COFFEE]) == (await texts_of(api, "ann"), await texts_of(api, "bob"))


async def test_a_token_removes_what_its_session_has(admin: tuple[App, RestClient]) -> None:
    """Nothing else: what there is of the user from elsewhere is as unknown as what there is not."""
    app, api = admin
    holder, of_a2 = await holder_of(app, api, "a1"), await holder_of(app, api, "a2")
    chai = await keep(holder, CHAI)
    of_user = (await api.get("/v1/users/ann/memories")).json["memories"]
    for memory in of_user:
        assert (404, "unknown_memory") == (await of_a2.delete(f"{PATH}/{memory['id']}")).problem
    assert 204 == (await holder.delete(f"{PATH}/{chai}")).status
    assert [TEA] == await texts_of(api, "ann")
    assert (403, "forbidden") == (await holder.get("/v1/users/ann/memories")).problem


async def test_saying_what_is_known_does_not_help_to_remove_it(admin: tuple[App, RestClient]) -> None:
    """A memory with the same words as the user's goes with the user's, so a token of the session cannot remove it."""
    app, api = admin
    holder = await holder_of(app, api, "a1")
    same = await keep(holder, TEA)
    assert (404, "unknown_memory") == (await holder.delete(f"{PATH}/{same}")).problem
    assert TEA in await texts_of(api, "ann")


async def test_a_token_for_its_user_reaches_all_of_the_user(admin: tuple[App, RestClient]) -> None:
    """It lists and removes them, and nothing of others."""
    app, api = admin
    holder = await holder_of(app, api, "a1", memories="user")
    assert [TEA] == await texts_of(holder, "ann")
    assert (403, "forbidden") == (await holder.get("/v1/users/bob/memories")).problem
    assert (403, "forbidden") == (await holder.get("/v1/users/ann/memories?namespace=bank")).problem
    (tea,) = (await api.get("/v1/users/ann/memories")).json["memories"]
    (coffee,) = (await api.get("/v1/users/bob/memories")).json["memories"]
    assert (404, "unknown_memory") == (await holder.delete(f"{PATH}/{coffee['id']}")).problem
    assert (403, "forbidden") == (await holder.get(f"{PATH}/{tea['id']}")).problem
    assert 204 == (await holder.delete(f"{PATH}/{tea['id']}")).status
    assert ([], [COFFEE]) == (await texts_of(api, "ann"), await texts_of(api, "bob"))


@every_row(
    "query", ["?memories_max_tokens=500", "?memories_from=earlier", "?memories_kinds=fact", "?memories_from=all"]
)
async def test_a_context_shows_a_token_no_other_calls(admin: tuple[App, RestClient], query: str) -> None:
    """What its user said elsewhere is shown where the operator has configured it, or the token reaches the user."""
    app, api = admin
    context = f"/v1/sessions/a1/context{query}"
    holder = await holder_of(app, api, "a1")
    assert (403, "forbidden") == (await holder.get(context)).problem
    assert 200 == (await holder.get("/v1/sessions/a1/context")).status
    reaching = await holder_of(app, api, "a1", memories="user")
    assert (await api.get(context)).body == (await reaching.get(context)).body
