"""Hides the numbers of a call's parties in the parts of frames that are not speech (docs/privacy.md).

Speech is left to redaction; ids, and arguments and results of tools, are not speech.
"""

import re
from collections.abc import Collection, Sequence
from typing import Any

from msgspec import structs

from voicemem.dialects.dialect import Dialect
from voicemem.protocol.codec import ENCODER, JSON_DECODER, MALFORMED
from voicemem.protocol.comparison import HIDDEN_WORD
from voicemem.protocol.events import ProducedEvent, ToolCall, ToolResult
from voicemem.protocol.telephone import INTERNATIONAL, MAX_DIGITS, MIN_DIGITS, PARTS, digits_in
from voicemem.protocol.types import JsonObject

RUN = re.compile(rf"\+?\d[{PARTS}_]{{{MIN_DIGITS - 2},}}\d")
"""A text that may be a number, in any spelling."""
SHORTEST, LONGEST = 10 ** (MIN_DIGITS - 1), 10**MAX_DIGITS
NO_DIGITS = bytes(set(range(256)) - set(b"0123456789"))
OTHER_DIGITS = re.compile(r"[^\D0-9]|\\u")
"""Digits of other scripts, and what JSON within JSON may write them as."""


def may_have_number(payload: bytes, numbers: Sequence[str]) -> bool:
    """Return whether a frame may contain one of these numbers (their digits), in any spelling."""
    digits = payload.translate(None, NO_DIGITS)
    if any(number[-MIN_DIGITS:].encode() in digits for number in numbers):
        return True
    is_plain = payload.isascii() and b"\\u" not in payload
    return bool(numbers) and not is_plain and OTHER_DIGITS.search(payload.decode()) is not None


def hide_in_frame(dialect: Dialect, content: JsonObject, numbers: Sequence[str]) -> JsonObject:
    """Return a reduced frame without these numbers; speech stays as it is."""
    speech = {(id(text.holder), text.key) for text in dialect.texts(content) if text.form != "value"}
    hidden: JsonObject = hide(content, numbers, speech)
    return hidden


def hide_in_event(event: ProducedEvent, numbers: Sequence[str]) -> ProducedEvent:
    """Return a tool call or a result without these numbers; other events as they are."""
    if isinstance(event, ToolCall):
        without = structs.replace(event, arguments=hide(event.arguments, numbers))
        return structs.replace(without, metadata=hide(event.metadata, numbers))
    return structs.replace(event, result=hide(event.result, numbers)) if isinstance(event, ToolResult) else event


def hide(value: Any, numbers: Sequence[str], speech: Collection[tuple[int, Any]] = ()) -> Any:
    """Return a value without these numbers; `speech` are places that stay, by the id of their holder and their key."""
    if isinstance(value, dict):
        return {
            hide_in_text(key, numbers): item if (id(value), key) in speech else hide(item, numbers, speech)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [item if (id(value), at) in speech else hide(item, numbers, speech) for at, item in enumerate(value)]
    if isinstance(value, str):
        return hide_in_json(value, numbers) if value.startswith(("{", "[")) else hide_in_text(value, numbers)
    if isinstance(value, int | float) and SHORTEST <= value < LONGEST and value == int(value):
        return HIDDEN_WORD if any(number.endswith(str(int(value))) for number in numbers) else value
    return value


def hide_in_json(text: str, numbers: Sequence[str]) -> str:
    """Hide the numbers in a tool's arguments, given as text, which stays JSON."""
    try:
        values = JSON_DECODER.decode(text)
        without = hide(values, numbers)
    except MALFORMED:  # or nested too deep
        return hide_in_text(text, numbers)
    return text if without == values else ENCODER.encode(without).decode()


def international_in(text: str) -> list[str]:
    """Return the digits of the numbers in a text that begin with a plus."""
    return [digits_in(run[0]) for run in INTERNATIONAL.finditer(text)]


def hide_in_text(text: str, numbers: Sequence[str], mark: str = HIDDEN_WORD) -> str:
    return RUN.sub(lambda run: mark if is_party(run[0], numbers) else run[0], text)


def is_party(run: str, numbers: Sequence[str]) -> bool:
    """Return whether one of these numbers is in a run of digits, with its country, with its area, or without both."""
    digits = digits_in(run)
    return any(number[-MIN_DIGITS:] in digits for number in numbers)
