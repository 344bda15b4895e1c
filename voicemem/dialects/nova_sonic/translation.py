"""What events of Nova Sonic's stream say, in events of `voicemem.v1`.

Notes: `rate` (of the audio, samples a second), `audio` (prompts whose audio has begun), `c:CONTENT` (of a content that
is open: the role and stage of its text, or AUDIO and the reply), `i:NAME` (the turn of a typed content, or the call
that a content has the result of), `t:CALL` (the turn of a tool call), `reply` (number of the newest reply), `prompt`
(that of the stream which it comes over), `over` (whether what comes next is another reply), `b:REPLY` (bytes of its
audio). What FINAL texts say is in `spoken`.
"""

from __future__ import annotations

from collections.abc import Callable

from voicemem.dialects.clock import interrupt_by_clock, playing_at
from voicemem.dialects.dialect import AUDIO_BYTES, Known, KnownReply, Made
from voicemem.dialects.nova_sonic.frames import EVENT
from voicemem.dialects.nova_sonic.spoken import confirm, is_confirmed, matches_any, note_block, unfinished
from voicemem.protocol.events import Asr, Interrupt, LlmDelta, LlmDone, MessageEvent, ToolCall, ToolResult, Tts
from voicemem.protocol.types import JsonObject

USUAL_RATE = 24_000
"""Samples a second of Nova's audio, of 16 bits each."""
KEPT = {"c:": 16, "i:": 8, "t:": 16, "b:": 4}
"""Notes of each kind that are kept, the newest."""
KEPT_PROMPTS = 4
USER, SPECULATIVE, FINAL, AUDIO, UNKNOWN = "U", "S", "F", "A", "?"


def translate(frame: JsonObject, ts: int, known: Known) -> Made:
    """The events of one frame."""
    ((name, body),) = frame[EVENT].items()
    if name == "audioOutput":
        return count_audio(body["contentId"], frame[AUDIO_BYTES], known)
    rule = RULES.get(name)
    return () if rule is None else rule(body, ts, known)


def closed(ts: int, known: Known) -> Made:
    """The replies that the caller had not heard to their end, where the app has not said more than Nova did."""
    for reply in unfinished(ts, known):
        if is_confirmed(reply, known) or not reply.has_playback:
            yield from stop_by_clock(reply, ts)


def stop_by_clock(reply: KnownReply, ts: int) -> Made:
    """Where the clock says that a reply stood; what FINAL texts have said by then counts more."""
    playing = playing_at(reply, ts)
    if playing is None:
        return
    if reply.complete and playing.is_over:
        yield Tts(item=reply.item, done=True, estimated=True, ts=playing.began + playing.total_ms)
    else:
        yield Interrupt(item=reply.item, audio_end_ms=playing.position_ms, estimated=True, ts=ts)


def note_one(key: str, value: object, known: Known) -> None:
    """Note something of a kind of which the newest are kept."""
    kind = key[:2]
    keys = [one for one in known.notes if one.startswith(kind) and one != key]
    for old in keys[: len(keys) + 1 - KEPT[kind]]:
        known.note(old, None)
    known.note(key, value)


# Contents


def start_content(body: JsonObject, ts: int, known: Known) -> Made:
    if "contentId" not in body:
        start_app_content(body, known)
        return
    id, role, kind = body["contentId"], body.get("role"), body["type"]
    if kind == "AUDIO":
        note_rate(body, ts, known)
        note_one(f"c:{id}", [AUDIO, current(known)], known)
    elif kind == "TEXT" and role == "USER":
        note_one(f"c:{id}", [USER, None], known)
        if known.turn_of(id) is None:
            yield Asr(item=id, text="", turn_id=utterance_turn(known))
    elif kind == "TEXT" and role == "ASSISTANT":
        stage = {"SPECULATIVE": SPECULATIVE, "FINAL": FINAL}.get(body.get("generationStage", ""), UNKNOWN)
        note_one(f"c:{id}", [stage, body.get("promptName")], known)


def start_app_content(body: JsonObject, known: Known) -> None:
    """Audio begins, and with it the call; what is typed after that was said; a result names its call."""
    name, prompt = body.get("contentName"), body.get("promptName")
    prompts: list[str] = known.notes.get("audio", [])
    if body["type"] == "AUDIO":
        if prompt not in prompts:
            known.note("audio", [*prompts, prompt][-KEPT_PROMPTS:])
    elif body["type"] == "TOOL":
        call = body.get("toolResultInputConfiguration", {}).get("toolUseId")
        note_one(f"i:{name}", call, known)
    elif prompt in prompts:
        note_one(f"i:{name}", -1, known)


def end_content(body: JsonObject, ts: int, known: Known) -> Made:
    id, reason = body["contentId"], body.get("stopReason")
    kind, _ = known.notes.get(f"c:{id}", [AUDIO if body.get("type") == "AUDIO" else UNKNOWN, None])
    known.note(f"c:{id}", None)
    if reason == "INTERRUPTED" and kind != USER:
        yield from cut(ts, known)
    elif reason == "END_TURN" and kind == AUDIO:
        yield from finish(known)


def end_completion(body: JsonObject, ts: int, known: Known) -> Made:
    if body.get("stopReason") == "INTERRUPTED":
        yield from cut(ts, known)
    yield from finish(known)


def note_rate(body: JsonObject, ts: int, known: Known) -> Made:
    rate = body.get("audioOutputConfiguration", {}).get("sampleRateHertz")
    if rate is not None and rate != known.notes.get("rate", USUAL_RATE):
        known.note("rate", rate)
    return ()


def take_text(body: JsonObject, ts: int, known: Known) -> Made:
    kind, prompt = known.notes.get(f"c:{body['contentId']}", [None, None])
    if body.get("interrupted"):
        return cut(ts, known)
    if "content" not in body:
        return ()
    text = body["content"]
    if kind == USER or (kind is None and body.get("role") == "USER"):
        return hear(body["contentId"], text, known)
    if kind == FINAL or (kind != SPECULATIVE and matches_any(text, known)):
        return confirm(text, ts, known)
    return speak(text, prompt, known)


# The user


def hear(item: str, text: str, known: Known) -> Made:
    """A block of what the user says; Nova gives no partials."""
    segment = known.segment(item)
    before = "" if segment is None or not segment.text else segment.text + " "
    turn = utterance_turn(known) if known.turn_of(item) is None else None
    if text.strip():
        yield from finish(known)
        yield Asr(item=item, text=before + text.strip(), final=True, turn_id=turn)


def utterance_turn(known: Known) -> int:
    """The turn of a new utterance: the same while nobody has answered."""
    return known.here if known.here and not known.is_answered(known.here) else known.next_turn


def take_typed(body: JsonObject, ts: int, known: Known) -> Made:
    """A text that is typed while the call runs; a long one comes in pieces, which stay in one turn."""
    name = body["contentName"]
    turn = known.notes.get(f"i:{name}")
    if isinstance(turn, int) and body["content"].strip():
        turn = known.next_turn if turn < 0 else turn
        yield from finish(known)
        note_one(f"i:{name}", turn, known)
        yield MessageEvent(role="user", text=body["content"], source="message", turn_id=turn)


# Replies


def current(known: Known) -> str:
    return f"~r{known.notes.get('reply', 0)}"


def speak(text: str, prompt: str | None, known: Known) -> Made:
    """The next sentence that Nova is going to say."""
    if not text.strip():
        return
    if known.notes.get("over", True) or (prompt is not None and prompt != known.notes.get("prompt")):
        yield from finish(known)
        known.note("reply", known.notes.get("reply", 0) + 1)
        known.note("prompt", prompt)
        known.note("over", False)
    item = current(known)
    reply = known.reply(item)
    before = "" if reply is None else reply.text
    gap = " " if before and not before[-1].isspace() and not text[0].isspace() else ""
    note_block(item, len(before + gap), audio_ms(known.notes.get(f"b:{item}", 0), known), known)
    yield LlmDelta(item=item, text=gap + text, turn_id=known.here if reply is None else None)


def finish(known: Known) -> Made:
    """Nova has said all of its reply, or somebody else speaks: what it says next is another one."""
    if known.notes.get("over", True):
        return
    known.note("over", True)
    reply = known.reply(current(known))
    if reply is not None and not reply.complete:
        yield LlmDone(item=reply.item)


def count_audio(content: str, count: int, known: Known) -> Made:
    _, item = known.notes.get(f"c:{content}", [AUDIO, current(known)])
    key = f"b:{item}"
    total = known.notes.get(key, 0) + count
    if key in known.notes:
        known.note(key, total)
    else:
        note_one(key, total, known)
    yield Tts(item=item, total_audio_ms=audio_ms(total, known))


def audio_ms(count: int, known: Known) -> int:
    rate: int = known.notes.get("rate", USUAL_RATE)
    return count * 500 // rate


def cut(ts: int, known: Known) -> Made:
    """The user interrupts: the reply that plays, and those that wait behind it."""
    known.note("over", True)
    for reply in unfinished(ts, known):
        if known.has_clock or reply.item == current(known):
            yield from cut_reply(reply, ts, known)


def cut_reply(reply: KnownReply, ts: int, known: Known) -> Made:
    assert reply.item is not None
    playing = playing_at(reply, ts) if known.has_clock else None
    is_over = playing is not None and playing.is_over
    if playing is not None and reply.has_playback and not is_over:
        yield Interrupt(item=reply.item, audio_end_ms=playing.position_ms, estimated=True)
    elif reply.item == current(known) or (playing is not None and not is_over):
        yield from interrupt_by_clock(known, reply.item, ts)


# Tools


def call_tool(body: JsonObject, ts: int, known: Known) -> Made:
    id = body["toolUseId"]
    note_one(f"t:{id}", known.here, known)
    arguments = body.get("content")
    yield ToolCall(
        id=f"call:{id}",
        call_id=id,
        name=body["toolName"],
        arguments={} if arguments is None else arguments,
        turn_id=known.here,
    )


def return_result(body: JsonObject, ts: int, known: Known) -> Made:
    """The result of a call, of which the beginning of the content says which it is."""
    id = known.notes.get(f"i:{body['contentName']}")
    if isinstance(id, str):
        turn = known.notes.get(f"t:{id}", known.here)
        yield ToolResult(id=f"result:{id}", call_id=id, result=body.get("content"), turn_id=turn)


Rule = Callable[[JsonObject, int, Known], Made]
RULES: dict[str, Rule] = {
    "contentStart": start_content,
    "contentEnd": end_content,
    "completionEnd": end_completion,
    "promptStart": note_rate,
    "textOutput": take_text,
    "textInput": take_typed,
    "toolUse": call_tool,
    "toolResult": return_result,
}
