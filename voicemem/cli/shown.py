"""What others said, as a terminal may be given it: control characters would command it, others reorder its text."""

from __future__ import annotations

import json
import re
from typing import Any

from voicemem.exports.plain_text import HIDDEN, without_hidden


def lines_shown(text: str) -> str:
    """A text without them, and with no other white space than spaces and line feeds."""
    return "\n".join(without_hidden(text).splitlines()).expandtabs(4)


def line_shown(text: str) -> str:
    """The same on one line; its spaces stay."""
    return lines_shown(text).replace("\n", " ")


def json_shown(value: Any, indent: int | None = None) -> str:
    """The same JSON, in which they are escaped."""
    return escaped(json.dumps(value, ensure_ascii=False, indent=indent))


def escaped(written: str) -> str:
    """JSON in which they are escaped; outside of its texts there are none."""
    return HIDDEN.sub(escape, written)


def escape(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"
