"""What messages of Agora's engine say, in events of `voicemem.v1`.

Notes: `p:ID` (the parts of a message that is not whole yet), `t:ITEM` (the `Times` of a reply).
"""

from __future__ import annotations

from typing import NamedTuple

from voicemem.dialects.agora_ten.collector import collected_text, is_collected
from voicemem.dialects.agora_ten.frames import PART, decoded, reduced
from voicemem.dialects.dialect import Known, Made, MalformedFrame, UnknownFrame
from voicemem.protocol.events import Asr, Interrupt, LlmDelta, LlmDone, Metric, Tts, Word
from voicemem.protocol.types import JsonObject

MAX_OPEN = 16
"""Messages of which parts may be missing; of more, the oldest goes."""
INTERRUPTED = 2


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
    if number is None or not all(str(index) in parts for index in range(1, number + 1)):
        waiting = [one for one in known.notes if one.startswith("p:") and one != key]
        if len(waiting) >= MAX_OPEN:
            known.note(waiting[0], None)
        known.note(key, parts)
        return ()
    known.note(key, None)
    try:
        message = reduced(decoded("".join(parts[str(index)] for index in range(1, number + 1))))
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


def times_of(item: str, known: Known) -> Times:
    return Times(*known.notes.get(f"t:{item}", ()))


def agent_text(frame: JsonObject, ts: int, known: Known) -> Made:
    """More of a reply: its text, the times of its new words, and its end."""
    item, turn, status = f"a{frame['turn_id']}", frame["turn_id"], frame.get("turn_status")
    times, number = times_of(item, known), frame.get("turn_seq_id")
    outdated = number is not None and times.number is not None and number < times.number
    words = sorted(frame.get("words") or (), key=lambda word: word["start_ms"])
    new = [word for word in words if times.newest_ms is None or word["start_ms"] > times.newest_ms]
    reply = known.reply(item)
    text, whole = grown_text(frame["text"], words, new, "" if reply is None else reply.text)
    if text and not outdated and (whole or reply is None or not reply.complete):
        yield LlmDelta(item=item, text=text, whole=whole, turn_id=turn)
    if new:
        yield Tts(item=item, words=tuple(spoken_word(word) for word in new))
    times = noted(times, new, number, ts if known.has_clock else None)
    if times != Times():
        known.note(f"t:{item}", [*times])
    if status == 1 and (text or reply is not None) and (reply is None or not reply.complete):
        yield LlmDone(item=item)
    elif status == INTERRUPTED and (reply is None or reply.cut == "no"):
        position_ms = times.position_at(ts) if known.has_clock else None
        yield Interrupt(item=item, turn_id=turn, audio_end_ms=position_ms, estimated=position_ms is not None)


def grown_text(stated: str, words: list[JsonObject], new: list[JsonObject], before: str) -> tuple[str, bool]:
    """The text of an update, and whether it is the whole reply's: some say all of it, some only the new words."""
    if not words or "".join(stated.split()).startswith("".join(before.split())):
        return stated, True
    return (stated if len(new) == len(words) else "".join(word["word"] for word in new)), False


def spoken_word(word: JsonObject) -> Word:
    begin_ms = max(0, word["start_ms"])
    return Word(word["word"].strip(), begin_ms, begin_ms + max(0, word.get("duration_ms", 0)))


def noted(times: Times, new: list[JsonObject], number: int | None, ts: int | None) -> Times:
    """What is known of a reply's times after an update."""
    if number is not None:
        times = times._replace(number=max(number, times.number or 0))
    if new:
        spoken = [spoken_word(word) for word in new]
        if times.begin_ms is None:
            times = times._replace(first_ts=ts, begin_ms=spoken[0].start_ms)
        end_ms = max(word.end_ms for word in spoken)
        times = times._replace(newest_ms=new[-1]["start_ms"], end_ms=max(end_ms, times.end_ms or 0))
    return times


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
