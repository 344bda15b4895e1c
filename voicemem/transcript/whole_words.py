"""Prefixes of a reply's text that end with a whole word (docs/memory.md, rule 4)."""

import re
from unicodedata import category

from voicemem.protocol.types import SPACELESS

SPACELESS_CLOSING = "。，、！？；：…」』）》”’〉】〕］｝"
"""Marks that close a word in a script without spaces, after which the next word follows directly."""
JOINERS = "'’-.,_"
"""Characters that are part of a word between two letters or digits: don't, e-mail, 3.14."""
SPACELESS_UNITS = 3
"""The units of a character in a script without spaces; any other is 1."""

RUN = re.compile(f"(?:(?!{SPACELESS.pattern})\\w)+")
WHITE_SPACE = re.compile(r"\s*")
LONE_MARKS = re.compile(r"(?:[^\w\s█]|_)++(?=\s|\Z)\s*+")  # █ hides a digit or a letter
"""Marks between white space, such as a dash or `&`, which belong to the word before them, unless they are opening."""
OPENING = ("Ps", "Pi")
ZERO_WIDTH_JOINER = "\u200d"
STEP = 4_096
"""The characters of a long word that are skipped at once, and the most single marks that are skipped."""


def whole_word_prefix(text: str, length: int) -> str:
    """Return the first `length` code points, cut back to the end of a whole word, with the white space after it."""
    return text[: whole_word_end(text, length)]


def whole_word_end(text: str, length: int) -> int:
    """Return where that prefix ends; marks that open the next word are not in it."""
    end = min(length, len(text))
    if end == len(text):
        return end
    for _ in range(STEP):
        if end <= 0 or not (is_inside_word(text, end) or is_between_words(text[end - 1])):
            break
        run = RUN.match(text[max(0, end - STEP) : end][::-1])  # letters and digits, as far as one step goes
        end -= max(1, len(run.group()) - 1) if run else 1
    return after_closing_marks(text, end) if end > 0 else 0


def after_closing_marks(text: str, end: int) -> int:
    """Return the end of a word's closing marks, and of the white space and lone marks after it."""
    marks, last = end, min(len(text), end + STEP)
    while marks < last and category(text[marks]).startswith("P"):
        marks += 1
    if marks == len(text) or text[marks].isspace():
        end = marks
    while end < marks and text[end] in SPACELESS_CLOSING:
        end += 1
    match = WHITE_SPACE.match(text, end)
    while match is not None and match.end() > end:
        end = match.end()
        match = None if category(text[end : end + 1] or "(") in OPENING else LONE_MARKS.match(text, end)
    return end


def without_outer_marks(word: str) -> str:
    begin, end = 0, len(word)
    while begin < end and category(word[begin]).startswith("P"):
        begin += 1
    while end > begin and category(word[end - 1]).startswith("P"):
        end -= 1
    return word[begin:end]


def is_inside_word(text: str, index: int) -> bool:
    """Return whether a cut before `text[index]` would split a word; scripts without spaces can be cut anywhere."""
    before, after = text[index - 1], text[index]
    if is_attached(after) or before == ZERO_WIDTH_JOINER:
        return True
    if SPACELESS.match(before) or SPACELESS.match(after):
        return False
    if is_word_char(before) and is_word_char(after):
        return True
    joined = after in JOINERS and is_letter(before) and index + 1 < len(text) and is_letter(text[index + 1])
    return joined or (before in JOINERS and is_letter(after) and index > 1 and is_letter(text[index - 2]))


def is_between_words(character: str) -> bool:
    # In a script without spaces a mark is a character like any other.
    return character.isspace() or (category(character).startswith("P") and not SPACELESS.match(character))


def is_word_char(character: str) -> bool:
    return not is_between_words(character) and not SPACELESS.match(character)


def is_letter(character: str) -> bool:
    return (character.isalnum() or is_attached(character)) and not SPACELESS.match(character)


def is_attached(character: str) -> bool:
    """Return whether a character belongs to the one before it: accents, vowel signs, joiners of emoji."""
    return character == ZERO_WIDTH_JOINER or category(character).startswith("M")


def units_of(text: str) -> int:
    return len(text) + (SPACELESS_UNITS - 1) * len(SPACELESS.findall(text))


def prefix_of_units(text: str, units: int) -> str:
    """Return the beginning of a text with at most `units`, cut back to whole words."""
    if not SPACELESS.search(text):
        return whole_word_prefix(text, units)
    length, left = 0, units
    for character in text:
        left -= SPACELESS_UNITS if SPACELESS.match(character) else 1
        if left < 0:
            break
        length += 1
    return whole_word_prefix(text, length)
