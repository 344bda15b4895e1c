"""Write a reply into the journal while it is streamed to the caller, and end replies that were left open."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Container, Iterable

import msgspec

from voicemem.errors import Refused, VoicememError
from voicemem.protocol.codec import decode_event
from voicemem.protocol.events import LlmDone, ProducedEvent
from voicemem.sessions.recording.batches import ProducerLease
from voicemem.sessions.recording.recorder import Recorder
from voicemem.store.streams import Stream
from voicemem.transcript.state import Reply, State


class ReplyWriter:
    """Writes the events of a reply in order, in the background: the stream to the caller does not wait for the disk."""

    def __init__(
        self, recorder: Recorder, lease: ProducerLease, begin: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """`begin` is awaited before the first event is written."""
        self.begin = begin
        self.recorder = recorder
        self.lease = lease
        self.pending: list[ProducedEvent] = []
        self.task: asyncio.Task[None] | None = None
        self.is_incomplete = False
        """Whether an event could not be stored; a later event may make up for it."""
        self.refused: Refused | None = None
        self.error: VoicememError | None = None
        """What kept the last events from being stored."""

    def add(self, *events: ProducedEvent) -> None:
        """Write events, together with all others that are waiting when the current commit is done."""
        self.pending += events
        if self.task is None:
            self.task = asyncio.create_task(self.run())

    async def run(self) -> None:
        try:
            while self.pending:
                events, self.pending = self.pending, []
                self.error = None
                try:
                    begin, self.begin = self.begin, None
                    if begin is not None:
                        await begin()
                    await record(self.recorder, self.lease, events)
                except VoicememError as error:
                    self.error, self.is_incomplete = error, True
                    if isinstance(error, Refused):
                        self.refused = error
        finally:
            self.task = None

    async def flush(self) -> None:
        """Wait until everything is written; that happens even if the caller is cancelled."""
        while self.task is not None:
            await asyncio.shield(self.task)


async def record(recorder: Recorder, lease: ProducerLease, events: Iterable[ProducedEvent]) -> Stream:
    """Journal events; the session's row after them. Raises `Refused` for the first refused one, `StoreUnavailable`."""
    recorded = await record_after(recorder, lease, events, None)
    assert recorded is not None
    return recorded


async def record_after(
    recorder: Recorder, lease: ProducerLease, events: Iterable[ProducedEvent], position: int | None
) -> Stream | None:
    """The same for events that may only stand right after a position; None when the journal does not end there."""
    arrivals = [decode_event(msgspec.json.encode(event)) for event in events]
    recorded = await recorder.record(lease, arrivals, expected_position=position)
    for problem in recorded.problems:
        raise Refused(problem.code, problem.detail)
    return None if recorded.position_taken else recorded.stream


LOOK_BACK = 256
"""How many of the newest open replies are looked at. The session's next request finds a reply that was left open, so
there cannot be many after it; the bound keeps the search cheap in a long session."""


def ends_of_unfinished(state: State, producer: str, running: Container[str]) -> list[LlmDone]:
    """An end for each open reply that this producer began, except those whose items are in `running`.

    The end has the time at which the reply last grew, so that a later interruption sees it as it was then.
    """
    ends = []
    for number, _, id in state.unfinished[-LOOK_BACK:]:
        reply = state.replies[id]
        if reply.item is not None and reply.producer == producer and reply.item not in running:
            ends.append(LlmDone(turn_id=number, item=reply.item, ts=last_ts(reply)))
    return ends


def last_ts(reply: Reply) -> int:
    times = reply.generation.deltas.times
    return times[-1] if times else reply.begin
