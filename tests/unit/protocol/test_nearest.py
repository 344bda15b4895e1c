"""The known name that a misspelt one is nearest to."""

from __future__ import annotations

from tests.support.rows import every_row
from voicemem.protocol.checks import LONGEST, did_you_mean, nearest

KNOWN = ("limit", "after_turn", "llm.delta", "llm.done")


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
        ("imt", None),
        ("", None),
        ("l" * (LONGEST + 1), None),
    ],
)
def test_a_name_with_one_mistake_is_recognised(name: str, meant: str | None) -> None:
    """One letter too many, too few or wrong, two that changed places, or other signs between words."""
    assert nearest(name, KNOWN) == meant


@every_row(
    ("name", "meant"),
    [("is_final", "final"), ("isFinal", "final"), ("turn", "turn_id"), ("end", "end_ms"), ("ms", None), ("a_b", None)],
)
def test_a_word_too_many_or_too_few_is_recognised(name: str, meant: str | None) -> None:
    """At an end of the name, and where one known name alone fits."""
    assert nearest(name, ("final", "turn_id", "start_ms", "end_ms", "a", "b")) == meant


def test_the_question_is_empty_without_a_near_name() -> None:
    """It names the nearest, or is not asked."""
    assert did_you_mean("limt", KNOWN) == " (did you mean `limit`?)"
    assert did_you_mean("turns", KNOWN) == ""
