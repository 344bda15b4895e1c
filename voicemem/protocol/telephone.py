"""Telephone numbers in any spelling, judged by their characters alone; `security/caller_ids` knows countries."""

import re

MAX_NUMBER = 250
"""The most characters of a number with its URI."""
PARTS = r"\d\s().\-‐-―/·"
NUMBER = re.compile(
    rf"(?:[^<>]*+<)?+\s*+(?:(?:sips?|tel|whatsapp|phone)[:_]?)?+(?P<number>[\s(]*+\+?[{PARTS}]*+)"
    r"(?:(?:[;@>]|x|ext).*)?",
    re.DOTALL | re.IGNORECASE,
)
"""A telephone number, perhaps in a SIP or tel URI or with an extension. It may lack digits. The time is linear."""
INTERNATIONAL = re.compile(r"\+\d[\d\s().-]{5,}\d")
MIN_DIGITS, SURE_DIGITS, MAX_DIGITS = 7, 10, 17


def digits_in(text: str) -> str:
    """Return all digits in a text, of any script, in ASCII."""
    digits = re.sub(r"\D", "", text)
    return digits if digits.isascii() else "".join(str(int(one)) for one in digits)


def digits_of(text: str) -> str:
    """Return the digits of a number in any spelling, without leading zeros; empty if it is not a number."""
    match = NUMBER.fullmatch(text) if len(text) <= MAX_NUMBER else None
    return "" if match is None else digits_in(match["number"]).lstrip("0")


def is_number(text: str) -> bool:
    """Return whether a text is clearly a telephone number: marked as one, or with at least ten digits."""
    match = NUMBER.fullmatch(text) if len(text) <= MAX_NUMBER else None
    if match is None:
        return False
    digits = digits_in(match["number"])
    is_marked = match.start("number") > 0 or "+" in match["number"] or digits.startswith("00")
    return (MIN_DIGITS if is_marked else SURE_DIGITS) <= len(digits) <= MAX_DIGITS
