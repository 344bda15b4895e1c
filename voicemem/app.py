"""The service as a whole: starts the servers and background tasks, and stops them in reverse order."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any

from aiohttp import web

from voicemem.compat.agent_memory_server.routes import register_agent_memory_server
from voicemem.compat.agora import register_agora
from voicemem.config import service as rules
from voicemem.config.service import MIB, NO_WEBHOOK, Address, Settings
from voicemem.context.policy_registry import load_policies
from voicemem.errors import StoreRuined
from voicemem.runtime import Clock, MemoryBudget, Runtime, cancel_all
from voicemem.security.access import Gate
from voicemem.server import page
from voicemem.server.http.application import Application
from voicemem.server.http.connections import PortConnections, ingest_limits, listen, rest_limits
from voicemem.server.http.request import DECODING, GAUGES, Decoding
from voicemem.server.ingest.server import IngestServer
from voicemem.server.page.login import PageOrigin
from voicemem.server.rest import application
from voicemem.services import GRACE_S, Services, repeat
from voicemem.sessions.gauges import Gauges
from voicemem.sessions.node_lease import LEASES_INTERVAL_S
from voicemem.sessions.recording.redaction import load_rules
from voicemem.store.engines import open_store
from voicemem.telemetry import Telemetry
from voicemem.telemetry.metrics import Metrics, Tracer

LOG = logging.getLogger("voicemem")
EVERYWHERE = (rules.ANY_HOST, "::")
COMPAT: tuple[Callable[[Application, Gate], None], ...] = (
    register_agora,
    register_agent_memory_server,
)
"""APIs of other products, added to the REST application: one per line, so that each can be removed."""


class App:
    """The whole service: its use cases, its servers, and its background tasks."""

    def __init__(self, settings: Settings, services: Services) -> None:
        self.settings = settings
        self.services = services
        gate = Gate(services.access, settings.insecure, services.limits)
        self.decoding = Decoding()
        metrics, per_address = services.telemetry.metrics, settings.connections_per_address
        refused = metrics.connections_refused.labels("rest")
        self.ingest = IngestServer(
            services.recorder,
            services.presence,
            gate,
            self.decoding,
            ingest_limits(per_address),
            settings.ingest_looks,
        )
        self.rest_connections = PortConnections(rest_limits(per_address), refused.inc)
        rest = application(services, gate)
        rest[DECODING] = self.decoding
        for register in COMPAT:
            register(rest, gate)
        if settings.ui:
            page.mount(rest, gate, PageOrigin(settings.ui_origin, settings.insecure))
        self.gauges = rest[GAUGES] = Gauges(
            metrics,
            services.runtime.clock,
            services.presence,
            services.read_models,
            self.open_connections,
            self.unauthenticated_connections,
            services.draining.is_set,
            services.node,
        )
        self.rest = rest
        self.runner = web.ServerRunner(rest.server(), shutdown_timeout=GRACE_S)
        self.failed = asyncio.Event()
        """Set when the service cannot continue and must end."""
        self.tasks: list[asyncio.Task[None]] = []
        self.rest_server: asyncio.Server | None = None
        self.rest_address = settings.rest
        self.ingest_address = settings.ingest

    async def start(self) -> None:
        """Recover what the last process left unfinished, then listen. Raises `CannotStart`, `OSError`."""
        services, now = self.services, self.services.runtime.clock()
        rules.check_binding(self.settings, await services.access.needs_key())
        await self.set_operator_endpoint(now)
        await self.runner.setup()
        with naming_flag("--rest"):
            self.rest_server = await listen(
                self.runner, self.settings.rest, connections=self.rest_connections, start_serving=False
            )
        self.rest_address = Address(self.settings.rest.host, self.rest_server.sockets[0].getsockname()[1])
        await services.node.start(node_address(self.rest_address))
        services.node.fenced_listeners.append(self.ingest.reconnect_all)
        await services.sender.open()
        for work in (*services.background(), self.ingest.enforce_grants()):
            self.run_in_background(work)
        if not services.store.is_exclusive:
            self.run_in_background(repeat(self.poll_leases, LEASES_INTERVAL_S))
        with naming_flag("--rest"):
            await self.rest_server.start_serving()
        with naming_flag("--ingest"):
            self.ingest_address = await self.ingest.start(self.settings.ingest)

    async def poll_leases(self) -> None:
        await self.services.watcher.poll_leases(self.ingest.held_leases(), self.ingest.supersede)

    async def set_operator_endpoint(self, now_ms: int) -> None:
        """Set the operator's webhook, or turn it off; without a setting, all nodes keep what another start has set."""
        directory, settings = self.services.store.directory, self.settings
        if settings.webhook_url == NO_WEBHOOK:
            await directory.turn_off_operator_endpoint()
        elif settings.webhook_url is not None:
            operators = settings.webhook_url, settings.webhook_secret, settings.webhook_contents
            await directory.set_operator_endpoint(*operators, now_ms, settings.webhook_include)

    def open_connections(self) -> dict[str, int]:
        rest = self.runner.server
        return {"websocket": len(self.ingest.connections), "rest": 0 if rest is None else len(rest.connections)}

    def unauthenticated_connections(self) -> dict[str, int]:
        return {"websocket": len(self.ingest.port.unauthenticated), "rest": len(self.rest_connections.unauthenticated)}

    def run_in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        task.add_done_callback(self.on_background_end)
        self.tasks.append(task)

    def on_background_end(self, task: asyncio.Task[None]) -> None:
        """End the service when a background task has failed; none of them ends by itself."""
        if task.cancelled():
            return
        error = task.exception()
        if isinstance(error, StoreRuined):
            LOG.critical("%s Nothing more is acknowledged, and the service ends.", error.detail)
        else:
            LOG.critical("Background work has failed", exc_info=error)
        self.failed.set()

    async def stop(self) -> None:
        """Drain: accept nothing new, store and acknowledge everything received, leave deliveries to the next start."""
        self.services.draining.set()
        await self.services.gateway.drain()
        await self.ingest.drain()
        await self.services.observers.close(GRACE_S)
        if self.rest_server is not None:
            self.rest_server.close()
        await self.runner.cleanup()
        self.decoding.close()
        await cancel_all(self.tasks)
        await self.services.close()


def node_address(rest: Address) -> str:
    """Return the address of a node, for people; a node that listens on all interfaces has its host's name."""
    return str(Address(socket.gethostname(), rest.port) if rest.host in EVERYWHERE else rest)


@contextlib.contextmanager
def naming_flag(flag: str) -> Iterator[None]:
    """Add the flag with the address to an error of listening. Raises `OSError`."""
    try:
        yield
    except OSError as error:
        raise OSError(f"{flag}: {error.strerror or error}") from None


@contextlib.asynccontextmanager
async def running(settings: Settings, clock: Clock | None = None, tracer: Tracer | None = None) -> AsyncIterator[App]:
    """Run the service until the end of the block. Raises `CannotStart`, `OSError`."""
    rules.check_service_settings(settings)
    policies, redacted = load_policies(settings), load_rules(settings)
    runtime = Runtime() if clock is None else Runtime(clock=clock)
    budget = MemoryBudget(settings.memory_budget * MIB)
    store = open_store(settings.store, budget=budget)
    try:
        telemetry = Telemetry(Metrics(), tracer or Tracer())
        app = App(settings, Services(store, settings, policies, runtime, telemetry, budget=budget, rules=redacted))
        try:
            await app.start()
            yield app
        finally:
            await app.stop()
    finally:
        await store.close_store()
