"""Which patterns a schema may have, and what they are taken to cost."""

from __future__ import annotations

from tests.support.rows import every_row
from voicemem.documents.schema_patterns import (
    MAX_ALL_PATTERNS_BYTES,
    MAX_ALL_PATTERNS_LENGTH,
    MAX_CLASSES,
    MAX_PATTERN_BYTES,
    MAX_PATTERN_LENGTH,
    MAX_PATTERNS,
    bytes_of_each,
    count_classes,
    fault_of_patterns,
    pattern_steps,
)

TOO_MANY = {
    "patterns": ["a"] * (MAX_PATTERNS + 1),
    "characters of one": ["a" * (MAX_PATTERN_LENGTH + 1)],
    "characters of all": ["a" * MAX_PATTERN_LENGTH] * (MAX_ALL_PATTERNS_LENGTH // MAX_PATTERN_LENGTH + 1),
    "classes": [r"\S" * (MAX_CLASSES + 1)],
    "classes of all": [r"\W[^a]"] * (MAX_CLASSES // 2 + 1),
    "classes without case": [r"(?i)[a-\uffff]" * (MAX_CLASSES // 4 + 1)],
}


@every_row("patterns", TOO_MANY.values(), ids=TOO_MANY)
def test_too_much_is_a_fault(patterns: list[str]) -> None:
    """Each bound is named when it is passed, and not before."""
    assert fault_of_patterns(patterns) is not None
    assert fault_of_patterns(patterns[1:] or [patterns[0][:100]]) is None


def test_classes_are_weighed() -> None:
    """A class counts once, or four times where case is ignored; an escaped letter is none."""
    assert count_classes(r"^\d{4}-\d{2}$") == 2
    assert count_classes(r"(?i)^[a-z]\p{L}$") == 8
    assert count_classes(r"(?s-i:\n\.x)") == 0


def test_patterns_share_the_memory_for_all() -> None:
    """A few may take the bound for one; of many each gets its part of the bound for all."""
    assert bytes_of_each(1) == MAX_PATTERN_BYTES
    assert bytes_of_each(MAX_PATTERNS) == MAX_ALL_PATTERNS_BYTES // MAX_PATTERNS


def test_an_endless_repetition_is_read_in_one_pass() -> None:
    """A brace and a thousand blanks or digits, which could be divided in a thousand million ways, cost their length."""
    for filling in (" " * 990, "1" * 990, " 1" * 495, "{" * 990):
        assert pattern_steps("{" + filling) == 1 + len(filling)


def test_repetitions_without_end_stay_numbers() -> None:
    """However long a number in a pattern is, its cost is a number, which is then too large."""
    assert pattern_steps("a{" + "9" * 900 + "}") > 1e9
    assert pattern_steps("(a){999999999999}" * 50) == float("inf")
