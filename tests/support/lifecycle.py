"""What tests of the life of a session share."""

from __future__ import annotations

from tests.support.stores.contract import append_batch
from voicemem.config.session import SessionPatch
from voicemem.sessions.lifecycle import Presence
from voicemem.sessions.recording.batches import ProducerLease
from voicemem.store.append_rules import Offer
from voicemem.store.records import OpenResult
from voicemem.store.streams import SessionEnding

NOW = 1_778_390_400_000


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> int:
        return self.now


def anything(session_patch: SessionPatch) -> None:
    """Settings that may all be set."""


async def opened(presence: Presence, session_id: str = "s", producer: str = "main") -> ProducerLease:
    """A line of a connection that has opened a session, as a connection does it."""
    one: OpenResult = await presence.sessions.store.journal.open_producer(
        "p", session_id, producer, SessionPatch({}, {}), None, presence.sessions.clock()
    )
    lease = ProducerLease(one.stream, producer, one.epoch, may_call_out=False)
    presence.connect(lease)
    return lease


async def ended(presence: Presence, line: ProducerLease) -> None:
    """Commit a producer's end."""
    offer = Offer(1, presence.sessions.clock(), b'{"type":"session.end","seq":1}', ending=SessionEnding(NOW, "left"))
    await append_batch(
        presence.sessions.store.journal, line.key, line.producer, line.epoch, [offer], presence.sessions.clock()
    )
