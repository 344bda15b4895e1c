"""The known name that a misspelt one is nearest to."""

from __future__ import annotations

from tests.support.rows import every_row
from voicemem.protocol.explanations import LONGEST, did_you_mean

KNOWN = ("limit", "after_turn", "llm.delta", "llm.done", "final")


@every_row(
    ("name", "meant"),
    [
        ("limit", "limit"),
        ("limt", "limit"),
        ("limitt", "limit"),
        ("limif", "limit"),
        ("ilmit", "limit"),
        ("afterTurn", "after_turn"),
        ("after-turn", "after_turn"),
        ("LLM_DELTA", "llm.delta"),
        ("llm.don", "llm.done"),
        ("is_final", "final"),
        ("turns", None),
        ("", None),
        ("l" * (LONGEST + 1), None),
    ],
)
def test_a_name_with_a_mistake_is_recognised(name: str, meant: str | None) -> None:
    """One letter too many, too few or wrong, two that changed places, other signs between words; else no question."""
    assert did_you_mean(name, KNOWN) == (f" (did you mean `{meant}`?)" if meant else "")
