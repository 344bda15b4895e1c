"""The redaction rules that an operator chooses (`--redact`), and the redaction of one text or JSON value."""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from voicemem.protocol.codec import JSON_DECODER, MALFORMED
from voicemem.protocol.comparison import HIDDEN, HIDDEN_WORD
from voicemem.redaction.addresses import redact_addresses, redact_hosts
from voicemem.redaction.digit_runs import START, Limit, RunState, redact_run

Finder = Callable[[str], Iterable[tuple[int, int]]]
"""An operator's own rule: returns the spans of a text that must not be kept."""
KEPT_DIGITS = {"cards": 6, "phone": 4, "otp": 2}
"""The digits of a run that each rule keeps; of several rules the strictest counts."""


UNIX_MS = range(10**12, 26 * 10**11)
"""Numbers that are times up to the year 2052; no card number of 13 digits begins so."""
UNIX_S = range(10**9, 26 * 10**8)
FEWEST_OF_CARDS = 6
"""The digits kept of a card number; rules that keep fewer also hide phone numbers, which may have ten digits."""


class Rules(NamedTuple):
    """The operator's choice of redactions."""

    limit: Limit | None = None
    """How much of a digit run is kept; None: all of it."""
    email: bool = False
    finders: tuple[Finder, ...] = ()


def rules_of(names: Iterable[str], finders: Iterable[Finder] = ()) -> Rules:
    """Return the rules with these names, which must be known, and with the operator's own finders."""
    chosen = frozenset(names)
    kept = [KEPT_DIGITS[name] for name in chosen if name in KEPT_DIGITS]
    limit = Limit(min(kept), "otp" in chosen) if kept else None
    return Rules(limit, "email" in chosen, tuple(finders))


class PieceState(NamedTuple):
    """The state of an agent's text that comes in pieces."""

    run: RunState = START
    in_host: bool = False
    after_name: bool = False


FRESH = PieceState()


def redact_text(text: str, run: RunState, rules: Rules, complete: bool = True) -> tuple[str, RunState]:
    """Redact a whole text that follows `run`. Return it and the state at its end."""
    text = hide_found(text, rules)
    if rules.limit is not None:
        text, run = redact_run(text, run, rules.limit, complete)
    return redact_addresses(text) if rules.email else text, run


def redact_piece(text: str, place: PieceState, rules: Rules, complete: bool = False) -> tuple[str, PieceState]:
    """Redact a piece of a text. Return it and the state at its end. Pieces give the same result as the whole."""
    text, run = hide_found(text, rules), place.run
    if rules.limit is not None:
        text, run = redact_run(text, run, rules.limit, complete)
    if not rules.email:
        return text, PieceState(run)
    text, in_host, after_name = redact_hosts(text, place.in_host, place.after_name)
    return text, PieceState(run, in_host, after_name)


def hide_found(text: str, rules: Rules) -> str:
    """Hide the spans that the operator's finders return; if a finder fails, the whole text."""
    for finder in rules.finders if text else ():
        try:
            spans = sorted((int(start), int(end)) for start, end in finder(text))
        except Exception:  # a text that cannot be checked is not kept
            spans = [(0, len(text))]
        shown, at = "", 0
        for start, end in spans:
            start, end = max(start, at), min(end, len(text))
            if start < end:
                shown += text[at:start] + re.sub(r"\S+", HIDDEN_WORD, text[start:end])
                at = end
        text = shown + text[at:]
    return text


def redact_value(value: Any, rules: Rules) -> Any:
    """Redact any JSON; runs continue from one list item to the next. Unchanged values are the same objects."""
    return walk(value, START, rules)[0]


def walk(value: Any, run: RunState, rules: Rules) -> tuple[Any, RunState]:
    match value:
        case str():
            return redact_string(value, run, rules)
        case bool() | None:
            return value, START
        case int():
            return redact_number(value, value, run, rules)
        case float():
            whole = int(value) if value.is_integer() and abs(value) < 1e22 else None
            return (value, START) if whole is None else redact_number(value, whole, run, rules)
        case list() | tuple():
            items: list[Any] = []
            for item in value:
                changed, run = walk(item, run, rules)
                items.append(changed)
            return (value if is_unchanged(items, value) else items), run
        case dict():
            changed_items = {
                redact_text(key, START, rules)[0]: walk(item, START, rules)[0] for key, item in value.items()
            }
            same = [*changed_items] == [*value] and is_unchanged([*changed_items.values()], [*value.values()])
            return (value if same else changed_items), START
    return value, START


def is_unchanged(items: Sequence[Any], before: Sequence[Any]) -> bool:
    return all(one is other for one, other in zip(items, before, strict=True))


def redact_string(text: str, run: RunState, rules: Rules) -> tuple[str, RunState]:
    """Redact a text, which may be JSON, as arguments of tools often are."""
    if text[:1] in ("{", "["):
        try:
            value = JSON_DECODER.decode(text)
            changed = walk(value, START, rules)[0]
        except (*MALFORMED, RecursionError):
            pass
        else:
            return (text if changed is value else msgspec.json.encode(changed).decode()), START
    changed_text, run = redact_text(text, run, rules)
    return (text if changed_text == text else changed_text), run


def redact_number(value: Any, whole: int, run: RunState, rules: Rules) -> tuple[Any, RunState]:
    """Redact a JSON number, which becomes a text if it has too many digits. Unix times stay."""
    if rules.limit is None or whole in UNIX_MS or (whole in UNIX_S and rules.limit.keep >= FEWEST_OF_CARDS):
        return value, START
    shown, run = redact_run(str(whole), run, rules.limit, complete=True)
    return (shown if HIDDEN in shown else value), run
