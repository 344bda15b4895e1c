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

from itertools import islice
from typing import Any

from voicemem.dialects.dialect import Dialect, Frame, RawFrame, Side, Text, Texts
from voicemem.dialects.kinds import Kind, Typed, keep, optional, silent, translation, typed
from voicemem.dialects.known import Known, KnownReply, Made
from voicemem.dialects.translating import complete, end_with, plain, stopped_at
from voicemem.protocol.events import Asr, Interrupt, LlmDelta, LlmDone, MessageEvent
from voicemem.protocol.types import MAX_INTEGER, JsonObject

SPEAKING = "agentSpeaking"
ENDED_BY_APP = "end"
"""The reason of a session that the app has ended."""
GREETING = "~greeting"
REPLY = "reply"
"""The tokens of the reply under way, which have no names."""
OVER = Text(None, "", "end", item=REPLY)
MAX_WAITING = 4
"""Replies sent at once of which an interruption may mean an older one."""


def reduce(frame: RawFrame, side: Side | None = None) -> Frame | None:
    name, kind, content = keep(frame, KINDS, side)
    if content is None:
        return None
    session_id = None
    if name == "setup":
        session_id = content.get("callSid") or content.get("sessionId")
        content = {"type": name} | ({} if session_id is None else {"callSid": session_id})
    elif name == "interrupt":
        duration = content.pop("durationUntilInterruptMs", None)
        try:
            duration_ms = -1 if duration is None else int(float(duration))
        except (ValueError, OverflowError):  # older ones of Twilio's have a text
            duration_ms = -1
        if 0 <= duration_ms <= MAX_INTEGER:
            content["durationUntilInterruptMs"] = duration_ms
    return Frame(content, side=kind.side, session_id=session_id, end=ENDED_BY_APP if name == "end" else None)


def texts(frame: JsonObject) -> Texts:
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


def hear_user(frame: JsonObject, ts: int, known: Known) -> Made:
    """The user has said something; with the whole of it the reply before is over, whether or not the app says so."""
    final: bool = frame.get("last", True)
    if final:
        yield from end_reply(known)
    yield Asr(text=frame["voicePrompt"], final=final)


def press_key(frame: JsonObject, ts: int, known: Known) -> Made:
    yield from end_reply(known)
    yield MessageEvent(role="user", text=frame["digit"], source="message", metadata={"dtmf": True})


def end_reply(known: Known) -> Made:
    """The next token begins a reply."""
    yield from complete(newest(known), known)
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


def newest(known: Known) -> str:
    return f"~r{known.notes.get('replies', 0)}"


def interrupt(frame: JsonObject, ts: int, known: Known) -> Made:
    heard: str | None = frame.get("utteranceUntilInterrupt")
    duration_ms: int | None = frame.get("durationUntilInterruptMs")
    item = newest(known)
    if known.reply(item) is None:
        return interrupt_unknown(heard or "", ts, known)
    own = (reply for reply in known.open_replies() if (reply.item or "").startswith("~r"))
    waiting = [*islice(own, MAX_WAITING)]  # those that may not have been played yet, the newest first
    if not waiting or waiting[0].item != item:  # the newest has been cut
        return ()
    if heard is None:
        return (Interrupt(item=item, audio_end_ms=duration_ms),)
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
    rest, place = plain(heard), first
    while place >= 0:
        text = plain(waiting[place].text)
        if text.startswith(rest):
            return place, heard if place == first else rest
        if not rest.startswith(f"{text} "):
            return None
        rest, place = rest.removeprefix(f"{text} "), place - 1
    return None


def cut(reply: KnownReply, heard: str) -> Interrupt:
    """An interruption, which marks unless it came when all had been said."""
    is_whole = reply.complete and plain(reply.text) == plain(heard)
    return Interrupt(item=reply.item, heard_text=heard, more=not is_whole)


def note_speaking(frame: JsonObject, ts: int, known: Known) -> Made:
    """Note when the agent begins to speak, and that it is silent: whether it speaks counts at the close alone.

    Silence is no evidence that all was heard: the user may have caused it.
    """
    if frame.get("value") != "on":
        known.note("speaking", None)
    elif known.reply(newest(known)) is not None and known.has_clock:
        known.note("speaking", {"item": newest(known), "since": ts})
    return ()


def closed(ts: int, known: Known) -> Made:
    """The caller hung up while the agent spoke: since it began, so much of the reply has been said."""
    speaking: dict[str, Any] = known.notes.get("speaking") or {}
    reply = known.reply(speaking.get("item", ""))
    if reply is None or reply.cut != "no" or reply.heard or reply.has_playback:
        return
    yield stopped_at(reply.item, ts - speaking["since"], ts)


KINDS: dict[str, Kind] = {
    "setup": Kind("vendor", typed("callSid? sessionId?")),
    "prompt": Kind("vendor", typed("voicePrompt", last=optional(bool)), hear_user),
    "interrupt": Kind(
        "vendor", typed("utteranceUntilInterrupt?", durationUntilInterruptMs=optional(int | float | str)), interrupt
    ),
    "dtmf": Kind("vendor", typed("digit"), press_key),
    "info": Kind(
        "vendor", typed("name value?"), note_speaking, prepare=lambda raw: raw if raw.get("name") == SPEAKING else None
    ),
    "text": Kind("app", typed("token", last=optional(bool)), grow_reply),
    "end": Kind("app", Typed, end_with("reason", ENDED_BY_APP)),
    **silent("vendor", "error"),
    **silent("app", "play sendDigits language"),
}
CONVERSATION_RELAY = Dialect(
    name="conversation-relay", version=1, reduce=reduce, translate=translation(KINDS), closed=closed, texts=texts
)
