"""The dialect of ConversationRelay: rules that no recording shows."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.dialects import RECORDINGS, Recording, contents, fold_rows, is_caught, reduced
from tests.support.rows import every_row
from tests.support.transcripts import closed
from voicemem.dialects.conversation_relay import CONVERSATION_RELAY, KINDS, reduce
from voicemem.dialects.dialect import MalformedFrame, UnknownFrame
from voicemem.protocol.events import Asr, FrameEvent, Interrupt, LlmDelta, LlmDone
from voicemem.protocol.types import JsonObject
from voicemem.transcript.fold import CLOSED, DecodedRow

CALLS = [one for one in RECORDINGS if one.dialect == "conversation-relay"]
SETUP = {"type": "setup", "sessionId": "VX1", "callSid": "CA1", "from": "+15550100", "to": "+15550101"}


def memory(*frames: JsonObject, close_at: int | None = None) -> list[tuple[str, int, str, Any]]:
    """Role, turn, content and `original` of the messages after these frames, a second apart."""
    rows = []
    for position, frame in enumerate(frames, 1):
        kept = reduce(frame)
        assert kept is not None
        event = FrameEvent(dialect="conversation-relay", frame=kept.content, ts=1_000 * position)
        rows.append(DecodedRow(position, 1_000 * position, event, "main"))
    if close_at is not None:
        close = msgspec.structs.replace(closed(close_at), reason=CLOSED)
        rows.append(DecodedRow(len(rows) + 1, close_at, close))
    found = contents(fold_rows(rows))["contents"]
    return [(one["role"], one["turn_id"], one["content"], one["metadata"].get("original")) for one in found]


def prompt(text: str, **fields: Any) -> JsonObject:
    return {"type": "prompt", "voicePrompt": text, "lang": "en-US", **fields}


def token(text: str, last: bool = False) -> JsonObject:
    return {"type": "text", "token": text, "last": last}


def interrupt(heard: str | None, ms: Any = 460) -> JsonObject:
    return {"type": "interrupt", "utteranceUntilInterrupt": heard, "durationUntilInterruptMs": ms}


# What is kept


def test_phone_numbers_and_parameters_are_not_kept() -> None:
    """Of the setup only the ids of call and session are kept; of an end that hands over, nothing else."""
    numbers = {"forwardedFrom": "secret", "callerName": "secret", "customParameters": {"card": "secret"}}
    kept = [reduce({**SETUP, **numbers}), reduce({"type": "end", "handoffData": "secret"})]
    assert [None if one is None else one.content for one in kept] == [
        {"type": "setup", "callSid": "CA1", "sessionId": "VX1"},
        {"type": "end"},
    ]
    assert [None if one is None else (one.session_id, one.end) for one in kept] == [("CA1", None), (None, "end")]


@pytest.mark.parametrize("recording", CALLS, ids=str)
def test_recordings_keep_no_phone_numbers(recording: Recording) -> None:
    """No number of the recorded calls reaches the journal."""
    assert b"+1800555" not in msgspec.json.encode([frame.content for _, frame in reduced(recording)])


@pytest.mark.parametrize(
    ("given", "ms"), [("460", 460), (460, 460), (460.7, 460), ("soon", None), (-1, None)], ids=repr
)
def test_durations_are_numbers_or_texts(given: Any, ms: int | None) -> None:
    """Older frames have the duration as a text; one that is no number is left out, and the heard text stays."""
    kept = reduce(interrupt("Life is", given))
    assert kept is not None
    assert kept.content["utteranceUntilInterrupt"] == "Life is"
    assert kept.content.get("durationUntilInterruptMs") == ms


@every_row(
    "frame",
    ["text", b"audio", [], {}, {"type": None}, {"type": "prompt"}, {"type": "text", "token": 1}, {"type": "dtmf"}],
    ids=repr,
)
def test_malformed_frames(frame: Any) -> None:
    """What is not a frame of this dialect, or has fields of other types, is malformed."""
    with pytest.raises(MalformedFrame):
        reduce(frame)


def test_unknown_types_and_the_other_side() -> None:
    """A type that is not known is named; a frame that says it is from the other side is malformed."""
    with pytest.raises(UnknownFrame, match="hologram"):
        reduce({"type": "hologram"})
    with pytest.raises(MalformedFrame):
        reduce(token("Hi"), "vendor")


# What it says


def test_interruption_by_name_marks_a_reply_that_was_sent_whole() -> None:
    """All tokens had been sent, and Twilio says how far it had come."""
    said = memory(prompt("Hi"), token("Life is a complex set of things.", last=True), interrupt("Life is a"))
    assert said[1] == ("assistant", 1, "Life is a", "Life is a complex set of things.")


def test_interruption_after_the_last_word_marks_nothing() -> None:
    """The user spoke when all had been said; but while more was coming, that was cut."""
    assert memory(prompt("Hi"), token("Good day.", last=True), interrupt("Good day."))[1][3] is None
    stopped = memory(prompt("Hi"), token("Good day."), interrupt("Good day."), prompt("Stop"), token("OK."))
    assert stopped[1] == ("assistant", 1, "Good day.", "Good day.")


def test_late_tokens_stay_in_the_reply_that_was_cut() -> None:
    """An app that goes on sending makes no new message, until the user has spoken."""
    said = memory(
        token("One two"), interrupt("One"), token(" three"), prompt("Yes?"), token("", last=True), token("Four")
    )
    assert said == [
        ("assistant", 0, "One", "One two three"),
        ("user", 1, "Yes?", None),
    ]
    assert memory(token("One"), interrupt("One"), prompt("Yes?"), token("Two", last=True))[2] == (
        "assistant",
        1,
        "Two",
        None,
    )


def test_an_interruption_may_mean_an_older_reply() -> None:
    """Two replies wait, and the first is cut: of the second nothing was heard."""
    replies = token("One moment please.", last=True), token("It is ten.", last=True)
    assert memory(*replies, interrupt("One mom")) == [
        ("assistant", 0, "One mom", "One moment please."),
        ("assistant", 0, "", "It is ten."),
    ]
    assert memory(*replies, interrupt("One moment  please. It"))[1] == ("assistant", 0, "It", "It is ten.")
    assert memory(*replies, interrupt("Something else"))[1] == ("assistant", 0, "Something else", "It is ten.")


def test_a_second_interruption_does_not_reach_back() -> None:
    """A cut reply is not followed by a cut of the one before it."""
    said = memory(token("One.", last=True), prompt("Go on"), token("Two three."), interrupt("Two"), interrupt("On"))
    assert [one[2] for one in said] == ["One.", "Go on", "Two"]


def test_without_a_heard_text_the_duration_counts() -> None:
    """A position alone gives its part of the text, at the usual rate of speech: 15 characters a second."""
    text = "One two three four five six seven."
    said = memory(prompt("Hi"), token(text, last=True), interrupt(None, 1_000))
    assert said[1] == ("assistant", 1, "One two three ", text)


def test_a_reply_that_was_never_shown() -> None:
    """Where the app's tokens are not sent to us, the heard text of a reply after the greeting is all there is."""
    said = memory(prompt("Hi"), interrupt("Hello, what"), prompt("Nothing"))
    assert said == [
        ("user", 1, "Hi", None),
        ("assistant", 1, "Hello, what", "Hello, what"),
        ("user", 2, "Nothing", None),
    ]


def test_the_app_ends_the_call() -> None:
    """Its end is the time of the close."""
    assert memory(prompt("Bye"), token("Bye.", last=True), {"type": "end"}, close_at=9_000)[1][2] == "Bye."


def test_silence_at_the_close_cuts_nothing() -> None:
    """The agent had stopped speaking; without `info` nothing says that it spoke."""
    text = "One two three four five six seven eight nine ten eleven twelve."
    on, off = ({"type": "info", "name": "agentSpeaking", "value": value} for value in ("on", "off"))
    call = prompt("Hi"), token(text, last=True)
    assert memory(*call, close_at=3_000)[1][2] == text
    assert memory(*call, on, off, close_at=5_000)[1][2] == text
    assert memory(*call, on, close_at=4_000)[1] == ("assistant", 1, "One two three ", text)


def played(clause: str) -> JsonObject:
    return {"type": "info", "name": "tokensPlayed", "value": clause}


ON = {"type": "info", "name": "agentSpeaking", "value": "on"}


def test_a_hang_up_leaves_the_clauses_that_were_played() -> None:
    """What was queued behind them was not heard either; without any report, all that was sent counts as heard."""
    call = prompt("Hi"), token("One, two, three.", last=True), token("Four.", last=True)
    assert memory(*call, ON, played("One,"), close_at=9_000)[1:] == [
        ("assistant", 1, "One,", "One, two, three."),
        ("assistant", 1, "", "Four."),
    ]
    assert memory(*call, ON, played("One, two, three."), close_at=9_000)[2] == ("assistant", 1, "", "Four.")
    assert [one[3] for one in memory(*call, close_at=9_000)] == [None, None, None]


def test_the_greeting_has_the_clauses_that_were_played() -> None:
    """It is interrupted where the caller breaks in, be that in a new clause or in the one that was reported."""
    heard = played("Hello there,"), played("I am Ada.")
    assert memory(SETUP, *heard, close_at=9_000) == [("assistant", 0, "Hello there, I am Ada.", None)]
    for cut in ("What can", "Hello there, I am Ada. What can"):
        assert memory(SETUP, *heard, interrupt(cut), prompt("Hi"))[0][2:] == ("Hello there, I am Ada. What can",) * 2
    assert memory(SETUP, *heard, interrupt("I am Ada."))[0][2:] == ("Hello there, I am Ada.",) * 2


def test_a_reply_is_over_when_a_later_one_is_played() -> None:
    """Of one that a newer text cut, the clauses that were played count; where the texts differ, nothing is cut."""
    sent = prompt("Hi"), token("One, two.", last=True), token("Three.", last=True)
    assert memory(*sent, played("One,"), played("Three."))[1:] == [
        ("assistant", 1, "One,", "One, two."),
        ("assistant", 1, "Three.", None),
    ]
    assert [one[3] for one in memory(*sent, played("Something else"), played("Three."))] == [None, None, None]


def test_a_preemptible_text_that_was_played_whole_is_not_cut() -> None:
    """The report of its last clause may come after the text that would have cut it."""
    first = {**token("One, two.", last=True), "preemptible": True}
    call = prompt("Hi"), first, played("One,"), token("Three.", last=True)
    assert memory(*call)[1] == ("assistant", 1, "One,", "One, two.")
    assert memory(*call, played("two."))[1] == ("assistant", 1, "One, two.", None)
    assert memory(prompt("Hi"), first, token("Three.", last=True))[1][3] is None
    on = {**first, "token": "One, two, three, four, five, six."}
    assert memory(prompt("Hi"), on, ON, token("No.", last=True))[1][2:] == ("One, two, three, ", on["token"])
    assert memory(prompt("Hi"), on, ON, {"type": "play"})[1][3] == on["token"]


@pytest.mark.parametrize("other", ["1234#", "1234", "w*", "  ", "No such text."])
def test_played_texts_of_no_reply(other: str) -> None:
    """Keys that the app sends are reported as played too; they, and what is in no reply, change nothing."""
    said = prompt("Hi"), token("One, two, three.", last=True), played("One,")
    assert memory(*said, played(other), close_at=9_000)[1:] == [("assistant", 1, "One,", "One, two, three.")]
    assert memory(SETUP, prompt("Hi"), token("One.", last=True), played(other))[1:] == [("assistant", 1, "One.", None)]


def test_the_heard_text_may_be_that_of_a_sentence() -> None:
    """It is what was heard of the sentence under way; those before it were heard."""
    text = "One two. Three four five. Six."
    said = prompt("Hi"), token(text, last=True)
    assert memory(*said, interrupt("Three four"))[1][2] == "One two. Three four"
    assert memory(*said, played("One two."), played("Three four"), interrupt("Three four"))[1][2] == (
        "One two. Three four"
    )
    assert memory(*said, played("One two."), interrupt("Three"))[1][2] == "One two. Three"


def test_what_a_new_connection_sends_again_counts_once() -> None:
    """It is a run of the newest frames; a frame alone that says what an older one said is new."""
    call = SETUP, prompt("Yes."), token("One, two.", last=True), played("One,"), played("two."), prompt("No.")
    once = memory(*call)
    for count in range(1, 5):
        assert memory(*call, SETUP, *[one for one in call[1:] if one["type"] != "text"][-count:]) == once
    assert memory(*call, SETUP, played("two."), prompt("No."), prompt("Now?"))[-1][2] == "No. Now?"
    assert memory(*call, SETUP, prompt("Yes."), prompt("Now?"))[-1][2] == "No. Yes. Now?"
    assert memory(*call, SETUP, prompt("Yes."), close_at=20_000)[-1][2] == "No. Yes."
    assert memory(*call, {**SETUP, "sessionId": "VX2"}, prompt("No."))[-1][2] == "No. No."


def test_clauses_of_a_long_reply_are_found() -> None:
    """Case and marks may differ, and a clause that comes again counts once."""
    said = prompt("Hi"), token("Well -- it's 5 o'clock, my FRIEND. Bye", last=True)
    assert memory(*said, played("well it's"), played("well it's"), played("5 o'clock"), close_at=9_000)[1][2] == (
        "Well -- it's 5 o'clock"
    )


# Wrong dialects


def unnamed(made: Any) -> Any:
    """An interruption that does not say which reply it cuts."""
    return msgspec.structs.replace(made, item=None) if isinstance(made, Interrupt) else made


def without_text(made: Any) -> Any:
    """An interruption that does not say what was heard."""
    return msgspec.structs.replace(made, heard_text=None) if isinstance(made, Interrupt) else made


def in_one_reply(made: Any) -> Any:
    """All tokens of a call in one reply."""
    return msgspec.structs.replace(made, item="~r1") if isinstance(made, LlmDelta | LlmDone) else made


def always_final(made: Any) -> Any:
    """Partial prompts taken as whole utterances."""
    return msgspec.structs.replace(made, final=True) if isinstance(made, Asr) else made


@pytest.mark.parametrize("wrong", [unnamed, without_text, in_one_reply, always_final])
def test_wrong_dialects_are_caught(wrong: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of these mistakes changes the memory of a recorded call."""
    assert is_caught(CONVERSATION_RELAY.name, wrong, monkeypatch)


# Any frames

TEXTS = st.sampled_from(["", "One", "One two", " three", "One two three", "x" * 50])
FRAMES = st.one_of(
    st.builds(lambda text, last: {**prompt(text), "last": last}, TEXTS, st.sampled_from([True, False, None])),
    st.builds(token, TEXTS, st.booleans()),
    st.builds(interrupt, st.none() | TEXTS, st.sampled_from([None, 0, "460", 10**6])),
    st.builds(lambda value: {"type": "info", "name": "agentSpeaking", "value": value}, st.sampled_from(["on", "off"])),
    st.builds(played, TEXTS),
    st.builds(lambda text: {**token(text, last=True), "preemptible": True}, TEXTS),
    st.sampled_from([{"type": "dtmf", "digit": "5"}, {"type": "play"}]),
    st.just({"type": "end"}),
    st.just(SETUP),
)


@given(
    frames=st.lists(FRAMES, max_size=30), times=st.lists(st.none() | st.integers(0, 10**6), min_size=31, max_size=31)
)
def test_any_frames_in_any_order_are_folded(frames: list[JsonObject], times: list[int | None]) -> None:
    """Nothing that is made of any frames is left out by the fold, with and without times, and with restarts."""
    rows = []
    for position, (frame, ts) in enumerate(zip(frames, times, strict=False), 1):
        kept = reduce(frame)
        assert kept is not None
        again = reduce(kept.content)
        assert again is not None
        assert again.content == kept.content
        rows.append(
            DecodedRow(position, 1_000, FrameEvent(dialect="conversation-relay", frame=kept.content, ts=ts), "main")
        )
    rows.append(DecodedRow(len(rows) + 1, 2_000, msgspec.structs.replace(closed(2_000), reason=CLOSED)))
    state = fold_rows(rows)
    assert state.ignored == {}
    assert contents(fold_rows(rows, restarts=True)) == contents(state)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["type", "name", "from"]), inner),
    max_leaves=5,
)
FIELDS = (
    "token",
    "last",
    "voicePrompt",
    "utteranceUntilInterrupt",
    "durationUntilInterruptMs",
    "digit",
    "name",
    "callSid",
)


@given(kind=st.sampled_from([*KINDS, "other"]) | JSON, fields=st.dictionaries(st.sampled_from(FIELDS), JSON))
def test_any_fields_are_kept_or_refused(kind: Any, fields: JsonObject) -> None:
    """A frame with whatever fields is reduced, or refused as unknown or malformed; nothing else is raised."""
    try:
        kept = reduce({"type": kind, **fields})
    except (MalformedFrame, UnknownFrame):
        return
    assert kept is None or reduce(kept.content) == kept
