"""The dialect `conversation-relay`: Twilio's ConversationRelay, and Telnyx's, which uses the same messages.

A reply `~rN` ends with a `last` token, the user's words or a key; tokens sent after an interruption belong to the
reply that was cut. Replies are played in order: if a clause of a later one is played, earlier ones were cut. Keys that
the app sends are reported as played too, but belong to no reply. Frames have no ids and no times; the `ts` of some
`info` is on another clock than the frames around it, and is left out. A new connection after a lost one
(`applicationReconnect`) repeats frames that may have been lost: Twilio's newest, in order, before any new ones.

Notes: `replies` (N), `over` (the next token begins a reply), `speaking` (the reply that the agent speaks, and since
when), `spoken` (the newest N at the agent's last silence), `silent` (when the user stopped), `played` (N of the reply
whose clause was played last, how far, and when), `unmatched` (a text that belongs to no reply was played since),
`preemptible` (the newest N that may be cut), `preempted` (N of one that was, and when), `greeting` (the item of the
greeting that may be playing), `cut` (it was interrupted), `session` (its id), `seen` (marks of Twilio's newest frames),
`again` (marks of repeated frames, the time, and the first frame).
"""

import re
from itertools import islice
from typing import Any

import msgspec

from voicemem.dialects.caller_fields import CallerFields
from voicemem.dialects.dialect import Dialect, Frame, RawFrame, Side, Text, Texts
from voicemem.dialects.kinds import Kind, Typed, ignored, keep, optional, translation, typed
from voicemem.dialects.known import MAX_QUEUE, Known, KnownReply, Made, spoken_ms
from voicemem.dialects.reading import digest
from voicemem.dialects.translating import begin_voice, end_with, plain, pressed, space_between
from voicemem.protocol.events import Asr, Interrupt, LlmDelta, LlmDone, MessageEvent, Resume, Tts
from voicemem.protocol.types import MAX_INTEGER, JsonObject

SPEAKING, CALLER, PLAYED = "agentSpeaking", "clientSpeaking", "tokensPlayed"
ENDED_BY_APP = "end"
"""The end reason of a session that the app ended."""
GREETING = "~greeting"
REPLY = "reply"
"""The key of the current reply's tokens, which have no ids."""
OVER = Text(None, "", "end", item=REPLY)
MAX_WAITING = 4
"""The most replies that an interruption may mean, if the app sent several at once."""
KEYS = re.compile("[0-9*#wW]+")
"""Keys that the app sends."""
SAID, WORDS = re.compile(r"\S"), re.compile(r"[^\W_]+")
MARK, MAX_SEEN, MAX_HELD = 6, 500, 4_000
"""Characters of a frame's mark; frames that a connection may repeat; bytes of a frame that is held back."""
AGAIN_MS = 2_000
"""Repeated frames come in a burst: at most this long after each other."""


def reduce(frame: RawFrame, side: Side | None = None) -> Frame | None:
    name, kind, content = keep(frame, KINDS, side)
    if content is None:
        return None
    session_id = None
    if name == "setup":
        session_id = content.get("callSid") or content.get("sessionId")
        own = {} if content.get("sessionId") is None else {"sessionId": content["sessionId"]}
        content = {"type": name} | ({} if session_id is None else {"callSid": session_id}) | own
    elif name == "interrupt":
        duration = content.pop("durationUntilInterruptMs", None)
        try:
            duration_ms = -1 if duration is None else int(float(duration))
        except (ValueError, OverflowError):  # in Twilio's older frames it is a text
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
        case "info" if frame["name"] == PLAYED and frame.get("value"):
            return (Text(frame, "value", "whole", final=False),)
    return ()


# Repeated frames


SENT_AGAIN = ("prompt", "interrupt", "dtmf", "info")


def translate(frame: JsonObject, ts: int, known: Known) -> Made:
    """Return the events of one frame. Frames that a connection repeats count once."""
    if frame["type"] not in SENT_AGAIN or frame.get("name") in (SPEAKING, CALLER):
        yield from translate_new(frame, ts, known)
        return
    again: dict[str, Any] | None = known.notes.get("again")
    mark, seen = digest(frame)[:MARK], known.notes.get("seen", "")
    if again is not None:
        run = again["run"] + mark
        first = again.get("first") or [frame, ts]
        is_soon = not known.has_clock or ts - again["ts"] <= AGAIN_MS
        if is_soon and has_run(seen, run) and len(msgspec.json.encode(first)) <= MAX_HELD:
            known.note("again", {"run": run, "ts": ts, "first": first})
            return
        held = settle_again(known)
        seen = known.notes.get("seen", "")
        if held is not None and held[0]["type"] == frame["type"] == "prompt":  # a frame begins one utterance
            said = held[0]["voicePrompt"] if held[0].get("last", True) else ""
            frame = frame | {"voicePrompt": f"{said} {frame['voicePrompt']}".lstrip()}
        elif held is not None:
            yield from translate_new(*held, known)
    known.note("seen", (seen + mark)[-MARK * MAX_SEEN :])
    yield from translate_new(frame, ts, known)


def has_run(seen: str, run: str) -> bool:
    """Return whether frames with these marks were sent one after the other."""
    place = seen.find(run)
    while place > 0 and place % MARK:
        place = seen.find(run, place + 1)
    return place >= 0


def settle_again(known: Known) -> tuple[JsonObject, int] | None:
    """End a burst of repeated frames. A single one unlike the last frame seen was new: return it with its time."""
    again, seen = known.notes.get("again") or {"run": ""}, known.notes.get("seen", "")
    known.note("again", None)
    if len(again["run"]) == MARK and not seen.endswith(again["run"]):
        known.note("seen", (seen + again["run"])[-MARK * MAX_SEEN :])
        frame, ts = again["first"]
        return frame, ts
    return None


def open_call(frame: JsonObject, ts: int, known: Known) -> Made:
    """Handle the start of a call, a restored connection, or a further connection with another greeting."""
    session, before = frame.get("sessionId") or frame.get("callSid"), known.notes.get("session")
    if session is not None and session == before:
        known.note("again", {"run": "", "ts": ts})
    else:
        known.note("session", session)
        known.note("greeting", GREETING if before is None else f"{GREETING}/{known.here}")
    return ()


# Translation


def hear_user(frame: JsonObject, ts: int, known: Known) -> Made:
    """Handle the user's words; a final ends the previous reply, whether or not the app did."""
    final: bool = frame.get("last", True)
    if final:
        yield from end_reply(known)
    yield Asr(text=frame["voicePrompt"], final=final, ts=known.said_by() if final else None)
    if final:
        known.note("silent", None)


def press_key(frame: JsonObject, ts: int, known: Known) -> Made:
    yield from end_reply(known)
    yield pressed(frame["digit"], known.utterance_turn())


def end_reply(known: Known) -> Made:
    """End the current reply, so that the next token begins one."""
    yield from known.complete(newest(known))
    known.note("over", True)


def grow_reply(frame: JsonObject, ts: int, known: Known) -> Made:
    count = known.notes.get("replies", 0)
    token, last = frame["token"], frame.get("last", False)
    if not count or known.notes.get("over"):
        if not token:  # the end of a reply that the user's words already ended
            return
        yield from preempt(frame, ts, known)
        count += 1
        known.note_all(replies=count, over=None)
    if frame.get("preemptible"):
        known.note("preemptible", count)
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
    waiting = [*islice(own, MAX_WAITING)]  # replies that may not have been played yet, the newest first
    if not waiting or waiting[0].item != item:  # the newest was already cut
        return ()
    if heard is None:
        return (Interrupt(item=item, audio_end_ms=duration_ms),)
    return interrupt_heard(heard, waiting, known)


def interrupt_unknown(heard: str, ts: int, known: Known) -> Made:
    """Interrupt a reply without tokens: the greeting, which is in the TwiML, or later one that the app did not send."""
    greeting = known.notes.get("greeting", GREETING)
    played = known.reply(greeting)
    if not heard:
        return
    if played is None and known.here:
        yield Interrupt(heard_text=heard, more=True, turn_id=known.here)
    elif played is None or not known.notes.get("cut"):
        text = heard if played is None else heard_of(played.text, heard)
        cut = {"interrupted": True, "interrupt_timestamp": ts, "original": text}
        known.note("cut", True)
        yield MessageEvent(item=greeting, role="assistant", text=text, source="greeting", turn_id=0, metadata=cut)


def heard_of(played: str, heard: str) -> str:
    """Return the heard text of a greeting: the played clauses, and the text until the interruption."""
    if plain(heard).startswith(plain(played)):
        return heard
    return played if plain(played).endswith(plain(heard)) else played + space_between(played, heard) + heard


def interrupt_heard(heard: str, waiting: list[KnownReply], known: Known) -> Made:
    """Cut the reply in which the heard text ends, and later replies, which were not heard.

    Mostly that is the newest. If the app sends an answer in several replies, the text may begin in an older one; it may
    also be only the current sentence.
    """
    end = after_played(heard, waiting, known)
    places = range(len(waiting))
    end = end or next(filter(None, (ending(heard, waiting, first) for first in places)), None)
    end = end or next(filter(None, (inside(heard, waiting, place) for place in places)), None)
    place, heard = end or (0, heard)
    yield cut(waiting[place], heard)
    for later in reversed(waiting[:place]):
        yield Interrupt(item=later.item, heard_text="", more=True)


def after_played(heard: str, waiting: list[KnownReply], known: Known) -> tuple[int, str] | None:
    """Return the last played reply and its heard text, if `heard` continues or repeats its last clause."""
    number, end, _ = known.notes.get("played") or NOTHING_PLAYED
    for place, reply in enumerate(waiting):
        if end and reply.item == f"~r{number}":
            until = continued(reply.text, end, heard)
            if until is None and plain(reply.text[:end]).endswith(plain(heard)):
                until = end
            return None if until is None else (place, reply.text[:until])
    return None


def inside(heard: str, waiting: list[KnownReply], place: int) -> tuple[int, str] | None:
    """Return a reply and its heard text, if `heard` is in its middle."""
    text, part = plain(waiting[place].text), plain(heard)
    begin = text.find(f" {part}")
    return None if begin < 0 or not part else (place, text[: begin + 1 + len(part)])


def ending(heard: str, waiting: list[KnownReply], first: int) -> tuple[int, str] | None:
    """Return the reply in which `heard` ends, and its heard text, if `heard` begins with the reply `first`."""
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
    """Return an interruption, which marks the reply unless all of it was heard."""
    is_whole = reply.complete and plain(reply.text) == plain(heard)
    return Interrupt(item=reply.item, heard_text=heard, more=not is_whole)


# Playback, clause by clause


NOTHING_PLAYED = (1, 0, 0)
"""The value of `played` before the first reply."""


def inform(frame: JsonObject, ts: int, known: Known) -> Made:
    if frame["name"] == CALLER:
        known.note_voice(frame.get("value") == "on", ts)
        return ()
    if frame["name"] == SPEAKING:
        return note_speaking(frame, ts, known)
    return hear_clause(frame.get("value") or "", ts, known)


def note_speaking(frame: JsonObject, ts: int, known: Known) -> Made:
    """Note when the agent begins to speak and when it is silent, for the close of the call.

    Silence is no evidence that all was heard: the user may have caused it.
    """
    on, count = frame.get("value") == "on" and known.has_clock, known.notes.get("replies", 0)
    spoken: int = known.notes.get("spoken", 0)
    known.note("speaking", {"item": newest(known), "since": ts} if on else None)
    if not on:
        known.note("spoken", count)
    elif spoken < count:
        yield from begin_voice(f"~r{spoken + 1}", ts)
        known.note("spoken", count)


def hear_clause(clause: str, ts: int, known: Known) -> Made:
    """Handle a played clause: of the reply that was played last, of a later one, of the greeting, or a repeat."""
    number, end, _ = known.notes.get("played") or NOTHING_PLAYED
    count = known.notes.get("replies", 0)
    places = [(number, end), *((later, 0) for later in range(max(number + 1, count - MAX_QUEUE), count + 1))]
    for place, start in (*places, (number, 0)):
        reply = known.reply(f"~r{place}")
        until = None if reply is None or is_over(place, reply, known) else continued(reply.text, start, clause)
        if reply is not None and until is not None:
            if place > number or until > end:
                yield from go_to(place, reply, until, ts, known)
            return
    playing = known.reply(f"~r{number}")
    if KEYS.fullmatch(clause) or not clause.strip() or (playing is not None and is_over(number, playing, known)):
        return
    greeting = known.notes.get("greeting", None if "played" in known.notes else GREETING)
    if greeting is None or (count and known.reply(greeting) is None):
        known.note("unmatched", True)
    elif not known.notes.get("cut"):
        yield from greet(greeting, clause, ts, known)


def is_over(number: int, reply: KnownReply, known: Known) -> bool:
    """Return whether a reply was cut, but not by preemption, after which the current clause is still played."""
    return reply.cut != "no" and (known.notes.get("preempted") or [0])[0] != number


def go_to(number: int, reply: KnownReply, until: int, ts: int, known: Known) -> Made:
    """Note that a reply was played up to `until`; earlier replies are over."""
    playing, _, at = known.notes.get("played") or NOTHING_PLAYED
    for earlier in range(max(playing, number - MAX_QUEUE), number):
        yield from stop(earlier, reply.begun if reply.begun > at else ts, known)
    known.note_all(played=[number, until, ts], unmatched=None, greeting=None)
    preempted = known.notes.get("preempted") or [0]
    is_whole, text = is_played(reply.text, until), reply.text
    if preempted[0] == number and not is_whole:
        yield Interrupt(item=reply.item, heard_text=text[:until], more=True, ts=preempted[1])
        return
    if preempted[0] == number:  # it was played to its end before the preemption
        yield Resume(item=reply.item, ts=preempted[1])
    yield Tts(item=reply.item, heard_text=text if is_whole else text[:until])


def greet(item: str, clause: str, ts: int, known: Known) -> Made:
    """Add a clause to the greeting; no frame has its whole text."""
    greeting = known.reply(item)
    before = "" if greeting is None else greeting.text
    speaking: dict[str, Any] = known.notes.get("speaking") or {}
    begun = speaking.get("since") if greeting is None else None
    known.note_all(greeting=item, played=known.notes.get("played") or [0, 0, ts])
    text = before + space_between(before, clause) + clause
    turn = 0 if item == GREETING else known.here
    yield MessageEvent(item=item, role="assistant", text=text, source="greeting", turn_id=turn, ts=begun)


def continued(text: str, start: int, clause: str) -> int | None:
    """Return the end of a clause that comes next in a text; if the spelling differs, only words count."""
    part, begin = clause.strip(), SAID.search(text, start)
    if part and begin is not None and text.startswith(part, begin.start()):
        return begin.start() + len(part)
    words, match = WORDS.finditer(text, start), None
    for said in WORDS.finditer(part):
        match = next(words, None)
        if match is None or match[0].casefold() != said[0].casefold():
            return None
    return None if match is None else match.end()


def is_played(text: str, until: int) -> bool:
    """Return whether no word of a text comes after `until`."""
    return WORDS.search(text, until) is None


def stop(number: int, ts: int, known: Known) -> Made:
    """Stop a reply: the text that was not played by now was not heard."""
    reply = known.reply(f"~r{number}")
    if reply is None or reply.cut != "no" or known.notes.get("unmatched"):
        return
    playing, end, _ = known.notes.get("played") or NOTHING_PLAYED
    until = end if number == playing else 0
    if number >= playing and not is_played(reply.text, until):
        yield Interrupt(item=reply.item, heard_text=reply.text[:until], more=True, ts=ts)


def preempt(frame: JsonObject, ts: int, known: Known) -> Made:
    """Cut the previous text if it is preemptible and was not played to its end."""
    number = known.notes.get("preemptible", 0)
    reply = known.reply(f"~r{number}")
    known.note("preemptible", None)
    if reply is None or number != known.notes.get("replies"):
        return
    speaking: dict[str, Any] = known.notes.get("speaking") or {}
    if "played" in known.notes:
        cuts = [*stop(number, ts, known)]
        known.note("preempted", [number, ts] if cuts else None)
        yield from cuts
    elif speaking.get("item") == reply.item and ts - speaking["since"] < spoken_ms(reply.text):
        yield Interrupt(item=reply.item, audio_end_ms=max(0, ts - speaking["since"]), estimated=True)


def closed(ts: int, known: Known) -> Made:
    """Handle a hang-up while the agent spoke: only the played clauses were heard.

    Of a reply without a played clause, as much counts as fits in the time since the agent last began to speak.
    """
    held = settle_again(known)
    if held is not None:
        yield from translate_new(*held, known)
    speaking: dict[str, Any] = known.notes.get("speaking") or {}
    reply = known.reply(speaking.get("item", ""))
    number, _, at = known.notes.get("played") or NOTHING_PLAYED
    since = speaking.get("since", 0)
    if "played" in known.notes:
        own = (one for one in known.open_replies() if (one.item or "").startswith("~r"))
        later = [one for one in islice(own, MAX_QUEUE) if int((one.item or "")[2:]) > number]
        reply = later.pop() if later and since > at else None
        for one in later:
            yield Interrupt(item=one.item, heard_text="", more=True, ts=ts)
    if reply is None or reply.cut != "no" or reply.heard or reply.has_playback:
        return
    yield reply.stopped_at(ts - since, ts)


KINDS: dict[str, Kind] = {
    "setup": Kind("vendor", typed("callSid? sessionId?"), open_call),
    "prompt": Kind("vendor", typed("voicePrompt", last=optional(bool)), hear_user),
    "interrupt": Kind(
        "vendor", typed("utteranceUntilInterrupt?", durationUntilInterruptMs=optional(int | float | str)), interrupt
    ),
    "dtmf": Kind("vendor", typed("digit"), press_key),
    "info": Kind(
        "vendor",
        typed("name value?"),
        inform,
        prepare=lambda raw: raw if raw.get("name") in (SPEAKING, CALLER, PLAYED) else None,
    ),
    "text": Kind("app", typed("token", last=optional(bool), preemptible=optional(bool)), grow_reply),
    "play": Kind("app", Typed, preempt),
    "end": Kind("app", Typed, end_with("reason", ENDED_BY_APP)),
    **ignored("vendor", "error configUpdated"),
    **ignored("app", "sendDigits language config hints"),
}
translate_new = translation(KINDS)
"""Translates a frame that is not repeated."""
CONVERSATION_RELAY = Dialect(
    name="conversation-relay",
    version=4,
    reduce=reduce,
    translate=translate,
    closed=closed,
    caller=CallerFields(
        user="customParameters/user_id",
        number="from",
        called="to",
        direction="direction",
        parties="from to forwardedFrom customParameters",
    ),
    texts=texts,
)
