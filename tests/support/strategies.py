"""Strategies for events and whole journals."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tests.support.events import delta, done, event, final, partial, words
from tests.support.transcripts import journaled
from voicemem.protocol.codec import RESERVED_METADATA
from voicemem.protocol.events import (
    CarriedSession,
    JournaledEvent,
    MemoriesExtracted,
    MemoryAdded,
    MemoryCarried,
    MemoryData,
    MemoryDocument,
    MemoryEdited,
    MemoryForgotten,
    MemoryRemoved,
    MemorySummary,
    RefusalMarker,
    SessionClosed,
    SessionForked,
    SessionGap,
    SessionReopened,
)
from voicemem.protocol.types import JsonObject


def nullable(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """A field that may be null, which is as if it were left out."""
    return st.none() | values


EDGE = 2**53
TIMES = st.integers(0, 60) | st.sampled_from([-EDGE, -1, EDGE - 1, EDGE])
TURNS = st.integers(0, 3) | st.sampled_from([EDGE - 1, EDGE])
NO_NUL = st.characters(codec="utf-8", exclude_characters="\0")
"""Of names, ids and keys, which are refused with U+0000; in texts it is replaced."""
NAMES = st.sampled_from(["a", "b", "c"]) | st.text(NO_NUL, min_size=1, max_size=4)
SPOKEN = ["", " ", "One", "One ", "One two", " two", "two.", "One two. Three?", "你好，世界。"]
ODD = ["e\u0301", "👩\u200d🚀", "\0", "\u202e"]
TEXTS = st.sampled_from(SPOKEN + ODD) | st.text(max_size=8)
KEYS = TEXTS.filter(lambda key: "\0" not in key)
COUNTS = st.integers(0, 12) | st.sampled_from([100, 200, EDGE])
WORDS = st.lists(st.fixed_dictionaries({"text": TEXTS, "start_ms": COUNTS, "end_ms": COUNTS}), max_size=4)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-EDGE, EDGE) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=2),
    max_leaves=4,
)
OWN = st.dictionaries(KEYS.filter(lambda key: key not in RESERVED_METADATA), VALUES, max_size=2)
COMMON = {"ts": nullable(TIMES), "id": nullable(NAMES), "item": nullable(NAMES), "metadata": nullable(OWN)}


def events_of_type(
    name: str, needed: JsonObject, more: JsonObject, common: JsonObject = COMMON
) -> st.SearchStrategy[JsonObject]:
    """Events of one type, with all that they must have and any of what they may have."""
    return st.fixed_dictionaries({"type": st.just(name), **needed}, optional={**common, **more})


IN_TURN = {"turn_id": nullable(TURNS)}
FLAG = st.booleans()
SPEECH = {
    "final": FLAG,
    "user": nullable(NAMES),
    "segment": nullable(COUNTS),
    "words": nullable(WORDS),
    "start_ms": COUNTS,
}
EVIDENCE: list[JsonObject] = [{"heard_text": TEXTS}, {"heard_chars": COUNTS}, {"audio_end_ms": COUNTS}, {}]
PLAYED: JsonObject = {"heard_text": TEXTS, "audio_ms": COUNTS, "done": FLAG, "words": WORDS, "total_audio_ms": COUNTS}
CARRIED: JsonObject = {"interrupted": st.just(True), "interrupt_timestamp": TIMES, "original": TEXTS}
ROLES = {"user": ["asr", "message", "command"], "assistant": ["llm", "greeting", "silence", "llm_failure", "command"]}
RESTORED: JsonObject = {
    "text": TEXTS,
    "role": st.just("assistant"),
    "source": st.just("llm"),
    "metadata": st.fixed_dictionaries(CARRIED),
}
TRACED = {"turn_id": TURNS, "call_id": NAMES}


def without(name: str) -> JsonObject:
    """The other fields of a playback event."""
    return {key: value for key, value in PLAYED.items() if key != name}


PRODUCER_EVENTS: st.SearchStrategy[JsonObject] = st.one_of(
    events_of_type("asr", {"text": TEXTS}, IN_TURN | SPEECH),
    events_of_type("llm.delta", {"text": TEXTS}, IN_TURN | {"whole": FLAG}),
    events_of_type("llm.done", {}, IN_TURN | {"text": nullable(TEXTS)}),
    events_of_type("llm.error", {}, IN_TURN | {"text": nullable(TEXTS)}),
    *(events_of_type("tts", {name: PLAYED[name]}, IN_TURN | {"estimated": FLAG} | without(name)) for name in PLAYED),
    *(events_of_type("interrupt", evidence, IN_TURN | {"estimated": FLAG}) for evidence in EVIDENCE),
    events_of_type("resume", {}, IN_TURN),
    *(
        events_of_type("message", {"text": TEXTS, "role": st.just(role), "source": st.sampled_from(sources)}, IN_TURN)
        for role, sources in ROLES.items()
    ),
    events_of_type("message", RESTORED, IN_TURN, {"ts": nullable(TIMES), "item": nullable(NAMES)}),
    events_of_type("tool.call", TRACED | {"name": NAMES, "arguments": VALUES}, {}),
    events_of_type("tool.result", TRACED | {"result": VALUES}, {}),
    events_of_type("metric", {"turn_id": TURNS, "name": NAMES, "latency_ms": COUNTS}, {}),
    events_of_type("session.end", {}, {"reason": nullable(TEXTS)}),
)
"""Valid events of every type that changes a memory."""

SERVER_EVENTS: st.SearchStrategy[JournaledEvent] = st.one_of(
    st.builds(SessionClosed, ts=TIMES, reason=st.just("test")),
    st.builds(SessionReopened, ts=TIMES),
    st.just(SessionGap(from_seq=1, to_seq=2)),
    st.just(RefusalMarker(code="invalid_field")),
    st.builds(MemorySummary, through_turn=TURNS, text=TEXTS, messages=COUNTS),
    st.builds(
        MemoryForgotten,
        through_turn=nullable(TURNS),
        turn=nullable(TURNS),
        kept=st.lists(st.integers(1, 25), max_size=3).map(tuple),
        carried=FLAG,
    ),
    st.builds(MemoryData, operation=st.sampled_from(["patch", "replace"]), content=OWN),
    st.builds(
        MemoryDocument,
        operation=st.sampled_from(["append", "replace", "clear", "form"]),
        content=nullable(TEXTS | OWN),
        format=nullable(st.sampled_from(["text", "markdown", "json"])),
    ),
    st.builds(MemoryCarried, sessions=st.just((CarriedSession("earlier", "Ann likes tea."),))),
    st.builds(MemoryAdded, memory_id=NAMES, kind=st.just("fact"), text_sha256=st.just("0" * 64), metadata=OWN),
    st.builds(MemoryEdited, memory_id=NAMES, pinned=FLAG),
    st.builds(MemoryRemoved, memory_id=NAMES, reason=st.just("deleted")),
    st.builds(MemoriesExtracted, through=st.integers(0, 25), strategy=NAMES, version=NAMES),
    st.builds(SessionForked, from_session=st.just("earlier"), at_turn=TURNS),
)
"""What the server itself journals."""

PRODUCER_JOURNALS = st.lists(PRODUCER_EVENTS.map(journaled), max_size=25)
"""Whatever producers can send into a session."""

ANY_JOURNALS = st.lists(PRODUCER_EVENTS.map(journaled) | SERVER_EVENTS, max_size=25)
"""Whatever a journal can hold, in any order."""


@st.composite
def overtaking_calls(draw: st.DrawFn) -> tuple[list[JsonObject], list[JsonObject]]:
    """A call whose interrupts and playback name their turn or item, in the order of its times, and as it arrived."""
    events = [one for turn in range(1, draw(st.integers(1, 2)) + 1) for one in draw(events_of_turn(turn))]
    happened = draw(in_own_order(events))
    timed = [one | {"ts": 10 * place} for place, one in enumerate(happened, 1)]
    return timed, draw(in_own_order(timed))


@st.composite
def events_of_turn(draw: st.DrawFn, turn: int) -> list[JsonObject]:
    """The events of one turn: a slot and its transcript, and one or two replies, in no order."""
    events = [partial(turn, "", item=f"u{turn}"), final(turn, f"Utterance {turn}.", item=f"u{turn}")]
    items: list[list[str | None]] = [[None], ["a"], [None, "a"], ["a", "b"]]
    for item in draw(st.sampled_from(items)):
        name = item and f"{item}{turn}"
        text = f"One two three of {name}, in turn {turn}. Four, five?"
        pieces = [text[start : start + 12] for start in range(0, len(text), 12)]
        events += [delta(turn, piece, item=name) for piece in pieces[: draw(st.integers(0, 4))]]
        events += [delta(turn, text[:30], item=name, whole=True)] * draw(st.integers(0, 1))
        events += [done(turn, item=name, text=draw(st.sampled_from([None, text])))] * draw(st.integers(0, 1))
        events += draw(st.lists(about_reply(turn, name, text), max_size=4))
    return events


def about_reply(turn: int, item: str | None, text: str) -> st.SearchStrategy[JsonObject]:
    """Interrupts, resumes and playback that name a reply by its turn, its item, or both."""
    heard_text = st.integers(0, len(text)).map(lambda end: text[:end])
    position = st.integers(0, 1200)
    names = [{"turn": turn}] if item is None else [{"turn": turn}, {"turn": turn, "item": item}, {"item": item}]
    more: list[JsonObject] = [
        {"kind": st.just("interrupt"), "estimated": FLAG},
        {"kind": st.just("interrupt"), "heard_text": heard_text},
        {"kind": st.just("interrupt"), "heard_chars": st.integers(0, len(text))},
        {"kind": st.just("interrupt"), "audio_end_ms": position},
        {"kind": st.just("resume")},
        {"kind": st.just("tts"), "heard_text": heard_text},
        {"kind": st.just("tts"), "audio_ms": position},
        {"kind": st.just("tts"), "total_audio_ms": position},
        {"kind": st.just("tts"), "done": st.just(True)},
        {"kind": st.just("tts"), "words": st.just(words(text))},
    ]
    fields = st.one_of(*(st.fixed_dictionaries(one) for one in more))
    return st.builds(lambda name, rest: event(**name, **rest), st.sampled_from(names), fields)


@st.composite
def in_own_order(draw: st.DrawFn, events: list[JsonObject]) -> list[JsonObject]:
    """Any order in which plain deltas of a reply, and finals, follow each other as they did."""
    queues: dict[object, list[JsonObject]] = {}
    for one in events:
        queues.setdefault(ordered(one), []).append(one)
    return [queues[ordered(one)].pop(0) for one in draw(st.permutations(events))]


def ordered(one: JsonObject) -> object:
    """What must keep its order among its like: the same key for those, another for each of the rest."""
    if one["type"] == "llm.delta" and "whole" not in one:
        return "delta", one["turn_id"], one.get("item")
    return "final" if one.get("final") else id(one)
