"""The same context, however often it is built."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tests.support.strategies import ANY_JOURNALS
from voicemem.config.context import ContextConfig
from voicemem.config.session import SessionConfig
from voicemem.context.builder import ContextOptions, render_body, select_from
from voicemem.context.policy_registry import Policies
from voicemem.protocol.events import JournaledEvent, MessageEvent
from voicemem.sessions.read_models.read_model import ReadModel
from voicemem.transcript.fold import DecodedRow
from voicemem.transcript.state import State

EVERY = [
    ContextConfig(),
    ContextConfig(policy="full"),
    ContextConfig(policy="recent", max_messages=3),
    ContextConfig(policy="window", max_tokens=20),
    ContextConfig(policy="summary", max_tokens=40),
    ContextConfig(policy="priority", max_messages=3),
]


@given(ANY_JOURNALS, st.sampled_from(EVERY), st.integers(0, 25), st.booleans())
def test_replay_gives_the_same_context(
    journal: list[JournaledEvent], memory: ContextConfig, until: int, tools: bool
) -> None:
    """Folded as it comes and read in between, or replayed from its start: a context is the same, byte for byte."""
    options = ContextOptions(memory=memory, tools=tools)
    rows = [DecodedRow(position, 1000 * position, event) for position, event in enumerate(journal, 1)]
    read, replayed = ReadModel(State()), ReadModel(State())
    read.fold(rows[:until])
    written(read, options)
    read.pack()
    read.fold(rows[until:])
    replayed.fold(rows)
    assert written(replayed, options) == written(read, options)


def test_a_context_is_not_changed_by_what_comes_after_it() -> None:
    """A late message of an earlier turn does not move what was chosen, as the same request may be made again."""
    options, read_model = ContextOptions(memory=ContextConfig(policy="recent", max_messages=2)), ReadModel(State())
    said = [MessageEvent(role="user", text=f"Turn {turn}.", source="message", turn_id=turn) for turn in (1, 2, 3, 1)]
    rows = [DecodedRow(position, 1000 * position, event) for position, event in enumerate(said, 1)]
    read_model.fold(rows[:3])
    selection = select_from(read_model, Policies(), SessionConfig(), options)
    before = render_body(selection, options)
    read_model.fold(rows[3:])
    assert len(read_model.current_messages()) == 4
    assert render_body(selection, options) == before


def written(read_model: ReadModel, options: ContextOptions) -> bytes:
    return msgspec.json.encode(render_body(select_from(read_model, Policies(), SessionConfig(), options), options))
