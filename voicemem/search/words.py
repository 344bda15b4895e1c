"""The words of a text, as the index has them and as queries ask for them; engines stem them.

Scripts without spaces have no words to be found at, so each pair of neighbouring characters is one. So is the last
character of a run alone, so that a single character is found as the beginning of a word.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from typing import NamedTuple

from voicemem.protocol.types import SPACELESS
from voicemem.search.german import SHORTEST, is_german, without_ending
from voicemem.search.irregular import other_forms
from voicemem.search.stop_words import ALSO_ENGLISH, STOP_WORDS

WORDS_VERSION = 1
"""Raise it with every change of `words_of`: indexes are then made again."""
MAX_QUERY_WORDS = 64
MAX_WORD = 64
"""Characters of a word; the rest of a longer one is left out."""
ASCII_WORDS = re.compile("[a-z0-9]+")
PAIRED = re.compile(f"{SPACELESS.pattern[:-1]}\uac00-\ud7a3]+")
"""A run of characters that are taken in pairs: scripts without spaces, and Korean, whose particles have none."""
WORDS = re.compile("(?:[^\\W_]|[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff])+")
"""The vowel signs of Thai, Lao, Burmese and Khmer are no letters to `\\w`."""
ACCENTS = re.compile("[\u0300-\u036f]")


class QueryWord(NamedTuple):
    """A word that a query asks for; with `is_prefix`, words that begin with it."""

    text: str
    is_prefix: bool = False


def words_of(text: str) -> list[str]:
    """The words of a text that is indexed, in order, without accents and in lower case."""
    return split_words(text, with_last=True)


def query_words(text: str, in_all_forms: bool = True) -> list[QueryWord]:
    """The words that a query asks for, each once; without those that say nothing, unless it has no others.

    `in_all_forms`: any of them is enough, so those in other forms are asked for too, as `bought` for `buy`.
    """
    found = list(dict.fromkeys(split_words(text, with_last=False)))
    if is_german(found):
        telling = [word for word in found if word not in STOP_WORDS] or found
        asked = list(map(german_word, telling[:MAX_QUERY_WORDS]))
    else:
        telling = [word for word in found if word not in STOP_WORDS or word in ALSO_ENGLISH] or found
        others = [form for word in telling for form in other_forms(word)] if in_all_forms else []
        asked = list(map(query_word, [*telling, *others][:MAX_QUERY_WORDS]))
    return list(dict.fromkeys(asked))


def query_word(word: str) -> QueryWord:
    return QueryWord(word, len(word) == 1 and PAIRED.match(word) is not None)


def german_word(word: str) -> QueryWord:
    """A word of a German query: it finds every word with the same beginning, unless it is too short for that."""
    if len(word) < SHORTEST or not word.isalpha() or PAIRED.match(word):
        return query_word(word)
    return QueryWord(without_ending(word), is_prefix=True)


def split_words(text: str, with_last: bool) -> list[str]:
    """The words of a text. `with_last`: also the last character of a run of pairs alone."""
    if text.isascii():
        return [word[:MAX_WORD] for word in ASCII_WORDS.findall(text.lower())]
    found = WORDS.findall(plain(text))
    if PAIRED.search(text) is None:
        return [word[:MAX_WORD] for word in found]
    return [word for token in found for word in split_token(token, with_last)]


def split_token(token: str, with_last: bool) -> Iterator[str]:
    """The words of a piece without spaces, which may be of several scripts."""
    end = 0
    for run in PAIRED.finditer(token):
        if run.start() > end:
            yield token[end : run.start()][:MAX_WORD]
        yield from pairs_of(run[0], with_last)
        end = run.end()
    if end < len(token):
        yield token[end:][:MAX_WORD]


def pairs_of(run: str, with_last: bool) -> Iterator[str]:
    for first in range(len(run) - 1):
        yield run[first : first + 2]
    if with_last or len(run) == 1:
        yield run[-1]


def plain(text: str) -> str:
    """The text in lower case, with characters of one meaning written alike, and without accents."""
    unpacked = unicodedata.normalize("NFKD", text.casefold())
    return unicodedata.normalize("NFC", ACCENTS.sub("", unpacked))
