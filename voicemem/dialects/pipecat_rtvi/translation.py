"""What RTVI messages say, in events of `voicemem.v1`.

Notes: `reply` (number of the newest reply), `turn` (that of its LLM request), `llm` (whether the LLM generates it),
`segments` (the newest segments: number of the reply, and where in its text they begin), `heard` (characters of the
newest reply that were heard, where no segment says so), `utterance` (number of the open or last utterance), `input`
(whether `user-input` comes), `speaking` (whether audio is played), `words` (whether the TTS has word times).
"""

from __future__ import annotations

from collections.abc import Callable

from voicemem.dialects.dialect import Known, KnownReply, Made, MadeEvent
from voicemem.protocol.events import Asr, Interrupt, LlmDelta, LlmDone, MessageEvent, ToolCall, ToolResult, Tts
from voicemem.protocol.types import JsonObject

MAX_SEGMENTS = 50
"""Segments whose place in their reply is known."""
PIECES = ("word", "token")
"""Types of output that 1.x has for parts of a segment."""


def translate(frame: JsonObject, ts: int, known: Known) -> Made:
    """The events of one frame."""
    return RULES[frame["type"]](frame, known)


def closed(ts: int, known: Known) -> Made:
    """The reply that was played when the caller left; without word times its last sentence is not known."""
    if is_amid_sentence(known):
        yield Interrupt(item=newest(known), more=True, ts=ts)


# The user


def start_session(frame: JsonObject, known: Known) -> Made:
    """A bot is there, perhaps after another: it counts its segments anew, and says no more of what that one said."""
    yield from interrupt(frame, known)
    known.note("segments", None)
    known.note("speaking", None)


def open_utterance(frame: JsonObject, known: Known) -> Made:
    """Reserve the place of what the user says, since its text may come after the answer has begun."""
    item = f"~u{known.notes.get('utterance', 0)}"
    segment, turn = known.segment(item), known.turn_of(item)
    if segment is None or segment.final or turn is None or (not segment.text and known.is_answered(turn)):
        number = known.notes.get("utterance", 0) + 1
        known.note("utterance", number)
        item = f"~u{number}"
        yield Asr(item=item, text="", turn_id=user_turn(item, known))
    elif not segment.text:  # a noise, or "uh-huh", had been taken for the beginning
        yield Asr(item=item, text="", final=True)
        yield Asr(item=item, text="")


def take_input(frame: JsonObject, known: Known) -> Made:
    data = frame["data"]
    if not known.notes.get("input"):
        known.note("input", True)
    if data.get("input_type") == "chat":
        yield from typed_text(data.get("msg_id"), data["text"], data.get("user_id"), known)
    elif data.get("input_type") != "backchannel":
        yield from hear(data, known)


def take_transcription(frame: JsonObject, known: Known) -> Made:
    """What servers before 1.13 send alone, and later ones send as well."""
    return () if known.notes.get("input") else hear(frame["data"], known)


def hear(data: JsonObject, known: Known) -> Made:
    """What the recogniser hears: an item from its first partial to its final."""
    number = known.notes.get("utterance", 0)
    segment = known.segment(f"~u{number}")
    if segment is None or segment.final:
        if not data["text"]:
            return
        number += 1
        known.note("utterance", number)
    item, final = f"~u{number}", data.get("final", True)
    yield Asr(item=item, text=data["text"], final=final, turn_id=user_turn(item, known), user=data.get("user_id"))


def user_turn(item: str, known: Known) -> int | None:
    """The turn for a new utterance: the same while nobody has answered."""
    if known.turn_of(item) is not None:
        return None
    return known.here if known.here and not known.is_answered(known.here) else known.next_turn


def send_text(frame: JsonObject, known: Known) -> Made:
    return typed_text(frame.get("id"), frame["data"]["content"], None, known)


def typed_text(item: str | None, text: str, user: str | None, known: Known) -> Made:
    if text and (item is None or known.turn_of(item) is None):
        yield MessageEvent(item=item or None, role="user", text=text, source="message", user=user)


# Replies


def newest(known: Known) -> str:
    return f"~r{known.notes.get('reply', 0)}"


def start_llm(frame: JsonObject, known: Known) -> Made:
    begin_reply(known, generating=True)
    return ()


def begin_reply(known: Known, generating: bool) -> None:
    known.note("reply", known.notes.get("reply", 0) + 1)
    known.note("turn", known.here)
    known.note("llm", generating)
    known.note("heard", 0)


def stop_llm(frame: JsonObject, known: Known) -> Made:
    """What was generated comes as output later, when it is spoken."""
    known.note("llm", False)
    if known.reply(newest(known)) is not None:
        yield LlmDone(item=newest(known))


def take_output(frame: JsonObject, known: Known) -> Made:
    data = frame["data"]
    if data.get("will_be_spoken") is False or not data["text"]:
        return ()
    status = data.get("spoken_status")
    if (data.get("output_type") or data.get("aggregated_by")) in PIECES:
        return hear_piece(data["text"], known) if data.get("spoken", True) else ()
    if data.get("segment_id") is not None and status is not None:
        return take_segment(data, status, known)
    return take_sentence(data, known)


def take_segment(data: JsonObject, status: str, known: Known) -> Made:
    """A segment when its audio begins, with each of its words, or when it was spoken."""
    key, segments = str(data["segment_id"]), known.notes.get("segments", {})
    if status != "completed" and not known.notes.get("words"):
        known.note("words", True)
    place = segments.get(key)
    if place is None:
        item, before, made = append(data["text"], known)
        place = [known.notes["reply"], len(before)]
        kept = list(segments.items())[-MAX_SEGMENTS + 1 :]
        known.note("segments", dict(kept) | {key: place})
        yield from made
    else:
        item = f"~r{place[0]}"
        reply = known.reply(item)
        before = "" if reply is None else reply.text[: place[1]]
    spoken = data["text"] if status == "completed" else data.get("spoken_progress", {}).get("accumulated_text", "")
    yield Tts(item=item, heard_text=before + spoken if spoken else before.rstrip())


def append(text: str, known: Known) -> tuple[str, str, list[MadeEvent]]:
    """The reply of a new segment, all that stands before it there, and the events that add it."""
    reply = known.reply(newest(known))
    if "reply" not in known.notes or (reply is not None and is_over(reply, known)):
        begin_reply(known, generating=False)
        reply = None
    item, before = newest(known), "" if reply is None else reply.text
    gap = " " if before and not before[-1].isspace() and not text[0].isspace() else ""
    turn = None if reply is not None else known.notes.get("turn", known.here)
    made: list[MadeEvent] = [LlmDelta(item=item, text=gap + text, turn_id=turn)]
    if not known.notes.get("llm"):
        made.append(LlmDone(item=item))
    return item, before + gap, made


def is_over(reply: KnownReply, known: Known) -> bool:
    """Whether what is said without the LLM is another reply: this one was cut, or heard before the user spoke."""
    return reply.cut != "no" or (reply.turn != known.here and reply.heard)


def take_sentence(data: JsonObject, known: Known) -> Made:
    """A sentence of 1.x: when it was generated, and again when it was spoken, if not by words."""
    if not data.get("spoken"):
        return append(data["text"], known)[2]
    heard = position_after(data["text"], known)
    if heard is not None:
        known.note("heard", heard)
        return [Tts(item=newest(known), heard_text=text_of(known)[:heard])]
    item, before, made = append(data["text"], known)
    known.note("heard", len(before) + len(data["text"]))
    return [*made, Tts(item=item, heard_text=before + data["text"])]


def hear_piece(text: str, known: Known) -> Made:
    """A word of 1.x."""
    heard = position_after(text.strip(), known)
    if heard is not None:
        if not known.notes.get("words"):
            known.note("words", True)
        known.note("heard", heard)
        yield Tts(item=newest(known), heard_text=text_of(known)[:heard])


def text_of(known: Known) -> str:
    reply = known.reply(newest(known))
    return "" if reply is None else reply.text


def position_after(piece: str, known: Known) -> int | None:
    """Where the next occurrence of a text ends in the newest reply; None if it does not occur any more."""
    found = text_of(known).find(piece, known.notes.get("heard", 0))
    return None if found < 0 else found + len(piece)


# Playback


def start_speaking(frame: JsonObject, known: Known) -> Made:
    known.note("speaking", True)
    return ()


def stop_speaking(frame: JsonObject, known: Known) -> Made:
    known.note("speaking", None)
    return ()


def interrupt(frame: JsonObject, known: Known) -> Made:
    """Whatever was not spoken yet never will be."""
    cut = [reply.item for reply in known.open_replies() if reply.item is not None and reply.item.startswith("~r")]
    if is_amid_sentence(known) and newest(known) not in cut:
        yield Interrupt(item=newest(known), more=True)
    for item in cut[:MAX_SEGMENTS]:
        yield Interrupt(item=item)


def is_amid_sentence(known: Known) -> bool:
    """Whether a sentence is spoken that will be reported at its end: all that is known of the reply was heard."""
    reply = known.reply(newest(known))
    speaking = known.notes.get("speaking") and not known.notes.get("words")
    return bool(speaking and reply is not None and reply.cut == "no")


# Tools


def call_function(frame: JsonObject, known: Known) -> Made:
    data = frame["data"]
    id, arguments = data["tool_call_id"], data.get("arguments", data.get("args"))
    if data.get("function_name"):
        yield ToolCall(
            id=f"call:{id}", call_id=id, name=data["function_name"], arguments=arguments, turn_id=tool_turn(known)
        )


def return_result(frame: JsonObject, known: Known) -> Made:
    data = frame["data"]
    if not data.get("cancelled"):
        id = data["tool_call_id"]
        yield ToolResult(id=f"result:{id}", call_id=id, result=data.get("result"), turn_id=tool_turn(known))


def tool_turn(known: Known) -> int:
    turn: int = known.notes.get("turn", known.here)
    return turn


Rule = Callable[[JsonObject, Known], Made]
RULES: dict[str, Rule] = {
    "bot-ready": start_session,
    "user-started-speaking": open_utterance,
    "user-input": take_input,
    "user-transcription": take_transcription,
    "send-text": send_text,
    "bot-llm-started": start_llm,
    "bot-llm-stopped": stop_llm,
    "bot-output": take_output,
    "bot-interrupted": interrupt,
    "bot-started-speaking": start_speaking,
    "bot-stopped-speaking": stop_speaking,
    "llm-function-call": call_function,
    "llm-function-call-in-progress": call_function,
    "llm-function-call-stopped": return_result,
    "llm-function-call-result": return_result,
}
