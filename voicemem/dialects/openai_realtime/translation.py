"""The dialect `openai-realtime`: OpenAI's Realtime API, and Azure OpenAI, Azure Voice Live, xAI, Inworld.

The beta's names are converted to today's. Audio is counted. Of a session only its id and audio format are kept; of
items, the words of a user or the agent, and tool calls: functions of the app, and tools that the vendor calls itself
(`mcp_call`, searches). A translation session has no items: the speech is `~in:N`, its translation `~out:N`, and a pause
begins the next.

Notes: `format` (bytes of audio a millisecond), `r:RESPONSE` (the items of a response, False for one that belongs to no
conversation), `i:ITEM` (the turn of an item that has not begun), `answering` (the turn of the newest reply, from its
announcement on), `a:ITEM` (its bytes of audio so far), `b:RESPONSE` (when its audio began to play, over WebRTC),
`g:ITEM` (a reply that the app has added, which was not spoken), `session` (its beginning was seen), `written` (the
newest replies that are texts without audio), `active` (the current response), `t:ITEM` (the text that the app has
typed so far), `in`, `out` (N, and when its last words came), `keyed` (the turn of keys), `spoken`, `given`, `found`
(`give`).
"""

from collections.abc import Iterable

from voicemem.dialects.caller_fields import CallerFields
from voicemem.dialects.dialect import AUDIO_BYTES, Dialect, Frame, RawFrame, Side
from voicemem.dialects.kinds import Kind, event, event_id, ignored, keep
from voicemem.dialects.known import MAX_NOTED, Known, KnownReply, Made, Playing, bounded
from voicemem.dialects.openai_realtime import frames
from voicemem.dialects.reading import LONGEST_MS, audio_bytes
from voicemem.dialects.translating import end_with, pressed, timed_words, tool_call, tool_result
from voicemem.protocol.events import Asr, Interrupt, LlmDelta, LlmDone, LlmError, MessageEvent, Tts, Word
from voicemem.protocol.types import JsonObject

PCM_BYTES_PER_MS = 48
"""The rate of the default format: 16 bits at 24 kHz."""
G711_BYTES_PER_MS = 8
KEPT_RESPONSES, KEPT_ITEMS, KEPT_TEXTS = 8, 32, 2
PAUSE_MS = 1_000
"""The shortest silence between two utterances in a translation session."""


def reduce(frame: RawFrame, side: Side | None = None) -> Frame | None:
    name = frame.get("type") if isinstance(frame, dict) else None
    if isinstance(frame, dict) and isinstance(name, str) and name in frames.RENAMED:
        frame = frame | {"type": frames.RENAMED[name]}
    name, kind, content = keep(frame, KINDS, side)
    if content is None:
        return None
    typed = False
    if kind.record is frames.ItemFrame:
        content["item"] = frames.said_item(content["item"])
        parts = content["item"].get("content") or ()
        typed = content["item"].get("role") == "user" and any(part.get("type") == "input_text" for part in parts)
    elif kind.record is frames.Done and "output" in content["response"]:
        content["response"]["output"] = [frames.said_item(item) for item in content["response"]["output"]]
    return Frame(
        content,
        id=event_id(content, kind.side),
        side=kind.side,
        session_id=content.get("session", {}).get("id") if name == "session.created" else None,
        end="closed" if name == "session.closed" else None,
        typed=typed,
        counts_audio=kind.record is frames.AudioDelta,
    )


# Translation


def translate(frame: JsonObject, ts: int, known: Known) -> Made:
    return () if is_out_of_band(frame.get("response_id"), known) else KINDS[frame["type"]].rule(frame, ts, known)


def is_out_of_band(response_id: str | None, known: Known) -> bool:
    """Return whether a response belongs to no conversation, so that no one hears it."""
    return known.notes.get(f"r:{response_id}") is False


def closed(ts: int, known: Known) -> Made:
    own = {item for key, items in known.notes.items() if key.startswith("r:") and items for item in items}
    yield from known.settle_given()
    if "out" in known.notes:
        yield from known.complete(f"~out:{known.notes['out'][0]}")
    yield from known.close_by_clock(ts, own.__contains__, playing)


def playing(known: Known, reply: KnownReply, ts: int) -> Playing | None:
    """Return the playback of a reply at a time; a text reply has none."""
    return None if reply.item in known.notes.get("written", ()) else reply.playing_at(ts)


def begin_session(frame: JsonObject, ts: int, known: Known) -> Made:
    yield from known.connect()
    note_format(frame, ts, known)
    known.note("session", True)


def note_format(frame: JsonObject, ts: int, known: Known) -> Made:
    session = frame.get("session", {})
    output = session.get("audio", {}).get("output", {}).get("format", {})
    name = output.get("type") or session.get("output_audio_format")
    if name in ("audio/pcm", "pcm16"):
        rate = output.get("rate") or PCM_BYTES_PER_MS * 500
        known.note("format", max(1, rate * 2 // 1000))
    elif name is not None:
        known.note("format", G711_BYTES_PER_MS)
    return ()


def open_utterance(frame: JsonObject, ts: int, known: Known) -> Made:
    """Reserve the place of the user's words. Speech is not an interruption: the agent may be silent."""
    item = frame["item_id"]
    yield from known.settle_given()
    if known.turn_of(item) is None:
        yield Asr(item=item, text="", turn_id=new_turn(known))


def stop_speech(frame: JsonObject, ts: int, known: Known) -> Made:
    return known.end_speech(frame["item_id"], ts)


def commit(frame: JsonObject, ts: int, known: Known) -> Made:
    """Handle the end of the user's speech; without speech detection, nothing else shows its time."""
    item = frame["item_id"]
    yield from open_utterance(frame, ts, known)
    segment = known.segment(item)
    if known.turn_of(item) is None:
        yield Asr(item=item, text="", start_ms=0, end_ms=0)
    elif segment is not None and not segment.has_end:
        yield from known.end_speech(item, ts)


def new_turn(known: Known) -> int:
    """Return the turn of a new utterance: a new one as soon as a reply is announced."""
    return known.next_turn if known.notes.get("answering") == known.here else known.utterance_turn()


def transcribe(frame: JsonObject, ts: int, known: Known) -> Made:
    """Handle a piece of a transcript, or all of it; after a failure, the pieces so far are all of it."""
    item, kind = frame["item_id"], frame["type"].removeprefix(frames.TRANSCRIBED)
    segment = known.segment(item)
    before, turn = "" if segment is None else segment.text, known.turn_of_speech(item, new_turn(known))
    if kind == "completed":
        text, phrases = frame.get("transcript") or "", frame.get("phrases") or ()
        language = next((one["locale"] for one in phrases if one.get("locale")), None)
        words = timed_words(text, spans_of(phrases))
        yield Asr(item=item, text=text, final=True, turn_id=turn, words=words, language=language)
    elif segment is not None and segment.final:
        return
    elif kind == "delta":
        yield Asr(item=item, text=before + (frame.get("delta") or ""), turn_id=turn)
    elif before:
        yield Asr(item=item, text=before, final=True)


def spans_of(phrases: Iterable[JsonObject]) -> list[tuple[int, int]]:
    """Return the start and end of each word of phrases; none starts before the first."""
    words = [word for phrase in phrases for word in phrase.get("words") or ()]
    begins = [max(words[0]["offset_milliseconds"], word["offset_milliseconds"]) for word in words]
    return [(begin, begin + max(0, word["duration_milliseconds"])) for begin, word in zip(begins, words, strict=True)]


def add_item(frame: JsonObject, ts: int, known: Known) -> Made:
    """Handle a new item: the user's is complete; the agent's links to the item before it, which gives its turn."""
    item = frame["item"]
    id = item.get("id")
    if id is None:
        return
    if item.get("role") == "user":
        yield from user_item(id, item, ts, known)
    elif item["type"] == "function_call_output":
        if item.get("call_id"):
            yield tool_result(item["call_id"], item.get("output"), turn_after(frame, known), item=id)
    elif known.turn_of(id) is None:
        is_whole = any(part.get("text") or part.get("transcript") for part in item.get("content") or ())
        if item.get("role") == "assistant" and is_whole and "active" not in known.notes:
            known.note(f"g:{id}", True)
            known.note("given", None)
        elif item.get("role") == "assistant":
            yield from open_place(frame.get("previous_item_id"), known)
        turn = turn_after(frame, known)
        known.note(f"i:{id}", turn)
        if item.get("role") == "assistant" and f"g:{id}" not in known.notes:
            known.note("answering", turn)


def open_place(item: str | None, known: Known) -> Made:
    """Reserve a place for the words that a reply answers, if the stream was joined after their announcement."""
    is_unknown = item is not None and known.turn_of(item) is None and f"i:{item}" not in known.notes
    if is_unknown and not known.notes.get("session") and (not known.here or known.is_answered(known.here)):
        turn = new_turn(known)
        known.note(f"i:{item}", turn)
        yield Asr(item=item, text="", turn_id=turn)


def finish_item(frame: JsonObject, ts: int, known: Known) -> Made:
    item = frame["item"]
    id = item.get("id")
    if id is None or item.get("role") == "user" or item["type"] == "function_call_output":
        return add_item(frame, ts, known)
    if frame.get("previous_item_id") and known.turn_of(id) is None and f"i:{id}" not in known.notes:
        known.note(f"i:{id}", turn_after(frame, known))
    return () if f"g:{id}" in known.notes else agent_item(id, item, known)


def user_item(id: str, item: JsonObject, ts: int, known: Known) -> Made:
    """Handle a typed text, which may be history, or speech whose transcript is already known."""
    parts = item.get("content") or ()
    typed = "\n".join(part["text"] for part in parts if part.get("type") == "input_text" and part.get("text"))
    spoken = " ".join(part["transcript"] for part in parts if part.get("transcript"))
    if typed.strip() and known.turn_of(id) is None and f"i:{id}" not in known.notes:
        if "spoken" not in known.notes:
            turn = known.give(typed, id, ts)
            known.note(f"i:{id}", known.next_turn if turn is None else turn)
            return
        yield MessageEvent(item=id, role="user", text=typed, source="message")
    elif spoken:
        segment = known.segment(id)
        if segment is None or not segment.final:
            yield Asr(item=id, text=spoken, final=True, turn_id=known.turn_of_speech(id, new_turn(known)))


def turn_after(frame: JsonObject, known: Known) -> int:
    """Return a reply's turn: that of the item before it, or of keys pressed since, which have no item."""
    before = frame.get("previous_item_id")
    if before is None:
        return known.here
    turn = known.turn_of(before)
    noted: int | None = known.notes.get(f"i:{before}") if turn is None else turn
    return known.here if noted is None else max(noted, known.notes.get("keyed", noted))


def turn_of_reply(item: str, known: Known) -> int | None:
    """Return the turn for the first event of a reply or tool call; None once it has begun."""
    if known.turn_of(item) is not None:
        return None
    turn: int = known.notes.get(f"i:{item}", known.here)
    known.note(f"i:{item}", None)
    return turn


def agent_item(id: str, item: JsonObject, known: Known) -> Made:
    """Handle a complete item of the agent's: a reply with all of its text, or a function call."""
    if item["type"] == "function_call":
        if item.get("status") in (None, "completed") and item.get("call_id") and item.get("name"):
            turn, arguments = turn_of_reply(id, known), item.get("arguments") or ""
            yield tool_call(item["call_id"], item["name"], arguments, turn, item=id)
        return
    if item["type"] in frames.CALLED:
        yield from served_tool(id, item, known)
    if item.get("role") != "assistant":
        return
    reply = known.reply(id)
    text = "".join(part.get("transcript") or part.get("text") or "" for part in item.get("content") or ())
    if reply is None:
        if text:
            yield LlmDone(item=id, text=text, turn_id=turn_of_reply(id, known))
    elif not reply.complete:
        # The item of a cancelled reply may have less text than its deltas.
        yield LlmDone(item=id, text=text if len(text) > len(reply.text) else None)


def served_tool(id: str, item: JsonObject, known: Known) -> Made:
    """Handle a tool that the vendor called, with its result or error."""
    name = item.get("name") or item["type"].removesuffix("_call")
    turn, queries = turn_of_reply(id, known), item.get("queries")
    yield tool_call(id, name, item.get("arguments") or ({"queries": queries} if queries else ""), turn, item=id)
    results = [item.get("output"), item.get("results"), item.get("status")]
    result = next((one for one in results if one is not None), None)
    if item.get("error") is not None:
        result = {"error": item["error"]}
    if result is not None:
        yield tool_result(id, result, turn, item=id)


def begin_response(frame: JsonObject, ts: int, known: Known) -> Made:
    response = frame["response"]
    out_of_band = response.get("conversation_id", "") is None
    if not out_of_band:
        yield from known.settle_given()
    # Only the newest notes stay, so that the audio format is never dropped.
    kept = {"r:": KEPT_RESPONSES, "b:": KEPT_RESPONSES, "i:": KEPT_ITEMS, "a:": KEPT_ITEMS, "g:": KEPT_ITEMS}
    for prefix, most in kept.items():
        known.keep_newest(prefix, most)
    known.note(f"r:{response.get('id')}", False if out_of_band else [])
    known.note("active", None if out_of_band else response.get("id"))


def note_item(frame: JsonObject, known: Known) -> None:
    key = f"r:{frame.get('response_id')}"
    items = known.notes.get(key) or []
    if frame["item_id"] not in items:
        known.note(key, [*items, frame["item_id"]])


def grow_reply(frame: JsonObject, ts: int, known: Known) -> Made:
    note_item(frame, known)
    item = frame["item_id"]
    written = known.notes.get("written", [])
    if frame["type"] == frames.WRITTEN and item not in written:
        known.note("written", [*written, item][-KEPT_RESPONSES:])
    is_new = known.reply(item) is None
    yield LlmDelta(item=item, text=frame["delta"], turn_id=turn_of_reply(item, known))
    began = known.notes.get(f"b:{frame.get('response_id')}")
    if is_new and began is not None:
        yield Tts(item=item, audio_ms=0, ts=began)


def count_audio(frame: JsonObject, ts: int, known: Known) -> Made:
    note_item(frame, known)
    item = frame["item_id"]
    count = known.notes.get(f"a:{item}", 0) + frame[AUDIO_BYTES]
    known.note(f"a:{item}", count)
    yield Tts(item=item, total_audio_ms=count // known.notes.get("format", PCM_BYTES_PER_MS))


def time_word(frame: JsonObject, ts: int, known: Known) -> Made:
    note_item(frame, known)
    begin_ms, length_ms = frame["audio_offset_ms"], frame["audio_duration_ms"]
    if begin_ms <= LONGEST_MS:
        yield Tts(item=frame["item_id"], words=(Word(frame["text"], begin_ms, begin_ms + max(0, length_ms)),))


def finish_output_item(frame: JsonObject, ts: int, known: Known) -> Made:
    return agent_item(frame["item"]["id"], frame["item"], known) if frame["item"].get("id") else ()


def finish_response(frame: JsonObject, ts: int, known: Known) -> Made:
    """Handle the end of a response: its items, its status, and whether the user cut it short."""
    response = frame["response"]
    if is_out_of_band(response.get("id"), known) or response.get("conversation_id", "") is None:
        return
    known.note("active", None)
    items: list[str] = known.notes.get(f"r:{response.get('id')}") or []
    output = response.get("output") or []
    for item in output:
        if item.get("id"):
            yield from agent_item(item["id"], item, known)
    for item in items:
        known.note(f"a:{item}", None)
    replies = [item for item in items if known.reply(item) is not None]
    if response.get("status") == "cancelled" and replies:
        last = known.reply(replies[-1])
        if last is not None and last.cut == "exact":  # the app has stated where it stopped playing
            return
        reason = (response.get("status_details") or {}).get("reason")
        yield from known.interrupt_by_clock(replies[-1], ts, reason, playing)
    elif response.get("status") == "failed":
        error = (response.get("status_details") or {}).get("error") or {}
        code = error.get("code") or error.get("type")
        item = replies[-1] if replies else None
        yield LlmError(item=item, code=code, turn_id=known.here if item is None else None)


def truncate(frame: JsonObject, ts: int, known: Known) -> Made:
    """Handle the app's stop of playback, the only exact position. Both sides send it, and it counts once."""
    item, end_ms = frame["item_id"], frame.get("audio_end_ms")
    reply = known.reply(item)
    if end_ms is None:
        yield from known.interrupt_by_clock(item, ts, where=playing)
        return
    end_ms = max(0, end_ms)
    total_ms = None if reply is None else reply.total_audio_ms
    is_over = reply is not None and reply.complete and total_ms is not None and end_ms >= total_ms
    if is_over:
        yield Tts(item=item, audio_ms=end_ms)
    # `more`: the clock may say that the reply was over, but the app knows better.
    yield Interrupt(id=f"truncate:{item}:{end_ms}", item=item, audio_end_ms=end_ms, more=not is_over)


def play(frame: JsonObject, ts: int, known: Known) -> Made:
    """Handle the start or the end of the server's playback of a response."""
    is_over = frame["type"] == "output_audio_buffer.stopped"
    if known.has_clock and not is_over:
        known.note(f"b:{frame['response_id']}", ts)
    for item in known.notes.get(f"r:{frame['response_id']}") or []:
        yield Tts(item=item, done=True) if is_over else Tts(item=item, audio_ms=0)


def clear_playing(frame: JsonObject, ts: int, known: Known) -> Made:
    """Handle the server's stop of playback over WebRTC; the position is known by the clock."""
    items = known.notes.get(f"r:{frame['response_id']}") or []
    began = known.notes.get(f"b:{frame['response_id']}")
    if not items:
        return
    if began is None or not known.has_clock or len(items) > 1:
        yield from known.interrupt_by_clock(items[-1], ts, "cleared")
    else:
        yield Interrupt(item=items[-1], audio_end_ms=max(0, ts - began), estimated=True, cause="cleared")


def type_text(frame: JsonObject, ts: int, known: Known) -> Made:
    """Handle a text that the app streams into an item."""
    key = f"t:{frame['id']}"
    before = known.notes.get(key, "")
    if "delta" in frame:
        known.note_newest(key, bounded(before + frame["delta"], MAX_NOTED // 2), KEPT_TEXTS)
        return
    known.note(key, None)
    if before.strip() and known.turn_of(frame["id"]) is None:
        yield from known.settle_given()
        yield MessageEvent(item=frame["id"], role="user", text=before, source="message")


def press_key(frame: JsonObject, ts: int, known: Known) -> Made:
    yield from known.settle_given()
    turn = known.utterance_turn()
    known.note("keyed", turn)
    yield pressed(frame["event"], turn)


# Translation sessions


def hear_original(frame: JsonObject, ts: int, known: Known) -> Made:
    """Handle speech; it is a new utterance after a pause, once the translation of the previous one has begun."""
    at = frame.get("elapsed_ms", ts)
    number, newest = known.notes.get("in", (0, at))
    if not number or (at - newest >= PAUSE_MS and known.reply(f"~out:{number}") is not None):
        number += 1
    item = f"~in:{number}"
    known.note("in", [number, at])
    segment = known.segment(item)
    text = frame["delta"].lstrip() if segment is None else segment.text + frame["delta"]
    yield Asr(item=item, text=text, final=True, turn_id=None if segment else known.utterance_turn())


def translate_speech(frame: JsonObject, ts: int, known: Known) -> Made:
    """Handle a translation; after a pause it is that of the newest utterance."""
    at, said = frame.get("elapsed_ms", ts), known.notes.get("in", (0, 0))[0]
    number, newest = known.notes.get("out", (said, at))
    if at - newest >= PAUSE_MS and said > number:
        yield from known.complete(f"~out:{number}")
        number = said
    item = f"~out:{number}"
    known.note("out", [number, at])
    text, turn = frame["delta"], known.turn_of(f"~in:{number}")
    if known.reply(item) is None:
        text = text.lstrip()
    if text:
        yield LlmDelta(item=item, text=text, turn_id=known.here if turn is None else turn)


KINDS: dict[str, Kind] = {
    "session.created": Kind("vendor", frames.SessionFrame, begin_session),
    "session.updated": Kind("vendor", frames.SessionFrame, note_format),
    "input_audio_buffer.speech_started": Kind("vendor", frames.NamedItem, open_utterance),
    "input_audio_buffer.speech_stopped": Kind("vendor", frames.NamedItem, stop_speech),
    "input_audio_buffer.committed": Kind("vendor", frames.NamedItem, commit),
    "conversation.item.added": Kind("vendor", frames.ItemFrame, add_item),
    "conversation.item.done": Kind("vendor", frames.ItemFrame, finish_item),
    "conversation.item.retrieved": Kind("vendor", frames.ItemFrame),
    **dict.fromkeys(
        (f"{frames.TRANSCRIBED}delta", f"{frames.TRANSCRIBED}completed", f"{frames.TRANSCRIBED}failed"),
        Kind("vendor", frames.Transcript, transcribe),
    ),
    "conversation.item.truncated": Kind("vendor", frames.Truncation, truncate),
    "response.created": Kind("vendor", event(response=frames.Response), begin_response),
    "response.done": Kind("vendor", frames.Done, finish_response),
    "response.output_audio_transcript.delta": Kind("vendor", frames.Delta, grow_reply),
    "response.output_text.delta": Kind("vendor", frames.Delta, grow_reply),
    "response.output_audio.delta": Kind(
        "vendor", frames.AudioDelta, count_audio, prepare=lambda raw: raw | {AUDIO_BYTES: audio_bytes(raw, "delta")}
    ),
    "response.audio_timestamp.delta": Kind(
        "vendor",
        event("item_id text response_id?", audio_offset_ms=int, audio_duration_ms=int),
        time_word,
    ),
    "response.output_item.done": Kind("vendor", frames.ItemFrame, finish_output_item),
    "output_audio_buffer.started": Kind("vendor", frames.NamedResponse, play),
    "output_audio_buffer.stopped": Kind("vendor", frames.NamedResponse, play),
    "output_audio_buffer.cleared": Kind("vendor", frames.NamedResponse, clear_playing),
    frames.KEY: Kind("vendor", event("event"), press_key),
    frames.INPUT: Kind("vendor", frames.Translated, hear_original),
    "session.output_transcript.delta": Kind("vendor", frames.Translated, translate_speech),
    "session.closed": Kind("vendor", event(), end_with("reason", "closed")),
    "session.update": Kind("app", frames.SessionFrame, note_format),
    "conversation.item.truncate": Kind("app", frames.Truncation, truncate),
    "input_text.delta": Kind("app", event("id delta"), type_text),
    "input_text.done": Kind("app", event("id"), type_text),
    # The vendor's frames that are not about the transcript, or repeat it.
    **ignored(
        "vendor",
        """
        conversation.created conversation.item.deleted conversation.item.input_audio_transcription.segment error
        input_audio_buffer.cleared session.output_audio.delta
        input_audio_buffer.timeout_triggered mcp_list_tools.completed mcp_list_tools.failed
        mcp_list_tools.in_progress rate_limits.updated response.content_part.added response.content_part.done
        response.function_call_arguments.delta response.function_call_arguments.done response.mcp_call.completed
        response.mcp_call.failed response.mcp_call.in_progress response.mcp_call_arguments.delta
        response.mcp_call_arguments.done response.output_audio.done response.output_audio_transcript.done
        response.output_item.added response.output_text.done response.audio_timestamp.done
        response.animation_blendshapes.delta response.animation_blendshapes.done response.animation_viseme.delta
        response.animation_viseme.done session.avatar.connecting session.avatar.switch_to_speaking
        session.avatar.switch_to_idle response.video.delta response.web_search_call.searching
        response.web_search_call.in_progress response.web_search_call.completed
        response.file_search_call.searching response.file_search_call.in_progress
        response.file_search_call.completed response.audio_transcript.annotation.added
        response.invocation.delta warning transcription_session.created transcription_session.updated
        """,
    ),
    # The app's frames without meaning, or that the vendor repeats once it has accepted them.
    **ignored(
        "app",
        """
        conversation.item.create conversation.item.delete conversation.item.retrieve input_audio_buffer.append
        input_audio_buffer.clear input_audio_buffer.commit output_audio_buffer.clear response.cancel
        response.create session.avatar.connect session.close session.input_audio_buffer.append
        input_audio.turn.start input_audio.turn.append input_audio.turn.end input_audio.turn.cancel
        input_audio.clear mcp_approval_response transcription_session.update
        """,
    ),
}
OPENAI_REALTIME = Dialect(
    name="openai-realtime",
    version=6,
    reduce=reduce,
    translate=translate,
    closed=closed,
    caller=CallerFields(user="session/metadata/user_id session/safety_identifier", parties="session/metadata"),
    texts=frames.texts,
)
