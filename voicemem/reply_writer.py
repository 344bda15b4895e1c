"""A reply on its way into the journal, beside the stream that it is spoken from."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import msgspec

from voicemem.admission import Stream
from voicemem.batches import Line
from voicemem.errors import Refused, VoicememError
from voicemem.events import Producible
from voicemem.recorder import Recorder
from voicemem.wire import decode_event


class Writer:
    """Writes a reply into the journal in its order, without holding up whoever speaks it."""

    def __init__(self, recorder: Recorder, line: Line) -> None:
        self.recorder = recorder
        self.line = line
        self.waiting: list[Producible] = []
        self.task: asyncio.Task[None] | None = None
        self.lost = False
        """Whether something could not be stored, which a later event may make good."""
        self.refused: Refused | None = None
        self.error: VoicememError | None = None
        """Of the events that were written last."""

    def add(self, *events: Producible) -> None:
        """Write these with whatever else waits when the commit that is under way is done."""
        self.waiting += events
        if self.task is None:
            self.task = asyncio.create_task(self.write())

    async def write(self) -> None:
        try:
            while self.waiting:
                events, self.waiting = self.waiting, []
                self.error = None
                try:
                    await record(self.recorder, self.line, events)
                except VoicememError as error:
                    self.error, self.lost = error, True
                    if isinstance(error, Refused):
                        self.refused = error
        finally:
            self.task = None

    async def flush(self) -> None:
        """Wait until nothing waits; what was added is written even if the caller is cancelled."""
        while self.task is not None:
            await asyncio.shield(self.task)


async def record(recorder: Recorder, line: Line, events: Iterable[Producible]) -> Stream:
    """The session's row with these events. Raises `Refused` for the first that was not taken, `StoreUnavailable`."""
    recorded = await recorder.record(line, [decode_event(msgspec.json.encode(event)) for event in events])
    for problem in recorded.problems:
        raise Refused(problem.code, problem.detail)
    return recorded.stream
