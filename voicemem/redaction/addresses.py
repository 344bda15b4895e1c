"""E-mail addresses: written ones, and those that are said as "john dot doe at example dot com"."""

from __future__ import annotations

import re

from voicemem.protocol.redacted import HIDDEN, HIDDEN_WORD

ENDS = r"\s<>()\[\]{},;:\"'!?|"
"""What cannot stand in an address."""
BEFORE = re.compile(rf"[^{ENDS}@]+\Z")
AFTER = re.compile(rf"[^{ENDS}]+")
MAX_NAME = 320
"""Characters of an address that are looked at before its @."""
WORD = re.compile(r"\S+")
AT = frozenset("at ät arroba arobase chiocciola apenstaartje klammeraffe".split())  # noqa: SIM905
JOINS = frozenset(
    "dot punkt point punto ponto punt underscore unterstrich dash minus bindestrich hyphen tiret guion guión".split()  # noqa: SIM905
)
"""What is said for the signs in an address."""
DOTS = frozenset("dot punkt point punto ponto punt".split())  # noqa: SIM905
MARKS = ".,!?;:"


def redact_addresses(text: str) -> str:
    """A text without the addresses in it. One word stands for each word."""
    return redact_spoken(redact_written(text))


def redact_written(text: str) -> str:
    found: list[str] = []
    at = 0
    while (place := text.find("@", at)) >= 0:
        name = BEFORE.search(text, max(at, place - MAX_NAME), place)
        host = AFTER.match(text, place + 1)
        if name is None or host is None:
            found.append(text[at : place + 1])
            at = place + 1
            continue
        ending = host[0][len(host[0].rstrip(".")) :]
        found += [text[at : name.start()], HIDDEN_WORD, "@", HIDDEN_WORD, ending]
        at = host.end()
    return "".join(found) + text[at:] if found else text


def redact_hosts(text: str, in_host: bool, after_name: bool) -> tuple[str, bool, bool]:
    """A piece of a text without what follows an @ in addresses: what stands before it has been kept by then.

    `in_host` says whether the text so far ends in such a place, `after_name` whether an @ may follow. Both come back.
    """
    found: list[str] = []
    at = 0
    if in_host:
        rest = AFTER.match(text)
        if rest is not None:
            found.append(HIDDEN)
            at = rest.end()
        if at == len(text):
            return "".join(found), True, False
    while (place := text.find("@", at)) >= 0:
        has_name = AFTER.match(text[place - 1]) is not None if place else after_name
        if not has_name:
            found.append(text[at : place + 1])
            at = place + 1
            continue
        host = AFTER.match(text, place + 1)
        found += [text[at : place + 1], HIDDEN_WORD]
        at = place + 1 if host is None else host.end()
        if at == len(text):
            return "".join(found), True, False
    ends_in_name = bool(text) and AFTER.match(text[-1]) is not None
    return ("".join(found) + text[at:] if found else text), False, ends_in_name or (after_name and not text)


def redact_spoken(text: str) -> str:
    """A text without the addresses that are spelt out in it, such as "john dot doe at example dot com"."""
    words = [*WORD.finditer(text)]
    names = [word[0].strip(MARKS).casefold() for word in words]
    hidden: set[int] = set()
    for place, name in enumerate(names):
        if name not in AT or place == 0 or place + 2 >= len(names) or names[place + 2] not in DOTS:
            continue
        last = place + 1
        while last + 2 < len(names) and names[last + 1] in JOINS:
            last += 2
        first = place - 1
        while first >= 2 and first - 2 not in hidden and names[first - 1] in JOINS:
            first -= 2
        hidden.update((*range(first, place), *range(place + 1, last + 1)))
    found: list[str] = []
    at = 0
    for place in sorted(hidden):
        start, end = words[place].span()
        mark = words[place][0][len(words[place][0].rstrip(MARKS)) :] if names[place] not in JOINS else ""
        found += [text[at:start], HIDDEN_WORD if names[place] not in JOINS else words[place][0], mark]
        at = end
    return "".join(found) + text[at:] if found else text
