"""Payloads of webhook events, with Agora's numbers and fields, and the envelope around them.

The payload of a webhook event is made once, from the journal up to one position, and frozen.
"""

from collections.abc import Sequence
from typing import Any

import orjson

from voicemem.config.session import Contents
from voicemem.exports.call import Call
from voicemem.exports.vcon import vcon_object
from voicemem.transcript.messages import Message, order_metadata
from voicemem.transcript.state import Latency, State
from voicemem.transcript.turns import compact_number, is_end_to_end, turns

MAX_TURNS = 200
"""Per webhook event."""
END_MESSAGES = {"idle": "Idle for too long", "max_duration": "Task lifetime limit exceeded"}
"""Agora's sentence for the end of a session, by voicemem's reason."""
LATENCY_ALIASES = {"llm_ttft": "llm_ttfb"}
"""Latencies that have another name at Agora."""
STANDARD_LATENCIES = ("asr_ttlw", "llm_ttfb", "llm_ttfs", "tts_ttfb")
"""The latencies in Agora's webhook events."""
HEALTH_CHECK = orjson.dumps({"channelName": "test_webhook", "uid": 12121212})
"""The payload of Agora's test callbacks."""
HEALTH_CHECK_SID = "test_webhook"
PRODUCT_ID = 17
"""Agora's number for conversational agents, in every envelope."""


def session_fields(
    session_id: str, name: str | None, channel: str | None, labels: dict[str, str], started_ms: int
) -> dict[str, Any]:
    """The fields that every payload has about its session; times are Unix seconds."""
    return {
        "agent_id": session_id,
        "name": name or "",
        "channel": channel or "",
        "start_ts": started_ms // 1000,
        "labels": labels,
    }


def left_payload(session: dict[str, Any], stopped_ms: int, reason: str | None) -> bytes:
    message = END_MESSAGES.get(reason or "", "OK")
    return orjson.dumps({**session, "stop_ts": stopped_ms // 1000, "status": "STOPPED", "message": message})


def metrics_payload(session: dict[str, Any], stopped_ms: int, state: State, fields: Contents = "full") -> bytes:
    """The latencies of each turn that has any, in ms; with `standard` only those that Agora has."""
    measured = {number: latencies_of(state.turns[number].latencies or ()) for number in state.turn_numbers}
    if fields == "standard":
        measured = {
            number: {name: latencies[name] for name in STANDARD_LATENCIES if name in latencies}
            for number, latencies in measured.items()
        }
    metrics = [{"turn_id": number} | latencies for number, latencies in measured.items() if latencies]
    return orjson.dumps({**session, "stop_ts": stopped_ms // 1000, "metrics": metrics})


def latencies_of(latencies: Sequence[Latency]) -> dict[str, float]:
    """The newest latency of each name, in ms, without end-to-end ones."""
    newest = {
        latency.name: compact_number(latency.latency_ms) for latency in latencies if not is_end_to_end(latency.name)
    }
    newest.pop("turn_id", None)
    for ours, theirs in LATENCY_ALIASES.items():
        if ours in newest:
            newest.setdefault(theirs, newest.pop(ours))
    return newest


def turns_payload(session: dict[str, Any], stopped_ms: int, state: State) -> bytes:
    """The first turns, in the shape of `/turns` without false alarms, but with latencies by name, as in Agora's."""
    all_turns = turns(state)
    first_turns = all_turns[:MAX_TURNS]
    for turn in first_turns:
        del turn["false_alarms"]
        segments = turn["metrics"]["segmented_latency_ms"]
        turn["metrics"]["segmented_latency_ms"] = {segment["name"]: segment["latency"] for segment in segments}
    return orjson.dumps(
        {
            **session,
            "stop_ts": stopped_ms // 1000,
            "total_turn_count": len(all_turns),
            "is_truncated": len(all_turns) > MAX_TURNS,
            "turns": first_turns,
        }
    )


def history_payload(session: dict[str, Any], stopped_ms: int, messages: Sequence[Message], fields: Contents) -> bytes:
    """The memory at the close; with `standard` each message has only role and content."""
    contents: list[dict[str, Any]] = [{"role": message.role, "content": message.content} for message in messages]
    if fields == "full":
        for item, message in zip(contents, messages, strict=True):
            item |= {"turn_id": message.turn_id, "timestamp": message.timestamp}
            item["metadata"] = order_metadata(message.metadata)
    # The order of the keys is frozen: `stop_ts` comes before `labels`.
    start = {key: value for key, value in session.items() if key != "labels"}
    return orjson.dumps({**start, "stop_ts": stopped_ms // 1000, "labels": session["labels"], "contents": contents})


def vcon_payload(session: dict[str, Any], stopped_ms: int, call: Call) -> bytes:
    return orjson.dumps({**session, "stop_ts": stopped_ms // 1000, "vcon": vcon_object(call)})


def envelope(*, notice_id: str, event_type: int, notify_ms: int, session_id: str, payload: bytes) -> bytes:
    """The whole body around a frozen payload, whose bytes stay unchanged: only `notifyMs` differs between attempts."""
    return orjson.dumps(
        {
            "noticeId": notice_id,
            "productId": PRODUCT_ID,
            "eventType": event_type,
            "notifyMs": notify_ms,
            "sid": session_id,
            "payload": orjson.Fragment(payload),
        }
    )
