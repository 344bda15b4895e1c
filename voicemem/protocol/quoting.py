"""Quoting of speech as data in a text for an LLM: on one line, so that no part of it looks like another line.

Line breaks of every kind are escaped as in JSON; a quote that must be distinct from its context is a JSON string.
"""

import re
import unicodedata

import msgspec

BREAKS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
"""All line breaks, and other control characters."""
SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
MAX_NAME = 40
"""The most characters of a speaker's name."""
NOT_IN_NAMES = frozenset("[](){}<>:\"'`")
LINE_BREAKS = r"\n\r\v\f\x1c-\x1e\x85\u2028\u2029"
COLONS = "\uff1a\ufe55\ufe13\ua789\u2236\u02d0"
"""Characters that look like a colon."""
SPEAKERS = "system|developer|assistant|agent|model|bot|ai|user|human|caller|tool|function"
SPEAKER = re.compile(rf"[\W\d_]*+(?:{SPEAKERS})(?:[^\w(\[]|[\d_])*+(?:[(\[][^()\[\]]*+[)\]])?[\W\d_]*+", re.IGNORECASE)
"""The beginning of a speaker's line, before its colon: `assistant`, `**User (ann)**`, `2. Bot [x]`."""
LABEL = re.compile(rf"(\A|[{LINE_BREAKS}])((?:[^\w{LINE_BREAKS}]|[\d_])*+[^:{COLONS}{LINE_BREAKS}]*+)(?=[:{COLONS}])")
"""The beginning of a line, up to a colon."""


def on_one_line(text: str) -> str:
    """Return a text with its line breaks escaped."""
    return BREAKS.sub(lambda match: SHORT.get(match[0]) or f"\\u{ord(match[0]):04x}", text)


def quoted(value: object) -> str:
    """Return a text as a JSON string, or any other value as JSON, on one line."""
    return on_one_line(msgspec.json.encode(value).decode())


def short_name(name: object) -> str:
    """Return a speaker's name without signs that could end it; empty if it is not a name."""
    if not isinstance(name, str):
        return ""
    line = " ".join("".join(char if char.isprintable() else " " for char in name).split())
    return "".join(char for char in line if char not in NOT_IN_NAMES)[:MAX_NAME].strip()


def without_speakers(text: str) -> str:
    """Mark the lines of a text that look like a speaker's as quoted."""
    return LABEL.sub(lambda line: f"{line[1]}{'> ' if SPEAKER.fullmatch(seen(line[2])) else ''}{line[2]}", text)


def seen(text: str) -> str:
    """Return a text as it looks: letters in their usual form, and nothing that is invisible."""
    if text.isascii():
        return text
    return "".join(one for one in unicodedata.normalize("NFKC", text) if unicodedata.category(one) != "Cf")
