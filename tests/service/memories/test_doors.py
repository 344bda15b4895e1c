"""Memories through the client, the library and the command line."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import voicemem
from tests.support.callers.client_sessions import client_to, options
from tests.support.callers.rest import RestClient
from tests.support.events import final
from voicemem.app import App
from voicemem.cli import main
from voicemem.client import ClientError, RequestRefused, SyncClient
from voicemem.errors import Refused

NUTS = "Ann is allergic to walnuts."


async def test_the_client_has_all_of_memories(app: App) -> None:
    """Kept, read with evidence, changed, listed, forgotten, removed; errors as exceptions."""
    await RestClient(app).create("call", user_id="ann")
    async with client_to(app) as client:
        memories = client.memories
        kept = await memories.add(NUTS, user_id="ann", topics=["food"], id="a/1 ü")
        assert kept == await memories.read("a/1 ü")
        assert [] == (await memories.read("a/1 ü", evidence=True))["evidence"]
        changed = await memories.change("a/1 ü", topics=["health"], event_at=None)
        assert ["health"] == changed["topics"]
        await memories.add("Ann lives in Bern.", session_id="call")
        page = await memories.of_user("ann", limit=1)
        assert 1 == len(page["memories"])
        rest = await memories.of_user("ann", limit=1, cursor=page["next_cursor"])
        assert {NUTS, "Ann lives in Bern."} == {one["text"] for one in page["memories"] + rest["memories"]}
        assert 1 == len((await memories.of_session("call", superseded=True))["memories"])
        assert {"ids": ["a/1 ü"], "dry_run": True} == await memories.forget("ann", query="walnuts", dry_run=True)
        assert 2 == len((await memories.forget("ann", everything=True))["ids"])
        for refused in (memories.remove("a/1 ü"), memories.read("a/1 ü"), memories.add("")):
            with pytest.raises(RequestRefused):
                await refused
    without = voicemem.client.Client(f"ws://{app.ingest_address}")
    with pytest.raises(ClientError, match="REST"):
        _ = without.memories


async def test_the_synchronous_client_has_them_too(app: App) -> None:
    """With the same methods."""

    def use() -> list[str]:
        addresses = f"ws://{app.ingest_address}", f"http://{app.rest_address}"
        with SyncClient(*addresses, options=options()) as client:
            kept = client.memories.add(NUTS, user_id="ann")
            client.memories.change(kept["id"], pinned=True)
            assert client.memories.read(kept["id"])["pinned"]
            found = [one["text"] for one in client.memories.of_user("ann")["memories"]]
            assert [] == client.memories.forget("ann", max_age_days=0)["ids"]
            client.memories.remove(kept["id"])
            with pytest.raises(RequestRefused):
                client.memories.of_session("nobody")
            return found

    assert [NUTS] == await asyncio.to_thread(use)


async def test_the_library_has_all_of_memories(tmp_path: Path) -> None:
    """They are kept in its file, and found by its searches."""
    store = f"sqlite:{tmp_path}/db"
    async with voicemem.open(store) as library:
        call = await library.create(user_id="ann")
        await call.record(final(1, "No walnuts.", 1_000))
        memories = library.long_term
        kept = await memories.add(NUTS, session_id=call.session_id, topics=["food"])
        assert [kept.id] == [one.id for one in (await memories.of_session(call.session_id)).memories]
        assert [] == (await memories.read(kept.id, evidence=True)).lines
        assert (await memories.change(kept.id, pinned=True)).pinned
    async with voicemem.open(store) as library:
        memories = library.long_term
        found = await library.search("walnuts", user_id="ann", kinds=["fact"])
        assert [NUTS] == [one.text for one in found.memories]
        assert [kept.id] == [one.id for one in (await memories.of_user("ann", limit=1)).memories]
        assert [kept.id] == await memories.forget("ann", query="walnut", dry_run=True)
        assert [kept.id] == await memories.forget("ann", everything=True)
        for refused in (
            memories.remove(kept.id),
            memories.read(""),
            memories.add(NUTS, topics="food"),
            memories.of_session("nobody"),
            memories.of_user("ann", kind="message"),
            memories.forget("ann"),
        ):
            with pytest.raises(Refused):
                await refused


def test_the_synchronous_library_has_them_too() -> None:
    """With the same methods."""
    with voicemem.open_sync() as library:
        kept = library.long_term.add(NUTS, user_id="ann")
        assert [kept] == library.long_term.of_user("ann").memories


async def test_the_command_line_has_them(app: App) -> None:
    """A list has one line for each; what cannot be is one sentence."""

    async def voicemem_memories(*arguments: str) -> Result:
        url = f"http://{app.rest_address}"
        return await asyncio.to_thread(CliRunner().invoke, main, ["memories", *arguments, "--url", url])

    id = (await voicemem_memories("add", NUTS, "--user-id", "ann", "--topic", "food", "--pinned")).output.strip()
    found = await asyncio.to_thread(
        CliRunner().invoke, main, ["search", "walnuts", "--url", f"http://{app.rest_address}"]
    )
    assert (0, True) == (found.exit_code, found.output.endswith(f"  fact: {NUTS}\n")), found.output
    line = (await voicemem_memories("list", "ann")).output
    assert line.startswith(id)
    assert line.endswith(f"fact, pinned: {NUTS}\n")
    assert ["food"] == json.loads((await voicemem_memories("list", "ann", "--json")).output)["topics"]
    assert [] == json.loads((await voicemem_memories("show", id)).output)["evidence"]
    would = await voicemem_memories("forget", "ann", "--query", "walnuts", "--dry-run")
    assert "1 memory would be forgotten\n" == would.output
    assert f"{id} is removed\n" == (await voicemem_memories("remove", id)).output
    unknown = await voicemem_memories("remove", id)
    assert (1, True) == (unknown.exit_code, "There is no such memory. (unknown_memory)" in unknown.output)
    unclear = await voicemem_memories("forget", "ann")
    assert (2, True) == (unclear.exit_code, "--everything" in unclear.output and "--query" in unclear.output)
    assert "" == (await voicemem_memories("list", "ann")).output
