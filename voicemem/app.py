"""The one place where the parts are put together, started, and stopped in reverse."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any

from aiohttp import web

from voicemem.config import service as rules
from voicemem.config.secrets import SessionPatch, llm_url, webhook_url
from voicemem.config.service import Address, Settings
from voicemem.context.plugins import policies_of
from voicemem.context.policies import Policies
from voicemem.context.summaries import Summaries, summarise_forever
from voicemem.context.summary_writer import SummaryWriter
from voicemem.errors import Refused, StoreRuined
from voicemem.gateway.service import Gateway
from voicemem.llm.client import LanguageModels, Patience
from voicemem.llm.targets import Target, Targets
from voicemem.memory.working_memory import WorkingMemory
from voicemem.runtime import Clock, new_id, new_secret, now_ms
from voicemem.security.access import Access
from voicemem.security.address_guard import allowed_networks, check_url
from voicemem.security.gate import Gate
from voicemem.security.rate_limits import Limits
from voicemem.server import agora
from voicemem.server.http.listener import listen
from voicemem.server.http.request import Parts
from voicemem.server.ingest.server import Ingest
from voicemem.server.rest import application
from voicemem.sessions.cache import Memories, look_after_forever
from voicemem.sessions.gauges import Gauges
from voicemem.sessions.lifecycle import Sessions, sweep_forever
from voicemem.sessions.recorder import Recorder
from voicemem.sessions.retention import Retention, compact_forever, erase_forever
from voicemem.sessions.tails.hub import Tails
from voicemem.sessions.tails.session import Sources
from voicemem.store.engines import open_store
from voicemem.store.port import Store
from voicemem.telemetry.metrics import Metrics
from voicemem.telemetry.tracing import NoTracer, Tracer
from voicemem.webhooks.endpoints import Webhooks
from voicemem.webhooks.outbox import Outbox
from voicemem.webhooks.sender import WebhookSender, observe_webhooks

LOG = logging.getLogger("voicemem")
RESTORES = 2
"""Checkpoints that are restored at a time, each with a body of up to 64 MiB."""
GRACE_S = 2.0
"""For REST requests and webhook attempts that are under way when the service stops."""


def make_access(store: Store, admin_key: str | None = None, clock: Clock = now_ms) -> Access:
    return Access(store, clock, new_secret, admin_key)


def settings_check(settings: Settings, policies: Policies) -> Callable[[SessionPatch], None]:
    """Refuses what only this service can tell: policies that it has not, receivers and LLMs that it may not call.

    Only those whose address shows it by its text; the others are seen at connect.
    """
    check_address = address_check(settings)

    def check(settled: SessionPatch) -> None:
        for url in (webhook_url(settled), llm_url(settled)):
            if url is not None:
                check_address(url)
        try:
            policies.check(settled.public.get("memory"))
        except Refused as refused:
            if refused.__cause__ is not None:  # the caller is not told what a policy of the operator's own says
                LOG.warning("%s %r", refused.detail, refused.__cause__)
            raise

    return check


def default_llm(settings: Settings) -> Target | None:
    """The LLM of sessions that give none, if the operator has one."""
    if settings.llm_url is None:
        return None
    return Target(settings.llm_url, settings.llm_api_key, guarded=False, model=settings.llm_model)


def address_check(settings: Settings) -> Callable[[str], None]:
    """Refuses a URL that came through the API and may not be called, as far as its text shows."""
    allowed = allowed_networks(settings.allow_addresses)
    return lambda url: check_url(url, allowed)


class App:
    """The whole service, running. All of it goes by `clock`."""

    def __init__(
        self, settings: Settings, store: Store, sender: WebhookSender, clock: Clock, tracer: Tracer | None = None
    ) -> None:
        self.settings = settings
        self.store = store
        self.sender = sender
        self.clock = clock
        self.tracer = tracer or NoTracer()
        self.metrics = Metrics()
        self.access = make_access(store, settings.admin_key, clock)
        self.memories = Memories(store)
        policies = policies_of(settings)
        check_settings = settings_check(settings, policies)
        self.sessions = Sessions(store, clock, new_id, check_settings)
        self.recorder = Recorder(store, self.memories, clock, check_settings, self.metrics, self.tracer)
        send = observe_webhooks(sender.send, self.metrics, self.tracer)
        self.outbox = Outbox(store, self.memories, send, clock, random.random)
        self.working_memory = WorkingMemory(store, self.memories, clock)
        self.retention = Retention(store, self.memories, clock)
        allowed = allowed_networks(settings.allow_addresses)
        patience = Patience(read_s=settings.llm_timeout)
        self.llm = LanguageModels(allowed=allowed, patience=patience, more_headers=self.tracer.headers)
        targets = Targets(store, default_llm(settings))
        self.gateway = Gateway(
            self.memories,
            policies,
            self.working_memory,
            self.recorder,
            targets,
            self.llm,
            clock,
            new_id,
            self.metrics,
            self.tracer,
        )
        write = SummaryWriter(targets, self.llm.complete, self.metrics).write
        self.summaries = Summaries(store, self.memories, policies, write, clock, random.random)
        self.recorder.listeners.append(self.summaries.note)
        self.draining = asyncio.Event()
        limits = Limits(clock, settings.request_rate, settings.event_rate)
        gate = Gate(self.access, settings.insecure, limits)
        self.ingest = Ingest(self.recorder, self.sessions, gate, store.incarnation)
        self.webhooks = Webhooks(store, send, clock, new_id, self.sessions.notices_due, address_check(settings))
        tails = Tails(Sources(store, self.memories, clock, self.draining), self.recorder)
        self.gauges = Gauges(
            self.metrics, store, self.memories, self.sessions, clock, self.open_connections, self.draining.is_set
        )
        parts = Parts(
            store,
            self.memories,
            self.recorder,
            self.sessions,
            self.draining,
            self.access,
            limits,
            self.metrics,
            self.gauges,
            tails,
            self.webhooks,
            policies,
            self.summaries,
            self.gateway,
            self.working_memory,
            asyncio.Semaphore(RESTORES),
        )
        rest = application(parts, gate, self.tracer, agora.DOCUMENTED)
        agora.mount(rest, gate, settings.agora_contents)
        self.runner = web.AppRunner(rest, access_log=None, shutdown_timeout=GRACE_S)
        self.failed = asyncio.Event()
        """Set when the service cannot go on."""
        self.tasks: list[asyncio.Task[None]] = []
        self.rest_server: asyncio.Server | None = None
        self.rest_address = settings.rest
        self.ingest_address = settings.ingest

    async def start(self) -> None:
        """Take up what the last process left, then listen. Raises `CannotStart`, `OSError`."""
        rules.check_binding(self.settings, await self.access.needed())
        await self.store.set_operator_endpoint(self.settings.webhook_url, self.settings.webhook_secret)
        await self.store.restart(self.clock())
        await self.store.release_exports(self.clock())
        await self.sender.open()
        if self.settings.llm_url is not None:
            await self.llm.open()
        self.run_in_background(sweep_forever(self.sessions))
        self.run_in_background(self.ingest.look_after_grants())
        self.run_in_background(self.outbox.run(self.sessions.notices_due))
        self.run_in_background(erase_forever(self.retention))
        self.run_in_background(compact_forever(self.retention))
        self.run_in_background(look_after_forever(self.memories))
        self.run_in_background(summarise_forever(self.summaries))
        await self.runner.setup()
        with binding("--rest"):
            self.rest_server = await listen(self.runner, self.settings.rest)
        self.rest_address = Address(self.settings.rest.host, self.rest_server.sockets[0].getsockname()[1])
        with binding("--ingest"):
            self.ingest_address = await self.ingest.start(self.settings.ingest)

    def open_connections(self) -> dict[str, int]:
        rest = self.runner.server
        return {"websocket": len(self.ingest.connections), "rest": 0 if rest is None else len(rest.connections)}

    def run_in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        task.add_done_callback(self.note_end)
        self.tasks.append(task)

    def note_end(self, task: asyncio.Task[None]) -> None:
        """Background work never ends by itself; without it the service must not go on as if all were well."""
        if task.cancelled():
            return
        error = task.exception()
        if isinstance(error, StoreRuined):
            LOG.critical("%s Nothing more is acknowledged; the service ends.", error.detail)
        else:
            LOG.critical("Background work has failed", exc_info=error)
        self.failed.set()

    async def stop(self) -> None:
        """Drain: nothing new, everything received stored and acknowledged, exports kept for the next process."""
        self.draining.set()
        await self.gateway.drain()
        await self.ingest.drain()
        if self.rest_server is not None:
            self.rest_server.close()
        await self.runner.cleanup()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.summaries.stop()
        await self.outbox.finish_running(GRACE_S)
        await self.memories.save_all(GRACE_S)
        await self.sender.close()
        await self.llm.close()


@contextlib.contextmanager
def binding(flag: str) -> Iterator[None]:
    """Says which setting is to be changed when the service cannot listen. Raises `OSError`."""
    try:
        yield
    except OSError as error:
        raise OSError(f"{flag}: {error.strerror or error}") from None


@contextlib.asynccontextmanager
async def running(settings: Settings, clock: Clock | None = None, tracer: Tracer | None = None) -> AsyncIterator[App]:
    """The service, from here to the end of the block. Raises `CannotStart`, `OSError`."""
    rules.check(settings)
    tracer = tracer or NoTracer()
    sender = WebhookSender(allowed=allowed_networks(settings.allow_addresses), more_headers=tracer.headers)
    store = open_store(settings.store)
    try:
        app = App(settings, store, sender, clock or now_ms, tracer)
        try:
            await app.start()
            yield app
        finally:
            await app.stop()
    finally:
        await store.close_store()
