"""Two versions of the program on one store: what only the later one knows, and the snapshots of both."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import json

from tests.support.events import final
from voicemem.protocol.codec import JOURNALED_KINDS
from voicemem.sessions.read_models.read_model import decode_rows
from voicemem.store.records import JournalRow
from voicemem.transcript.fold import fold_all
from voicemem.transcript.state import SNAPSHOT_VERSION, State

KNOWN_SINCE, KNOWN_TYPES = (
    22,
    "asr frame interrupt llm.cancel llm.delta llm.done llm.error memory.added memory.carried memory.data "
    "memory.document memory.edited memory.extracted memory.forgotten memory.removed memory.summary message metric "
    "refused resume session.closed session.end session.forked session.gap session.reopened session.update tool.call "
    "tool.result tts user.linked user.unlinked",
)
"""The thousands of the `SNAPSHOT_VERSION` that came with the newest type, and all types."""


def test_a_new_type_of_event_comes_with_new_snapshots() -> None:
    """An older node skips it, so a snapshot of that node lacks what it does: raise the version, then change these."""
    assert (KNOWN_TYPES, True) == (" ".join(sorted(JOURNALED_KINDS)), SNAPSHOT_VERSION // 1000 >= KNOWN_SINCE)


def test_an_older_node_folds_what_it_knows() -> None:
    """An event of the server's own that only a later version knows takes its place, and what follows is folded."""
    events = [b'{"type":"memory.later","what":1}', json.dumps(final(1, "Hi.")).encode()]
    state = State()
    fold_all(state, decode_rows(JournalRow(at, None, None, 1_000, event) for at, event in enumerate(events, 1)))
    assert (2, [1]) == (state.position, list(state.turns))
