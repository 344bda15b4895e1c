"""A read model: what is made again after an event, and what is kept."""

from __future__ import annotations

import itertools
import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.events import done, event, final, interrupt, partial, resume, tts
from tests.support.plain_fold.calls import plain_rows
from tests.support.profiles import seeds
from tests.support.random_calls.strategies import calls
from tests.support.samples.exported_calls import facts
from voicemem.exports.call import call_of
from voicemem.exports.formats import FORMATS
from voicemem.protocol.codec import decode_journaled
from voicemem.protocol.types import JsonObject
from voicemem.sessions.read_models.read_model import ReadModel, decode_rows
from voicemem.store.records import JournalRow
from voicemem.transcript.diff import MessageMarks, compare, mark_messages
from voicemem.transcript.fold import DecodedRow, fold_all
from voicemem.transcript.history import messages
from voicemem.transcript.packing import FEW, Items
from voicemem.transcript.state import State


@given(events=calls(), chance=st.randoms(use_true_random=False))
def test_what_was_read_before_changes_nothing(events: list[JsonObject], chance: random.Random) -> None:
    """However often it is read, packed and unpacked between its events, it ends as if folded at once."""
    rows = [
        DecodedRow(row.position, row.received_ms, decode_journaled(msgspec.json.encode(row.event)), row.producer)
        for row in plain_rows(*events)
    ]
    at_once, read_model = ReadModel(fold_all(State(), rows)), ReadModel(State())
    for row in rows:
        read_model.fold([row])
        match chance.randrange(7):
            case 0:
                read_model.messages()
            case 1:
                read_model.messages(unfinished=True)
            case 2:
                read_model.encode_messages()
            case 3:
                read_model.encode_messages("standard")
            case 4:
                read_model.pack()
    assert read_model.messages() == at_once.messages()
    assert read_model.encode_messages() == at_once.encode_messages()
    assert read_model.encode_messages("standard") == at_once.encode_messages("standard")
    assert read_model.messages(unfinished=True) == at_once.messages(unfinished=True)


def late_event(luck: random.Random, ts: int) -> JsonObject:
    """Something about a turn anywhere in the call."""
    turn = luck.randint(1, 2 * FEW)
    kinds = [
        lambda: interrupt(turn, turn * 10 + 7, heard_text="An"),
        lambda: resume(turn, turn * 10 + 9),
        lambda: tts(turn, turn * 10 + 6, audio_ms=300),
        lambda: final(turn, f"Late {ts}.", turn * 10 + 1),
        lambda: partial(turn, "Open", ts),
        lambda: event("llm.cancel", turn_id=turn, ts=turn * 10 + 8),
        lambda: event("message", role="user", text="Typed.", source="command", turn_id=turn, ts=ts),
        lambda: event("tool.call", call_id=f"c{ts}", name="look", arguments={}, turn_id=turn, ts=ts),
        lambda: event("tool.result", call_id=f"c{ts - 10}", result=ts, ts=ts),
        lambda: event("asr", text="Anyone", ts=ts),
        lambda: event("interrupt", heard_text="An", ts=ts),
        lambda: event("session.closed", reason="ended", ts=ts),
        lambda: event("session.reopened", ts=ts),
    ]
    return luck.choice(kinds)()


@pytest.mark.parametrize("seed", seeds(2))
def test_a_call_of_very_many_turns_is_one_like_others(seed: int) -> None:
    """What is packed of it is read as if it were not, also after late events for any turn, and in parts."""
    luck, plain, packed = random.Random(seed), ReadModel(State()), ReadModel(State())
    packed.state.find_packed()  # as it is from some more turns on
    whole = [
        (final(turn, "Hi.", turn * 10), done(turn, text="Answer.", ts=turn * 10 + 5)) for turn in range(1, 2 * FEW)
    ]
    events = [*itertools.chain(*whole), *(late_event(luck, 30 * FEW + 10 * place) for place in range(120))]
    rows = [
        JournalRow(at, None if one["type"].startswith("session.") else "main", None, at, msgspec.json.encode(one))
        for at, one in enumerate(events, 1)
    ]
    seen = MessageMarks()
    for some in (rows[: 4 * FEW - 2], *(rows[at : at + 60] for at in range(4 * FEW - 2, len(rows), 60))):
        plain.fold(decode_rows(some))
        packed.fold_rows(some)
        changed = set(packed.turns_changed_since(seen.position)) if seen.position else set(packed.state.turn_numbers)
        found, expected = (compare(one.state, False, seen, changed, {}) for one in (packed, plain))
        assert expected == found
        seen = mark_messages(packed.state, unfinished=False)
        if luck.random() < 0.3:
            packed.pack()
    assert packed.state.packed_turns
    assert isinstance(packed.current_messages(), Items)
    assert messages(plain.state) == list(plain.messages()) == list(packed.messages())
    assert list(plain.messages(unfinished=True)) == list(packed.messages(unfinished=True))
    assert [*plain.turns(marks=True)] == [*packed.turns(marks=True)]
    assert [*plain.timed_messages()] == [*packed.timed_messages()]
    assert list(plain.tool_uses()) == list(packed.tool_uses())
    expected_call = call_of(facts(), plain.timed_messages(), plain.state)
    found_call = call_of(facts(), packed.timed_messages(), packed.state, packed.messages())
    for form in FORMATS.values():
        assert [*form.write(expected_call)] == [*form.write(found_call)]
    assert plain.encode_messages() == packed.encode_messages()
    assert (plain.characters, plain.blank_messages) == (packed.characters, packed.blank_messages)
