"""Health checks and metrics on the port of the calls (docs/proxy.md)."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import re
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families
from websockets.asyncio.client import connect

from tests.support.callers.tees import vendor_at
from tests.support.documentation import TEXTS
from tests.support.servers.voice_proxy import RunningProxy, proxy_to
from tests.support.waiting import eventually
from voicemem.app import App
from voicemem.errors import Refused
from voicemem.proxy.requests import parse_request

DIALECT = "openai-realtime"
FRAME = '{"type":"session.created","event_id":"event_1","session":{"id":"sess_1"}}'


async def ask(proxy: RunningProxy, path: str, method: str = "GET") -> tuple[int, Any]:
    async with (
        aiohttp.ClientSession() as http,
        http.request(method, f"http://127.0.0.1:{proxy.port}{path}") as answer,
    ):
        return answer.status, await (answer.text() if path == "/metrics" else answer.json(content_type=None))


async def test_health(app: App) -> None:
    """It is live as long as it answers, and ready until it drains; a memory that is away changes neither."""
    async with vendor_at() as (url, vendor), proxy_to(app, {DIALECT: url}) as proxy:
        assert (200, {"status": "ok"}) == await ask(proxy, "/healthz")
        assert (200, {"status": "ok", "calls": 0, "memory": "not connected"}) == await ask(proxy, "/readyz")
        async with connect(proxy.url(DIALECT)) as caller:
            await (await vendor.connected).send(FRAME)
            await caller.recv()

            async def state() -> Any:
                return (await ask(proxy, "/readyz"))[1]

            await eventually({"status": "ok", "calls": 1, "memory": "connected"}, state)
            proxy.server.drain()
            status, problem = await ask(proxy, "/readyz")
            assert (503, "draining") == (status, problem["reason"])
            assert 200 == (await ask(proxy, "/livez"))[0]
            assert 405 == (await ask(proxy, "/healthz", "POST"))[0]
            assert [(200, None), (503, None), (404, None)] == [
                await ask(proxy, path, "HEAD") for path in ("/livez", "/readyz", "/v1")
            ]


async def test_idle_connections_of_a_stranger_keep_no_one_out(app: App) -> None:
    """The oldest of them gives way; health checks and calls are answered beside as many as there may be."""
    async with vendor_at() as (url, _), proxy_to(app, {DIALECT: url}, limits={"max_waiting": 5}) as proxy:
        at = "127.0.0.1", proxy.port
        idle = [await asyncio.open_connection(*at, local_addr=("127.0.0.2", 0)) for _ in range(12)]
        assert 200 == (await ask(proxy, "/livez"))[0]
        async with connect(proxy.url(DIALECT)):
            pass
        assert b"503" in await idle[0][0].readline()
        assert len(proxy.server.waiting) <= 5
        for _, writer in idle:
            writer.transport.abort()


async def test_metrics(app: App) -> None:
    """What crosses is counted, by what and by whom; each metric is in the docs, with its labels, and no other."""
    async with vendor_at() as (url, vendor), proxy_to(app, {DIALECT: url}) as proxy:
        async with connect(proxy.url(DIALECT)) as caller:
            await (await vendor.connected).send(FRAME)
            await caller.recv()
            await caller.send("no frame")

            async def counted() -> int:
                return sum(proxy.server.memories.counts().values())

            await eventually(2, counted)
        for call in list(proxy.server.calls):
            await call
        assert 404 == (await ask(proxy, "/nothing"))[0]
        _, text = await ask(proxy, "/metrics")
    assert f'voicemem_proxy_calls_total{{dialect="{DIALECT}",result="accepted"}} 1' in text
    assert f'voicemem_proxy_messages_total{{dialect="{DIALECT}",sender="upstream"}} 1' in text
    assert f'voicemem_proxy_messages_total{{dialect="{DIALECT}",sender="caller"}} 1' in text
    assert 'voicemem_proxy_frames_total{result="malformed"} 1' in text
    assert 'voicemem_proxy_refused_requests_total{code="not_found"} 1' in text
    rows = re.findall(r"^\| `(voicemem_proxy_\w+)` \| (.*?) ?\| (\w+) \|", TEXTS["proxy.md"], re.MULTILINE)
    documented = {name: kind for name, _, kind in rows}
    families = {
        one.name + ("_total" if one.type == "counter" else ""): one for one in text_string_to_metric_families(text)
    }
    assert documented == {name: one.type for name, one in families.items()}
    for name, labels, _ in rows:
        shown = {label for sample in families[name].samples for label in sample.labels}
        assert [label for label in shown if f"`{label}`" not in labels] == []


async def test_metrics_are_the_operator_s(app: App) -> None:
    """Beyond this machine, who asks must show the proxy's own key."""
    async with proxy_to(app, {DIALECT: "ws://127.0.0.1:1"}, key="the proxy's own") as proxy:
        server = proxy.server
        bare = parse_request(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        shown = parse_request(b"GET /metrics HTTP/1.1\r\nAuthorization: Bearer the proxy's own\r\n\r\n")
        assert server.answer_health(bare, "127.0.0.1")
        assert server.answer_health(shown, "203.0.113.1")
        with pytest.raises(Refused, match="proxy's own key"):
            server.answer_health(bare, "203.0.113.1")
