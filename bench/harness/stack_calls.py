"""True calls as the frames of other stacks, and how exact their memory is: by the clock, and with a phone's stream.

The phone of `tests/support/phones` plays what an app sends it; the tees around both connections are the product's.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import pytest

from tests.support.phones import PIECE_MS, STACKS, Call, Clock, Network, Teed, text_between, words_wrong
from voicemem.cli.truth import PlayedPart, TrueCall, TrueReply
from voicemem.protocol.codec import decode_journaled
from voicemem.protocol.events import FrameEvent, SessionClosed
from voicemem.protocol.types import JsonObject
from voicemem.transcript.fold import CLOSED, DecodedRow, fold_all
from voicemem.transcript.history import messages
from voicemem.transcript.state import State

NETWORKS = (Network(20), Network(150, 60), Network(300, 100))
CLOSE_MS = 300
PCM_BYTES_PER_MS = 32


class StackExactness(NamedTuple):
    """The words wrong of each cut reply with one stack."""

    stack: str
    by_clock: list[int]
    with_phone: list[int]
    """Of stacks that a phone is bridged to."""


class ElevenLabs:
    """ElevenLabs Agents without corrections: each reply's whole text, then its audio in 16 kHz PCM."""

    name = "elevenlabs-agents"

    def __init__(self, replies: Sequence[TrueReply]) -> None:
        self.replies = replies

    def begin(self) -> Iterator[JsonObject]:
        about = {"conversation_id": "conv_1", "agent_output_audio_format": "pcm_16000"}
        yield {
            "type": "conversation_initiation_metadata",
            "conversation_initiation_metadata_event": about,
        }

    def user(self, number: int, text: str) -> Iterator[JsonObject]:
        if text:
            said = {"user_transcript": text, "event_id": 100 * number}
            yield {"type": "user_transcript", "user_transcription_event": said}
        response = {"agent_response": self.replies[number - 1].text, "event_id": 100 * number + 1}
        yield {"type": "agent_response", "agent_response_event": response}

    def piece(self, number: int, text: str, ms: int) -> Iterator[JsonObject]:
        audio = base64.b64encode(bytes(ms * PCM_BYTES_PER_MS)).decode()
        yield {"type": "audio", "audio_event": {"audio_base_64": audio, "event_id": 100 * number + 2}}

    def done(self, number: int, text: str) -> Iterator[JsonObject]:
        yield from ()

    def interrupted(self, number: int, is_complete: bool) -> Iterator[JsonObject]:
        yield {"type": "interruption", "interruption_event": {"event_id": 100 * number + 3}}


class Connection:
    """A tee around a connection to a vendor, and the journal of what crosses it."""

    def __init__(self, dialect: str) -> None:
        self.clock = Clock()
        self.clock.now = 0
        self.rows: list[DecodedRow] = []
        self.teed = Teed(self, dialect)

    def keep(self, dialect: str, event: FrameEvent) -> None:
        entry = decode_journaled(msgspec.json.encode(event))
        self.rows.append(DecodedRow(len(self.rows) + 1, self.clock.now, entry, dialect))

    def cross(self, at: int, frame: Any) -> None:
        side = "app" if isinstance(frame, dict) and frame.get("type") == "Settings" else "vendor"
        self.clock.at(at, lambda: self.teed.cross(frame, side))


def without_alarms(reply: TrueReply) -> TrueReply:
    """The reply as a vendor's client plays it, which no noise pauses."""
    if not reply.alarms:
        return reply
    alarm = reply.alarms[0]
    pause = alarm.until_ms - alarm.at_ms
    played = [
        PlayedPart(part.from_ms - pause, part.until_ms - pause, part.position_ms)
        if part.from_ms > alarm.at_ms
        else part
        for part in reply.played
    ]
    cut_ms = None if reply.cut_ms is None else played[-1].until_ms
    return msgspec.structs.replace(reply, played=played, alarms=[], cut_ms=cut_ms)


def pieces(reply: TrueReply, by_sentence: bool) -> Iterator[tuple[int, str, int]]:
    """The audio of a reply as it comes: when, with which text, and how long."""
    starts = {part.position_ms: part.from_ms for part in reply.played}
    total_ms = reply.synthesised[-1].audio_ms
    first, came = 0, reply.played[0].from_ms
    for sentence in reply.synthesised:
        came = min(starts.get(first, came), sentence.at_ms)
        length = max(1, sentence.audio_ms - first)
        for begin in range(-(-first // PIECE_MS) * PIECE_MS, sentence.audio_ms, PIECE_MS):
            at = came + (sentence.at_ms - came) * (begin - first) // length
            yield at, text_between(reply, begin, by_sentence), min(PIECE_MS, total_ms - begin)
        first, came = sentence.audio_ms, sentence.at_ms


def cut(stack: Any, number: int, is_complete: bool) -> Iterator[JsonObject]:
    """What a vendor says when the caller breaks in; OpenAI of audio that it plays itself, over WebRTC."""
    yield from stack.interrupted(number, is_complete)
    if stack.name == "openai-realtime":
        yield {"type": "output_audio_buffer.cleared", "response_id": f"resp_{number}"}


def spoken(stack: Any, number: int, reply: TrueReply, cut_ms: int | None) -> Iterator[tuple[int, Any]]:
    """The frames about one reply and the question before it, each with its time; the vendor sees a cut at `cut_ms`."""
    for frame in stack.user(number, f"Question {number}?"):
        yield reply.deltas[0].at_ms - 100, frame
    ended = reply.deltas[0].at_ms
    for at, text, ms in pieces(reply, stack.name == "deepgram-agent"):
        if reply.cut_ms is None or at < reply.cut_ms:
            ended = at + 1
            for frame in stack.piece(number, text, ms):
                yield at, frame
    is_complete = reply.cut_ms is None or ended < reply.cut_ms
    if is_complete:
        for frame in stack.done(number, reply.text[: reply.synthesised[-1].end]):
            yield ended, frame
    if cut_ms is not None:
        for frame in cut(stack, number, is_complete):
            yield cut_ms, frame


def wrong_by_clock(call: TrueCall, name: str) -> Iterator[int]:
    """The words wrong of each cut reply where only frames of the model's side are seen, not what is played."""
    replies = [without_alarms(reply) for reply in call.replies]
    is_hung_up = call.is_hung_up(call.replies[-1])
    stack: Any = ElevenLabs(replies) if name == ElevenLabs.name else STACKS[name]
    connection = Connection(name)
    for frame in stack.begin():
        connection.cross(call.began, frame)
    for number, reply in enumerate(replies, 1):
        cut_ms = None if is_hung_up and number == len(replies) else reply.cut_ms
        for at, frame in spoken(stack, number, reply, cut_ms):
            connection.cross(call.began + at, frame)
    connection.clock.run()
    ended = call.began + ((replies[-1].cut_ms or call.end_ms) if is_hung_up else call.end_ms + CLOSE_MS)
    connection.rows.append(DecodedRow(len(connection.rows) + 1, ended, SessionClosed(ts=ended, reason=CLOSED)))
    heard = [one for one in messages(fold_all(State(), connection.rows)) if one.role == "assistant"]
    for number, reply in enumerate(replies, 1):
        if reply.cut_ms is not None:
            text = next((one.content for one in heard if one.turn_id == number), "")
            yield words_wrong(reply, reply.position_ms, text)


def wrong_with_phone(calls: Sequence[TrueCall], name: str) -> Iterator[int]:
    """The same where the app also wraps the stream of a phone, over several networks and with apps of several kinds."""
    with pytest.MonkeyPatch.context() as patched:
        for number, call in enumerate(calls):
            app: dict[str, Any] = {"late_ms": number % 4 * 150, "early_ms": number % 5 * 100, "marks": number % 3 > 0}
            called = Call(call, STACKS[name], NETWORKS[number % 3], patched, truncates=number % 2 == 0, **app)
            called.run()
            yield from called.wrong()


async def stacks_measured(calls: Sequence[TrueCall]) -> list[StackExactness]:
    """All stacks on these calls; a tee needs an event loop."""
    return [
        StackExactness(
            name,
            [wrong for call in calls for wrong in wrong_by_clock(call, name)],
            list(wrong_with_phone(calls, name)) if name in STACKS else [],
        )
        for name in (*STACKS, ElevenLabs.name)
    ]
