"""What frames of Deepgram's Voice Agent say, in events of `voicemem.v1`.

Notes: `replies` (N), and of the reply under way `begun`, `stopped` (see `replies`), `last` (its last character), `sent`
(all of its audio has come), `bytes`, `since` (when its first words or audio came), `silent` (ms between parts of its
audio), `unvoiced` (ms of text whose audio has not come), `audio_first` (its audio comes before its words); `rate`
(bytes of audio a second), `until` (when all audio will have been played), `typed` (a text of the app that Deepgram may
repeat), `asked` (the ids of functions' last calls, by name).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import islice

from voicemem.dialects.clock import close_by_clock, interrupt_by_clock
from voicemem.dialects.deepgram_agent.audio import (
    count_audio,
    note_format,
    note_unvoiced,
    playing,
    position_ms,
    total_of,
)
from voicemem.dialects.deepgram_agent.replies import CUT, OVER, begin, complete, next_reply, reply_item
from voicemem.dialects.dialect import AUDIO_BYTES, Known, KnownReply, Made
from voicemem.protocol.events import Asr, Interrupt, LlmDelta, LlmDone, MessageEvent, ToolCall, ToolResult
from voicemem.protocol.scripts import SPACELESS
from voicemem.protocol.types import JsonObject

MAX_PLAYING = 4
"""Replies that may wait to be played."""
MAX_ASKED = 32
"""Functions whose last call is remembered."""
INTERRUPTING = "interrupt"
"""The behaviour of an injected message that the agent says at once."""


def translate(frame: JsonObject, ts: int, known: Known) -> Made:
    """The events of one frame."""
    if AUDIO_BYTES in frame:
        return count_audio(frame, ts, known)
    return RULES[frame["type"]](frame, ts, known)


def closed(ts: int, known: Known) -> Made:
    """The replies that the caller had not heard to their end."""
    yield from measure(known)
    yield from close_by_clock(known, ts, is_own, partial(playing, known))


def is_own(item: str) -> bool:
    return item.startswith("~r")


# What is said


def converse(frame: JsonObject, ts: int, known: Known) -> Made:
    return hear(frame, known) if frame["role"] == "user" else speak(frame, ts, known)


def hear(frame: JsonObject, known: Known) -> Made:
    """The user has spoken; what the agent says next is another reply."""
    text = frame["content"].strip()
    if text == known.notes.get("typed"):
        known.note("typed", None)
        return
    known.note("typed", None)
    yield from complete(known)
    next_reply(known)
    yield Asr(text=text, final=True)


def type_text(frame: JsonObject, ts: int, known: Known) -> Made:
    """The app says something for the user."""
    yield from complete(known)
    next_reply(known)
    known.note("typed", frame["content"].strip())
    yield MessageEvent(role="user", text=frame["content"], source="message")


def speak(frame: JsonObject, ts: int, known: Known) -> Made:
    """The agent says a sentence or more."""
    known.note("typed", None)
    begin(known)
    text, last = frame["content"].strip(), known.notes.get("last", "")
    note_unvoiced(text, ts, not last, known)
    known.note("last", text[-1])
    # Words that come after the interruption of their audio were said before it.
    is_late = not last and known.notes.get("stopped") == CUT
    since = known.notes.get("since") if is_late else None
    yield LlmDelta(item=reply_item(known), text=space_between(last, text) + text, ts=since)
    if known.notes.get("sent") and known.notes.get("audio_first"):
        yield LlmDone(item=reply_item(known))


def space_between(before: str, text: str) -> str:
    """What stands between two texts of a reply, of which one ends with `before`."""
    return " " if before and not (SPACELESS.match(before) and SPACELESS.match(text)) else ""


def finish_audio(frame: JsonObject, ts: int, known: Known) -> Made:
    """Deepgram has sent all audio of the reply."""
    if known.notes.get("begun"):
        known.note("sent", True)
        if known.notes.get("bytes"):
            known.note("unvoiced", None)
            yield from measure(known, whole=True)
        yield from complete(known)


def measure(known: Known, whole: bool = False) -> Made:
    """Say again how long the audio is, where all words that have come by now belong to it."""
    if known.has_clock and known.notes.get("bytes") and (whole or known.notes.get("audio_first")):
        yield total_of(known)


# Interruptions


def interrupt(frame: JsonObject, ts: int, known: Known) -> Made:
    """The user speaks, and the app stops playing. Without times, only what is still being sent is known to play."""
    yield from measure(known)
    for reply in islice(known.open_replies(), MAX_PLAYING):
        if reply.item is not None and is_own(reply.item) and (known.has_clock or not reply.complete):
            yield from interrupt_by_clock(known, reply.item, ts, where=partial(playing, known))
    if known.notes.get("begun") and not known.notes.get("stopped"):
        known.note("stopped", CUT if is_cut(ts, known) else OVER)
        if known.has_clock and known.notes.get("bytes") and known.reply(reply_item(known)) is None:
            yield Interrupt(item=reply_item(known), audio_end_ms=position_ms(ts, known), estimated=True)
    known.note("until", None)


def is_cut(ts: int, known: Known) -> bool:
    """Whether more of the reply under way was to come when the user began to speak."""
    reply = known.reply(reply_item(known))
    if reply is None or not reply.complete:
        return True
    where = playing(known, reply, ts) if known.has_clock else None
    return where is not None and not where.is_over


def say_next(frame: JsonObject, ts: int, known: Known) -> Made:
    """The agent begins: after an interruption that is another reply."""
    if known.notes.get("stopped") == CUT:
        known.note("stopped", OVER)
    return ()


def inject(frame: JsonObject, ts: int, known: Known) -> Made:
    """The app has the agent say something, perhaps instead of what it is saying."""
    if frame.get("behavior") == INTERRUPTING:
        yield from interrupt(frame, ts, known)
    yield from say_next(frame, ts, known)


def state_heard(frame: JsonObject, ts: int, known: Known) -> Made:
    """What was spoken before the cut, exactly; the words of the turn that was cut may be the end of a reply."""
    newest, spoken = newest_reply(known), frame.get("text_spoken")
    if spoken is None:
        yield from interrupt(frame, ts, known)
    if newest is None or spoken is None:
        return
    text = newest.text
    start = max(0, text.rfind(spoken.strip()))
    heard = text[:start] + spoken if spoken.strip() else spoken
    if heard.strip() != text.strip():
        # `more`: by the clock it may have been over, and the vendor knows better.
        yield Interrupt(item=newest.item, heard_text=heard, more=True)


def newest_reply(known: Known) -> KnownReply | None:
    """The reply under way, or the one before it where the user's words came first."""
    number = known.notes.get("replies", 1)
    return known.reply(f"~r{number}") or known.reply(f"~r{number - 1}")


# Functions


def call_functions(frame: JsonObject, ts: int, known: Known) -> Made:
    asked = {**known.notes.get("asked", {}), **{call["name"]: call["id"] for call in frame["functions"]}}
    known.note("asked", dict([*asked.items()][-MAX_ASKED:]))
    for call in frame["functions"]:
        id, arguments = call["id"], call.get("arguments", "")
        yield ToolCall(id=f"call:{id}", call_id=id, name=call["name"], arguments=arguments, turn_id=known.here)


def answer_function(frame: JsonObject, ts: int, known: Known) -> Made:
    """A function has answered, the app's or Deepgram's; the latter may leave out the id."""
    name = frame["name"]
    id = frame.get("id") or known.notes.get("asked", {}).get(name) or f"~{name}"
    yield ToolResult(id=f"result:{id}", call_id=id, name=name, result=frame.get("content"), turn_id=known.here)


def connect(frame: JsonObject, ts: int, known: Known) -> Made:
    """A connection begins. After another one, nothing more comes of what was under way there."""
    yield from complete(known)
    next_reply(known)


RULES: dict[str, Callable[[JsonObject, int, Known], Made]] = {
    "Welcome": connect,
    "Settings": note_format,
    "ConversationText": converse,
    "UserStartedSpeaking": interrupt,
    "AgentThinking": say_next,
    "AgentStartedSpeaking": say_next,
    "AgentAudioDone": finish_audio,
    "SpeechInterrupted": state_heard,
    "FunctionCallRequest": call_functions,
    "FunctionCallResponse": answer_function,
    "InjectUserMessage": type_text,
    "InjectAgentMessage": inject,
}
