"""The turns of a call with their causes and latencies, in the shape of Agora's `/turns` (reference: agora.md, 1.4)."""

from __future__ import annotations

from operator import itemgetter
from typing import Any

from voicemem.protocol.types import MAX_INTEGER
from voicemem.transcript.history import HeardReply, heard_replies
from voicemem.transcript.state import Latency, State, Turn

START_TYPES = {"greeting": "greeting", "silence": "silence_timeout", "command": "api_speak"}
"""By the source of the reply that began the turn; any other turn began with the user's voice."""
TYPED_START_TYPES = {"command": "api_think", "asr": "voice_input"}
"""The same, by the source of a whole user message; it is `asr` in a restored memory."""
END_TO_END = ("e2e", "e2e_latency", "e2e_latency_ms")


def turns(state: State) -> list[dict[str, Any]]:
    """One object per turn; times are Unix ms, and `end` is null while the turn goes on."""
    return [turn_object(state, state.turns[number]) for number in state.turn_numbers]


def turn_object(state: State, turn: Turn) -> dict[str, Any]:
    """One turn, without the ids of its call, which the state does not know."""
    return {
        "turn_id": turn.number,
        "start": turn_start(turn),
        "end": turn_end(state, turn),
        "metrics": turn_metrics(turn),
    }


def turn_start(turn: Turn) -> dict[str, Any] | None:
    spoken = [segment.begin for utterance in turn.utterances for segment in utterance.segments]
    begins = [(begin, "voice_input") for begin in spoken]
    begins += [
        (typed.begin, TYPED_START_TYPES.get(str(typed.metadata.get("source")), "message")) for typed in turn.typed or ()
    ]
    if not begins:
        replies = [heard.reply for heard in heard_replies(turn)]
        begins = [(reply.begin, START_TYPES.get(reply.source, "voice_input")) for reply in replies]
    if not begins:
        return None
    start_at, kind = min(begins)
    return {"start_at": start_at, "type": kind, "metadata": {}}


def turn_end(state: State, turn: Turn) -> dict[str, Any] | None:
    heard = heard_replies(turn)
    interruptions = [interruption for one in heard for interruption in interruptions_of(one)]
    if interruptions:
        end_at, cause = min(interruptions, key=itemgetter(0))
        return {"end_at": end_at, "type": "interrupted", "metadata": {"caused_by": cause or "start_of_speech"}}
    if turn.failures:
        last = turn.failures[-1]
        details = {} if last.code is None else {"details": str(last.code)}
        return {"end_at": last.ts, "type": "error", "metadata": {"reason": "LLM_REQUEST_ERR", **details}}
    if heard and all(one.evidence.complete for one in heard):
        return {"end_at": last_reply_end(turn), "type": "ok", "metadata": {}}
    return None if state.closed_ts is None else {"end_at": state.closed_ts, "type": "ok", "metadata": {}}


def interruptions_of(heard: HeardReply) -> list[tuple[int, str | None]]:
    """When a reply was interrupted, and why. For a restored one, its metadata say when; after a fork, an event why."""
    interruptions = heard.reply.interruptions or [] if heard.reply.restored else heard.interruptions
    if heard.reply.restored and not interruptions:
        ts = heard.reply.metadata.get("interrupt_timestamp")
        return [(ts if isinstance(ts, int) else heard.reply.begin, None)]
    return [(interruption.ts, interruption.cause) for interruption in interruptions]


def last_reply_end(turn: Turn) -> int:
    """When the last reply of the turn ended: its playback if that was reported, else its generation."""
    playing = [
        ts for one in heard_replies(turn) for window in one.evidence.windows for ts in window.playback.ends.times
    ]
    return max(playing or [ts for one in heard_replies(turn) for ts in one.reply.generation.ends.times])


def turn_metrics(turn: Turn) -> dict[str, Any]:
    newest = {latency.name: latency for latency in turn.latencies or ()}
    whole = next((newest.pop(name) for name in END_TO_END if name in newest), None)
    metrics: dict[str, Any] = {"segmented_latency_ms": [segment_of(latency) for latency in newest.values()]}
    return metrics if whole is None else {"e2e_latency_ms": compact_number(whole.latency_ms), **metrics}


def is_end_to_end(name: str) -> bool:
    return name in END_TO_END


def segment_of(latency: Latency) -> dict[str, Any]:
    return {"name": latency.name, "latency": compact_number(latency.latency_ms)}


def compact_number(value: float) -> float:
    return int(value) if abs(value) <= MAX_INTEGER and value == int(value) else value
