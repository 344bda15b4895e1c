"""What others said, as a terminal may be given it: control characters would command it, others reorder its text."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

from voicemem.exports.plain_text import HIDDEN, without_hidden


def lines_shown(text: str) -> str:
    """A text without them, and with no other white space than spaces and line feeds."""
    return "\n".join(without_hidden(text).splitlines()).expandtabs(4)


def line_shown(text: str) -> str:
    """The same on one line; its spaces stay."""
    return lines_shown(text).replace("\n", " ")


def json_shown(value: Any, indent: int | None = None) -> str:
    """The same JSON, in which they are escaped, and where the output is not in UTF-8 everything beyond ASCII."""
    has_all = (sys.stdout.encoding or "").lower().startswith("utf")
    return HIDDEN.sub(escape, json.dumps(value, ensure_ascii=not has_all, indent=indent))


def escape(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"
