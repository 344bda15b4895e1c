"""What is told of a session, and when: the notices with Agora's numbers and payloads (reference: agora.md, 2.4).

The payload of a notice is made once, of the journal up to one position, and frozen. The history's (103) stands in
`voicemem.exports`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import orjson

from voicemem.exports import HISTORY_EVENT
from voicemem.state import Latency, State
from voicemem.turns import is_end_to_end, plain_number, turns

STARTED, LEFT, METRICS, TURNS = 101, 102, 111, 112
AT_CLOSE = (LEFT, HISTORY_EVENT, METRICS, TURNS)
"""In the order in which they become due; they may arrive in any."""
MAX_TURNS = 200
"""In one notice."""
MESSAGES = {"idle": "Idle for too long", "max_duration": "Task lifetime limit exceeded"}
"""What Agora says of an end, by its reason here."""
ALIASES = {"llm_ttft": "llm_ttfb"}
"""Latencies that Agora knows by another name."""
STANDARD = ("asr_ttlw", "llm_ttfb", "llm_ttfs", "tts_ttfb")
"""The latencies that Agora's notices have."""
HEALTH_CHECK = orjson.dumps({"channelName": "test_webhook", "uid": 12121212})
"""The payload of Agora's test callbacks."""
HEALTH_CHECK_SID = "test_webhook"


def notice_id(of_close: str, event_type: int) -> str:
    """Each notice of a close has an id of its own; the history's is that of the close."""
    return of_close if event_type == HISTORY_EVENT else f"{of_close}-{event_type}"


def about(
    session_id: str, name: str | None, channel: str | None, labels: dict[str, str], started_ms: int
) -> dict[str, Any]:
    """What every payload says of its session; times are Unix seconds."""
    return {
        "agent_id": session_id,
        "name": name or "",
        "channel": channel or "",
        "start_ts": started_ms // 1000,
        "labels": labels,
    }


def started_payload(session: dict[str, Any]) -> bytes:
    return orjson.dumps(session)


def left_payload(session: dict[str, Any], stopped_ms: int, reason: str | None) -> bytes:
    message = MESSAGES.get(reason or "", "OK")
    return orjson.dumps({**session, "stop_ts": stopped_ms // 1000, "status": "STOPPED", "message": message})


def metrics_payload(
    session: dict[str, Any], stopped_ms: int, state: State, fields: Literal["full", "standard"] = "full"
) -> bytes:
    """The latencies of each turn that has some, in ms. `standard` leaves those that Agora has."""
    measured = {number: latencies_of(state.turns[number].latencies or ()) for number in state.numbers}
    if fields == "standard":
        measured = {number: {name: one[name] for name in STANDARD if name in one} for number, one in measured.items()}
    metrics = [{"turn_id": number} | latencies for number, latencies in measured.items() if latencies]
    return orjson.dumps({**session, "stop_ts": stopped_ms // 1000, "metrics": metrics})


def latencies_of(latencies: Sequence[Latency]) -> dict[str, float]:
    """The newest of each name."""
    newest = {one.name: plain_number(one.latency_ms) for one in latencies if not is_end_to_end(one.name)}
    newest.pop("turn_id", None)
    for ours, theirs in ALIASES.items():
        if ours in newest:
            newest.setdefault(theirs, newest.pop(ours))
    return newest


def turns_payload(session: dict[str, Any], stopped_ms: int, state: State) -> bytes:
    """The first turns, in the shape of `/turns`, but with latencies by name as Agora has them here."""
    told = turns(state)
    given = told[:MAX_TURNS]
    for turn in given:
        segments = turn["metrics"]["segmented_latency_ms"]
        turn["metrics"]["segmented_latency_ms"] = {one["name"]: one["latency"] for one in segments}
    return orjson.dumps(
        {
            **session,
            "stop_ts": stopped_ms // 1000,
            "total_turn_count": len(told),
            "is_truncated": len(told) > MAX_TURNS,
            "turns": given,
        }
    )
