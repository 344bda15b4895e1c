"""A reply on its way into the journal, beside the stream that it is spoken from."""

from __future__ import annotations

import asyncio
from collections.abc import Container, Iterable

import msgspec

from voicemem.errors import Refused, VoicememError
from voicemem.protocol.codec import decode_event
from voicemem.protocol.events import LlmDone, ProducedEvent
from voicemem.sessions.batches import ProducerLease
from voicemem.sessions.recorder import Recorder
from voicemem.store.port import Journal
from voicemem.store.streams import Stream
from voicemem.transcript.state import Reply, State
from voicemem.transcript.timeline import AFTER_ALL


class ReplyWriter:
    """Writes a reply into the journal in its order, without holding up whoever speaks it."""

    def __init__(self, recorder: Recorder, line: ProducerLease) -> None:
        self.recorder = recorder
        self.line = line
        self.pending: list[ProducedEvent] = []
        self.task: asyncio.Task[None] | None = None
        self.is_incomplete = False
        """Whether something could not be stored, which a later event may make good."""
        self.refused: Refused | None = None
        self.error: VoicememError | None = None
        """Of the events that were written last."""

    def add(self, *events: ProducedEvent) -> None:
        """Write these with whatever else waits when the commit that is under way is done."""
        self.pending += events
        if self.task is None:
            self.task = asyncio.create_task(self.run())

    async def run(self) -> None:
        try:
            while self.pending:
                events, self.pending = self.pending, []
                self.error = None
                try:
                    await record(self.recorder, self.line, events)
                except VoicememError as error:
                    self.error, self.is_incomplete = error, True
                    if isinstance(error, Refused):
                        self.refused = error
        finally:
            self.task = None

    async def flush(self) -> None:
        """Wait until nothing waits; what was added is written even if the caller is cancelled."""
        while self.task is not None:
            await asyncio.shield(self.task)


async def record(recorder: Recorder, line: ProducerLease, events: Iterable[ProducedEvent]) -> Stream:
    """The session's row with these events. Raises `Refused` for the first that was not taken, `StoreUnavailable`."""
    recorded = await recorder.record(line, [decode_event(msgspec.json.encode(event)) for event in events])
    for problem in recorded.problems:
        raise Refused(problem.code, problem.detail)
    return recorded.stream


LOOK_BACK_TURNS = 256
"""Turns, the newest ones: a reply that was left open is found by the call after it."""


async def ends_of_unfinished(
    journal: Journal, key: int, state: State, producer: str, running: Container[tuple[int, str]]
) -> list[LlmDone]:
    """An end for each open reply of a session that this producer began, and that is not `running` (by key and item).

    It is of the time when the reply last grew, so that a later interruption finds it as it would have then.
    """
    found = []
    for number in state.turn_numbers[-LOOK_BACK_TURNS:]:
        for reply in state.turns[number].replies:
            if reply.item is None or reply.generation.complete or (key, reply.item) in running:
                continue
            first = await journal.rows(key, reply.order - 1, 1)
            if first and first[0].producer == producer:
                found.append(LlmDone(turn_id=number, item=reply.item, ts=last_ts(reply)))
    return found


def last_ts(reply: Reply) -> int:
    said = reply.generation.deltas.last(AFTER_ALL)
    return reply.begin if said is None else said.ts
