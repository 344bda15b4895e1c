"""Short ways to write the events of a call, and to read what they fold to.

Events are plain dicts as a producer sends them. The n-th event of a call is received at n seconds, which is its time
when it has no `ts`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from voicemem.events import Journaled, SessionClosed, SessionReopened
from voicemem.fold import Entry, fold_all
from voicemem.history import messages
from voicemem.state import State
from voicemem.wire import Arrived, decode_event, decode_journaled

Fields = dict[str, Any]

JOKE = "Why did the scarecrow win an award? Because he was outstanding in his field!"


def event(kind: str, turn: int | None = None, ts: int | None = None, **more: Any) -> Fields:
    """An event as a producer sends it; what is None is left out."""
    fields = {"type": kind, "turn_id": turn, "ts": ts, **more}
    return {name: value for name, value in fields.items() if value is not None}


def partial(turn: int | None, text: str, ts: int | None = None, **more: Any) -> Fields:
    """A text that the recogniser may still change."""
    return event("asr", turn, ts, text=text, **more)


def final(turn: int | None, text: str, ts: int | None = None, **more: Any) -> Fields:
    """A text that the recogniser has settled on."""
    return event("asr", turn, ts, text=text, final=True, **more)


def delta(turn: int | None, text: str, ts: int | None = None, **more: Any) -> Fields:
    """More of a reply."""
    return event("llm.delta", turn, ts, text=text, **more)


def done(turn: int | None = None, ts: int | None = None, **more: Any) -> Fields:
    """The end of a reply's generation."""
    return event("llm.done", turn, ts, **more)


def failed(turn: int | None = None, ts: int | None = None, **more: Any) -> Fields:
    """A failed LLM call."""
    return event("llm.error", turn, ts, **more)


def tts(turn: int | None = None, ts: int | None = None, **more: Any) -> Fields:
    """Playback of a reply."""
    return event("tts", turn, ts, **more)


def interrupt(turn: int | None = None, ts: int | None = None, **more: Any) -> Fields:
    """The user cuts in."""
    return event("interrupt", turn, ts, **more)


def resume(turn: int | None = None, ts: int | None = None, **more: Any) -> Fields:
    """A false alarm."""
    return event("resume", turn, ts, **more)


def message(turn: int | None, text: str, ts: int | None = None, **more: Any) -> Fields:
    """A whole message, the agent's greeting unless `more` says otherwise."""
    return event("message", turn, ts, text=text, **({"role": "assistant", "source": "greeting"} | more))


def typed(turn: int | None, text: str, ts: int | None = None, **more: Any) -> Fields:
    """A whole message that the user typed."""
    return message(turn, text, ts, role="user", source="message", **more)


def word(text: str, start_ms: int, end_ms: int) -> Fields:
    """One word of an audio."""
    return {"text": text, "start_ms": start_ms, "end_ms": end_ms}


def words(text: str, each_ms: int = 100) -> list[Fields]:
    """The words of a text, one after the other, each of the same length."""
    return [word(one, index * each_ms, (index + 1) * each_ms) for index, one in enumerate(text.split())]


def closed(ts: int) -> SessionClosed:
    """The server's close."""
    return SessionClosed(ts=ts, reason="test")


def reopened() -> SessionReopened:
    """The server's reopening."""
    return SessionReopened()


Given = Fields | Journaled


def taken(given: Given) -> Journaled:
    """An event as the journal has it: checked on the way in, and decoded from what was stored."""
    if not isinstance(given, dict):
        return given
    arrived = decode_event(msgspec.json.encode(given))
    assert isinstance(arrived, Arrived), arrived
    return decode_journaled(arrived.payload)


def entries(given: Iterable[Given]) -> list[Entry]:
    """A journal of these events."""
    return [Entry(position, position * 1000, taken(one)) for position, one in enumerate(given, 1)]


def folded(*given: Given) -> State:
    """The state after these events."""
    return fold_all(State(), entries(given))


def shown(state: State, unfinished: bool = False) -> list[Fields]:
    """The memory of a state as it is written to JSON."""
    return [msgspec.to_builtins(one) for one in messages(state, unfinished)]


def contents(*given: Given, unfinished: bool = False) -> list[Fields]:
    """The memory after these events."""
    return shown(folded(*given), unfinished)


def texts(*given: Given, unfinished: bool = False) -> list[str]:
    """What the messages after these events say."""
    return [one["content"] for one in contents(*given, unfinished=unfinished)]


def only(*given: Given, unfinished: bool = False) -> Fields:
    """The one message after these events."""
    (single,) = contents(*given, unfinished=unfinished)
    return single


def heard(*given: Given) -> tuple[str, str | None]:
    """What was heard of the one message, an interrupted reply, and how that was found."""
    single = only(*given)
    assert single["metadata"]["interrupted"] is True
    return single["content"], single["metadata"].get("heard")
