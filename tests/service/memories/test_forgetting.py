"""Memories that are forgotten: by name, by a policy, and when their time is over."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.callers.rest import RestClient
from tests.support.rows import every_row
from tests.support.services import node_on
from tests.support.waiting import eventually
from voicemem.memory.long_term.removal import DAY_MS, ForgetPolicy, forget, remove_expired
from voicemem.protocol.types import JsonObject
from voicemem.store.memory_filters import MemoryFilter
from voicemem.store.sqlite.store import InMemoryStore

NOW = 1_790_000_000_000
PATH = "/v1/users/ann/memories"


async def keep(api: RestClient, *given: str | JsonObject) -> list[str]:
    """The ids of Ann's memories with these texts."""
    drafts = [{"text": one} if isinstance(one, str) else one for one in given]
    answered = await api.post("/v1/memories", {"memories": [{"user_id": "ann"} | one for one in drafts]})
    assert 200 == answered.status, answered.body
    return [memory["id"] for memory in answered.json["memories"]]


async def texts(api: RestClient, query: str = "") -> set[str]:
    return {memory["text"] for memory in (await api.get(f"{PATH}{query}")).json["memories"]}


async def forgotten(api: RestClient, **body: Any) -> JsonObject:
    answered = await api.post(f"{PATH}/forget", body)
    assert 200 == answered.status, answered.body
    return dict(answered.json)


async def test_memories_with_all_words_are_forgotten(api: RestClient) -> None:
    """In any of their forms, those out of date too; no one else's."""
    old, other = await keep(api, "Her knee hurts.", "Her elbow hurts.")
    (newer,) = await keep(api, {"text": "Her knees hurt no more.", "supersedes": [old]})
    await api.post("/v1/memories", {"text": "His knee hurts.", "user_id": "bob"})
    looked = await forgotten(api, query="knee hurts", dry_run=True)
    assert ({newer, old}, True) == (set(looked["ids"]), looked["dry_run"])
    assert 2 == len(await texts(api))
    assert {newer, old} == set((await forgotten(api, query="the knee hurts"))["ids"])
    assert {"Her elbow hurts."} == await texts(api, "?superseded=true")
    assert 200 == (await api.get(f"/v1/memories/{other}")).status
    assert ["His knee hurts."] == [m["text"] for m in (await api.get("/v1/users/bob/memories")).json["memories"]]


async def test_conditions_hold_together(api: RestClient) -> None:
    """A kind, a topic, a namespace."""
    await keep(
        api,
        {"text": "One.", "kind": "episode", "topics": ["food"]},
        {"text": "Two.", "kind": "episode"},
        {"text": "Three.", "topics": ["food"]},
        {"text": "Four.", "kind": "episode", "topics": ["food"], "namespace": "shop"},
    )
    assert 1 == len((await forgotten(api, kinds=["episode"], topics=["food"], namespace="shop"))["ids"])
    assert {"One.", "Two.", "Three."} == await texts(api)
    assert 1 == len((await forgotten(api, kinds=["episode"], topics=["food"]))["ids"])
    assert {"Two.", "Three."} == await texts(api)
    assert 0 == len((await forgotten(api, before=1_000))["ids"])


@pytest.fixture
def acts() -> Iterator[list[str]]:
    """What the audit logs."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("voicemem.audit").addHandler(handler)
    yield lines
    logging.getLogger("voicemem.audit").removeHandler(handler)


async def test_everything_is_forgotten(api: RestClient, acts: list[str]) -> None:
    """Of all sessions, pinned ones too, with an audit that says nothing of them."""
    await api.create("call", user_id="ann")
    await keep(api, {"text": "One.", "pinned": True}, {"text": "Two.", "session_id": "call"}, *map(str, range(95)))
    assert 97 == len((await forgotten(api, everything=True))["ids"])
    assert set() == await texts(api, "?superseded=true")
    (act,) = [act for act in acts if "memories_forgotten" in act]
    assert '"memories":97' in act
    assert "ann" not in act


BAD: list[tuple[JsonObject, str]] = [
    ({}, "everything"),
    ({"namespace": "a", "dry_run": True}, "everything"),
    ({"everything": False}, "everything"),
    ({"everything": True, "kinds": ["fact"]}, "kinds"),
    ({"query": None}, "query"),
    ({"query": "?!"}, "words"),
    ({"query": " ".join(f"w{n}" for n in range(11))}, "words"),
    ({"kinds": ["message"]}, "fact"),
    ({"kinds": []}, "kinds"),
    ({"before": "2026-05-03"}, "before"),
    ({"max_age_days": -1}, "max_age_days"),
    ({"budget": 1.5}, "budget"),
    ({"older_than": 5}, "older_than"),
]


@every_row(("body", "what"), BAD, ids=[str(body) for body, _ in BAD])
async def test_what_to_forget_must_be_clear(api: RestClient, body: JsonObject, what: str) -> None:
    """Forgetting cannot be undone, so nothing is guessed."""
    await keep(api, "One.")
    answered = await api.post(f"{PATH}/forget", body)
    assert 400 == answered.problem[0]
    assert what in answered.json["detail"]
    assert {"One."} == await texts(api)


class Clock:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> int:
        return self.now


async def test_policies_leave_what_is_pinned_or_used() -> None:
    """By age, by the last use, by a budget; `dry_run` changes nothing."""
    clock = Clock()
    async with node_on(InMemoryStore(), clock) as app:
        api, long_term = RestClient(app), app.services.long_term
        old, pinned, used = await keep(api, "Old.", {"text": "Pinned.", "pinned": True}, "Used.")
        clock.now += 40 * DAY_MS
        (new,) = await keep(api, "New.")
        long_term.count_use("default", [used])
        await long_term.note_used()
        shown = (await api.get(f"/v1/memories/{used}")).json
        assert (1, clock.now) == (shown["access_count"], shown["last_accessed"])

        async def chosen(**limits: Any) -> set[str]:
            return set(await forget(long_term, "default", ForgetPolicy(among=ALL, **limits), dry_run=True))

        assert {old, used} == await chosen(max_age_days=30)
        assert {old} == await chosen(max_inactive_days=30)
        assert {old} == await chosen(max_age_days=30, max_inactive_days=30)
        assert {old, used} == await chosen(max_age_days=3, max_inactive_days=30, hard_age_multiplier=12)
        assert {old} == await chosen(max_age_days=30, keep_ids=frozenset([used]))
        assert {old, used} == await chosen(budget=1)
        assert {old, new, used} == await chosen(budget=0)
        assert set() == await chosen(budget=3)
        assert {old} == set((await forgotten(api, max_inactive_days=30))["ids"])
        assert {"Pinned.", "Used.", "New."} == await texts(api)
        assert 200 == (await api.get(f"/v1/memories/{pinned}")).status


ALL = MemoryFilter(project="default")


async def test_memories_end_when_their_time_is_over() -> None:
    """Nothing finds them from then on, and their texts leave the store; the setting says how long kinds are kept."""
    clock = Clock()
    async with node_on(InMemoryStore(), clock, memories_ttl=("episode=90d",)) as app:
        api, long_term = RestClient(app), app.services.long_term
        given = await keep(
            api,
            {"text": "An hour.", "expires_at": NOW + 3_600_000},
            {"text": "Spoke of tea.", "kind": "episode"},
            {"text": "Spoke of rum.", "kind": "episode", "pinned": True},
            {"text": "Spoke of milk.", "kind": "episode", "expires_at": NOW + 100 * DAY_MS},
            "For good.",
        )
        assert NOW + 90 * DAY_MS == (await api.get(f"/v1/memories/{given[1]}")).json["expires_at"]
        clock.now = NOW + 3_600_000
        of_one = f"/v1/memories/{given[0]}"
        assert (404, "unknown_memory") == (await api.get(of_one)).problem
        assert (404, "unknown_memory") == (await api.delete(of_one)).problem
        assert 404 == (await api.get(f"/v1/long-term-memory/{given[0]}")).status
        assert "An hour." not in await texts(api)
        assert given[0] == (await keep(api, "An hour."))[0]  # said again: it counts again
        assert "An hour." in await texts(api)
        clock.now = NOW + 95 * DAY_MS
        await remove_expired(long_term)

        async def stored() -> set[str]:
            found = await app.services.store.memories.find_memories("default", given)
            return {row.text for row in found if row.removed_ms is None}

        await eventually({"An hour.", "Spoke of rum.", "Spoke of milk.", "For good."}, stored)
        assert await stored() == await texts(api)


async def test_what_was_another_user_s_before_is_erased_with_that_user(api: RestClient) -> None:
    """A session may have got another user since a memory of it was kept."""
    await api.create("call", user_id="ann")
    await keep(api, {"text": "One.", "session_id": "call"})
    await api.patch("/v1/sessions/call", {"user_id": "bob"})
    assert {"One."} == await texts(api)
    await api.delete("/v1/users/ann")
    assert set() == await texts(api)
    assert 200 == (await api.get("/v1/sessions/call")).status
