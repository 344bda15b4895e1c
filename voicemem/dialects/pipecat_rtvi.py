"""The dialect `pipecat-rtvi`: Pipecat's RTVI messages to clients, of protocol 2.2, and of 1.x with `spoken`.

A reply `~rN` is the segments up to the next LLM request, joined by spaces.

Notes: `reply` (number of the newest reply), `turn` (of its LLM request), `llm` (the LLM is generating it), `segments`
(the newest segments: number of the reply, and where in its text they begin), `heard` (heard characters of the newest
reply, if no segment has them), `utterance` (number of the open or last utterance), `input` (`user-input` is sent),
`speaking` (audio is playing), `words` (the TTS has word times), `cut` (when a reply was cut, until the user or the bot
speaks), `output` (`bot-output` is sent), `held` (sentences that may come as `bot-output` too), `spoke` (when the user
began to speak during them), `voice` (when a voice began whose text has not come), `vad` (speech detection is sent).
"""

from collections.abc import Iterator
from hashlib import blake2b

from msgspec.structs import replace

from voicemem.dialects.caller_fields import CallerFields
from voicemem.dialects.dialect import Dialect, Frame, MalformedFrame, RawFrame, Side, Text
from voicemem.dialects.kinds import (
    ANYTHING,
    Kind,
    ignored,
    kept,
    kind_of,
    many,
    optional,
    record,
    require_object,
    translation,
)
from voicemem.dialects.known import MAX_NOTED, Known, KnownReply, Made, MadeEvent, bounded
from voicemem.dialects.reading import digest, names_someone, unix_ms, values
from voicemem.dialects.translating import pressed, space_between, tool_call, tool_result
from voicemem.protocol.events import Asr, Interrupt, LlmDelta, LlmDone, MessageEvent, Tts
from voicemem.protocol.types import JsonObject

LABEL = "rtvi-ai"
SAID = "said"
"""The key of the current reply's words, which have no ids."""
BEGINS_REPLY = ("bot-ready", "bot-llm-started", "bot-interrupted")
MAX_SEGMENTS = 50
"""The most segments whose place in their reply is kept."""
KEYS = ("dtmf", "dtmf-input")
DETECTED = "vad-user-stopped-speaking"
LATE_MS = 300
"""How long after an interruption earlier output may still arrive."""
PIECES = ("word", "token")
"""1.x's types of output for parts of a segment."""
Nothing = record()
"""A message with only a type."""
UserInput = record("text input_type? user_id? msg_id? timestamp?", final=(bool, True))
FunctionCall = record("tool_call_id function_name?", arguments=ANYTHING, args=ANYTHING)
"""`args` is 1.x's name."""
FunctionResult = record("tool_call_id function_name?", result=ANYTHING, cancelled=(bool, False))


def reduce(frame: RawFrame, side: Side | None = None) -> Frame | None:
    raw = require_object(frame)
    if raw.get("label") != LABEL:
        raise MalformedFrame(f"A frame of this dialect has the label {LABEL}.")
    name, kind = kind_of(raw, KINDS, side)
    if kind.record is None:
        return None
    content: JsonObject = {"label": LABEL, "type": name}
    if kind.record is not Nothing:
        content["data"] = kept(kind.record, require_object(raw.get("data", {})))
    data = content.get("data", {})
    if name == "send-text" and isinstance(raw.get("id"), str):
        content["id"] = raw["id"]
    if "user_id" in data and not names_someone(data["user_id"]):
        del data["user_id"]
    chat = content.get("id", data.get("msg_id"))
    typed = name == "send-text" or data.get("input_type") == "chat"
    id = f"{name}/{data['tool_call_id']}" if "tool_call_id" in data else None
    if typed:  # both sides send it
        id = None if chat is None else f"chat/{chat}"
    return Frame(content, id=id, ts=unix_ms(data.get("timestamp")), side=kind.side, typed=typed)


def texts(frame: JsonObject) -> Iterator[Text]:
    name, data = frame["type"], frame.get("data", {})
    match name:
        case "user-input" | "user-transcription":
            channel = "" if name == "user-input" else name
            yield Text(data, "text", "whole", "user", final=data.get("final", True), channel=channel)
        case _ if name in KEYS:
            for place in range(len(data.get("buttons") or ())):
                yield Text(data["buttons"], place, "piece", "user", KEYS[0])
            if data.get("button"):
                yield Text(data, "button", "piece", "user", KEYS[0])
        case "send-text":
            yield Text(data, "content", "whole", "user")
        case "bot-output":
            yield from output_texts(data)
        case "bot-transcription":
            yield Text(data, "text", "whole", channel=name)
        case _ if name in BEGINS_REPLY:
            yield Text(None, "", "end", item=SAID)
    yield from values(data, "arguments", "args", "result")


def output_texts(data: JsonObject) -> Iterator[Text]:
    """Yield a segment's text, which is repeated while it is spoken; older servers repeat a sentence or its words."""
    if (data.get("output_type") or data.get("aggregated_by")) in PIECES:
        yield Text(data, "text", "word", item=SAID)
        return
    segment = data.get("segment_id")
    item = blake2b(data["text"].encode(), digest_size=8).hexdigest() if segment is None else str(segment)
    if data.get("spoken_progress", {}).get("accumulated_text"):
        yield Text(data["spoken_progress"], "accumulated_text", "sentence", item=item, final=False)
    yield Text(data, "text", "sentence", item=item)


# Translation


def closed(ts: int, known: Known) -> Made:
    """Report the reply that played when the caller left; without word times its last sentence is unknown."""
    if "held" in known.notes:
        yield from say_held(ts, ts, known)
    elif is_amid_sentence(known):
        yield Interrupt(item=newest(known), more=True, ts=ts)


def start_session(frame: JsonObject, ts: int, known: Known) -> Made:
    """Handle a new bot, perhaps after another one: its segment numbers start again, and the other's reply is over."""
    yield from interrupt(frame, ts, known)
    for note in ("segments", "speaking", "cut"):
        known.note(note, None)


def new_turn(known: Known) -> int:
    """Return the turn of a new utterance: a new one even if a reply is being spoken whose text has not come."""
    is_answered = "held" in known.notes and "speaking" in known.notes
    return known.next_turn if is_answered else known.utterance_turn()


def open_utterance(frame: JsonObject, ts: int, known: Known) -> Made:
    """Reserve the place of the user's words, because their text may come after the answer has begun."""
    if "held" in known.notes and known.notes.get("speaking"):
        known.note("spoke", ts)
    item = f"~u{known.notes.get('utterance', 0)}"
    segment, turn = known.segment(item), known.turn_of(item)
    if segment is None or segment.final or turn is None or (not segment.text and known.is_answered(turn)):
        number = known.notes.get("utterance", 0) + 1
        known.note("utterance", number)
        item = f"~u{number}"
        yield Asr(item=item, text="", turn_id=known.turn_of_speech(item, new_turn(known)))
    elif not segment.text:  # a noise or "uh-huh" was mistaken for the beginning
        yield Asr(item=item, text="", final=True)
        yield Asr(item=item, text="")


def stop_speech(frame: JsonObject, ts: int, known: Known) -> Made:
    """Handle the user's stop; if speech detection is sent too, its time is earlier than the end of the turn."""
    is_detected = frame["type"] == DETECTED
    if is_detected and "vad" not in known.notes:
        known.note("vad", True)
    if is_detected or "vad" not in known.notes:
        yield from known.end_speech(f"~u{known.notes.get('utterance', 0)}", ts)


def take_input(frame: JsonObject, ts: int, known: Known) -> Made:
    data = frame["data"]
    if not known.notes.get("input"):
        known.note("input", True)
    if data.get("input_type") == "chat":
        yield from typed_text(data.get("msg_id"), data["text"], data.get("user_id"), known)
    elif data.get("input_type") != "backchannel":
        yield from hear(data, known)


def take_transcription(frame: JsonObject, ts: int, known: Known) -> Made:
    """Servers before 1.13 send this alone, later ones as well as `user-input`."""
    return () if known.notes.get("input") else hear(frame["data"], known)


def hear(data: JsonObject, known: Known) -> Made:
    """Handle a recognised text: an item lasts from its first partial to its final."""
    number = known.notes.get("utterance", 0)
    segment = known.segment(f"~u{number}")
    if segment is None or segment.final:
        if not data["text"]:
            return
        number += 1
        known.note_all(utterance=number, cut=None)
    item, final = f"~u{number}", data.get("final", True)
    turn = known.turn_of_speech(item, new_turn(known))
    yield Asr(item=item, text=data["text"], final=final, turn_id=turn, user=data.get("user_id"))


def send_text(frame: JsonObject, ts: int, known: Known) -> Made:
    return typed_text(frame.get("id"), frame["data"]["content"], None, known)


def press_keys(frame: JsonObject, ts: int, known: Known) -> Made:
    """Handle keys that the user pressed, in order."""
    data = frame["data"]
    keys = "".join(data.get("buttons") or ()) or data.get("button")
    if keys:
        yield pressed(keys, known.utterance_turn())


def typed_text(item: str | None, text: str, user: str | None, known: Known) -> Made:
    if text and (item is None or known.turn_of(item) is None):
        yield MessageEvent(item=item or None, role="user", text=text, source="message", user=user)


def newest(known: Known) -> str:
    return f"~r{known.notes.get('reply', 0)}"


def start_llm(frame: JsonObject, ts: int, known: Known) -> Made:
    if "held" in known.notes:
        yield from say_held(ts, None, known)
    begin_reply(known, generating=True)


def begin_reply(known: Known, generating: bool) -> None:
    known.note_all(reply=known.notes.get("reply", 0) + 1, turn=known.here, llm=generating, heard=0, cut=None)


def stop_llm(frame: JsonObject, ts: int, known: Known) -> Made:
    """End the generation: its text comes as output later, when it is spoken."""
    known.note("llm", False)
    if known.reply(newest(known)) is not None:
        yield LlmDone(item=newest(known))


def take_output(frame: JsonObject, ts: int, known: Known) -> Made:
    data = frame["data"]
    if not known.notes.get("output"):
        known.note_all(output=True, held=None)
    if data.get("will_be_spoken") is False or not data["text"].strip():
        return ()
    status = data.get("spoken_status")
    if (data.get("output_type") or data.get("aggregated_by")) in PIECES:
        heard = hear_next(data["text"].strip(), known, is_word=True) if data.get("spoken", True) else None
        return () if heard is None else (heard,)
    return take_sentence(data, ts, known) if status is None else take_segment(data, status, ts, known)


def take_segment(data: JsonObject, status: str, ts: int, known: Known) -> Made:
    """Handle a segment: at the start of its audio, with each of its words, or once it was spoken."""
    id, segments = data.get("segment_id"), known.notes.get("segments", {})
    key = f"~{digest(data['text'])}" if id is None else str(id)
    if status != "completed" and not known.notes.get("words"):
        known.note("words", True)
    place = None if id is None and status == "new" else segments.get(key)
    if place is None:
        item, before, made = append(data["text"], ts, known)
        place = [known.notes["reply"], len(before)]
        kept = list(segments.items())[-MAX_SEGMENTS + 1 :]
        known.note("segments", dict(kept) | {key: place})
        yield from made
    else:
        item = f"~r{place[0]}"
        before = known.text_of(item)[: place[1]]
    if id is None and status == "completed":  # another segment may have the same text
        known.note("segments", {name: one for name, one in known.notes["segments"].items() if name != key})
    spoken = data["text"] if status == "completed" else data.get("spoken_progress", {}).get("accumulated_text", "")
    yield Tts(item=item, heard_text=before + spoken if spoken else before.rstrip())


def append(text: str, ts: int, known: Known) -> tuple[str, str, list[MadeEvent]]:
    """Return the reply of a new segment, the reply's text before it, and the events that add it."""
    reply = known.reply(newest(known))
    if "reply" not in known.notes or (reply is not None and is_over(reply, ts, known)):
        begin_reply(known, generating=False)
        reply = None
    item, before = newest(known), "" if reply is None else reply.text
    gap = space_between(before, text)
    turn = None if reply is not None else known.notes.get("turn", known.here)
    made: list[MadeEvent] = [LlmDelta(item=item, text=gap + text, turn_id=turn)]
    if reply is None and "voice" in known.notes:
        made.append(Tts(item=item, audio_ms=0, ts=known.notes["voice"]))
        known.note("voice", None)
    if not known.notes.get("llm"):
        made.append(LlmDone(item=item))
    return item, before + gap, made


def is_over(reply: KnownReply, ts: int, known: Known) -> bool:
    """Return whether words without the LLM are another reply: this one was cut, or heard before the user spoke."""
    cut = known.notes.get("cut")
    is_late = cut is not None and (not known.has_clock or ts - cut <= LATE_MS)
    return (reply.cut != "no" and not is_late) or (reply.turn != known.here and reply.heard)


def take_sentence(data: JsonObject, ts: int, known: Known) -> Made:
    """Handle a sentence of 1.x: sent when it was generated, and again when it was spoken, unless words were."""
    if not data.get("spoken"):
        return append(data["text"], ts, known)[2]
    heard = hear_next(data["text"], known)
    if heard is not None:
        return (heard,)
    item, before, made = append(data["text"], ts, known)
    known.note("heard", len(before) + len(data["text"]))
    return [*made, Tts(item=item, heard_text=before + data["text"])]


def hear_next(piece: str, known: Known, is_word: bool = False) -> Tts | None:
    """Report the newest reply as heard up to the next occurrence of a text; None if there is none."""
    text = known.text_of(newest(known))
    start = text.find(piece, known.notes.get("heard", 0))
    if start < 0:
        return None
    if is_word and not known.notes.get("words"):
        known.note("words", True)
    known.note("heard", start + len(piece))
    return Tts(item=newest(known), heard_text=text[: start + len(piece)])


def hold_sentence(frame: JsonObject, ts: int, known: Known) -> Made:
    """Hold a sentence of the LLM. Most servers send it again as `bot-output` before they speak it."""
    text = frame["data"]["text"]
    if not known.notes.get("output") and text:
        known.note("held", bounded(f"{known.notes.get('held', '')} {text}".lstrip(), MAX_NOTED))
    return ()


def say_held(ts: int, cut: int | None, known: Known) -> Made:
    """Record held sentences that did not come as `bot-output`; if the user cut them, the clock says what was heard."""
    text, since = known.notes["held"], known.notes.get("speaking")
    known.note("held", None)
    item, _, made = append(text, ts, known)
    yield from (replace(one, ts=since) if known.has_clock and since else one for one in made)
    if not since:  # none of it was spoken
        yield Interrupt(item=item, heard_text="", more=True)
    elif cut is not None:
        position_ms = max(0, cut - since) if known.has_clock else None
        yield Interrupt(item=item, audio_end_ms=position_ms, estimated=position_ms is not None, more=True, ts=cut)


def note_speaking(frame: JsonObject, ts: int, known: Known) -> Made:
    has_begun = frame["type"] == "bot-started-speaking"
    if "held" in known.notes and not has_begun:
        yield from say_held(ts, known.notes.get("spoke"), known)
    known.note_all(speaking=ts or True if has_begun else None, spoke=None, voice=None)
    if has_begun:
        known.note("cut", None)
        reply = known.reply(newest(known))
        if reply is not None and not is_over(reply, ts, known):
            yield Tts(item=reply.item, audio_ms=0)
        elif known.has_clock:
            known.note("voice", ts)


def interrupt(frame: JsonObject, ts: int, known: Known) -> Made:
    """Handle an interruption: text that was not spoken yet never will be."""
    cut = [reply.item for reply in known.open_replies() if reply.item is not None and reply.item.startswith("~r")]
    if is_amid_sentence(known) and newest(known) not in cut:
        yield Interrupt(item=newest(known), more=True)
    for item in cut[:MAX_SEGMENTS]:
        yield Interrupt(item=item)
    known.note("cut", ts if cut else None)


def is_amid_sentence(known: Known) -> bool:
    """Return whether a sentence is being spoken that is only reported at its end: all known text was heard."""
    reply = known.reply(newest(known))
    speaking = known.notes.get("speaking") and not known.notes.get("words")
    return bool(speaking and reply is not None and reply.cut == "no")


def call_function(frame: JsonObject, ts: int, known: Known) -> Made:
    data = frame["data"]
    arguments = data.get("arguments", data.get("args"))
    if data.get("function_name"):
        yield tool_call(data["tool_call_id"], data["function_name"], arguments, tool_turn(known))


def return_result(frame: JsonObject, ts: int, known: Known) -> Made:
    data = frame["data"]
    if not data.get("cancelled"):
        yield tool_result(data["tool_call_id"], data.get("result"), tool_turn(known))


def tool_turn(known: Known) -> int:
    turn: int = known.notes.get("turn", known.here)
    return turn


KINDS: dict[str, Kind] = {
    "user-input": Kind("vendor", UserInput, take_input),
    "user-transcription": Kind("vendor", UserInput, take_transcription),
    "bot-ready": Kind("vendor", Nothing, start_session),
    "user-started-speaking": Kind("vendor", Nothing, open_utterance),
    **dict.fromkeys((DETECTED, "user-stopped-speaking"), Kind("vendor", Nothing, stop_speech)),
    "bot-llm-started": Kind("vendor", Nothing, start_llm),
    "bot-llm-stopped": Kind("vendor", Nothing, stop_llm),
    "bot-output": Kind(
        "vendor",
        record(
            "text output_type? aggregated_by? spoken_status?",
            segment_id=optional(int),
            spoken=optional(bool),
            will_be_spoken=optional(bool),
            spoken_progress=optional(record(accumulated_text=(str, ""))),
        ),
        take_output,
    ),
    "bot-transcription": Kind("vendor", record("text"), hold_sentence),
    "bot-interrupted": Kind("vendor", Nothing, interrupt),
    "bot-started-speaking": Kind("vendor", Nothing, note_speaking),
    "bot-stopped-speaking": Kind("vendor", Nothing, note_speaking),
    "llm-function-call": Kind("vendor", FunctionCall, call_function),
    "llm-function-call-in-progress": Kind("vendor", FunctionCall, call_function),
    "llm-function-call-stopped": Kind("vendor", FunctionResult, return_result),
    "llm-function-call-result": Kind("app", FunctionResult, return_result),
    "send-text": Kind("app", record("content"), send_text),
    **dict.fromkeys(KEYS, Kind("app", record("button?", buttons=optional(many(str))), press_keys)),
    **ignored(
        "vendor",
        """
        bot-llm-text bot-llm-marker bot-tts-text bot-tts-audio bot-tts-started bot-tts-stopped
        user-llm-text stt-raw-text llm-raw-text tts-raw-text vad-user-started-speaking user-mute-started
        user-mute-stopped metrics server-message server-response error-response error system-log user-audio-level
        bot-audio-level ui-command ui-job-group
        llm-function-call-started llm-search-response bot-llm-search-response config config-available
        config-error action-response actions-available storage-item-stored bot-output-progress
        """,
    ),
    **ignored(
        "app",
        """
        client-ready client-message disconnect-bot send-file append-to-context update-config get-config
        describe-config action describe-actions raw-audio raw-audio-batch ui-event ui-snapshot ui-cancel-job-group
        """,
    ),
}
PIPECAT_RTVI = Dialect(
    name="pipecat-rtvi",
    version=6,
    reduce=reduce,
    translate=translation(KINDS),
    closed=closed,
    caller=CallerFields(user="data/user_id", parties="data/user_id"),
    texts=texts,
)
