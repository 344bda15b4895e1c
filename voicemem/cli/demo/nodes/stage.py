"""What runs for the demo of several nodes: PostgreSQL, two nodes, a proxy, and a receiver of webhooks."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from rich.console import Console

from voicemem.cli.demo.nodes.servers import NodeProcess, PostgresqlServer, Proxy, start_node
from voicemem.cli.demo.one_call import ANY_PORT
from voicemem.webhooks.endpoints import new_webhook_secret
from voicemem.webhooks.signing import WebhookEvent, WebhookReceiver


@dataclass
class Stage:
    """Everything that runs for the demo."""

    store: str
    postgresql_version: str
    nodes: list[NodeProcess]
    ingest: Proxy
    rest: Proxy
    http: aiohttp.ClientSession
    """Asks the REST API, through the proxy."""
    notices: list[WebhookEvent]
    """The webhooks that have come."""
    clients: AsyncExitStack
    """The clients of producers, which are closed first."""

    @property
    def url(self) -> str:
        """Where producers connect."""
        return f"ws://{self.ingest.address}/v1/ingest"


@asynccontextmanager
async def staged(console: Console) -> AsyncIterator[Stage]:
    """Start it all on free ports, and stop it at the end of the block. Raises `CommandFailed`."""
    async with AsyncExitStack() as stack:
        with console.status("PostgreSQL starts"):
            server = await asyncio.to_thread(PostgresqlServer)
            stack.push_async_callback(asyncio.to_thread, server.remove)
            await asyncio.to_thread(server.start)
        notices: list[WebhookEvent] = []
        secret = new_webhook_secret()
        receiver = WebhookReceiver(secret, notices.append)
        stack.push_async_callback(receiver.stop)
        settings = {
            "VOICEMEM_STORE": server.url(),
            "VOICEMEM_WEBHOOK_URL": f"http://{await receiver.start(ANY_PORT)}/voicemem",
            "VOICEMEM_WEBHOOK_SECRET": secret,
        }
        nodes = await start_nodes(console, settings, stack)
        ingest, rest = Proxy([node.ingest for node in nodes]), Proxy([node.rest for node in nodes])
        for proxy in (ingest, rest):
            await proxy.start()
            stack.push_async_callback(proxy.stop)
        http = await stack.enter_async_context(aiohttp.ClientSession(f"http://{rest.address}"))
        clients = await stack.enter_async_context(AsyncExitStack())
        yield Stage(server.url(), server.version, nodes, ingest, rest, http, notices, clients)


async def start_nodes(console: Console, settings: dict[str, str], stack: AsyncExitStack) -> list[NodeProcess]:
    """Two nodes with the same settings."""
    logs = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="voicemem-demo-")))
    nodes = []
    with console.status("Two nodes start"):
        for name in "AB":
            nodes.append(await start_node(name, settings, logs))
            stack.push_async_callback(nodes[-1].stop)
    return nodes
