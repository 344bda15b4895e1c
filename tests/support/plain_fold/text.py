"""Words in texts, and cuts that end at one (rule 4)."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple

SPACELESS = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u2fdf\u3000-\u312f\u3190-\u31bf\u31f0-\u9fff"
    "\uf900-\ufaff\uff00-\uff9f\uffe0-\uffef\U00020000-\U0003ffff]"
)
SPACELESS_CLOSING = "。，、！？；：…」』）》”’〉】〕］｝"
JOINERS = "'’-.,"
SEARCH_AHEAD = 48
SPACELESS_UNITS = 3
ZERO_WIDTH_JOINER = "\u200d"


class Found(NamedTuple):
    """Where a timed word stands in a text."""

    begin: int
    end: int
    start_ms: int
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
    spaced = end
    while end < len(text) and text[end].isspace():
        end += 1
    while end > spaced and end < len(text) and unicodedata.category(text[end]) not in ("Ps", "Pi"):
        spaced, mark = end, text[end:].split()[0]
        if any(one.isalnum() for one in mark):
            break
        end += len(mark)
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
        place = place_of_word(text, found[-1].end if found else 0, word["text"].strip())
        if place is not None:
            found.append(Found(*place, word["start_ms"], word["end_ms"]))
    return found


def heard_at(text: str, found: Sequence[Found], position: int) -> tuple[int, bool]:
    """Rule 4: where the last word ends that had ended, or that is in a clause's share; whether it is such a share."""
    ended = max((one.end for one in found if one.end_ms <= position), default=0)
    begun = [one for one in found if one.start_ms < position and len(word_ends(text[one.begin : one.end])) > 1]
    if not begun or begun[-1].end_ms <= position:
        return ended, False
    clause = begun[-1]
    length = clause.end - clause.begin
    share = length * (position - clause.start_ms) // (clause.end_ms - clause.start_ms)
    return max(ended, len(cut(text, clause.begin + share).rstrip())), True


def place_of_word(text: str, start: int, word: str) -> tuple[int, int] | None:
    """Rule 4: where a whole word stands shortly behind the start, as it is, else without case and marks."""
    stop = min(len(text), start + SEARCH_AHEAD + len(word))
    inner = [bare for one in word.split() if (bare := without_outer_marks(one))]
    if not any(one.isalnum() or one == "_" for one in "".join(inner)):
        return None
    for begin in range(start, stop):
        if text[begin:stop].startswith(word) and is_whole(text, begin, begin + len(word)):
            return begin, begin + len(word)
    pattern = re.compile(r"\W+".join(map(re.escape, inner)), re.IGNORECASE)
    spans = [match.span() for match in pattern.finditer(text, start, stop)]
    return next((span for span in spans if is_whole(text, *span)), None)


def is_whole(text: str, begin: int, end: int) -> bool:
    """Rule 4: whether a part of a text begins and ends between words, or in a script without spaces anywhere."""
    return not any(0 < at < len(text) and is_inside(text, at) for at in (begin, end))


def is_inside(text: str, at: int) -> bool:
    """Whether the characters before and after a place are of one word."""
    if is_attached(text, at):
        return True
    return is_of_word(text, at - 1) and is_of_word(text, at)


TimedBy = tuple[dict[str, Any], Any]
"""A word, and the event that reported it."""


def in_one_series(text: str, words: Sequence[TimedBy]) -> list[TimedBy]:
    """Rule 4: words as they were reported, with the times of a new stretch counted from the end of all before."""
    placed: list[TimedBy] = []
    offsets: dict[tuple[int, str], int] = {}
    stretch: list[dict[str, Any]] = []
    held: list[TimedBy] = []
    reached = 0
    for word, event in words:
        is_known = key_of(word) in offsets
        goes_on = continues(text, reached, [*(one for one, _ in held), word])
        if goes_on and (held or goes_back(word, stretch)):
            held.append((word, event))
            if is_known:
                continue  # it came again, unless a word that is not known follows
            offset, stretch = min(max(one["end_ms"] for one, _ in placed), 2**53), []
            new, held = held, []
        else:
            placed += [shifted(*one, offsets[key_of(one[0])]) for one in held]
            held = []
            if is_known and not goes_on:
                placed.append(shifted(word, event, offsets[key_of(word)]))
                continue
            offset = placed_offset(stretch, offsets)
            new = [(word, event)]
        for one, reporting in new:
            place = place_of_word(text, reached, one["text"].strip())
            reached = place[1] if place else reached
            offsets[key_of(one)] = offset
            stretch.append(one)
            placed.append(shifted(one, reporting, offset))
    return placed


def key_of(word: dict[str, Any]) -> tuple[int, str]:
    """Rule 4: a word is known by its start and text."""
    return word["start_ms"], word["text"]


def placed_offset(stretch: Sequence[dict[str, Any]], offsets: dict[tuple[int, str], int]) -> int:
    """When the stretch under way began."""
    return offsets[key_of(stretch[0])] if stretch else 0


def shifted(word: dict[str, Any], event: Any, by: int) -> TimedBy:
    """A word later by so many milliseconds."""
    return word | {"start_ms": word["start_ms"] + by, "end_ms": word["end_ms"] + by}, event


def goes_back(word: dict[str, Any], stretch: Sequence[dict[str, Any]]) -> bool:
    """Rule 4: whether a word starts before the last of its stretch, or with it where that is alone and not as long."""
    if not stretch:
        return False
    last = max(stretch, key=lambda one: int(one["start_ms"]))
    is_alone = last["start_ms"] == stretch[0]["start_ms"]
    other_length = is_alone and word["start_ms"] == last["start_ms"] and word["end_ms"] != last["end_ms"]
    return bool(word["start_ms"] < last["start_ms"] or other_length)


def continues(text: str, reached: int, words: Sequence[dict[str, Any]]) -> bool:
    """Rule 4: whether these words come next in the text, behind a word that was found."""
    if not reached:
        return False
    for word in words:
        place = place_of_word(text, reached, word["text"].strip())
        if place is None or any(one.isalnum() or one == "_" for one in text[reached : place[0]]):
            return False
        reached = place[1]
    return True


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
