"""CSV (RFC 4180): a row for each message, for spreadsheets."""

from __future__ import annotations

import re

from voicemem.exports.call import Call, Utterance
from voicemem.exports.plain_text import without_hidden
from voicemem.exports.times import date_time

COLUMNS = (
    *("session_id", "turn_id", "role", "speaker", "began_at", "start_ms", "end_ms"),
    *("text", "interrupted", "interrupted_at", "unheard", "heard_by", "source"),
)
HEAD = ",".join(COLUMNS) + "\r\n"
FORMULA = re.compile(r"\s*[=+\-@\uff0b\uff0d\uff1d\uff20]|[\t\r\n]")
"""What a spreadsheet takes for the beginning of a formula, also in full width, and after the spaces that some skip."""


def csv(call: Call) -> str:
    """A head, and a row for each message."""
    return HEAD + "".join(row(call, one) for one in call.utterances)


def row(call: Call, one: Utterance) -> str:
    """A row with the fields of `COLUMNS`; `start_ms` and `end_ms` count from the first that was heard."""
    message, metadata, zero = one.message, one.message.metadata, call.start_ms
    cut_at = metadata.get("interrupt_timestamp") if one.is_cut else None
    numbers = [str(one.start_ms - zero), "" if one.end_ms is None else str(one.end_ms - zero)]
    return (
        ",".join(
            [
                *(field(call.facts.session_id), str(message.turn_id), message.role, field(one.speaker)),
                *(date_time(one.start_ms), *numbers, field(one.heard), "true" if one.is_cut else "false"),
                date_time(cut_at) if isinstance(cut_at, int) else "",
                *(field(one.unheard), field(heard_by(one)), field(str(metadata.get("source", "")))),
            ]
        )
        + "\r\n"
    )


def heard_by(one: Utterance) -> str:
    """How the heard text of an interrupted reply was found."""
    return str(one.message.metadata.get("heard", "exact")) if one.is_cut else ""


def field(text: str) -> str:
    """A text that no spreadsheet takes for a formula, in quotes where it needs them."""
    text = without_hidden(text)
    if FORMULA.match(text):
        text = f"'{text}"
    if any(mark in text for mark in ',"\r\n'):
        return '"' + text.replace('"', '""') + '"'
    return text
