"""The state of a call, and its snapshots."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given

from tests.support.events import JOKE, delta, done, final, interrupt, message, partial, tts, words
from tests.support.strategies import ANY_JOURNALS
from tests.support.transcripts import entries, folded
from voicemem.protocol.events import JournaledEvent
from voicemem.transcript.fold import fold, fold_all
from voicemem.transcript.state import DECODER, State, decode_state, encode_state


def test_new_state_is_empty() -> None:
    """A call begins at position 0 without turns."""
    state = State()
    assert (state.position, state.turns, state.turn_numbers, state.dirty_turns) == (0, {}, [], set())


def test_states_share_nothing() -> None:
    """Each state has containers of its own."""
    State().turn(7)
    folded(message(1, "Hi.", id="e", item="i"))
    assert State() == DECODER.decode(encode_state(State()))


def test_turns_are_numbered_in_order() -> None:
    """A turn is made once, and its number is put in order."""
    state = State()
    made = [state.turn(number) for number in (5, 1, 2**53, 0, 5)]
    assert made[0] is made[-1]
    assert state.turn_numbers == [0, 1, 5, 2**53]


def test_changed_turns_are_dirty() -> None:
    """An event marks the turns whose messages it may have changed, and no others."""
    state = fold_all(State(), entries([message(1, "One."), final(2, "Two.")]))
    assert state.dirty_turns == {1, 2}
    state.dirty_turns.clear()
    fold(state, entries([interrupt(1, 5)])[0])
    assert state.dirty_turns == {1}


def test_restored_state_is_all_dirty() -> None:
    """Every turn is to be read again after a restore."""
    state = folded(message(1, "One."), final(2, "Two."))
    state.dirty_turns.clear()
    assert decode_state(encode_state(state)).dirty_turns == {1, 2}


@given(ANY_JOURNALS)
def test_restored_state_is_equal(journal: list[JournaledEvent]) -> None:
    """A snapshot holds all that the fold remembers."""
    state = folded(*journal)
    kept = decode_state(encode_state(state))
    kept.dirty_turns = state.dirty_turns
    assert kept == state


def test_snapshot_is_a_copy() -> None:
    """What is folded later does not reach back into a snapshot."""
    state = folded(delta(1, "One "))
    before = encode_state(state)
    fold_all(state, entries([delta(1, "two.", 5), done(1, 6), partial(2, "Hm", 7)]))
    assert encode_state(decode_state(before)) == before != encode_state(state)


def test_state_of_a_call_is_small() -> None:
    """Deltas, progress and words are kept without copies of the text."""
    pieces = [delta(1, piece + " ", 10 + place) for place, piece in enumerate(JOKE.split())]
    progress = [tts(1, 50 + place, heard_text=JOKE[:place]) for place in range(len(JOKE))]
    assert len(encode_state(folded(*pieces, *progress, tts(1, 40, words=words(JOKE))))) < 3000


@pytest.mark.parametrize("blob", [b"", b"\xc1", msgspec.msgpack.encode({"position": 1}), msgspec.msgpack.encode(["x"])])
def test_broken_snapshot_is_refused(blob: bytes) -> None:
    """What is no snapshot does not become a state."""
    with pytest.raises(msgspec.DecodeError):
        decode_state(blob)
