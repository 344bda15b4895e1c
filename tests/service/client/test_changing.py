"""What a client's session changes of a memory: messages, what is forgotten, working memory, data."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.support.callers.client_sessions import client_for, client_to, options
from voicemem.app import App
from voicemem.client import ClientError, RequestRefused, SyncClient, Unreachable
from voicemem.config.service import Address

NOBODY = Address("127.0.0.1", 1)


async def test_messages_are_added_and_forgotten(app: App) -> None:
    """Messages that did not come as events stand in the history, and leave every context when they are forgotten."""
    async with client_to(app) as client:
        session = await client.open("s")
        added = await session.add(
            {"role": "user", "content": "My name is Ann.", "turn_id": 0},
            {"role": "assistant", "content": "Hello Ann.", "turn_id": 0},
        )
        await session.add({"role": "user", "content": "Is it raining?"})
        forgotten = await session.forget(through_turn=0)
        context = (await session.context())["messages"]
        history = (await session.history())["contents"]
    assert added == {"position": 2, "turn_id": 0}
    assert (forgotten["forgotten"], forgotten["remembered"]) == (2, 1)
    assert context == [{"role": "user", "content": "Is it raining?"}]
    assert len(history) == 3


@pytest.mark.parametrize("given", [{}, {"keep_last": 1, "everything": True}])
async def test_it_must_be_said_what_to_forget(app: App, given: dict[str, Any]) -> None:
    """Forgetting nothing in particular would forget everything, so it is no default."""
    async with client_to(app) as client:
        session = await client.open("s")
        with pytest.raises(ValueError, match="through_turn"):
            await session.forget(**given)


async def test_working_memory(app: App) -> None:
    """The document is read, merged, replaced and cleared; a version that has passed is refused."""
    async with client_to(app) as client:
        session = await client.open("s", config={"working_memory": {"schema": {"type": "object"}, "tools": True}})
        memory = session.working_memory
        await memory.append({"name": "Ann"})
        appended = await memory.append({"likes": ["tea"]}, expected=1)
        with pytest.raises(RequestRefused) as refused:
            await memory.replace({}, expected=1)
        replaced = await memory.replace({"name": "Bo"})
        first = await memory.read(version=1)
        cleared = await memory.clear()
        names = [tool["function"]["name"] for tool in await memory.tools()]
        call = {"name": "update_working_memory", "arguments": '{"content": {"name": "Cy"}}'}
        answer = await memory.execute({"id": "c1", "type": "function", "function": call})
        now = await memory.read()
    assert appended["content"] == {"name": "Ann", "likes": ["tea"]}
    assert refused.value.code == "precondition_failed"
    assert (replaced["content"], first["content"]) == ({"name": "Bo"}, {"name": "Ann"})
    assert cleared["version"] == 4
    assert "update_working_memory" in names
    assert answer["role"] == "tool"
    assert now["content"] == {"name": "Cy"}


async def test_data(app: App) -> None:
    """An object of the program's own is merged; None removes a value."""
    async with client_to(app) as client:
        session = await client.open("s")
        await session.update_data(table=7, waiter="Bo")
        assert await session.update_data(waiter=None) == {"table": 7}
        assert await session.data() == {"table": 7}


async def test_all_of_it_needs_a_rest_url(app: App) -> None:
    """Without one the error says so."""
    async with client_for(app.ingest_address) as client:
        session = await client.open("s")
        for change in (session.add, session.data, session.update_data):
            with pytest.raises(ClientError) as raised:
                await change()
            assert raised.value.code == "no_rest_url"
        with pytest.raises(ClientError):
            _ = session.working_memory


async def test_a_change_that_gets_no_answer_says_so(app: App) -> None:
    """It is not tried again by itself, since it might be made twice."""
    async with client_for(app.ingest_address, NOBODY) as client:
        session = await client.open("s")
        with pytest.raises(Unreachable):
            await session.add({"role": "user", "content": "Hi."})


async def test_two_ids_of_one_person_are_linked(app: App) -> None:
    """What is read of either is then of both, until the link is removed."""
    async with client_to(app) as client:
        memories = client.memories
        await memories.add("Likes tea.", user_id="tel/1")
        await memories.link("tel/1", "ann")
        linked = await memories.of_user("ann")
        await memories.unlink("ann")
        alone = await memories.of_user("ann")
    assert [len(page["memories"]) for page in (linked, alone)] == [1, 0]


async def test_the_same_from_synchronous_code(app: App) -> None:
    """Every method has a synchronous one."""

    def call() -> None:
        urls = (f"ws://{app.ingest_address}", f"http://{app.rest_address}")
        with SyncClient(*urls, options=options()) as client:
            session = client.open("s", config={"working_memory": {"schema": {"type": "object"}}})
            session.add({"role": "user", "content": "Hi."})
            assert session.forget(everything=True)["remembered"] == 0
            memory = session.working_memory
            assert memory.append({"name": "Ann"})["version"] == 1
            assert memory.replace({"name": "Bo"}, expected=1)["version"] == 2
            assert memory.read()["content"] == {"name": "Bo"}
            arguments = {"name": "get_working_memory", "arguments": "{}"}
            assert memory.execute({"id": "c1", "type": "function", "function": arguments})["role"] == "tool"
            assert len(memory.tools()) == 3
            assert memory.clear()["version"] == 3
            assert session.update_data(table=7) == session.data() == {"table": 7}

    await asyncio.wait_for(asyncio.to_thread(call), 30)
