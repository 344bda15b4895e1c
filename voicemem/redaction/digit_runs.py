"""Redaction of digit runs, written and spoken: only the first digits of a run are kept, across pieces of a text too.

Whether a character is kept depends only on the text before it. So a text in pieces has the same result as the whole,
the beginning of a text has the beginning of the text's result, and redacting a result again changes nothing. Only words
end a run: white space, punctuation and fillers do not.
"""

import re
from typing import NamedTuple

from voicemem.protocol.comparison import HIDDEN, HIDDEN_WORD
from voicemem.redaction import number_words as words

ACCENTS = "\u0300-\u036f"
"""Combining accents."""
LETTER = r"[^\W_\d]"
WORD_PATTERN = rf"{LETTER}(?:[{ACCENTS}]|{LETTER})*"
TOKEN = re.compile(rf"(\d+)|({words.NUMERIC})|({HIDDEN}+)|({WORD_PATTERN})")
"""Numerals, one numeric character, hidden characters, or a word."""
AFTER_LETTERS = re.compile(rf"{TOKEN.pattern[:-1]}|\A(?:[{ACCENTS}]|{LETTER})+)")
"""A token at the start of a piece, where a word may continue."""
DIGITS, CHARACTER, _, WORD = range(1, 5)
"""The groups of a token."""
DIGIT = re.compile(rf"[\d{words.NUMERIC}{HIDDEN}]")
LETTERS = re.compile(WORD_PATTERN)
LAST_LETTERS = re.compile(rf"{WORD_PATTERN}\Z")
TOO_LONG = "?"
"""Stands for the beginning of a word that is too long for a number word."""
DATE = re.compile(
    r"(?:19|20)\d\d([-./])(?:0?[1-9]|1[0-2])\1(?:0?[1-9]|[12]\d|3[01])"
    r"|(?:0?[1-9]|[12]\d|3[01])([-./])(?:0?[1-9]|[12]\d|3[01])\2(?:19|20)\d\d"
)
"""A date: it is kept, because tools often get dates, and no card number begins so."""
MAX_DATE = 10


class RunState(NamedTuple):
    """The state at the end of a text: how much of a digit run has been read."""

    digits: int = 0
    room: int = 0
    """Trailing zeros of the number so far that the next words may fill."""
    room_before: int = 0
    """The `room` before the last word."""
    tail: str = ""
    """The letters at the end of the text; more may follow."""
    is_tail_hidden: bool = False
    date: str | None = ""
    """The run as written, while it may be a date."""
    keeps_none: bool = False
    words_to_code: int = 0
    """How many more words may come before a code."""


START = RunState()


class Limit(NamedTuple):
    """How much of a run is kept."""

    keep: int
    """The number of digits at its beginning."""
    codes: bool = False
    """True if no digits are kept after a word such as "code"."""


def redact_run(text: str, run: RunState, limit: Limit, complete: bool = False) -> tuple[str, RunState]:
    """Redact a text that follows `run`. Return it and the state at its end.

    Unless the text is `complete`, letters at its end may begin a number word.
    """
    plain = text if text.isascii() else text.translate(words.NUMERIC_CHARACTERS)
    if not (run.digits or run.words_to_code or run.is_tail_hidden) and not may_change_run(run.tail + plain, limit):
        letters = run.tail + text
        last = None if complete else LAST_LETTERS.search(letters, max(0, len(letters) - words.LONGEST - 1))
        return text, START if last is None else RunState(tail=last[0] if len(last[0]) <= words.LONGEST else TOO_LONG)
    reader = Reader(run, limit)
    return reader.read(text, plain, complete), reader.run()


def close(run: RunState, limit: Limit) -> RunState:
    """Return the state of a text that is over: the letters at its end are a whole word."""
    return redact_run("", run, limit, complete=True)[1] if run.tail else run


def may_change_run(text: str, limit: Limit) -> bool:
    """Return whether a text could change the state of a run: a quick check that settles most texts."""
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
        """Return a text redacted; `plain` is the text with `NUMERIC` for each numeric character."""
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
        """Begin a run, unless one has begun."""
        if not self.digits:
            self.keeps_none, self.date = self.words_to_code > 0, ""

    def numerals(self, digits: str) -> str:
        """Return the numerals that are kept, and a mark for each of the others."""
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
        """Return a numeric character, or a mark. One that multiplies (四十九) is a digit only at the start of a run."""
        number = words.number_of_character(char)
        if number is not None or not self.digits:
            return self.number(char, HIDDEN, number or words.Number(1))
        return HIDDEN if self.keeps_none or self.digits >= self.keep else char

    def word(self, letters: str, at_end: bool) -> str:
        """Return a word, or letters that continue a word from an earlier piece, or a mark in their place."""
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
        # More letters may follow, so the word is counted once they have come.
        keep = 0 if (self.keeps_none if self.digits else self.words_to_code > 0) else self.keep
        hides = was_hidden or (number is not None and self.lengths(number)[0] > keep)
        hides = hides or (self.digits >= keep - 1 and bool(name) and words.may_become_number(name))
        self.tail, self.is_tail_hidden = whole if name else TOO_LONG, hides
        return stand_in if hides else letters

    def close(self) -> None:
        """Count the last letters as a whole word: no more follow."""
        name = self.tail.casefold()
        self.tail, self.is_tail_hidden = "", False
        self.pass_word(name, words.find_number(name))

    def pass_word(self, name: str, number: words.Number | None) -> None:
        """Count a lower-case word that was already kept or hidden."""
        if number is not None:
            self.number("", "", number)
        elif not words.is_filler(name):
            self.digits = self.room = self.room_before = 0
            self.keeps_none = False
            self.words_to_code = (
                words.CODE_WORDS if self.codes and words.announces_code(name) else max(0, self.words_to_code - 1)
            )

    def number(self, shown: str, hidden: str, number: words.Number) -> str:
        """Count a number word. Return `shown`, or `hidden` if it makes the run too long."""
        self.begin()
        before, self.date = self.room, None
        self.digits, self.room = self.lengths(number)
        self.room_before = before
        return hidden if self.keeps_none or self.digits > self.keep else shown

    def lengths(self, number: words.Number) -> tuple[int, int]:
        """Return how many digits the run has with this word, and how many trailing zeros."""
        if number.digits in (words.HUNDRED, words.THOUSAND):
            added = -number.digits
            if self.digits and not self.room and self.room_before > added:
                return self.digits, added  # "two thousand four hundred": the four has already filled a zero
            room = added + (self.room if number.digits == words.THOUSAND else 0)
            return self.digits + added + (not self.digits), room
        if number.digits <= self.room and not number.is_nought:
            return self.digits, number.room
        return self.digits + number.digits, number.room


def may_be_date(text: str) -> bool:
    """Return whether digits and signs begin a date."""
    parts = re.split(r"[-./]", text)
    signs = re.sub(r"\d", "", text)
    if not 2 <= len(parts) <= 3 or len(set(signs)) > 1:
        return False
    return DATE.fullmatch(completed(parts, signs[0])) is not None


def completed(parts: list[str], sign: str) -> str:
    """Return a whole date for the beginning of one, which may lack digits and parts."""
    last = parts[-1]
    if len(parts) == 3 and len(parts[0]) < 4:
        last += "2000"[len(last) :] if "2000".startswith(last) or last.startswith("20") else "1900"[len(last) :]
    elif last in ("0", ""):
        last = "01"
    return sign.join([*parts[:-1], last, *["01"] * (3 - len(parts))])
