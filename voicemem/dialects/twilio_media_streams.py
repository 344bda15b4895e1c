"""The dialect `twilio-media-streams`: how far a phone has played the agent's audio, in addition to another dialect.

It makes no replies. A tee around the phone's socket counts the audio that the app sends, and reports positions in it
(`integrations/tee/phone`); here they become positions in the session's replies, of any stack or program. Audio is
assigned to replies in their order of arrival: as much as has come of each, and none that was sent before it came.

`playback` reports how much audio was sent and how much is over, played or cleared, in ms from the start of the stream
(`sent_ms`, `at_ms`), since when the new audio was sent (`since`), and for each `clear` its time, how far the phone had
played, and how much had been sent (`cuts`). SignalWire's frames are Twilio's; the names of Telnyx, Plivo and Vonage
become Twilio's.

Notes: `s:STREAM` (a `Line`).
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import msgspec

from voicemem.dialects.caller_fields import CallerFields
from voicemem.dialects.dialect import Dialect, Frame, RawFrame, Side, Text
from voicemem.dialects.kinds import Kind, Record, ignored, keep, many, optional, record, translation
from voicemem.dialects.known import Known, KnownReply, Made, MadeEvent
from voicemem.dialects.reading import whole
from voicemem.dialects.translating import pressed
from voicemem.protocol.events import Interrupt, Tts
from voicemem.protocol.types import JsonObject

SPELLINGS = {
    "playAudio": "media",
    "checkpoint": "mark",
    "playedStream": "mark",
    "played": "mark",
    "notify": "mark",
    "websocket:notify": "mark",
    "clearAudio": "clear",
    "clearedAudio": "connected",
    "websocket:cleared": "connected",
    "websocket:connected": "start",
    "websocket:dtmf": "dtmf",
}
"""Event names of Plivo and Vonage, and Twilio's for the same, if any."""
STREAM_IDS, CALL_IDS = ("streamSid", "stream_id", "streamId"), ("callSid", "call_control_id", "callId")
CLEARED, STOPPED = "cleared", "stopped"

Name = str | int
"""A reply's item, or its turn if it has none."""

LATE_MS = 1_000
"""This long after audio was sent, the journal has its reply."""
IDLE_MS = 1_500
"""After a pause this long, an app sends no more of the audio before it."""
HELD_MS = 200
"""An app may clear the queue this long after the first audio of the next reply has come."""
NEAR_MS = 40
"""A position this close to the end of a reply counts as its end: formats and frames are rounded."""
STATED_MS = 500
"""A position at a cut is repeated this much later, so that it takes precedence over the app's own estimate."""
DECIDED = -1
MAX_REPLIES, MAX_SPANS, MAX_WAITING, MAX_CUTS, MAX_LINES = 64, 64, 32, 8, 4


def as_twilio(raw: JsonObject) -> JsonObject:
    """Return a frame with Twilio's names for its kept fields, audio, format and marks."""
    event = raw.get("event") or raw.get("action")
    event = SPELLINGS.get(event, event) if isinstance(event, str) else event
    start = raw.get("start")
    start = start if isinstance(start, dict) else {}
    frame = {**raw, "event": event}
    stream = first_text(value for name in STREAM_IDS for value in (raw.get(name), start.get(name)))
    if stream is not None:
        frame["streamSid"] = stream
    match event:
        case "start":
            call = first_text(start.get(name) for name in CALL_IDS)
            form = start.get("mediaFormat") or start.get("media_format") or {"encoding": raw.get("content-type")}
            frame["start"] = {"mediaFormat": form} | ({} if call is None else {"callSid": call})
        case "dtmf" if "digit" in raw:
            frame["dtmf"] = {"digit": raw["digit"]}
        case "mark" if not isinstance(raw.get("mark"), dict):
            frame["mark"] = {"name": raw.get("name") or raw.get("payload")}
    if type(raw.get("sequenceNumber")) is int:
        frame["sequenceNumber"] = str(raw["sequenceNumber"])
    return frame


def first_text(values: Iterable[Any]) -> str | None:
    return next((value for value in values if isinstance(value, str) and value), None)


def reduce(frame: RawFrame, side: Side | None = None) -> Frame | None:
    raw = as_twilio(frame) if isinstance(frame, dict) else frame
    _, kind, content = keep(raw, KINDS, side, "event")
    if content is None:
        return None
    return Frame(
        content, id=kind.id(content), side=kind.side, session_id=(content.get("start") or {}).get("callSid") or None
    )


def key_id(content: JsonObject) -> str | None:
    """Return the id of a pressed key, if the frame has its number."""
    number = content.get("sequenceNumber")
    return number and f"dtmf/{content.get('streamSid')}/{number}"


def texts(frame: JsonObject) -> Iterator[Text]:
    if frame["event"] == "dtmf":
        yield Text(frame["dtmf"], "digit", "whole", "user")


class Line(msgspec.Struct, array_like=True):
    """The audio sent to one phone; positions are ms from the start of its stream."""

    sent: int = 0
    at: int = 0
    """The position up to which audio is over: played, or cleared."""
    ts: int = 0
    """When `at` was reported."""
    begun: int = 0
    """When audio was first sent, Unix ms."""
    assigned: int = 0
    """The position up to which audio is assigned to replies."""
    shown: int = 0
    """The position up to which events have reported audio as played or cleared."""
    spans: list[tuple[int, Name | None, int]] = []
    """Each: the start position, the reply of the audio from there (None: of none), and the position in the reply."""
    waiting: list[tuple[int, int, int, int]] = []
    """Sent audio that is not assigned, or only in part: since when, until when, up to which position, and when the
    queue was cleared before it (0: it was not; `DECIDED`: the reply of the rest is known)."""
    idle_since: int = 0
    """When the audio before `waiting` had been sent."""
    cut: int = 0
    """When the queue was cleared, if nothing was sent since."""
    cuts: list[tuple[int, int, int, int]] = []
    """Cuts of audio that is not all assigned yet: when, at which position, how much had been sent, and the position up
    to which events have reported the cut (0: none)."""
    stated: list[tuple[Name, int, int]] = []
    """Interruptions to repeat: the reply, the position in it, and when."""
    measured: bool = False
    """True once another source has reported the length of a reply's audio."""
    unmeasured: list[Name] = []
    """Replies whose length only this dialect reports."""


def line_of(stream: str, known: Known) -> Line:
    noted = known.notes.get(f"s:{stream}")
    return Line() if noted is None else msgspec.convert(noted, Line)


def keep_line(stream: str, line: Line, known: Known) -> None:
    """Note a line: its spans that are not over, the newest reply's, and the newest entries of its other lists."""
    newest = max((place for place, span in enumerate(line.spans) if span[1] is not None), default=0)
    ended = sum(begin < line.shown for begin, _, _ in line.spans[1:])
    line.spans = line.spans[min(newest, ended) :][-MAX_SPANS:]
    line.waiting, line.cuts = line.waiting[-MAX_WAITING:], line.cuts[-MAX_CUTS:]
    line.stated, line.unmeasured = line.stated[-MAX_CUTS:], line.unmeasured[-MAX_CUTS:]
    known.note_newest(f"s:{stream}", msgspec.to_builtins(line), MAX_LINES)


# Assignment of audio to replies


def name_of(reply: KnownReply) -> Name:
    return reply.turn if reply.item is None else reply.item


class Replies:
    """The reply of the newest span, and later ones, to which sent audio may belong."""

    def __init__(self, line: Line, known: Known) -> None:
        self.line = line
        self.after: list[KnownReply] = []
        """The later replies, in order."""
        self.newest: KnownReply | None = None
        """The reply of the newest span, if it is among the newest of the call."""
        newest = next((name for _, name, _ in reversed(line.spans) if name is not None), None)
        reply = known.newest_reply
        while reply is not None and len(self.after) < MAX_REPLIES and self.newest is None:
            if name_of(reply) == newest:
                self.newest = reply
            else:
                self.after.append(reply)
            reply = reply.before
        self.after.reverse()
        if not line.measured:
            seen = (*self.after, *(() if self.newest is None else (self.newest,)))
            line.measured = any(one.audio_came is not None and name_of(one) not in line.unmeasured for one in seen)

    def came(self, reply: KnownReply) -> int | None:
        """Return when a reply's first audio came, or if unknown, its first text."""
        return reply.audio_came if self.line.measured else reply.begun

    def sent_of_newest(self) -> int:
        """Return how much of the newest reply's audio has been sent."""
        end = self.line.assigned
        for begin, name, offset in reversed(self.line.spans):
            if name is not None:
                return offset + end - begin
            end = begin
        return 0

    def continue_newest(self) -> None:
        """Begin another span of the newest reply."""
        if self.newest is not None:
            self.line.spans.append((self.line.assigned, name_of(self.newest), self.sent_of_newest()))

    def room(self) -> int:
        """Return how much of the newest reply's audio has not been sent."""
        line = self.line
        if self.newest is None:
            return 0
        if name_of(self.newest) not in line.unmeasured:
            return max(0, (self.newest.total_audio_ms or 0) - self.sent_of_newest())
        since = line.waiting[0][0]
        return 0 if self.next(since, since, 0) else line.sent

    def next(self, since: int, until: int, cut: int) -> KnownReply | None:
        """Return the later reply whose audio was sent in an interval, if one had come by then."""
        came = ((reply, self.came(reply)) for reply in self.after)
        candidates = [(reply, at) for reply, at in came if at is not None and cut - HELD_MS <= at <= until]
        while len(candidates) > 1 and since - max(self.line.idle_since, candidates[0][1]) > IDLE_MS:
            del candidates[0]
        return candidates[0][0] if candidates else None

    def cut_before(self, since: int) -> int:
        """Return when the newest reply was cut, according to the model's side, if it was by then; else 0."""
        ended = None if self.newest is None or self.newest.cut == "no" else self.newest.ended
        return 0 if ended is None or ended > since else ended

    def has_later(self, until: int) -> bool:
        """Return whether audio of another reply came later, so that the journal is complete up to then."""
        return any((self.came(reply) or 0) > until for reply in self.after)

    def begin(self, reply: KnownReply) -> None:
        line = self.line
        line.spans.append((line.assigned, name_of(reply), 0))
        if not line.measured:
            line.unmeasured.append(name_of(reply))
        del self.after[: self.after.index(reply) + 1]
        self.newest = reply


def assign(line: Line, ts: int, known: Known) -> Made:
    """Assign sent audio to replies, as far as the journal has them at a time."""
    replies = Replies(line, known)
    while line.waiting:
        since, until, end, cut = line.waiting[0]
        cut = 0 if cut == DECIDED else cut or replies.cut_before(since)
        room = 0 if cut else replies.room()
        is_settled = ts - until > LATE_MS or replies.has_later(until)
        if line.assigned >= end:
            line.idle_since = until
            del line.waiting[0]
        elif room:
            if line.spans[-1][1] is None:
                replies.continue_newest()
            line.assigned = min(line.assigned + room, end)
        elif (line.measured or is_settled) and (reply := replies.next(since, until, cut)) is not None:
            replies.begin(reply)
            line.waiting[0] = since, until, end, DECIDED
        elif is_settled and cut and replies.room():  # the rest of a reply after all
            replies.continue_newest()
            line.waiting[0] = since, until, end, DECIDED
        elif is_settled:
            if not line.spans or line.spans[-1][1] is not None:
                line.spans.append((line.assigned, None, 0))
            line.assigned = end
        else:
            break
    for begin, end, name, offset in spans_within(line, line.shown, line.assigned):
        if name in line.unmeasured:
            yield about(name, Tts(total_audio_ms=offset + end - begin))


def spans_within(line: Line, begin: int, end: int) -> list[tuple[int, int, Name, int]]:
    """Return the spans with a reply between two positions, each with its start and end."""
    ends = (*(start for start, _, _ in line.spans[1:]), line.assigned)
    return [
        (start, stop, name, offset)
        for (start, name, offset), stop in zip(line.spans, ends, strict=False)
        if name is not None and start < end and begin < stop
    ]


# Heard audio


def about(name: Name, event: Tts | Interrupt) -> MadeEvent:
    named = {"turn_id": name} if isinstance(name, int) else {"item": name}
    return msgspec.structs.replace(event, **named)


def position_in(known: Known, name: Name, ms: int) -> tuple[int, bool]:
    """Return a position in a reply's audio, and whether it is the end."""
    reply = known.reply(name) if isinstance(name, str) else known.newest_reply
    for _ in range(MAX_REPLIES if isinstance(name, int) else 0):
        reply = reply.before if reply is not None and reply.turn != name else reply
    total = None if reply is None else reply.total_audio_ms
    is_end = total is not None and total - ms <= NEAR_MS
    return (total if is_end and total is not None else ms), is_end


def show(line: Line, until: int, ts: int, known: Known) -> Made:
    """Report the audio up to a position as played; the position was reached at `ts`."""
    stop = min(until, line.assigned)
    for begin, end, name, offset in spans_within(line, line.shown, stop):
        reached = min(end, stop)
        ms, _ = position_in(known, name, offset + reached - begin)
        yield about(name, Tts(audio_ms=ms, ts=max(0, ts - (until - reached))))
    line.shown = max(line.shown, stop)


def show_cuts(line: Line, known: Known, cause: str = CLEARED) -> Made:
    """Report what was played when the queue was cleared, and that the rest was not."""
    while line.cuts:
        ts, at, sent, done = line.cuts[0]
        yield from show(line, at, ts, known)
        if line.assigned <= at < sent and not done:
            return  # its reply is not known yet
        named = {name for name, _, cut in line.stated if cut == ts}
        # If all sent audio had been played, the app may have had more of the reply.
        for begin, _, name, offset in spans_within(line, at if at < sent else at - 1, max(at, sent)):
            ms, is_end = position_in(known, name, offset + max(0, at - begin))
            if begin >= done and name not in named and not (is_end and at > begin):
                named.add(name)
                line.stated.append((name, ms, ts))
                yield about(name, Interrupt(audio_end_ms=ms, more=True, cause=cause, ts=ts))
        line.shown = max(line.shown, min(sent, line.assigned))
        if line.assigned < sent:
            line.cuts[0] = ts, at, sent, line.assigned
            return
        del line.cuts[0]


def state_again(line: Line, ts: int) -> Made:
    """Repeat the positions at cuts, once the app has reported its own estimates."""
    for name, ms, cut in line.stated:
        if ts >= cut + STATED_MS:
            yield about(name, Interrupt(audio_end_ms=ms, more=True, ts=cut + STATED_MS))
    line.stated = [one for one in line.stated if ts < one[2] + STATED_MS]


def play(frame: JsonObject, ts: int, known: Known) -> Made:
    """Handle audio that was sent, played or cleared."""
    stream = frame.get("streamSid") or ""
    line = line_of(stream, known)
    sent, at = whole(frame["sent_ms"]) or 0, whole(frame["at_ms"]) or 0
    if sent < line.sent or at < line.at:  # it is another stream with the same name
        line = Line()
    if sent > line.sent:
        since = min(ts, frame.get("since") or ts)
        line.begun = line.begun or since
        line.waiting.append((since, ts, sent, line.cut))
        line.cut = 0
    line.sent = sent
    cuts = [
        (*cut, 0) for cut in frame.get("cuts") or () if len(cut) == 3 and cut[0] >= 0 and 0 <= cut[1] <= cut[2] <= sent
    ]
    line.cuts += cuts
    yield from assign(line, ts, known)
    if cuts:
        line.cut = cuts[-1][0]
    yield from show_cuts(line, known)
    if not line.cuts:
        yield from show(line, min(at, sent), ts, known)
    line.at, line.ts = min(at, sent), ts
    yield from state_again(line, ts)
    keep_line(stream, line, known)


def played_by(line: Line, ts: int) -> int:
    """Return the position that a phone has played to by a time, if nothing was cut."""
    return min(line.sent, line.at + max(0, ts - line.ts))


def stop(frame: JsonObject, ts: int, known: Known) -> Made:
    """Handle the end of a phone's stream: it plays nothing more."""
    stream = frame.get("streamSid") or ""
    if f"s:{stream}" not in known.notes:
        return
    line = line_of(stream, known)
    yield from assign(line, ts, known)
    if line.at < line.sent:
        line.cuts.append((ts, played_by(line, ts), line.sent, 0))
    yield from show_cuts(line, known, STOPPED)
    line.at, line.ts = line.sent, ts
    keep_line(stream, line, known)


def closed(ts: int, known: Known) -> Made:
    """Report what each phone had played at the end, and that audio never sent was not heard."""
    lines = [msgspec.convert(noted, Line) for noted in known.notes.values()]
    for line in lines:
        yield from assign(line, ts + 2 * LATE_MS, known)
        yield from show_cuts(line, known)
        yield from state_again(line, ts + STATED_MS)
        at = played_by(line, ts)
        yield from show(line, at, min(ts, line.ts + at - line.at), known)
        for begin, _, name, _ in spans_within(line, at, line.sent):
            if begin >= at:
                yield about(name, Interrupt(audio_end_ms=0, more=True, ts=ts))
    begun = min((line.begun for line in lines if line.begun), default=0)
    sent = {name for line in lines for _, name, _ in line.spans}
    for reply in islice(known.open_replies(), MAX_REPLIES) if begun else ():
        came = reply.audio_came
        if came is not None and came >= begun and not reply.has_playback and name_of(reply) not in sent:
            yield about(name_of(reply), Interrupt(audio_end_ms=0, more=True, ts=ts))


def press_key(frame: JsonObject, ts: int, known: Known) -> Made:
    return (pressed(frame["dtmf"]["digit"], known.utterance_turn()),)


def stream_frame(texts: str = "", **others: Any) -> type[Record]:
    return record(f"event streamSid? {texts}", **others)


KINDS: dict[str, Kind] = {
    "start": Kind("vendor", stream_frame(start=optional(record("callSid?")))),
    "stop": Kind("vendor", stream_frame(), stop),
    "dtmf": Kind("vendor", stream_frame("sequenceNumber?", dtmf=record("digit")), press_key, id=key_id),
    "playback": Kind(
        "app", stream_frame(sent_ms=int, at_ms=int, since=optional(int), cuts=optional(many(many(int)))), play
    ),
    **ignored("vendor", "connected error"),
    **ignored(None, "media mark clear"),
}
TWILIO_MEDIA_STREAMS = Dialect(
    name="twilio-media-streams",
    version=2,
    reduce=reduce,
    translate=translation(KINDS, "event"),
    closed=closed,
    caller=CallerFields(
        user="user_id start/customParameters/user_id start/custom_parameters/user_id",
        number="""
            from caller start/from start/customParameters/from start/customParameters/caller
            start/custom_parameters/from
        """,
        called="to start/to start/customParameters/to start/custom_parameters/to",
        direction="direction start/direction start/customParameters/direction",
        parties="from to caller start",
    ),
    texts=texts,
)
