"""Changes of recorded calls that say the same give the same memory, in every dialect."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from tests.support.dialects import RECORDINGS, Recording, contents, fold_rows, journal_rows
from tests.support.profiles import seeds
from tests.support.rows import every_row
from voicemem.dialects.dialect import AUDIO_BYTES
from voicemem.dialects.registry import DIALECTS
from voicemem.protocol.events import FrameEvent
from voicemem.protocol.types import JsonObject
from voicemem.transcript.fold import DecodedRow

Events = list[FrameEvent]
Change = Callable[[JsonObject], None]
recorded = every_row("recording", RECORDINGS, ids=str)
AFTERWARDS = ("post_call_transcription.", "end-of-call-report", "call_ended", "call_analyzed")
"""How the types of frames begin that a webhook after the call brings; its elements say that they are `reported`."""
LINKED: dict[str, Callable[[JsonObject], Any]] = {
    "openai-realtime": lambda frame: frame["type"].endswith("input_audio_transcription.completed"),
    "elevenlabs-agents": lambda frame: frame["type"] == "user_transcript",
    "ultravox": lambda frame: frame["type"] == "transcript" and frame["role"] == "user" and frame.get("final", False),
    "agora-ten": lambda frame: frame.get("object") == "user.transcription" and frame.get("final", False),
}
"""What the user has said, in frames that name its place, so that it may come late."""
LONGEST_DELAY_MS = 1_000
JOINED = ("deepgram-agent", "openai-live", "nova-sonic")
"""Dialects whose texts are sentences, or have their times."""


def taken_apart(recording: Recording) -> tuple[Events, DecodedRow]:
    """The frames of a call, and its close."""
    *rows, close = journal_rows(recording)
    return [row.event for row in rows if isinstance(row.event, FrameEvent)], close


def memory(events: Events, close: DecodedRow) -> list[JsonObject]:
    rows = [DecodedRow(position, close.received_ms, event, "main") for position, event in enumerate(events, 1)]
    found: list[JsonObject] = contents(fold_rows([*rows, close._replace(position=len(rows) + 1)]))["contents"]
    return found


def essence(messages: list[JsonObject]) -> list[tuple[str, int, str]]:
    """Who said what, in which turn."""
    return [(one["role"], one["turn_id"], one["metadata"].get("original", one["content"])) for one in messages]


def changed(event: FrameEvent, part: str, change: Change) -> FrameEvent:
    """An event with a copy of its frame that is changed; `part` makes another id."""
    frame = json.loads(msgspec.json.encode(event.frame))
    change(frame)
    return msgspec.structs.replace(event, frame=frame, id=None if event.id is None else event.id + part)


def halves(event: FrameEvent, events: Events, draw: random.Random) -> Events:
    """A frame in two, each with a part of its audio or of its piece of a text; as it is if that would say more."""
    parts = sizes(event.frame) if AUDIO_BYTES in event.frame else pieces(event, events, draw)
    return [changed(event, f"/{number}", change) for number, change in enumerate(parts)] or [event]


def sizes(frame: JsonObject) -> list[Change]:
    """Two frames of audio in place of one, where nothing else is in it."""
    if frame.get("words") or "serverContent" in frame or frame[AUDIO_BYTES] < 2:
        return []
    first = frame[AUDIO_BYTES] // 2
    return [partial(set_value, key=AUDIO_BYTES, value=one) for one in (first, frame[AUDIO_BYTES] - first)]


def set_value(frame: JsonObject, key: str, value: object) -> None:
    frame[key] = value


def pieces(event: FrameEvent, events: Events, draw: random.Random) -> list[Change]:
    """Two pieces of a text in place of one."""
    name, encoded = event.dialect, json.dumps(event.frame)
    texts = [one for one in DIALECTS[name].texts(event.frame) if one.holder is not None]
    # A text that is an item, is joined with a space, has times, comes again, or ends something is more than its pieces.
    has_more = any(word in encoded for word in ("true", '"stop"', '"words"')) or is_said_again(event, events)
    is_whole = name in JOINED or "content" in event.frame.get("item", event.frame)
    if is_whole or has_more or len(texts) != 1 or texts[0].form != "piece":
        return []
    whole = texts[0].holder[texts[0].key]
    place = draw.randrange(len(whole) + 1)
    return [partial(set_text, name, said=one) for one in (whole[:place], whole[place:]) if one]


def set_text(dialect: str, frame: JsonObject, said: str) -> None:
    text = next(one for one in DIALECTS[dialect].texts(frame) if one.holder is not None)
    text.holder[text.key] = said


def is_said_again(event: FrameEvent, events: Events) -> bool:
    """Whether a call has the same frame twice: the second may be a whole text that has come before."""
    return [one.frame for one in events].count(event.frame) > 1


@recorded
def test_pieces_of_texts_and_audio_may_be_smaller(recording: Recording) -> None:
    """A text or audio that comes in smaller pieces at the same time is the same."""
    events, close = taken_apart(recording)
    for seed in seeds(10):
        draw = random.Random(seed)
        smaller = [half for one in events for half in (halves(one, events, draw) if draw.random() < 0.5 else [one])]
        assert memory(smaller, close) == memory(events, close)


@recorded
def test_a_stretch_that_is_sent_again_changes_nothing(recording: Recording) -> None:
    """After a lost connection a sender says again what has an id of its own, then or much later."""
    events, close = taken_apart(recording)
    for seed in seeds(10):
        begin, end, at = sorted(random.Random(seed).choices(range(len(events) + 1), k=3))
        again = [one for one in events[begin:end] if one.id is not None]
        assert memory([*events[:at], *again, *events[at:]], close) == memory(events, close)


@recorded
def test_what_names_its_place_may_come_late(recording: Recording) -> None:
    """A transcript that comes up to a second later stands where it was said."""
    events, close = taken_apart(recording)
    is_linked = LINKED.get(recording.dialect)
    linked = [place for place, one in enumerate(events) if is_linked and one.ts is not None and is_linked(one.frame)]
    for place in linked:
        said, *later = events[place:]
        for delay in range(100, LONGEST_DELAY_MS + 1, 300):
            at = (said.ts or 0) + delay
            until = next((n for n, one in enumerate(later) if (one.ts or 0) > at or is_afterwards(one)), len(later))
            late = [*events[:place], *later[:until], msgspec.structs.replace(said, ts=at), *later[until:]]
            assert essence(memory(late, close)) == essence(memory(events, close))


def is_afterwards(event: FrameEvent) -> bool:
    frame: Any = event.frame
    name = str(frame.get("type") or frame.get("event"))
    return frame.get("reported") is True or name.startswith(AFTERWARDS)


def words(messages: list[JsonObject]) -> Counter[tuple[str, str]]:
    """How often who said which word."""
    return Counter((role, word) for role, _, text in essence(messages) for word in text.split())


@recorded
def test_a_stream_that_ends_after_its_webhook_says_nothing_twice(recording: Recording) -> None:
    """Of a call that was heard live, the transcript may come first, in the middle, and again at the end."""
    events, close = taken_apart(recording)
    live = [one for one in events if not is_afterwards(one)]
    reported = [one for one in events if is_afterwards(one)]
    usual = words(memory(events, close))
    for place in range(len(live) + 1 if reported else 0):
        mixed = words(memory([*live[:place], *reported, *live[place:], *reported], close))
        assert not mixed - usual
