"""Messages with keys: a reader who applies the changes has the history, whatever happens in the call."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.dialects import RECORDINGS, Recording, journal_rows
from tests.support.events import done, final, partial
from tests.support.rows import every_row
from tests.support.samples.history_reader import HistoryReader, exact_json
from tests.support.strategies import ANY_JOURNALS
from tests.support.transcripts import entries, messages_after
from voicemem.protocol.types import JsonObject
from voicemem.transcript.diff import Changes, MessageMarks, TurnMarks, compare, mark_messages, upserts
from voicemem.transcript.fold import fold, fold_event
from voicemem.transcript.history import messages, open_messages
from voicemem.transcript.state import State, decode_state, encode_state


class MessageDiff:
    """A state of its own, and one reader of its messages, who may have been sent them by another server before."""

    def __init__(self, state: State, unfinished: bool, sent: MessageMarks | None = None) -> None:
        self.state = state
        self.unfinished = unfinished
        self.marks = sent or MessageMarks()
        self.behind: dict[int, TurnMarks] = {}

    def changes(self, skip: bool = False) -> Changes:
        """What has changed since the last time, or, if it is skipped, what another reader is sent."""
        told = {} if skip else self.behind
        comparison = compare(self.state, self.unfinished, self.marks, set(self.state.turns), told)
        self.behind = {} if not skip else {
            number: self.marks.turns.get(number, TurnMarks()) for number in comparison.turns
        } | self.behind  # fmt: skip
        self.marks = MessageMarks(comparison.position, self.marks.turns | comparison.turns)
        assert self.marks.shown == comparison.shown
        return comparison.changes


def data_of(changes: Changes) -> JsonObject:
    """Changes as they arrive."""
    return {"session_id": "s", **json.loads(msgspec.json.encode(changes))}


def history_of(state: State, unfinished: bool) -> list[JsonObject]:
    shown = open_messages(state) if unfinished else messages(state)
    return list(json.loads(msgspec.json.encode(shown)))


@given(ANY_JOURNALS, st.booleans(), st.data())
def test_a_reader_has_the_history(journal: Any, unfinished: bool, data: st.DataObject) -> None:
    """After any journal, told in pieces of any size, the reader's messages are those of the history, in its order."""
    keyed, reader = MessageDiff(State(), unfinished), HistoryReader()
    for entry in entries(journal):
        fold(keyed.state, entry)
        if data.draw(st.booleans()):
            if data.draw(st.booleans()):
                keyed.changes(skip=True)
            reader.take(data_of(keyed.changes()))
            assert exact_json(history_of(keyed.state, unfinished)) == exact_json(reader.shown())
            assert not keyed.changes()


@given(ANY_JOURNALS, st.booleans(), st.data())
def test_a_reader_goes_on_with_another_server(journal: Any, unfinished: bool, data: st.DataObject) -> None:
    """Keys are the same when the state is restored or folded again: a reader of one server goes on with the next."""
    keyed, reader = MessageDiff(State(), unfinished), HistoryReader()
    for place, entry in enumerate(entries(journal)):
        fold(keyed.state, entry)
        reader.take(data_of(keyed.changes()))
        if data.draw(st.booleans()):
            anew = State()
            for one in entries(journal)[: place + 1]:
                fold(anew, one)
            state = decode_state(encode_state(keyed.state)) if data.draw(st.booleans()) else anew
            keyed = MessageDiff(state, unfinished, mark_messages(anew, unfinished))
            assert not keyed.changes()
    assert exact_json(history_of(keyed.state, unfinished)) == exact_json(reader.shown())


@pytest.mark.long
@every_row("unfinished", [False, True])
@every_row("recording", RECORDINGS, ids=str)
def test_a_reader_of_another_stack_s_call_has_the_history(recording: Recording, unfinished: bool) -> None:
    """A frame may begin a message of each side, in different turns: they have keys of their own."""
    keyed, reader = MessageDiff(State(), unfinished), HistoryReader()
    for row in journal_rows(recording):
        fold_event(keyed.state, *row)
        reader.take(data_of(keyed.changes()))
        assert exact_json(history_of(keyed.state, unfinished)) == exact_json(reader.shown())


def test_only_what_has_changed_is_told() -> None:
    """A message that is as it was is not told again, nor are those around one that comes between them."""
    events = [final(1, "One.", 1), final(3, "Three.", 3), final(2, "Two.", 4), partial(2, "Two a", 5), done(2, 6)]
    keyed, told = MessageDiff(State(), unfinished=False), []
    for entry in entries(events):
        fold(keyed.state, entry)
        told.append([(one.key, one.after) for one in keyed.changes().upserts])
    assert [[("1", None)], [("2", "1")], [("3", "1")], [], []] == told
    assert ["One.", "Two.", "Three."] == [one["content"] for one in messages_after(*events)]


def test_only_what_has_moved_is_told() -> None:
    """Of messages that change their order, those are told that others do not make room for."""
    before = {"a": b"1", "b": b"2", "c": b"3"}
    for order, told in {"abc": "", "bac": "b", "cab": "c", "cba": "cb", "ac": "", "acb": "c"}.items():
        now = {key: before[key] for key in order}
        assert told == "".join(one.key for one in upserts(before, now, now, None))
