"""The one place where the parts are put together, started, and stopped in reverse."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import secrets
import string
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any

from aiohttp import web

from voicemem import settings as rules
from voicemem.access import Access
from voicemem.config import Settled, llm_url, webhook_url
from voicemem.errors import Refused, StoreRuined
from voicemem.gateway import Gateway
from voicemem.gauges import Gauges
from voicemem.limits import Limits
from voicemem.llm import LanguageModels, Patience
from voicemem.memories import Memories, look_after_forever
from voicemem.metrics import Metrics
from voicemem.outbound import allowed_networks, check_url
from voicemem.outbox import Outbox
from voicemem.plugins import policies_of
from voicemem.policies import Policies
from voicemem.recorder import Recorder
from voicemem.retention import Retention, compact_forever, erase_forever
from voicemem.server import agora
from voicemem.server.auth import Gate
from voicemem.server.http import listen
from voicemem.server.ingest import Ingest
from voicemem.server.observed import observe_webhooks
from voicemem.server.rest import application
from voicemem.server.rest.parts import Parts
from voicemem.server.webhook import WebhookSender
from voicemem.sessions import Sessions, sweep_forever
from voicemem.settings import MEMORY, SQLITE, Address, Settings
from voicemem.store.base import Store
from voicemem.store.memory import MemoryStore
from voicemem.store.sqlite import SqliteStore
from voicemem.summaries import Summaries, summarise_forever
from voicemem.summary_writer import SummaryWriter
from voicemem.tail import Sources
from voicemem.tails import Tails
from voicemem.targets import Target, Targets
from voicemem.tracing import NoTracer, Tracer
from voicemem.webhooks import Webhooks
from voicemem.working_memory import WorkingMemory

LOG = logging.getLogger("voicemem")
RESTORES = 2
"""Checkpoints that are restored at a time, each with a body of up to 64 MiB."""
LETTERS = string.ascii_letters + string.digits
Clock = Callable[[], int]
"""Gives Unix ms."""
GRACE_S = 2.0
"""For REST requests and webhook attempts that are under way when the service stops."""


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def new_id() -> str:
    return secrets.token_hex(16)


def new_secret(length: int) -> str:
    return "".join(secrets.choice(LETTERS) for _ in range(length))


def open_store(url: str, exclusive: bool = True) -> Store:
    """The store of a setting, `sqlite:PATH` or `memory:`. Raises `CannotStart`."""
    if url == MEMORY:
        return MemoryStore()
    return SqliteStore(url.removeprefix(SQLITE), exclusive)


def make_access(store: Store, admin_key: str | None = None, clock: Clock = now_ms) -> Access:
    return Access(store, clock, new_secret, admin_key)


def settings_check(settings: Settings, policies: Policies) -> Callable[[Settled], None]:
    """Refuses what only this service can tell: policies that it has not, receivers and LLMs that it may not call.

    Only those whose address shows it by its text; the others are seen at connect.
    """
    check_address = address_check(settings)

    def check(settled: Settled) -> None:
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
