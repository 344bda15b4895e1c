"""The ledger on recorded calls of which it is known what was played."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bench.harness.truth import CALLS, CLOSE_MS, Score, journal, load_calls, score
from tests.support.samples.ledger_calls import events_of
from voicemem.cli.truth import TrueCall
from voicemem.protocol.events import SessionClosed
from voicemem.transcript.fold import DecodedRow, fold_all
from voicemem.transcript.history import messages
from voicemem.transcript.state import State


def scores(call: TrueCall, words: bool, sentences: bool) -> Iterator[Score]:
    """How wrong the memory of each reply is."""
    rows = list(journal(events_of(call, words, sentences), 0, 0, call.name))
    ended = rows[-1].received_ms + CLOSE_MS
    rows.append(DecodedRow(len(rows) + 1, ended, SessionClosed(ts=ended, reason="test")))
    found = {message.timestamp: message for message in messages(fold_all(State(), rows)) if message.role == "assistant"}
    for reply in call.replies:
        yield score(call, reply, found.get(call.began + reply.deltas[0].at_ms))


@pytest.mark.parametrize(("words", "sentences", "bound"), [(True, True, 0.0), (False, True, 0.3), (False, False, 0.3)])
def test_the_memory_is_as_exact_as_what_is_reported(words: bool, sentences: bool, bound: float) -> None:
    """With word times no word is wrong; with the lengths of sentences or replies, less than one in three cuts."""
    found = [one for call in load_calls(CALLS) for one in scores(call, words, sentences)]
    cut = [one for one in found if one.is_cut]
    assert len(cut) > 80
    assert sum(abs(one.wrong) for one in cut) <= bound * len(cut)
    assert [one for one in found if not one.is_cut and one.wrong] == []
