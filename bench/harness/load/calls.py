"""Calls as a voice engine sends them: the same events in every run, of about 120 bytes each.

The turns of a call repeat every `CYCLE` turns in everything but their numbers and times, so any `CYCLE` turns in a row
are the same work, wherever in a call they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count, islice
from typing import Any

import msgspec

JsonObject = dict[str, Any]

CYCLE = 20
BEGIN_MS = 1_750_000_000_000
MS_PER_WORD = 320

ASKED = (
    "hi I would like to change the booking that I made last week for two nights in Lisbon",
    "yes the one that starts on the fourteenth",
    "could we make it three nights and is breakfast included in that",
    "no wait please leave the first night as it is",
    "what would that cost all together with the taxes and the parking",
)
SAID = (
    "Of course, I can help you with that. I have found your booking at the harbour hotel, from the fourteenth to the"
    " sixteenth. What would you like to change about it?",
    "A third night is available in the same room. Breakfast is included for two people, and you can cancel free of"
    " charge until two days before you arrive.",
    "With the third night and the parking the whole stay comes to four hundred and twelve euros, taxes included. Shall"
    " I go ahead and change it, or would you like to hear about the other rooms that are free?",
    "All right, I have left it as it was.",
)


def events(variant: int = 0) -> Iterator[JsonObject]:
    """An endless call, numbered by `seq`; variants begin at different points of the cycle."""
    clock, seq = BEGIN_MS, count(1)
    for turn in count(1):
        for event in one_turn(turn, (turn + variant) % CYCLE):
            clock += event.pop("after")
            yield {**event, "seq": next(seq), "ts": clock}


def encoded(variant: int = 0) -> Iterator[bytes]:
    """The same call, each event as sent over the wire."""
    return map(msgspec.json.encode, events(variant))


def cycle(index: int = 0, variant: int = 0) -> list[bytes]:
    """The events of one whole cycle, from turn `CYCLE * index + 1` on."""
    return list(take_turns(events(variant), CYCLE * index + 1, CYCLE * (index + 1)))


def turns(number: int, variant: int = 0) -> list[bytes]:
    """The first turns of a call."""
    return list(take_turns(events(variant), 1, number))


def first(number: int, variant: int = 0) -> list[bytes]:
    """The first events of a call."""
    return list(islice(encoded(variant), number))


def take_turns(call: Iterable[JsonObject], begin: int, end: int) -> Iterator[bytes]:
    for event in call:
        if event["turn_id"] > end:
            return
        if event["turn_id"] >= begin:
            yield msgspec.json.encode(event)


def one_turn(turn: int, place: int) -> Iterator[JsonObject]:
    """The user speaks, the agent answers; every fifth answer is cut short, every tenth needs a tool."""
    yield from utterance(turn, ASKED[place % len(ASKED)])
    yield {"type": "metric", "turn_id": turn, "name": "llm_ttft", "latency_ms": 280 + place, "after": 280}
    if place % 10 == 3:
        yield from tool_use(turn)
    yield from reply(turn, place, SAID[place % len(SAID)])


def utterance(turn: int, text: str) -> Iterator[JsonObject]:
    """A partial for every few words, then the final."""
    words, item = text.split(), f"user-{turn}"
    for end in range(3, len(words), 3):
        yield {"type": "asr", "turn_id": turn, "item": item, "text": " ".join(words[:end]), "after": 3 * MS_PER_WORD}
    yield {
        "type": "asr",
        "turn_id": turn,
        "item": item,
        "text": text.capitalize() + ".",
        "final": True,
        "user": "caller",
        "end_ms": len(words) * MS_PER_WORD,
        "language": "en-US",
        "after": 3 * MS_PER_WORD,
    }


def tool_use(turn: int) -> Iterator[JsonObject]:
    name = {"turn_id": turn, "call_id": f"call-{turn}", "name": "find_booking"}
    yield {"type": "tool.call", **name, "arguments": {"city": "Lisbon", "guest": "caller"}, "after": 10}
    yield {"type": "tool.result", **name, "result": {"booking": turn, "nights": 2, "rooms": ["12"]}, "after": 150}


def reply(turn: int, place: int, text: str) -> Iterator[JsonObject]:
    """One delta per word with playback in between, then the rest of the playback, and its end or an interruption."""
    words = text.split()
    about = {"turn_id": turn, "item": f"reply-{turn}"}
    for index, word in enumerate(words):
        yield {"type": "llm.delta", **about, "text": word if index == 0 else f" {word}", "after": 35}
        if index % 6 == 5:
            yield playback(about, place, words, index // 2)
    whole = {"text": text} if place % 2 else {}
    yield {"type": "llm.done", **about, **whole, "after": 5}
    interrupted = place % 5 == 4
    for heard in range(len(words) // 2, len(words) * 3 // 4 if interrupted else len(words), 3):
        yield playback(about, place, words, heard)
    if interrupted:
        yield {"type": "interrupt", **about, **evidence(place, words), "cause": "speech", "after": 120}
    else:
        audio_ms = len(words) * MS_PER_WORD
        yield {"type": "tts", **about, "audio_ms": audio_ms, "total_audio_ms": audio_ms, "done": True, "after": 120}


def playback(about: JsonObject, place: int, words: list[str], heard: int) -> JsonObject:
    """Playback progress by time; in every fourth reply, by text."""
    said = {"heard_text": " ".join(words[:heard])} if place % 4 == 2 else {"audio_ms": heard * MS_PER_WORD}
    return {"type": "tts", **about, **said, "total_audio_ms": len(words) * MS_PER_WORD, "after": 120}


def evidence(place: int, words: list[str]) -> JsonObject:
    """How the engine reports where the reply was cut: by audio position, or by text."""
    heard = len(words) * 3 // 4
    return {"heard_text": " ".join(words[:heard])} if place % 2 else {"audio_end_ms": heard * MS_PER_WORD}
