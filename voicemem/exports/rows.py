"""CSV (RFC 4180) with a row for each message, for spreadsheets; and JSON lines of the call and its messages."""

import re
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Raw
from msgspec.structs import asdict

from voicemem.exports.call import Call, Utterance, date_time, strip_invisible
from voicemem.protocol.memories import outcome_of
from voicemem.transcript.messages import ToolUse

COLUMNS = (
    *("session_id", "turn_id", "role", "speaker", "began_at", "start_ms", "end_ms"),
    *("text", "interrupted", "interrupted_at", "unheard", "heard_by", "source", "agent"),
    *("reply_after_ms", "reply_after_by", "outcome"),
)
HEAD = ",".join(COLUMNS) + "\r\n"
FORMULA = re.compile(r"\s*[=+\-@\uff0b\uff0d\uff1d\uff20]|[\t\r\n]")
"""Text that a spreadsheet takes for a formula, even in full width, or after spaces, which some skip."""


def csv(call: Call) -> Iterator[str]:
    yield HEAD
    zero = call.start_ms
    for one in call.utterances:
        yield row(call, one, zero)


def row(call: Call, one: Utterance, zero: int) -> str:
    """Return a row with the fields of `COLUMNS`; `start_ms` and `end_ms` count from `zero`, when the call began."""
    message, metadata = one.message, one.message.metadata
    heard_by = str(metadata.get("heard", "exact")) if one.is_cut else ""
    numbers = [str(one.start_ms - zero), "" if one.end_ms is None else str(one.end_ms - zero)]
    fields = [
        *(field(call.facts.session_id), str(message.turn_id), message.role, field(one.speaker)),
        *(date_time(one.start_ms), *numbers, field(one.heard), "true" if one.is_cut else "false"),
        "" if one.cut_at_ms is None else date_time(one.cut_at_ms),
        *(field(one.unheard), field(heard_by), field(str(metadata.get("source", "")))),
        *(field(one.agent or ""), "" if one.reply_after.ms is None else str(one.reply_after.ms)),
        one.reply_after.by or "",
        field(outcome_of(call.analysis) or ""),
    ]
    return ",".join(fields) + "\r\n"


def field(text: str) -> str:
    """Return a text that no spreadsheet takes for a formula, in quotes if it needs them."""
    text = strip_invisible(text)
    if FORMULA.match(text):
        text = f"'{text}"
    if any(mark in text for mark in ',"\r\n'):
        return '"' + text.replace('"', '""') + '"'
    return text


def jsonl(call: Call) -> Iterator[str]:
    """Yield a line of the type `call`, then one for each message and tool call."""
    summary = None if call.summary is None else call.summary.text
    head = {"type": "call", **msgspec.to_builtins(call.facts), "summary": summary, "analysis": call.analysis}
    yield msgspec.json.encode(head).decode() + "\n"
    for one in call.in_order():
        yield msgspec.json.encode(line_of(call, one)).decode() + "\n"
    for turn in call.latencies:
        line = {"type": "latencies", "session_id": call.facts.session_id} | asdict(turn)
        yield msgspec.json.encode(line).decode() + "\n"


def line_of(call: Call, one: Utterance | ToolUse) -> dict[str, Any]:
    """Return a tool call, or a message as in the history with the times at which it could be heard, null if unknown."""
    session = {"session_id": call.facts.session_id}
    if isinstance(one, Utterance):
        times = {"start_at": one.start_ms, "end_at": one.end_ms}
        return {"type": "message"} | session | asdict(one.message) | times
    fields = {**asdict(one), "arguments_json": Raw(one.arguments_json), "result_json": Raw(one.result_json)}
    shown = {name.removesuffix("_json"): value for name, value in fields.items() if name != "answered"}
    return {"type": "tool_call"} | session | shown
