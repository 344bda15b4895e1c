"""The webhook event with the complete turns of a running call: when it is due, and its payload."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import Any

from msgspec import Struct

from voicemem.config import session as config
from voicemem.errors import SessionQuarantined
from voicemem.protocol.pieces import WHOLE_ENCODER, object_parts
from voicemem.runtime import Runtime, entries_of
from voicemem.sessions.read_models.cache import ReadModelCache
from voicemem.sessions.read_models.read_model import TURN_ID, ReadModel
from voicemem.store.port import Store
from voicemem.store.streams import Stream
from voicemem.transcript.state import State
from voicemem.transcript.turns import turn_report

MAX_TURNS = 200
"""The most turns in one webhook event: the rest comes with the next one."""


class SentTurns(Struct):
    """The field of a payload with the number of its last turn."""

    through_turn: int


def complete_turns_payload(session: dict[str, Any], after: int, read_model: ReadModel) -> bytes | Iterator[bytes]:
    """Return the complete turns after a turn, as in `/turns`, each with its messages."""
    state, messages = read_model.state, read_model.messages()
    complete = [number for number in complete_turns(state) if number > after]
    shown = [turn_report(state, turn) for turn in state.each_turn(complete[:MAX_TURNS])]
    through = shown[-1]["turn_id"] if shown else after
    said = messages[read_model.turn_start(after + 1) : read_model.turn_start(through + 1)]
    sizes, contents = Counter(map(TURN_ID, said)), iter(said)
    for turn in shown:
        turn["contents"] = islice(contents, sizes[turn["turn_id"]])
    rest = {"is_truncated": len(complete) > MAX_TURNS, "through_turn": through, "position": read_model.position}
    payload = {**session, **rest, "turns": iter(shown)}
    return object_parts(payload) if read_model.has_large_answer else WHOLE_ENCODER.encode(payload)


def complete_turns(state: State) -> list[int]:
    """Return the turns that are over: all before the newest, and after the end of the call that one too."""
    return state.turn_numbers if state.closed_ts is not None else state.turn_numbers[:-1]


TURNS_PAUSE_S = 0.5
"""The time between two searches for turns that are complete."""
SUBSCRIBERS_MS = 2_000
"""How long it may take until turns are sent to a new subscriber."""
MAX_NOTED = 100_000


class TurnFeed:
    """Finds the complete turns of running calls that a receiver gets, and makes their deliveries due."""

    def __init__(self, store: Store, read_models: ReadModelCache, due: asyncio.Event, runtime: Runtime) -> None:
        self.store = store
        self.read_models = read_models
        self.due = due
        self.clock = runtime.clock
        self.changed: dict[int, Stream] = {}
        self.noted: dict[int, int] = {}
        """By key, how many turns were complete at the last check."""
        self.subscribers: set[str] = set()
        self.known_until_ms = 0

    async def poll(self) -> None:
        """Check all sessions with new events once. Raises `StoreUnavailable`."""
        if not self.changed:
            return
        changed = {**self.changed}
        self.changed.clear()
        if self.clock() >= self.known_until_ms:
            self.subscribers = await self.store.outbox.list_turn_subscribers()
            self.known_until_ms = self.clock() + SUBSCRIBERS_MS
        async for _, stream in entries_of(changed):
            own = stream.config.get("webhook") or {}
            if stream.project in self.subscribers or config.COMPLETE_TURNS_EVENT in own.get("event_types", ()):
                with suppress(SessionQuarantined):
                    await self.poll_session(stream)

    async def poll_session(self, stream: Stream) -> None:
        count = len(complete_turns(await self.read_models.get_state(stream)))
        if count <= self.noted.get(stream.key, 0):
            return
        if len(self.noted) >= MAX_NOTED:
            self.noted.clear()
        self.noted[stream.key] = count
        await self.store.outbox.offer_turns(stream.key, self.clock())
        self.due.set()
