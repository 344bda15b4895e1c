"""Messages with keys: a reader who applies the changes has the history, whatever happens in the call."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import json
from typing import Any

import msgspec
from calls import JOURNALS, contents, done, entries, final, partial
from hypothesis import given, settings
from hypothesis import strategies as st
from tailing import Reader, plain

from voicemem.transcript.diff import Changes, MessageDiff, upserts
from voicemem.transcript.fold import fold
from voicemem.transcript.history import messages
from voicemem.transcript.state import State, decode_state, encode_state

JsonObject = dict[str, Any]


def data_of(changes: Changes) -> JsonObject:
    """Changes as they arrive."""
    return {"session_id": "s", **json.loads(msgspec.json.encode(changes))}


def history_of(state: State, unfinished: bool) -> list[JsonObject]:
    return list(json.loads(msgspec.json.encode(messages(state, unfinished))))


@settings(max_examples=300, deadline=None)
@given(JOURNALS, st.booleans(), st.data())
def test_a_reader_has_the_history(journal: Any, unfinished: bool, data: st.DataObject) -> None:
    """After any journal, told in pieces of any size, the reader's messages are those of the history, in its order."""
    keyed, reader = MessageDiff(State(), unfinished), Reader()
    for entry in entries(journal):
        fold(keyed.state, entry)
        if data.draw(st.booleans()):
            reader.take(data_of(keyed.changes()))
            assert plain(history_of(keyed.state, unfinished)) == plain(reader.shown())
            assert not keyed.changes()


@settings(max_examples=100, deadline=None)
@given(JOURNALS, st.booleans(), st.data())
def test_a_reader_goes_on_with_another_server(journal: Any, unfinished: bool, data: st.DataObject) -> None:
    """Keys are the same when the state is restored or folded anew: a reader of one server goes on with the next."""
    keyed, reader = MessageDiff(State(), unfinished), Reader()
    for place, entry in enumerate(entries(journal)):
        fold(keyed.state, entry)
        reader.take(data_of(keyed.changes()))
        if data.draw(st.booleans()):
            anew = State()
            for one in entries(journal)[: place + 1]:
                fold(anew, one)
            keyed = MessageDiff(
                decode_state(encode_state(keyed.state)) if data.draw(st.booleans()) else anew, unfinished
            )
            keyed.changes()
    assert plain(history_of(keyed.state, unfinished)) == plain(reader.shown())


def test_only_what_has_changed_is_told() -> None:
    """A message that is as it was is not told again, nor are those around one that comes between them."""
    events = [final(1, "One.", 1), final(3, "Three.", 3), final(2, "Two.", 4), partial(2, "Two a", 5), done(2, 6)]
    keyed, told = MessageDiff(State(), unfinished=False), []
    for entry in entries(events):
        fold(keyed.state, entry)
        told.append([(one.key, one.after) for one in keyed.changes().upserts])
    assert [[("1", None)], [("2", "1")], [("3", "1")], [], []] == told
    assert ["One.", "Two.", "Three."] == [one["content"] for one in contents(*events)]


def test_only_what_has_moved_is_told() -> None:
    """Of messages that change their order, those are told that others do not make room for."""
    before = {"a": b"1", "b": b"2", "c": b"3"}
    for order, told in {"abc": "", "bac": "b", "cab": "c", "cba": "cb", "ac": "", "acb": "c"}.items():
        now = {key: before[key] for key in order}
        assert told == "".join(one.key for one in upserts(before, now, None))
