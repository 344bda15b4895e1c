"""`voicemem import-ams`: everything of a server that speaks agent-memory-server's API comes along."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from agent_memory_client import MemoryAPIClient, MemoryClientConfig
from agent_memory_client.models import WorkingMemory
from aiohttp import web
from aiohttp.test_utils import TestServer
from click.testing import CliRunner

from tests.service.compat.agent_memory_server.test_long_term import record
from tests.service.compat.agent_memory_server.test_working_memory import HELLO, memory
from tests.support.callers.rest import RestClient, make_key
from tests.support.rows import every_row
from tests.support.services import Serve
from voicemem.app import App
from voicemem.cli import main
from voicemem.cli.common import Server
from voicemem.client.errors import ClientError
from voicemem.compat.agent_memory_server.commands import move

pytestmark = pytest.mark.filterwarnings("ignore:get_working_memory is deprecated:DeprecationWarning")


@pytest.fixture
async def target(serve: Serve) -> App:
    return await serve()


@pytest.fixture
async def moved_to(target: App) -> AsyncIterator[MemoryAPIClient]:
    """The client of the server that everything goes to."""
    async with MemoryAPIClient(MemoryClientConfig(base_url=address(target))) as client:
        yield client


def address(app: App) -> str:
    return f"http://{app.rest_address}"


def server_of(app: App) -> Server:
    return Server(address(app), None)


def without_times(one: WorkingMemory) -> WorkingMemory:
    times = {"last_accessed": HELLO[0].created_at, "created_at": None, "updated_at": None}
    return one.model_copy(update={name: value for name, value in times.items() if hasattr(one, name)})


async def fill(client: MemoryAPIClient) -> None:
    for number in range(5):
        owner = {"namespace": "a" if number % 2 else "b", "user_id": f"u{number}"}
        given = memory(*HELLO, session_id=f"s {number}", data={"n": number}, context="Before.", tokens=3, **owner)
        await client.put_working_memory(f"s {number}", given)
    facts = [record(f"Fact number {n}.", f"f{n}", namespace="a", topics=["t"], user_id=f"u{n % 3}") for n in range(150)]
    await client.create_long_term_memory(facts)


async def test_everything_is_taken_over(
    client: MemoryAPIClient, moved_to: MemoryAPIClient, app: App, target: App
) -> None:
    """As it was: ids, owners, times, data; and nothing twice when it is done again."""
    await fill(client)
    for _ in range(2):
        moved = await move(server_of(app), server_of(target), {})
        assert (5, 150, []) == (moved.sessions, moved.memories, moved.refused)
    for number in range(5):
        before, after = [await one.get_working_memory(f"s {number}") for one in (client, moved_to)]
        assert without_times(before) == without_times(after)
    for id in ("f0", "f77", "f149"):
        old, new = [await one.get_long_term_memory(id) for one in (client, moved_to)]
        for name in ("text", "topics", "user_id", "namespace", "created_at", "memory_type"):
            assert getattr(old, name) == getattr(new, name), name
    assert 150 == len([one async for one in moved_to.search_all_long_term_memories("")])
    positions = [(await RestClient(target).get("/v1/sessions")).json["sessions"][n]["position"] for n in range(5)]
    assert positions == [(await RestClient(app).get("/v1/sessions")).json["sessions"][n]["position"] for n in range(5)]


async def test_a_part_is_taken_over(client: MemoryAPIClient, moved_to: MemoryAPIClient, app: App, target: App) -> None:
    """Of a namespace, or of a user."""
    await fill(client)
    moved = await move(server_of(app), server_of(target), {"namespace": "a", "user_id": "u1"})
    assert (1, 50) == (moved.sessions, moved.memories)
    assert ["s 1"] == (await moved_to.list_sessions()).sessions


async def test_the_command_says_how_much_it_was(client: MemoryAPIClient, app: App, target: App) -> None:
    """On standard output; with the flags for both servers."""
    await fill(client)
    arguments = ["import-ams", address(app), "--url", address(target), "--namespace", "a", "--user-id", "u1"]
    result = await asyncio.to_thread(CliRunner().invoke, main, arguments)
    assert (0, "1 session and 50 memories taken over\n") == (result.exit_code, result.stdout)


async def test_a_run_goes_on_where_the_last_one_ended(
    client: MemoryAPIClient, app: App, target: App, tmp_path: Path
) -> None:
    """What the file says is not sent again; what is new is."""
    await fill(client)
    state = tmp_path / "moved.txt"
    await move(server_of(app), server_of(target), {}, state)
    again = await move(server_of(app), server_of(target), {}, state)
    assert (0, 0, []) == (again.sessions, again.memories, again.refused)
    await client.create_long_term_memory([record("New.", "new")])
    await client.put_working_memory("new", memory(*HELLO, session_id="new"))
    lines = state.read_text().splitlines()
    state.write_text("\n".join(line for line in lines if '"f5"' not in line) + "\n")
    more = await move(server_of(app), server_of(target), {}, state)
    assert (1, 2) == (more.sessions, more.memories)


async def test_what_cannot_be_taken_over_is_named(target: App, moved_to: MemoryAPIClient) -> None:
    """The rest is; a source that is busy is asked again."""
    long = {"id": "long", "text": "x" * 2000, "memory_type": "semantic"}
    fine = {"id": "fine", "text": "Fine.", "memory_type": "episodic", "topics": None, "dist": 0.4, "pinned": False}
    async with TestServer(source_of([long, fine])) as server:
        moved = await move(Server(f"http://127.0.0.1:{server.port}", "token"), server_of(target), {})
    assert (1, 1) == (moved.sessions, moved.memories)
    assert ["session twice", "memory long"] == [what for what, _ in moved.refused]
    assert "1,000 bytes" in moved.refused[1][1]
    assert "Fine." == (await moved_to.get_long_term_memory("fine")).text
    assert [("user", "Hi.")] == [(m.role, m.content) for m in (await moved_to.get_working_memory("once")).messages]


def source_of(memories: list[dict[str, Any]]) -> web.Application:
    """What of agent-memory-server's API an import needs, with two sessions; it is busy at first."""
    busy = [503, 429]

    async def list_sessions(request: web.Request) -> web.Response:
        assert "Bearer token" == request.headers["Authorization"]
        if busy:
            return web.json_response({"detail": "busy"}, status=busy.pop())
        first = int(request.query.get("offset", 0))
        return web.json_response({"sessions": ["once", "twice"][first:], "total": 2})

    async def read(request: web.Request) -> web.Response:
        if request.match_info["id"] == "twice":
            return web.json_response({"detail": "Session twice not found"}, status=404)
        message = {"role": "user", "content": "Hi.", "id": "1", "created_at": "2026-05-03T14:30:00Z"}
        return web.json_response({"session_id": "once", "messages": [message], "memories": [], "data": {}, "tokens": 0})

    async def search(request: web.Request) -> web.Response:
        first = (await request.json())["offset"]
        return web.json_response({"memories": memories[first:], "total": len(memories)})

    source = web.Application()
    source.router.add_get("/v1/working-memory/", list_sessions)
    source.router.add_get("/v1/working-memory/{id}", read)
    source.router.add_post("/v1/long-term-memory/search", search)
    return source


async def test_a_key_that_may_not_write_ends_it(client: MemoryAPIClient, app: App, target: App) -> None:
    """With the reason, at once; so does a source that is not there."""
    await fill(client)
    with pytest.raises(ClientError, match="scope"):
        await move(server_of(app), server_of(target)._replace(key=await make_key(target, "read")), {})
    with pytest.raises(ClientError):
        await move(Server("http://127.0.0.1:1", None), server_of(target), {})


ENDLESS = {"sessions": [f"s{n}" for n in range(100)], "total": 10**9, "messages": [{"role": "user", "content": "Hi."}]}


NO_ANSWERS = (
    *(b"[]", b'{"sessions": 5, "total": 1}', b'{"sessions": [{}], "total": 1}', b'{"sessions": [], "total": "x"}'),
    *(b'{"sessions": [], "total": 0}', b'{"sessions": [], "total": 0, "memories": [5]}'),
)


@every_row("answer", NO_ANSWERS, ids=bytes.decode)
async def test_a_source_of_another_kind_is_named(target: App, answer: bytes) -> None:
    """With a sentence, whatever it answers."""
    result = await imported(target, answer)
    assert (1, "voicemem: SOURCE does not answer as an agent-memory-server does.\n") == result


async def test_a_source_that_repeats_itself_is_no_endless_loop(target: App) -> None:
    """One that has a page of the same for every offset is over once that has come twice."""
    memories = [record(f"Fact {n}.", f"f{n}").model_dump(mode="json", exclude_none=True) for n in range(100)]
    assert (0, "") == await imported(target, msgspec.json.encode(ENDLESS | {"memories": memories}))
    assert 100 == len((await RestClient(target).get("/v1/sessions?limit=1000")).json["sessions"])


async def imported(target: App, answer: bytes) -> tuple[int, str]:
    """The exit code and the last sentence of an import from a source that has one answer to everything."""

    async def give(_: web.Request) -> web.Response:
        return web.Response(body=answer, content_type="application/json")

    source = web.Application()
    source.router.add_route("*", "/{path:.*}", give)
    async with TestServer(source) as server:
        arguments = ["import-ams", f"http://127.0.0.1:{server.port}", "--url", address(target)]
        result = await asyncio.to_thread(CliRunner().invoke, main, arguments)
    return result.exit_code, "".join(result.stderr.splitlines(True)[-1:]) if result.exit_code else ""
