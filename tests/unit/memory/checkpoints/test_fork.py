"""Forks: a new session that remembers another one up to a turn."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.support.strategies import ANY_JOURNALS
from tests.support.transcripts import folded, journaled, message_dicts
from voicemem.memory.fork import fork_events
from voicemem.protocol.codec import decode_journaled
from voicemem.protocol.events import JournaledEvent
from voicemem.protocol.types import MAX_INTEGER
from voicemem.sessions.read_models.read_model import ReadModel
from voicemem.transcript.fold import DecodedRow, fold_all
from voicemem.transcript.history import remembered, tool_uses
from voicemem.transcript.state import State


def forked(state: State, at_turn: int) -> State:
    """The state of a fork, made of what its journal holds."""
    payloads = map(msgspec.json.encode, fork_events(state, "s", at_turn, state.summary))
    return fold_all(
        State(), [DecodedRow(place, 1, decode_journaled(payload)) for place, payload in enumerate(payloads, 1)]
    )


def kept(state: State) -> list[dict[str, Any]]:
    """What contexts are made of."""
    messages = message_dicts(state)
    return [messages[index] for index in remembered(state, ReadModel(state).current_messages())]


@given(ANY_JOURNALS, st.data())
def test_a_fork_is_the_original_up_to_its_turn(journal: list[JournaledEvent], data: st.DataObject) -> None:
    """The fork's messages, and those of them that are remembered, are the original's of the turns up to there."""
    state = folded(*journal)
    nameable = [number for number in state.turn_numbers if number <= MAX_INTEGER]
    assume(nameable)
    turn = data.draw(st.sampled_from(nameable))
    fork = forked(state, turn)
    assert message_dicts(fork) == [message for message in message_dicts(state) if message["turn_id"] <= turn]
    assert kept(fork) == [message for message in kept(state) if message["turn_id"] <= turn]
    answered = [use for use in tool_uses(state) if use.turn_id <= turn]
    assert tool_uses(fork) == answered
    assert fork.newest_turn == turn
    assert fork.data == state.data
    if state.document is not None:
        assert fork.document is not None
        assert (fork.document.content, fork.document.form) == (state.document.content, state.document.form)


def test_a_fork_has_what_came_with_a_tool_call() -> None:
    """The LLM gets its own fields back in the fork too, and the result has its time."""
    call = {"type": "tool.call", "turn_id": 1, "call_id": "c", "name": "rooms", "arguments": {}, "ts": 10}
    state = folded(
        journaled({**call, "metadata": {"llm": {"call": {"extra_content": {"signature": "s"}}}}}),
        journaled({"type": "tool.result", "turn_id": 1, "call_id": "c", "result": "1", "ts": 20}),
    )
    (use,) = tool_uses(forked(state, 1))
    assert (use.answered_ms, use.wanted_back) == (20, {"call": {"extra_content": {"signature": "s"}}})
