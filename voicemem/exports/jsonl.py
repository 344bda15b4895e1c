"""JSON lines: the call, then its messages and tool calls in their order, exactly as they are."""

from __future__ import annotations

from typing import Any

import msgspec

from voicemem.exports.call import Call, Utterance
from voicemem.transcript.messages import ToolUse


def jsonl(call: Call) -> str:
    """A line of the type `call`, then one for each message and tool call."""
    lines: list[dict[str, Any]] = [call_line(call)]
    lines += [
        message_line(call, one) if isinstance(one, Utterance) else tool_line(call, one) for one in call.in_order()
    ]
    return "".join(msgspec.json.encode(line).decode() + "\n" for line in lines)


def call_line(call: Call) -> dict[str, Any]:
    facts = call.facts
    return {
        "type": "call",
        "session_id": facts.session_id,
        "state": facts.state,
        "reason": facts.reason,
        "started_at": facts.started_ms,
        "ended_at": facts.ended_ms,
        "name": facts.name,
        "channel": facts.channel,
        "user_id": facts.user_id,
        "labels": facts.labels,
        "summary": None if call.summary is None else call.summary.text,
    }


def message_line(call: Call, one: Utterance) -> dict[str, Any]:
    """As in the history, with when it could be heard: `end_at` is null where nothing tells."""
    message = one.message
    return {
        "type": "message",
        "session_id": call.facts.session_id,
        "role": message.role,
        "content": message.content,
        "turn_id": message.turn_id,
        "timestamp": message.timestamp,
        "metadata": message.metadata,
        "start_at": one.start_ms,
        "end_at": one.end_ms,
    }


def tool_line(call: Call, tool: ToolUse) -> dict[str, Any]:
    return {
        "type": "tool_call",
        "session_id": call.facts.session_id,
        "turn_id": tool.turn_id,
        "timestamp": tool.timestamp,
        "call_id": tool.call_id,
        "name": tool.name,
        "arguments": tool.arguments,
        "result": tool.result,
    }
