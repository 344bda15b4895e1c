"""Work on events, as the ingest does it: decoding, checking and folding them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from bench.harness.load import calls
from voicemem.protocol import codec
from voicemem.protocol.events import IncomingEvent, SessionClosed
from voicemem.protocol.types import JsonObject
from voicemem.transcript.fold import DecodedRow, fold, fold_all
from voicemem.transcript.history import messages
from voicemem.transcript.messages import Message
from voicemem.transcript.state import State

DECODER = msgspec.json.Decoder(IncomingEvent)


def decode(texts: Iterable[bytes]) -> None:
    for text in texts:
        DECODER.decode(text)


def check(texts: Iterable[bytes]) -> None:
    for text in texts:
        codec.decode_event(text)


def fold_into(state: State, texts: Iterable[bytes]) -> State:
    """Check, decode and fold, as the ingest does."""
    for position, text in enumerate(texts, state.position + 1):
        arrived: Any = codec.decode_event(text)
        fold(state, DecodedRow(position, calls.BEGIN_MS, arrived.event))
    return state


def entries(texts: Iterable[bytes], begin: int = 1) -> list[DecodedRow]:
    return [
        DecodedRow(position, calls.BEGIN_MS, codec.decode_journaled(text))
        for position, text in enumerate(texts, start=begin)
    ]


def memory_of(events: Sequence[JsonObject]) -> list[Message]:
    """The messages of a call after its close, from the events that an integration has sent."""
    rows = []
    for position, event in enumerate(events, 1):
        decoded = codec.decode_event(msgspec.json.encode(event))
        assert isinstance(decoded, codec.DecodedEvent), decoded
        rows.append(DecodedRow(position, event["ts"], codec.decode_journaled(decoded.payload)))
    rows.append(DecodedRow(len(rows) + 1, events[-1]["ts"], SessionClosed(ts=events[-1]["ts"], reason="bench")))
    return messages(fold_all(State(), rows))
