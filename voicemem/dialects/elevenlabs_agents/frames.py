"""The kept frames of ElevenLabs Agents, and their fields.

Event numbers begin again in each conversation, and an app that reconnects has several conversations in one session. So
they are not frame ids; `translation` ignores repeats. Audio is counted, and the times of its characters become word
times. Frames of the webhook's transcript, made by `frames`, are kept too. Agent settings, the caller, and the app's
texts for the LLM are not.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from unicodedata import category

from voicemem.dialects.dialect import AUDIO_BYTES, MalformedFrame, Text, Texts
from voicemem.dialects.kinds import ANYTHING, kept, many, optional, record, require_object, typed
from voicemem.dialects.reading import LONGEST_MS, audio_bytes, is_recent, is_signed, speaker, values, whole
from voicemem.protocol.types import SPACELESS, JsonObject

ITEM = "post_call_transcription.item"
"""One item of a webhook's transcript."""
ENDED = "post_call_transcription.ended"
"""The end of the call, from the webhook."""
SIGNATURE = "elevenlabs-signature"
TOLERANCE_S = 30 * 60
"""How far from now a signature's time may be, as in ElevenLabs' own SDK."""
TRANSCRIPT = "post_call_transcription"
RUNNING = "initiated", "in-progress", "processing"
"""The `status` of conversations whose transcript is not complete."""
ALIGNED = ("chars", "char_start_times_ms", "char_durations_ms")


def counted(frame: JsonObject) -> JsonObject:
    """Reduce an audio frame to a byte count and the times of its words. Raises `MalformedFrame`."""
    if AUDIO_BYTES in frame:
        return frame
    event = require_object(frame.get("audio_event"))  # type: ignore[arg-type]
    content = {
        "type": frame["type"],
        AUDIO_BYTES: audio_bytes(event, "audio_base_64"),
        "event_id": event.get("event_id"),
    }
    alignment = event.get("alignment")
    lists = [alignment.get(name) for name in ALIGNED] if isinstance(alignment, dict) else [None]
    if all(isinstance(one, list) for one in lists):
        content["words"] = words_of(zip(*lists, strict=False)) or None
    return content


def words_of(times: Iterable[tuple[Any, Any, Any]]) -> list[tuple[str, int, int]]:
    """Return the words of a piece of audio, each with the white space after it, from characters and their times.

    A character without a time has that of the one before it.
    """
    words: list[tuple[str, int, int]] = []
    for char, start, duration in times:
        text, first_ms, last_ms = words[-1] if words else (" ", 0, 0)
        begin_ms = last_ms if whole(start, LONGEST_MS) is None else round(start)
        end_ms = begin_ms + (whole(duration, LONGEST_MS) or 0)
        if not isinstance(char, str):
            continue
        if words and not begins_word(text, char):
            # White space after a word does not count as speaking time.
            words[-1] = (text + char, first_ms, max(last_ms, end_ms) if char.strip() else last_ms)
        elif char:
            words.append((char, begin_ms, end_ms))
    return words


def begins_word(before: str, text: str) -> bool:
    """Return whether a text begins a new word; in a script without spaces, each character does."""
    if not text or text[0].isspace() or category(text[0]).startswith("M"):
        return False
    return before[-1:].isspace() or bool(SPACELESS.match(before[-1:]) or SPACELESS.match(text))


def texts(frame: JsonObject) -> Texts:
    match frame["type"]:
        case "tentative_user_transcript":
            event = frame["tentative_user_transcription_event"]
            return (Text(event, "user_transcript", "whole", "user", final=False),)
        case "user_transcript":
            return (Text(frame["user_transcription_event"], "user_transcript", "whole", "user"),)
        case "agent_response":
            return (Text(frame["agent_response_event"], "agent_response", "whole"),)
        case "agent_chat_response_part":
            part = frame["text_response_part"]
            return (Text(part, "text", "piece", item=str(part["event_id"])),)
        case "agent_response_correction":
            event = frame["agent_response_correction_event"]
            original = Text(event, "original_agent_response", "whole")
            return (original, Text(event, "corrected_agent_response", "whole", final=False))
        case "audio":
            return timed_words(frame)
        case "user_message" | "multimodal_message":
            holder = frame if frame["type"] == "user_message" else frame.get("text") or {}
            return (Text(holder, "text", "whole", "user"),) if holder.get("text") else ()
        case name if name == ITEM:
            return item_texts(frame)
    results = values(frame.get("agent_tool_response_full_payload", {}), "full_tool_result")
    return (*values(frame.get("client_tool_call", {}), "parameters"), *results, *values(frame, "result"))


def timed_words(frame: JsonObject) -> Iterator[Text]:
    words = frame["words"] = [[*word] for word in frame["words"]] if frame.get("words") else None
    if words is None:
        del frame["words"]
    for word in words or ():
        yield Text(word, 0, "piece", item=f"audio/{frame.get('event_id')}")


def item_texts(frame: JsonObject) -> Iterator[Text]:
    side = speaker(frame["role"])
    for key, final in (("original_message", True), ("message", side == "user")):
        if frame.get(key):
            item = f"{frame['conversation_id']}/{frame['index']}" if side == "user" else None
            yield Text(frame, key, "whole", side, item, final)
    for call in (*(frame.get("tool_calls") or ()), *(frame.get("tool_results") or ())):
        yield from values(call, "params_as_json", "result_value")


def verify(body: bytes, headers: Mapping[str, str], secret: str, now: int) -> bool:
    """Return whether a body was signed with this secret within the last half hour: `t=UNIX_SECONDS,v0=HEX`."""
    parts = [part.strip().partition("=") for part in headers.get(SIGNATURE, "").split(",")]
    stated = [value for name, _, value in parts if name == "t"]
    signed = [value for name, _, value in parts if name == "v0"]
    if not secret or len(stated) != 1 or not is_recent(stated[0], now, TOLERANCE_S):
        return False
    return is_signed(stated[0].encode() + b"." + body, secret, signed)


Data = record(
    "conversation_id",
    transcript=many(JsonObject),
    metadata=optional(record(start_time_unix_secs=optional(int), call_duration_secs=optional(int))),
)


def frames(body: JsonObject) -> Iterator[JsonObject]:
    """Yield one frame for each item of the transcript, and one for the end; none for other webhooks.

    Raises `MalformedFrame`.
    """
    if not isinstance(body.get("type"), str):
        raise MalformedFrame("A webhook has a type.")
    if body["type"] != TRANSCRIPT:
        return
    data = kept(Data, body.get("data"))
    id, transcript, call = data["conversation_id"], data["transcript"], data.get("metadata", {})

    def at(seconds: Any) -> int | None:
        start, is_time = call.get("start_time_unix_secs"), whole(seconds, LONGEST_MS // 1000) is not None
        return start * 1000 + round(seconds * 1000) if start is not None and is_time else None

    created = [whole(item.get("created_at_unix_ms")) for item in transcript]
    times = [
        at(item.get("time_in_call_secs")) if ms is None else ms for item, ms in zip(transcript, created, strict=True)
    ]
    for index, item in enumerate(transcript):
        until = times[index + 1] if index + 1 < len(times) else None
        yield item | {"type": ITEM, "conversation_id": id, "index": index, "ts": times[index], "until": until}
    yield {"type": ENDED, "conversation_id": id, "began": at(0), "ts": at(call.get("call_duration_secs"))}


def webhook_of(saved: JsonObject) -> JsonObject | None:
    """Return the webhook of a finished conversation from the API's form of it."""
    if "type" in saved or "conversation_id" not in saved:
        return saved
    is_over = saved.get("status") not in RUNNING and saved.get("transcript")
    return {"type": TRANSCRIPT, "data": saved} if is_over else None


UserText = record("user_transcript", event_id=int)
TypedText = typed("text?")
Correction = record("original_agent_response corrected_agent_response", event_id=int)
Audio = typed(
    audio_bytes=int,
    event_id=optional(int),
    # Words with the white space after them, and their times from the start of this audio.
    words=optional(list[tuple[str, int, int]]),
)
"""It has no id: counting a repeat only shifts an estimate, but ids would take memory."""
LATENCIES = {
    "convai_llm_service_ttfb": "llm_ttft",
    "convai_llm_service_ttf_sentence": "llm_ttfs",
    "convai_tts_service_ttfb": "tts_ttfb",
    "convai_asr_trailing_service_latency": "asr_ttlw",
    "convai_ttf_audio_since_silence": "e2e",
}
"""ElevenLabs' names of latencies (in seconds), and ours."""
STATED: dict[str, Any] = dict.fromkeys(LATENCIES, optional(record(elapsed_time=optional(float))))
Measured = record(**STATED)
Item = typed(
    "conversation_id role message? original_message? source_medium?",
    index=int,
    ts=optional(int),
    until=optional(int),
    interrupted=optional(bool),
    ignored_as_backchannel=optional(bool),
    source_event_id=optional(int),
    tool_calls=optional(many(record("request_id tool_name params_as_json?"))),
    tool_results=optional(many(record("request_id tool_name?", result_value=ANYTHING))),
    conversation_turn_metrics=optional(record("", Measured, metrics=optional(Measured))),
    agent_metadata=optional(record("agent_id?")),
)
"""An item of the transcript after the call; `ts` and `until` are the starts of it and of the next, Unix ms."""
