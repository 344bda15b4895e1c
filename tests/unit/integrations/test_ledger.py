"""The ledger: what frameworks report, and the memory that its events make."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.transcripts import folded, messages_after
from voicemem.integrations.ledger import MAX_REPLIES, Ledger
from voicemem.integrations.spoken_text import MAX_CHARS
from voicemem.protocol.codec import DecodedEvent, decode_event
from voicemem.protocol.types import JsonObject
from voicemem.transcript.turns import reply_after, turn_marks

FIRST, SECOND = "Why did the scarecrow win an award? ", "Because he was outstanding in his field!"
TEXT = FIRST + SECOND


class Call:
    """A call in which a caller has asked for a joke, and what a ledger made of it."""

    def __init__(self) -> None:
        self.events: list[JsonObject] = []
        self.ledger = Ledger(self.events.append)
        self.ledger.user_said("Tell me a joke", 100, final=True)
        self.ledger.user_turn_ended()

    def say(self, reply: str = "r1", text: str = TEXT, at: int = 200) -> None:
        self.ledger.said(reply, text, at)
        self.ledger.said_all(reply, at)

    def synthesise(self, reply: str = "r1") -> None:
        """Two sentences, of two seconds each."""
        for text in (FIRST, SECOND):
            self.ledger.voiced(reply, text)
            self.ledger.audio_made(reply, 2000)
            self.ledger.span_made(reply, 300)

    def types(self) -> list[str]:
        return [event["type"] for event in self.events]

    def replies(self) -> list[tuple[str, bool]]:
        """What the memory has of the agent, and whether it was cut."""
        found = [one for one in messages_after(*self.events) if one["role"] == "assistant"]
        return [(one["content"], one["metadata"].get("interrupted", False)) for one in found]

    def contents(self) -> list[str]:
        return [one["content"] for one in messages_after(*self.events)]


@pytest.fixture
def call() -> Call:
    return Call()


def test_words_that_are_not_final_when_the_turn_ends_are_of_the_next_one() -> None:
    """The partial is taken back from the turn that ended; its final comes once, in the next one."""
    events: list[JsonObject] = []
    ledger = Ledger(events.append)
    ledger.user_said("How much is it", 1000, final=True)
    ledger.user_said("No", 2000, final=False)
    ledger.user_turn_ended()
    ledger.user_said("No stop", 3000, final=True)
    assert [(one["item"], one["segment"], one["text"], one["final"]) for one in events] == [
        ("u1", 0, "How much is it", True),
        ("u1", 1, "No", False),
        ("u1", 1, "", True),
        ("u2", 0, "No", False),
        ("u2", 0, "No stop", True),
    ]


def test_a_reply_that_was_heard_is_kept_whole(call: Call) -> None:
    """Played to its end, it is in the memory as it was generated."""
    call.say()
    call.synthesise()
    call.ledger.played("r1", 0, 400)
    call.ledger.finished("r1", 4400)
    assert call.replies() == [(TEXT, False)]


def test_sentences_of_known_length_say_where_the_cut_was(call: Call) -> None:
    """A position in the second sentence is found by that sentence's own length."""
    call.say()
    call.synthesise()
    call.ledger.played("r1", 0, 400)
    call.ledger.cut("r1", 2000 + 600, 3100)
    assert call.replies() == [(FIRST + "Because he ", True)]


def test_a_text_that_is_first_heard_of_with_its_audio(call: Call) -> None:
    """A TTS that is given single tokens says which sentence it was when its audio is there."""
    call.say()
    for text in (FIRST, SECOND):
        call.ledger.audio_made("r1", 2000)
        call.ledger.span_made("r1", 300, text)
    call.ledger.cut("r1", 2000 + 600, 3100)
    assert call.replies() == [(FIRST + "Because he ", True)]


def test_word_times_say_it_better(call: Call) -> None:
    """With them, what the sentences' lengths say is not needed."""
    call.say()
    words = [(word, 100 * at, 100 * at + 90) for at, word in enumerate(TEXT.split(" "))]
    call.ledger.words_timed("r1", words, 300)
    call.synthesise()
    call.ledger.cut("r1", 290, 700)
    assert call.replies() == [("Why did the ", True)]
    assert not any(event.get("estimated") for event in call.events)


def test_word_times_that_come_after_the_cut_count(call: Call) -> None:
    """The position is then looked up in them."""
    call.say()
    call.ledger.cut("r1", 2900, 700)
    call.ledger.words_timed("r1", [(word, 1000 * at, 1000 * at + 900) for at, word in enumerate(TEXT.split(" "))], 800)
    assert call.replies() == [("Why did the ", True)]


def test_a_sentence_still_being_made_is_heard_at_the_rate_of_the_voice(call: Call) -> None:
    """The length of its audio is not known yet, but how fast the voice has spoken."""
    call.say()
    call.ledger.voiced("r1", FIRST)
    call.ledger.audio_made("r1", 7000)
    call.ledger.span_made("r1", 300)
    call.ledger.voiced("r1", SECOND)
    call.ledger.audio_made("r1", 2500)
    call.ledger.cut("r1", 7000 + 2200, 9000)
    assert call.replies() == [(FIRST + "Because he ", True)]  # five characters a second


def test_without_any_audio_the_frameworks_own_text_counts(call: Call) -> None:
    """Where the ledger knows nothing of the voice, what the framework thinks was heard is the better guess."""
    call.say()
    call.ledger.cut("r1", 900, 1000, heard_text="Why did the scarecrow ")
    assert call.replies() == [("Why did the scarecrow ", True)]


def test_marks_that_are_not_spoken_are_kept(call: Call) -> None:
    """A TTS that gets a text without its Markdown does not move the cut."""
    call.say(text="**Take** the _second_ door on the `left` side.")
    call.ledger.voiced("r1", "Take the second door on the left side.")
    call.ledger.audio_made("r1", 20_000)
    call.ledger.cut("r1", 1100, 1500)
    assert call.replies() == [("**Take** the _second_ ", True)]


def test_a_false_alarm_is_no_cut(call: Call) -> None:
    """After a resume the reply plays on, and can be cut at another place."""
    call.say()
    call.synthesise()
    call.ledger.cut("r1", 500, 900)
    call.ledger.resumed("r1", 1500)
    assert call.replies() == [(TEXT, False)]
    call.ledger.played("r1", 1000, 2000)
    call.ledger.cut("r1", 2600, 3700)
    assert call.replies() == [(FIRST + "Because he ", True)]


def test_words_after_a_false_alarm_begin_with_themselves(call: Call) -> None:
    """The noise that caused it was of the same utterance to the framework; the message does not begin with it."""
    call.say()
    call.synthesise()
    call.ledger.played("r1", 100, 500)
    call.ledger.user_said("mhm", 850, final=False)
    call.ledger.cut("r1", 500, 900)
    call.ledger.resumed("r1", 1500)
    call.ledger.user_said("Another", 5000, final=False)
    call.ledger.user_said("Another one.", 5400, final=True)
    assert [one["timestamp"] for one in messages_after(*call.events) if one["role"] == "user"] == [100, 5000]


def test_a_false_alarm_and_a_cut_at_one_time(call: Call) -> None:
    """The cut is not taken for the false alarm, also if both have the same time."""
    call.say()
    call.ledger.cut("r1", 500, 900)
    call.ledger.resumed("r1", 1500)
    call.ledger.cut("r1", 500, 1500)
    assert [interrupted for _, interrupted in call.replies()] == [True]


def test_a_reply_that_was_never_played_never_existed(call: Call) -> None:
    """A preemptive generation that was thrown away leaves nothing in the memory."""
    call.say("r1")
    call.ledger.withdrawn("r1", 250)
    call.say("r2", "No.", at=300)
    call.ledger.played("r2", 400, 800)
    call.ledger.finished("r2", 800)
    assert call.replies() == [("No.", False)]


def test_what_was_heard_is_not_withdrawn(call: Call) -> None:
    """A reply that has been played stays, whatever the framework says of it later."""
    call.say()
    call.ledger.played("r1", 700, 900)
    call.ledger.withdrawn("r1", 950)
    assert "llm.cancel" not in call.types()


def test_nothing_heard(call: Call) -> None:
    """A reply cut before its first sound stays with no text, unless it is withdrawn."""
    call.say()
    call.ledger.cut("r1", None, 900)
    assert call.replies() == [("", True)]
    call.ledger.withdrawn("r1", 950)
    assert call.replies() == []


def test_the_end_cuts_what_plays(call: Call) -> None:
    """A hang-up leaves what was heard until then; replies that were waiting leave nothing; a complete one is whole."""
    call.say("r0", "Hello. ")
    call.ledger.voiced("r0", "Hello. ")
    call.ledger.audio_made("r0", 500)
    call.ledger.span_made("r0", 250)
    call.ledger.played("r0", 500, 900)
    call.say("r1")
    call.synthesise()
    call.ledger.played("r1", 2600, 3700)
    call.say("r2", "Never played.")
    call.ledger.end(3800, reason="hangup")
    assert call.replies() == [("Hello. ", False), (FIRST + "Because he ", True)]
    assert call.events[-1] == {"type": "session.end", "ts": 3800, "reason": "hangup"}


def test_playback_of_unknown_position_is_left_to_the_clock(call: Call) -> None:
    """If it is known only when playback began, the time since then says how much was heard."""
    call.say()
    call.ledger.played("r1", 0, 1000)
    call.ledger.end(2500)
    assert call.replies() == [("Why did the scarecrow ", True)]  # 1.5 s at 15 characters a second


def test_after_the_end_everything_is_dropped(call: Call) -> None:
    """Late frames change nothing, and raise nothing."""
    call.ledger.end(300)
    count = len(call.events)
    call.say()
    call.ledger.end(400)
    assert len(call.events) == count


def test_several_finals_are_one_utterance(call: Call) -> None:
    """They are joined until the caller's turn ends; then another turn begins."""
    call.say()
    call.ledger.played("r1", 100, 400)
    for text in ("Wait.", "Who was", "Who was it?"):
        call.ledger.user_said(text, 500, final=text != "Who was")
    call.ledger.user_turn_ended()
    call.say("r2", "A scarecrow.", at=600)
    call.ledger.finished("r2", 700)
    call.ledger.user_said("Thanks.", 800, final=True)
    found = [(one["turn_id"], one["content"]) for one in messages_after(*call.events) if one["role"] == "user"]
    assert found == [(1, "Tell me a joke"), (2, "Wait. Who was it?"), (3, "Thanks.")]


def test_a_reply_that_is_heard_ends_the_turn() -> None:
    """Frameworks that do not say when a turn ends need not."""
    call = Call()
    for number in (1, 2):
        call.ledger.user_said(f"Question {number}.", 1000 * number, final=True)
        call.say(f"r{number}", f"Answer {number}.", at=1000 * number + 100)
        call.ledger.finished(f"r{number}", 1000 * number + 500)
    assert call.contents()[-2:] == ["Question 2.", "Answer 2."]


def test_tools_are_in_the_turn_of_their_reply(call: Call) -> None:
    """A tool that is called before the agent has said anything belongs to the caller's question."""
    call.ledger.tool_called("c1", "jokes", {"about": "farms"}, 150, reply="r1")
    call.ledger.tool_returned("c1", "scarecrow", 180)
    call.say("r2")
    call.ledger.finished("r2", 900)
    assert [event.get("item") for event in call.events if event["type"] == "tool.call"] == ["r1"]
    assert call.contents() == ["Tell me a joke", TEXT]


def test_announcements_and_typed_text_have_their_source(call: Call) -> None:
    """They are messages of their own, and an announcement can be cut like any reply."""
    call.ledger.announced("g", "Hello, this is the farm.", 120)
    call.ledger.cut("g", 0, 130)
    call.ledger.user_typed("hi", 200)
    found = [(one["metadata"]["source"], one["content"]) for one in messages_after(*call.events)]
    assert found == [("asr", "Tell me a joke"), ("greeting", ""), ("message", "hi")]


def test_progress_is_sent_twice_a_second(call: Call) -> None:
    """Reports of every frame do not become an event each."""
    call.say()
    for position in range(0, 2001, 20):
        call.ledger.played("r1", position, 400 + position)
    assert [event["audio_ms"] for event in call.events if event["type"] == "tts"] == [0, 500, 1000, 1500, 2000]


def test_memory_is_bounded() -> None:
    """Neither many replies nor a long one are kept whole."""
    ledger = Ledger(lambda event: None)
    for number in range(3 * MAX_REPLIES):
        ledger.said(f"r{number}", "Hello.", number)
    ledger.said("long", "word " * MAX_CHARS, 0)
    ledger.voiced("long", "word " * MAX_CHARS)
    ledger.voiced("long", "word " * MAX_CHARS)
    known = ledger.replies["long"]
    assert len(ledger.replies) == MAX_REPLIES
    assert len(known.text) == len(known.spoken.text) == MAX_CHARS


def test_ids_of_two_processes_differ() -> None:
    """With a prefix, what a new process calls `r1` is not the reply of the one before it; long ids are shortened."""
    events: list[JsonObject] = []
    ledger = Ledger(events.append, prefix="p2-")
    ledger.said("r1", "Hello.", 1)
    ledger.said("r" * 200, "Hello.", 1)
    ledger.user_said("Hi.", 1, final=True)
    items = [event["item"] for event in events]
    assert items[0] == "p2-r1"
    assert len(items[1]) == 64
    assert items[2] == "p2-u1"


@pytest.mark.parametrize("nonsense", [None, float("nan"), float("inf"), "soon", -5, 10**30])
def test_nonsense_is_dropped(nonsense: Any, call: Call, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is raised into the framework; the log says once a call of each report that it was missed."""
    call.ledger.played("r1", nonsense, 100)
    call.ledger.cut("r1", nonsense, nonsense)
    call.ledger.audio_made("r1", nonsense)
    call.ledger.words_timed("r1", nonsense, 100)
    call.ledger.said("r1", nonsense, 100)
    call.ledger.said("r2", nonsense, 100)
    warnings = [one.getMessage() for one in caplog.records if one.name == "voicemem.integrations"]
    assert len(call.ledger.misses) == len(warnings) == len(set(warnings)) >= 1


def test_a_sender_that_raises_is_not_felt() -> None:
    """Whatever `send` does, the framework goes on."""

    def send(event: JsonObject) -> None:
        raise RuntimeError

    Ledger(send).said("r1", "Hello.", 1)


NAMES = st.sampled_from(["r1", "r2", "r3"])
TIMES = st.integers(0, 10_000) | st.floats(0, 1e4)
SAYS = st.sampled_from(["Hello. ", "How are you?", "", "你好。", "\n"])
ACTIONS = st.one_of(
    st.tuples(st.just("user_said"), SAYS, TIMES, st.fixed_dictionaries({"final": st.booleans()})),
    st.tuples(st.just("user_turn_ended")),
    st.tuples(st.just("said"), NAMES, SAYS, TIMES),
    st.tuples(st.just("said_all"), NAMES, TIMES),
    st.tuples(st.just("announced"), NAMES, SAYS, TIMES),
    st.tuples(st.just("withdrawn"), NAMES, TIMES),
    st.tuples(st.just("voiced"), NAMES, SAYS),
    st.tuples(st.just("audio_made"), NAMES, TIMES),
    st.tuples(st.just("span_made"), NAMES, TIMES, st.none() | SAYS, st.none() | TIMES),
    st.tuples(st.just("words_timed"), NAMES, st.lists(st.tuples(SAYS, TIMES, TIMES), max_size=4), TIMES),
    st.tuples(st.just("played"), NAMES, TIMES, TIMES),
    st.tuples(st.just("finished"), NAMES, TIMES),
    st.tuples(st.just("cut"), NAMES, st.none() | TIMES, TIMES),
    st.tuples(st.just("resumed"), NAMES, TIMES),
    st.tuples(st.just("tool_called"), st.just("c1"), st.just("look"), st.just({}), TIMES),
    st.tuples(st.just("end"), TIMES),
)


@given(st.lists(ACTIONS, max_size=40))
def test_whatever_is_reported_every_event_is_taken(actions: list[tuple[Any, ...]]) -> None:
    """In any order, nothing is missed, and the service refuses none of the events."""
    events: list[JsonObject] = []
    ledger = Ledger(events.append)
    for name, *arguments in actions:
        named = arguments.pop() if arguments and isinstance(arguments[-1], dict) and name == "user_said" else {}
        getattr(ledger, name)(*arguments, **named)
    assert not ledger.misses
    assert all(isinstance(decode_event(msgspec.json.encode(event)), DecodedEvent) for event in events)
    for one in messages_after(*events):
        original = one["metadata"].get("original", one["content"])
        assert " ".join(original.split()).startswith(" ".join(one["content"].split()))


@pytest.mark.parametrize(
    ("partials", "final", "stopped"),
    [((1000, 1500), 2600, 1900), ((), 2600, 1900), ((1000,), 1800, 1700), ((1950,), 2600, 1900)],
)
def test_the_end_of_the_callers_speech_counts_whenever_its_words_come(
    partials: tuple[int, ...], final: int, stopped: int
) -> None:
    """The words may have partials or none, and be final before a detector says that the caller has stopped."""
    for is_final_first in (False, True):
        events: list[JsonObject] = []
        ledger = Ledger(events.append)
        for at in partials:
            ledger.user_said("Is it", at, final=False)
        ledger.user_spoke(None)
        if is_final_first:
            ledger.user_said("Is it open?", final, final=True)
        ledger.user_spoke(stopped)
        if not is_final_first:
            ledger.user_said("Is it open?", final, final=True)
        ledger.user_turn_ended()
        ledger.said("r1", "Yes.", 2700)
        ledger.said_all("r1", 2700)
        ledger.played("r1", 0, 2900)
        state = folded(*events)
        assert reply_after(state, state.turns[1])[:] == (2900 - stopped, "marks")
        assert [one["content"] for one in messages_after(*events)] == ["Is it open?", "Yes."]


def test_words_after_a_pause_are_timed_by_themselves() -> None:
    """The caller has spoken again since: what was said then has no end yet."""
    events: list[JsonObject] = []
    ledger = Ledger(events.append)
    ledger.user_said("Is it", 1000, final=True)
    ledger.user_spoke(900)
    ledger.user_spoke(None)
    ledger.user_said("open?", 2000, final=True)
    assert [one.get("end_ms") for one in events if one["segment"]] == [None]
    state = folded(*events)
    assert turn_marks(state, state.turns[1]).user_ended == 2000


def test_each_reply_names_its_agent_once(call: Call) -> None:
    """The agent that speaks then; a text that no LLM made has one, too."""
    call.ledger.agent = "triage"
    call.ledger.said("r1", "One moment, ", 200)
    call.ledger.said("r1", "please.", 250)
    call.ledger.said_all("r1", 250)
    call.ledger.agent = "billing"
    call.ledger.announced("r2", "Billing here.", 300)
    assert [one.get("agent") for one in call.events if one.get("agent")] == ["triage", "billing"]
    assert [one["metadata"].get("agent") for one in messages_after(*call.events)] == [None, "triage", "billing"]
