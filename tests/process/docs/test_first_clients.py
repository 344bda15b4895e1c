"""The first clients of docs/ run as they are printed, against the real service, and do what their pages say."""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from websockets.asyncio.client import connect

from tests.support.callers.producer import key_over_its_rate
from tests.support.callers.rest import RestClient
from tests.support.events import final_transcript
from tests.support.processes.doc_programs import (
    Program,
    install_javascript_client,
    printed_programs,
    running_program,
    save_programs,
)
from tests.support.processes.ports import free_ports
from tests.support.processes.service_process import running_process
from tests.support.servers.network_proxy import NetworkProxy
from tests.support.services import Serve
from tests.support.waiting import eventually
from voicemem.config.service import Address

node = pytest.mark.needs("node")
PYTHON = ("first-client-python.md", "python_call.py")
NODE = ("first-client-javascript.md", "node_call.mjs")
clients = pytest.mark.parametrize("client", [PYTHON, pytest.param(NODE, marks=node)], ids=lambda client: client[1])
Client = tuple[str, str]
SAYS_OF_AN_OUTAGE = {PYTHON: "connection lost, reconnecting", NODE: "the websocket is back"}
SPOKEN = [
    ("user", "Tell me a joke.", {"source": "asr"}),
    (
        "assistant",
        "Why did the ",
        {"interrupted": True, "original": "Why did the scarecrow win an award?", "source": "llm"},
    ),
]


def saved(client: Client, folder: Path, ingest: Address, rest: str, **changes: str) -> None:
    """The files of a client, which calls these addresses and speaks faster than it is printed."""
    faster = {"sleep(0.5)": "sleep(0.1)", "sleep(500)": "sleep(100)"}
    save_programs(
        client[0], folder, {"127.0.0.1:8765": str(ingest), "http://127.0.0.1:8080": rest, **faster, **changes}
    )
    install_javascript_client(folder)


def session_of(client: Client) -> str:
    return {PYTHON: "python-call", NODE: "node-call"}[client]


async def spoken(api: RestClient, client: Client) -> list[tuple[str, str, Any]]:
    """The history, without times."""
    contents = await api.contents(session_of(client))
    for message in contents:
        message["metadata"].pop("interrupt_timestamp", None)
    return [(message["role"], message["content"], message["metadata"]) for message in contents]


async def heard_of(api: RestClient, client: Client) -> None:
    """Wait until the service has something of the call."""
    async with asyncio.timeout(60):
        while True:
            if b'"asr"' in (await api.get(f"/v1/sessions/{session_of(client)}/events")).body:
                return
            await asyncio.sleep(0.02)


async def seqs(api: RestClient, client: Client) -> list[int]:
    return [row["seq"] for row in await api.journal(session_of(client)) if row["seq"] is not None]


def without_times(text: str) -> str:
    return re.sub(r"\d{13}|\d+ [A-Z][a-z]+ \d{4}", "TIME", text)


async def runs_to_its_end(program: Program) -> None:
    assert await program.end() == 0, program.errors


@clients
@pytest.mark.parametrize("keys", [False, True], ids=["without keys", "with keys"])
async def test_a_client_prints_what_its_page_shows(serve: Serve, tmp_path: Path, client: Client, keys: bool) -> None:
    """With a key and without, both first clients print what stands below them; run again, that the call has ended."""
    key = "an operator's own key"
    app = await serve(**({"admin_key": key} if keys else {}))
    changes = {"KEY = None": f"KEY = {key!r}", "process.env.VOICEMEM_KEY": json.dumps(key)} if keys else {}
    saved(client, tmp_path, app.ingest_address, f"http://{app.rest_address}", **changes)
    async with running_program(tmp_path, client[1]) as program:
        await runs_to_its_end(program)
    assert without_times(program.out) == without_times(printed_programs(client[0], "text")[0])
    assert program.errors == ""
    async with running_program(tmp_path, client[1]) as program:
        assert await program.end() == 1
    assert (program.errors.count("\n"), "has ended" in program.errors) == (1, True), program.errors


@clients
@pytest.mark.parametrize("way", ["to_server", "to_client"])
async def test_a_client_goes_on_after_lost_connections(serve: Serve, tmp_path: Path, client: Client, way: str) -> None:
    """Connections that break off in the middle of a frame, of events or of acks, lose nothing and double nothing."""
    app = await serve()
    async with NetworkProxy(app.ingest_address) as proxy:
        getattr(proxy, way).limit_bytes = 820 if way == "to_server" else 560
        saved(client, tmp_path, proxy.address, f"http://{app.rest_address}")
        async with running_program(tmp_path, client[1]) as program:
            await runs_to_its_end(program)
        assert proxy.accepted >= 2
    api = RestClient(app)
    assert await spoken(api, client) == SPOKEN
    assert await seqs(api, client) == [*range(1, 8)]


@clients
async def test_a_client_goes_on_after_the_server_was_killed(tmp_path: Path, client: Client) -> None:
    """A server that is killed in the middle of the call, and started again later, ends with the same history."""
    rest, ingest = free_ports(2)
    store, folder = tmp_path / "calls.db", tmp_path / "client"
    saved(client, folder, Address("127.0.0.1", ingest), f"http://127.0.0.1:{rest}")
    async with (
        running_process(store, rest=rest, ingest=ingest) as process,
        running_program(folder, client[1]) as program,
    ):
        await heard_of(process.api, client)
        await process.kill()
        async with running_process(store, rest=rest, ingest=ingest) as again:
            await runs_to_its_end(program)
            assert await spoken(again.api, client) == SPOKEN
            assert await seqs(again.api, client) == [*range(1, 8)]
    assert SAYS_OF_AN_OUTAGE[client] in program.out + program.errors


@clients
async def test_a_client_with_a_wrong_key_stops(serve: Serve, tmp_path: Path, client: Client) -> None:
    """A key that is none is not tried again and again: the program fails, and says why."""
    app = await serve(admin_key="an operator's own key")
    changes = {"KEY = None": "KEY = 'vm_wrong'", "process.env.VOICEMEM_KEY": '"vm_wrong"'}
    saved(client, tmp_path, app.ingest_address, f"http://{app.rest_address}", **changes)
    async with running_program(tmp_path, client[1]) as program:
        assert await program.end() == 1
    assert "401" in program.errors or "unauthorized" in program.errors


@clients
async def test_a_client_that_was_superseded_stops(serve: Serve, tmp_path: Path, client: Client) -> None:
    """Another process that opens the same call takes it over; the first one stops and leaves it alone."""
    app = await serve()
    saved(client, tmp_path, app.ingest_address, f"http://{app.rest_address}")
    async with running_program(tmp_path, client[1]) as program:
        await heard_of(RestClient(app), client)
        async with connect(f"ws://{app.ingest_address}/v1/ingest") as other:
            await other.send(json.dumps({"type": "session.open", "session_id": session_of(client)}))
            await other.recv()
            assert await program.end() == 1
    assert "A newer connection has opened this producer." in program.errors


@clients
async def test_a_client_waits_when_its_key_is_over_its_rate(serve: Serve, tmp_path: Path, client: Client) -> None:
    """A `rate_limited`, also one that comes before `session.ready`, is waited for."""
    key = "an operator's own key"
    app = await serve(admin_key=key, event_rate=20.0)
    changes = {"KEY = None": f"KEY = {key!r}", "process.env.VOICEMEM_KEY": json.dumps(key)}
    saved(client, tmp_path, app.ingest_address, f"http://{app.rest_address}", **changes)
    async with AsyncExitStack() as stack:
        async with key_over_its_rate(app, key):
            program = await stack.enter_async_context(running_program(tmp_path, client[1]))
            await program.says("rate_limited")
        await runs_to_its_end(program)
    assert await spoken(RestClient(app, key), client) == SPOKEN


@node
async def test_a_tail_goes_through_a_backend(serve: Serve, tmp_path: Path) -> None:
    """The backend of docs/tail.md passes a tail on as it comes, with its own key, and goes on where a browser was."""
    key = "an operator's own key"
    app = await serve(admin_key=key)
    api = RestClient(app, key)
    await api.create("call-1")
    (port,) = free_ports(1)
    save_programs(
        "tail.md", tmp_path, {"http://127.0.0.1:8080": f"http://{app.rest_address}", "listen(9200": f"listen({port}"}
    )
    url = f"http://127.0.0.1:{port}/tail/call-1"
    async with running_program(tmp_path, "tail.mjs", VOICEMEM_KEY=key) as program, aiohttp.ClientSession() as http:
        await program.says("http://")
        async with http.get(url) as tail:
            assert tail.headers["Content-Type"].startswith("text/event-stream")
            await api.send(final_transcript(1, "Hello?"), session_id="call-1")
            last_id = await told_until(tail, b"Hello?")
        await api.send(final_transcript(2, "Are you there?"), session_id="call-1")
        async with http.get(url, headers={"Last-Event-ID": last_id}) as tail:
            await told_until(tail, b"Are you there?", never=b"Hello?")
            await api.end("call-1")
            last_id = await told_until(tail, b"event: end")
        async with http.get(url, headers={"Last-Event-ID": last_id}) as tail:
            assert tail.status == 204
        for path, status in (("nobody", 404), ("a/b", 404)):
            async with http.get(f"http://127.0.0.1:{port}/tail/{path}") as tail:
                assert tail.status == status
    assert "Error" not in program.errors


async def told_until(tail: aiohttp.ClientResponse, text: bytes, never: bytes = b"\0") -> str:
    """Read a tail until it has told this and all that goes with it; the newest id."""
    last_id, told = "", False
    async with asyncio.timeout(60):
        async for line in tail.content:
            assert never not in line
            last_id = line[4:].strip().decode() if line.startswith(b"id: ") else last_id
            told = told or text in line
            if told and line == b"\n":
                break
    assert told
    return last_id


FULL = {
    "full.py": """
import asyncio
from recorder import Recorder

async def main():
    recorder = Recorder("ws://127.0.0.1:9/v1/ingest", "full", max_events=2)
    for text in "one", "two", "three":
        try:
            recorder.record("asr", turn_id=1, text=text)
        except BufferError:
            print("full at", text)

asyncio.run(main())
""",
    "full.mjs": """
import { Client } from "voicemem";

const session = new Client("ws://127.0.0.1:9", { maxEvents: 2 }).session("full");
for (const text of ["one", "two", "three"]) {
  if (session.record({ type: "asr", turn_id: 1, text }).error) console.log("full at", text);
}
process.exit();
""",
}


@clients
async def test_a_full_buffer_takes_nothing_more(tmp_path: Path, client: Client) -> None:
    """While nothing is acknowledged a recorder takes as many events as it was told, and says so at the next one."""
    save_programs(client[0], tmp_path, {})
    install_javascript_client(tmp_path)
    file = "full" + Path(client[1]).suffix
    (tmp_path / file).write_text(FULL[file])
    async with running_program(tmp_path, file) as program:
        await runs_to_its_end(program)
    assert program.out == "full at three\n"


@node
async def test_the_javascript_client_notices_silence(serve: Serve, tmp_path: Path) -> None:
    """A connection that stays open while its answers vanish is given up, and another one made."""

    async def has_accepted(proxy: NetworkProxy, connections: int) -> bool:
        return proxy.accepted >= connections

    app = await serve()
    async with NetworkProxy(app.ingest_address) as proxy:
        saved(NODE, tmp_path, proxy.address, f"http://{app.rest_address}", **{"key: KEY": "key: KEY, silenceMs: 800"})
        async with running_program(tmp_path, NODE[1]) as program:
            await heard_of(RestClient(app), NODE)
            proxy.to_client.swallow = True
            await eventually(True, lambda: has_accepted(proxy, 2))
            proxy.to_client.swallow = False
            await program.says("assistant")
    assert await spoken(RestClient(app), NODE) == SPOKEN
