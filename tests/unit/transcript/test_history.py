"""The messages of a call: their order, their fields, their times, and what a reader may ask for."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.events import (
    EventLike,
    delta,
    done,
    event,
    failed,
    final,
    interrupt,
    message,
    partial,
    resume,
    tts,
    typed,
)
from tests.support.profiles import examples
from tests.support.rows import every_row
from tests.support.strategies import PRODUCER_EVENTS, PRODUCER_JOURNALS
from tests.support.transcripts import (
    closed,
    entries,
    folded,
    journaled,
    message_dicts,
    messages_after,
    only_message,
    reopened,
    texts,
)
from voicemem.protocol.codec import METADATA_ORDER, RejectedEvent, decode_event
from voicemem.protocol.events import JournaledEvent
from voicemem.protocol.types import JsonObject
from voicemem.sessions.read_models.read_model import ReadModel
from voicemem.transcript.history import (
    messages,
    newest_tool_uses,
    open_messages,
    playing_turn,
    tool_uses,
    turn_times,
)
from voicemem.transcript.state import State

# Rule 7: order


def test_messages_stand_by_turn() -> None:
    """The turn's number decides first, not the time and not the arrival."""
    assert texts(final(3, "C", 10), final(1, "A", 30), message(2, "B", 20)) == ["A", "B", "C"]


def test_user_stands_first_in_a_turn() -> None:
    """The user's message comes before the replies of its turn, even when it began later."""
    assert texts(message(1, "Reply.", 10), final(1, "Speech.", 20), typed(1, "Typed.", 30)) == [
        "Speech.",
        "Typed.",
        "Reply.",
    ]


def test_late_transcript_stands_before_its_reply() -> None:
    """A transcript that arrives after the reply has begun, or after later turns, still stands before it."""
    call = [delta(1, "Reply.", 20), done(1, 30), final(2, "Next.", 40)]
    assert texts(*call, final(1, "Late.", 25)) == ["Late.", "Reply.", "Next."]


def test_messages_of_a_side_stand_by_begin_time() -> None:
    """Inside a turn, users among themselves and replies among themselves stand by the time they began."""
    users = [final(1, "Two.", 20, user="b"), final(1, "One.", 10, user="a"), typed(1, "Zero.", 5)]
    replies = [message(1, "Four.", 40), message(1, "Three.", 30)]
    assert texts(*users, *replies) == ["Zero.", "One.", "Two.", "Three.", "Four."]


def test_messages_of_one_time_stand_by_arrival() -> None:
    """What began at the same time stands in the order of its arrival."""
    call = [typed(1, "B", 10), final(1, "A", 10), message(1, "Z", 10), message(1, "Y", 10), message(1, "X", 10)]
    assert texts(*call) == ["B", "A", "Z", "Y", "X"]


def test_failure_message_stands_after_the_reply_that_failed() -> None:
    """The failure was spoken after what had been generated."""
    assert texts(delta(1, "Half of", 10), failed(1, 20, text="Sorry.")) == ["Half of", "Sorry."]


# Fields


def test_fields_stand_in_their_documented_order() -> None:
    """JSON output has role, content, turn_id, timestamp, metadata, and in metadata the reserved keys first."""
    call = [
        delta(2, "One two.", 10, metadata={"z": 1, "a": 2}),
        interrupt(2, 20, heard_chars=4),
        final(2, "Hi.", 5, user="ann", metadata={"b": 3}),
    ]
    assert msgspec.json.encode(messages_after(*call)).decode() == (
        '[{"role":"user","content":"Hi.","turn_id":2,"timestamp":5,"metadata":{"source":"asr","user":"ann","b":3}},'
        '{"role":"assistant","content":"One ","turn_id":2,"timestamp":10,"metadata":{"interrupted":true,'
        '"interrupt_timestamp":20,"original":"One two.","source":"llm","heard":"aligned","z":1,"a":2}}]'
    )


def test_reserved_keys_of_a_restored_message_stand_in_their_order() -> None:
    """A restored message comes out in the documented order, however it was written."""
    carried = {"x": 0, "heard": "estimated", "original": "One two.", "interrupt_timestamp": 5, "interrupted": True}
    single = only_message(message(1, "One ", 3, source="llm", metadata=carried))
    assert [*single["metadata"].items()] == [
        ("interrupted", True),
        ("interrupt_timestamp", 5),
        ("original", "One two."),
        ("source", "llm"),
        ("heard", "estimated"),
        ("x", 0),
    ]


@pytest.mark.parametrize("ts", [1678901234, 1678901234000, 0, -1, 2**53])
def test_numbers_pass_through_unscaled(ts: int) -> None:
    """Whatever unit a producer's times have, its numbers come out as they went in."""
    single = only_message(message(1, "One two.", ts), interrupt(1, ts, heard_text="One "))
    assert (single["timestamp"], single["metadata"]["interrupt_timestamp"]) == (ts, ts)


@pytest.mark.parametrize("source", ["llm", "greeting", "llm_failure", "silence", "command"])
def test_source_of_an_assistant_message_is_told(source: str) -> None:
    """The metadata says where a whole message came from."""
    assert only_message(message(1, "Hi.", source=source))["metadata"] == {"source": source}


@pytest.mark.parametrize("source", ["asr", "message", "command"])
def test_source_and_user_of_a_user_message_are_told(source: str) -> None:
    """The metadata says where a whole user message came from, and who wrote it."""
    said = message(1, "Hi.", role="user", source=source, user="ann")
    assert only_message(said)["metadata"] == {"source": source, "user": "ann"}


def test_custom_metadata_passes_through_untouched() -> None:
    """Any other key comes out as it was, whatever its value."""
    custom = {"n": None, "f": 1.5, "deep": [{"a": ["ü", True]}], "": "empty"}
    assert only_message(delta(1, "Hi.", metadata=custom), done(1))["metadata"] == {"source": "llm"} | custom


def test_metadata_of_all_events_of_a_reply_goes_into_it() -> None:
    """Deltas, done, playback and the interruption add to one metadata; the newest value of a key stays."""
    call = [delta(1, "One two.", 10, metadata={"a": 1, "b": 1}), done(1, 20, metadata={"b": 2})]
    call += [tts(1, 30, heard_text="One ", metadata={"c": 3}), interrupt(1, 40, metadata={"d": 4})]
    metadata = only_message(*call)["metadata"]
    assert [metadata[key] for key in "abcd"] == [1, 2, 3, 4]


def test_metadata_of_a_withdrawn_interrupt_is_not_told() -> None:
    """What a false alarm said about itself is not in the message."""
    call = [message(1, "One.", 10), interrupt(1, 20, metadata={"vad": 0.9}), resume(1, 30)]
    assert only_message(*call)["metadata"] == {"source": "greeting"}


def test_restored_interruption_stays_as_it_was() -> None:
    """A restored message that carries an interruption is not cut again by anything that follows."""
    carried = {"interrupted": True, "interrupt_timestamp": 5, "original": "One two."}
    restored = message(1, "One ", 3, source="llm", metadata=carried)
    assert messages_after(restored) == messages_after(restored, interrupt(1, 20), closed(50))


def test_restored_message_with_nothing_heard_stays() -> None:
    """An interrupted message without content is restored as well."""
    carried = {"interrupted": True, "interrupt_timestamp": 5, "original": "One two."}
    assert texts(message(1, "", 3, source="llm", metadata=carried)) == [""]


CARRIED: list[tuple[str, JsonObject]] = [
    ("assistant", {"interrupted": False}),
    ("assistant", {"heard": "aligned"}),
    ("assistant", {"interrupted": True, "interrupt_timestamp": 1, "original": "x", "heard": "loud"}),
    ("assistant", {"original": None}),
    ("assistant", {"partial": True}),
    ("assistant", {"source": "rumour"}),
    ("user", {"partial": False}),
    ("user", {"interrupted": True, "interrupt_timestamp": 1, "original": "x"}),
    ("user", {"source": "llm"}),
]


@every_row(("role", "metadata"), CARRIED)
def test_restored_message_is_refused_or_as_messages_are(role: str, metadata: JsonObject) -> None:
    """Reserved keys that no message can have are refused, or do not come out."""
    source = {"user": "asr", "assistant": "llm"}[role]
    given = message(1, "Hi.", 3, role=role, source=source, metadata=metadata)
    if not isinstance(decode_event(msgspec.json.encode(given)), RejectedEvent):
        check_message(only_message(given))


SOURCES = {
    "user": {"asr", "message", "command"},
    "assistant": {"llm", "greeting", "llm_failure", "silence", "command"},
}


def check_message(one: JsonObject) -> None:
    """What docs/memory.md says of every message."""
    metadata = one["metadata"]
    assert metadata["source"] in SOURCES[one["role"]]
    assert metadata.get("interrupted", True) is True
    cut = {"interrupted", "interrupt_timestamp", "original"}
    assert "interrupted" in metadata or not cut & metadata.keys()
    assert "heard" not in metadata or (
        metadata["heard"] in ("aligned", "estimated", "unmatched") and "interrupted" in metadata
    )
    assert metadata.get("partial", True) is True
    assert one["role"] == "user" or "partial" not in metadata
    assert one["role"] == "assistant" or "interrupted" not in metadata
    assert isinstance(metadata.get("user", ""), str)


@given(PRODUCER_JOURNALS)
def test_every_message_is_as_documented(call: list[JournaledEvent]) -> None:
    """Whatever was sent, the messages that come out keep its rules."""
    for one in messages_after(*call, unfinished=True) + messages_after(*call, closed(20)):
        check_message(one)
        own = [key for key in one["metadata"] if key in METADATA_ORDER]
        assert own == sorted(own, key=METADATA_ORDER.index) == [*one["metadata"]][: len(own)]


@given(PRODUCER_JOURNALS)
def test_every_memory_is_in_order(call: list[JournaledEvent]) -> None:
    """Whatever was sent, messages stand by turn, the user first, then by begin time."""
    memory = messages_after(*call, closed(20))
    places = [(one["turn_id"], one["role"] != "user", one["timestamp"]) for one in memory]
    assert places == sorted(places)


@given(PRODUCER_JOURNALS)
def test_history_is_part_of_what_is_unfinished(call: list[JournaledEvent]) -> None:
    """Asking for what is in progress adds messages and takes none away."""
    state = folded(*call)
    known, unfinished = (Counter((one.role, one.turn_id) for one in messages(state, more)) for more in (False, True))
    assert known <= unfinished


# What a reader may ask for


def test_unfinished_shows_replies_and_partials_in_progress() -> None:
    """What has no final and no done yet is shown to those who ask, and is not marked as anything."""
    call = [partial(1, "Hel", 10, user="ann"), delta(1, "Hi", 20)]
    assert messages_after(*call) == []
    memory = messages_after(*call, unfinished=True)
    assert [(one["content"], one["metadata"]) for one in memory] == [
        ("Hel", {"source": "asr", "user": "ann"}),
        ("Hi", {"source": "llm"}),
    ]


def test_nothing_said_is_an_empty_memory() -> None:
    """A session without events has no messages and no tool calls."""
    state = folded()
    assert (message_dicts(state), message_dicts(state, unfinished=True), tool_uses(state)) == ([], [], [])


def test_tool_uses_stand_by_turn_and_arrival() -> None:
    """Tool calls come in the order of their turns, then as they arrived, unanswered ones included."""
    calls = [event("tool.call", turn, 10, call_id=name, name="f", arguments={}) for turn, name in [(2, "c"), (1, "a")]]
    later = event("tool.call", 1, 5, call_id="b", name="f", arguments={})
    assert [(one.turn_id, one.call_id, one.answered) for one in tool_uses(folded(*calls, later))] == [
        (1, "a", False),
        (1, "b", False),
        (2, "c", False),
    ]


def test_tool_result_is_in_the_turn_of_its_call() -> None:
    """A result finds its call by id, whatever turn it names."""
    call = event("tool.call", 1, 10, call_id="c", name="f", arguments={})
    (use,) = tool_uses(folded(call, event("tool.result", 2, 20, call_id="c", result="sunny")))
    assert (use.turn_id, use.result, use.answered) == (1, "sunny", True)


@given(PRODUCER_JOURNALS, st.integers(1, 5))
def test_the_newest_tool_uses_are_the_last_answered_ones(call: list[JournaledEvent], most: int) -> None:
    """So many of those that are answered, in their order."""
    state = folded(*call)
    assert newest_tool_uses(state, most) == [use for use in tool_uses(state) if use.answered][-most:]


@given(st.lists(PRODUCER_EVENTS, max_size=15))
def test_reading_changes_nothing(call: list[JsonObject]) -> None:
    """Two readings of a state give the same messages."""
    state = folded(*map(journaled, call))
    first: list[Any] = [message_dicts(state), message_dicts(state, unfinished=True), tool_uses(state)]
    assert first == [message_dicts(state), message_dicts(state, unfinished=True), tool_uses(state)]


def times(*given_events: EventLike) -> list[dict[str, Any]]:
    """The times of every message of a call."""
    state = folded(*given_events)
    return [one for number in state.turn_numbers for one in turn_times(state, state.turns[number])]


def speech(start: int | None = None, end: int | None = None, **more: Any) -> dict[str, Any]:
    given_times = {"speech_start_ms": start, "speech_end_ms": end, **more}
    return {name: value for name, value in given_times.items() if value is not None}


USERS: dict[str, tuple[list[JsonObject], dict[str, Any]]] = {
    "nothing was given": ([final(1, "Hi.")], {}),
    "both": ([final(1, "Hi.", start_ms=5, end_ms=9)], speech(5, 9)),
    "zero is a time": ([final(1, "Hi.", start_ms=0, end_ms=9)], speech(0, 9)),
    "one alone": ([final(1, "Hi.", end_ms=9)], speech(end=9)),
    "the start came with a partial": ([partial(1, "H", start_ms=5), final(1, "Hi.", end_ms=9)], speech(5, 9)),
    "the final says better": ([partial(1, "H", start_ms=5), final(1, "Hi.", start_ms=6)], speech(6)),
    "of several segments": (
        [
            final(1, "Hi.", segment=1, start_ms=20, end_ms=29),
            final(1, "Ah.", segment=0, start_ms=5, end_ms=9),
        ],
        speech(5, 29),
    ),
    "a withdrawn segment does not count": (
        [
            final(1, "Hi.", segment=0, start_ms=5, end_ms=9),
            final(1, "um", segment=1, start_ms=20, end_ms=29),
            final(1, "", segment=1),
        ],
        speech(5, 9),
    ),
    "the metadata goes before": (
        [final(1, "Hi.", start_ms=5, end_ms=9, metadata={"speech_end_ms": 8, "speech_algorithmic_delay": 1.5})],
        speech(5, 8, speech_algorithmic_delay=1.5),
    ),
    "what is no number is none": ([final(1, "Hi.", metadata={"speech_end_ms": "8", "speech_start_ms": True})], {}),
    "typed": ([typed(1, "Hi.")], {}),
    "typed, with metadata": ([typed(1, "Hi.", metadata={"speech_start_ms": 3})], speech(3)),
}


@every_row(("call", "expected"), USERS.values(), ids=USERS)
def test_the_times_of_a_user(call: list[JsonObject], expected: dict[str, Any]) -> None:
    """They are those that the recogniser gave, unscaled; the metadata goes before, and what was typed has none."""
    assert [expected] == times(*call)


REPLIES: dict[str, tuple[list[JsonObject], dict[str, Any]]] = {
    "never played": ([done(1, 100, text="Yes.")], {}),
    "played to a position": ([done(1, 100, text="Yes."), tts(1, 1500, audio_ms=400)], speech(1100, 1500)),
    "played to two": (
        [done(1, 100, text="Yes."), tts(1, 1500, audio_ms=400), tts(1, 1800, audio_ms=690)],
        speech(1100, 1800),
    ),
    "played to the end": (
        [done(1, 100, text="Yes."), tts(1, 1500, audio_ms=400), tts(1, 2000, done=True)],
        speech(1100, 2000),
    ),
    "only the end is known": ([done(1, 100, text="Yes."), tts(1, 2000, done=True)], speech(end=2000)),
    "cut short": (
        [delta(1, "Yes and no.", 100), tts(1, 1500, audio_ms=400), interrupt(1, 1600, heard_text="Yes ")],
        speech(1100, 1500),
    ),
    "named by its item": (
        [done(1, 100, text="Yes.", item="r"), tts(None, 1500, item="r", audio_ms=400)],
        speech(1100, 1500),
    ),
    "timing is no playback": ([done(1, 100, text="Yes."), tts(1, 1500, total_audio_ms=400)], {}),
    "the metadata goes before": (
        [done(1, 100, text="Yes.", metadata={"speech_start_ms": 7}), tts(1, 2000, done=True)],
        speech(7, 2000),
    ),
    "a greeting": ([message(0, "Hello."), tts(0, 2000, audio_ms=10)], speech(1990, 2000)),
}


@every_row(("call", "expected"), REPLIES.values(), ids=REPLIES)
def test_the_times_of_a_reply(call: list[JsonObject], expected: dict[str, Any]) -> None:
    """They are Unix ms, from what was reported of its playback."""
    assert [expected] == times(*call)


def test_each_reply_of_a_turn_has_its_own() -> None:
    """Playback that names the turn alone is about the reply that had begun by then."""
    call = [
        done(1, 100, text="One.", item="a"),
        tts(1, 500, audio_ms=300),
        done(1, 1000, text="Two.", item="b"),
        tts(1, 1500, audio_ms=200),
    ]
    assert [speech(200, 500), speech(1300, 1500)] == times(*call)


@examples(0.6)
@given(PRODUCER_JOURNALS)
def test_times_that_are_kept_are_those_made_anew(call: list[EventLike]) -> None:
    """However a memory is read while it grows, every message has its times, and they are those of the whole call."""
    read_model = ReadModel(State())
    for entry in entries([*call, event("asr", 1, text="Bye.", final=True, start_ms=1), closed(10**6)]):
        read_model.fold([entry])
        shown = [*read_model.timed_messages()]
        assert read_model.messages() == [message for message, _ in shown]
    state = read_model.state
    assert [one for _, one in shown] == [one for n in state.turn_numbers for one in turn_times(state, state.turns[n])]


# ruff: noqa: SIM300 (asserts read `expected == actual`)


GROWS = (final(1, "Hi.", 1000), delta(1, "Good day, ", 1400), delta(1, "how can I help?", 1500))
WORDS = [
    {"text": word, "start_ms": 300 * n, "end_ms": 300 * n + 300} for n, word in enumerate(["Good", "day", "how", "can"])
]


def shown(*given_events: EventLike) -> list[JsonObject]:
    return [msgspec.to_builtins(one) for one in open_messages(folded(*given_events))]


def last(*given_events: EventLike) -> JsonObject:
    """The metadata of the last message."""
    return dict(shown(*given_events)[-1]["metadata"])


def heard(*given_events: EventLike) -> Any:
    return last(*given_events).get("heard_so_far")


def test_a_partial_is_open() -> None:
    """A partial says so, until its final; two utterances of a turn are open while one of them is."""
    assert {"source": "asr", "partial": True, "open": True} == last(partial(1, "Well", 1000))
    assert {"source": "asr"} == last(partial(1, "Well", 1000), final(1, "Well, yes.", 1400))
    assert {"source": "asr", "partial": True, "open": True} == last(final(1, "Well.", 1000), partial(1, "And", 1400))


def test_a_reply_is_open_while_it_grows() -> None:
    """It is over once the LLM has ended it, when it was not reported to play."""
    assert {"source": "llm", "open": True} == last(*GROWS)
    assert {"source": "llm"} == last(*GROWS, done(1, 1600))


def test_a_reply_is_open_while_it_plays() -> None:
    """Its text is whole before it is heard: it is open until playback has ended, or a later turn has a final."""
    playing = (*GROWS, done(1, 1600), tts(1, 1800, audio_ms=0))
    assert {"source": "llm", "open": True} == last(*playing)
    assert {"source": "llm"} == last(*playing, tts(1, 4000, done=True))
    assert {"source": "llm"} == shown(*playing, final(2, "Wait.", 3000))[1]["metadata"]
    assert {"source": "llm"} == shown(*playing, delta(2, "Yes.", 3000), tts(2, 3200, audio_ms=10))[1]["metadata"]


def test_a_cut_reply_is_over() -> None:
    """After a barge-in it has its heard text; after a false alarm it is open again."""
    playing = (*GROWS, tts(1, 1800, audio_ms=0), tts(1, 2400, heard_text="Good day, "))
    cut = last(*playing, interrupt(1, 2500))
    assert (True, False, False) == (cut["interrupted"], "open" in cut, "heard_so_far" in cut)
    assert True is last(*playing, interrupt(1, 2500), resume(1, 2900))["open"]


@pytest.mark.parametrize(
    ("played", "text"),
    [
        (tts(1, 2400, heard_text="Good day, "), "Good day, "),
        (tts(1, 2400, audio_ms=700, words=WORDS), "Good day, "),
        (tts(1, 2400, audio_ms=1000, total_audio_ms=2500), "Good day, "),
        (tts(1, 2400, audio_ms=100, words=WORDS), ""),
        (tts(1, 2400, audio_ms=0), None),
    ],
)
def test_what_was_heard_so_far(played: JsonObject, text: str | None) -> None:
    """It is the text that a cut would leave now; where nothing is known of playback, nothing is said."""
    assert text == heard(*GROWS, played) == heard(*GROWS, done(1, 1600), played)


def test_an_estimate_by_the_position() -> None:
    """A position alone gives what a voice has said by then; it grows with it."""
    first, later = (heard(*GROWS, tts(1, 2400, audio_ms=ms)) for ms in (300, 1100))
    assert first
    assert len(first) < len(later) < len("Good day, how can I help?")


def test_the_close_ends_everything() -> None:
    """In a call that is over nothing is open; in one that is reopened it is again."""
    call = (*GROWS, tts(1, 2400, heard_text="Good "), partial(2, "And", 2500))
    assert message_dicts(folded(*call, closed(3000))) == shown(*call, closed(3000))
    assert [False, True, True] == ["open" in one["metadata"] for one in shown(*call, closed(3000), reopened())]


def test_whole_messages_are_never_open() -> None:
    """A greeting that is not reported to play, and a restored reply, are as they are."""
    assert {"source": "greeting"} == last(message(1, "Hello.", 1000))
    metadata = {"interrupted": True, "interrupt_timestamp": 1100, "original": "Hello there."}
    assert "open" not in last(message(1, "Hello", 1000, metadata=metadata))


def test_the_marks_follow_the_metadata() -> None:
    """Those of the producer stay, behind the documented ones."""
    assert ["source", "partial", "language", "open"] == list(last(partial(1, "Well", metadata={"language": "en"})))


def test_the_reply_that_plays() -> None:
    """One at most: playback of a later reply ends that of those before."""
    playing = (*GROWS, done(1, 1600), tts(1, 1800, audio_ms=10))
    assert [1, None] == [playing_turn(folded(*playing)), playing_turn(folded(*playing, final(2, "Wait.", 3000)))]
    assert 2 == playing_turn(folded(*playing, delta(2, "Yes.", 3000), tts(2, 3200, audio_ms=10)))
    assert [None, None] == [playing_turn(folded(*GROWS)), playing_turn(folded(*playing, closed(9000)))]


@given(PRODUCER_JOURNALS)
def test_the_marks_change_nothing_else(given_events: list[JournaledEvent]) -> None:
    """Whatever producers send, without its marks each message is that of the fold; only one reply plays at a time."""
    state = folded(*given_events)
    plain = message_dicts(state, unfinished=True)
    made = [msgspec.to_builtins(one) for one in open_messages(state)]
    for one, expected in zip(made, plain, strict=True):
        for name in ("open", "heard_so_far", "partial"):
            one["metadata"].pop(name, None)
            expected["metadata"].pop(name, None)
    assert plain == made
