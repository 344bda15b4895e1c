"""The proxies' example files with the real proxies: both ports of a real service behind one host name."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import io
import json
import os
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from tests.support.callers.rest import client_with_key, make_key
from tests.support.cursors import format_several_cursor
from tests.support.events import delta, done, final
from tests.support.needs import needs
from tests.support.processes.ports import free_ports
from tests.support.servers.proxies import START_S, replaced, running_proxy
from tests.support.services import Serve
from voicemem.app import App
from voicemem.sessions.tails.tail import SeveralCursor

NAME = "memory.example"


class Proxy(NamedTuple):
    """A proxy in front of a service; `trust` is None where it speaks plain HTTP."""

    port: int
    trust: ssl.SSLContext | None

    def url(self, path: str) -> str:
        return f"http{'s' if self.trust else ''}://127.0.0.1:{self.port}{path}"

    def ingest(self, key: str, path: str = "/v1/ingest") -> connect:
        """A websocket to the proxy, asked for by its name."""
        return connect(
            f"ws{'s' if self.trust else ''}://{NAME}:{self.port}{path}",
            host="127.0.0.1",
            port=self.port,
            ssl=self.trust,
            proxy=None,
            additional_headers={"Authorization": f"Bearer {key}"},
        )


def certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate of its own for `NAME`, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, NAME)])
    now = datetime.now(UTC)
    made = x509.CertificateBuilder(name, name, key.public_key(), 1, now - timedelta(days=1), now + timedelta(days=1))
    made = made.add_extension(x509.SubjectAlternativeName([x509.DNSName(NAME)]), critical=False)
    cert_path, key_path = folder / "crt.pem", folder / "key.pem"
    cert_path.write_bytes(made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    key_path.write_bytes(key.private_bytes(serialization.Encoding.PEM, *form))
    return cert_path, key_path


@asynccontextmanager
async def nginx(app: App, folder: Path) -> AsyncIterator[Proxy]:
    """nginx with deploy/nginx.conf, checked by nginx itself before."""
    binary = needs("nginx")
    (port,) = free_ports(1)
    cert, key = certificate(folder)
    user = "user root;\n" if os.geteuid() == 0 else ""  # else no one's, who may not enter the folder of a test
    changes = {
        "worker_processes auto;\n": f"worker_processes 1;\n{user}",
        "listen 443 ssl": f"listen 127.0.0.1:{port} ssl",
        f"/etc/ssl/{NAME}.crt": str(cert),
        f"/etc/ssl/private/{NAME}.key": str(key),
        "127.0.0.1:8080": str(app.rest_address),
        "127.0.0.1:8765": str(app.ingest_address),
        "/run/nginx.pid": f"{folder}/nginx.pid",
        "/var/log/nginx": str(folder),
        "http {\n": "http {\n"
        + "".join(
            f"    {kind}_temp_path {folder}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        ),
    }
    config = folder / "nginx.conf"
    config.write_text(replaced("nginx.conf", changes))
    check = await asyncio.create_subprocess_exec(
        *(binary, "-t", "-q", "-c", str(config), "-p", str(folder)), stderr=asyncio.subprocess.PIPE
    )
    _, said = await check.communicate()
    assert (0, b"") == (check.returncode, said)
    trust = ssl.create_default_context(cafile=str(cert))
    async with running_proxy([binary, "-c", str(config), "-p", str(folder), "-g", "daemon off;"], port):
        yield Proxy(port, trust)


@asynccontextmanager
async def caddy(app: App, folder: Path) -> AsyncIterator[Proxy]:
    """Caddy with deploy/Caddyfile, in plain HTTP since its certificates come from outside."""
    binary = needs("caddy")
    (port,) = free_ports(1)
    changes = {
        f"{NAME} {{": "{\n\tadmin off\n\tauto_https off\n}\n" + f"http://:{port} {{\n\tbind 127.0.0.1",
        "127.0.0.1:8080": str(app.rest_address),
        "127.0.0.1:8765": str(app.ingest_address),
    }
    config = folder / "Caddyfile"
    config.write_text(replaced("Caddyfile", changes))
    async with running_proxy([binary, "run", "--adapter", "caddyfile", "--config", str(config)], port):
        yield Proxy(port, None)


Made = Callable[[App, Path], Any]
PROXIES = pytest.mark.parametrize("proxy", [nginx, caddy], ids=["nginx", "caddy"])


async def ask(proxy: Proxy, key: str, method: str, path: str, **more: Any) -> tuple[int, bytes]:
    headers = {"Authorization": f"Bearer {key}", "Host": NAME} | more.pop("headers", {})
    async with (
        aiohttp.ClientSession() as http,
        http.request(
            method, proxy.url(path), headers=headers, ssl=proxy.trust or True, server_hostname=NAME, **more
        ) as answer,
    ):
        return answer.status, await answer.read()


@PROXIES
async def test_a_call_goes_through(serve: Serve, tmp_path: Path, proxy: Made) -> None:
    """Websocket, REST and history by one name, while the websocket stays open, with the same acks and errors."""
    app = await serve()
    key = await make_key(app, "admin")
    async with proxy(app, tmp_path) as front:
        async with front.ingest(key) as socket:
            await socket.send(json.dumps({"type": "session.open", "session_id": "s"}))
            assert "session.ready" == json.loads(await socket.recv())["type"]
            for seq, event in enumerate([final(1, "Hi."), delta(1, "Hello."), done(1)], 1):
                await socket.send(json.dumps({"seq": seq, **event}))
                assert seq == json.loads(await socket.recv())["seq"]
            status, body = await ask(front, key, "GET", "/v1/sessions/s/history")
            assert (200, ["Hi.", "Hello."]) == (status, [one["content"] for one in json.loads(body)["contents"]])
            status, body = await ask(front, key, "GET", "/v1/sessions/s/events")
            assert (200, 3) == (status, len(body.splitlines()))
        assert 200 == (await ask(front, key, "POST", "/v1/sessions/s/end"))[0]
        assert 404 == (await ask(front, key, "GET", "/v1/sessions/none"))[0]


@PROXIES
async def test_the_paths_of_dialects_go_through(serve: Serve, tmp_path: Path, proxy: Made) -> None:
    """Another stack's frames come on a path of their own, which the ingest port takes too."""
    app = await serve()
    key = await make_key(app, "admin")
    async with proxy(app, tmp_path) as front:
        async with front.ingest(key, "/v1/ingest/openai-realtime?session_id=s"):
            pass
        with pytest.raises(InvalidStatus) as refused:
            await front.ingest(key, "/v1/ingest/no-such-dialect")
        assert b"unknown_dialect" in (refused.value.response.body or b"")


async def told(front: Proxy, key: str, path: str, place: str | None = None) -> AsyncGenerator[tuple[str, bytes], None]:
    """Place and data of each server-sent event, as it comes; the first is the beginning."""
    headers = {"Authorization": f"Bearer {key}", "Host": NAME, "Accept": "text/event-stream"}
    headers |= {} if place is None else {"Last-Event-ID": place}
    options: dict[str, Any] = {"headers": headers, "ssl": front.trust or True, "server_hostname": NAME}
    async with aiohttp.ClientSession() as http, http.get(front.url(path), **options) as answer:
        assert 200 == answer.status
        while not answer.content.at_eof():
            block = await asyncio.wait_for(answer.content.readuntil(b"\n\n"), START_S)
            found = dict(line.split(b": ", 1) for line in block.splitlines() if line)
            yield found.get(b"id", b"").decode(), found.get(b"data", b"")


@PROXIES
async def test_a_tail_is_told_at_once_and_goes_on(serve: Serve, tmp_path: Path, proxy: Made) -> None:
    """What is journaled comes while the answer is open, and the place goes back, also one of 256 sessions.

    A tail that its reader has left is let go of: the proxy stops, which waits for what it still answers.
    """
    app = await serve()
    key = await make_key(app, "admin")
    async with proxy(app, tmp_path) as front:

        async def say(turn: int) -> None:
            assert 200 == (await ask(front, key, "POST", "/v1/sessions/s/events", json=final(turn, f"Line {turn}.")))[0]

        await ask(front, key, "POST", "/v1/sessions", json={"session_id": "s"})
        path = "/v1/sessions/s/events"
        async with aclosing(told(front, key, path)) as telling:
            await anext(telling)
            for turn in (1, 2):
                await say(turn)
                place, data = await anext(telling)
                assert f"Line {turn}." == json.loads(data)["event"]["text"]
        await say(3)
        async with aclosing(told(front, key, path, place)) as telling:
            await anext(telling)
            assert "Line 3." == json.loads((await anext(telling))[1])["event"]["text"]
        many = SeveralCursor(
            10**9, {10**9 - number: 10**6 for number in range(256)}, [10**9 + one for one in range(32)]
        )
        place = format_several_cursor(app.services.store.directory.incarnation, many)
        told_many = {"Accept": "text/event-stream", "Last-Event-ID": place}
        status, body = await ask(front, key, "GET", "/v1/events", headers=told_many)
        assert (400, "invalid_position") == (status, json.loads(body)["reason"])  # the service has read it


@PROXIES
async def test_what_is_too_big_is_said_by_the_service(serve: Serve, tmp_path: Path, proxy: Made) -> None:
    """A frame and a body of just under 1 MiB pass; a body over it gets the service's own problem document."""
    app = await serve()
    key = await make_key(app, "admin")
    async with proxy(app, tmp_path) as front:
        assert 201 == (await ask(front, key, "POST", "/v1/sessions", json={"session_id": "s"}))[0]
        events = [final(turn, "x" * 200_000) for turn in range(1, 6)]
        assert 200 == (await ask(front, key, "POST", "/v1/sessions/s/events?producer=http", json=events))[0]
        status, body = await ask(front, key, "POST", "/v1/sessions/s/events", data=io.BytesIO(b" " * 1_100_000))
        assert (413, "too_big") == (status, json.loads(body)["reason"])
        async with front.ingest(key) as socket:
            await socket.send(json.dumps({"type": "session.open", "session_id": "s"}))
            await socket.recv()
            await socket.send(json.dumps([{"seq": seq, **event} for seq, event in enumerate(events, 1)]))
            frame = json.loads(await socket.recv())
            assert ("ack", 5) == (frame["type"], frame["seq"])


@PROXIES
async def test_metrics_stay_inside_and_keys_are_asked_for(serve: Serve, tmp_path: Path, proxy: Made) -> None:
    """`/metrics` is not passed on; without a key neither port answers, by the service's own word."""
    app = await serve()
    key = await make_key(app, "admin")
    assert 200 == (await (await client_with_key(app, "read")).get("/metrics")).status
    async with proxy(app, tmp_path) as front:
        assert 404 == (await ask(front, key, "GET", "/metrics"))[0]
        status, body = await ask(front, "none", "GET", "/v1/sessions")
        assert (401, "unauthorized") == (status, json.loads(body)["reason"])
        with pytest.raises(InvalidStatus) as refused:
            await front.ingest("none")
        assert 401 == refused.value.response.status_code


@PROXIES
async def test_a_drain_reaches_the_client(serve: Serve, tmp_path: Path, proxy: Made) -> None:
    """The goodbye and its close code come through."""
    app = await serve()
    key = await make_key(app, "admin")
    async with proxy(app, tmp_path) as front, front.ingest(key) as socket:
        await socket.send(json.dumps({"type": "session.open"}))
        await socket.recv()
        draining = asyncio.create_task(app.ingest.drain())
        assert "goaway" == json.loads(await socket.recv())["type"]
        await socket.wait_closed()
        assert 1012 == socket.close_code
        await draining
