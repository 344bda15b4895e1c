"""Words and meaning are added up into one order."""

from __future__ import annotations

import pytest

from voicemem.memory.search import ranked

TIMES = dict.fromkeys("abcd", 0)


def order(by_words: dict[str, float], by_vectors: dict[str, float], weight: float = 1.0) -> str:
    return "".join(one.item for one in ranked(by_words, by_vectors, weight, TIMES))


def test_scores_are_added() -> None:
    """Words count beside the best words, meaning by its cosine."""
    found = ranked({"a": 8.0, "b": 4.0}, {"b": 0.75, "c": 0.5}, 1.0, TIMES)
    assert [(one.item, one.score, one.by) for one in found] == [
        ("b", 1.25, ("words", "vectors")),
        ("a", 1.0, ("words",)),
        ("c", 0.5, ("vectors",)),
    ]


def test_the_weight_says_what_meaning_counts() -> None:
    """With none, words alone find."""
    assert order({"a": 8.0, "b": 4.0}, {"b": 0.5}, 0.5) == "ab"
    assert order({"a": 8.0, "b": 4.0}, {"b": 0.5}, 2.0) == "ba"
    assert order({"a": 8.0}, {"c": 0.9}, 0.0) == "a"


def test_what_is_unlike_is_not_found() -> None:
    """A cosine of 0 or less neither finds nor spoils anything."""
    found = ranked({"a": 1.0}, {"a": -0.5, "b": 0.0, "c": -0.1}, 1.0, TIMES)
    assert [(one.item, one.score, one.by) for one in found] == [("a", 1.0, ("words",))]


def test_of_equal_ones_the_newest_is_first() -> None:
    """By the time at which it was said."""
    found = ranked({"a": 1.0, "b": 1.0}, {}, 1.0, {"a": 1, "b": 2})
    assert [one.item for one in found] == ["b", "a"]


@pytest.mark.parametrize(("words", "vectors"), [({}, {}), ({"a": 0.0}, {})])
def test_nothing_to_compare(words: dict[str, float], vectors: dict[str, float]) -> None:
    """No division by a best of 0."""
    assert [one.score for one in ranked(words, vectors, 1.0, TIMES)] == [0.0] * len(words)
