"""E-mail addresses: written, or spoken as "john dot doe at example dot com"."""

import re

from voicemem.protocol.comparison import HIDDEN, HIDDEN_WORD

ENDS = r"\s<>()\[\]{},;:\"'!?|"
"""Characters that cannot be in an address."""
BEFORE = re.compile(rf"[^{ENDS}@]+\Z")
AFTER = re.compile(rf"[^{ENDS}]+")
MAX_NAME = 320
"""Characters before the @ that are checked."""
WORD = re.compile(r"\S+")
AT = frozenset("at ät @ at-sign arroba arobase chiocciola apenstaartje klammeraffe".split())  # noqa: SIM905
JOINS = frozenset(
    "dot punkt point punto ponto punt underscore unterstrich dash minus bindestrich hyphen tiret guion guión".split()  # noqa: SIM905
)
"""Spoken words for the signs in an address."""
DOTS = frozenset("dot punkt point punto ponto punt".split())  # noqa: SIM905
MARKS = ".,!?;:()[]<>"
ENDINGS = ".,!?;:"
"""Marks after a word that are kept."""
WRITTEN_HOST = re.compile(r"\w[\w-]*(?:\.[\w-]+)*\.[^\W\d_]{2,}")


def redact_addresses(text: str) -> str:
    """Return a text in which each word of an address is replaced by a word."""
    return redact_spoken(redact_written(text))


def redact_written(text: str) -> str:
    parts: list[str] = []
    at = 0
    while (place := text.find("@", at)) >= 0:
        name = BEFORE.search(text, max(at, place - MAX_NAME), place)
        host = AFTER.match(text, place + 1)
        if name is None or host is None:
            parts.append(text[at : place + 1])
            at = place + 1
            continue
        ending = host[0][len(host[0].rstrip(".")) :]
        parts += [text[at : name.start()], HIDDEN_WORD, "@", HIDDEN_WORD, ending]
        at = host.end()
    return "".join(parts) + text[at:] if parts else text


def redact_hosts(text: str, in_host: bool, after_name: bool) -> tuple[str, bool, bool]:
    """Return a piece of a text without the hosts after each @ (the names before it were kept by then).

    `in_host` says whether the text so far ends in a host, `after_name` whether an @ may follow. Both are returned too.
    """
    parts: list[str] = []
    at = 0
    if in_host:
        rest = AFTER.match(text)
        if rest is not None:
            parts.append(HIDDEN)
            at = rest.end()
        if at == len(text):
            return "".join(parts), True, False
    while (place := text.find("@", at)) >= 0:
        has_name = AFTER.match(text[place - 1]) is not None if place else after_name
        if not has_name:
            parts.append(text[at : place + 1])
            at = place + 1
            continue
        host = AFTER.match(text, place + 1)
        parts += [text[at : place + 1], HIDDEN_WORD]
        at = place + 1 if host is None else host.end()
        if at == len(text):
            return "".join(parts), True, False
    ends_in_name = bool(text) and AFTER.match(text[-1]) is not None
    return ("".join(parts) + text[at:] if parts else text), False, ends_in_name or (after_name and not text)


def redact_spoken(text: str) -> str:
    """Return a text without spoken addresses, such as "john dot doe at example dot com"."""
    words = [*WORD.finditer(text)]
    names = [word[0].strip(MARKS).casefold() or word[0] for word in words]
    hidden: set[int] = set()
    free = 0
    for place, name in enumerate(names):
        if name not in AT or place <= free:
            continue
        end = end_of_host(names, place + 1)
        if end is not None:
            hidden.update((*range(start_of_name(names, place, free), place), *range(place + 1, end)))
            free = end
    parts: list[str] = []
    at = 0
    for place in sorted(hidden):
        start, end = words[place].span()
        mark = words[place][0][len(words[place][0].rstrip(ENDINGS)) :] if names[place] not in JOINS else ""
        parts += [text[at:start], HIDDEN_WORD if names[place] not in JOINS else words[place][0], mark]
        at = end
    return "".join(parts) + text[at:] if parts else text


def end_of_host(names: list[str], first: int) -> int | None:
    """Return the end of the host name that begins at a word; None if none begins there."""
    end, has_dot = end_of_label(names, first), False
    if end == first:
        return None
    while end < len(names) and names[end] in JOINS:
        following = end_of_label(names, end + 1)
        if following == end + 1:
            break
        has_dot = has_dot or names[end] in DOTS
        end = following
    return end if has_dot or any(WRITTEN_HOST.fullmatch(name) for name in names[first:end]) else None


def end_of_label(names: list[str], first: int) -> int:
    """Return the end of a label of a host name (a word, or letters spelt out); `first` if none begins there."""
    at = first
    while at < len(names) and len(names[at]) == 1 and names[at] not in AT:
        at += 1
    if at < len(names) and (WRITTEN_HOST.fullmatch(names[at]) or (at == first and names[at] not in JOINS | AT)):
        at += 1
    return at


def start_of_name(names: list[str], end: int, free: int) -> int:
    """Return the start of the name before an "at"; words before `free` belong to another address."""
    first = end
    while True:
        label = first
        while first > free and len(names[first - 1]) == 1:
            first -= 1
        if label == first and first > free:
            first -= 1
        if first - 1 <= free or names[first - 1] not in JOINS:
            return first
        first -= 1
