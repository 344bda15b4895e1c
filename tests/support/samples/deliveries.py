"""The state of a delivery in a file."""

from __future__ import annotations

from pathlib import Path

from tests.support.events import delta, done, final
from tests.support.servers.webhook_receiver import WebhookEvent
from voicemem.protocol.types import JsonObject
from voicemem.store.sqlite.store import SqliteStore

WHSEC = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
HELLO: list[JsonObject] = [final(1, "Hi."), delta(1, "Good day."), done(1)]


def texts(webhook_event: WebhookEvent) -> list[str]:
    return [one["content"] for one in webhook_event.payload["contents"]]


async def state_in(path: Path) -> str:
    """How the delivery of the session `s` stands in a file."""
    store = SqliteStore(str(path))
    try:
        stream = await store.journal.find_session("default", "s")
        assert stream is not None
        (delivery,) = await store.deliveries.list_deliveries(stream.key)
        return delivery.state
    finally:
        await store.close_store()
