"""The turns of a call with their causes and latencies, in the shape of Agora's `/turns` (reference: agora.md, 1.4)."""

from __future__ import annotations

from operator import itemgetter
from typing import Any

from voicemem.protocol.types import MAX_INTEGER
from voicemem.transcript.replies.interruptions import first_marking_cut, last_entries
from voicemem.transcript.replies.playing import is_cut_by_close, settle
from voicemem.transcript.replies.resumes import resumed_until
from voicemem.transcript.replies.sources import sources_of, standing_replies
from voicemem.transcript.state import Latency, Reply, State, Turn
from voicemem.transcript.timeline import AFTER_ALL
from voicemem.transcript.turns.marks import false_alarms_of, tool_marks, turn_marks

START_TYPES = {"greeting": "greeting", "silence": "silence_timeout", "command": "api_speak"}
"""By the source of the reply that began the turn; any other turn began with the user's voice."""
TYPED_START_TYPES = {"command": "api_think", "asr": "voice_input"}
"""The same, by the source of a whole user message; it is `asr` in a restored memory."""
END_TO_END = ("e2e", "e2e_latency", "e2e_latency_ms")


def turns(state: State, marks: bool = False) -> list[dict[str, Any]]:
    """One object per turn; times are Unix ms, and `end` is null while the turn goes on."""
    return [turn_report(state, state.turns[number], marks) for number in state.turn_numbers]


def turn_report(state: State, turn: Turn, marks: bool = False) -> dict[str, Any]:
    """One turn with its false alarms and, on request, the times of its parts and of its tool calls."""
    report = {**turn_object(state, turn), "false_alarms": false_alarms_of(state, turn)}
    return report | {"marks": turn_marks(state, turn), "tools": list(tool_marks(turn))} if marks else report


def turn_object(state: State, turn: Turn) -> dict[str, Any]:
    """One turn, without the ids of its call, which the state does not know."""
    return {
        "turn_id": turn.number,
        "start": turn_start(state, turn),
        "end": turn_end(state, turn),
        "metrics": turn_metrics(turn),
    }


def turn_start(state: State, turn: Turn) -> dict[str, Any] | None:
    begins = [(segment.begin, "voice_input") for segment in turn.segments if segment.begin < AFTER_ALL]
    begins += [
        (typed.begin, TYPED_START_TYPES.get(str(typed.metadata.get("source")), "message")) for typed in turn.typed or ()
    ]
    if not begins:
        replies = standing_replies(state, turn)
        begins = [(reply.begin, START_TYPES.get(reply.source, "voice_input")) for reply in replies]
    if not begins:
        return None
    start_at, kind = min(begins)
    return {"start_at": start_at, "type": kind, "metadata": {}}


def turn_end(state: State, turn: Turn) -> dict[str, Any] | None:
    settle(state)
    replies = standing_replies(state, turn)
    cuts = [cut for reply in replies for cut in cuts_of(state, reply)]
    if cuts:
        end_at, cause = min(cuts, key=itemgetter(0))
        return {"end_at": end_at, "type": "interrupted", "metadata": {"caused_by": cause or "start_of_speech"}}
    if turn.failures:
        last = turn.failures[-1]
        details = {} if last.code is None else {"details": str(last.code)}
        return {"end_at": last.ts, "type": "error", "metadata": {"reason": "LLM_REQUEST_ERR", **details}}
    if replies and all(reply.generation.complete for reply in replies):
        return {"end_at": last_reply_end(state, replies), "type": "ok", "metadata": {}}
    return None if state.closed_ts is None else {"end_at": state.closed_ts, "type": "ok", "metadata": {}}


def cuts_of(state: State, reply: Reply) -> list[tuple[int, str | None]]:
    """When a reply was interrupted, and why. For a restored one, its metadata say when; after a fork, an event why."""
    sources = sources_of(state, reply)
    if reply.restored:
        known = [(cut.ts, cut.cause) for source in sources for cut in source.interruptions()]
        ts = (reply.metadata or {}).get("interrupt_timestamp", (0, 0, None))[2]
        return known or [(ts if isinstance(ts, int) else reply.begin, None)]
    if reply.cut_ts is not None:
        first = first_marking_cut(sources, resumed_until(state, reply, sources), reply.heard_ts)
        return [] if first is None else [(first.ts, first.cause)]
    if is_cut_by_close(state, reply) and state.closed_ts is not None:
        return [(state.closed_ts, state.close_reason)]
    return []


def last_reply_end(state: State, replies: list[Reply]) -> int:
    """When the last of these replies ended: its playback if that was reported, else its generation."""
    ends = [done.ts for reply in replies for done in last_entries(sources_of(state, reply), "dones")]
    return max(ends or [reply.generation.ended_ts or reply.begin for reply in replies])


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
