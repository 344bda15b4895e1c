"""A read model: what is made again after an event, and what is kept."""

from __future__ import annotations

import random

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tests.support.plain_fold.calls import plain_rows
from tests.support.random_calls.strategies import calls
from voicemem.protocol.codec import decode_journaled
from voicemem.protocol.types import JsonObject
from voicemem.sessions.read_models.read_model import ReadModel
from voicemem.transcript.fold import DecodedRow, fold_all
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
