"""The dialect `openai-realtime`: what frames of OpenAI's Realtime API say, in events of `voicemem.v1`.

Notes: `format` (bytes of audio a millisecond), `r:RESPONSE` (the items of a response, False for one that belongs to no
conversation), `i:ITEM` (the turn of an item that has not begun), `answering` (that of the newest reply, from its
announcement on), `a:ITEM` (its bytes of audio so far), `b:RESPONSE` (when its audio began to play, over WebRTC).
"""

from __future__ import annotations

from voicemem.dialects.clock import close_by_clock, interrupt_by_clock
from voicemem.dialects.dialect import (
    AUDIO_BYTES,
    Dialect,
    Known,
    KnownReply,
    Made,
    Translate,
)
from voicemem.dialects.openai_realtime.frames import reduce, texts
from voicemem.dialects.translating import tool_call, tool_result, utterance_turn
from voicemem.protocol.events import (
    Asr,
    Interrupt,
    LlmDelta,
    LlmDone,
    LlmError,
    MessageEvent,
    Tts,
    Word,
)
from voicemem.protocol.types import JsonObject

PCM_BYTES_PER_MS = 48
"""Of the usual format: 16 bits at 24 kHz."""
G711_BYTES_PER_MS = 8
KEPT_RESPONSES, KEPT_ITEMS = 8, 32


def translate(frame: JsonObject, ts: int, known: Known) -> Made:
    """The events of one frame."""
    rule = RULES.get(frame["type"])
    return () if rule is None or is_out_of_band(frame.get("response_id"), known) else rule(frame, ts, known)


def is_out_of_band(response_id: str | None, known: Known) -> bool:
    """Return whether a response belongs to no conversation, so that no one hears it."""
    return known.notes.get(f"r:{response_id}") is False


def closed(ts: int, known: Known) -> Made:
    """The replies that the caller had not heard to their end."""
    own = {item for key, items in known.notes.items() if key.startswith("r:") and items for item in items}
    return close_by_clock(known, ts, own.__contains__)


# The session


def note_format(frame: JsonObject, ts: int, known: Known) -> Made:
    """Note how many bytes of audio are a millisecond."""
    session = frame.get("session", {})
    output = session.get("audio", {}).get("output", {}).get("format", {})
    name = output.get("type") or session.get("output_audio_format")
    if name in ("audio/pcm", "pcm16"):
        rate = output.get("rate") or PCM_BYTES_PER_MS * 500
        known.note("format", max(1, rate * 2 // 1000))
    elif name is not None:
        known.note("format", G711_BYTES_PER_MS)
    return ()


# The user


def open_utterance(frame: JsonObject, ts: int, known: Known) -> Made:
    """Reserve the place of what the user says. Speech is not an interruption: the agent may be silent."""
    item = frame["item_id"]
    if known.turn_of(item) is None:
        yield Asr(item=item, text="", turn_id=new_turn(known))


def new_turn(known: Known) -> int:
    """The turn of a new utterance: another one, too, once a reply is announced."""
    return known.next_turn if known.notes.get("answering") == known.here else utterance_turn(known)


def grow_transcript(frame: JsonObject, ts: int, known: Known) -> Made:
    item, segment = frame["item_id"], known.segment(frame["item_id"])
    if segment is None or not segment.final:
        before = "" if segment is None else segment.text
        yield Asr(item=item, text=before + (frame.get("delta") or ""), turn_id=turn_of_speech(item, known))


def finish_transcript(frame: JsonObject, ts: int, known: Known) -> Made:
    item = frame["item_id"]
    yield Asr(item=item, text=frame.get("transcript") or "", final=True, turn_id=turn_of_speech(item, known))


def fail_transcript(frame: JsonObject, ts: int, known: Known) -> Made:
    """Return what had been recognised before the failure is all that will come."""
    segment = known.segment(frame["item_id"])
    if segment is not None and segment.text and not segment.final:
        yield Asr(item=frame["item_id"], text=segment.text, final=True)


def turn_of_speech(item: str, known: Known) -> int | None:
    """The turn for an item that was not announced; that of one that was is known."""
    return None if known.turn_of(item) is not None else new_turn(known)


# Items


def add_item(frame: JsonObject, ts: int, known: Known) -> Made:
    """A new item: of the user whole, of the agent as a link of the chain that says which turn it answers."""
    item = frame["item"]
    id = item.get("id")
    if id is None:
        return
    if item.get("role") == "user":
        yield from user_item(id, item, known)
    elif item["type"] == "function_call_output":
        if item.get("call_id"):
            yield tool_result(item["call_id"], item.get("output"), turn_after(frame, known), item=id)
    elif known.turn_of(id) is None:
        turn = turn_after(frame, known)
        known.note(f"i:{id}", turn)
        if item.get("role") == "assistant":
            known.note("answering", turn)


def finish_item(frame: JsonObject, ts: int, known: Known) -> Made:
    item = frame["item"]
    id = item.get("id")
    if id is None or item.get("role") == "user" or item["type"] == "function_call_output":
        return add_item(frame, ts, known)
    if frame.get("previous_item_id") and known.turn_of(id) is None and f"i:{id}" not in known.notes:
        known.note(f"i:{id}", turn_after(frame, known))
    return agent_item(id, item, known)


def user_item(id: str, item: JsonObject, known: Known) -> Made:
    """A typed text, or speech whose transcript is known already."""
    parts = item.get("content") or ()
    typed = "\n".join(part["text"] for part in parts if part.get("type") == "input_text" and part.get("text"))
    spoken = " ".join(part["transcript"] for part in parts if part.get("transcript"))
    if typed and known.turn_of(id) is None:
        yield MessageEvent(item=id, role="user", text=typed, source="message")
    elif spoken:
        segment = known.segment(id)
        if segment is None or not segment.final:
            yield Asr(item=id, text=spoken, final=True, turn_id=turn_of_speech(id, known))


def turn_after(frame: JsonObject, known: Known) -> int:
    """The turn of the item before, to which a reply belongs."""
    before = frame.get("previous_item_id")
    if before is None:
        return known.here
    turn = known.turn_of(before)
    noted: int | None = known.notes.get(f"i:{before}") if turn is None else turn
    return known.here if noted is None else noted


def turn_of_reply(item: str, known: Known) -> int | None:
    """The turn for the first event of a reply or tool call; None once it has begun."""
    if known.turn_of(item) is not None:
        return None
    turn: int = known.notes.get(f"i:{item}", known.here)
    known.note(f"i:{item}", None)
    return turn


def agent_item(id: str, item: JsonObject, known: Known) -> Made:
    """An item of the agent's that is complete: a reply with all of its text, or a call of a function."""
    if item["type"] == "function_call":
        if item.get("status") in (None, "completed") and item.get("call_id") and item.get("name"):
            turn, arguments = turn_of_reply(id, known), item.get("arguments") or ""
            yield tool_call(item["call_id"], item["name"], arguments, turn, item=id)
        return
    if item.get("role") != "assistant":
        return
    reply = known.reply(id)
    text = "".join(part.get("transcript") or part.get("text") or "" for part in item.get("content") or ())
    if reply is None:
        if text:
            yield LlmDone(item=id, text=text, turn_id=turn_of_reply(id, known))
    elif not reply.complete:
        # The item of a reply that was cancelled may have less than was sent of it.
        yield LlmDone(item=id, text=text if len(text) > len(reply.text) else None)


# Responses


def begin_response(frame: JsonObject, ts: int, known: Known) -> Made:
    response = frame["response"]
    out_of_band = response.get("conversation_id", "") is None
    forget_old(known)
    known.note(f"r:{response.get('id')}", False if out_of_band else [])
    return ()


def forget_old(known: Known) -> None:
    """Keep notes of the newest responses and items only, so that the format of the audio is never crowded out."""
    for prefix, most in (("r:", KEPT_RESPONSES), ("b:", KEPT_RESPONSES), ("i:", KEPT_ITEMS), ("a:", KEPT_ITEMS)):
        keys = [key for key in known.notes if key.startswith(prefix)]
        for key in keys[:-most]:
            known.note(key, None)


def note_item(frame: JsonObject, known: Known) -> None:
    """Note that an item belongs to its response."""
    key = f"r:{frame.get('response_id')}"
    items = known.notes.get(key) or []
    if frame["item_id"] not in items:
        known.note(key, [*items, frame["item_id"]])


def grow_reply(frame: JsonObject, ts: int, known: Known) -> Made:
    note_item(frame, known)
    item = frame["item_id"]
    yield LlmDelta(item=item, text=frame["delta"], turn_id=turn_of_reply(item, known))


def count_audio(frame: JsonObject, ts: int, known: Known) -> Made:
    note_item(frame, known)
    item = frame["item_id"]
    count = known.notes.get(f"a:{item}", 0) + frame[AUDIO_BYTES]
    known.note(f"a:{item}", count)
    yield Tts(item=item, total_audio_ms=count // known.notes.get("format", PCM_BYTES_PER_MS))


def time_word(frame: JsonObject, ts: int, known: Known) -> Made:
    note_item(frame, known)
    begin_ms = frame["audio_offset_ms"]
    word = Word(frame["text"], begin_ms, begin_ms + frame["audio_duration_ms"])
    yield Tts(item=frame["item_id"], words=(word,))


def finish_output_item(frame: JsonObject, ts: int, known: Known) -> Made:
    return agent_item(frame["item"]["id"], frame["item"], known) if frame["item"].get("id") else ()


def finish_response(frame: JsonObject, ts: int, known: Known) -> Made:
    """The items of a response, what came of it, and whether the user cut it short."""
    response = frame["response"]
    if is_out_of_band(response.get("id"), known) or response.get("conversation_id", "") is None:
        return
    items: list[str] = known.notes.get(f"r:{response.get('id')}") or []
    output = response.get("output") or []
    for item in output:
        if item.get("id"):
            yield from agent_item(item["id"], item, known)
    for item in items:
        known.note(f"a:{item}", None)
    replies = [item for item in items if known.reply(item) is not None]
    if response.get("status") == "cancelled" and replies:
        if truncated(known.reply(replies[-1])):
            return
        reason = (response.get("status_details") or {}).get("reason")
        yield from interrupt_by_clock(known, replies[-1], ts, reason)
    elif response.get("status") == "failed":
        error = (response.get("status_details") or {}).get("error") or {}
        code = error.get("code") or error.get("type")
        last = replies[-1] if replies else None
        yield LlmError(item=last, code=code, turn_id=known.here if last is None else None)


def truncated(reply: KnownReply | None) -> bool:
    """Return whether the app has stated where it stopped to play a reply."""
    return reply is not None and reply.cut == "exact"


# Playback


def truncate(frame: JsonObject, ts: int, known: Known) -> Made:
    """The app stopped playing: the one exact position that there is. Both sides say it, and it counts once."""
    item, end_ms = frame["item_id"], max(0, frame["audio_end_ms"])
    reply = known.reply(item)
    total_ms = None if reply is None else reply.total_audio_ms
    is_over = reply is not None and reply.complete and total_ms is not None and end_ms >= total_ms
    if is_over:
        yield Tts(item=item, audio_ms=end_ms)
    # `more`: the clock may have said that the reply was over, and the app knows better.
    yield Interrupt(id=f"truncate:{item}:{end_ms}", item=item, audio_end_ms=end_ms, more=not is_over)


def start_playing(frame: JsonObject, ts: int, known: Known) -> Made:
    if known.has_clock:
        known.note(f"b:{frame['response_id']}", ts)
    for item in playing_items(frame, known):
        yield Tts(item=item, audio_ms=0)


def stop_playing(frame: JsonObject, ts: int, known: Known) -> Made:
    for item in playing_items(frame, known):
        yield Tts(item=item, done=True)


def clear_playing(frame: JsonObject, ts: int, known: Known) -> Made:
    """The server stopped to play over WebRTC; what it had played is known by the clock."""
    items = playing_items(frame, known)
    began = known.notes.get(f"b:{frame['response_id']}")
    if not items:
        return
    if began is None or not known.has_clock or len(items) > 1:
        yield from interrupt_by_clock(known, items[-1], ts, "cleared")
    else:
        yield Interrupt(item=items[-1], audio_end_ms=max(0, ts - began), estimated=True, cause="cleared")


def playing_items(frame: JsonObject, known: Known) -> list[str]:
    """The items of a response whose audio the server plays."""
    return known.notes.get(f"r:{frame['response_id']}") or []


RULES: dict[str, Translate] = {
    "session.created": note_format,
    "session.updated": note_format,
    "session.update": note_format,
    "input_audio_buffer.speech_started": open_utterance,
    "input_audio_buffer.committed": open_utterance,
    "conversation.item.added": add_item,
    "conversation.item.done": finish_item,
    "conversation.item.input_audio_transcription.delta": grow_transcript,
    "conversation.item.input_audio_transcription.completed": finish_transcript,
    "conversation.item.input_audio_transcription.failed": fail_transcript,
    "response.created": begin_response,
    "response.output_audio_transcript.delta": grow_reply,
    "response.output_text.delta": grow_reply,
    "response.output_audio.delta": count_audio,
    "response.audio_timestamp.delta": time_word,
    "response.output_item.done": finish_output_item,
    "response.done": finish_response,
    "conversation.item.truncate": truncate,
    "conversation.item.truncated": truncate,
    "output_audio_buffer.started": start_playing,
    "output_audio_buffer.stopped": stop_playing,
    "output_audio_buffer.cleared": clear_playing,
}


OPENAI_REALTIME = Dialect(
    name="openai-realtime", version=2, reduce=reduce, translate=translate, closed=closed, texts=texts
)
