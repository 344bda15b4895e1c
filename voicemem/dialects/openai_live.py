"""The dialect `openai-live`: the events of OpenAI's Live API (GPT-Live), of a primary connection or a sideband.

Both sides may speak at any time: text fragments have their place on one timeline, in ms of the session, and nothing
marks the end of a turn. A fragment continues its speaker's item (`~in:START`, `~out:START`), unless 1,000 ms have
passed, or the other side has spoken in a shorter pause.

Of a session only its id is kept; audio is not counted, because text fragments have times. Source of the names:
`openai.types.live` of OpenAI's Python SDK.

Notes: `session` (its id), `zero` (when its timeline began, Unix ms), `guessed` (`zero` is from fragments), `in` and
`out` (the last item of the user and of the agent, with its start and end on the timeline; the agent's also with `done`,
`cut`, or `asked`, a written question since), `items` (how many ids were already taken).
"""

import re
from collections.abc import Iterator
from typing import Any

from voicemem.dialects.caller_fields import CallerFields
from voicemem.dialects.dialect import Dialect, Frame, RawFrame, Side, Text
from voicemem.dialects.kinds import ANYTHING, Kind, event, event_id, ignored, keep, many, optional, record, translation
from voicemem.dialects.known import Known, Made
from voicemem.dialects.reading import LONGEST_MS, values, whole
from voicemem.dialects.translating import end_with, pressed, space_between, tool_call
from voicemem.protocol import events
from voicemem.protocol.types import JsonObject

CALL, OUTPUT, MESSAGE = "function_call", "function_call_output", "message"
REPLY, SPOKEN, KEYS = "reply", "spoken", "keys"
"""The keys of fragments, which have no ids. Both sides may speak at once, so one does not end the other's text."""
PAUSE_MS = 1_000
"""After a pause this long, a speaker's words are a new item."""
BREATH_MS = 250
"""The longest pause in which the other side cannot have spoken."""
AHEAD_MS = 5_000
"""Fragments cannot come this long before their time: then the timeline began earlier than assumed."""
SENTENCE_END = re.compile(r"[.!?…。!?।؟][\"'”’»)\]]*\s*\Z")
Said = dict[str, Any]

Fragment = event("delta", start_ms=optional(int), end_ms=optional(int))
"""Text spoken in a range of the session's timeline."""
Commentary = event("content delegation_id?")
Item = record(
    "id? role? status? call_id? name? arguments?",
    type=(str, MESSAGE),
    output=ANYTHING,
    content=optional(many(record("type? text?"))),
)
"""An item of the Responses API: a function call, its output, or a user's written text."""
ItemFrame = event(item=Item)
ResponseFrame = event(event=record("type", item=optional(Item)))


def reduce(frame: RawFrame, side: Side | None = None) -> Frame | None:
    name, kind, content = keep(frame, KINDS, side)
    if content is None:
        return None
    if (kind.record is Commentary and not content.get("delegation_id")) or content.get("delta") == "":
        return None
    if kind.record in (ResponseFrame, ItemFrame) and not keep_item(content, kind.record is ItemFrame):
        return None
    return Frame(
        content,
        id=event_id(content, kind.side),
        side=kind.side,
        session_id=content["session"].get("id") if name == "session.started" else None,
        end=content.get("reason", "closed") if name == "session.closed" else None,
        typed=kind.record is ItemFrame and content["item"].get("type", MESSAGE) == MESSAGE,
    )


def keep_item(content: JsonObject, by_app: bool) -> bool:
    """Reduce an item to a user's written text, or a call or result of the app's function. Return whether it is one."""
    holder = content if by_app else content["event"]
    item = holder.get("item")
    if item is None:
        return False
    kind = item.get("type", MESSAGE)
    if by_app and kind == MESSAGE and item.get("role") == "user":
        content["item"] = {key: one for key, one in item.items() if key in ("id", "type", "role", "content")}
        return bool(written(item))
    if by_app and kind == OUTPUT and item.get("call_id"):
        content["item"] = {key: one for key, one in item.items() if key in ("type", "call_id", "output")}
        return True
    is_called = holder.get("type") == "response.output_item.done" and kind == CALL
    if not by_app and is_called and item.get("call_id") and item.get("name"):
        holder["item"] = {key: one for key, one in item.items() if key in ("type", "call_id", "name", "arguments")}
        return True
    return False


def written(item: JsonObject) -> str:
    parts = item.get("content") or ()
    return "\n".join(part["text"] for part in parts if part.get("type") == "input_text" and part.get("text"))


def texts(frame: JsonObject) -> Iterator[Text]:
    match frame["type"]:
        case "session.input_transcript.delta":
            yield Text(frame, "delta", "piece", "user", SPOKEN)
        case "session.output_transcript.delta":
            yield Text(frame, "delta", "piece", item=REPLY)
        case "transport.dtmf.received":
            yield Text(frame, "event", "piece", "user", KEYS)
        case "session.commentary.append":
            yield Text(frame, "content", "value")
        case "response.event":
            yield from values(frame["event"]["item"], "arguments")
        case "response.item.create":
            yield from values(frame["item"], "output")
            for part in frame["item"].get("content") or ():
                if part.get("text"):
                    yield Text(part, "text", "whole", "user")


# Translation


def closed(ts: int, known: Known) -> Made:
    """Settle the agent's last words, if their end is not known yet."""
    out = known.notes.get("out")
    reply = None if out is None or out.get("cut") else known.reply(out["item"])
    if out is None or reply is None or reply.has_playback:
        return
    zero: int | None = known.notes.get("zero")
    now = ts - zero if zero is not None and known.has_clock else None
    if now is not None and now < out["end"] - BREATH_MS:
        yield interruption(out, max(0, now - out["start"]), ts)
    elif out.get("done"):
        return
    elif (
        SENTENCE_END.search(reply.text)
        or (now is not None and now >= out["end"] + PAUSE_MS)
        or is_cut_by_user(out, known)
    ):
        yield from settle(known)
    else:
        yield interruption(out, out["end"] - out["start"], ts)


def start_session(frame: JsonObject, ts: int, known: Known) -> Made:
    """Handle the start of a session, perhaps after another one with another timeline."""
    id = frame["session"].get("id") or ""
    if id == known.notes.get("session"):
        return
    yield from settle(known)
    known.forget("in", "out", "zero", "guessed")
    known.note("session", id)
    if known.has_clock:
        known.note("zero", ts)


def resume_session(frame: JsonObject, ts: int, known: Known) -> Made:
    """Handle the end of a pause. Whether the timeline paused too is unknown: the next fragment shows it."""
    known.note("zero", None)
    return ()


def note_zero(frame: JsonObject, ts: int, known: Known) -> None:
    """Estimate the timeline's start: a fragment comes when it was spoken, or later; a sideband may begin much later."""
    end_ms = whole(frame.get("end_ms"), LONGEST_MS)
    if not known.has_clock or end_ms is None:
        return
    zero, guess = known.notes.get("zero"), ts - end_ms
    if zero is None or guess < zero - AHEAD_MS or (known.notes.get("guessed") and guess < zero):
        known.note_all(zero=guess, guessed=True)


# Continued and new items


def span_of(frame: JsonObject, *before: Said | None) -> tuple[int, int]:
    """Return the place of a fragment on the timeline; without times, it follows the speech before it."""
    start, end = whole(frame.get("start_ms"), LONGEST_MS), whole(frame.get("end_ms"), LONGEST_MS)
    if start is None:
        start = max((said["end"] for said in before if said is not None), default=0)
    return start, max(start, end or 0)


def continues_item(mine: Said | None, other: Said | None, start: int) -> bool:
    """Return whether a fragment continues its speaker's last item: both sides may speak at once, for any time."""
    if mine is None or start - mine["end"] >= PAUSE_MS:
        return False
    other_spoke = other is not None and other["start"] < start and other["end"] > mine["end"]
    return not ((other_spoke or mine.get("asked")) and start - mine["end"] > BREATH_MS)


def new_item(prefix: str, start: int, known: Known) -> str:
    item = f"~{prefix}:{start}"
    if known.turn_of(item) is None:
        return item
    number = known.notes.get("items", 0) + 1
    known.note("items", number)
    return f"{item}.{number}"


def hear(frame: JsonObject, ts: int, known: Known) -> Made:
    """Handle the user's words. They are final: fragments are only added, never changed."""
    note_zero(frame, ts, known)
    mine, out = known.notes.get("in"), known.notes.get("out")
    (start, end), text = span_of(frame, mine, out), frame["delta"]
    if mine is not None and continues_item(mine, out, start):
        said = known.text_of(mine["item"])
        text = said + (space_between(said, text) if start - mine["end"] > BREATH_MS else "") + text
        mine = mine | {"end": max(mine["end"], end)}
        yield events.Asr(item=mine["item"], text=text, final=True)
    else:
        mine = {"item": new_item("in", start, known), "start": start, "end": end}
        turn = known.utterance_turn()
        yield events.Asr(item=mine["item"], text=text.lstrip(), final=True, turn_id=turn)
        if out is not None and start < out["start"]:
            out = yield from move_reply(out, turn, known)
    known.note("in", mine)
    if out is None or out.get("done"):
        return
    if mine["start"] >= out["end"]:
        yield from finish(out, known)
    elif mine["end"] >= out["end"] + PAUSE_MS:
        yield from settle(known)


def move_reply(out: Said, turn: int, known: Known) -> Any:
    """Move a reply to the turn of the user's words before it, which have only arrived now."""
    reply = known.reply(out["item"])
    if reply is None or reply.turn >= turn:
        return out
    item = new_item("out", out["start"], known)
    yield events.LlmDelta(item=item, text=reply.text, turn_id=turn, ts=reply.begun if known.has_clock else None)
    if reply.complete:
        yield events.LlmDone(item=item)
    yield events.LlmCancel(item=out["item"])
    moved = out | {"item": item}
    known.note("out", moved)
    return moved


def note_asked(known: Known) -> None:
    out = known.notes.get("out")
    if out is not None:
        known.note("out", out | {"asked": True})


def press_key(frame: JsonObject, ts: int, known: Known) -> Made:
    note_asked(known)
    yield pressed(frame["event"], known.utterance_turn())


def speak(frame: JsonObject, ts: int, known: Known) -> Made:
    note_zero(frame, ts, known)
    out = known.notes.get("out")
    (start, end), text = span_of(frame, known.notes.get("in"), out), frame["delta"]
    if out is not None and continues_item(out, known.notes.get("in"), start):
        if out.get("cut"):
            yield events.Resume(item=out["item"])
        out = {"item": out["item"], "start": out["start"], "end": max(out["end"], end)}
        turn = None
    else:
        yield from settle(known)
        out, turn = {"item": new_item("out", start, known), "start": start, "end": end}, known.here
        text = text.lstrip()
    known.note("out", out)
    yield events.LlmDelta(item=out["item"], text=text, turn_id=turn)
    if text.strip():
        begin = max(0, start - out["start"])
        yield events.Tts(item=out["item"], words=(events.Word(text.strip(), begin, max(begin, end - out["start"])),))


def settle(known: Known) -> Made:
    """Settle how the agent stopped: it was interrupted if the user spoke before its sentence ended."""
    out = known.notes.get("out")
    if out is None or out.get("done") or out.get("cut"):
        return
    if is_cut_by_user(out, known):
        known.note("out", out | {"cut": True})
        zero = known.notes.get("zero") if known.has_clock else None
        yield interruption(out, out["end"] - out["start"], None if zero is None else zero + out["end"])
    else:
        yield from finish(out, known)


def is_cut_by_user(out: Said, known: Known) -> bool:
    """Return whether the user spoke when the agent stopped in the middle of a sentence."""
    mine, reply = known.notes.get("in"), known.reply(out["item"])
    by_user = mine is not None and mine["start"] < out["end"] < mine["end"]
    return by_user and reply is not None and not SENTENCE_END.search(reply.text)


def interruption(out: Said, position_ms: int, ts: int | None) -> events.Interrupt:
    """Return an interruption that marks the reply even if all of its text so far was heard: more was to come."""
    return events.Interrupt(item=out["item"], audio_end_ms=position_ms, estimated=True, more=True, ts=ts)


def finish(out: Said, known: Known) -> Made:
    known.note("out", out | {"done": True})
    yield from known.complete(out["item"])


def delegate(frame: JsonObject, ts: int, known: Known) -> Made:
    """Handle work for the app, or its result; the Responses API's own work uses function calls."""
    if "delegation" not in frame:
        yield events.ToolResult(call_id=frame["delegation_id"], result=frame["content"], turn_id=known.here)
    elif frame["delegation"].get("target") == "client":
        yield tool_call(frame["delegation"]["id"], "delegation", {}, known.here)


def call_function(frame: JsonObject, ts: int, known: Known) -> Made:
    item = frame["event"]["item"]
    yield tool_call(item["call_id"], item["name"], item.get("arguments", ""), known.here)


def create_item(frame: JsonObject, ts: int, known: Known) -> Made:
    item = frame["item"]
    if item.get("type", MESSAGE) == OUTPUT:
        yield events.ToolResult(call_id=item["call_id"], result=item.get("output"), turn_id=known.here)
    else:
        note_asked(known)
        yield events.MessageEvent(role="user", text=written(item), source="message")


KINDS: dict[str, Kind] = {
    "session.started": Kind("vendor", event(session=record("id?")), start_session),
    "session.input_transcript.delta": Kind("vendor", Fragment, hear),
    "session.output_transcript.delta": Kind("vendor", Fragment, speak),
    "session.delegation.created": Kind("vendor", event(delegation=record("id target?")), delegate),
    "response.event": Kind("vendor", ResponseFrame, call_function),
    "session.resumed": Kind("vendor", event(), resume_session),
    "transport.dtmf.received": Kind("vendor", event("event"), press_key),
    "session.closed": Kind("vendor", event(reason=(str, "closed")), end_with("reason", "closed")),
    "session.commentary.append": Kind("app", Commentary, delegate),
    "response.item.create": Kind("app", ItemFrame, create_item),
    # Types that are not about the transcript, or repeat it.
    **ignored(
        "vendor",
        """
        session.updated session.paused session.input_audio.muted session.input_audio.unmuted
        session.output_audio.delta
        session.output_audio.fixture.playing session.output_audio.fixture.played session.instructions.appended
        session.thinking.appended session.commentary.appended decision.event decision.item.created
        decision.item.deleted session.usage.updated error info transport.dtmf.sent transport.ringing
        transport.answered transport.failed
        """,
    ),
    # The app's own frames, which no one said.
    **ignored(
        "app",
        """
        session.start session.update session.input_audio.mute session.input_audio.unmute
        session.output_audio.fixture.play session.instructions.append session.thinking.append decision.create
        decision.item.create decision.item.delete response.create session.close
        """,
    ),
    # A sideband gets the audio that the app sends, and older servers confirm keys under the command's name.
    **ignored(None, "session.input_audio.append transport.dtmf.send"),
}
OPENAI_LIVE = Dialect(
    name="openai-live",
    version=4,
    reduce=reduce,
    translate=translation(KINDS),
    closed=closed,
    caller=CallerFields(user="session/metadata/user_id session/safety_identifier", parties="session/metadata"),
    texts=texts,
)
