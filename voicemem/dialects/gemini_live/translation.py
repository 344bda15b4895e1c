"""What messages of Gemini's Live API say, in events of `voicemem.v1`.

Notes: `exchange` (n), `begun` (the model has begun in it), `turn` (that of its reply), `generated` and `cut` (what
happened to it since), `ahead` (the user's words are those of the next exchange), `late` (they came after the reply),
`said` (characters of the user's words that are not interim), `answered` (the model has begun since the last
utterance), `prompted` (the model goes on without being spoken to, after a text or the result of a tool), `bytes` (of
the reply's audio).
"""

from __future__ import annotations

from voicemem.dialects.clock import close_by_clock, interrupt_by_clock
from voicemem.dialects.dialect import AUDIO_BYTES, Known, Made, MadeEvent
from voicemem.dialects.gemini_live.frames import RATE
from voicemem.protocol.events import Asr, LlmDelta, LlmDone, MessageEvent, ToolCall, ToolResult, Tts
from voicemem.protocol.types import JsonObject

ONLY_AUDIO = {AUDIO_BYTES, RATE}


def translate(frame: JsonObject, ts: int, known: Known) -> Made:
    """The events of one message. Most are audio or words of a reply that is under way, so these come first."""
    notes = known.notes
    if "begun" in notes and "cut" not in notes and "generated" not in notes:
        if frame.keys() == ONLY_AUDIO:
            return (count_audio(frame, known),)
        content = frame.get("serverContent", {})
        if len(frame) == len(content) == 1 and "outputTranscription" in content:
            text = content["outputTranscription"]["text"]
            return (LlmDelta(item=reply_item(known), text=text, turn_id=reply_turn(known)),)
    if "toolResponse" in frame:
        return tool_results(frame, known)
    if "realtimeInput" in frame:
        return type_text(frame, known)
    if "setupComplete" in frame:
        return connect(known)
    return server_events(frame, ts, known)


def server_events(frame: JsonObject, ts: int, known: Known) -> Made:
    """The events of one message of Gemini's."""
    content: JsonObject = frame.get("serverContent", {})
    cut = content.get("interrupted", False)
    outputs = output_texts(content)
    speaks = AUDIO_BYTES in frame or "modelTurn" in content or "toolCall" in frame
    if speaks and is_next_reply(known):
        yield from complete(known, played=False)
    heard = content.get("inputTranscription", {}).get("text", "")
    interim = content.get("interimInputTranscription", {}).get("text", "")
    begins = bool(speaks or outputs) and not known.notes.get("begun")
    are_next = cut and not begins  # a message begins one utterance at most
    if (heard or interim) and not are_next:
        yield from hear(heard, interim, begins, known)
    if begins:
        yield from begin(bool(heard), known)
    if outputs:
        yield LlmDelta(item=reply_item(known), text="".join(outputs), turn_id=reply_turn(known))
    if AUDIO_BYTES in frame:
        yield count_audio(frame, known)
    if content.get("generationComplete"):
        yield from generated(bool(outputs), known)
    if cut:
        yield from interrupt(ts, known)
        if are_next and (heard or interim):
            yield from hear(heard, interim, False, known)
    if "toolCall" in frame:
        yield from tool_calls(frame, known)
    if content.get("turnComplete"):
        yield from complete(known, played=True, has_text=bool(outputs))


def connect(known: Known) -> Made:
    """A connection begins. After another one, nothing more comes of what was under way there."""
    if known.notes.get("begun") or known.segment(f"~u{exchange(known)}") is not None:
        yield from complete(known, played=False)


def output_texts(content: JsonObject) -> list[str]:
    """What the model says in a message."""
    parts: list[JsonObject] = content.get("modelTurn", {}).get("parts", [])
    return [*(part["text"] for part in parts), *content.get("outputTranscription", {}).values()]


def closed(ts: int, known: Known) -> Made:
    """The reply that the caller had not heard to its end."""
    yield from measure(known)
    yield from close_by_clock(known, ts, lambda item: item.startswith("~a"))


# Exchanges


def exchange(known: Known) -> int:
    number: int = known.notes.get("exchange", 1)
    return number


def reply_item(known: Known) -> str:
    return f"~a{exchange(known)}"


def reply_turn(known: Known) -> int | None:
    turn: int | None = known.notes.get("turn")
    return turn


def is_next_reply(known: Known) -> bool:
    """Whether what the model says now is another reply, though the end of the one before was not sent."""
    notes = known.notes
    if "cut" in notes:
        return True
    return "generated" in notes and known.turn_of(f"~u{exchange(known) + 1}") is not None


def complete(known: Known, played: bool, has_text: bool = False) -> Made:
    """End an exchange. Where the user did not interrupt, Gemini has waited until all was played."""
    item = reply_item(known)
    if known.notes.get("begun"):
        yield from generated(has_text, known)
        is_reply = has_text or known.reply(item) is not None
        if is_reply and played and not known.notes.get("cut"):
            yield Tts(item=item, done=True)
    else:
        yield from settle_words(known)
    known.note("exchange", exchange(known) + 1)
    if not known.notes.get("ahead"):
        known.note("said", None)
    for key in ("ahead", "begun", "turn", "generated", "cut", "late", "bytes"):
        known.note(key, None)


# The user


def hear(heard: str, interim: str, final: bool, known: Known) -> Made:
    """Add to the user's words."""
    item = f"~u{exchange(known)}"
    segment = known.segment(item)
    if known.notes.get("generated") and not known.notes.get("late"):
        is_late = segment is not None and not segment.text
        known.note("late" if is_late else "ahead", True)
    if known.notes.get("ahead"):
        item = f"~u{exchange(known) + 1}"
        segment = known.segment(item)
        if segment is None:
            known.note("said", None)
    elif known.notes.get("begun"):
        final, interim = True, ""
    before = "" if segment is None else segment.text[: known.notes.get("said", 0)]
    text = (before + heard).lstrip()
    if heard:
        known.note("said", len(text))
    elif not interim:
        return
    turn = new_turn(known) if known.turn_of(item) is None else None
    if turn is not None:
        known.note("answered", None)
    yield Asr(item=item, text=text + ("" if final else interim), final=final, turn_id=turn)


def type_text(frame: JsonObject, known: Known) -> Made:
    """The app sends a text as the user's."""
    known.note("prompted", True)
    known.note("answered", None)
    yield MessageEvent(role="user", text=frame["realtimeInput"]["text"], source="message")


def new_turn(known: Known) -> int:
    """The turn of a new utterance: the same while nobody has answered."""
    is_answered = known.notes.get("answered") or not known.here or known.is_answered(known.here)
    return known.next_turn if is_answered else known.here


def settle_words(known: Known) -> Made:
    """Nothing more is expected of the user's words."""
    item = f"~u{exchange(known)}"
    segment = known.segment(item)
    if segment is not None and segment.text and not segment.final:
        text = segment.text[: known.notes.get("said", 0)]
        yield Asr(item=item, text=text or segment.text, final=True)


def begin(is_heard: bool, known: Known) -> Made:
    """The model begins: what the user has said is final, and what is still to be recognised has its place."""
    item = f"~u{exchange(known)}"
    turn = known.turn_of(item)
    if known.notes.get("prompted"):
        turn = known.here
        yield from settle_words(known)
    elif turn is not None:
        if not is_heard:
            yield from settle_words(known)
    else:
        turn = new_turn(known)
        if not is_heard:
            yield Asr(item=item, text="", turn_id=turn)
    known.note("begun", True)
    known.note("answered", True)
    known.note("turn", turn)
    known.note("prompted", None)


# The model


def generated(has_text: bool, known: Known) -> Made:
    """The model has said all; `has_text`: also in this message."""
    item = reply_item(known)
    reply = known.reply(item)
    if has_text or (reply is not None and not reply.complete):
        yield LlmDone(item=item, turn_id=reply_turn(known))
    known.note("generated", True)


def count_audio(frame: JsonObject, known: Known) -> MadeEvent:
    count = known.notes.get("bytes", 0) + frame[AUDIO_BYTES]
    known.note("bytes", count)
    return Tts(item=reply_item(known), total_audio_ms=count * 500 // frame[RATE])


def measure(known: Known) -> Made:
    """Say again how long the audio is: it comes before its words, and all that have come by now belong to it."""
    reply = known.reply(reply_item(known))
    if reply is not None and known.has_clock and reply.total_audio_ms is not None:
        yield Tts(item=reply.item, total_audio_ms=reply.total_audio_ms)


def interrupt(ts: int, known: Known) -> Made:
    """The user interrupts what the model says; before it says anything there is nothing to cut."""
    if known.notes.get("begun") and not known.notes.get("cut"):
        known.note("cut", True)
        if not known.notes.get("ahead"):
            known.note("ahead", True)
            known.note("said", None)
        yield from measure(known)
        yield from interrupt_by_clock(known, reply_item(known), ts)


# Tools


def tool_calls(frame: JsonObject, known: Known) -> Made:
    for call in frame["toolCall"]["functionCalls"]:
        id = call.get("id")
        yield ToolCall(
            id=None if id is None else f"call:{id}",
            call_id=call_id(call),
            name=call["name"],
            arguments=call.get("args", {}),
            turn_id=reply_turn(known),
        )


def tool_results(frame: JsonObject, known: Known) -> Made:
    results = frame["toolResponse"]["functionResponses"]
    if not known.notes.get("begun"):
        known.note("prompted", True)
    turn = reply_turn(known)
    for result in results:
        id = result.get("id")
        yield ToolResult(
            id=None if id is None else f"result:{id}",
            call_id=call_id(result),
            name=result.get("name"),
            result=result.get("response"),
            turn_id=known.here if turn is None else turn,
        )


def call_id(call: JsonObject) -> str:
    """The id of a call; on Vertex AI there may be none, and a name is all that its result has in common with it."""
    return str(call.get("id") or f"~{call.get('name')}")
