"""What frames of ElevenLabs Agents say, in events of `voicemem.v1`.

The user's items are `uEVENT`, replies `aEVENT`, by the vendor's number of the event; what only the webhook has is
`~pINDEX`. In a second conversation they are `u2.EVENT`, and so on. Notes: `format` (bytes of audio a millisecond),
`said` (the items of the live conversation, in order), `tentative` (the user's item that is not final yet), `parts` (the
reply that came in parts), `whole` (the item under which it came again), `audio` (the newest reply with audio, its bytes
so far and its last word), `waiting` (audio that came before its reply), `interrupted` (which reply, when, by which
event), `conversations` (numbers by id), `matched` (how many of `said` the webhook has passed).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice, takewhile

from voicemem.dialects.clock import close_by_clock, interrupt_by_clock
from voicemem.dialects.dialect import Known, Made
from voicemem.dialects.elevenlabs_agents.audio import begin, count_audio, cut_waiting, forget_cut, play_waiting
from voicemem.dialects.elevenlabs_agents.frames import ENDED, ITEM
from voicemem.dialects.elevenlabs_agents.transcript import end_call, post_call_item
from voicemem.dialects.elevenlabs_agents.turns import (
    RECENT,
    add_said,
    answer_turn,
    item_of,
    newest_reply,
    replies,
    stated_ts,
    utterance_turn,
    without_ellipsis,
)
from voicemem.protocol.events import Asr, Interrupt, LlmDelta, LlmDone, MessageEvent, ToolCall, ToolResult
from voicemem.protocol.types import JsonObject

MAX_PLAYING = 8
"""Replies of one turn that may wait to be played."""


def translate(frame: JsonObject, ts: int, known: Known) -> Made:
    """The events of one frame."""
    return RULES[frame["type"]](frame, ts, known)


def closed(ts: int, known: Known) -> Made:
    """The replies that the caller had not heard to their end."""
    return close_by_clock(known, ts, frozenset(replies(known)).__contains__)


# The user


def grow_transcript(frame: JsonObject, ts: int, known: Known) -> Made:
    event = frame["tentative_user_transcription_event"]
    item = item_of("u", event["event_id"], known)
    segment = known.segment(item)
    if event["user_transcript"].strip() and (segment is None or not segment.final):
        yield from withdraw_tentative(item, known)
        known.note("tentative", item)
        yield Asr(item=item, text=event["user_transcript"], turn_id=utterance_turn(item, known))


def finish_transcript(frame: JsonObject, ts: int, known: Known) -> Made:
    event = frame["user_transcription_event"]
    item = item_of("u", event["event_id"], known)
    segment = known.segment(item)
    if segment is not None and segment.final:
        return
    turn = utterance_turn(item, known)
    yield from withdraw_tentative(item, known)
    known.note("tentative", None)
    forget_cut(known)
    add_said(item, known)
    yield Asr(item=item, text=event["user_transcript"], final=True, turn_id=turn)


def withdraw_tentative(item: str, known: Known) -> Made:
    """What was tentative under the number of another event is said again under this one."""
    tentative = known.notes.get("tentative")
    if tentative is not None and tentative != item:
        yield Asr(item=tentative, text="", final=True)


def typed_text(frame: JsonObject, ts: int, known: Known) -> Made:
    text = frame["text"].get("text") if isinstance(frame.get("text"), dict) else frame.get("text")
    if text and text.strip():
        yield MessageEvent(role="user", text=text, source="message", turn_id=utterance_turn(None, known))


# Replies


def grow_reply(frame: JsonObject, ts: int, known: Known) -> Made:
    part = frame["text_response_part"]
    item = item_of("a", part["event_id"], known)
    reply = known.reply(item)
    if part["text"] and (reply is None or not reply.complete):
        if reply is None:
            add_said(item, known)
            known.note("parts", item)
        yield LlmDelta(item=item, text=part["text"], turn_id=answer_turn(item, known))
    if part.get("type") == "stop" and (reply is not None or part["text"]):
        yield LlmDone(item=item)


def finish_reply(frame: JsonObject, ts: int, known: Known) -> Made:
    event = frame["agent_response_event"]
    item, text = item_of("a", event["event_id"], known), event["agent_response"].strip()
    in_parts = known.notes.get("parts")
    if item == known.notes.get("whole") or (item in known.notes.get("said", ())[-RECENT:] and item != in_parts):
        return
    if in_parts is not None and known.reply(item) is None:
        grown = known.reply(in_parts)
        if grown is not None and grown.text.strip() == text:
            known.note("whole", item)
            item = in_parts
    known.note("parts", None)
    if not text:
        return
    if known.reply(item) is None:
        add_said(item, known)
    yield LlmDone(item=item, text=text, turn_id=answer_turn(item, known))
    yield from play_waiting(item, known)


# Interruptions


def interrupt(frame: JsonObject, ts: int, known: Known) -> Made:
    """The user spoke; of what may still play by the clock, this much was heard. The app stops playing all of it."""
    newest, event = newest_reply(known), frame["interruption_event"]["event_id"]
    noted = known.notes.get("interrupted")
    if noted is not None and noted[2] == event:
        return
    cut_waiting(ts, known)
    if newest is None:
        return
    known.note("interrupted", [newest.item, stated_ts(ts, known), event])
    own = frozenset(replies(known))
    playing = takewhile(lambda reply: reply.turn == newest.turn, known.open_replies())
    for reply in islice(playing, MAX_PLAYING):
        if reply.item in own:
            yield from interrupt_by_clock(known, reply.item, ts)
        if not known.has_clock:
            break


def correct(frame: JsonObject, ts: int, known: Known) -> Made:
    """What of an interrupted reply was spoken, exactly. The text says whose it is; the event's number does not."""
    event = frame["agent_response_correction_event"]
    original = event["original_agent_response"].strip()
    heard = without_ellipsis(event["corrected_agent_response"].strip(), original)
    item = next((item for item in replies(known) if text_of(item, known) == original), None)
    if item is None and original:
        item = item_of("~c", event["event_id"], known)
        add_said(item, known)
        yield LlmDone(item=item, text=original, turn_id=answer_turn(item, known))
    if item is not None and heard != original:
        noted, interrupted_at, _ = known.notes.get("interrupted") or (None, None, None)
        at = interrupted_at if noted == item and interrupted_at is not None else stated_ts(ts, known)
        # `more`: by the clock it may have been over, and the vendor knows better.
        yield Interrupt(item=item, heard_text=heard, more=True, ts=at)


def text_of(item: str, known: Known) -> str | None:
    reply = known.reply(item)
    return None if reply is None else reply.text.strip()


# Tools


def call_tool(frame: JsonObject, ts: int, known: Known) -> Made:
    call = frame["client_tool_call"]
    yield made_call(call["tool_call_id"], call["tool_name"], call.get("parameters"), known)


def request_tool(frame: JsonObject, ts: int, known: Known) -> Made:
    """A tool of the vendor's side, whose arguments are not said; one of the app's is called by a frame of its own."""
    call = frame["agent_tool_request"]
    if call.get("tool_type") != "client":
        yield made_call(call["tool_call_id"], call["tool_name"], None, known)


def made_call(id: str, name: str, arguments: object, known: Known) -> ToolCall:
    return ToolCall(id=f"call:{id}", call_id=id, name=name, arguments=arguments, turn_id=known.here)


def tool_result(frame: JsonObject, ts: int, known: Known) -> Made:
    answer = frame.get("agent_tool_response_full_payload", frame)
    id, result = answer["tool_call_id"], answer.get("full_tool_result", answer.get("result"))
    yield ToolResult(id=f"result:{id}", call_id=id, result=result, name=answer.get("tool_name"), turn_id=known.here)


RULES: dict[str, Callable[[JsonObject, int, Known], Made]] = {
    "conversation_initiation_metadata": begin,
    "tentative_user_transcript": grow_transcript,
    "user_transcript": finish_transcript,
    "agent_response": finish_reply,
    "agent_chat_response_part": grow_reply,
    "audio": count_audio,
    "interruption": interrupt,
    "agent_response_correction": correct,
    "client_tool_call": call_tool,
    "agent_tool_request": request_tool,
    "agent_tool_response_full_payload": tool_result,
    "client_tool_result": tool_result,
    "user_message": typed_text,
    "multimodal_message": typed_text,
    ITEM: post_call_item,
    ENDED: end_call,
}
