"""openai for Node through the proxy, which it takes with TLS alone."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import json
import logging
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve

from tests.support.callers.rest import RestClient, wait_until_closed
from tests.support.needs import missing, needs
from tests.support.servers.certificates import self_signed_files
from tests.support.servers.voice_proxy import proxy_to
from voicemem.app import App
from voicemem.errors import CannotStart

DIALECT = "openai-realtime"
NPM_PACKAGES = ("openai@6.49.0", "ws@8.21.0")
INSTALL_S, RUN_S = 300, 120
PROGRAM = """
import OpenAI from "openai";
import { OpenAIRealtimeWS } from "openai/realtime/ws";

const client = new OpenAI({ apiKey: "sk-node", baseURL: process.argv[2] });
const options = { headers: { "X-Voicemem-Session": "call" } };
const call = new OpenAIRealtimeWS({ model: "gpt-realtime", options }, client);
call.on("error", (error) => { console.error(error); process.exit(1); });
call.on("session.created", () => call.send({ type: "response.create" }));
const heard = "conversation.item.input_audio_transcription.completed";
call.on(heard, (event) => { console.log(event.transcript); call.close(); });
call.socket.on("close", (code) => console.log(code));
"""
SAID = {
    "type": "conversation.item.input_audio_transcription.completed",
    "event_id": "event_2",
    "item_id": "item_1",
    "content_index": 0,
    "transcript": "Grüß Gott.",
}


async def vendor(connection: ServerConnection) -> None:
    """Has heard one sentence when it is asked for a reply."""
    await connection.send('{"type":"session.created","event_id":"event_1","session":{"id":"sess_1"}}')
    async for message in connection:
        assert "response.create" == json.loads(message)["type"]
        await connection.send(json.dumps(SAID))


async def test_openai_for_node(app: App, tmp_path: Path) -> None:
    """With `baseURL` alone, and a certificate that Node is told to trust, the call works and is remembered."""
    npm, node = needs("npm"), needs("node")
    installed = await asyncio.to_thread(
        subprocess.run,
        [npm, "install", "--silent", "--no-fund", "--no-audit", *NPM_PACKAGES],
        cwd=tmp_path,
        capture_output=True,
        timeout=INSTALL_S,
    )
    if installed.returncode:
        missing(f"openai cannot be installed: {installed.stderr.decode()[-300:]}")
    (tmp_path / "call.mjs").write_text(PROGRAM)
    cert, key = self_signed_files(tmp_path)
    async with serve(vendor, "127.0.0.1", 0) as server:
        upstream = f"ws://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}/v1"
        async with proxy_to(app, {DIALECT: upstream}, tls_cert=str(cert), tls_key=str(key)) as proxy:
            url = proxy.url(DIALECT).replace("wss://", "https://")
            process = await asyncio.create_subprocess_exec(
                *(node, "call.mjs", url),
                cwd=tmp_path,
                env={"NODE_EXTRA_CA_CERTS": str(cert), "PATH": "/usr/bin:/bin"},
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
            said, _ = await asyncio.wait_for(process.communicate(), RUN_S)
            assert "Grüß Gott.\n1000\n" == said.decode()
        await wait_until_closed(app, "call")
    assert ["Grüß Gott."] == [message["content"] for message in await RestClient(app).contents("call")]


async def test_an_upstream_with_tls(app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A vendor's certificate is checked: one that no one vouches for is 502, one that is trusted is taken."""
    cert, key = self_signed_files(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    async with serve(vendor, "127.0.0.1", 0, ssl=context) as server:
        upstream = f"wss://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}/v1"
        async with proxy_to(app, {DIALECT: upstream}) as proxy:
            reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
            writer.write(
                b"GET /v1/proxy/openai-realtime HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
                b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
            )
            refused = await reader.read()
            writer.close()
            assert refused.startswith(b"HTTP/1.1 502 ")
            assert b"certificate" in refused.lower()
            trusting = ssl.create_default_context(cafile=str(cert))
            monkeypatch.setattr("voicemem.proxy.call.upstream_tls", lambda: trusting)
            async with connect(proxy.url(DIALECT)) as caller:
                assert "session.created" == json.loads(await caller.recv())["type"]


async def test_connections_without_tls(app: App, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Health checks and scans that only connect take no one's place, and leave no error in the log."""
    limits = {"head_s": 0.2, "max_waiting": 3}
    cert, key = self_signed_files(tmp_path)
    async with serve(vendor, "127.0.0.1", 0) as server:
        upstream = f"ws://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}/v1"
        async with proxy_to(app, {DIALECT: upstream}, limits=limits, tls_cert=str(cert), tls_key=str(key)) as proxy:
            for _ in range(5):
                _, checking = await asyncio.open_connection("127.0.0.1", proxy.port)
                checking.close()
            silent, waiting = await asyncio.open_connection("127.0.0.1", proxy.port)
            assert b"" == await asyncio.wait_for(silent.read(), RUN_S), "given up"
            waiting.close()
            async with connect(proxy.url(DIALECT), ssl=ssl.create_default_context(cafile=str(cert))) as caller:
                assert "session.created" == json.loads(await caller.recv())["type"]
            assert {} == proxy.server.waiting
    assert [] == [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_files_that_hold_no_certificate(app: App, tmp_path: Path) -> None:
    """The proxy does not start, and says what the files must be."""
    (tmp_path / "empty.pem").write_text("")
    files: dict[str, Any] = {"tls_cert": str(tmp_path / "empty.pem"), "tls_key": str(tmp_path / "none.pem")}
    with pytest.raises(CannotStart, match="PEM files"):
        async with proxy_to(app, {DIALECT: "ws://127.0.0.1:1"}, **files):
            pass
    with pytest.raises(CannotStart, match="go together"):
        async with proxy_to(app, {DIALECT: "ws://127.0.0.1:1"}, tls_cert=files["tls_cert"]):
            pass
