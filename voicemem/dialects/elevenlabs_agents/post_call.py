"""The items of a conversation by event number, in order; and the transcript after the call.

The transcript is a whole call, or makes a call that was heard live exact.
"""

from collections.abc import Iterator

from voicemem.dialects.elevenlabs_agents.frames import LATENCIES
from voicemem.dialects.known import Known, KnownReply, MadeEvent
from voicemem.dialects.reading import has_words
from voicemem.dialects.translating import latencies, said_until, tool_call, tool_result
from voicemem.protocol.events import Asr, Interrupt, LlmDone, MessageEvent, SessionEnd
from voicemem.protocol.types import JsonObject

MAX_SAID = 500
"""The most items whose order is kept for the webhook after the call."""
RECENT = 16
"""How many of the newest items are searched for a reply."""
ELLIPSES = ("...", "…")
USUAL_REASON = "ended"
MAX_PASSED = 20
"""How many live items are searched for the transcript's next item."""


def said_text(item: str, known: Known) -> str | None:
    said = known.segment(item) if item.startswith("u") else known.reply(item)
    return None if said is None else said.text.strip()


def item_of(letter: str, event: int, known: Known, conversation: str | None = None) -> str:
    """Return the item of an event in the newest conversation, or in the one with this id."""
    numbers: dict[str, int] = known.notes.get("conversations") or {}
    number = max(numbers.values(), default=1) if conversation is None else numbers.get(conversation, 1)
    return f"{letter}{event}" if number == 1 else f"{letter}{number}.{event}"


def add_said(item: str, known: Known, answer: str | None = None) -> None:
    """Note a spoken item; a late transcript is placed before its answer."""
    said = known.notes.get("said") or []
    if item not in said[-RECENT:]:
        place = said.index(answer) if answer in said[-RECENT:] else len(said)
        known.note("said", [*said[:place], item, *said[place:]][-MAX_SAID:])


def replies(known: Known) -> Iterator[str]:
    """Yield the items of the newest replies, the newest first."""
    said = known.notes.get("said") or []
    return (item for item in reversed(said[-RECENT:]) if not item.startswith("u"))


def newest_reply(known: Known) -> KnownReply | None:
    return next((reply for item in replies(known) if (reply := known.reply(item)) is not None), None)


def stated_ts(ts: int, known: Known) -> int | None:
    """Return the time of a frame, if it is the time of sending."""
    return ts if known.has_clock else None


def without_ellipsis(heard: str, original: str) -> str:
    """Return the spoken text of a correction, without its final "..." for the unspoken rest."""
    if original.startswith(heard):
        return heard
    for ellipsis in ELLIPSES:
        if heard.endswith(ellipsis):
            return heard.removesuffix(ellipsis).rstrip()
    return heard


# The transcript after the call


def post_call_item(frame: JsonObject, ts: int, known: Known) -> Iterator[MadeEvent]:
    """Handle an item of the transcript: it corrects the live item with its event or text, else it is new."""
    end_stream(frame, known)
    text = (frame.get("message") or "").strip()
    if text and not frame.get("ignored_as_backchannel"):
        if frame["role"] == "user" and has_words(text):
            yield from user_item(frame, text, known)
        elif frame["role"] == "agent":
            yield from agent_item(frame, text, known)
    yield from tools(frame, known)


def end_stream(frame: JsonObject, known: Known) -> None:
    """Note that the live stream of a conversation is over: later live frames are ignored."""
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
    turn = known.turn_of_speech(item)
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
        yield LlmDone(item=item, text=original, turn_id=known.turn_of_answer(item), agent=agent)
    elif agent is not None:  # a live reply has finer times than the webhook
        yield LlmDone(item=item, agent=agent, ts=reply.begun)
    heard = without_ellipsis(text, original)
    if frame.get("interrupted") and heard != original:
        ended = None if reply is None else reply.ended
        # `more`: the clock may say that it was over, but the vendor knows better.
        yield Interrupt(item=item, heard_text=heard, more=True, ts=frame.get("until") if ended is None else ended)
    yield from measure(frame, known.here if reply is None else reply.turn, None if reply is None else reply.begun)


def measure(frame: JsonObject, turn: int | None, begun: int | None) -> Iterator[MadeEvent]:
    """Yield the latencies of an item's turn; older webhooks have them without `metrics`."""
    holder = frame.get("conversation_turn_metrics", {})
    seconds = {name: one.get("elapsed_time") for name, one in holder.get("metrics", holder).items()}
    return latencies(seconds, LATENCIES, turn, frame.get("ts") if begun is None else begun, 1_000)


def live_item(frame: JsonObject, letter: str, texts: list[str], known: Known) -> str | None:
    """Return the live item that a transcript item repeats, by its event or else by its text."""
    said: list[str] = known.notes.get("said") or []
    event = frame.get("source_event_id")
    if event is not None:
        first = item_of(letter, event, known, frame["conversation_id"])
        answers = [item for item in said if item.split("/")[0] == first]
        if answers:
            return next((item for item in answers if said_text(item, known) in texts), answers[0])
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
