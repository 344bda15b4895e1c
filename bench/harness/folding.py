"""The measured work on events: decoding, checking and folding them, as the ingest does."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from bench.harness.load import calls
from voicemem.protocol import codec
from voicemem.protocol.events import IncomingEvent
from voicemem.transcript.fold import DecodedRow, fold
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
