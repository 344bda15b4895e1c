"""Words in texts, and cuts that end at one (rule 4)."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple

SPACELESS = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u2fdf\u3000-\u30ff\u3100-\u31bf\u31f0-\u9fff"
    "\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff]"
)
SPACELESS_CLOSING = "。，、！？；：…」』）》”’〉】〕］｝"
JOINERS = "'’-.,"
SEARCH_AHEAD = 48
SPACELESS_UNITS = 3
ZERO_WIDTH_JOINER = "\u200d"


class Found(NamedTuple):
    """Where a timed word stands in a text."""

    end: int
    end_ms: int


def is_spaceless(character: str) -> bool:
    """Whether a character is of a script that puts no spaces between words."""
    return SPACELESS.match(character) is not None


def is_mark(character: str) -> bool:
    """Whether a character is punctuation."""
    return unicodedata.category(character).startswith("P")


def is_attached(text: str, at: int) -> bool:
    """Whether the character belongs to the one before it: accents, and what a zero-width joiner joins."""
    joined = ZERO_WIDTH_JOINER in (text[at], text[at - 1])
    return at > 0 and (joined or unicodedata.category(text[at]).startswith("M"))


def is_of_word(text: str, at: int) -> bool:
    """Whether the character is inside a word of a script with spaces; a joiner is, between letters or digits."""
    character = text[at]
    if character in JOINERS:
        return 0 < at < len(text) - 1 and all(is_letter(one) for one in (text[at - 1], text[at + 1]))
    return not (character.isspace() or is_mark(character) or is_spaceless(character))


def is_letter(character: str) -> bool:
    """Whether a character is a letter or digit of a script with spaces."""
    attached = unicodedata.category(character).startswith("M")
    return (character.isalnum() or attached) and not is_spaceless(character)


def word_ends(text: str) -> list[int]:
    """Rule 4: where words end; in scripts without spaces every character does."""
    ends = []
    for end in range(1, len(text) + 1):
        last, inside = base_of(text, end - 1), end < len(text)
        if inside and is_attached(text, end):
            continue
        if (is_spaceless(text[last]) and not text[last].isspace()) or (
            is_of_word(text, last) and not (inside and is_of_word(text, end))
        ):
            ends.append(end)
    return ends


def base_of(text: str, at: int) -> int:
    """The character that the accents up to here belong to."""
    while is_attached(text, at):
        at -= 1
    return at


def through(text: str, end: int) -> str:
    """Rule 4: the text through the word that ends here, its closing marks, and the white space after it."""
    marks = end
    while marks < len(text) and is_mark(text[marks]):
        marks += 1
    if marks == len(text) or text[marks].isspace():
        end = marks
    while end < marks and text[end] in SPACELESS_CLOSING:
        end += 1
    while end < len(text) and text[end].isspace():
        end += 1
    return text[:end]


def cut(text: str, count: int) -> str:
    """Rule 4: so many code points, rounded down to the last whole word among them."""
    if count >= len(text):
        return text
    marks_with = [end for end in word_ends(text) if end <= count]
    return through(text, marks_with[-1]) if marks_with else ""


def has_word(text: str) -> bool:
    """Whether a text holds any word."""
    return any(character.isalnum() for character in text)


def find_words(text: str, words: Sequence[dict[str, Any]]) -> list[Found]:
    """Rule 4: words are looked for one after the other, and one that is not found is skipped."""
    found: list[Found] = []
    for word in words:
        end = end_of_word(text, found[-1].end if found else 0, word["text"].strip())
        if end is not None:
            found.append(Found(end, word["end_ms"]))
    return found


def end_of_word(text: str, start: int, word: str) -> int | None:
    """Rule 4: where a word ends that stands shortly behind the start, as it is, else without case and outer marks."""
    ahead = text[start : start + SEARCH_AHEAD + len(word)]
    if word and word in ahead:
        return start + ahead.index(word) + len(word)
    bare = without_outer_marks(word)
    match = re.search(re.escape(bare), ahead, re.IGNORECASE) if bare else None
    return start + match.end() if match else None


def without_outer_marks(word: str) -> str:
    """A word without the punctuation around it."""
    inner = [at for at, character in enumerate(word) if not is_mark(character)]
    return word[inner[0] : inner[-1] + 1] if inner else ""


def units(text: str) -> int:
    """Rule 4: a code point counts 1 unit, one of a script without spaces 3."""
    return sum(SPACELESS_UNITS if is_spaceless(one) else 1 for one in text)


def code_points_in(text: str, budget: Fraction) -> int:
    """How many code points of the text so many units are, rounded down."""
    return max((count for count in range(len(text) + 1) if units(text[:count]) <= budget), default=0)


def runs(text: str) -> str:
    """A text with every run of white space as one space, and none around it."""
    return " ".join(text.split())
