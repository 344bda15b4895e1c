"""The agent's current speech, from live messages, until the history has it.

Notes: `voices`, the newest few. Each is one reply: the LLM's text (`full`, as the voice gets it; `tokens`, from the
LLM's output, with times), its transcripts (`spoken`), how many `words` or `characters` of it were spoken, the times of
its first and last message, whether it is `over` (`until` when, `by` which words of the user; `in` which turn), and
whether it is `recorded`: by the history, or as the live reply `item`.

`cuts`, the newest few interruptions: when, in which turn of the LLM, and the item once it is known. `user-interrupted`
names neither the message of the history nor the heard text.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from voicemem.dialects.known import Known, MadeEvent, bounded
from voicemem.dialects.translating import begins, newest_noted, plain, space_between
from voicemem.protocol.events import Interrupt
from voicemem.protocol.types import JsonObject

MAX_CUTS = 4
EARLY_MS = 500
"""An interruption may come this long before the stated start of its message."""
Cut = dict[str, Any]
NotedMessage = dict[str, Any]
"""Notes on a message of the history."""
WORD = re.compile(r"\w+")
LIKE = 0.5
"""The least share of the shorter text's words that a similar text has too."""
MAX_VOICES = 3
MAX_TEXT = 3_500
"""How many bytes of a reply, and characters of the user's words, are used, because notes and frames are small."""
SETTLE_MS = 1_500
"""The longest delay of a report on the agent's speech after its interruption or end."""
MAX_WAITING = 8
"""The most texts that are kept in order of time; older ones are joined."""
Voice = dict[str, Any]


class Voices:
    """A context manager over the replies in live messages, the oldest first; changes are noted at its end."""

    def __init__(self, known: Known) -> None:
        self.known = known
        self.voices: list[Voice] = [dict(one) for one in known.notes.get("voices", ())]

    def __enter__(self) -> list[Voice]:
        return self.voices

    def __exit__(self, *error: object) -> None:
        if self.voices != self.known.notes.get("voices", []):
            self.known.note("voices", newest_noted(self.voices, MAX_VOICES) or None)


def newest_of(voices: Sequence[Voice]) -> Voice:
    """Return the newest reply; an empty one if there is none."""
    return voices[-1] if voices else {}


def voice_for(voices: list[Voice], field: str, name: Any, ts: int | None, text: str) -> Voice:
    """Return the reply of a live message: that of its turn, else the newest that is not over, else a new one."""
    named = None if name is None else next((one for one in reversed(voices) if one.get(field) == name), None)
    if named is not None and not is_after_tool(named, field, ts, text):
        return named
    newest = voices[-1] if voices else {"over": True}
    if is_after_tool(newest, field, ts, text):
        newest = {"over": True}
    continues = not newest.get("over") or (name is None and is_late(newest, ts))
    continues = continues or (newest.get(field) is None and is_late(newest, ts, 0))
    last = newest.get("last")
    is_old = newest.get("recorded") and None not in (ts, last) and ts > last + SETTLE_MS  # type: ignore[operator]
    if continues and newest.get(field) in (None, name) and (name is None or not is_old):
        return newest
    voices.append({})
    return voices[-1]


def is_after_tool(voice: Voice, field: str, ts: int | None, text: str) -> bool:
    """Return whether a text belongs to a reply after this one, because a tool came between them."""
    parted = voice.get("parted")
    if parted is None or (ts is not None and ts <= parted):
        return False
    if field == "llm":
        return True
    if field == "turn":
        return not begins(text, full_text(voice)) and not begins(full_text(voice), text)
    rest = plain(generated(voice)).removeprefix(joined(voice.get("spoken", []), " "))
    partial = voice.get("partial")
    return plain(text) not in rest and not (partial and begins(text, partial))


def part_voices(known: Known, ts: int) -> None:
    """Separate replies at a tool call or result: the agent's next words are another reply."""
    with Voices(known) as voices:
        newest = newest_of(voices)
        if not newest.get("over") and full_text(newest):
            newest["parted"] = ts


def part_at(known: Known, ts: int | None) -> None:
    """Separate replies at the user's words: text spoken after that time is another reply, even if it came earlier."""
    with Voices(known) as voices:
        newest = newest_of(voices)
        if ts is None or newest.get("over") or "turn" in newest or not began_before(newest, ts):
            return
        later = {name: [one for one in newest.get(name, ()) if one[0] > ts] for name in ("spoken", "tokens")}
        if not later["spoken"] or newest["first"] > ts:
            return
        for name in later:
            newest[name] = [one for one in newest.get(name, ()) if one[0] <= ts]
        partial, last = newest.pop("partial", ""), newest["last"]
        newest["last"] = ts
        voices.append({**later, "partial": partial, "first": later["spoken"][0][0], "last": last})


def is_late(voice: Voice, ts: int | None, settle_ms: int = SETTLE_MS) -> bool:
    """Return whether a message without a turn may still belong to a reply that was cut."""
    cut = voice.get("cut")
    return cut is not None and ts is not None and ts <= cut + settle_ms


def began_before(voice: Voice, ts: int | None) -> bool:
    """Return whether a reply began before a time; assumed if either time is unknown."""
    first = voice.get("first")
    return ts is None or first is None or bool(first <= ts)


def end_voices(known: Known, ts: int | None) -> None:
    """End all replies at the user's words: the agent's next words are another reply."""
    with Voices(known) as voices:
        for voice in voices:
            if not voice.get("over") and began_before(voice, ts):
                voice |= {"over": True, "until": ts, "in": known.here}


def hear(voice: Voice, ts: int | None) -> None:
    if ts is not None:
        voice["first"] = min(ts, voice.get("first", ts))
        voice["last"] = max(ts, voice.get("last", ts))


def note_speech(frame: JsonObject, voices: list[Voice]) -> None:
    ts = frame.get("timestamp")
    voice = voice_for(voices, "turn", frame.get("turn"), ts, frame["text"])
    hear(voice, ts)
    if "turn" in frame:
        voice["turn"] = frame["turn"]
    if len(frame["text"]) >= len(voice.get("full", "")):
        voice["full"] = bounded(frame["text"], MAX_TEXT)
    for field in ("words", "characters"):
        if field in frame:
            before = voice.get(field, 0)
            voice[field] = max(before, frame[field]) if field == "words" else before + frame[field]


def note_output(frame: JsonObject, voices: list[Voice]) -> None:
    voice = voice_for(voices, "llm", frame.get("turnId"), frame.get("timestamp"), frame["output"])
    hear(voice, frame.get("timestamp"))
    if "turnId" in frame:
        voice["llm"] = frame["turnId"]
    voice["tokens"] = bounded_all(in_order(voice.get("tokens", []), frame["output"], frame.get("timestamp"), ""))


def in_order(texts: list[Any], text: str, ts: int | None, space: str) -> list[Any]:
    """Insert a text by its time, as webhooks may overtake each other; without a time, last. The oldest are joined."""
    at = max((one[0] for one in texts), default=0) if ts is None else ts
    ordered = sorted([*texts, [at, text]], key=lambda one: int(one[0]))
    while len(ordered) > MAX_WAITING:
        (_, first), (at, second) = ordered[:2]
        ordered[:2] = [[at, first + (space and space_between(first, second)) + second]]
    return ordered


def joined(texts: list[Any], space: str) -> str:
    whole = ""
    for _, text in texts:
        whole += (space and space_between(whole, text)) + text
    return whole.strip()


def note_transcript(frame: JsonObject, voices: list[Voice], known: Known) -> None:
    """Note a transcript of the agent; a partial one is replaced by the next."""
    text, ts, last = frame["transcript"].strip(), frame.get("timestamp"), newest_of(voices)
    if not text or (last.get("recorded") and begins(full_text(last), text)):
        return
    if is_of_past(text, ts, voices, known):
        return
    voice = voice_for(voices, "", None, ts, text)
    hear(voice, ts)
    is_final = frame.get("transcriptType", "final") == "final"
    voice["partial"] = "" if is_final else bounded(text, MAX_TEXT)
    if is_final:
        voice["spoken"] = bounded_all(in_order(voice.get("spoken", []), text, ts, " "))


def is_of_past(text: str, ts: int | None, voices: list[Voice], known: Known) -> bool:
    """Return whether a late transcript belongs to a reply that was over before the user spoke."""
    spoke = (known.notes.get("live") or {}).get("ts")
    over = [full_text(one) for one in voices if one.get("over") and began_before(one, ts)]
    is_before = ts is not None and spoke is not None and ts <= spoke
    return is_before and any(plain(text) in plain(full) for full in over)


def bounded_all(texts: list[Any]) -> list[Any]:
    return [[at, bounded(text, MAX_TEXT)] for at, text in texts]


def generated(voice: Voice) -> str:
    full: str = voice.get("full", "").strip()
    if "tokens" not in voice:
        return full
    tokens = joined(voice["tokens"], "")
    return tokens if not full or (begins(tokens, full) and len(tokens) > len(full)) else full


def spoken(voice: Voice) -> str:
    return f"{joined(voice.get('spoken', []), ' ')} {voice.get('partial') or ''}".strip()


def full_text(voice: Voice) -> str:
    """Return all of a reply: the generated text, else the spoken text."""
    return generated(voice) or spoken(voice)


def heard_text(voice: Voice) -> str | None:
    """Return the spoken beginning of a reply; None if unknown."""
    text = generated(voice)
    if text and "words" in voice:
        return first_words(text, int(voice["words"]))
    if text and "characters" in voice:
        return text[: int(voice["characters"])].rstrip()
    said = spoken(voice)
    return text[: len(said)] if text and said and begins(text, said) and plain(text) == text else said or None


def is_spoken_out(voice: Voice) -> bool:
    heard = heard_text(voice)
    return heard is not None and word_count(heard) >= word_count(full_text(voice))


def voice_of(text: str, voices: Sequence[Voice]) -> Voice | None:
    """Return the reply of a history message: the newest with the same beginning."""
    texts = ((voice, full_text(voice)) for voice in reversed(voices))
    return next((voice for voice, full in texts if full and (begins(full, text) or begins(text, full))), None)


def note_cut(frame: JsonObject, ts: int, known: Known) -> Cut:
    """Keep an interruption; the voice that it cut is over. `waits` if that is known: it is not in the history yet."""
    cut: Cut = {"ts": frame.get("timestamp"), "llm": frame.get("turnId"), "number": known.notes.get("cut_count", 0)}
    cut["when"] = frame.get("timestamp", ts if known.has_clock else None)
    known.note("cut_count", cut["number"] + 1)
    with Voices(known) as voices:
        # The voice that was speaking: of the turn that the interruption names, else the newest at its time.
        named = (one for one in voices if cut["llm"] is not None and one.get("llm") == cut["llm"])
        timely = (one for one in reversed(voices) if was_spoken(one, cut["ts"]))
        voice = next(named, None) or next(timely, None)
        if voice is not None:
            attach(cut, voice)
    known.note("cuts", [*known.notes.get("cuts", ()), cut][-MAX_CUTS:])
    return cut


def attach(cut: Cut, voice: Voice) -> None:
    """Note on both sides that an interruption cut a reply."""
    voice["over"], voice["cut"], voice["by"] = True, cut["ts"], cut["number"]
    cut["waits"] = not voice.get("recorded")


def attach_late(voice: Voice, known: Known) -> None:
    """Attach an earlier interruption to the newest reply, if it cut that one, whose first message came only now."""
    cuts = [dict(one) for one in known.notes.get("cuts", ())]
    free = (one for one in cuts if "waits" not in one and one.get("item") is None and is_cut_by(voice, one))
    cut = None if voice.get("over") or "by" in voice else next(free, None)
    if cut is not None:
        attach(cut, voice)
        known.note("cuts", cuts)


def is_cut_by(voice: Voice, cut: Cut) -> bool:
    """Return whether an interruption names the turn of a reply, or came after it had begun."""
    if None not in (cut["llm"], voice.get("llm")):
        return bool(cut["llm"] == voice["llm"])
    return None not in (cut["ts"], voice.get("first")) and bool(voice["first"] <= cut["ts"])


def was_spoken(voice: Voice, at: int | None) -> bool:
    """Return whether a reply was not over at a time, or was ended by the user's words then."""
    if not voice.get("over"):
        return began_before(voice, at)
    until = voice.get("until")
    return None not in (at, until) and "by" not in voice and began_before(voice, at) and at <= until + EARLY_MS  # type: ignore[operator]


def cut_of(noted: NotedMessage, text: str, known: Known) -> Cut | None:
    """Return the interruption of a history message: of its reply, else one close to its end."""
    cuts = reversed(known.notes.get("cuts", ()))
    return next((dict(cut) for cut in cuts if is_about(cut, noted, text, known)), None)


def is_about(cut: Cut, noted: NotedMessage, text: str, known: Known) -> bool:
    at, start, end = cut["ts"], noted.get("time"), noted.get("end")
    if cut.get("item") is not None:
        return bool(cut["item"] == noted["item"]) and (at is None or end is None or end <= at + SETTLE_MS)
    voices = known.notes.get("voices", ())
    if any(one.get("by") == cut["number"] for one in voices) and (at is None or start is None or start <= at):
        voice = voice_of(text, voices)
        if voice is not None and voice.get("by") == cut["number"]:
            return True
    if at is None or start is None:
        bots = known.notes.get("bots") or ()
        return not cut.get("waits") and (not bots or bots[-1]["item"] == noted["item"])
    if at < start - EARLY_MS:
        return False
    if end is not None:
        return bool(abs(at - end) <= SETTLE_MS)
    return all(not start < one.get("time", start) <= at for one in known.notes.get("bots", ()))


def mark_cut(cut: Cut, noted: NotedMessage, full: str, known: Known) -> Iterator[MadeEvent]:
    """Yield the interruption of a message, with its heard text: the history's, or the spoken words."""
    spoken = full[: noted["spoken"]]
    voice = voice_of(spoken, known.notes.get("voices", ()))
    words = None if voice is None else heard_text(voice)
    if noted["spoken"] < len(full) or words is None:
        yield Interrupt(item=noted["item"], heard_text=spoken, more=True, ts=cut["when"])
    elif voice is not None and not is_spoken_out(voice):
        heard = words if begins(full, words) else first_words(full, len(words.split()))
        yield Interrupt(item=noted["item"], heard_text=heard, estimated=True, more=True, ts=cut["when"])
    cuts = known.notes.get("cuts", ())
    known.note("cuts", [one | {"item": noted["item"]} if one["number"] == cut["number"] else one for one in cuts])


# Words, without case and punctuation


def first_words(text: str, count: int) -> str:
    last = next(islice(re.finditer(r"\S+", text), count - 1, None), None) if count > 0 else None
    return text[: last.end()] if last is not None else text if count else ""


def word_count(text: str) -> int:
    return len(text.split())


def is_similar(one: str, other: str) -> bool:
    """Return whether two texts may be transcripts of the same speech."""
    first, second = (WORD.findall(text[:MAX_TEXT].casefold()) for text in (one, other))
    if not first or not second:
        return plain(one) == plain(other)
    if len(first) > len(second):
        first, second = second, first
    known = set(second)
    return sum(word in known for word in first) >= LIKE * len(first)


MAX_NEWEST = 6
"""The most messages of each speaker that are kept to recognise older versions."""


def noted_message(kind: str, item: str, known: Known) -> NotedMessage:
    """Return the notes on a message; empty for a new or a very old one."""
    return next((dict(one) for one in known.notes.get(kind, ()) if one["item"] == item), {})


def keep_message(kind: str, now: NotedMessage, known: Known) -> None:
    others = [one for one in known.notes.get(kind, ()) if one["item"] != now["item"]]
    now = {name: value for name, value in now.items() if value is not None}
    known.note(kind, sorted([*others, now], key=lambda one: one.get("time", 0))[-MAX_NEWEST:])


def is_outdated(before: NotedMessage, message: JsonObject, stamp: int | None) -> bool:
    """Return whether a newer version of a message is known: webhooks come in any order."""
    if stamp is not None and before.get("stamp") is not None:
        return stamp < int(before["stamp"])
    end, known_end = message.get("endTime"), before.get("end")
    return end is not None and known_end is not None and end < known_end


def message_note(item: str, message: JsonObject, stamp: int | None) -> NotedMessage:
    return {"item": item, "time": message.get("time"), "end": message.get("endTime"), "stamp": stamp}
