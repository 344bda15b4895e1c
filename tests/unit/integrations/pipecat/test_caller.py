"""The caller of a pipeline: transcripts that a program edits on their way, and the messages that they become."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.transcripts import messages_after
from voicemem.integrations.ledger import Ledger
from voicemem.integrations.pipecat.caller import Caller, Remembered
from voicemem.protocol.types import JsonObject

STT, EDITOR, AGGREGATOR = "stt", "editor", "aggregator"


class Line:
    """A recogniser, a processor that may edit, and an aggregator."""

    def __init__(self) -> None:
        self.events: list[JsonObject] = []
        self.caller = Caller(Ledger(self.events.append))
        self.now = self.caller.began
        self.context = SimpleNamespace(messages=[])
        self.frames = 0

    def frame(self, text: str) -> Any:
        self.frames += 1
        return SimpleNamespace(id=self.frames, text=text, user_id="", language=None)

    def push(self, frame: Any, source: str, destination: str, first: bool = True) -> None:
        self.now += 10
        pushed = SimpleNamespace(frame=frame, source=source, destination=destination, first_push=first)
        self.caller.transcribed(pushed, self.now)

    def final(self, text: str) -> Any:
        """A final of the recogniser, which the editor gets."""
        frame = self.frame(text)
        self.push(frame, STT, EDITOR)
        return frame

    def turn(self, text: str) -> JsonObject:
        """The aggregator puts a message into the context."""
        self.now += 10
        self.context.messages.append({"role": "user", "content": text})
        self.caller.turn_ended(AGGREGATOR, self.context, self.now)
        newest: JsonObject = self.context.messages[-1]
        return newest

    def remembered(self) -> list[str]:
        return [one["content"] for one in messages_after(*self.events)]


@pytest.fixture
def line() -> Line:
    return Line()


def test_a_final_that_passes_is_there_once(line: Line) -> None:
    """Also with a text that was changed in place."""
    frame = line.final("It is 4111.")
    line.push(frame, EDITOR, AGGREGATOR, first=False)
    assert line.remembered() == ["It is 4111."]
    frame.text = "It is ****."
    line.push(frame, AGGREGATOR, "llm", first=False)
    assert line.remembered() == ["It is ****."]


def test_new_frames_take_the_place_of_what_was_given(line: Line) -> None:
    """One for one, one for several, and several while others wait."""
    line.final("It is 4111")
    line.push(line.frame("It is ****"), EDITOR, AGGREGATOR)
    line.final("and")
    line.final("that is all.")
    line.push(line.frame("And that is"), EDITOR, AGGREGATOR)
    line.push(line.frame("all."), EDITOR, AGGREGATOR)
    assert line.remembered() == ["It is **** And that is all."]


def test_what_a_processor_has_dropped_in_an_earlier_turn(line: Line) -> None:
    """A frame that it makes later is of the newest turn alone."""
    line.final("Um")
    line.turn("")
    line.final("It is 4111.")
    line.push(line.frame("It is ****."), EDITOR, AGGREGATOR)
    assert " ".join(line.remembered()) == "Um It is ****."


def test_a_muted_caller_says_nothing(line: Line) -> None:
    """Not even in a frame that passes on when no one is muted any more."""
    line.caller.is_muted = True
    frame = line.final("Hello?")
    line.caller.is_muted = False
    line.push(frame, EDITOR, AGGREGATOR, first=False)
    assert line.remembered() == []


def test_each_message_has_the_words_since_the_one_before(line: Line) -> None:
    """Those of another aggregator are of its own messages."""
    line.final("One.")
    one = line.turn("One.")
    line.final("Two.")
    two = line.turn("Two.")
    first, second = line.caller.user_messages_in(line.context.messages)
    assert (first.message, second.message) == (one, two)
    assert line.caller.began <= first.since < first.until == second.since < second.until
    other = SimpleNamespace(messages=[{"role": "user", "content": "One. Two."}])
    line.caller.turn_ended("other", other, line.now)
    (found,) = line.caller.user_messages_in(other.messages)
    assert (found.since, found.until) == (line.caller.began, second.until)


def test_a_message_that_the_program_has_copied(line: Line) -> None:
    """The newest is known by order, at this request and at the next one."""
    line.final("It is 4111.")
    line.turn("It is 4111.")
    copy = {"role": "user", "content": "It is ****."}
    for _ in range(2):
        (found,) = line.caller.user_messages_in([{"role": "system", "content": "Be brief."}, copy])
        assert found.message is copy
    added = {"role": "user", "content": "(A known caller.)"}
    assert [one.message for one in line.caller.user_messages_in([copy, added])] == [copy]


def test_a_request_ahead_of_the_end_of_the_turn(line: Line) -> None:
    """A message that only this request has is what was heard since the last one; without any it is the program's."""
    ahead = {"role": "user", "content": "Two."}
    assert line.caller.user_messages_in([ahead]) == []
    line.final("One.")
    one = line.turn("One.")
    line.final("Two.")
    line.caller.user_messages_in([one])
    found = line.caller.user_messages_in([one, ahead])
    assert [(one.message, one.until) for one in found][1] == (ahead, float("inf"))
    assert line.caller.user_messages_in([one, Remembered(ahead)]) == found[:1]
