"""Ranking of results found by words and by meaning, in one order.

The scores are added: how well the words fit, next to the best of the search, and the cosine of the vectors times a
weight. Adding keeps how much better the first is than the second, which ranks alone (reciprocal rank fusion) lose.
"""

from collections.abc import Hashable, Mapping
from typing import Generic, Literal, NamedTuple, TypeVar

FoundBy = Literal["words", "vectors"]
Item = TypeVar("Item", bound=Hashable)


class Ranked(NamedTuple, Generic[Item]):
    """One that was found; how well it fits both, where the best words count 1; and how it was found."""

    item: Item
    score: float
    by: tuple[FoundBy, ...]


def beside(score: float, best: float) -> float:
    """A score next to the best one of its search, which has 1."""
    return round(min(1.0, score / best), 4) if best > 0 else 0.0


def ranked(
    by_words: Mapping[Item, float], by_vectors: Mapping[Item, float], weight: float, times: Mapping[Item, int]
) -> list[Ranked[Item]]:
    """All that were found, the best first, of equal ones the newest (`times`).

    A cosine of 0 or less is no likeness, and finds nothing.
    """
    best = max(by_words.values(), default=0.0)
    found = []
    for item in {**by_words, **by_vectors}:
        cosine = by_vectors.get(item, 0.0)
        score, by = 0.0, list[FoundBy]()
        if item in by_words:
            score += by_words[item] / best if best > 0 else 0.0
            by.append("words")
        if cosine > 0 and weight > 0:
            score += weight * cosine
            by.append("vectors")
        if by:
            found.append(Ranked(item, score, tuple(by)))
    return sorted(found, key=lambda one: (one.score, times[one.item]), reverse=True)
