"""What the webhook's transcript adds to a call: all of it, or what is exact about a call that was heard live."""

from __future__ import annotations

from collections.abc import Iterator

from voicemem.dialects.dialect import Known, MadeEvent
from voicemem.dialects.elevenlabs_agents.turns import answer_turn, item_of, stated_ts, utterance_turn, without_ellipsis
from voicemem.protocol.events import Asr, Interrupt, LlmDone, MessageEvent, SessionEnd, ToolCall, ToolResult
from voicemem.protocol.types import JsonObject

MAX_PASSED = 20
"""How many live items are looked through for the one of the transcript's next."""


def post_call_item(frame: JsonObject, ts: int, known: Known) -> Iterator[MadeEvent]:
    """One item of the transcript: put onto the live one of its event or text, else said anew."""
    text = (frame.get("message") or "").strip()
    if text and not frame.get("ignored_as_backchannel"):
        if frame["role"] == "user":
            yield from user_item(frame, text, known)
        elif frame["role"] == "agent":
            yield from agent_item(frame, text, known)
    yield from tools(frame, known)


def user_item(frame: JsonObject, text: str, known: Known) -> Iterator[MadeEvent]:
    typed = frame.get("source_medium") == "text"
    live = live_item(frame, "u", [text], known)
    if live is not None:
        segment = known.segment(live)
        if segment is not None and (segment.text != text or not segment.final):
            yield Asr(item=live, text=text, final=True)
        return
    item = item_of("~p", frame["index"], known, frame["conversation_id"])
    if known.turn_of(item) is not None or (typed and known.notes.get("said")):
        return
    turn = utterance_turn(item, known)
    if typed:
        yield MessageEvent(item=item, role="user", text=text, source="message", turn_id=turn)
    else:
        yield Asr(item=item, text=text, final=True, turn_id=turn)


def agent_item(frame: JsonObject, text: str, known: Known) -> Iterator[MadeEvent]:
    original = (frame.get("original_message") or text).strip()
    live = live_item(frame, "a", [original, text], known)
    item = item_of("~p", frame["index"], known, frame["conversation_id"]) if live is None else live
    reply = known.reply(item)
    if reply is None:
        yield LlmDone(item=item, text=original, turn_id=answer_turn(item, known))
    heard = without_ellipsis(text, original)
    if frame.get("interrupted") and heard != original:
        ended = None if reply is None else reply.ended
        # `more`: by the clock it may have been over, and the vendor knows better.
        yield Interrupt(item=item, heard_text=heard, more=True, ts=frame.get("until") if ended is None else ended)


def live_item(frame: JsonObject, letter: str, texts: list[str], known: Known) -> str | None:
    """The item of the live conversation that an item of the transcript repeats, by its event, else by its text."""
    said: list[str] = known.notes.get("said") or []
    event = frame.get("source_event_id")
    if event is not None:
        item = item_of(letter, event, known, frame["conversation_id"])
        if item in said:
            return item
    passed = known.notes.get("matched", 0)
    for place, item in enumerate(said[passed : passed + MAX_PASSED], passed):
        if (item.startswith("u") == (letter == "u")) and said_text(item, known) in texts:
            known.note("matched", place + 1)
            return item
    return None


def said_text(item: str, known: Known) -> str | None:
    """The text of a live item."""
    if item.startswith("u"):
        segment = known.segment(item)
        return None if segment is None else segment.text.strip()
    reply = known.reply(item)
    return None if reply is None else reply.text.strip()


def tools(frame: JsonObject, known: Known) -> Iterator[MadeEvent]:
    """The calls of tools and their results; those that the live conversation had are the same."""
    for call in frame.get("tool_calls") or ():
        id, name, arguments = call["request_id"], call["tool_name"], call.get("params_as_json")
        yield ToolCall(id=f"call:{id}", call_id=id, name=name, arguments=arguments, turn_id=known.here)
    for result in frame.get("tool_results") or ():
        id, value, tool = result["request_id"], result.get("result_value"), result.get("tool_name")
        yield ToolResult(id=f"result:{id}", call_id=id, result=value, name=tool, turn_id=known.here)


def end_call(frame: JsonObject, ts: int, known: Known) -> Iterator[MadeEvent]:
    yield SessionEnd(reason="ended", ts=stated_ts(ts, known))
