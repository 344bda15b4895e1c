"""What is kept of a true call beside its memory."""

from __future__ import annotations

import msgspec

from bench.harness.truth import load_calls
from tests.support.paths import ROOT
from tests.support.rows import every_row
from voicemem.cli.truth import TrueCall, played_call

CALLS = load_calls(ROOT / "fixtures" / "truth" / "calls")
MOST_BYTES = 64 * 1024
"""Of a session's data."""


@every_row("call", CALLS, ids=lambda call: call.name)
def test_every_call_says_what_was_played_word_by_word(call: TrueCall) -> None:
    """The words are the text, those that were heard are the heard text, and they fit into a session's data."""
    played = played_call(call, "words")
    assert len(msgspec.json.encode(played)) < MOST_BYTES
    for one in (*played["replies"], *played["utterances"]):
        assert one["text"] == "".join(word[0] for word in one["words"])
        times = [at_ms for word in one["words"] for at_ms in word[1:3] if at_ms is not None]
        assert times == sorted(times)
        assert all(call.began <= at_ms <= call.began + call.end_ms for at_ms in times)
    for reply, true in zip(played["replies"], call.replies, strict=True):
        assert true.heard() == "".join(word[0] for word in reply["words"] if word[3])
        assert all((word[1] is None) == (not word[3]) for word in reply["words"])
