"""Memories that are kept longer than their call (`memories_ttl_seconds`), and those that are not."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.service.memories.test_memories import NUTS, heard, keep, texts
from tests.service.sessions.test_retention import marks
from tests.support.callers.rest import RestClient
from tests.support.services import Serve, node_on
from tests.support.waiting import eventually
from voicemem.app import App
from voicemem.memory.long_term.removal import MemoryKeeper
from voicemem.protocol.types import JsonObject
from voicemem.store.memory_filters import AnyOf, MemoryFilter
from voicemem.store.port import Store
from voicemem.store.streams import SessionEnding

AT_ONCE: JsonObject = {"ttl_seconds": 0, "reopen_window": 0}
LONG_S = 10**7
OF_ANN = MemoryFilter(project="default", user_ids=AnyOf(("ann",)))


async def expire(api: RestClient, session_id: str = "s", **config: Any) -> None:
    """End a session, and wait until its time is over."""
    assert 200 == (await api.patch(f"/v1/sessions/{session_id}", {**AT_ONCE, **config})).status
    await api.end(session_id)

    async def status() -> int:
        return (await api.get(f"/v1/sessions/{session_id}")).status

    await eventually(404, status, 20)


async def test_memories_go_on_with_their_user(store: Store) -> None:
    """On each engine: the call is gone, what was made of it is found, and says that its lines are gone."""
    async with node_on(store) as app:
        api = RestClient(app)
        memory = await heard(api, app, "s", "Walnuts make my throat swell.")
        await expire(api, memories_ttl_seconds=LONG_S)
        kept = (await api.get(f"/v1/memories/{memory['id']}?evidence=true")).json
        source = {"session_id": "s", "first": 1, "last": 1, "turn_ids": [1], "evidence": "expired"}
        assert [source] == kept["from"]
        assert {**memory, "from": kept["from"], "expires_at": kept["expires_at"]}.items() <= kept.items()
        assert kept["created_at"] < kept["expires_at"] <= kept["created_at"] + LONG_S * 1000 + 60_000
        assert [NUTS] == await texts(api)
        found = await app.services.long_term.find_by_words("default", OF_ANN, "walnuts", 10)
        assert [memory["id"]] == [one.id for one, _ in found]
        changed = await api.patch(f"/v1/memories/{memory['id']}", {"text": "Ann loves walnuts."})
        assert (200, "Ann loves walnuts.") == (changed.status, changed.json["text"])
        assert 204 == (await api.delete("/v1/users/ann")).status
        assert ([], 404) == (await texts(api), (await api.get(f"/v1/memories/{memory['id']}")).status)


async def test_they_end_with_their_own_time(api: RestClient, app: App) -> None:
    """The earlier of that and their call's `memories_ttl_seconds`."""
    await api.create("s", user_id="ann")
    soon = app.services.runtime.clock() + 3_600_000
    first = await keep(api, session_id="s", user_id="ann", expires_at=soon)
    last = await keep(api, "Ann likes tea.", session_id="s", user_id="ann", expires_at=4_000_000_000_000)
    await expire(api, memories_ttl_seconds=LONG_S)
    ends = [(await api.get(f"/v1/memories/{one['id']}")).json["expires_at"] for one in (first, last)]
    assert soon == ends[0]
    assert soon < ends[1] < soon + LONG_S * 1000


@pytest.mark.parametrize("setting", [{}, {"memories_ttl_seconds": None}, {"memories_ttl_seconds": 0}])
async def test_without_the_setting_they_go_with_the_call(api: RestClient, app: App, setting: JsonObject) -> None:
    """So they do when their time is over no later than that of the call."""
    memory = await heard(api, app, "s", "Walnuts make my throat swell.")
    await expire(api, **setting)
    assert 404 == (await api.get(f"/v1/memories/{memory['id']}")).status
    assert await app.services.store.journal.find_user("default", "ann") is None


async def test_a_request_erases_them_with_the_call(api: RestClient, app: App) -> None:
    """Whatever the setting says."""
    memory = await heard(api, app, "s", "Walnuts make my throat swell.")
    await api.patch("/v1/sessions/s", {"ttl_seconds": LONG_S, "memories_ttl_seconds": 2 * LONG_S})
    await api.end("s")
    assert 204 == (await api.delete("/v1/sessions/s")).status
    assert 404 == (await api.get(f"/v1/memories/{memory['id']}")).status


async def test_those_of_nobody_go_with_the_call(api: RestClient) -> None:
    """No one could ask for their erasure; the setting says so where there is no user."""
    made = await api.create("s", memories_ttl_seconds=LONG_S)
    assert ["`memories_ttl_seconds` has no effect until the session has a `user_id`."] == made["warnings"]
    memory = await keep(api, session_id="s")
    await expire(api)
    assert 404 == (await api.get(f"/v1/memories/{memory['id']}")).status


async def test_nothing_of_them_stays_in_a_file_once_the_user_is_erased(serve: Serve, tmp_path: Path) -> None:
    """Neither of their texts nor of their words, wherever they stood before."""
    app = await serve(store=f"sqlite:{tmp_path}/db")
    api = RestClient(app)
    await api.create("s", user_id="ann", memories_ttl_seconds=LONG_S)
    await keep(api, "Flew to zanzibar.", session_id="s", user_id="ann", topics=["zanzibar"])
    await keep(api, "Liked zanzibar.", session_id="s")
    await expire(api)
    assert 1 <= marks(tmp_path, b"zanzibar")
    assert ["Flew to zanzibar.", "Liked zanzibar."] == sorted(await texts(api))
    assert 204 == (await api.delete("/v1/users/ann")).status

    async def left() -> int:
        return await asyncio.to_thread(marks, tmp_path, b"zanzibar")

    await eventually(0, left, 20)


async def test_many_are_kept(app: App, api: RestClient) -> None:
    """In several steps, and those of other users with theirs."""
    await api.create("s", user_id="ann", memories_ttl_seconds=LONG_S)
    given = [{"text": f"Fact {number}.", "session_id": "s", "user_id": f"u{number % 2}"} for number in range(50)]
    await api.post("/v1/memories", {"memories": given})
    await expire(api)
    for user in ("u0", "u1"):
        assert 25 == len(await texts(api, f"/v1/users/{user}/memories?limit=100"))


async def test_two_nodes_keep_each_memory_once(app: App, api: RestClient) -> None:
    """Whichever of them is first; what has changed meanwhile is kept as it is then."""
    memory = await heard(api, app, "s", "Walnuts make my throat swell.")
    stream = await app.services.store.journal.get_session("default", "s")
    app.services.retention.keep_memories = lambda key, now_ms: never()
    await api.patch("/v1/sessions/s", {**AT_ONCE, "memories_ttl_seconds": LONG_S})
    now = app.services.runtime.clock() + 1_000
    keepers = [MemoryKeeper(app.services.store) for _ in range(2)]
    assert 0 == sum(await asyncio.gather(*(one.keep(stream.key, now) for one in keepers)))  # it has not ended
    assert memory == (await api.get(f"/v1/memories/{memory['id']}")).json
    await app.services.store.journal.close_session(stream.key, SessionEnding(now - 1_000, "over"), "n", now - 1_000)
    assert 1 == sum(await asyncio.gather(*(one.keep(stream.key, now) for one in keepers)))
    assert [NUTS] == await texts(api)


async def never() -> int:
    await asyncio.Event().wait()
    return 0
