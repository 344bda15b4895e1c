"""The life of working and long-term memory on every store."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio

import pytest
from agent_memory_client import MemoryAPIClient, MemoryClientConfig
from agent_memory_client.exceptions import MemoryNotFoundError
from agent_memory_client.filters import MemoryType, UserId

from tests.service.compat.agent_memory_server.test_long_term import record
from tests.service.compat.agent_memory_server.test_working_memory import HELLO, memory, texts
from tests.support.services import node_on
from tests.support.stores.engines import OpenHandle
from voicemem.app import App
from voicemem.store.port import Store

pytestmark = pytest.mark.filterwarnings("ignore:get_working_memory is deprecated:DeprecationWarning")


def client_of(app: App) -> MemoryAPIClient:
    return MemoryAPIClient(MemoryClientConfig(base_url=f"http://{app.rest_address}"))


async def test_working_memory_on_every_store(store: Store) -> None:
    """Found by what is said of it, replaced, deleted, and begun again."""
    async with node_on(store) as app, client_of(app) as client:
        await client.put_working_memory("s", memory(*HELLO, user_id="ann", namespace="a", context="Before."))
        await client.put_working_memory("s", memory(*HELLO[:1], user_id="bob"))
        await asyncio.gather(
            *(
                client.append_messages_to_working_memory("s", [{"role": "user", "content": f"{n}"}], user_id="ann")
                for n in range(5)
            )
        )
        assert ["Hello.", "Hi, Ann.", *"01234"] == sorted(await texts(client, user_id="ann"), key=order)
        await client.put_working_memory("s", memory(*HELLO[1:], user_id="ann", namespace="a", data={"a": 1}))
        read = await client.get_working_memory("s", namespace="a")
        assert (HELLO[1:], None, {"a": 1}) == (read.messages, read.context, read.data)
        assert ["Hello."] == await texts(client, user_id="bob")
        for _ in range(3):
            await client.delete_working_memory("s", user_id="ann")
            with pytest.raises(MemoryNotFoundError):
                await client.get_working_memory("s", user_id="ann")
            await client.put_working_memory("s", memory(*HELLO, user_id="ann"))
        assert 2 == (await client.list_sessions()).total


def order(text: str) -> int:
    return ["Hello.", "Hi, Ann.", *"01234"].index(text)


async def test_long_term_memory_on_every_store(store: Store) -> None:
    """Kept, found, changed, forgotten."""
    async with node_on(store) as app, client_of(app) as client:
        facts = [record(f"Fact number {n}.", f"f{n}", user_id=f"u{n % 2}", topics=["t"]) for n in range(30)]
        await client.create_long_term_memory([*facts, record("Hello there.", "m", memory_type="message")])
        found = await client.search_long_term_memory("number 7", user_id=UserId(eq="u1"), limit=100)
        assert ("f7", 15) == (found.memories[0].id, len(found.memories))
        assert (
            30 == (await client.search_long_term_memory("", memory_type=MemoryType(not_eq="message"), limit=50)).total
        )
        await client.edit_long_term_memory("f7", {"user_id": "u2", "text": "Other."})
        assert ["f7"] == [one.id for one in (await client.search_long_term_memory("x", user_id={"eq": "u2"})).memories]
        await client.delete_long_term_memories([f"f{n}" for n in range(29)])
        assert {"m", "f29"} == {one.id async for one in client.search_all_long_term_memories("")}


async def test_writers_on_two_nodes_lose_nothing(store: Store, open_handle: OpenHandle) -> None:
    """Each appends to what it has read, at once; twice over, so that there is something to be lost."""
    other = await open_handle()
    async with node_on(store) as first, node_on(other) as second, client_of(first) as one, client_of(second) as two:
        for round in range(2):
            await asyncio.gather(
                *(
                    client.append_messages_to_working_memory("s", [{"role": "user", "content": f"{round}{name}{n}"}])
                    for client, name in ((one, "a"), (two, "b"))
                    for n in range(4)
                )
            )
        expected = {f"{round}{name}{n}" for round in range(2) for name in "ab" for n in range(4)}
        found = await texts(two)
        assert (sorted(expected), found) == (sorted(found), await texts(one))
