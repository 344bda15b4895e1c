"""The dialect `deepgram-agent`: Deepgram's Voice Agent API, version 1.

The agent's texts up to the user's next words are a reply `~rN`.

Binary frames are the agent's audio; only its bytes are counted. Of the settings only the format of that audio is kept:
no prompts, keys of other services, or function definitions.

Notes: `replies` (N), and for the current reply `begun`, `stopped` (`cut` or `over`), `last` (its last character),
`sent` (all of its audio has come), `bytes`, `since` (when its first words or audio came), `unvoiced` (ms of text whose
audio has not come), `audio_first` (its audio precedes its words), `asking` (a function was called since its words);
`rate` (bytes of audio a second), `until` (when all audio will have been played), `typed` (a text of the app that
Deepgram may repeat), `asked` (the ids of functions' last calls, by name).
"""

from collections.abc import Iterator
from itertools import islice
from typing import Any

from voicemem.dialects.caller_fields import CallerFields
from voicemem.dialects.dialect import AUDIO_BYTES, Dialect, Frame, MalformedFrame, RawFrame, Side, Text
from voicemem.dialects.kinds import ANYTHING, Kind, Typed, ignored, keep, many, named_by, optional, record, typed
from voicemem.dialects.known import Known, KnownReply, Made, Playing, spoken_ms
from voicemem.dialects.reading import byte_count, values
from voicemem.dialects.translating import latencies, space_between, tool_call, tool_result
from voicemem.protocol.events import Asr, Interrupt, LlmDelta, LlmDone, MessageEvent, Tts
from voicemem.protocol.types import MAX_INTEGER, JsonObject

CUT, OVER = "cut", "over"
"""Values of `stopped`: the reply was interrupted, and late words may come; or nothing more comes."""
OF_ONE_REPLY = ("begun", "stopped", "last", "sent", "bytes", "since", "unvoiced", "asking", "audio_first")
"""Notes about the current reply."""
REPLY = "reply"
"""The key of the current reply's texts."""
USUAL = 48_000
"""Bytes a second of the default format: 16 bits at 24 kHz."""
RATES = {"linear16": 24_000, "mulaw": 8_000, "alaw": 8_000}
"""Default samples a second of uncompressed formats."""
BIT_RATES = {"mp3": 48_000, "aac": 48_000, "opus": 12_000}
"""Default bits a second of compressed formats."""
MAX_PLAYING = 4
"""Replies that may wait to be played."""
MAX_ASKED = 32
"""Functions whose last call is remembered."""
INTERRUPTING = "interrupt"
"""The behaviour of an injected message that the agent says at once."""


def reduce(frame: RawFrame, side: Side | None = None) -> Frame | None:
    count = byte_count(frame)
    if count is not None:
        # The user's audio goes to Deepgram in binary frames too.
        is_agents = side != "app" and count
        return Frame({AUDIO_BYTES: count}, side="vendor", counts_audio=True) if is_agents else None
    name, kind, content = keep(frame, KINDS, side)
    if content is None or not has_content(content):
        return None
    return Frame(
        content,
        id=kind.id(content),
        side=kind.side,
        session_id=content.get("request_id"),
        typed=name == "InjectUserMessage",
    )


def request_id(content: JsonObject) -> str | None:
    ids = ",".join(call["id"] for call in content["functions"])
    return f"FunctionCallRequest/{ids}" if ids else None


def has_content(content: JsonObject) -> bool:
    """Return whether a frame has content worth a row. Raises `MalformedFrame`."""
    match content["type"]:
        case "ConversationText":
            if content["role"] not in ("user", "assistant"):
                raise MalformedFrame("A text of a conversation is the user's or the assistant's.")
            is_backchannel = content["role"] == "user" and content.get("conversational_behavior") == "backchannel"
            return bool(content["content"].strip()) and not is_backchannel
        case "InjectUserMessage":
            return bool(content["content"].strip())
        case "FunctionCallRequest":
            return bool(content["functions"])
    return True


def texts(frame: JsonObject) -> Iterator[Text]:
    match frame.get("type"):
        case "ConversationText" if frame["role"] == "assistant":
            yield Text(frame, "content", "piece", item=REPLY)
        case "ConversationText" | "InjectUserMessage":
            yield Text(frame, "content", "whole", "user")
            yield Text(None, "", "end", item=REPLY)
        case "SpeechInterrupted" if frame.get("text_spoken"):
            yield Text(frame, "text_spoken", "whole", final=False)
        case "FunctionCallRequest":
            for call in frame["functions"]:
                yield from values(call, "arguments")
        case "FunctionCallResponse":
            yield from values(frame, "content")


# The current reply: replies have no ids, so the user's words divide them


def reply_item(known: Known) -> str:
    return f"~r{known.notes.get('replies', 1)}"


def begin(known: Known) -> None:
    """Note words or audio of the current reply, or of the next one if it is over."""
    if known.notes.get("stopped") == OVER:
        next_reply(known)
    known.note("begun", True)


def next_reply(known: Known) -> None:
    """Begin another reply with the agent's next words."""
    if known.notes.get("begun"):
        known.note("replies", known.notes.get("replies", 1) + 1)
    known.forget(*OF_ONE_REPLY)


# The length of the audio: it arrives faster than it plays, and belongs to the newest reply


def note_format(frame: JsonObject, ts: int, known: Known) -> Made:
    """Note the bytes of audio a second; 0 if unknown."""
    output = (frame.get("audio") or {}).get("output") or {}
    encoding = output.get("encoding") or "linear16"
    if encoding in RATES:
        rate = (output.get("sample_rate") or RATES[encoding]) * (2 if encoding == "linear16" else 1)
    else:
        rate = (output.get("bitrate") or BIT_RATES.get(encoding, 0)) // 8
    known.note("rate", max(0, rate))
    return ()


def count_audio(frame: JsonObject, ts: int, known: Known) -> Made:
    rate = known.notes.get("rate", USUAL)
    if not rate:
        return
    begin(known)
    count = known.notes.get("bytes", 0)
    if known.has_clock:  # until when all audio plays
        if not count and "since" not in known.notes:
            known.note("since", ts)
        starts = max(ts, known.notes.get("until", ts)) if count else ts
        known.note("until", frame[AUDIO_BYTES] * 1000 // rate + starts)
    known.note_all(bytes=min(count + frame[AUDIO_BYTES], MAX_INTEGER), unvoiced=None)
    yield total_of(known)


def total_of(known: Known) -> Tts:
    """Return an event with the length of the newest reply's audio so far."""
    rate = known.notes.get("rate") or USUAL
    return Tts(item=reply_item(known), total_audio_ms=min(known.notes["bytes"] * 1000 // rate, MAX_INTEGER))


def playing(known: Known, reply: KnownReply, ts: int) -> Playing | None:
    """Return the playback of a reply at a time; without audio, by the length of its text."""
    if reply.item != reply_item(known):
        return reply.playing_at(ts)
    unvoiced_ms = known.notes.get("unvoiced", 0)
    by_audio = reply.playing_at(ts)
    if by_audio is not None:
        return Playing(by_audio.began, by_audio.position_ms, by_audio.total_ms + unvoiced_ms)
    since = known.notes.get("since")
    if since is None or not unvoiced_ms:
        return None
    return Playing(since, max(0, min(ts - since, unvoiced_ms)), unvoiced_ms)


# Translation


def translate(frame: JsonObject, ts: int, known: Known) -> Made:
    return (count_audio if AUDIO_BYTES in frame else KINDS[frame["type"]].rule)(frame, ts, known)


def closed(ts: int, known: Known) -> Made:
    yield from measure(known)
    yield from known.close_by_clock(ts, lambda item: item.startswith("~r"), playing)


def converse(frame: JsonObject, ts: int, known: Known) -> Made:
    """Handle a speaker's words; after the user's, the agent's next words are another reply."""
    if frame["role"] != "user":
        yield from speak(frame, ts, known)
        return
    text = frame["content"].strip()
    if text == known.notes.get("typed"):
        known.note("typed", None)
        return
    known.note("typed", None)
    yield from known.complete(reply_item(known))
    next_reply(known)
    yield Asr(text=text, final=True, turn_id=known.utterance_turn())


def type_text(frame: JsonObject, ts: int, known: Known) -> Made:
    yield from known.complete(reply_item(known))
    next_reply(known)
    known.note("typed", frame["content"].strip())
    yield MessageEvent(role="user", text=frame["content"], source="message")


def speak(frame: JsonObject, ts: int, known: Known) -> Made:
    """Handle the agent's words; after a function call they are another reply."""
    known.note("typed", None)
    if known.notes.get("asking"):
        yield from known.complete(reply_item(known))
        next_reply(known)
    begin(known)
    text, last = frame["content"].strip(), known.notes.get("last", "")
    if not last and known.notes.get("bytes"):
        known.note("audio_first", True)
    if not known.notes.get("audio_first"):  # the audio of this text is still to come
        known.note("unvoiced", known.notes.get("unvoiced", 0) + spoken_ms(text))
    if known.has_clock and "since" not in known.notes:
        known.note("since", ts)
    known.note("last", text[-1])
    # Words that arrive after the interruption of their audio were spoken before it.
    is_late = not last and known.notes.get("stopped") == CUT
    since = known.notes.get("since") if is_late else None
    yield LlmDelta(item=reply_item(known), text=space_between(last, text) + text, ts=since)
    if known.notes.get("sent") and known.notes.get("audio_first"):
        yield LlmDone(item=reply_item(known))


def finish_audio(frame: JsonObject, ts: int, known: Known) -> Made:
    """Handle the end of a reply's audio."""
    if known.notes.get("begun"):
        known.note("sent", True)
        if known.notes.get("bytes"):
            known.note("unvoiced", None)
            yield from measure(known, whole=True)
        yield from known.complete(reply_item(known))


def measure(known: Known, whole: bool = False) -> Made:
    """Report the audio's length again, if all words so far belong to it."""
    if known.has_clock and known.notes.get("bytes") and (whole or known.notes.get("audio_first")):
        yield total_of(known)


def interrupt(frame: JsonObject, ts: int, known: Known) -> Made:
    """Handle the user's speech, which stops playback. Without times, only audio still arriving counts as playing."""
    yield from measure(known)
    for reply in islice(known.open_replies(), MAX_PLAYING):
        if reply.item is None or not reply.item.startswith("~r"):
            continue
        if not known.has_clock and (reply.complete or reply.total_audio_ms is None):
            continue
        if is_spoken(reply, ts, known):
            yield LlmDone(item=reply.item)
            yield Tts(item=reply.item, done=True, estimated=True)
        else:
            yield from known.interrupt_by_clock(reply.item, ts, where=playing)
    if known.notes.get("begun") and not known.notes.get("stopped"):
        known.note("stopped", CUT if is_cut(ts, known) else OVER)
        if known.has_clock and known.notes.get("bytes") and known.reply(reply_item(known)) is None:
            # Its words have not arrived yet.
            left_ms = max(0, known.notes.get("until", ts) - ts)
            position_ms = max(0, (total_of(known).total_audio_ms or 0) - left_ms)
            yield Interrupt(item=reply_item(known), audio_end_ms=position_ms, estimated=True)
    known.note("until", None)


def is_cut(ts: int, known: Known) -> bool:
    """Return whether the current reply was unfinished when the user began to speak."""
    reply = known.reply(reply_item(known))
    if reply is None or not (reply.complete or is_spoken(reply, ts, known)):
        return True
    where = playing(known, reply, ts) if known.has_clock else None
    return where is not None and not where.is_over


def is_spoken(reply: KnownReply, ts: int, known: Known) -> bool:
    """Return whether a reply without audio is over, by the length of its text."""
    where = playing(known, reply, ts) if known.has_clock and reply.total_audio_ms is None else None
    return not reply.complete and where is not None and where.is_over


def say_next(frame: JsonObject, ts: int, known: Known) -> Made:
    """Handle the agent's start, which begins another reply after an interruption."""
    if known.notes.get("stopped") == CUT:
        known.note("stopped", OVER)
    return ()


def start_speaking(frame: JsonObject, ts: int, known: Known) -> Made:
    yield from say_next(frame, ts, known)
    yield from latencies(frame, LATENCIES, known.here, None, 1_000)


def report(frame: JsonObject, ts: int, known: Known) -> Made:
    """Handle the latencies of the current reply, which arrive once it is over."""
    reply = known.reply(reply_item(known))
    turn, begun = (known.here, None) if reply is None else (reply.turn, reply.begun)
    return latencies(frame, REPORTED, turn, begun, 1_000)


def inject(frame: JsonObject, ts: int, known: Known) -> Made:
    """Handle a text that the app has the agent say, perhaps in place of its current words."""
    if frame.get("behavior") == INTERRUPTING:
        yield from interrupt(frame, ts, known)
    yield from say_next(frame, ts, known)


def state_heard(frame: JsonObject, ts: int, known: Known) -> Made:
    """Handle the exact text spoken before a cut; it may be only the end of a reply."""
    spoken, number = frame.get("text_spoken"), known.notes.get("replies", 1)
    # The current reply, or the one before it if the user's words came first.
    newest = known.reply(f"~r{number}") or known.reply(f"~r{number - 1}")
    if spoken is None:
        yield from interrupt(frame, ts, known)
    if newest is None or spoken is None:
        return
    text = newest.text
    start = 0 if text.startswith(spoken.strip()) else max(0, text.rfind(spoken.strip()))
    heard = text[:start] + spoken if spoken.strip() else spoken
    if heard.strip() != text.strip():
        # `more`: the clock may say that it was over, but the vendor knows better.
        yield Interrupt(item=newest.item, heard_text=heard, more=True)


def call_functions(frame: JsonObject, ts: int, known: Known) -> Made:
    ids = {**known.notes.get("asked", {}), **{call["name"]: call["id"] for call in frame["functions"]}}
    known.note("asked", dict([*ids.items()][-MAX_ASKED:]))
    if known.notes.get("last"):
        known.note("asking", True)
    for call in frame["functions"]:
        yield tool_call(call["id"], call["name"], call.get("arguments", ""), known.here)


def answer_function(frame: JsonObject, ts: int, known: Known) -> Made:
    """Handle the result of a function, the app's or Deepgram's; the latter may lack the id."""
    name = frame["name"]
    id = frame.get("id") or known.notes.get("asked", {}).get(name) or f"~{name}"
    yield tool_result(id, frame.get("content"), known.here, name)


def connect(frame: JsonObject, ts: int, known: Known) -> Made:
    """Handle a new connection, which ends the reply of an earlier one."""
    yield from known.complete(reply_item(known))
    next_reply(known)


LATENCIES = {"total_latency": "e2e", "tts_latency": "tts_ttfb", "ttt_latency": "llm_ttft"}
"""Deepgram's names of latencies (in seconds), and ours."""
REPORTED = LATENCIES | {"stt_latency": "asr_ttlw", "ttt_text_latency": "llm_ttft"}
KINDS: dict[str, Kind] = {
    "Welcome": Kind("vendor", typed("request_id?"), connect, id=named_by("request_id")),
    "ConversationText": Kind("vendor", typed("role content conversational_behavior?"), converse),
    "UserStartedSpeaking": Kind("vendor", Typed, interrupt),
    "AgentThinking": Kind("vendor", Typed, say_next),
    "AgentStartedSpeaking": Kind("vendor", typed(**dict.fromkeys(LATENCIES, optional(float))), start_speaking),
    "LatencyReport": Kind("vendor", typed(**dict.fromkeys(REPORTED, optional(float))), report),
    "AgentAudioDone": Kind("vendor", Typed, finish_audio),
    "SpeechInterrupted": Kind("vendor", typed("text_spoken?"), state_heard),
    "FunctionCallRequest": Kind(
        "vendor", typed(functions=many(record("id name", arguments=(Any, "")))), call_functions, id=request_id
    ),
    "FunctionCallResponse": Kind(None, typed("name id?", content=ANYTHING), answer_function, id=named_by("id")),
    "Settings": Kind(
        "app",
        typed(
            audio=optional(
                record(output=optional(record("encoding?", sample_rate=optional(int), bitrate=optional(int))))
            )
        ),
        note_format,
    ),
    "InjectUserMessage": Kind("app", typed("content"), type_text),
    "InjectAgentMessage": Kind("app", typed("behavior?"), inject),
    **ignored(None, "History"),
    **ignored(
        "vendor",
        """
        Error FrustrationDetected FunctionCallCancelled InjectionRefused ListenUpdated PromptUpdated
        SettingsApplied SpeakUpdated ThinkLiveUpdated ThinkUpdated Warning __customFromThinkProvider
        """,
    ),
    **ignored(
        "app",
        """
        ForceEndTurn KeepAlive UpdateListen UpdatePrompt UpdateSpeak UpdateThink UpdateThink_Live
        __customToThinkProvider
        """,
    ),
}
DEEPGRAM_AGENT = Dialect(
    name="deepgram-agent",
    version=5,
    reduce=reduce,
    translate=translate,
    closed=closed,
    caller=CallerFields(user="metadata/user_id", number="metadata/from metadata/caller_id", parties="metadata"),
    texts=texts,
)
