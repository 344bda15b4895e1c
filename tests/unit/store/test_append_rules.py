"""Which events a journal takes, and when a session is over."""

from __future__ import annotations

import pytest

from tests.support.samples.streams import START, stream
from voicemem.errors import CODES
from voicemem.store.append_rules import Offer, Outcome, admit, outcome_sentence
from voicemem.store.streams import ProducerState

STORED = None
DUPLICATE = Outcome(duplicate=True)


def offer(seq: int | None) -> Offer:
    """An event with this seq."""
    return Offer(seq, START, b"{}")


NEW = ProducerState("main")
AT_FIVE = ProducerState("main", epoch=2, next_seq=5)
MIXING = ProducerState("main", unsequenced=True)
GONE = ProducerState("main", next_seq=5, ended=True)
GONE_UNSEQUENCED = ProducerState("main", unsequenced=True, ended=True)


@pytest.mark.parametrize(
    ("producer", "seq", "outcome"),
    [
        (NEW, 1, STORED),
        (AT_FIVE, 5, STORED),
        (NEW, None, STORED),
        (MIXING, None, STORED),
        (AT_FIVE, 4, DUPLICATE),
        (AT_FIVE, 1, DUPLICATE),
        (AT_FIVE, 6, Outcome(code="seq_gap", expected=5)),
        (NEW, 2**53, Outcome(code="seq_gap", expected=1)),
        (AT_FIVE, None, Outcome(code="seq_required")),
        (MIXING, 1, Outcome(code="seq_required")),
        (MIXING, 2, Outcome(code="seq_required")),
        (GONE, 4, DUPLICATE),
        (GONE, 5, Outcome(code="session_ended")),
        (GONE, 6, Outcome(code="session_ended")),
        (GONE, None, Outcome(code="session_ended")),
        (GONE_UNSEQUENCED, None, Outcome(code="session_ended")),
    ],
)
def test_admission_by_seq(producer: ProducerState, seq: int | None, outcome: Outcome | None) -> None:
    """A seq is stored, acknowledged again, or refused; after a producer's own end only duplicates are acknowledged."""
    assert admit(stream(), producer, None, offer(seq)) == outcome


@pytest.mark.parametrize(
    ("seq", "outcome"),
    [
        (4, DUPLICATE),
        (5, Outcome(code="session_ended")),
        (9, Outcome(code="session_ended")),
        (None, Outcome(code="session_ended")),
    ],
)
def test_ended_session_takes_duplicates_only(seq: int | None, outcome: Outcome) -> None:
    """After the close, what was stored is acknowledged again, and everything else is told that the session ended."""
    assert admit(stream(state="ended"), AT_FIVE, None, offer(seq)) == outcome


@pytest.mark.parametrize("seq", [None, 1, 4, 5, 6])
def test_erased_session_takes_nothing(seq: int | None) -> None:
    """A buffered producer cannot bring an erased session back, not even with what was stored once."""
    assert admit(stream(state="erased"), AT_FIVE, 2, offer(seq)) == Outcome(code="session_erased")


@pytest.mark.parametrize("seq", [None, 4, 5, 6])
@pytest.mark.parametrize("epoch", [0, 1, 3])
def test_other_epoch_is_superseded(epoch: int, seq: int | None) -> None:
    """A connection of another epoch than the newest can append nothing."""
    assert admit(stream(), AT_FIVE, epoch, offer(seq)) == Outcome(code="superseded")


def test_newest_epoch_and_none_are_taken() -> None:
    """The newest connection appends; without an epoch, as over HTTP, it is not checked."""
    assert admit(stream(), AT_FIVE, 2, offer(5)) is STORED
    assert admit(stream(), AT_FIVE, None, offer(5)) is STORED


def test_sentence_of_a_gap_says_what_is_expected() -> None:
    """An outcome is told in the plain sentence of its code."""
    assert outcome_sentence(Outcome(code="seq_conflict")) == CODES["seq_conflict"].sentence
    assert outcome_sentence(Outcome(code="seq_gap", expected=7)).endswith("Expected seq 7.")
