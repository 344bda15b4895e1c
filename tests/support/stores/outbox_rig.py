"""A store with sessions that close, and outboxes at work on it, in a time that tests say."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from tests.support.clock import NOW, ManualClock
from tests.support.events import delta, final
from tests.support.stores.contract import append_batch
from voicemem.config.session import validate_config
from voicemem.protocol.types import JsonObject
from voicemem.runtime import Runtime
from voicemem.sessions.read_models.cache import ReadModelCache
from voicemem.store.append_rules import Offer
from voicemem.store.deliveries import Delivery
from voicemem.store.port import Store
from voicemem.store.streams import SessionEnding
from voicemem.webhooks.outbox import OutboxWorker
from voicemem.webhooks.requests import WebhookSender


class OutboxRig:
    """A store with its clock and a sender, and the outboxes that work on them."""

    def __init__(self, store: Store, sender: WebhookSender, clock: ManualClock) -> None:
        self.store = store
        self.sender = sender
        self.clock = clock
        self.outbox = self.another()

    def another(self, store: Store | None = None, sender: WebhookSender | None = None) -> OutboxWorker:
        """One more outbox, as another process would have it."""
        store = store or self.store
        return OutboxWorker(
            store, ReadModelCache(store), (sender or self.sender).send, Runtime(self.clock, random=lambda: 0.5)
        )

    async def begin(self, session_id: str = "s", **config: Any) -> int:
        """The key of a new session."""
        stream, _ = await self.store.journal.create_session(
            "default", session_id, validate_config(config), self.clock()
        )
        return stream.key

    async def say(self, key: int, *events: JsonObject) -> None:
        """Journal events of a session."""
        offers = [Offer(None, self.clock(), json.dumps(event).encode()) for event in events]
        await append_batch(self.store.journal, key, "main", None, offers, self.clock())

    async def close(self, key: int, notice_id: str = "n1", provisional: bool = False) -> None:
        ending = SessionEnding(self.clock(), "idle", provisional=provisional)
        assert await self.store.journal.close_session(key, ending, notice_id, self.clock())

    async def closed(self, session_id: str = "s", notice_id: str = "n1", **config: Any) -> int:
        """The key of a session with a few words that was just closed."""
        key = await self.begin(session_id, **config)
        await self.say(key, final(1, "Hi.", NOW - 9), delta(1, "Good day ", NOW - 5))
        await self.close(key, notice_id)
        return key

    async def attempt(self, outbox: OutboxWorker | None = None) -> int:
        """Make every attempt that is due now, each once; how many were made."""
        outbox = outbox or self.outbox
        count = await outbox.start_due()
        await asyncio.gather(*outbox.tasks)
        return count

    async def delivery(self, key: int) -> Delivery:
        """How the one delivery of a session stands."""
        (delivery,) = await self.store.deliveries.list_deliveries(key)
        return delivery

    async def due_in_s(self) -> float | None:
        """Seconds until the next attempt."""
        due = await self.store.outbox.next_delivery_ms()
        return None if due is None else (due - self.clock()) / 1000
