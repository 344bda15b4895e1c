"""German endings, which engines do not remove: they stem as in English, and what an index holds is of many languages.

So only a query is looked at: in one that is German, words lose their endings and are asked for as beginnings. That
finds "Rechnungen" by "Rechnung", "wohnen" by "wohnt", and many compounds, and costs other languages nothing.
"""

from __future__ import annotations

from collections.abc import Collection

from voicemem.search.stop_words import GERMAN

OF_OTHERS = """
als am an bei da das den des die dies du er es fur hat in ins ja kann man mit muss noch nun nur ob sein sind so soll um
uns vor war was wie will wo
"""
"""Frequent German words that say nothing, since other languages have them too."""
MARKS = frozenset(GERMAN.split()) - frozenset(OF_OTHERS.split())
"""Any of these makes a query German."""
ENDINGS = ("ern", "est", "ten", "tet", "em", "en", "er", "es", "et", "st", "te", "e", "n", "s", "t")
SHORTEST = 4
"""Letters that a word must have left."""


def is_german(words: Collection[str]) -> bool:
    """Whether words, in lower case and without accents, are those of a German sentence."""
    return not MARKS.isdisjoint(words)


def without_ending(word: str) -> str:
    """The word without the longest of the endings that it has, if enough of it is left."""
    for ending in ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= SHORTEST:
            return word.removesuffix(ending)
    return word
