"""Numbers of a call's parties, hidden in what is kept of frames beside speech (docs/privacy.md).

What someone says is speech, for redaction to judge; ids, arguments and results of tools are not.
"""

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from voicemem.dialects.dialect import Dialect
from voicemem.protocol.codec import ENCODER, JSON_DECODER, MALFORMED
from voicemem.protocol.comparison import HIDDEN_WORD
from voicemem.protocol.telephone import INTERNATIONAL, MIN_DIGITS
from voicemem.protocol.types import JsonObject

RUN = re.compile(rf"\+?\d[\d\s().\-/]{{{MIN_DIGITS - 2},}}\d")
"""What may be a number, in any spelling."""


def may_have_number(payload: bytes, numbers: Sequence[str]) -> bool:
    """Return whether a frame may have one of these numbers (their digits) in it, in any spelling."""
    return any(number[-2:].encode() in payload for number in numbers)


def hide_in_frame(dialect: Dialect, content: JsonObject, numbers: Sequence[str]) -> JsonObject:
    """A reduced frame without these numbers, but for what was said."""
    speech = {(id(text.holder), text.key) for text in dialect.texts(content) if text.form != "value"}

    def hide(value: Any) -> Any:
        if isinstance(value, dict):
            return {
                hide_in_text(key, numbers): item if (id(value), key) in speech else hide(item)
                for key, item in value.items()
            }
        if isinstance(value, list):
            return [item if (id(value), at) in speech else hide(item) for at, item in enumerate(value)]
        if isinstance(value, str):
            return hide_in_json(value) if value.startswith(("{", "[")) else hide_in_text(value, numbers)
        is_hidden = isinstance(value, int) and is_party(str(value), numbers)
        return HIDDEN_WORD if is_hidden else value

    def hide_in_json(text: str) -> str:
        """What a tool was called with, as text: it stays JSON."""
        try:
            values = JSON_DECODER.decode(text)
        except (*MALFORMED, msgspec.ValidationError):
            return hide_in_text(text, numbers)
        without = hide(values)
        return text if without == values else ENCODER.encode(without).decode()

    hidden: JsonObject = hide(content)
    return hidden


def international_in(text: str) -> list[str]:
    """The digits of the numbers in a text that stand behind a plus."""
    return [re.sub(r"\D", "", run[0]) for run in INTERNATIONAL.finditer(text)]


def hide_in_text(text: str, numbers: Sequence[str], mark: str = HIDDEN_WORD) -> str:
    return RUN.sub(lambda run: mark if is_party(run[0], numbers) else run[0], text)


def is_party(run: str, numbers: Sequence[str]) -> bool:
    """Return whether digits are one of these numbers, with its country or without, or have one in them."""
    digits = re.sub(r"\D", "", run).lstrip("0")
    return len(digits) >= MIN_DIGITS and any(number in digits or number.endswith(digits) for number in numbers)
