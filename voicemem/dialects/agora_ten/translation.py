"""What messages of Agora's engine say, in events of `voicemem.v1`.

Notes: `p:ID` (the parts of a message that is not whole yet), `t:ITEM` (the `Times` of a reply).
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import NamedTuple

from voicemem.dialects.agora_ten.collector import collected_text, is_collected
from voicemem.dialects.agora_ten.frames import PART, decoded, reduced
from voicemem.dialects.dialect import Known, KnownReply, Made, MalformedFrame, UnknownFrame
from voicemem.protocol.events import Asr, Interrupt, LlmDelta, LlmDone, Metric, Tts, Word
from voicemem.protocol.types import JsonObject

MAX_OPEN = 16
"""Messages of which parts may be missing; of more, the oldest goes."""
INTERRUPTED = 2
START_MS = itemgetter("start_ms")


def translate(frame: JsonObject, ts: int, known: Known) -> Made:
    """The events of one frame."""
    if PART in frame:
        return whole_message(frame[PART], ts, known)
    if is_collected(frame):
        return collected_text(frame, ts, known)
    match frame["object"]:
        case "user.transcription":
            return user_text(frame, known)
        case "assistant.transcription":
            return agent_text(frame, ts, known)
        case "message.interrupt":
            return interrupted(frame, ts, known)
        case _:
            return metric(frame)


def whole_message(part: JsonObject, ts: int, known: Known) -> Made:
    """The events of a message whose last part this is."""
    key = f"p:{part['id']}"
    parts = {**known.notes.get(key, {}), str(part["index"]): part["data"]}
    if "parts" in part:
        parts["of"] = part["parts"]
    number = parts.get("of")
    pieces = [piece for index in range(1, (number or 0) + 1) if (piece := parts.get(str(index))) is not None]
    if number is None or len(pieces) < number:
        waiting = [one for one in known.notes if one.startswith("p:") and one != key]
        if len(waiting) >= MAX_OPEN:
            known.note(waiting[0], None)
        known.note(key, parts)
        return ()
    known.note(key, None)
    try:
        message = reduced(decoded("".join(pieces)))
    except (MalformedFrame, UnknownFrame):
        return ()
    return () if message is None else translate(message.content, ts, known)


def user_text(frame: JsonObject, known: Known) -> Made:
    """What the user said, all of the turn so far; a text that comes after the final one is older than it."""
    item, final = f"u{frame['turn_id']}", frame.get("final", False)
    segment = known.segment(item)
    if final or segment is None or not segment.final:
        user = frame.get("user_id") or None
        yield Asr(item=item, text=frame["text"], final=final, turn_id=frame["turn_id"], user=user)


class Times(NamedTuple):
    """What is noted of a reply; times but `first_ts` are of the media clock."""

    first_ts: int | None = None
    begin_ms: int | None = None
    newest_ms: int | None = None
    end_ms: int | None = None
    number: int | None = None

    def position_at(self, ts: int) -> int | None:
        """Where playback stood by the clock, if it began with the first word."""
        if self.first_ts is None or self.begin_ms is None:
            return None
        return self.begin_ms + max(0, ts - self.first_ts)


NO_TIMES = Times()


def times_of(item: str, known: Known) -> Times:
    kept = known.notes.get(f"t:{item}")
    return NO_TIMES if kept is None else Times(*kept)


def agent_text(frame: JsonObject, ts: int, known: Known) -> Made:
    """More of a reply: its text, the times of its new words, and its end."""
    item, turn, status = f"a{frame['turn_id']}", frame["turn_id"], frame.get("turn_status")
    times, number = times_of(item, known), frame.get("turn_seq_id")
    outdated = number is not None and times.number is not None and number < times.number
    words = frame.get("words") or ()
    new = new_words(words, times.newest_ms) if words else ()
    reply = known.reply(item)
    text, whole = grown_text(frame["text"], words, new, reply) if words else (frame["text"], True)
    if text and not outdated and (whole or reply is None or not reply.complete):
        yield LlmDelta(item=item, text=text, whole=whole, turn_id=turn)
    spoken = tuple(map(spoken_word, new))
    if spoken:
        yield Tts(item=item, words=spoken)
    newest_ms = new[-1]["start_ms"] if new else times.newest_ms
    times = noted(times, spoken, newest_ms, number, ts if known.has_clock else None)
    if times != NO_TIMES:
        known.note(f"t:{item}", [*times])
    if status == 1 and (text or reply is not None) and (reply is None or not reply.complete):
        yield LlmDone(item=item)
    elif status == INTERRUPTED and (reply is None or reply.cut == "no"):
        position_ms = times.position_at(ts) if known.has_clock else None
        yield Interrupt(item=item, turn_id=turn, audio_end_ms=position_ms, estimated=position_ms is not None)


def new_words(words: Sequence[JsonObject], newest_ms: int | None) -> Sequence[JsonObject]:
    """The words that begin after the newest one known, in the order of their times."""
    new = words if newest_ms is None else [word for word in words if word["start_ms"] > newest_ms]
    return sorted(new, key=START_MS)


def grown_text(
    stated: str, words: Sequence[JsonObject], new: Sequence[JsonObject], reply: KnownReply | None
) -> tuple[str, bool]:
    """The text of an update, and whether it is the whole reply's: some say all of it, some only the new words."""
    before = "" if reply is None else reply.text
    if stated.startswith(before) or "".join(stated.split()).startswith("".join(before.split())):
        return stated, True
    return (stated if len(new) == len(words) else "".join(word["word"] for word in new)), False


def spoken_word(word: JsonObject) -> Word:
    begin_ms = max(0, word["start_ms"])
    return Word(word["word"].strip(), begin_ms, begin_ms + max(0, word.get("duration_ms", 0)))


def noted(times: Times, spoken: tuple[Word, ...], newest_ms: int | None, number: int | None, ts: int | None) -> Times:
    """What is known of a reply's times after an update."""
    first_ts, begin_ms, end_ms = times.first_ts, times.begin_ms, times.end_ms
    if spoken:
        if begin_ms is None:
            first_ts, begin_ms = ts, spoken[0].start_ms
        end_ms = max(end_ms or 0, *[word.end_ms for word in spoken])
    number = times.number if number is None else max(number, times.number or 0)
    return Times(first_ts, begin_ms, newest_ms, end_ms, number)


def interrupted(frame: JsonObject, ts: int, known: Known) -> Made:
    """The user cut a reply short. Without words nothing says where on the media clock the reply began."""
    item = f"a{frame['turn_id']}"
    position_ms = None if times_of(item, known).begin_ms is None else max(0, frame["start_ms"])
    yield Interrupt(item=item, turn_id=frame["turn_id"], audio_end_ms=position_ms)


def metric(frame: JsonObject) -> Made:
    name = f"{frame['module']}_{frame['metric_name']}"
    yield Metric(name=name, latency_ms=frame["latency_ms"], turn_id=frame.get("turn_id"))


def closed(ts: int, known: Known) -> Made:
    """How far the reply that may still play was played by the clock: it began with its first word."""
    for reply in known.open_replies():
        times = times_of(reply.item or "", known)
        position_ms = times.position_at(ts)
        if position_ms is None or times.end_ms is None or reply.has_playback:
            continue
        if reply.complete and position_ms >= times.end_ms:
            yield Tts(item=reply.item, done=True, estimated=True, ts=ts - (position_ms - times.end_ms))
        else:
            yield Tts(item=reply.item, audio_ms=position_ms, estimated=True, ts=ts)
