"""Short ways to write the events of a call, and to read what they fold to.

Events are plain dicts as a producer sends them. The n-th event of a call is received at n seconds, which is its time
when it has no `ts`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from hypothesis import strategies as st

from voicemem.protocol.checks import RESERVED_METADATA
from voicemem.protocol.codec import DecodedEvent, decode_event, decode_journaled
from voicemem.protocol.events import (
    CarriedSession,
    JournaledEvent,
    MemoryCarried,
    MemoryData,
    MemoryDocument,
    MemoryForgotten,
    MemorySummary,
    RefusalMarker,
    SessionClosed,
    SessionForked,
    SessionGap,
    SessionReopened,
)
from voicemem.transcript.fold import DecodedRow, fold_all
from voicemem.transcript.history import messages
from voicemem.transcript.state import State

JsonObject = dict[str, Any]

JOKE = "Why did the scarecrow win an award? Because he was outstanding in his field!"


def event(kind: str, turn: int | None = None, ts: int | None = None, **more: Any) -> JsonObject:
    """An event as a producer sends it; what is None is left out."""
    fields = {"type": kind, "turn_id": turn, "ts": ts, **more}
    return {name: value for name, value in fields.items() if value is not None}


def partial(turn: int | None, text: str, ts: int | None = None, **more: Any) -> JsonObject:
    """A text that the recogniser may still change."""
    return event("asr", turn, ts, text=text, **more)


def final(turn: int | None, text: str, ts: int | None = None, **more: Any) -> JsonObject:
    """A text that the recogniser has settled on."""
    return event("asr", turn, ts, text=text, final=True, **more)


def delta(turn: int | None, text: str, ts: int | None = None, **more: Any) -> JsonObject:
    """More of a reply."""
    return event("llm.delta", turn, ts, text=text, **more)


def done(turn: int | None = None, ts: int | None = None, **more: Any) -> JsonObject:
    """The end of a reply's generation."""
    return event("llm.done", turn, ts, **more)


def dialogue(turns: int) -> list[JsonObject]:
    """A user's question and the agent's answer in each turn."""
    return [
        event
        for turn in range(1, turns + 1)
        for event in (final(turn, f"Q{turn}", turn), delta(turn, f"A{turn}", turn), done(turn, turn))
    ]


def failed(turn: int | None = None, ts: int | None = None, **more: Any) -> JsonObject:
    """A failed LLM call."""
    return event("llm.error", turn, ts, **more)


def tts(turn: int | None = None, ts: int | None = None, **more: Any) -> JsonObject:
    """Playback of a reply."""
    return event("tts", turn, ts, **more)


def interrupt(turn: int | None = None, ts: int | None = None, **more: Any) -> JsonObject:
    """The user cuts in."""
    return event("interrupt", turn, ts, **more)


def resume(turn: int | None = None, ts: int | None = None, **more: Any) -> JsonObject:
    """A false alarm."""
    return event("resume", turn, ts, **more)


def message(turn: int | None, text: str, ts: int | None = None, **more: Any) -> JsonObject:
    """A whole message, the agent's greeting unless `more` says otherwise."""
    return event("message", turn, ts, text=text, **({"role": "assistant", "source": "greeting"} | more))


def typed(turn: int | None, text: str, ts: int | None = None, **more: Any) -> JsonObject:
    """A whole message that the user typed."""
    return message(turn, text, ts, role="user", source="message", **more)


def word(text: str, start_ms: int, end_ms: int) -> JsonObject:
    """One word of an audio."""
    return {"text": text, "start_ms": start_ms, "end_ms": end_ms}


def words(text: str, each_ms: int = 100) -> list[JsonObject]:
    """The words of a text, one after the other, each of the same length."""
    return [word(one, index * each_ms, (index + 1) * each_ms) for index, one in enumerate(text.split())]


def closed(ts: int) -> SessionClosed:
    """The server's close."""
    return SessionClosed(ts=ts, reason="test")


def reopened() -> SessionReopened:
    """The server's reopening."""
    return SessionReopened()


Given = JsonObject | JournaledEvent


def taken(given: Given) -> JournaledEvent:
    """An event as the journal has it: checked on the way in, and decoded from what was stored."""
    if not isinstance(given, dict):
        return given
    arrived = decode_event(msgspec.json.encode(given))
    assert isinstance(arrived, DecodedEvent), arrived
    return decode_journaled(arrived.payload)


def entries(given: Iterable[Given]) -> list[DecodedRow]:
    """A journal of these events."""
    return [DecodedRow(position, position * 1000, taken(one)) for position, one in enumerate(given, 1)]


def folded(*given: Given) -> State:
    """The state after these events."""
    return fold_all(State(), entries(given))


def shown(state: State, unfinished: bool = False) -> list[JsonObject]:
    """The memory of a state as it is written to JSON."""
    return [msgspec.to_builtins(one) for one in messages(state, unfinished)]


def contents(*given: Given, unfinished: bool = False) -> list[JsonObject]:
    """The memory after these events."""
    return shown(folded(*given), unfinished)


def texts(*given: Given, unfinished: bool = False) -> list[str]:
    """What the messages after these events say."""
    return [one["content"] for one in contents(*given, unfinished=unfinished)]


def only(*given: Given, unfinished: bool = False) -> JsonObject:
    """The one message after these events."""
    (single,) = contents(*given, unfinished=unfinished)
    return single


def heard(*given: Given) -> tuple[str, str | None]:
    """What was heard of the one message, an interrupted reply, and how that was found."""
    single = only(*given)
    assert single["metadata"]["interrupted"] is True
    return single["content"], single["metadata"].get("heard")


# Whatever a producer can send


def maybe(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """A field that may be null, which is as if it were left out."""
    return st.none() | values


EDGE = 2**53
TIMES = st.integers(0, 60) | st.sampled_from([-EDGE, -1, EDGE - 1, EDGE])
TURNS = st.integers(0, 3) | st.sampled_from([EDGE - 1, EDGE])
NAMES = st.sampled_from(["a", "b", "c"]) | st.text(min_size=1, max_size=4)
SPOKEN = ["", " ", "One", "One ", "One two", " two", "two.", "One two. Three?", "你好，世界。"]
ODD = ["e\u0301", "👩\u200d🚀", "\0", "\u202e"]
TEXTS = st.sampled_from(SPOKEN + ODD) | st.text(max_size=8)
COUNTS = st.integers(0, 12) | st.sampled_from([100, 200, EDGE])
WORDS = st.lists(st.fixed_dictionaries({"text": TEXTS, "start_ms": COUNTS, "end_ms": COUNTS}), max_size=4)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-EDGE, EDGE) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXTS, inner, max_size=2),
    max_leaves=4,
)
OWN = st.dictionaries(TEXTS.filter(lambda key: key not in RESERVED_METADATA), VALUES, max_size=2)
COMMON = {"ts": maybe(TIMES), "id": maybe(NAMES), "item": maybe(NAMES), "metadata": maybe(OWN)}


def kind(name: str, needed: JsonObject, more: JsonObject, common: JsonObject = COMMON) -> st.SearchStrategy[JsonObject]:
    """Events of one type, with all that they must have and any of what they may have."""
    return st.fixed_dictionaries({"type": st.just(name), **needed}, optional={**common, **more})


IN_TURN = {"turn_id": maybe(TURNS)}
FLAG = st.booleans()
SPEECH = {"final": FLAG, "user": maybe(NAMES), "segment": maybe(COUNTS), "words": maybe(WORDS), "start_ms": COUNTS}
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


PRODUCED: st.SearchStrategy[JsonObject] = st.one_of(
    kind("asr", {"text": TEXTS}, IN_TURN | SPEECH),
    kind("llm.delta", {"text": TEXTS}, IN_TURN | {"whole": FLAG}),
    kind("llm.done", {}, IN_TURN | {"text": maybe(TEXTS)}),
    kind("llm.error", {}, IN_TURN | {"text": maybe(TEXTS)}),
    *(kind("tts", {name: PLAYED[name]}, IN_TURN | {"estimated": FLAG} | without(name)) for name in PLAYED),
    *(kind("interrupt", evidence, IN_TURN | {"estimated": FLAG}) for evidence in EVIDENCE),
    kind("resume", {}, IN_TURN),
    *(
        kind("message", {"text": TEXTS, "role": st.just(role), "source": st.sampled_from(sources)}, IN_TURN)
        for role, sources in ROLES.items()
    ),
    kind("message", RESTORED, IN_TURN, {"ts": maybe(TIMES), "item": maybe(NAMES)}),
    kind("tool.call", TRACED | {"name": NAMES, "arguments": VALUES}, {}),
    kind("tool.result", TRACED | {"result": VALUES}, {}),
    kind("metric", {"turn_id": TURNS, "name": NAMES, "latency_ms": COUNTS}, {}),
    kind("session.end", {}, {"reason": maybe(TEXTS)}),
)
"""Valid events of every type that changes a memory."""

SERVED: st.SearchStrategy[JournaledEvent] = st.one_of(
    st.builds(SessionClosed, ts=TIMES, reason=st.just("test")),
    st.builds(SessionReopened, ts=TIMES),
    st.just(SessionGap(from_seq=1, to_seq=2)),
    st.just(RefusalMarker(code="invalid_field")),
    st.builds(MemorySummary, through_turn=TURNS, text=TEXTS, messages=COUNTS),
    st.builds(
        MemoryForgotten,
        through_turn=maybe(TURNS),
        turn=maybe(TURNS),
        kept=st.lists(st.integers(1, 25), max_size=3).map(tuple),
        carried=FLAG,
    ),
    st.builds(MemoryData, operation=st.sampled_from(["patch", "replace"]), content=OWN),
    st.builds(
        MemoryDocument,
        operation=st.sampled_from(["append", "replace", "clear", "form"]),
        content=maybe(TEXTS | OWN),
        format=maybe(st.sampled_from(["text", "markdown", "json"])),
    ),
    st.builds(MemoryCarried, sessions=st.just((CarriedSession("earlier", "Ann likes tea."),))),
    st.builds(SessionForked, from_session=st.just("earlier"), at_turn=TURNS),
)
"""What the server itself journals."""

CALLS = st.lists(PRODUCED.map(taken), max_size=25)
"""Whatever producers can send into a session."""

JOURNALS = st.lists(PRODUCED.map(taken) | SERVED, max_size=25)
"""Whatever a journal can hold, in any order."""


# Calls whose events overtake each other


@st.composite
def overtaking_calls(draw: st.DrawFn) -> tuple[list[JsonObject], list[JsonObject]]:
    """A call whose interrupts and playback name their turn or item, in the order of its times, and as it arrived."""
    events = [one for turn in range(1, draw(st.integers(1, 2)) + 1) for one in draw(turns(turn))]
    happened = draw(in_own_order(events))
    timed = [one | {"ts": 10 * place} for place, one in enumerate(happened, 1)]
    return timed, draw(in_own_order(timed))


@st.composite
def turns(draw: st.DrawFn, turn: int) -> list[JsonObject]:
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
