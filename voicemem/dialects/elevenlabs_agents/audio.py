"""How long the audio of ElevenLabs' replies is, and when their words are spoken.

Audio may come before the text of its reply, and a word may be divided between two pieces of audio.
"""

from __future__ import annotations

from collections.abc import Iterable

from voicemem.dialects.dialect import AUDIO_BYTES, Known, KnownReply, Made
from voicemem.dialects.elevenlabs_agents.turns import begin_conversation, item_of, newest_reply, stated_ts
from voicemem.protocol.events import Interrupt, Tts, Word
from voicemem.protocol.types import JsonObject

PCM_BYTES_PER_MS = 32
"""Of the usual format: 16 bits at 16 kHz."""
ULAW_BYTES_PER_MS = 8
MAX_WAITING_WORDS = 100
"""Words whose audio came before their reply; the times of further ones are lost."""


def begin(frame: JsonObject, ts: int, known: Known) -> Made:
    """Note the conversation, and how many bytes of audio are a millisecond: of `pcm_16000` 32, of `ulaw_8000` 8."""
    event = frame["conversation_initiation_metadata_event"]
    begin_conversation(event["conversation_id"], known)
    name, _, rate = (event.get("agent_output_audio_format") or "").partition("_")
    if name == "pcm" and rate.isascii() and rate.isdecimal():
        known.note("format", max(1, int(rate[:6]) * 2 // 1000))
    elif name == "ulaw":
        known.note("format", ULAW_BYTES_PER_MS)
    return ()


def count_audio(frame: JsonObject, ts: int, known: Known) -> Made:
    """Count the audio of the newest reply, or of the one to come if the user has spoken since."""
    reply = reply_of_audio(frame, known)
    if reply is None or reply.item is None:
        wait_for_reply(frame, ts, known)
        return
    rate = bytes_per_ms(known)
    count, last = audio_so_far(reply, rate, known)
    words, last = joined_words(frame.get("words") or (), count // rate, last)
    count += frame[AUDIO_BYTES]
    known.note("audio", [reply.item, count, last])
    yield Tts(item=reply.item, total_audio_ms=count // rate, words=words or None)


def reply_of_audio(frame: JsonObject, known: Known) -> KnownReply | None:
    """The reply of the same event, else the newest one if nobody has spoken since it began."""
    event = frame.get("event_id")
    reply = None if event is None else known.reply(item_of("a", event, known))
    if reply is not None:
        return reply
    newest = newest_reply(known)
    return newest if newest is not None and newest.turn >= known.here else None


def audio_so_far(reply: KnownReply, rate: int, known: Known) -> tuple[int, list[object] | None]:
    """The bytes of a reply's audio, of which `rate` are a millisecond, and its last word."""
    item, count, last = known.notes.get("audio") or (None, 0, None)
    if item != reply.item:
        # Another reply's audio came in between: what is known of this one is its length.
        return (reply.total_audio_ms or 0) * rate, None
    return count, last


def joined_words(
    pieces: Iterable[tuple[str, int, int]], before: int, last: list[object] | None
) -> tuple[tuple[Word, ...], list[object] | None]:
    """The words of a piece of audio that begins at `before`; one that the last piece began is said whole."""
    words: list[Word] = []
    for text, start_ms, end_ms in pieces:
        begin_ms = before + start_ms
        if last is not None and text[:1].strip() and not str(last[0])[-1:].isspace():
            text, begin_ms = f"{last[0]}{text}", int(str(last[1]))
        if text.strip():
            words.append(Word(text.strip(), begin_ms, max(begin_ms, before + end_ms)))
            last = [text, begin_ms]
        elif last is not None:
            last = [f"{last[0]} ", last[1]]
    return tuple(words), last


def wait_for_reply(frame: JsonObject, ts: int, known: Known) -> None:
    """Keep the count of audio that comes before the text of its reply."""
    waiting = known.notes.get("waiting")
    if waiting is None or "cut" in waiting:
        waiting = {"bytes": 0, "ts": stated_ts(ts, known), "words": []}
    before = waiting["bytes"] // bytes_per_ms(known)
    pieces = [(text, before + start_ms, before + end_ms) for text, start_ms, end_ms in frame.get("words") or ()]
    words = [*waiting["words"], *pieces][:MAX_WAITING_WORDS]
    known.note("waiting", waiting | {"bytes": waiting["bytes"] + frame[AUDIO_BYTES], "words": words})


def play_waiting(item: str, known: Known) -> Made:
    """Give a new reply the audio that came before it."""
    waiting = known.notes.get("waiting")
    if waiting is not None:
        words, last = joined_words(waiting["words"], 0, None)
        known.note("waiting", None)
        known.note("audio", [item, waiting["bytes"], last])
        total_ms = waiting["bytes"] // bytes_per_ms(known)
        yield Tts(item=item, total_audio_ms=total_ms, words=words or None, ts=waiting["ts"])
        cut = waiting.get("cut")
        if cut is not None:
            yield Interrupt(item=item, audio_end_ms=min(cut - waiting["ts"], total_ms), estimated=True, ts=cut)


def cut_waiting(ts: int, known: Known) -> None:
    """Note that the user interrupted audio whose text has not come yet; without times there is nothing to say of it."""
    waiting = known.notes.get("waiting")
    if waiting is not None:
        began = waiting["ts"]
        known.note("waiting", waiting | {"cut": ts} if known.has_clock and began is not None and ts >= began else None)


def forget_cut(known: Known) -> None:
    """The user has spoken: what they interrupted without its text will have none."""
    if "cut" in (known.notes.get("waiting") or ()):
        known.note("waiting", None)


def bytes_per_ms(known: Known) -> int:
    rate: int = known.notes.get("format", PCM_BYTES_PER_MS)
    return rate
