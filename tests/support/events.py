"""Short ways to write the events of a call, and to read what they fold to.

Events are plain dicts as a producer sends them. The n-th event of a call is received at n seconds, which is its time
when it has no `ts`.
"""

from __future__ import annotations

from typing import Any

from voicemem.protocol.events import JournaledEvent
from voicemem.protocol.types import JsonObject

JOKE = "Why did the scarecrow win an award? Because he was outstanding in his field!"


def event(kind: str, turn: int | None = None, ts: int | None = None, **more: Any) -> JsonObject:
    """An event as a producer sends it; what is None is left out."""
    fields = {"type": kind, "turn_id": turn, "ts": ts, **more}
    return {name: value for name, value in fields.items() if value is not None}


def partial(turn: int | None, text: str, ts: int | None = None, **more: Any) -> JsonObject:
    """A text that the recogniser may still change."""
    return event("asr", turn, ts, text=text, **more)


def final(turn: int | None, text: str, ts: int | None = None, **more: Any) -> JsonObject:
    """A text that the recogniser has settled on."""
    return event("asr", turn, ts, text=text, final=True, **more)


def delta(turn: int | None, text: str, ts: int | None = None, **more: Any) -> JsonObject:
    """More of a reply."""
    return event("llm.delta", turn, ts, text=text, **more)


def done(turn: int | None = None, ts: int | None = None, **more: Any) -> JsonObject:
    """The end of a reply's generation."""
    return event("llm.done", turn, ts, **more)


def dialogue(turns: int) -> list[JsonObject]:
    """A user's question and the agent's answer in each turn."""
    return [
        event
        for turn in range(1, turns + 1)
        for event in (final(turn, f"Q{turn}", turn), delta(turn, f"A{turn}", turn), done(turn, turn))
    ]


def failed(turn: int | None = None, ts: int | None = None, **more: Any) -> JsonObject:
    """A failed LLM call."""
    return event("llm.error", turn, ts, **more)


def tts(turn: int | None = None, ts: int | None = None, **more: Any) -> JsonObject:
    """Playback of a reply."""
    return event("tts", turn, ts, **more)


def interrupt(turn: int | None = None, ts: int | None = None, **more: Any) -> JsonObject:
    """The user cuts in."""
    return event("interrupt", turn, ts, **more)


def resume(turn: int | None = None, ts: int | None = None, **more: Any) -> JsonObject:
    """A false alarm."""
    return event("resume", turn, ts, **more)


def message(turn: int | None, text: str, ts: int | None = None, **more: Any) -> JsonObject:
    """A whole message, the agent's greeting unless `more` says otherwise."""
    return event("message", turn, ts, text=text, **({"role": "assistant", "source": "greeting"} | more))


def typed(turn: int | None, text: str, ts: int | None = None, **more: Any) -> JsonObject:
    """A whole message that the user typed."""
    return message(turn, text, ts, role="user", source="message", **more)


def word(text: str, start_ms: int, end_ms: int) -> JsonObject:
    """One word of an audio."""
    return {"text": text, "start_ms": start_ms, "end_ms": end_ms}


def words(text: str, each_ms: int = 100) -> list[JsonObject]:
    """The words of a text, one after the other, each of the same length."""
    return [word(one, index * each_ms, (index + 1) * each_ms) for index, one in enumerate(text.split())]


EventLike = JsonObject | JournaledEvent
LARGE_TEXT = "x" * 200_000
"""A text that no half-filled page of a database has room for."""


def final_transcript(seq: int | None = None, text: str | None = None, **more: Any) -> JsonObject:
    """A final transcript, in a turn of its own unless `more` names another."""
    event = {"type": "asr", "seq": seq, "turn_id": seq or 1, "text": text or f"Line {seq}.", "final": True, **more}
    return {name: value for name, value in event.items() if value is not None}


def session_end(seq: int | None = None, **more: Any) -> JsonObject:
    """The producer's end."""
    return {"type": "session.end", **({} if seq is None else {"seq": seq}), **more}


def unknown_event(seq: int | None = None, **more: Any) -> JsonObject:
    """An event that is refused for its type."""
    return {"type": "no.such.type", **({} if seq is None else {"seq": seq}), **more}
