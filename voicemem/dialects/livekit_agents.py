"""The dialect `livekit-agents`: the events, items and text streams of LiveKit Agents.

`model_dump_json()` of each event of an `AgentSession`, items of its chat history, and text streams.

An item comes once it was played, so a later event may belong before it: `created_at` gives the order.

Instructions, images, identities and room names, which may hold a caller's number, are not kept; of an item only its
words, its time, and its tool call are.

Notes: `pending` (turn, first and last number of the items `~pN` that no item has replaced), `left` (likewise for the
previous turn, which was answered without its item), `pieces` (their count), `named` (the numbers of those whose item is
known, by its id), `turns` (when the newest turns began), `last` (the newest reply), `alone` (no utterance came after
it), `agents` (the newest agents, and since when), `speaker` (whom the recogniser heard in the turn that waits for its
item), `spoke` (when the user began to speak again before the item).
"""

import hashlib
import hmac
import json
import re
from base64 import urlsafe_b64decode
from collections.abc import Iterator, Mapping
from typing import Any

from voicemem.dialects.caller_fields import CallerFields
from voicemem.dialects.dialect import Dialect, Frame, Hook, MalformedFrame, RawFrame, Side, Text
from voicemem.dialects.kinds import Kind, Record, ignored, keep, kept, many, optional, record, require_object, typed
from voicemem.dialects.known import Known, Made
from voicemem.dialects.reading import names_someone, values
from voicemem.dialects.translating import begin_voice, end_with, latencies, plain, tool_call, tool_result
from voicemem.protocol.events import Asr, Interrupt, LlmCancel, LlmDelta, LlmDone, Resume, ToolResult
from voicemem.protocol.types import JsonObject

NEWEST_S = 100_000_000_000
"""Larger times are ms."""
SKEW_MS = 60_000
"""How far LiveKit's clock may be ahead."""
TRANSCRIPTION = "lk.transcription"
"""The topic of LiveKit's text streams."""
SPEAKING, LISTENING = "speaking", "listening"
"""The state of a user whose utterance begins."""
LATENCIES = {
    "transcription_delay": "asr_ttlw",
    "end_of_turn_delay": "end_of_turn_delay",
    "on_user_turn_completed_delay": "on_user_turn_completed_delay",
    "llm_node_ttft": "llm_ttft",
    "llm_node_ttfs": "llm_ttfs",
    "tts_node_ttfb": "tts_ttfb",
    "playback_latency": "playback_latency",
    "e2e_latency": "e2e",
}
"""LiveKit's names of latencies (in seconds), and ours."""
HANDOFF = "agent_handoff"
ITEMS = ("message", "function_call", "function_call_output", HANDOFF)
REPORT = "session_report"
"""The end of a session report, made by `split_report`."""
MAX_AGENTS = 8
ROOM = "room"
"""The channel of texts for clients of the room."""
NEAR_MS = 300
"""How far an item's start may differ from its turn's, as a realtime model's speech detection reports the latter."""
MAX_NAMED = 8
"""The most items whose words are known before they come."""
MAX_PENDING = 40
"""The most items of one turn that wait for LiveKit's; further words are added to the last one."""
MAX_TURNS = 50
"""The most turns whose start is kept."""
MAX_CALLS = 30
"""The most tool calls that one frame may report."""


def timed(texts: str, **others: Any) -> type[Record]:
    """Return the record type of an event or item; a history may lack times."""
    return typed(texts, **others, created_at=optional(float))


SPEAKING_TIMES = "started_speaking_at", "stopped_speaking_at"
NAMES = """
    new_state created_at is_final call_id item_id speaker_id new_agent_id function_call function_calls
    function_call_outputs
"""
JAVASCRIPT = {
    re.sub("_(.)", lambda letter: letter[1].upper(), name): name
    for name in (*NAMES.split(), *SPEAKING_TIMES, *LATENCIES)
}
"""LiveKit's names in JavaScript, and in Python."""
STATED: dict[str, Any] = dict.fromkeys((*SPEAKING_TIMES, *LATENCIES), optional(float))
Item = timed(
    "id role? new_agent_id? call_id? name? arguments? output?",
    content=optional(list[str]),
    interrupted=(bool, False),
    metrics=optional(record(**STATED)),
)
Call = record("call_id", name=(str, ""), arguments=(str, ""))
Output = record("call_id", output=(str, ""))
StreamText = record("topic role segment text", final=(bool, False))
"""`role` is ours: identities may be phone numbers."""


def ms(seconds: float | None) -> int | None:
    """Return a time in Unix ms; None for anything else."""
    if seconds is None or not 0 <= seconds < NEWEST_S * 1_000:
        return None
    return round(seconds if seconds >= NEWEST_S else seconds * 1_000)


def reduce(frame: RawFrame, side: Side | None = None) -> Frame | None:
    raw = require_object(frame)
    if raw.get("topic") == TRANSCRIPTION:
        return Frame(reduced_text(raw))
    name, _, content = keep(renamed(raw), KINDS)
    if content is None or content.get("new_state", SPEAKING) not in (SPEAKING, LISTENING):
        return None
    if name == REPORT:
        ended = ms(content.get("timestamp"))
        began = None if ended is None else ended - max(0, content.get("duration_ms") or 0)
        id, session_id = f"{REPORT}/{content['job_id']}", content["job_id"]
        return Frame(content, id, ended, session_id=session_id, end=content["reason"], began=began, ended=ended)
    return Frame(
        content,
        id=id_of(name, content),
        ts=ms(content.get("created_at")),
        end=content["reason"] if name == "close" else None,
    )


def split_report(body: JsonObject) -> Iterator[JsonObject]:
    """Yield the history's items in a session report, then the end of the call. Raises `MalformedFrame`."""
    history = body.get("chat_history")
    items = history.get("items") if isinstance(history, dict) else None
    if not isinstance(items, list) or not isinstance(body.get("job_id"), str):
        raise MalformedFrame("A session report has a job_id, and the items of its chat_history.")
    yield from (one for one in items if isinstance(one, dict) and isinstance(one.get("id"), str))
    reason = body.get("close_reason")
    reason = reason.removeprefix("CR_").lower() if isinstance(reason, str) and reason else "ended"
    about = {name: body.get(name) for name in ("job_id", "timestamp", "duration_ms")}
    yield {"type": REPORT, "reason": reason} | about


def verify(body: bytes, headers: Mapping[str, str], secret: str, now: int) -> bool:
    """Return whether a valid token for writing observations is signed with LiveKit's API secret."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    signed, _, signature = token.strip().rpartition(".")
    header, claims = (json.loads(decode_part(part)) for part in signed.split("."))
    expected = hmac.digest(secret.encode(), signed.encode(), hashlib.sha256)
    return (
        (scheme.lower(), header["alg"]) == ("bearer", "HS256")
        and hmac.compare_digest(expected, decode_part(signature))
        and claims["observability"]["write"] is True
        and claims.get("nbf", 0) * 1000 <= now + SKEW_MS
        and now < claims["exp"] * 1000
    )


def decode_part(part: str) -> bytes:
    """Decode a part of a JWT, whose base64 has no padding."""
    return urlsafe_b64decode(part + "=" * (-len(part) % 4))


def renamed(raw: Any) -> Any:
    """Rename the fields of LiveKit's JavaScript as in its Python, three levels deep."""
    frame = {JAVASCRIPT.get(key, key): value for key, value in raw.items()}
    for key in ("item", "metrics", "update", "function_call"):
        if isinstance(frame.get(key), dict):
            frame[key] = renamed(frame[key])
    for key in ("function_calls", "function_call_outputs"):
        if isinstance(frame.get(key), list):
            frame[key] = [renamed(one) if isinstance(one, dict) else one for one in frame[key] if one is not None]
    return frame


def with_texts(item: Any) -> Any:
    """Return an item with only its texts and audio transcripts; None if no one said it."""
    if not isinstance(item, dict):
        return item
    silent_roles = item.get("type") == "message" and item.get("role") not in ("user", "assistant")
    if silent_roles or item.get("type") not in ITEMS:
        return None  # an instruction, or a newer kind
    if not isinstance(item.get("content"), list):
        return item
    texts = [part.get("transcript") if isinstance(part, dict) else part for part in item["content"]]
    return item | {"content": [text for text in texts if text and isinstance(text, str)]}


def without_number(frame: JsonObject) -> JsonObject:
    """Return a transcript without a speaker name that is a telephone number."""
    speaker = frame.get("speaker_id")
    return frame | {"speaker_id": None} if isinstance(speaker, str) and not names_someone(speaker) else frame


def with_item(frame: JsonObject) -> JsonObject | None:
    item = with_texts(frame.get("item"))
    return None if item is None and frame.get("item") is not None else frame | {"item": item}


def reduced_text(raw: JsonObject) -> JsonObject:
    """Return a stream text, which may come as from LiveKit, or already reduced."""
    if "role" not in raw or "segment" not in raw:
        attributes = raw.get("attributes")
        if not isinstance(attributes, dict) or not isinstance(raw.get("identity"), str):
            raise MalformedFrame("A text of lk.transcription has the sender's identity, and the stream's attributes.")
        role = "agent" if is_agent(raw["identity"]) else "user"
        final = attributes.get("lk.transcription_final") in ("true", True)
        raw = raw | {"role": role, "segment": attributes.get("lk.segment_id"), "final": final}
    return kept(StreamText, raw)


def is_agent(identity: Any) -> bool:
    return isinstance(identity, str) and identity.startswith("agent")


def id_of(name: str, content: JsonObject) -> str | None:
    """Return an id that a repeat has too: an item comes once, and so does a transcript with one time."""
    item = content.get("item", content if name in ITEMS else None)
    if item is not None:
        return f"item/{item['id']}"
    created_at = content.get("created_at")
    if created_at is None:
        return None
    return f"{name}/{created_at}" if name != "user_input_transcribed" else f"{name}/{content['is_final']}/{created_at}"


def texts(frame: JsonObject) -> Iterator[Text]:
    if "topic" in frame:
        if frame["role"] == "agent":
            yield Text(frame, "text", "piece", item=frame["segment"], channel=ROOM)
        else:
            yield Text(frame, "text", "whole", "user", frame["segment"], frame.get("final", False), channel=ROOM)
    if frame.get("type") == "user_input_transcribed":
        yield Text(frame, "transcript", "whole", "user", final=frame["is_final"])
    item = frame.get("item", frame)
    content = item.get("content") or []
    if content and item.get("role") != "user":
        yield Text(None, "", "end", item=item["id"])
    for place in range(len(content)):
        if item.get("role") == "user":
            yield Text(content, place, "again", "user", f"{item['id']}/{place}")
        else:
            yield Text(content, place, "piece", item=item["id"])
    update = frame.get("update", {})
    calls = [item, update.get("function_call") or {}, *frame.get("function_calls", ())]
    for call in (*calls, *frame.get("function_call_outputs", ())):
        yield from values(call, "arguments", "output")


# Translation


def translate(frame: JsonObject, ts: int, known: Known) -> Made:
    return (show_text if "topic" in frame else KINDS[frame["type"]].rule)(frame, ts, known)


def open_utterance(frame: JsonObject, ts: int, known: Known) -> Made:
    """Reserve the turn of the user's utterance: with a realtime model its text comes after the reply."""
    known.note_voice(frame["new_state"] == SPEAKING, time_of(frame, ts))
    if frame["new_state"] == LISTENING:
        return
    pending: list[int] | None = known.notes.get("pending")
    if pending is not None:
        if not known.is_answered(pending[0]):
            known.note("spoke", time_of(frame, ts))
            return
        known.note("left", pending)
    number, turn = known.notes.get("pieces", 0) + 1, known.next_turn
    known.note_all(pending=[turn, number, number], pieces=number)
    note_turn(turn, time_of(frame, ts), known)
    yield Asr(item=f"~p{number}", text="", turn_id=turn)


def grow_utterance(frame: JsonObject, ts: int, known: Known) -> Made:
    """Handle the recogniser's words, until LiveKit's own item of the turn replaces them."""
    pending: list[int] | None = known.notes.get("pending")
    text, final, named = frame["transcript"], frame["is_final"], known.notes.get("named", {})
    number = named.get(frame.get("item_id"))
    if number is not None:  # a repeat of all its words
        yield Asr(item=f"~p{number}", text=text, final=final)
        return
    if pending is None:
        if not text:
            return
        number = known.notes.get("pieces", 0) + 1
        pending = [known.next_turn, number, number]
        note_turn(pending[0], known.notes.get("spoke", time_of(frame, ts)), known)
        known.note("spoke", None)
    turn, first, last = pending
    segment = known.segment(f"~p{last}")
    if segment is not None and segment.text and (segment.final or last in named.values()):
        if last - first < MAX_PENDING - 1:
            last += 1
        else:
            text, final = f"{segment.text} {text}", True
    said_by = frame.get("speaker_id") or known.notes.get("speaker")
    known.note_all(pending=[turn, first, last], pieces=last, speaker=said_by)
    if text and frame.get("item_id") is not None:
        known.note("named", dict([*named.items()][-MAX_NAMED + 1 :]) | {frame["item_id"]: last})
    yield Asr(item=f"~p{last}", text=text, final=final, turn_id=turn, user=frame.get("speaker_id"))


def add_item(frame: JsonObject, ts: int, known: Known) -> Made:
    """Handle a complete item of the history: an utterance, or a reply that was played."""
    item = frame.get("item", frame)
    at = time_of(item, ts)
    if item["type"] == HANDOFF:
        return hand_over(item, at, known)
    if item["type"] != "message":
        if not item.get("call_id"):
            return ()
        return call_tool(item, at, known) if item["type"] == "function_call" else (answer_tool(item, at, known),)
    text = "\n".join(item.get("content") or ())
    if item["role"] == "user":
        return finish_utterance(item, text, at, known)
    return finish_reply(item, text, at, time_of(frame, ts), known)


def finish_utterance(item: JsonObject, text: str, at: int, known: Known) -> Made:
    pending: list[int] | None = known.notes.get("pending")
    turn = known.turn_of(item["id"])
    is_new = turn is None
    if turn is None:
        began = ms(item.get("metrics", {}).get("started_speaking_at"))
        begin = at if began is None else min(at, began)
        # A realtime model's item has the time of the speech's start, a recogniser's a time after it.
        is_begin = item["id"] in known.notes.get("named", ()) or (began is not None and at <= began)
        near_ms = NEAR_MS if is_begin else 0
        has_begun_since = pending is not None and at + near_ms < begin_of(pending[0], known)
        if pending is not None and has_begun_since and not has_words_of(pending, item["id"], text, known):
            pending = None  # the user has begun to speak again
        turns: list[list[int]] = known.notes.get("turns", [])
        turn = known.next_turn if pending is None else pending[0]
        if pending is None and turns and begin < turns[-1][0]:  # it came late, after a later utterance
            turn = turn_at(begin, known) or turn
        note_turn(turn, begin, known)
        if known.notes.get("spoke", at) <= at + near_ms:
            known.note("spoke", None)
    yield from replace_pieces(item["id"], turn, pending, known)
    stopped = ms(item.get("metrics", {}).get("stopped_speaking_at"))
    said = known.said_by(at) if stopped is None else min(at, stopped)
    yield Asr(item=item["id"], text=text, final=True, turn_id=turn, ts=said, user=known.notes.get("speaker"))
    known.forget("silent", "speaker", "alone")
    yield from latencies(item.get("metrics", {}), LATENCIES, turn, at, 1_000)
    if is_new:
        yield from move_answer(turn, known)


def has_words_of(pending: list[int], item: str, text: str, known: Known) -> bool:
    """Return whether the pending texts belong to this item, by its id or its words."""
    _, first, last = pending
    pieces = [segment.text for number in range(first, last + 1) if (segment := known.segment(f"~p{number}"))]
    return known.notes.get("named", {}).get(item, 0) >= first or plain(" ".join(pieces)) == plain(text)


def replace_pieces(item: str, turn: int, pending: list[int] | None, known: Known) -> Made:
    """Withdraw the recogniser's texts of an utterance, now that its item has come."""
    left, named = known.notes.get("left"), known.notes.get("named", {})
    spans = [pending, left if left is not None and left[0] == turn else None]
    numbers = {number for span in spans if span is not None for number in range(span[1], span[2] + 1)}
    own, others = named.get(item), {name: number for name, number in named.items() if name != item}
    for number in sorted(numbers.difference(others.values()) | ({own} if own is not None else set())):
        yield Asr(item=f"~p{number}", text="", final=True)
    if own is not None:
        known.note("named", others or None)
    if pending is not None:
        known.note("pending", None)
    if spans[1] is not None:
        known.note("left", None)


def move_answer(turn: int, known: Known) -> Made:
    """Move the newest reply to the turn of an utterance that began before it but came after it.

    An interrupted reply stays: its heard text cannot be taken back.
    """
    last = known.notes.get("last")
    reply = None if last is None else known.reply(last)
    if reply is None or reply.cut != "no" or reply.turn >= turn or turn_at(reply.begun, known) != turn:
        return
    yield LlmCancel(item=last)
    stopped = {} if reply.ended is None else {"stopped_speaking_at": reply.ended / 1_000}
    moved = {"id": f"~{last}", "metrics": stopped}
    yield from finish_reply(moved, reply.text, reply.begun, reply.begun, known)


def finish_reply(item: JsonObject, text: str, at: int, added: int, known: Known) -> Made:
    """Handle a reply that was played; LiveKit may add an interrupted one again, under another id."""
    before = known.reply(known.notes.get("last")) if item.get("interrupted") and known.notes.get("alone") else None
    if before is not None and before.item != item["id"] and before.text == text:
        return
    turn, metrics = turn_at(at, known), item.get("metrics", {})
    agent = next((name for since, name in reversed(known.notes.get("agents", ())) if since <= at), None)
    yield LlmDone(item=item["id"], text=text, turn_id=turn, ts=at, agent=agent)
    began = ms(metrics.get("started_speaking_at"))
    yield from begin_voice(item["id"], began)
    yield from latencies(metrics, LATENCIES, turn, began or at, 1_000)
    known.note_all(last=item["id"], alone=True)
    if item.get("interrupted"):
        stopped = ms(item.get("metrics", {}).get("stopped_speaking_at"))
        end = added if stopped is None else stopped
        yield Interrupt(item=item["id"], heard_text=text, estimated=True, more=True, ts=end)


def hand_over(item: JsonObject, at: int, known: Known) -> Made:
    """Note that another agent speaks from now on."""
    if item.get("new_agent_id"):
        known.note("agents", sorted([*known.notes.get("agents", ()), [at, item["new_agent_id"]]])[-MAX_AGENTS:])
    return ()


def time_of(frame: JsonObject, ts: int) -> int:
    """Return LiveKit's own time of a frame; the times of items are on the same clock."""
    stated = ms(frame.get("created_at"))
    return ts if stated is None else stated


def execute_tools(frame: JsonObject, ts: int, known: Known) -> Made:
    started = frame.get("update", {}).get("function_call")
    for call in [started] if started else frame.get("function_calls", ())[:MAX_CALLS]:
        yield from call_tool(call, time_of(frame, ts), known)
    for output in frame.get("function_call_outputs", ())[:MAX_CALLS]:
        yield answer_tool(output, time_of(frame, ts), known)


def call_tool(call: JsonObject, at: int, known: Known) -> Made:
    """Yield a tool call once: from the event of its start, of its end, or from its item."""
    if call.get("name"):
        yield tool_call(call["call_id"], call["name"], call.get("arguments") or "", turn_at(at, known))


def answer_tool(output: JsonObject, at: int, known: Known) -> ToolResult:
    return tool_result(output["call_id"], output.get("output") or "", turn_at(at, known))


def resume(frame: JsonObject, ts: int, known: Known) -> Made:
    """Handle a resumed reply. Mostly LiveKit has not added it yet, and an older one must stay interrupted."""
    last = known.notes.get("last")
    reply = None if last is None else known.reply(last)
    if frame["resumed"] and reply is not None and reply.cut != "no" and reply.turn == known.here:
        yield Resume(item=last)


def show_text(frame: JsonObject, ts: int, known: Known) -> Made:
    """Handle a text for clients of the room: for the user the whole segment, for the agent the next piece."""
    segment, text, final = frame["segment"], frame["text"], frame.get("final", False)
    if frame["role"] == "agent":
        if text:
            yield LlmDelta(item=segment, text=text, turn_id=known.turn_of_answer(segment))
        if final:
            yield LlmDone(item=segment)
        return
    turn = known.turn_of(segment)
    yield Asr(item=segment, text=text, final=final, turn_id=known.utterance_turn() if turn is None else turn)


def note_turn(turn: int, begin: int, known: Known) -> None:
    """Note when a turn began: the earliest stated time counts."""
    turns = {noted: since for since, noted in known.notes.get("turns", ())}
    turns[turn] = min(begin, turns.get(turn, begin))
    known.note("turns", sorted([since, noted] for noted, since in turns.items())[-MAX_TURNS:])


def begin_of(turn: int, known: Known) -> int:
    """Return when a turn began; 0 if that is no longer kept."""
    return next((since for since, noted in known.notes.get("turns", ()) if noted == turn), 0)


def turn_at(at: int, known: Known) -> int:
    """Return the turn whose utterance began last before a time; 0 before any."""
    turns: list[list[int]] = known.notes.get("turns", [])
    before = [turn for since, turn in turns if since <= at]
    if before:
        return before[-1]
    return 0 if len(turns) < MAX_TURNS else turns[0][1]


KINDS: dict[str, Kind] = {
    "user_state_changed": Kind(None, timed("new_state"), open_utterance),
    "user_input_transcribed": Kind(
        None,
        timed("transcript speaker_id? item_id?", is_final=bool),
        grow_utterance,
        prepare=without_number,
    ),
    "conversation_item_added": Kind(None, timed("", item=Item), add_item, prepare=with_item),
    **dict.fromkeys(ITEMS, Kind(None, Item, add_item, prepare=with_texts)),
    "function_tools_executed": Kind(
        None,
        timed("", function_calls=(many(Call), []), function_call_outputs=(many(Output), [])),
        execute_tools,
    ),
    "tool_execution_updated": Kind(None, timed("", update=typed(function_call=optional(Call))), execute_tools),
    "agent_false_interruption": Kind(None, timed("", resumed=bool), resume),
    "close": Kind(None, timed("reason"), end_with("reason", "")),
    REPORT: Kind(
        None, typed("job_id reason", timestamp=optional(float), duration_ms=optional(int)), end_with("reason", "")
    ),
    **ignored(
        None,
        """
        agent_state_changed user_transcription_timeout overlapping_speech metrics_collected
        session_usage_updated speech_created error debug_message eot_prediction user_turn_exceeded
        agent_backchannel_opportunity agent_config_update
        """,
    ),
}
LIVEKIT_AGENTS = Dialect(
    name="livekit-agents",
    version=9,
    reduce=reduce,
    translate=translate,
    hook=Hook(verify=verify, frames=split_report),
    caller=CallerFields(
        user="identity speaker_id participant/identity",
        number="attributes/sip.phoneNumber participant/attributes/sip.phoneNumber",
        parties="identity speaker_id attributes participant",
        names_user=lambda frame: not is_agent(frame.get("identity")),
    ),
    texts=texts,
)
