"""The use cases, put together once, for the service and for the library."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any

from voicemem.config.service import Settings, key_command, parse_assistants, parse_memories_ttl, parse_variables
from voicemem.config.session import SessionPatch, outbound_urls
from voicemem.context.caller_variables import CallerVariables
from voicemem.context.policy_registry import Policies
from voicemem.context.recall import Recall
from voicemem.context.summaries import LOOK_INTERVAL_S, Summaries
from voicemem.errors import Refused, StoreUnavailable
from voicemem.gateway.service import Gateway
from voicemem.gateway.session_address import SessionLocator
from voicemem.llm.background import BackgroundLlm, ConcurrencyLimiter
from voicemem.llm.client import LlmClient, Timeouts
from voicemem.llm.embeddings import Embedder
from voicemem.llm.endpoints import EMBEDDINGS_PATH, LlmEndpoint, LlmEndpoints
from voicemem.memory.extraction.extractor import DailyBudget, Extractor
from voicemem.memory.extraction.worker import ExtractionWorker, extract_forever
from voicemem.memory.long_term.memories import LongTermMemory
from voicemem.memory.long_term.removal import MemoryKeeper, expire_memories_forever
from voicemem.memory.search import MemoryFinder, Vectors
from voicemem.memory.statistics import PAUSE_S, MemoryDetailsReader, Overviews
from voicemem.memory.transcript_index import TranscriptIndexer, index_forever
from voicemem.memory.vectors import QueryVectors, VectorMaker, make_vectors_forever
from voicemem.memory.working_memory import WorkingMemory
from voicemem.observer.observers import Observers, ObserverSettings, observe_forever
from voicemem.observer.vendors import parse_observe_urls
from voicemem.redaction.texts import Rules
from voicemem.runtime import MemoryBudget, Runtime
from voicemem.security.access import DEFAULT_PROJECT, KEY_CACHE_MS, Access
from voicemem.security.address_guard import allowed_networks, check_url
from voicemem.security.caller_ids import Callers, parse_identify_rules
from voicemem.security.hook_secrets import HookSecrets, parse_hook_secrets
from voicemem.security.rate_limits import RateLimits
from voicemem.sessions.inbound_webhooks import InboundWebhooks
from voicemem.sessions.lifecycle import SWEEP_S, Presence, Sessions
from voicemem.sessions.node_lease import NodeClock, NodeLease, Watcher, beat_forever, watch_journals_forever
from voicemem.sessions.read_models import maintenance
from voicemem.sessions.read_models.cache import ReadModelCache
from voicemem.sessions.recording.recorder import Recorder
from voicemem.sessions.recording.redaction import Redaction
from voicemem.sessions.retention import IDLE_PAUSE_S, RetentionWorker
from voicemem.sessions.tails.followed import FollowedSessions
from voicemem.sessions.tails.several import TailHub
from voicemem.sessions.tails.tail import TailSources
from voicemem.store.port import Store
from voicemem.store.records import Quotas
from voicemem.telemetry import Telemetry
from voicemem.telemetry.recent import RecentMetrics, measure_loop_lag_forever, sample_forever
from voicemem.webhooks.complete_turns import TURNS_PAUSE_S, TurnFeed
from voicemem.webhooks.endpoints import Webhooks
from voicemem.webhooks.outbox import OutboxWorker
from voicemem.webhooks.requests import WebhookSender, observe_webhooks

LOG = logging.getLogger("voicemem")
CONCURRENT_RESTORES = 2
"""Each may have a body of up to 64 MiB."""
EMBEDDING_TIMEOUTS = Timeouts(read_s=30.0, total_s=60.0)
GRACE_S = 2.0
"""How long work that is under way may take when the services are closed."""


class Services:
    """Every use case of one store. Nothing runs on its own until the coroutines of `background` are started."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        policies: Policies,
        runtime: Runtime,
        telemetry: Telemetry,
        check_context: Callable[[Any], None] | None = None,
        budget: MemoryBudget | None = None,
        rules: Rules | None = None,
    ) -> None:
        """Wire the use cases. The store was opened with `budget`; `rules` say what is redacted.

        `check_context` raises `Refused` for a section `memory` that is not valid. By default the policies check it, and
        the cause of a refusal goes to the log only.
        """
        node_clock = None if store.is_exclusive else NodeClock(runtime.clock)
        self.store = store
        self.settings = settings
        self.runtime = runtime if node_clock is None else runtime._replace(clock=node_clock)
        self.telemetry = telemetry
        self.policies = policies
        self.rules = rules
        self.budget = budget or MemoryBudget()
        self.recent = RecentMetrics(telemetry.metrics)
        self.draining = asyncio.Event()
        """Set when the service begins to shut down."""
        self.restore_slots = asyncio.Semaphore(CONCURRENT_RESTORES)
        self.allowed = allowed_networks(settings.allow_addresses)
        """Private networks that may be called all the same."""
        self.node = NodeLease(store, self.runtime, node_clock)
        self.check_context = check_context or self.check_policies
        self.add_security()
        self.add_sessions()
        self.add_memory()
        self.add_reporting()
        self.add_llms()
        self.connect()

    def check_patch(self, patch: SessionPatch) -> None:
        """Check the parts that depend on this service: URLs that it may call, and policies that it has."""
        for url in outbound_urls(patch):
            check_url(url, self.allowed)
        self.check_context(patch.public.get("memory"))

    def check_policies(self, memory: Any) -> None:
        """Check a section `memory`; the errors of an operator's own policy are logged, and not shown to clients."""
        try:
            self.policies.check(memory)
        except Refused as refused:
            if refused.__cause__ is not None:
                LOG.warning("%s %r", refused.detail, refused.__cause__)
            raise

    def add_security(self) -> None:
        store, settings, clock = self.store, self.settings, self.runtime.clock
        bounds = settings.open_sessions, settings.sessions_per_day, settings.stored_bytes
        quotas = Quotas(*bounds, settings.ttl_seconds)
        store.set_quotas(quotas, self.telemetry.metrics.count_quota_refusal)
        self.access = Access(
            store.directory,
            self.runtime,
            settings.admin_key,
            0 if store.is_exclusive else KEY_CACHE_MS,
            key_command(settings.store),
        )
        secrets = parse_hook_secrets(settings.hook_secrets, DEFAULT_PROJECT)
        self.hook_secrets = HookSecrets(store.directory, secrets, clock)
        self.callers = Callers(store, clock, settings.phone_region, parse_identify_rules(settings.identify))
        self.limits = RateLimits(clock, settings.request_rate, settings.event_rate, settings.byte_rate)

    def add_sessions(self) -> None:
        store, metrics, node = self.store, self.telemetry.metrics, self.node
        self.read_models = ReadModelCache(
            store, self.budget, clock=self.runtime.clock, count_ignored=metrics.count_fold_ignored
        )
        self.sessions = Sessions(
            store, self.runtime, self.check_patch, self.read_models.note_closed, self.rules, self.callers
        )
        self.presence = Presence(self.sessions, self.draining)
        redaction = None if self.rules is None else Redaction(self.rules, store, metrics.redacted_events.inc)
        self.recorder = Recorder(
            store.journal, self.read_models, self.runtime, self.check_patch, self.telemetry, node, redaction
        )
        self.inbound_webhooks = InboundWebhooks(self.recorder, self.sessions, self.presence)
        self.overviews = Overviews(store, self.read_models)
        settings, urls = self.settings, parse_observe_urls(self.settings.observe_urls)
        self.observers = Observers(
            store.observations,
            self.recorder,
            self.presence,
            self.node,
            self.runtime,
            metrics,
            ObserverSettings(settings.observe_key, urls, settings.observe_limit),
        )

    def add_memory(self) -> None:
        store, clock, node = self.store, self.runtime.clock, self.node
        self.indexer = TranscriptIndexer(store, self.read_models, self.recorder.feed, clock, node)
        self.embeddings = LlmClient(allowed=self.allowed, timeouts=EMBEDDING_TIMEOUTS)
        self.vectors = self.make_vectors()
        ttl_ms = parse_memories_ttl(self.settings.memories_ttl)
        self.long_term = LongTermMemory(store, self.read_models, clock, self.rules, ttl_ms)
        self.finder = MemoryFinder(store, self.indexer, self.long_term, self.vectors)
        self.recall = Recall(store, clock, self.indexer.index)
        self.caller_variables = CallerVariables(
            store,
            self.policies,
            clock,
            self.indexer.index,
            parse_variables(self.settings.variables),
            parse_assistants(self.settings.vapi_assistants),
        )
        if self.settings.identify:
            self.policies.counter(None)  # its table is loaded before a phone rings
        self.working_memory = WorkingMemory(store.journal, self.read_models, clock, self.rules)
        self.memory_details = MemoryDetailsReader(store.journal, self.read_models, self.working_memory)
        self.retention = RetentionWorker(store, self.read_models, clock, node, MemoryKeeper(store).keep)

    def make_vectors(self) -> Vectors | None:
        """Create what embeds indexed texts and queries; return None without an embedder."""
        settings = self.settings
        url, key, metrics = settings.embeddings_url, settings.embeddings_key, self.telemetry.metrics
        if url is None:
            return None
        endpoint = LlmEndpoint(url, key, public_only=False, model=settings.embeddings_model, path=EMBEDDINGS_PATH)
        embedder = Embedder(self.embeddings.complete, endpoint, settings.embeddings_dimensions, metrics)
        maker = VectorMaker(self.store, embedder, self.runtime, self.node)
        queries = QueryVectors(embedder, settings.embeddings_wait_ms, self.rules)
        return Vectors(maker, queries, settings.embeddings_weight, metrics.vector_scans_capped.inc)

    def add_reporting(self) -> None:
        store, runtime = self.store, self.runtime
        followed = FollowedSessions(self.read_models), self.memory_details
        sources = TailSources(store, *followed, runtime.clock, self.draining, page_lock=asyncio.Lock())
        self.tails = TailHub(sources, self.recorder.feed)
        self.watcher = Watcher(store, self.tails)
        self.sender = WebhookSender(allowed=self.allowed, extra_headers=self.telemetry.tracer.headers)
        send, due = observe_webhooks(self.sender.send, self.telemetry), self.sessions.webhooks_due
        self.outbox = OutboxWorker(store, self.read_models, send, runtime, self.node)
        self.indexer.count_payloads = lambda: self.outbox.steps
        self.turn_feed = TurnFeed(store, self.read_models, due, runtime)
        check = partial(check_url, allowed=self.allowed)
        self.webhooks = Webhooks(store.endpoints, store.deliveries, send, runtime, due, check)

    def add_llms(self) -> None:
        settings, store, runtime, node = self.settings, self.store, self.runtime, self.node
        timeouts = Timeouts(read_s=settings.llm_timeout, total_s=settings.llm_total_timeout)
        self.llm = LlmClient(allowed=self.allowed, timeouts=timeouts, extra_headers=self.telemetry.tracer.headers)
        url, key, model = settings.llm_url, settings.llm_api_key, settings.llm_model
        operators = None if url is None else LlmEndpoint(url, key, public_only=False, model=model)
        self.targets = LlmEndpoints(store.journal, operators)
        self.gateway = Gateway(
            self.recorder, self.policies, self.working_memory, self.targets, self.llm, store.claims, self.recall
        )
        self.session_locator = SessionLocator(self.sessions, self.targets)
        metrics = self.telemetry.metrics
        background_llm, limiter = BackgroundLlm(self.targets, self.llm.complete, metrics), ConcurrencyLimiter()
        self.summaries = Summaries(store, self.read_models, self.policies, background_llm, runtime, node, limiter)
        budget = DailyBudget(store, runtime.clock, settings.memories_budget)
        models, memory, policies = self.read_models, self.long_term, self.policies
        extractor = Extractor(store, models, memory, background_llm, policies, metrics, budget, self.rules)
        self.extractions = ExtractionWorker(extractor, policies, limiter, runtime, self.overviews.save, node)

    def connect(self) -> None:
        """Connect listeners to their sources; each list is called in its order."""
        self.outbox.find_analysis = self.extractions.find_analysis
        self.recorder.identify_caller = self.sessions.identify
        self.presence.answered = self.recorder.commits.answered
        self.recorder.commits.webhooks_due = self.sessions.webhooks_due
        self.node.count_listeners.append(self.limits.divide)
        self.node.displaced_listeners.append(self.read_models.discard_all)
        self.sessions.close_collectors.append(self.indexer.changed)
        self.sessions.change_listeners += [self.indexer.note, self.extractions.note]
        self.sessions.user_listeners.append(self.long_term.give_to_user)
        if self.vectors is not None:
            self.indexer.listeners.append(self.vectors.maker.messages.note)
            self.long_term.listeners.append(self.vectors.maker.memories.note)

    def background(self) -> list[Coroutine[Any, Any, None]]:
        """Return the background tasks of the service, and connect their sources; none of them ends by itself."""
        self.sessions.close_collectors += [self.overviews.closed, self.extractions.changed]
        self.recorder.feed.collectors += [self.extractions.changed, self.summaries.changed, self.turn_feed.changed]
        return [
            *(() if self.store.is_exclusive else (beat_forever(self.node), watch_journals_forever(self.watcher))),
            repeat(self.presence.sweep, SWEEP_S),
            observe_forever(self.observers),
            self.outbox.run(self.sessions.webhooks_due),
            repeat(self.retention.erase_all, IDLE_PAUSE_S),
            repeat(self.retention.compact_all, IDLE_PAUSE_S),
            repeat(partial(maintenance.maintain, self.read_models), maintenance.ROUND_S),
            repeat(partial(maintenance.fold_committed, self.read_models), maintenance.FOLD_S),
            maintenance.relieve_forever(self.read_models),
            # apart, since it may take long
            repeat(partial(maintenance.catch_up_lagging, self.read_models), maintenance.CATCH_UP_S),
            repeat(self.summaries.check_changed, LOOK_INTERVAL_S),
            repeat(self.overviews.make_pending, PAUSE_S),
            repeat(self.turn_feed.poll, TURNS_PAUSE_S),
            repeat(partial(self.long_term.give_named, self.recorder.commits.named), PAUSE_S),
            index_forever(self.indexer),
            *([] if self.vectors is None else [make_vectors_forever(self.vectors.maker)]),
            expire_memories_forever(self.long_term),
            extract_forever(self.extractions),
            measure_loop_lag_forever(self.telemetry.metrics.loop_lag_seconds),
            sample_forever(self.recent),
        ]

    async def close(self) -> None:
        """Finish the work that is under way. Call it once nothing new can come in."""
        await self.summaries.stop()
        await self.extractions.stop()
        await self.recall.finish()
        await self.outbox.finish_running(GRACE_S)
        await maintenance.save_all(self.read_models, GRACE_S)
        await self.sender.close()
        await self.llm.close()
        if self.vectors is not None:
            await self.vectors.queries.close()
        await self.embeddings.close()
        await self.node.stop()


async def repeat(work: Callable[[], Awaitable[object]], pause_s: float) -> None:
    """Background task: do the work, and again after each pause. While the store is away, due work stays due."""
    while True:
        with suppress(StoreUnavailable):
            await work()
        await asyncio.sleep(pause_s)
