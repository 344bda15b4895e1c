"""The transcript after the call: all of it, or what is exact about a call that was heard live."""

from collections.abc import Iterator

from voicemem.dialects.elevenlabs_agents.frames import LATENCIES
from voicemem.dialects.elevenlabs_agents.items import item_of, said_text, stated_ts, without_ellipsis
from voicemem.dialects.known import Known, MadeEvent
from voicemem.dialects.reading import has_words
from voicemem.dialects.translating import (
    latencies,
    said_until,
    tool_call,
    tool_result,
    turn_of_answer,
    turn_of_speech,
)
from voicemem.protocol.events import Asr, Interrupt, LlmDone, MessageEvent, SessionEnd
from voicemem.protocol.types import JsonObject

USUAL_REASON = "ended"
MAX_PASSED = 20
"""How many live items are looked through for the one of the transcript's next."""


def post_call_item(frame: JsonObject, ts: int, known: Known) -> Iterator[MadeEvent]:
    """One item of the transcript: put onto the live one of its event or text, else said here."""
    end_stream(frame, known)
    text = (frame.get("message") or "").strip()
    if text and not frame.get("ignored_as_backchannel"):
        if frame["role"] == "user" and has_words(text):
            yield from user_item(frame, text, known)
        elif frame["role"] == "agent":
            yield from agent_item(frame, text, known)
    yield from tools(frame, known)


def end_stream(frame: JsonObject, known: Known) -> None:
    """Note that the live stream of a conversation says nothing new from here on."""
    if known.notes.get("over") != frame["conversation_id"]:
        known.note("over", frame["conversation_id"])


def user_item(frame: JsonObject, text: str, known: Known) -> Iterator[MadeEvent]:
    typed = frame.get("source_medium") == "text"
    live = live_item(frame, "u", [text], known)
    if live is not None:
        segment = known.segment(live)
        if segment is not None and (segment.text != text or not segment.final):
            yield Asr(item=live, text=text, final=True)
        yield from measure(frame, known.turn_of(live), None)
        return
    item = item_of("~p", frame["index"], known, frame["conversation_id"])
    if known.turn_of(item) is not None or (typed and known.notes.get("said")):
        return
    turn = turn_of_speech(item, known)
    if typed:
        yield MessageEvent(item=item, role="user", text=text, source="message", turn_id=turn)
    else:
        yield from said_until(Asr(item=item, text=text, final=True, turn_id=turn, ts=frame.get("ts")), None)
    yield from measure(frame, turn, None)


def agent_item(frame: JsonObject, text: str, known: Known) -> Iterator[MadeEvent]:
    original = (frame.get("original_message") or text).strip()
    live = live_item(frame, "a", [original, text], known)
    item = item_of("~p", frame["index"], known, frame["conversation_id"]) if live is None else live
    reply = known.reply(item)
    agent = frame.get("agent_metadata", {}).get("agent_id")
    if reply is None:
        yield LlmDone(item=item, text=original, turn_id=turn_of_answer(item, known), agent=agent)
    elif agent is not None:  # the times of a live one are finer than the webhook's
        yield LlmDone(item=item, agent=agent, ts=reply.begun)
    heard = without_ellipsis(text, original)
    if frame.get("interrupted") and heard != original:
        ended = None if reply is None else reply.ended
        # `more`: by the clock it may have been over, and the vendor knows better.
        yield Interrupt(item=item, heard_text=heard, more=True, ts=frame.get("until") if ended is None else ended)
    yield from measure(frame, known.here if reply is None else reply.turn, None if reply is None else reply.begun)


def measure(frame: JsonObject, turn: int | None, begun: int | None) -> Iterator[MadeEvent]:
    """The latencies of an item's turn, which older webhooks have without `metrics`."""
    holder = frame.get("conversation_turn_metrics", {})
    seconds = {name: one.get("elapsed_time") for name, one in holder.get("metrics", holder).items()}
    return latencies(seconds, LATENCIES, turn, frame.get("ts") if begun is None else begun, 1_000)


def live_item(frame: JsonObject, letter: str, texts: list[str], known: Known) -> str | None:
    """The item of the live conversation that an item of the transcript repeats, by its event, else by its text."""
    said: list[str] = known.notes.get("said") or []
    event = frame.get("source_event_id")
    if event is not None:
        first = item_of(letter, event, known, frame["conversation_id"])
        found = [item for item in said if item.split("/")[0] == first]
        if found:
            return next((item for item in found if said_text(item, known) in texts), found[0])
    passed = known.notes.get("matched", 0)
    for place, item in enumerate(said[passed : passed + MAX_PASSED], passed):
        if (item.startswith("u") == (letter == "u")) and said_text(item, known) in texts:
            known.note("matched", place + 1)
            return item
    return None


def tools(frame: JsonObject, known: Known) -> Iterator[MadeEvent]:
    for call in frame.get("tool_calls") or ():
        yield tool_call(call["request_id"], call["tool_name"], call.get("params_as_json"), known.here)
    for result in frame.get("tool_results") or ():
        yield tool_result(result["request_id"], result.get("result_value"), known.here, result.get("tool_name"))


def end_call(frame: JsonObject, ts: int, known: Known) -> Iterator[MadeEvent]:
    end_stream(frame, known)
    yield SessionEnd(reason=USUAL_REASON, ts=stated_ts(ts, known))
