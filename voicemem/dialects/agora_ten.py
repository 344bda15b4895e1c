"""The dialect `agora-ten`: messages of Agora's Conversational AI Engine, and of TEN framework apps, to their clients.

The reply in a turn is `aTURN`, the next one after a tool `aTURN/2`, and so on. Messages come as objects, or as texts
`MESSAGE_ID|PART|PARTS|BASE64`. A part cannot be read before all have arrived, so parts are kept unchanged.

TEN's message collector sends texts without turns, numbers or interruptions (`Collected`); a reply's text is all of it
so far. TEN stops generating as soon as the user speaks, so a reply that is not final then was interrupted.

Notes: `p:ID` (the parts of an incomplete message), `t:ITEM` (the `Times` of a reply), `n:TURN` (the number of replies
in a turn, if several), `users` and `agents` (how many texts of each the collector has sent).
"""

import base64
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from voicemem.dialects.caller_fields import CallerFields
from voicemem.dialects.dialect import Dialect, Frame, MalformedFrame, Parts, RawFrame, Side, Text, UnknownFrame
from voicemem.dialects.kinds import Kind, Record, ignored, keep, kept, many, optional, record
from voicemem.dialects.known import Known, KnownReply, Made
from voicemem.dialects.reading import LONGEST_MS, join_part, json_object, speaker, whole
from voicemem.dialects.translating import latencies
from voicemem.protocol.events import Asr, Interrupt, LlmDelta, LlmDone, Metric, Tts, Word
from voicemem.protocol.types import JsonObject

MAX_PARTS = 64
MAX_PART = 4096
"""The most characters of one part; a message's id has at most 64."""
MAX_MESSAGE_BYTES = 1 << 20
PART = "part"
UNKNOWN_NUMBER = "???"
TRANSCRIBE = "transcribe"
UNIX_MS = 10**12
"""Smaller numbers are not Unix times in ms."""
MAX_OPEN = 16
"""Incomplete messages that are kept; of more, the oldest is dropped."""
INTERRUPTED = 2

PartFrame = record(part=record("id data", index=int, parts=optional(int)))
"""A part of a message that was too long for one frame; it cannot be read before all parts have arrived."""
Collected = record("data_type role text", is_final=(bool, False), text_ts=optional(int))


Latency = record(e2e_latency_ms=optional(float))
Measured = record("", Latency, turn_id=optional(int), metrics=optional(Latency))
"""A finished turn."""


def message(texts: str, **others: Any) -> type[Record]:
    return record(f"{texts} message_id?", **others, send_ts=optional(int))


def reduce(frame: RawFrame, side: Side | None = None) -> Frame | None:
    if side == "app":
        raise MalformedFrame("The app sends no frames of this dialect.")
    if isinstance(frame, dict):
        return reduced_part(frame) if PART in frame else reduced(frame)
    if not isinstance(frame, str | bytes):
        raise MalformedFrame("A frame of this dialect is an object, or a text.")
    part = part_in(frame)
    return reduced(decoded(part["data"])) if part.get("parts") == 1 else reduced_part({PART: part})


def reduced(frame: JsonObject) -> Frame | None:
    """Return the kept fields of a message."""
    content: JsonObject | None
    if is_collected(frame):
        content = kept(Collected, frame)
        if content["data_type"] != TRANSCRIBE:  # the LLM's reasoning, and apps' own data
            return None
        if content["role"] not in ("user", "assistant"):
            raise MalformedFrame("A text is the user's or the assistant's.")
        return Frame(content, ts=unix_time(content.get("text_ts")), side="vendor")
    _, _, content = keep(frame, KINDS, field="object" if "object" in frame else "event_type")
    if content is None:
        return None
    id = content.get("message_id")
    if id is not None:
        # An update may have the same id as the text that it updates.
        said = [*map(content.get, ("turn_seq_id", "turn_status", "final")), len(content.get("text", ""))]
        id = "/".join([id, *(str(one) for one in said if one is not None)])
    return Frame(content, id=id, ts=unix_time(content.get("send_ts")), side="vendor")


def unix_time(ts: int | None) -> int | None:
    return ts if ts is not None and ts >= UNIX_MS else None


def reduced_part(frame: JsonObject) -> Frame:
    """Return a part of a message, which waits for the others."""
    content = kept(PartFrame, frame)
    part = content[PART]
    bounds = (len(part["id"]) <= 64, len(part["data"]) <= MAX_PART, 1 <= part["index"] <= part.get("parts", MAX_PARTS))
    if not all(bounds) or part.get("parts", 1) > MAX_PARTS:
        raise MalformedFrame("A part of a message is malformed.")
    return Frame(content, id=f"{part['id']}/{part['index']}", side="vendor")


def part_in(frame: str | bytes) -> JsonObject:
    """Parse a data stream message into a part. Raises `MalformedFrame`."""
    try:
        id, index, parts, data = (frame if isinstance(frame, str) else frame.decode()).split("|")
        number = {} if parts == UNKNOWN_NUMBER else {"parts": int(parts[:6])}
        return {"id": id, "index": int(index[:6]), "data": data} | number
    except ValueError:
        raise MalformedFrame("A text of this dialect is ID|PART|PARTS|BASE64.") from None


def decoded(data: str) -> JsonObject:
    """Decode the joined parts of a message. Raises `MalformedFrame`."""
    try:
        return json_object(base64.b64decode(data, validate=True), MAX_MESSAGE_BYTES)
    except ValueError:  # also from the base64
        raise MalformedFrame("The parts of a message are not a JSON object.") from None


def is_collected(frame: JsonObject) -> bool:
    """Return whether a message is the collector's, not Agora's."""
    return "data_type" in frame and "role" in frame and "object" not in frame


def texts(frame: JsonObject) -> Iterator[Text]:
    """Yield the texts of a message; a part has no readable text."""
    if is_collected(frame):
        yield Text(frame, "text", "whole", speaker(frame["role"]), final=frame.get("is_final", False))
    elif frame.get("object") == "user.transcription":
        yield Text(frame, "text", "whole", "user", str(frame["turn_id"]), frame.get("final", False))
    elif frame.get("object") == "assistant.transcription":
        item, words = str(frame["turn_id"]), frame.get("words") or ()
        yield Text(frame, "text", "grown" if words else "whole", item=item, final=False)
        for word in words:
            yield Text(word, "word", "word", item=item, at_ms=word.get("start_ms"))


def part_of(frame: JsonObject) -> tuple[str, int, int | None, str] | None:
    """Return the message's id, the part's number, how many parts there are, and its data, if a frame is a part."""
    part = frame.get(PART)
    return None if part is None else (part["id"], part["index"], part.get("parts"), part["data"])


def joined(data: str) -> JsonObject | None:
    """Return the kept fields of the message that all parts make up."""
    try:
        frame = reduced(decoded(data))
    except (MalformedFrame, UnknownFrame):
        return None
    return None if frame is None else frame.content


# Translation


def translate(frame: JsonObject, ts: int, known: Known) -> Made:
    if PART in frame:
        return whole_message(frame[PART], ts, known)
    if is_collected(frame):
        rule = collected_user_text if frame["role"] == "user" else collected_agent_text
        return rule(frame["text"], frame.get("is_final", False), known)
    return KINDS[frame.get("object") or frame["event_type"]].rule(frame, ts, known)


def whole_message(part: JsonObject, ts: int, known: Known) -> Made:
    """Return the events of a message that this part completes."""
    key = f"p:{part['id']}"
    parts = {**known.notes.get(key, {})}
    text = join_part(parts, part["index"], part.get("parts"), part["data"])
    if text is None:
        known.note_newest(key, parts, MAX_OPEN)
        return ()
    known.note(key, None)
    content = joined(text)
    return () if content is None else translate(content, ts, known)


def user_text(frame: JsonObject, ts: int, known: Known) -> Made:
    """Handle all of the user's words in the turn so far; a text that comes after the final one is outdated."""
    item, final = f"u{frame['turn_id']}", frame.get("final", False)
    segment = known.segment(item)
    if final or segment is None or not segment.final:
        user = frame.get("user_id") or None
        yield Asr(item=item, text=frame["text"], final=final, turn_id=frame["turn_id"], user=user)


class Times(NamedTuple):
    """The times of a reply, all on the media clock except `first_ts`."""

    first_ts: int | None = None
    begin_ms: int | None = None
    newest_ms: int | None = None
    end_ms: int | None = None
    number: int | None = None

    def position_at(self, ts: int) -> int | None:
        """Return the playback position by the clock, assuming that it began with the first word."""
        if self.first_ts is None or self.begin_ms is None:
            return None
        return self.begin_ms + max(0, ts - self.first_ts)


def times_of(item: str, known: Known) -> Times:
    return Times(*known.notes.get(f"t:{item}", ()))


def agent_text(frame: JsonObject, ts: int, known: Known) -> Made:
    """Handle an update of a reply: its text, the times of its new words, and its end."""
    turn, status, number = frame["turn_id"], frame.get("turn_status"), frame.get("turn_seq_id")
    count = known.notes.get(f"n:{turn}", 1)
    item = item_of(turn, count)
    times, reply = times_of(item, known), known.reply(item)
    outdated = number is not None and times.number is not None and number < times.number
    words = timed(frame.get("words") or (), times.begin_ms)
    newest_ms = -(2**63) if times.newest_ms is None else times.newest_ms
    new = sorted((word for word in words if word["start_ms"] > newest_ms), key=itemgetter("start_ms"))
    if reply is not None and not outdated and is_another(frame["text"], words, new, reply):
        item, times, reply = item_of(turn, count + 1), Times(newest_ms=times.newest_ms), None
        known.note_newest(f"n:{turn}", count + 1, MAX_OPEN)
    text, whole = grown_text(frame["text"], words, new, reply) if words else (frame["text"], True)
    if text and not outdated and (whole or reply is None or not reply.complete):
        yield LlmDelta(item=item, text=text, whole=whole, turn_id=turn)
    spoken = tuple(spoken_word(word) for word in new if "untimed" not in word)
    if spoken:
        yield Tts(item=item, words=spoken)
    times = noted(times, spoken, new, number, ts if known.has_clock else None)
    if times != Times():
        known.note(f"t:{item}", [*times])
    if status == 1 and (text or reply is not None) and (reply is None or not reply.complete):
        yield LlmDone(item=item)
    elif status == INTERRUPTED and (reply is None or reply.cut == "no"):
        position_ms = times.position_at(ts) if known.has_clock else None
        yield Interrupt(item=item, turn_id=turn, audio_end_ms=position_ms, estimated=position_ms is not None)


def timed(words: Sequence[JsonObject], begin_ms: int | None) -> Sequence[JsonObject]:
    """Return the words of a reply; one without a valid time gets the start of the word before it.

    Without any times the words add nothing to the text, so none are returned.
    """
    begins = [word["start_ms"] for word in words if "start_ms" in word]
    if not begins:
        return ()
    latest_ms = max(0, min(begins) if begin_ms is None else begin_ms) + LONGEST_MS
    if len(begins) == len(words) and max(begins) <= latest_ms:
        return words
    place_ms, placed = min(begins), []
    for word in words:
        is_timed = word.get("start_ms", latest_ms + 1) <= latest_ms
        place_ms = word["start_ms"] if is_timed else place_ms
        placed.append(word if is_timed else word | {"start_ms": place_ms, "untimed": True})
    return placed


def spoken_word(word: JsonObject) -> Word:
    begin_ms, length_ms = max(0, word["start_ms"]), word.get("duration_ms", 0)
    return Word(word["word"].strip(), begin_ms, begin_ms + (whole(length_ms, LONGEST_MS) or 0))


def item_of(turn: int, number: int) -> str:
    """Return the item of a reply in a turn, which may have further replies after tools."""
    return f"a{turn}" if number == 1 else f"a{turn}/{number}"


def is_another(stated: str, words: Sequence[JsonObject], new: Sequence[JsonObject], reply: KnownReply) -> bool:
    """Return whether an update belongs to another reply in the turn: the previous one was complete without it."""
    if not reply.complete or reply.cut != "no" or not stated.strip() or (words and not new):
        return False
    return not begins_tightly(stated, reply.text) and not begins_tightly(reply.text, stated)


def begins_tightly(text: str, beginning: str) -> bool:
    """Return whether a text has a beginning, ignoring white space. The cost is that of the shorter text."""
    if text.startswith(beginning):
        return True
    start = first_letters(beginning, len(text) + 1)
    return first_letters(text, len(start)) == start


def first_letters(text: str, most: int) -> str:
    """Return the first letters of a text, without white space."""
    size = most
    while True:
        size = 2 * size + 64
        letters = "".join(text[:size].split())
        if len(letters) >= most or size >= len(text):
            return letters[:most]


def grown_text(
    stated: str, words: Sequence[JsonObject], new: Sequence[JsonObject], reply: KnownReply | None
) -> tuple[str, bool]:
    """Return the text of an update, and whether it is the whole reply's: some have all of it, some only new words."""
    before = "" if reply is None else reply.text
    if begins_tightly(stated, before) and (before or len(new) == len(words)):
        return stated, True
    return (stated if len(new) == len(words) else "".join(word["word"] for word in new)), False


def noted(
    times: Times, spoken: tuple[Word, ...], new: Sequence[JsonObject], number: int | None, ts: int | None
) -> Times:
    """Return the times of a reply after an update."""
    first_ts, begin_ms, end_ms = times.first_ts, times.begin_ms, times.end_ms
    if spoken:
        if begin_ms is None:
            first_ts, begin_ms = ts, spoken[0].start_ms
        end_ms = max(end_ms or 0, *[word.end_ms for word in spoken])
    number = times.number if number is None else max(number, times.number or 0)
    return Times(first_ts, begin_ms, new[-1]["start_ms"] if new else times.newest_ms, end_ms, number)


def interrupted(frame: JsonObject, ts: int, known: Known) -> Made:
    """Handle a turn that the user cut. Without words it is unknown when its replies began on the media clock."""
    turn, start_ms = frame["turn_id"], frame.get("start_ms")
    for number in range(known.notes.get(f"n:{turn}", 1), 0, -1):
        item = item_of(turn, number)
        begin_ms = None if start_ms is None else times_of(item, known).begin_ms
        position_ms = None if begin_ms is None or start_ms is None else max(0, start_ms)
        yield Interrupt(item=item, turn_id=turn, audio_end_ms=position_ms)
        if position_ms is None or begin_ms is None or begin_ms <= position_ms:
            return


def metric(frame: JsonObject, ts: int, known: Known) -> Made:
    name = f"{frame['module']}_{frame['metric_name']}"
    yield Metric(name=name, latency_ms=frame["latency_ms"], turn_id=frame.get("turn_id"))


def finish_turn(frame: JsonObject, ts: int, known: Known) -> Made:
    """Handle the latency of a turn, in the message or in its payload, perhaps among other metrics."""
    for holder in (frame, frame.get("payload", {})):
        for measured in (holder, holder.get("metrics", {})):
            yield from latencies(measured, {"e2e_latency_ms": "e2e"}, holder.get("turn_id"), None)


def closed(ts: int, known: Known) -> Made:
    """Return how far a reply that may still play was played by the clock, if it began with its first word."""
    for reply in known.open_replies():
        times = times_of(reply.item or "", known)
        position_ms = times.position_at(ts)
        if position_ms is None or times.end_ms is None or reply.has_playback:
            continue
        if reply.complete and position_ms >= times.end_ms:
            yield Tts(item=reply.item, done=True, estimated=True, ts=ts - (position_ms - times.end_ms))
        else:
            yield Tts(item=reply.item, audio_ms=position_ms, estimated=True, ts=ts)


# TEN's message collector


def collected_user_text(text: str, final: bool, known: Known) -> Made:
    number = known.notes.get("users", 0)
    segment = known.segment(f"~u{number}")
    if segment is None or segment.final:
        if not text:
            return
        number += 1
        known.note("users", number)
    item = f"~u{number}"
    reply = known.reply(f"~a{known.notes.get('agents', 0)}")
    if text and reply is not None and not reply.complete and reply.cut == "no":
        yield Interrupt(item=reply.item)
    yield Asr(item=item, text=text, final=final, turn_id=known.turn_of_speech(item))


def collected_agent_text(text: str, final: bool, known: Known) -> Made:
    number = known.notes.get("agents", 0)
    reply = known.reply(f"~a{number}")
    before = "" if reply is None else reply.text
    is_other = not text.startswith(before) and not before.startswith(text)
    if reply is None or (reply.complete and text != before) or (reply.cut != "no" and is_other):
        if not text:
            return
        number, reply = number + 1, None
        known.note("agents", number)
    elif reply.complete:
        return
    item = f"~a{number}"
    turn = known.here if reply is None else None
    if text:
        yield LlmDelta(item=item, text=text, whole=True, turn_id=turn)
    if final:
        yield LlmDone(item=item)


KINDS: dict[str, Kind] = {
    "user.transcription": Kind("vendor", message("object text user_id?", turn_id=int, final=(bool, False)), user_text),
    "assistant.transcription": Kind(
        "vendor",
        message(
            "object text",
            turn_id=int,
            turn_seq_id=optional(int),
            turn_status=optional(int),
            words=optional(many(record("word", start_ms=optional(int), duration_ms=(int, 0)))),
        ),
        agent_text,
    ),
    "message.interrupt": Kind("vendor", message("object", turn_id=int, start_ms=optional(int)), interrupted),
    "message.metrics": Kind(
        "vendor", message("object module metric_name", latency_ms=float, turn_id=optional(int)), metric
    ),
    "turn.finished": Kind(
        "vendor",
        record("object? event_type? message_id?", Measured, payload=optional(Measured), send_ts=optional(int)),
        finish_turn,
    ),
    **ignored(
        "vendor",
        """
        user.translation message.error message.info message.sal_status message.state message.user
        state.listening state.thinking state.speaking image.upload user.manual_sos.result user.manual_eos.result
        assistant.manual_eos.result
        """,
    ),
}
AGORA_TEN = Dialect(
    name="agora-ten",
    version=4,
    reduce=reduce,
    translate=translate,
    closed=closed,
    caller=CallerFields(
        user="user_id", parties="user_id", names_user=lambda frame: frame.get("object") == "user.transcription"
    ),
    texts=texts,
    parts=Parts(part=part_of, join=joined),
)
