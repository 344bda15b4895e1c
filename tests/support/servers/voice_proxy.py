"""`voicemem proxy` in the process of the test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from voicemem.app import App
from voicemem.config.service import Address
from voicemem.proxy.server import ProxyServer
from voicemem.proxy.settings import Settings, UpstreamKey, check_settings, parse_upstreams


class RunningProxy:
    """A proxy that takes calls."""

    def __init__(self, server: ProxyServer, port: int) -> None:
        self.server = server
        self.port = port

    def url(self, dialect: str) -> str:
        scheme = "ws" if self.server.settings.tls_cert is None else "wss"
        return f"{scheme}://127.0.0.1:{self.port}/v1/proxy/{dialect}"


@asynccontextmanager
async def proxy_to(
    app: App | None,
    upstreams: dict[str, str],
    keys: dict[str, UpstreamKey] | None = None,
    limits: dict[str, Any] | None = None,
    **settings: Any,
) -> AsyncIterator[RunningProxy]:
    """A proxy in front of these upstreams, which remembers in a service; None for a memory that no one reaches.

    `limits` are further arguments of `ProxyServer`.
    """
    memory = {"ingest_url": "ws://127.0.0.1:1", "rest_url": "http://127.0.0.1:1"}
    if app is not None:
        memory = {"ingest_url": f"ws://{app.ingest_address}", "rest_url": f"http://{app.rest_address}"}
    texts = [f"{dialect}={url}" for dialect, url in upstreams.items()]
    chosen = Settings(
        **{
            "upstreams": parse_upstreams(texts, keys or {}),
            "listen": Address("127.0.0.1", 0),
            **memory,
            **settings,
        }
    )
    check_settings(chosen)
    server = ProxyServer(chosen, **(limits or {}))
    try:
        yield RunningProxy(server, await server.start())
    finally:
        await server.close()
