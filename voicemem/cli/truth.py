"""The calls of `fixtures/truth/`: what was said, generated, played and heard, to the millisecond; and their replay.

Times named `*_ms` count from the start of the call; those of words, positions and lengths of audio from the start of
the reply's or utterance's own audio. Places in a text are code points.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

import click
import msgspec
from msgspec import Struct
from msgspec.structs import replace

from voicemem.cli.common import CommandFailed, Server
from voicemem.client import ClientError, RequestRefused
from voicemem.client.transport.rest import RestClient, session_path
from voicemem.protocol.types import JsonObject
from voicemem.runtime import now_ms


class TrueWord(Struct, array_like=True, frozen=True, gc=False):
    """A word with its marks (or a character, of scripts without spaces): its place in the text, and when it sounds."""

    begin: int
    end: int
    start_ms: int
    end_ms: int


class TrueDelta(Struct, array_like=True, frozen=True, gc=False):
    """A step of the LLM's generation: when it came, and where the text ended then."""

    at_ms: int
    end: int


class Synthesis(Struct, array_like=True, frozen=True, gc=False):
    """The synthesis of one sentence: when its audio was complete, and where it ends in the text and in the audio."""

    at_ms: int
    end: int
    audio_ms: int


class PlayedPart(Struct, array_like=True, frozen=True, gc=False):
    """A part of a reply that was played without a gap: from when until when, and from which position of its audio."""

    from_ms: int
    until_ms: int
    position_ms: int


class FalseAlarm(Struct, array_like=True, frozen=True, gc=False):
    """Playback was paused for a noise, and resumed."""

    at_ms: int
    until_ms: int


class TrueReply(Struct, frozen=True, omit_defaults=True):
    """A reply as the agent truly said it, in one go."""

    turn_id: int
    item: str
    text: str
    """All that was generated."""
    deltas: list[TrueDelta]
    done_ms: int
    words: list[TrueWord]
    synthesised: list[Synthesis]
    played: list[PlayedPart]
    alarms: list[FalseAlarm] = []
    cut_ms: int | None = None
    """The time at which playback stopped for good; None if the reply was heard to its end."""
    source: str = "llm"
    """The origin of its text: `llm`, or `greeting`, which no LLM generates."""

    @property
    def position_ms(self) -> int:
        return self.position_at(self.played[-1].until_ms)

    def position_at(self, at_ms: int) -> int:
        """Return the position in the audio that playback had reached by a time."""
        span = next((one for one in reversed(self.played) if one.from_ms <= at_ms), None)
        return 0 if span is None else span.position_ms + min(at_ms, span.until_ms) - span.from_ms

    def time_of(self, position_ms: int) -> int:
        span = next(one for one in reversed(self.played) if one.position_ms < position_ms or one is self.played[0])
        return span.from_ms + position_ms - span.position_ms

    def generated_until(self, at_ms: int) -> str:
        return self.text[: max((delta.end for delta in self.deltas if delta.at_ms <= at_ms), default=0)]

    def heard(self) -> str:
        return self.text if self.cut_ms is None else self.heard_until(self.cut_ms)

    def heard_until(self, at_ms: int) -> str:
        """Return the text through the last word that had ended by a time, and the white space after it."""
        position = self.position_at(at_ms)
        end = max((word.end for word in self.words if word.end_ms <= position), default=0)
        rest = self.text[end:]
        return self.text[: end + len(rest) - len(rest.lstrip())] if end else ""


class TrueUtterance(Struct, frozen=True, omit_defaults=True):
    """An utterance as the caller truly said it, in one go."""

    turn_id: int
    item: str
    text: str
    begin_ms: int
    words: list[TrueWord]
    final_ms: int
    """The time of the recogniser's final result."""
    noise: bool = False
    """True for the noise of a false alarm, which the recogniser retracted."""


class TrueTool(Struct, frozen=True):
    """A tool call and its result."""

    turn_id: int
    call_id: str
    name: str
    arguments: Any
    result: Any
    called_ms: int
    returned_ms: int


class Speaker(Struct, frozen=True):
    """A voice of espeak-ng, and its rate in words a minute (characters, in Chinese and Japanese), pauses included."""

    voice: str
    rate: int
    pitch: int


class TrueCall(Struct, frozen=True):
    """One call."""

    name: str
    agent: Speaker
    caller: Speaker
    began: int
    """Unix ms."""
    end_ms: int
    utterances: list[TrueUtterance]
    replies: list[TrueReply]
    tools: list[TrueTool]

    @property
    def cut_replies(self) -> list[TrueReply]:
        return [reply for reply in self.replies if reply.cut_ms is not None]

    def is_hung_up(self, reply: TrueReply) -> bool:
        return reply.cut_ms is not None and reply.cut_ms == self.end_ms


def load_call(path: Path) -> TrueCall:
    """Read a file of a true call. Raises `OSError`, `msgspec.ValidationError`."""
    return msgspec.json.decode(path.read_bytes(), type=TrueCall)


PROGRESS_MS = 500
"""How often an engine that reports its progress does so."""


class Kind(NamedTuple):
    """One kind of evidence."""

    name: str
    says: str
    """The evidence in words, for the help and the tables."""
    at_cut: Callable[[TrueReply, int], JsonObject] = lambda reply, at_ms: {}
    """Makes the fields of an interrupt at a time."""
    start: bool = True
    """True if playback events state its start and its end."""
    words: Literal["", "words", "sentences", "clauses"] = ""
    """The known times: of each word, of each word counted from 0 in each sentence, or of each clause."""
    totals: Literal["", "after", "before", "running"] = ""
    """When `total_audio_ms` is known: when playback ended; after each synthesised sentence, with its text or
    without."""
    sentence_dones: bool = False
    """True if there is a `done` wherever a sentence ends."""
    progress: Literal["", "text", "position"] = ""
    hang_up: Literal["", "tts", "interrupt"] = "tts"
    """The event that carries the evidence when the caller hangs up: none, the last progress, or an interrupt."""


def heard_text(reply: TrueReply, at_ms: int) -> JsonObject:
    return {"heard_text": reply.heard_until(at_ms)}


def generated_text(reply: TrueReply, at_ms: int) -> JsonObject:
    return {"heard_text": reply.generated_until(at_ms)}


def heard_chars(reply: TrueReply, at_ms: int) -> JsonObject:
    """Return how many characters were spoken: one counts also in the middle of a word."""
    position = reply.position_at(at_ms)
    count = 0
    for word in reply.words:
        if position >= word.start_ms:
            share = min(1.0, (position - word.start_ms) / (word.end_ms - word.start_ms))
            count = word.begin + int(share * (word.end - word.begin))
    return {"heard_chars": count}


def position(reply: TrueReply, at_ms: int) -> JsonObject:
    return {"audio_end_ms": reply.position_at(at_ms)}


def position_by_audio(reply: TrueReply, at_ms: int) -> JsonObject:
    """Return the position by a clock that stops while no more audio is available."""
    return {**position(reply, at_ms), "estimated": True}


def position_by_clock(reply: TrueReply, at_ms: int) -> JsonObject:
    """Return the time that playback has taken so far, minus false alarms; delays of the TTS are not known."""
    paused = sum(max(0, min(alarm.until_ms, at_ms) - alarm.at_ms) for alarm in reply.alarms)
    return {"audio_end_ms": max(0, at_ms - reply.played[0].from_ms - paused), "estimated": True}


KINDS = {
    kind.name: kind
    for kind in (
        Kind("heard_text", "the interrupt's `heard_text`", heard_text, start=False),
        Kind("heard_chars", "the interrupt's `heard_chars`", heard_chars, start=False, hang_up="interrupt"),
        Kind("words", "a position, and `words`", position, words="words"),
        Kind("words_sentences", "the same with times that begin at 0 in each sentence", position, words="sentences"),
        Kind("clauses", "the same with a clause in each entry of `words`", position, words="clauses"),
        Kind("progress_text", "`tts.heard_text` after each word", progress="text", hang_up=""),
        Kind("total_after", "a position; `total_audio_ms` after the cut", position, totals="after"),
        Kind("total_before", "a position; `total_audio_ms` with each sentence", position, totals="before"),
        Kind("total_running", "the same totals without `synthesised_text`", position, totals="running"),
        Kind(
            "done_before",
            "`done` after each sentence, then a position and a total",
            position,
            totals="after",
            sentence_dones=True,
        ),
        Kind("progress", "`audio_ms` every 500 ms, and a total", totals="before", progress="position", hang_up=""),
        Kind("position", "a position only", position),
        Kind(
            "clock_position",
            "the time since playback began as an estimated position; totals with text",
            position_by_clock,
            totals="before",
        ),
        Kind("clock_gaps", "the same less the gaps in which nothing played", position_by_audio, totals="before"),
        Kind("clock_totals", "when playback began; totals without text", totals="running", hang_up=""),
        Kind("clock_audio", "when playback began", hang_up=""),
        Kind("clock_text", "no playback events", start=False, hang_up="interrupt"),
        Kind("generated", "everything generated, as if it was heard", generated_text, start=False),
    )
}
"""The kinds by name, the best first; the last is the memory without playback."""


TOTAL_DELAY_MS = 120
"""How long after the end of playback the engine reports the length of the audio."""
WORDS_PER_PARTIAL = 3
PARTIAL_DELAY_MS = 150


def derive(call: TrueCall, kind: Kind) -> list[JsonObject]:
    """Return the events of a call in the order in which they happened, with `ts` in Unix ms."""
    events: list[JsonObject] = []
    for utterance in call.utterances:
        events += speech(utterance)
    for reply in call.replies:
        events += generation(reply)
        events += playback(reply, kind)
        events += interruptions(call, reply, kind)
    for tool in call.tools:
        known = {"turn_id": tool.turn_id, "call_id": tool.call_id, "name": tool.name}
        events.append({"type": "tool.call", "ts": tool.called_ms, **known, "arguments": tool.arguments})
        events.append({"type": "tool.result", "ts": tool.returned_ms, **known, "result": tool.result})
    events.append({"type": "session.end", "ts": call.end_ms})
    events.sort(key=lambda event: event["ts"])
    return [{**event, "ts": event["ts"] + call.began} for event in events]


def speech(utterance: TrueUtterance) -> Iterator[JsonObject]:
    """Yield the events of the recogniser: partials, and a final, which is empty for a noise."""
    known = {"type": "asr", "turn_id": utterance.turn_id, "item": utterance.item}
    for word in utterance.words[WORDS_PER_PARTIAL - 1 :: WORDS_PER_PARTIAL] or utterance.words[:1]:
        at_ms = utterance.begin_ms + word.end_ms + PARTIAL_DELAY_MS
        if at_ms < utterance.final_ms:
            yield {**known, "ts": at_ms, "text": utterance.text[: word.end]}
    text = "" if utterance.noise else utterance.text
    yield {**known, "ts": utterance.final_ms, "text": text, "final": True}


def generation(reply: TrueReply) -> Iterator[JsonObject]:
    known = {"turn_id": reply.turn_id, "item": reply.item}
    if reply.source == "greeting":
        greeting = {"type": "message", "role": "assistant", "source": "greeting", "text": reply.text}
        yield {**greeting, **known, "ts": reply.deltas[0].at_ms}
        return
    begin = 0
    for delta in reply.deltas:
        yield {"type": "llm.delta", "ts": delta.at_ms, **known, "text": reply.text[begin : delta.end]}
        begin = delta.end
    yield {"type": "llm.done", "ts": reply.done_ms, **known}


def playback(reply: TrueReply, kind: Kind) -> Iterator[JsonObject]:
    known = {"type": "tts", "turn_id": reply.turn_id, "item": reply.item}
    end_ms = reply.played[-1].until_ms
    for event in (*timings(reply, kind), *progress(reply, kind)):
        yield {**known, **event}
    if kind.start:
        yield {**known, "ts": reply.played[0].from_ms, "audio_ms": 0}
        if reply.cut_ms is None:
            yield {**known, "ts": end_ms, "done": True}
    if kind.sentence_dones:
        for sentence in reply.synthesised[:-1]:
            if sentence.audio_ms < reply.position_ms:
                yield {**known, "ts": reply.time_of(sentence.audio_ms), "done": True}


def timings(reply: TrueReply, kind: Kind) -> Iterator[JsonObject]:
    begin_ms = 0
    for sentence in reply.synthesised:
        if kind.words:
            words = [word for word in reply.words if begin_ms <= word.start_ms < sentence.audio_ms]
            since_ms = begin_ms if kind.words == "sentences" else 0
            entries = clauses(reply.text, words) if kind.words == "clauses" else [(word, word) for word in words]
            timed = [
                {
                    "text": reply.text[first.begin : last.end],
                    "start_ms": first.start_ms - since_ms,
                    "end_ms": last.end_ms - since_ms,
                }
                for first, last in entries
            ]
            yield {"ts": sentence.at_ms, "words": timed}
        begin_ms = sentence.audio_ms
        if kind.totals in ("before", "running"):
            yield {"ts": sentence.at_ms, **total(reply, sentence.end, sentence.audio_ms, kind.totals == "before")}
    if kind.totals == "after":
        last = reply.synthesised[-1]
        yield {"ts": reply.played[-1].until_ms + TOTAL_DELAY_MS, **total(reply, last.end, last.audio_ms, True)}


def clauses(text: str, words: list[TrueWord]) -> Iterator[tuple[TrueWord, TrueWord]]:
    """Yield the first and the last word of each clause, which ends with a mark."""
    first = 0
    for place, word in enumerate(words):
        if place == len(words) - 1 or not text[word.end - 1].isalnum():
            yield words[first], word
            first = place + 1


def total(reply: TrueReply, end: int, audio_ms: int, with_text: bool) -> JsonObject:
    text = {"synthesised_text": reply.text[:end]} if with_text else {}
    return {"total_audio_ms": audio_ms, **text}


def progress(reply: TrueReply, kind: Kind) -> Iterator[JsonObject]:
    """Yield reports of playback: after each word, or twice a second."""
    played_ms = reply.position_ms
    if kind.progress == "text":
        for word in reply.words:
            if word.end_ms <= played_ms:
                at_ms = reply.time_of(word.end_ms)
                yield {"ts": at_ms, "heard_text": reply.heard_until(at_ms)}
    elif kind.progress == "position":
        for position_ms in range(PROGRESS_MS, played_ms + 1, PROGRESS_MS):
            yield {"ts": reply.time_of(position_ms), "audio_ms": position_ms}


def interruptions(call: TrueCall, reply: TrueReply, kind: Kind) -> Iterator[JsonObject]:
    """Yield the false alarms of a reply, and its cut; a hang-up comes with the last progress, or as an interrupt."""
    known = {"turn_id": reply.turn_id, "item": reply.item}
    for alarm in reply.alarms:
        yield {"type": "interrupt", "ts": alarm.at_ms, **known, **kind.at_cut(reply, alarm.at_ms)}
        yield {"type": "resume", "ts": alarm.until_ms, **known}
    if reply.cut_ms is None:
        return
    evidence = kind.at_cut(reply, reply.cut_ms)
    if not call.is_hung_up(reply) or kind.hang_up == "interrupt":
        yield {"type": "interrupt", "ts": reply.cut_ms, **known, **evidence}
    elif kind.hang_up == "tts":
        fields = {"audio_ms" if name == "audio_end_ms" else name: value for name, value in evidence.items()}
        yield {"type": "tts", "ts": reply.cut_ms, **known, **fields}


LONGEST_PAUSE_S = 3600.0
"""The silences of a true call are as long as they were."""


def read_true_call(file: Path) -> TrueCall:
    """Read the file of a true call. Raises `CommandFailed` for any other file."""
    try:
        call = load_call(file)
    except msgspec.DecodeError as error:
        raise CommandFailed(f"{file} is not a true call, as `voicemem truth export` writes them: {error}.") from None
    for reply in call.replies:
        if not (reply.deltas and reply.synthesised and reply.played):
            raise CommandFailed(f"{file}: reply {reply.item} needs deltas, synthesised and played, each with an entry.")
    return call


async def stage(
    call: TrueCall, kind: Kind, session: str | None, server: Server | None, pace: float
) -> tuple[TrueCall, str | None, list[JsonObject]]:
    """Move a call to now, and store what is played in its session's data; return call, session and events."""
    call = replace(call, began=now_ms() - round(call.end_ms * (1 - 1 / pace)))
    if server is not None:
        try:
            async with server.client() as rest:
                call, session = await keep_beside(call, kind, session, rest)
        except ClientError as error:
            click.secho(f"What is played is not kept beside the call: {error.detail}", fg="yellow", err=True)
        else:
            click.echo(f"watch it: {server.url.rstrip('/')}/ui/calls/{session}/{NAME}", err=True)
    return call, session, [{**event, "seq": number} for number, event in enumerate(derive(call, kind), 1)]


async def keep_beside(call: TrueCall, kind: Kind, session: str | None, rest: RestClient) -> tuple[TrueCall, str]:
    """Open the session, and store what is played in its data; a call that was begun before keeps its times."""
    config = {"name": f"True call: {call.name}", "labels": {"truth": call.name, "evidence": kind.name}}
    opened = session or await create(rest, config)
    with suppress(RequestRefused):  # it exists, with another configuration
        await create(rest, {**config, "session_id": opened})
    path = session_path(opened, "/data")
    with suppress(RequestRefused):  # the key may write only
        match await rest.get(path, {}, rest.options.request_timeout_s):
            case {"played": {"call": call.name, "began_ms": int(began)}}:  # an earlier replay of this call
                call = replace(call, began=began)
    await rest.request("PATCH", path, body={NAME: played_call(call, kind.name)})
    return call, opened


async def create(rest: RestClient, config: JsonObject) -> str:
    return str((await rest.request("POST", "/v1/sessions", body=config))["session_id"])


NAME = "played"
"""The name of the played call in the `data`."""


def played_call(call: TrueCall, evidence: str) -> JsonObject:
    """Return the played call, with times in Unix ms, like the `ts` of events. The words of a text, joined, give it."""
    return {
        "call": call.name,
        "evidence": evidence,
        "began_ms": call.began,
        "ended_ms": call.began + call.end_ms,
        "replies": [played_reply(reply, call.began) for reply in call.replies],
        "utterances": [spoken(utterance, call.began) for utterance in call.utterances],
    }


def played_reply(reply: TrueReply, began: int) -> JsonObject:
    """Return the reply, with each word as [text, from, until, heard]; times are null for a word not played whole."""
    words: list[list[object]] = []
    end = 0
    for text, word in pieces(reply.text, reply.words, reply.cut_ms is None):
        heard = reply.cut_ms is None or word.end_ms <= reply.position_ms
        times = [began + reply.time_of(at_ms) if heard else None for at_ms in (word.start_ms, word.end_ms)]
        words.append([text, *times, heard])
        end += len(text)
    if end < len(reply.text):  # the reply was cut before this was synthesised
        words.append([reply.text[end:], None, None, False])
    return {
        "turn_id": reply.turn_id,
        "item": reply.item,
        "text": reply.text,
        "heard": reply.heard(),
        "cut_ms": None if reply.cut_ms is None else began + reply.cut_ms,
        "words": words,
    }


def spoken(utterance: TrueUtterance, began: int) -> JsonObject:
    """Return the utterance, with each word as [text, from, until]."""
    begin = began + utterance.begin_ms
    return {
        "turn_id": utterance.turn_id,
        "item": utterance.item,
        "text": utterance.text,
        "noise": utterance.noise,
        "words": [
            [text, begin + word.start_ms, begin + word.end_ms] for text, word in pieces(utterance.text, utterance.words)
        ],
    }


def pieces(text: str, words: Sequence[TrueWord], whole: bool = True) -> Iterator[tuple[str, TrueWord]]:
    """Yield each word with the text after it; the text after the last may not have been spoken."""
    begins = [0, *(word.begin for word in words[1:])]
    rest = text[words[-1].end :] if words and not whole else ""
    ends = [*begins[1:], len(text) - len(rest.lstrip())]
    for word, begin, end in zip(words, begins, ends, strict=False):
        yield text[begin:end], word
