"""How exact the memory of a true call is: conditions under which its events arrive, the fold, and the words wrong."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from bench.harness.stretching import stretched
from voicemem.cli.truth import Kind, TrueCall, TrueReply, derive, load_call
from voicemem.protocol import codec
from voicemem.protocol.events import SessionClosed
from voicemem.protocol.types import SPACELESS, JsonObject
from voicemem.transcript.fold import DecodedRow, fold_all
from voicemem.transcript.history import messages
from voicemem.transcript.messages import Message
from voicemem.transcript.state import State

CALLS = Path(__file__).parent.parent.parent / "fixtures" / "truth" / "calls"
CLOSE_MS = 300
"""How long after the end of a session the server closes it."""
PLAYBACK = ("tts", "interrupt", "resume", "session.end")
"""The events of the host that plays; all others come from the one that runs the LLM."""
REPORTS = ("tts", "interrupt")
POSITIONS = ("audio_ms", "audio_end_ms")
MARKS = " \n.,!?:;…।、。，！？：；\"'»)"


class Condition(NamedTuple):
    """How the events of a call differ from what happened."""

    name: str
    says: str
    jitter_ms: int = 0
    """A report is up to so late, and its position up to so wrong, to either side."""
    skew_ms: tuple[int, ...] = (0,)
    """How far the clock of the playing host is ahead; the cuts of all are counted together."""
    stretch: float = 1.0
    """How much longer all audio takes."""


CONDITIONS = (
    Condition("plain", "as it happened"),
    Condition("jitter_50", "reports up to 50 ms late, positions up to 50 ms off", jitter_ms=50),
    Condition("jitter_200", "reports up to 200 ms late, positions up to 200 ms off", jitter_ms=200),
    Condition("slow", "speech at 0.7 of the rate", stretch=1 / 0.7),
    Condition("fast", "speech at 1.4 times the rate", stretch=1 / 1.4),
    Condition("clocks_50", "clocks of the two hosts 50 ms apart", skew_ms=(-50, 50)),
    Condition("clocks_200", "clocks 200 ms apart", skew_ms=(-200, 200)),
    Condition("clocks_1000", "clocks 1,000 ms apart", skew_ms=(-1000, 1000)),
)


class Score(NamedTuple):
    """One reply: how many words too many (or too few, below 0) the memory has of it."""

    call: str
    item: str
    is_cut: bool
    spaceless: bool
    """In a script that writes words without spaces: characters count."""
    wrong: int
    heard: str
    truth: str


def load_calls(folder: Path) -> list[TrueCall]:
    return [load_call(path) for path in sorted(folder.glob("*.json"))]


def scores(call: TrueCall, kind: Kind, condition: Condition) -> Iterator[Score]:
    """What the memory of a call is worth, of each reply, for each of the condition's clocks."""
    call = stretched(call, condition.stretch)
    for skew in condition.skew_ms:
        found = {message.timestamp: message for message in memory(call, kind, condition.jitter_ms, skew)}
        for reply in call.replies:
            if kind.sentence_dones and reply.cut_ms is not None and not has_early_done(reply):
                continue
            yield score(call, reply, found.get(call.began + reply.deltas[0].at_ms))


def has_early_done(reply: TrueReply) -> bool:
    """Whether a sentence had ended before the reply was cut."""
    return any(sentence.audio_ms < reply.position_ms for sentence in reply.synthesised[:-1])


def memory(call: TrueCall, kind: Kind, jitter_ms: int, skew_ms: int) -> list[Message]:
    """The agent's messages, after the events of the call and its close."""
    rows = list(journal(derive(call, kind), jitter_ms, skew_ms, call.name))
    ended = rows[-1].received_ms + CLOSE_MS
    rows.append(DecodedRow(len(rows) + 1, ended, SessionClosed(ts=ended, reason="test")))
    return [message for message in messages(fold_all(State(), rows)) if message.role == "assistant"]


def journal(events: Iterable[JsonObject], jitter_ms: int, skew_ms: int, seed: str) -> Iterator[DecodedRow]:
    """The events as two hosts report them, in the order of their arrival."""
    dice = random.Random(seed)
    arriving: list[tuple[int, JsonObject]] = []
    for event in events:
        late = dice.randint(0, jitter_ms) if event["type"] in REPORTS else 0
        arriving.append((event["ts"] + late, {**event, **misread(event, jitter_ms, dice)}))
    arriving.sort(key=lambda pair: (pair[1]["type"] == "session.end", pair[0]))
    for position, (at, event) in enumerate(arriving, 1):
        plays = event["type"] in PLAYBACK
        arrived: Any = codec.decode_event(msgspec.json.encode({**event, "ts": at + skew_ms * plays}))
        yield DecodedRow(position, at, arrived.event, "player" if plays else "llm")


def misread(event: JsonObject, jitter_ms: int, dice: random.Random) -> JsonObject:
    """The positions of an event, wrong by the jitter; that playback begins is at 0."""
    return {name: max(1, event[name] + dice.randint(-jitter_ms, jitter_ms)) for name in POSITIONS if event.get(name)}


def score(call: TrueCall, reply: TrueReply, message: Message | None) -> Score:
    """Words wrong: 0 when the text ends between the last word that had ended and the last that had begun."""
    content = "" if message is None else message.content
    spaceless = SPACELESS.search(reply.text) is not None
    counted = words_in(reply, content)
    if reply.cut_ms is None:
        return Score(call.name, reply.item, False, spaceless, counted - len(reply.words), content, reply.heard())
    position = reply.position_ms
    ended = sum(word.end_ms <= position for word in reply.words)
    begun = sum(word.start_ms < position for word in reply.words)
    wrong = counted - begun if counted > begun else min(0, counted - ended)
    return Score(call.name, reply.item, True, spaceless, wrong, content, reply.heard())


def words_in(reply: TrueReply, content: str) -> int:
    """How many words of a reply a beginning of its text has; words that were never synthesised count too."""
    if not reply.text.startswith(content):
        raise ValueError(f"{content!r} is not a beginning of {reply.text!r}")
    ends = (word.begin + len(reply.text[word.begin : word.end].rstrip(MARKS)) for word in reply.words)
    rest = content[reply.words[-1].end if reply.words else 0 :]
    pieces = rest.split() if " " in reply.text else list(rest)
    return sum(end <= len(content) for end in ends) + sum(bool(piece.strip(MARKS)) for piece in pieces)
