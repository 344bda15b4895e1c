"""The dialect `conversation-relay`: Twilio's ConversationRelay, and Telnyx's, which is spoken alike.

| frame | in events |
|---|---|
| `setup` | the session's id, `callSid`; nothing else of it is kept |
| `prompt` `voicePrompt`, `last` | `asr`, a final unless `last` is false; a final ends the reply that is still open |
| app `text` `token`, `last` | `llm.delta`, `llm.done` of `~rN`; N grows with the token after a `last`, prompt or key |
| `interrupt` `utteranceUntilInterrupt` | `interrupt` of what plays, with that heard text; before any token, greeting |
| `interrupt` `durationUntilInterruptMs` | the position, where the text is missing |
| `dtmf` `digit` | a `message` of the user, with `dtmf` in its metadata |
| `info` `agentSpeaking` `on`, `off` | whether a reply is being played when the call is closed, and since when |
| app `end` | `session.end` |
| `error`, other `info`, app `play`, `sendDigits`, `language` | nothing |

Tokens that are still sent after an interruption belong to the reply that was cut. Frames have no ids and no times; the
`ts` of some `info` is another clock than that of the frames around it, and is left out.

Notes: `replies` (N), `over` (whether the next token begins a reply), `speaking` (the reply that the agent speaks, and
since when).
"""

from __future__ import annotations

from itertools import islice
from typing import Any

from voicemem.dialects.clock import stopped_at
from voicemem.dialects.dialect import (
    Dialect,
    Frame,
    Known,
    KnownReply,
    Made,
    RawFrame,
    Side,
    Text,
    Texts,
    Translate,
)
from voicemem.dialects.reading import Kind, Typed, kind_of, require_object, silent
from voicemem.protocol.events import Asr, Interrupt, LlmDelta, LlmDone, MessageEvent, SessionEnd
from voicemem.protocol.types import MAX_INTEGER, JsonObject

ENDED_BY_APP = "end"
"""The reason of a session that the app has ended."""
GREETING = "~greeting"
REPLY = "reply"
"""The tokens of the reply under way, which have no names."""
OVER = Text(None, "", "end", item=REPLY)
MAX_WAITING = 4
"""Replies sent at once of which an interruption may mean an older one."""

# What is kept


class Setup(Typed, rename="camel"):
    call_sid: str | None = None
    session_id: str | None = None


class Prompt(Typed, rename="camel"):
    voice_prompt: str
    last: bool | None = None


class Token(Typed):
    token: str
    last: bool | None = None


class Interruption(Typed, rename="camel"):
    utterance_until_interrupt: str | None = None
    duration_until_interrupt_ms: int | float | str | None = None


class Key(Typed):
    digit: str


class Info(Typed):
    name: str
    value: str | None = None


KINDS: dict[str, Kind] = {
    "setup": Kind("vendor", Setup),
    "prompt": Kind("vendor", Prompt),
    "interrupt": Kind("vendor", Interruption),
    "dtmf": Kind("vendor", Key),
    "info": Kind("vendor", Info),
    "text": Kind("app", Token),
    "end": Kind("app", Typed),
    **silent("vendor", "error"),
    **silent("app", "play sendDigits language"),
}


def reduce(frame: RawFrame, side: Side | None = None) -> Frame | None:
    """Return what is kept of a frame. Raises `MalformedFrame`, `UnknownFrame`."""
    raw = require_object(frame)
    name, kind = kind_of(raw, KINDS, side)
    content = None if name == "info" and raw.get("name") != "agentSpeaking" else kind.keep(raw)
    if content is None:
        return None
    session_id = None
    if name == "setup":
        session_id = content.get("callSid") or content.get("sessionId")
        content = {"type": name} | ({} if session_id is None else {"callSid": session_id})
    elif name == "interrupt":
        content = with_whole_duration(content)
    return Frame(content, side=kind.side, session_id=session_id, end=ENDED_BY_APP if name == "end" else None)


def with_whole_duration(content: JsonObject) -> JsonObject:
    """An interruption whose duration is an integer; older ones of Twilio's have a text."""
    duration = content.pop("durationUntilInterruptMs", None)
    try:
        duration_ms = None if duration is None else int(float(duration))
    except (ValueError, OverflowError):
        duration_ms = None
    if duration_ms is None or not 0 <= duration_ms <= MAX_INTEGER:
        return content
    return content | {"durationUntilInterruptMs": duration_ms}


def texts(frame: JsonObject) -> Texts:
    """The texts of a frame."""
    match frame["type"]:
        case "prompt":
            final = frame.get("last", True)
            said = Text(frame, "voicePrompt", "whole", "user", final=final)
            return (said, OVER) if final else (said,)
        case "dtmf":
            return (Text(frame, "digit", "whole", "user"), OVER)
        case "text":
            token = Text(frame, "token", "piece", item=REPLY)
            return (token, OVER) if frame.get("last", False) else (token,)
        case "interrupt" if frame.get("utteranceUntilInterrupt"):
            return (Text(frame, "utteranceUntilInterrupt", "whole", final=False),)
    return ()


# What it means


def translate(frame: JsonObject, ts: int, known: Known) -> Made:
    """The events of one frame."""
    rule = RULES.get(frame["type"])
    return () if rule is None else rule(frame, ts, known)


def hear_user(frame: JsonObject, ts: int, known: Known) -> Made:
    """Return what the user said; with the whole of it the reply before is over, whether or not the app says so."""
    final: bool = frame.get("last", True)
    if final:
        yield from end_reply(known)
    yield Asr(text=frame["voicePrompt"], final=final)


def press_key(frame: JsonObject, ts: int, known: Known) -> Made:
    yield from end_reply(known)
    yield MessageEvent(role="user", text=frame["digit"], source="message", metadata={"dtmf": True})


def end_reply(known: Known) -> Made:
    """The next token begins a reply."""
    reply = newest_reply(known)
    if reply is not None and not reply.complete:
        yield LlmDone(item=reply.item)
    known.note("over", True)


def grow_reply(frame: JsonObject, ts: int, known: Known) -> Made:
    count = known.notes.get("replies", 0)
    token, last = frame["token"], frame.get("last", False)
    if not count or known.notes.get("over"):
        if not token:  # the end of a reply that the user has ended
            return
        count += 1
        known.note("replies", count)
        known.note("over", None)
    if token:
        yield LlmDelta(item=f"~r{count}", text=token)
    if last:
        known.note("over", True)
        yield LlmDone(item=f"~r{count}")


def newest_reply(known: Known) -> KnownReply | None:
    return known.reply(f"~r{known.notes.get('replies', 0)}")


# Interruptions


def interrupt(frame: JsonObject, ts: int, known: Known) -> Made:
    heard: str | None = frame.get("utteranceUntilInterrupt")
    duration_ms: int | None = frame.get("durationUntilInterruptMs")
    newest = newest_reply(known)
    if newest is None:
        return interrupt_unknown(heard or "", ts, known)
    waiting = waiting_replies(known, newest)
    if not waiting:
        return ()
    if heard is None:
        return (Interrupt(item=newest.item, audio_end_ms=duration_ms),)
    return interrupt_heard(heard, waiting)


def interrupt_unknown(heard: str, ts: int, known: Known) -> Made:
    """A reply that no token belongs to: the greeting, which the TwiML says; later on one that the app did not show."""
    if not heard:
        return
    if known.here:
        yield Interrupt(heard_text=heard, more=True, turn_id=known.here)
    elif known.turn_of(GREETING) is None:
        cut = {"interrupted": True, "interrupt_timestamp": ts, "original": heard}
        yield MessageEvent(item=GREETING, role="assistant", text=heard, source="greeting", turn_id=0, metadata=cut)


def waiting_replies(known: Known, newest: KnownReply) -> list[KnownReply]:
    """The replies that may not have been played yet, the newest first; none if that one has been cut."""
    own = (reply for reply in known.open_replies() if (reply.item or "").startswith("~r"))
    waiting = list(islice(own, MAX_WAITING))
    return waiting if waiting and waiting[0].item == newest.item else []


def interrupt_heard(heard: str, waiting: list[KnownReply]) -> Made:
    """Cut the reply in which the heard text ends, and those behind it, of which nothing was heard.

    Mostly that is the newest. Where the app sends an answer in several replies, the text may begin in an older one.
    """
    place, heard = next(filter(None, (ending(heard, waiting, first) for first in range(len(waiting)))), (0, heard))
    yield cut(waiting[place], heard)
    for later in reversed(waiting[:place]):
        yield Interrupt(item=later.item, heard_text="", more=True)


def ending(heard: str, waiting: list[KnownReply], first: int) -> tuple[int, str] | None:
    """Return where a heard text ends that begins with one of the replies: in which, and what of that was heard."""
    rest, place = in_one_line(heard), first
    while place >= 0:
        text = in_one_line(waiting[place].text)
        if text.startswith(rest):
            return place, heard if place == first else rest
        if not rest.startswith(f"{text} "):
            return None
        rest, place = rest.removeprefix(f"{text} "), place - 1
    return None


def cut(reply: KnownReply, heard: str) -> Interrupt:
    """An interruption, which marks unless it came when all had been said."""
    is_whole = reply.complete and in_one_line(reply.text) == in_one_line(heard)
    return Interrupt(item=reply.item, heard_text=heard, more=not is_whole)


def in_one_line(text: str) -> str:
    return " ".join(text.split())


# Playback


def note_speaking(frame: JsonObject, ts: int, known: Known) -> Made:
    """Note when the agent begins to speak, and that it is silent: whether it speaks counts at the close alone.

    Silence is no evidence that all was heard: the user may have caused it.
    """
    reply = newest_reply(known)
    if frame.get("value") != "on":
        known.note("speaking", None)
    elif reply is not None and known.has_clock:
        known.note("speaking", {"item": reply.item, "since": ts})
    return ()


def closed(ts: int, known: Known) -> Made:
    """The caller hung up while the agent spoke: since it began, so much of the reply has been said."""
    speaking: dict[str, Any] = known.notes.get("speaking") or {}
    reply = known.reply(speaking.get("item", ""))
    if reply is None or reply.cut != "no" or reply.heard or reply.has_playback:
        return
    yield stopped_at(reply.item, ts - speaking["since"], ts)


def end_session(frame: JsonObject, ts: int, known: Known) -> Made:
    yield SessionEnd(reason=ENDED_BY_APP)


RULES: dict[str, Translate] = {
    "prompt": hear_user,
    "dtmf": press_key,
    "text": grow_reply,
    "interrupt": interrupt,
    "info": note_speaking,
    "end": end_session,
}


CONVERSATION_RELAY = Dialect(
    name="conversation-relay", version=1, reduce=reduce, translate=translate, closed=closed, texts=texts
)
