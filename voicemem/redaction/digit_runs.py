"""Runs of digits, written and spoken, cut off after those that may be kept, wherever a text was cut into pieces.

A character is decided on by what is before it alone. So a text gives the same in one piece and in several, the
beginning of a text gives the beginning of what the text gives, and what a run gives is the same when it is redacted
again. Only words end a run: white space, marks and what people say between digits do not.
"""

import re
from typing import NamedTuple

from voicemem.protocol.comparison import HIDDEN, HIDDEN_WORD
from voicemem.redaction import number_words as words

ACCENTS = "\u0300-\u036f"
"""Signs that come after their letters where a text is decomposed."""
LETTER = r"[^\W_\d]"
WORD_PATTERN = rf"{LETTER}(?:[{ACCENTS}]|{LETTER})*"
TOKEN = re.compile(rf"(\d+)|({words.NUMERIC})|({HIDDEN}+)|({WORD_PATTERN})")
"""Numerals, one character that is a number, what was hidden before, a word."""
AFTER_LETTERS = re.compile(rf"{TOKEN.pattern[:-1]}|\A(?:[{ACCENTS}]|{LETTER})+)")
"""A token where a word may continue."""
DIGITS, CHARACTER, _, WORD = range(1, 5)
"""The groups of a token."""
DIGIT = re.compile(rf"[\d{words.NUMERIC}{HIDDEN}]")
LETTERS = re.compile(WORD_PATTERN)
LAST_LETTERS = re.compile(rf"{WORD_PATTERN}\Z")
TOO_LONG = "?"
"""Stands for the beginning of a word that is too long for a number."""
DATE = re.compile(
    r"(?:19|20)\d\d([-./])(?:0?[1-9]|1[0-2])\1(?:0?[1-9]|[12]\d|3[01])"
    r"|(?:0?[1-9]|[12]\d|3[01])([-./])(?:0?[1-9]|[12]\d|3[01])\2(?:19|20)\d\d"
)
"""Eight digits that are not the number of a card, which never begins so; tools are called with them all the time."""
MAX_DATE = 10


class RunState(NamedTuple):
    """The state of a text: how much of a run of digits has been read."""

    digits: int = 0
    room: int = 0
    """Noughts of the number so far that the next words may fill."""
    room_before: int = 0
    """The `room` before the last word."""
    tail: str = ""
    """The letters that the text ends with: more may follow."""
    is_tail_hidden: bool = False
    date: str | None = ""
    """The run as it is written, while it may be a date."""
    keeps_none: bool = False
    words_to_code: int = 0
    """The number of further words within which a code may begin."""


START = RunState()


class Limit(NamedTuple):
    """The limit of what is kept of a run."""

    keep: int
    """Digits at its beginning."""
    codes: bool = False
    """True if none are kept after a word such as "code"."""


def redact_run(text: str, run: RunState, limit: Limit, complete: bool = False) -> tuple[str, RunState]:
    """A text after `run` without the digits that are too many, and where it ends.

    If it is not `complete`, letters at its end may be the beginning of a number.
    """
    plain = text if text.isascii() else text.translate(words.NUMERIC_CHARACTERS)
    if not (run.digits or run.words_to_code or run.is_tail_hidden) and not may_change_run(run.tail + plain, limit):
        letters = run.tail + text
        last = None if complete else LAST_LETTERS.search(letters, max(0, len(letters) - words.LONGEST - 1))
        # More letters may follow the last ones.
        return text, START if last is None else RunState(tail=last[0] if len(last[0]) <= words.LONGEST else TOO_LONG)
    reader = Reader(run, limit)
    return reader.read(text, plain, complete), reader.run()


def close(run: RunState, limit: Limit) -> RunState:
    """The state of a text that is over: the letters at its end are a word."""
    return redact_run("", run, limit, complete=True)[1] if run.tail else run


def may_change_run(text: str, limit: Limit) -> bool:
    """Return whether anything in a text could change where a run stands: a quick look, which most texts end with."""
    if DIGIT.search(text) is not None:
        return True
    lower = text.casefold()
    names = LETTERS.findall(lower)
    return (
        not words.numbers().keys().isdisjoint(names)
        or "tausend" in lower
        or (limit.codes and any(map(words.announces_code, names)))
    )


class Reader:
    """Reads one piece of text, token by token."""

    __slots__ = (*RunState._fields, "codes", "keep")

    def __init__(self, run: RunState, limit: Limit) -> None:
        self.digits, self.room, self.room_before, self.tail, self.is_tail_hidden = run[:5]
        self.date, self.keeps_none, self.words_to_code = run[5:]
        self.keep, self.codes = limit

    def run(self) -> RunState:
        if not (self.digits or self.tail or self.words_to_code):
            return START
        run = self.digits, self.room, self.room_before, self.tail, self.is_tail_hidden
        return RunState(*run, self.date, self.keeps_none, self.words_to_code)

    def read(self, text: str, plain: str, complete: bool) -> str:
        """Return what may be kept of a text; in `plain`, each character that is a number is `NUMERIC`."""
        parts: list[str] = []
        at, in_word, length = 0, 0, len(text)
        for token in (AFTER_LETTERS if self.tail else TOKEN).finditer(plain):
            start, end = token.span()
            kind = token.lastindex
            if self.tail and (start > 0 or kind != WORD):
                self.close()
            if start > at:
                parts.append(text[at:start])
                if self.date:
                    self.lengthen(parts[-1])
            at = end
            if kind == WORD:
                parts.append(self.word(token[0], end == length and not complete))
            elif kind == DIGITS:
                parts.append(self.numerals(token[0]))
            elif kind == CHARACTER:
                if start >= in_word and not self.digits:
                    in_word = words.end_in_word(text, start)
                parts.append(text[start] if start < in_word else self.character(text[start]))
            else:
                parts.append(token[0])
                self.begin()
                self.digits, self.date = max(self.digits, self.keep) + end - start, None
        if at < length:
            parts.append(text[at:])
            if self.date:
                self.lengthen(parts[-1])
        if self.tail and (at < length or complete):
            self.close()
        return "".join(parts)

    def lengthen(self, text: str) -> None:
        if self.date is not None:
            self.date = None if len(self.date) + len(text) > MAX_DATE else self.date + text

    def begin(self) -> None:
        """A digit comes: a run begins, unless one is under way."""
        if not self.digits:
            self.keeps_none, self.date = self.words_to_code > 0, ""

    def numerals(self, digits: str) -> str:
        """The numerals that may be kept, and as many marks as there are others."""
        self.begin()
        kept = 0 if self.keeps_none else min(len(digits), max(0, self.keep - self.digits))
        if self.date is not None and not self.keeps_none and kept < len(digits):
            while kept < min(len(digits), MAX_DATE) and may_be_date(self.date + digits[: kept + 1]):
                kept += 1
        if kept == len(digits):
            self.lengthen(digits)
        else:
            digits, self.date = digits[:kept] + HIDDEN * (len(digits) - kept), None
        self.digits += len(digits)
        self.room = self.room_before = 0
        return digits

    def character(self, char: str) -> str:
        """A character that is a number by itself. One that multiplies (四十九) is a digit only behind none."""
        number = words.number_of_character(char)
        if number is not None or not self.digits:
            return self.number(char, HIDDEN, number or words.Number(1))
        return HIDDEN if self.keeps_none or self.digits >= self.keep else char

    def word(self, letters: str, at_end: bool) -> str:
        """A word, or the letters that continue one which an earlier piece began."""
        whole, was_hidden = self.tail + letters, self.is_tail_hidden
        stand_in = HIDDEN if self.tail else HIDDEN_WORD
        self.tail, self.is_tail_hidden = "", False
        name = whole.casefold() if len(whole) <= words.LONGEST else ""
        number = words.find_number(name)
        if not at_end:
            if number is not None and not was_hidden:
                return self.number(letters, stand_in, number)
            self.pass_word(name, number)
            return stand_in if was_hidden else letters
        # More letters may follow, so what it counts is found out when they have come.
        keep = 0 if (self.keeps_none if self.digits else self.words_to_code > 0) else self.keep
        hides = was_hidden or (number is not None and self.lengths(number)[0] > keep)
        hides = hides or (self.digits >= keep - 1 and bool(name) and words.may_become_number(name))
        self.tail, self.is_tail_hidden = whole if name else TOO_LONG, hides
        return stand_in if hides else letters

    def close(self) -> None:
        """No more letters follow the last ones: they are a word."""
        name = self.tail.casefold()
        self.tail, self.is_tail_hidden = "", False
        self.pass_word(name, words.find_number(name))

    def pass_word(self, name: str, number: words.Number | None) -> None:
        """Count a word in lower case that was shown or hidden before."""
        if number is not None:
            self.number("", "", number)
        elif not words.is_filler(name):
            self.digits = self.room = self.room_before = 0
            self.keeps_none = False
            self.words_to_code = (
                words.CODE_WORDS if self.codes and words.announces_code(name) else max(0, self.words_to_code - 1)
            )

    def number(self, shown: str, hidden: str, number: words.Number) -> str:
        """A word of a number, or what stands in for it if the run becomes too long by it."""
        self.begin()
        before, self.date = self.room, None
        self.digits, self.room = self.lengths(number)
        self.room_before = before
        return hidden if self.keeps_none or self.digits > self.keep else shown

    def lengths(self, number: words.Number) -> tuple[int, int]:
        """Return how many digits the run has with this word, and how many noughts at its end."""
        if number.digits in (words.HUNDRED, words.THOUSAND):
            added = -number.digits
            if self.digits and not self.room and self.room_before > added:
                return self.digits, added  # "two thousand four hundred": the four has filled a nought already
            room = added + (self.room if number.digits == words.THOUSAND else 0)
            return self.digits + added + (not self.digits), room
        if number.digits <= self.room and not number.is_nought:
            return self.digits, number.room
        return self.digits + number.digits, number.room


def may_be_date(text: str) -> bool:
    """Return whether digits and what is between them begin a date."""
    parts = re.split(r"[-./]", text)
    signs = re.sub(r"\d", "", text)
    if not 2 <= len(parts) <= 3 or len(set(signs)) > 1:
        return False
    return DATE.fullmatch(completed(parts, signs[0])) is not None


def completed(parts: list[str], sign: str) -> str:
    """A date whose last part may lack digits, with some that make it one."""
    last = parts[-1]
    if len(parts) == 3 and len(parts[0]) < 4:
        last += "2000"[len(last) :] if "2000".startswith(last) or last.startswith("20") else "1900"[len(last) :]
    elif last in ("0", ""):
        last = "01"
    return sign.join([*parts[:-1], last, *["01"] * (3 - len(parts))])
