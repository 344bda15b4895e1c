"""The turns of a call with their causes and latencies, in the shape of Agora's `/turns` (reference: agora.md, 1.4)."""

from __future__ import annotations

from operator import itemgetter
from typing import Any

from voicemem.protocol.types import MAX_INTEGER
from voicemem.transcript.history import Told, told_replies
from voicemem.transcript.state import Latency, State, Turn

START_TYPES = {"greeting": "greeting", "silence": "silence_timeout", "command": "api_speak"}
"""By the source of the reply that began the turn; any other turn began with the user's voice."""
TYPED = {"command": "api_think", "asr": "voice_input"}
"""The same by the source of a whole user message; speech is one where a memory was restored."""
END_TO_END = ("e2e", "e2e_latency", "e2e_latency_ms")


def turns(state: State) -> list[dict[str, Any]]:
    """One object per turn; times are Unix ms. `end` is null while a turn goes on."""
    return [turn_object(state, state.turns[number]) for number in state.numbers]


def turn_object(state: State, turn: Turn) -> dict[str, Any]:
    """One turn, but for the ids of its call, which the state does not know."""
    return {"turn_id": turn.number, "start": start_of(turn), "end": end_of(state, turn), "metrics": metrics_of(turn)}


def start_of(turn: Turn) -> dict[str, Any] | None:
    spoken = [segment.begin for utterance in turn.utterances for segment in utterance.segments]
    begins = [(begin, "voice_input") for begin in spoken]
    begins += [(typed.begin, TYPED.get(str(typed.metadata.get("source")), "message")) for typed in turn.typed or ()]
    if not begins:
        replies = [told.reply for told in told_replies(turn)]
        begins = [(reply.begin, START_TYPES.get(reply.source, "voice_input")) for reply in replies]
    if not begins:
        return None
    start_at, kind = min(begins)
    return {"start_at": start_at, "type": kind, "metadata": {}}


def end_of(state: State, turn: Turn) -> dict[str, Any] | None:
    told = told_replies(turn)
    cuts = [cut for one in told for cut in cuts_of(one)]
    if cuts:
        end_at, cause = min(cuts, key=itemgetter(0))
        return {"end_at": end_at, "type": "interrupted", "metadata": {"caused_by": cause or "start_of_speech"}}
    if turn.failures:
        last = turn.failures[-1]
        details = {} if last.code is None else {"details": str(last.code)}
        return {"end_at": last.ts, "type": "error", "metadata": {"reason": "LLM_REQUEST_ERR", **details}}
    if told and all(one.spoken.complete for one in told):
        return {"end_at": last_heard(turn), "type": "ok", "metadata": {}}
    return None if state.closed_ts is None else {"end_at": state.closed_ts, "type": "ok", "metadata": {}}


def cuts_of(told: Told) -> list[tuple[int, str | None]]:
    """When a reply was interrupted, and why; of a restored one its metadata say when, and a fork says why."""
    cuts = told.reply.cuts or [] if told.reply.restored else told.cuts
    if told.reply.restored and not cuts:
        ts = told.reply.metadata.get("interrupt_timestamp")
        return [(ts if isinstance(ts, int) else told.reply.begin, None)]
    return [(cut.ts, cut.cause) for cut in cuts]


def last_heard(turn: Turn) -> int:
    """When the turn's last reply ended: its playback where that was reported, else its generation."""
    playing = [ts for one in told_replies(turn) for track in one.spoken.tracks for ts in track.playback.ends.times]
    return max(playing or [ts for one in told_replies(turn) for ts in one.reply.generation.ends.times])


def metrics_of(turn: Turn) -> dict[str, Any]:
    newest = {latency.name: latency for latency in turn.latencies or ()}
    whole = next((newest.pop(name) for name in END_TO_END if name in newest), None)
    metrics: dict[str, Any] = {"segmented_latency_ms": [segment_of(latency) for latency in newest.values()]}
    return metrics if whole is None else {"e2e_latency_ms": plain_number(whole.latency_ms), **metrics}


def is_end_to_end(name: str) -> bool:
    return name in END_TO_END


def segment_of(latency: Latency) -> dict[str, Any]:
    return {"name": latency.name, "latency": plain_number(latency.latency_ms)}


def plain_number(value: float) -> float:
    return int(value) if abs(value) <= MAX_INTEGER and value == int(value) else value
