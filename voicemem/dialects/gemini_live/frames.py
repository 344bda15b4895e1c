"""The kept messages of Gemini, and their fields.

Names are in camelCase as on the wire, or as in Google's Python SDK.

A message's audio is counted next to its `serverContent`, in bytes and with its sample rate. Thoughts, images, prompts,
tool definitions, and resumption handles are not kept.
"""

import re
from collections.abc import Iterator
from typing import Any

from voicemem.dialects.dialect import AUDIO_BYTES, Frame, MalformedFrame, RawFrame, Side, Text, UnknownFrame
from voicemem.dialects.kinds import ANYTHING, kept, many, optional, record
from voicemem.dialects.reading import audio_bytes, json_object, values, whole
from voicemem.protocol.types import JsonObject

MAX_BYTES = 16 * 1024 * 1024
"""The most bytes of a message, binary or text: Gemini sends its JSON in binary messages."""
USUAL_RATE = 24_000
"""The default sample rate of Gemini's audio, with 16 bits a sample."""
RATE = "rate"
ONLY_AUDIO = {AUDIO_BYTES, RATE}
CONTINUING = "IN_PROGRESS"
"""The status if the model continues after `turnComplete`."""
REPLY, SPOKEN = "reply", "spoken"
"""The keys of the current reply's and utterance's pieces, which have no ids."""
VENDOR = {
    "serverContent",
    "toolCall",
    "toolCallCancellation",
    "setupComplete",
    "goAway",
    "sessionResumptionUpdate",
    "usageMetadata",
    "voiceActivity",
    "voiceActivityDetectionSignal",
}
APP = {"setup", "clientContent", "realtimeInput", "toolResponse", "contextUpdate"}
STARTS, ENDS = ("_START", "_SOS", "yStart"), ("_END", "_EOS", "yEnd")
"""Endings of the signals that the user begins to speak, and stops."""
PROMPT = "."
PROMPTS = ("", PROMPT)
"""Texts with which apps have the model speak, if Gemini requires a turn of the user's."""
MAX_GIVEN = 64
"""The most turns of a history that are kept, the newest."""
Offsets = record("startOffset? endOffset?")
Heard = record("text? languageCode? speakerLabel?", Offsets, finished=optional(bool), words=optional(many(Offsets)))
"""A transcription of the user's words."""
Said = record("text?", finished=optional(bool), words=optional(many(record("word?", Offsets))))
SECONDS = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)s?")
"""An offset, as in `1.200s`."""
Part = record("text?", thought=optional(bool), inlineData=optional(record("mimeType? data?")))
Content = record("role?", parts=optional(many(Part)))
ServerContent = record(
    "interactionStatus?",
    inputTranscription=optional(Heard),
    interimInputTranscription=optional(Heard),
    outputTranscription=optional(Said),
    modelTurn=optional(Content),
    generationComplete=optional(bool),
    interrupted=optional(bool),
    turnComplete=optional(bool),
)
Message = record(
    serverContent=optional(ServerContent),
    toolCall=optional(record(functionCalls=optional(many(record("name id?", args=ANYTHING))))),
    toolCallCancellation=optional(record(ids=optional(many(str)))),
    setupComplete=optional(record("sessionId?")),
    clientContent=optional(record(turns=optional(many(Content)), turnComplete=optional(bool))),
    realtimeInput=optional(record("text?", activityStart=ANYTHING, activityEnd=ANYTHING)),
    voiceActivity=optional(record("voiceActivityType?")),
    voiceActivityDetectionSignal=optional(record("vadSignalType?")),
    toolResponse=optional(record(functionResponses=optional(many(record("name? id?", response=ANYTHING))))),
)
"""One message; if it had audio, `audio_bytes` and `rate` are added."""
IN_MESSAGES = {
    *("mimeType", "inlineData", "functionCalls", "functionResponses", "sessionId"),
    *("startOffset", "endOffset", "speakerLabel", "languageCode"),
    *("voiceActivityType", "vadSignalType", "activityStart", "activityEnd"),
}
NAMES = VENDOR | APP | IN_MESSAGES | {*ServerContent.__struct_fields__}
CAMEL = {re.sub("[A-Z]", lambda letter: "_" + letter[0].lower(), name): name for name in NAMES}
"""The Python SDK's names, and the wire's."""
DEPTH = 8
"""The depth to which names of a message are converted."""
FREE = ("args", "response")
"""Fields of tool calls and results whose content has the app's own names."""


def in_camel_case(value: Any, depth: int = DEPTH) -> Any:
    """Return a message with the wire's names, without nulls."""
    if not depth:
        return value
    if isinstance(value, dict):
        return {
            CAMEL.get(key, key): one if key in FREE else in_camel_case(one, depth - 1)
            for key, one in value.items()
            if one is not None
        }
    return [in_camel_case(one, depth - 1) for one in value] if isinstance(value, list) else value


def reduce(frame: RawFrame, side: Side | None = None) -> Frame | None:
    raw = in_camel_case(json_object(frame, MAX_BYTES))
    sender = sender_of(raw)
    if side not in (None, sender):
        raise MalformedFrame("The other side sends messages of this kind.")
    message = kept(Message, raw)
    content: JsonObject = counted_audio(message, raw) if sender == "vendor" else {}
    content |= server_content(message.get("serverContent", {}))
    lists = ("toolCall", "functionCalls"), ("toolResponse", "functionResponses"), ("toolCallCancellation", "ids")
    for name, field in lists:
        if message.get(name, {}).get(field):
            content[name] = message[name]
    added = given_text(message)
    content |= activity(message) | added
    setup = message.get("setupComplete")
    session_id = (setup or {}).get("sessionId") or None
    if setup is not None:
        content["setupComplete"] = {"sessionId": session_id} if session_id else {}
    if not content:
        return None
    counts_audio = content.keys() == ONLY_AUDIO
    typed = not all(map(is_prompt, given_texts(added)))
    return Frame(content, side=sender, session_id=session_id, typed=typed, counts_audio=counts_audio)


def sender_of(raw: JsonObject) -> Side:
    """Return who sends a message. Raises `MalformedFrame`, `UnknownFrame`."""
    vendor, app = raw.keys() & VENDOR or AUDIO_BYTES in raw, raw.keys() & APP
    if vendor and app:
        raise MalformedFrame("A message is either Gemini's or the app's.")
    if not vendor and not app:
        if raw:
            raise UnknownFrame(str(next(iter(raw))))
        raise MalformedFrame("A message of this dialect has content.")
    return "vendor" if vendor else "app"


def server_content(raw: JsonObject) -> JsonObject:
    """Return the words of the model and the recogniser, without empty fields."""
    content: JsonObject = {}
    for name in ("inputTranscription", "interimInputTranscription", "outputTranscription"):
        said = {key: value for key, value in raw.get(name, {}).items() if value}
        if said:
            content[name] = said
    parts = raw.get("modelTurn", {}).get("parts", ())
    texts = [{"text": part["text"]} for part in parts if part.get("text") and not part.get("thought")]
    if texts:
        content["modelTurn"] = {"parts": texts}
    content |= {name: True for name in ("generationComplete", "interrupted", "turnComplete") if raw.get(name)}
    if content.get("turnComplete") and raw.get("interactionStatus") == CONTINUING:
        content["interactionStatus"] = CONTINUING
    return {"serverContent": content} if content else {}


def counted_audio(message: JsonObject, raw: JsonObject) -> JsonObject:
    """Return the bytes of audio in a message, if any, and their rate. Raises `MalformedFrame`."""
    count, rate = 0, USUAL_RATE
    if AUDIO_BYTES in raw:
        count = audio_bytes(raw, AUDIO_BYTES)
        rate = whole(raw.get(RATE)) or USUAL_RATE
    for part in message.get("serverContent", {}).get("modelTurn", {}).get("parts", ()):
        blob = part.get("inlineData", {})
        mime_type = blob.get("mimeType") or "audio/"
        if blob.get("data") and mime_type.startswith("audio/"):
            count += audio_bytes(blob, "data")
            stated = re.search(r"rate=(\d{1,9})(?!\d)", mime_type)  # as in `audio/pcm;rate=24000`
            rate = (int(stated[1]) if stated else 0) or rate
    return {AUDIO_BYTES: count, RATE: rate} if count else {}


def activity(message: JsonObject) -> JsonObject:
    """Return signals that the user begins to speak or stops: the model's, or the app's if it detects speech itself."""
    said = {name: message[name] for name in ("voiceActivity", "voiceActivityDetectionSignal") if message.get(name)}
    sent = message.get("realtimeInput", {})
    own: JsonObject = {name: {} for name in ("activityStart", "activityEnd") if sent.get(name) is not None}
    return said | {"realtimeInput": own} if own else said


def speaks(frame: JsonObject) -> bool | None:
    """Return whether a message signals that the user begins to speak (True) or stops (False); None if neither."""
    signals = (*frame.get("voiceActivity", {}).values(), *frame.get("voiceActivityDetectionSignal", {}).values())
    signals += (*frame.get("realtimeInput", {}),)
    if any(one.endswith(STARTS) for one in signals):
        return True
    return False if any(one.endswith(ENDS) for one in signals) else None


def given_text(message: JsonObject) -> JsonObject:
    """Return the texts that the app sends as the user's; of turns that it adds as the model's, only their existence.

    A complete turn without words only has the model speak.
    """
    text = message.get("realtimeInput", {}).get("text")
    if text:
        return {"realtimeInput": {"text": text}}
    turns: list[JsonObject] = []
    content = message.get("clientContent", {})
    for turn in content.get("turns", ())[-MAX_GIVEN:]:
        said = "\n".join(part["text"] for part in turn.get("parts", ()) if part.get("text"))
        if turn.get("role") not in (None, "user"):
            turns.append({"role": turn["role"]})
        elif said:
            turns.append({"parts": [{"text": said}]})
    if not turns and content.get("turnComplete"):
        turns.append({"parts": [{"text": PROMPT}]})
    return {"clientContent": {"turns": turns}} if turns else {}


def given_texts(frame: JsonObject) -> list[str | None]:
    """Return the texts of the turns that an app adds; None for one that it adds as the model's."""
    turns = frame.get("clientContent", {}).get("turns", ())
    if frame.get("realtimeInput", {}).get("text"):
        turns = [{"parts": [frame["realtimeInput"]]}]
    return [turn["parts"][0]["text"] if "parts" in turn else None for turn in turns]


def is_prompt(text: str | None) -> bool:
    return text is not None and text.strip() in PROMPTS


def texts(frame: JsonObject) -> Iterator[Text]:
    content = frame.get("serverContent", {})
    if "text" in content.get("inputTranscription", ()):
        yield Text(content["inputTranscription"], "text", "piece", "user", SPOKEN)
    if "text" in content.get("interimInputTranscription", ()):
        yield Text(content["interimInputTranscription"], "text", "next", "user", SPOKEN)
    for part in content.get("modelTurn", {}).get("parts", ()):
        yield Text(part, "text", "piece", item=REPLY)
    if "text" in content.get("outputTranscription", ()):
        yield Text(content["outputTranscription"], "text", "piece", item=REPLY)
    words = content.get("outputTranscription", {}).get("words", ())
    yield from (Text(one, "word", "word", item=REPLY, at_ms=offset_ms(one.get("startOffset"))) for one in words)
    if content.get("interrupted") or content.get("turnComplete"):
        yield Text(None, "", "end", item=REPLY)
        yield Text(None, "", "end", "user", SPOKEN)
    for call in frame.get("toolCall", {}).get("functionCalls") or ():
        yield from values(call, "args")
    for result in frame.get("toolResponse", {}).get("functionResponses") or ():
        yield from values(result, "response")
    if frame.get("realtimeInput", {}).get("text"):
        yield Text(frame["realtimeInput"], "text", "whole", "user")
    for turn in frame.get("clientContent", {}).get("turns", ()):
        for part in turn.get("parts", ()):
            yield Text(part, "text", "whole", "user")


def offset_ms(offset: str | None) -> int | None:
    """Parse a time from the start of the audio; None if it is not one."""
    match = SECONDS.fullmatch(offset or "")
    return None if match is None else round(float(match[1]) * 1000)
