"""A phone on the far end of a media stream, with a clock of samples, and agents of other stacks bridged to it.

Time is simulated: everything that happens is an entry of a `Clock`. The app's sockets are the real tees of the product,
which forward rows of the journal.
"""

from __future__ import annotations

import base64
import heapq
import json
import random
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from typing import Any, NamedTuple, Protocol

import msgspec
import pytest

from voicemem.cli.truth import TrueCall, TrueReply
from voicemem.dialects.registry import DIALECTS
from voicemem.integrations.tee.memory import FrameQueue, ReducedMessage
from voicemem.integrations.tee.phone import PhoneQueue
from voicemem.protocol.codec import decode_journaled
from voicemem.protocol.events import FrameEvent, SessionClosed
from voicemem.protocol.types import JsonObject
from voicemem.transcript.fold import CLOSED, DecodedRow, fold_event
from voicemem.transcript.history import messages
from voicemem.transcript.messages import Message
from voicemem.transcript.state import State

BEGAN = 1_790_000_000_000
PIECE_MS = 200
"""How much audio a vendor sends at once."""
FASTER = 4
"""How much faster than it plays audio comes from a vendor."""
BYTES_PER_MS = 8
AHEAD_MS = 300
"""How much earlier than its audio a vendor sends a word."""
MARKS = '.,;:!?…"”»)]'


class Timer:
    """An entry of the clock, which may be cancelled."""

    def __init__(self, work: Callable[[], object]) -> None:
        self.work = work

    def cancel(self) -> None:
        self.work = lambda: None


class Clock:
    """The time of a simulated call; it stands in for the event loop of a tee."""

    def __init__(self) -> None:
        self.now = BEGAN
        self.numbers = count()
        self.entries: list[tuple[int, int, Timer]] = []

    def at(self, ts: int, work: Callable[[], object]) -> Timer:
        timer = Timer(work)
        heapq.heappush(self.entries, (max(ts, self.now), next(self.numbers), timer))
        return timer

    def call_later(self, delay_s: float, work: Callable[..., object], *arguments: Any) -> Timer:
        return self.at(self.now + round(delay_s * 1_000), lambda: work(*arguments))

    def call_soon(self, work: Callable[..., object], *arguments: Any) -> Timer:
        return self.call_later(0, work, *arguments)

    def is_closed(self) -> bool:
        return False

    def run(self) -> None:
        while self.entries:
            self.now, _, timer = heapq.heappop(self.entries)
            timer.work()


class Network(NamedTuple):
    """How long a message is on its way, in ms; no message overtakes another."""

    usual_ms: int
    jitter_ms: int = 0


class Way:
    """One direction of a connection."""

    def __init__(self, clock: Clock, network: Network, dice: random.Random, deliver: Callable[[Any], object]) -> None:
        self.clock, self.network, self.dice, self.deliver = clock, network, dice, deliver
        self.free_at = 0

    def send(self, message: Any) -> None:
        late = self.network.usual_ms + self.dice.randint(0, self.network.jitter_ms)
        self.free_at = max(self.free_at, self.clock.now + late)
        self.clock.at(self.free_at, lambda: self.deliver(message))


class Played(NamedTuple):
    """Audio in a phone's queue: of which reply, from which position in it, how long; or a mark."""

    item: str
    position_ms: int
    length_ms: int
    mark: str | None = None


class Phone:
    """Plays what is queued in real time, sends marks back once they are reached, and all that a `clear` discards."""

    def __init__(self, clock: Clock, answer: Callable[[JsonObject], object], speed: float) -> None:
        self.clock, self.answer, self.speed = clock, answer, speed
        self.queue: list[Played] = []
        self.begun = 0
        """When the first in the queue began to play."""
        self.heard_ms: dict[str, int] = {}
        """How much of each reply was played."""
        self.playing: Timer | None = None
        self.is_gone = False

    def receive(self, message: tuple[JsonObject, Played | None]) -> None:
        frame, played = message
        if self.is_gone:
            return
        if frame["event"] == "clear":
            self.clear()
            return
        if played is not None:
            self.queue.append(played)
            if len(self.queue) == 1:
                self.play()

    def play(self) -> None:
        while self.queue and self.queue[0].mark is not None:
            self.answer({"event": "mark", "streamSid": "MZ1", "mark": {"name": self.queue.pop(0).mark}})
        self.playing = None
        if self.queue:
            self.begun = self.clock.now
            self.playing = self.clock.at(self.clock.now + round(self.queue[0].length_ms / self.speed), self.finish)

    def played_ms(self) -> int:
        """How much of the first in the queue was played."""
        return round((self.clock.now - self.begun) * self.speed)

    def finish(self) -> None:
        played = self.queue.pop(0)
        self.hear(played, played.length_ms)
        self.play()

    def hear(self, played: Played, ms: int) -> None:
        if played.item:
            self.heard_ms[played.item] = max(self.heard_ms.get(played.item, 0), played.position_ms + ms)

    def clear(self) -> None:
        queue, self.queue = self.queue, []
        if self.playing is not None:
            self.playing.cancel()
            self.playing = None
            self.hear(queue[0], self.played_ms())
        for played in queue:
            if played.mark is not None and not self.is_gone:
                self.answer({"event": "mark", "streamSid": "MZ1", "mark": {"name": played.mark}})

    def position(self, item: str) -> int:
        """How much of a reply was played by now."""
        ms = self.heard_ms.get(item, 0)
        if self.playing is not None and self.queue[0].item == item:
            ms = max(ms, self.queue[0].position_ms + self.played_ms())
        return ms


class Journal(Protocol):
    """What takes the events of a tee, at the time of a clock."""

    clock: Clock

    def keep(self, dialect: str, event: FrameEvent) -> None: ...


class Teed:
    """What a tee of the product puts into the journal."""

    def __init__(self, call: Journal, dialect: str) -> None:
        self.call, self.dialect = call, dialect
        kind = PhoneQueue if dialect == "twilio-media-streams" else FrameQueue
        self.queue = kind(DIALECTS[dialect], True, self.forward)
        self.queue.loop = call.clock  # type: ignore[assignment]
        self.queue.slice_ns = 10**18  # only the simulated time counts

    def cross(self, message: JsonObject | bytes, side: Any) -> None:
        data = message if isinstance(message, bytes) else json.dumps(message)
        self.queue.put(data, side, isinstance(data, str), self.call.clock.now)

    def forward(self, message: ReducedMessage) -> None:
        event = FrameEvent(dialect=self.dialect, frame=message.frame.content, ts=message.ts, id=message.frame.id)
        self.call.keep(self.dialect, event)


class Stack(Protocol):
    """A vendor's frames."""

    name: str

    def item(self, number: int) -> str:
        """The item of a reply."""

    def begin(self) -> Iterator[Any]: ...

    def user(self, number: int, text: str) -> Iterator[Any]: ...

    def piece(self, number: int, text: str, ms: int) -> Iterator[Any]:
        """A piece of a reply's audio, and the text that comes with it."""

    def done(self, number: int, text: str) -> Iterator[Any]: ...

    def interrupted(self, number: int, is_complete: bool) -> Iterator[Any]: ...


class OpenAI:
    """OpenAI Realtime, whose app truncates nothing, or at a position that is wrong."""

    name = "openai-realtime"

    def item(self, number: int) -> str:
        return f"item_a{number}"

    def begin(self) -> Iterator[Any]:
        output = {"format": {"type": "audio/pcmu"}}
        yield {"type": "session.created", "session": {"id": "sess_1", "audio": {"output": output}}}

    def user(self, number: int, text: str) -> Iterator[Any]:
        item = f"item_u{number}"
        before = f"item_a{number - 1}" if number > 1 else None
        yield {"type": "input_audio_buffer.committed", "item_id": item, "previous_item_id": before}
        yield {
            "type": "conversation.item.input_audio_transcription.completed",
            "item_id": item,
            "transcript": text,
        }
        yield {"type": "response.created", "response": {"id": f"resp_{number}", "conversation_id": "c"}}
        yield {
            "type": "conversation.item.added",
            "previous_item_id": item,
            "item": {"id": self.item(number), "type": "message", "role": "assistant", "content": []},
        }

    def piece(self, number: int, text: str, ms: int) -> Iterator[Any]:
        about = {"item_id": self.item(number), "response_id": f"resp_{number}"}
        if text:
            yield {"type": "response.output_audio_transcript.delta", "delta": text, **about}
        audio = base64.b64encode(bytes(ms * BYTES_PER_MS)).decode()
        yield {"type": "response.output_audio.delta", "delta": audio, **about}

    def done(self, number: int, text: str) -> Iterator[Any]:
        content = [{"type": "output_audio", "transcript": text}]
        item = {"id": self.item(number), "type": "message", "role": "assistant", "content": content}
        yield {"type": "response.done", "response": {"id": f"resp_{number}", "status": "completed", "output": [item]}}

    def interrupted(self, number: int, is_complete: bool) -> Iterator[Any]:
        yield {"type": "input_audio_buffer.speech_started", "item_id": f"item_u{number + 1}"}
        if not is_complete:
            reason = {"reason": "turn_detected"}
            response = {"id": f"resp_{number}", "status": "cancelled", "status_details": reason, "output": []}
            yield {"type": "response.done", "response": response}


class Gemini:
    """Gemini Live: 24 kHz PCM, which the app makes mu-law of."""

    name = "gemini-live"

    def item(self, number: int) -> str:
        return f"~a{number}"

    def begin(self) -> Iterator[Any]:
        yield {"setupComplete": {}}

    def user(self, number: int, text: str) -> Iterator[Any]:
        yield {"serverContent": {"inputTranscription": {"text": text}}}

    def piece(self, number: int, text: str, ms: int) -> Iterator[Any]:
        data = {"mimeType": "audio/pcm;rate=24000", "data": base64.b64encode(bytes(ms * 48)).decode()}
        yield {"serverContent": {"modelTurn": {"parts": [{"inlineData": data}]}}}
        if text:
            yield {"serverContent": {"outputTranscription": {"text": text}}}

    def done(self, number: int, text: str) -> Iterator[Any]:
        yield {"serverContent": {"generationComplete": True}}

    def interrupted(self, number: int, is_complete: bool) -> Iterator[Any]:
        yield {"serverContent": {"interrupted": True}}
        yield {"serverContent": {"turnComplete": True}}


class Deepgram:
    """Deepgram's Voice Agent, in mu-law."""

    name = "deepgram-agent"

    def item(self, number: int) -> str:
        return f"~r{number}"

    def begin(self) -> Iterator[Any]:
        yield {"type": "Welcome", "request_id": "req_1"}
        yield {"type": "Settings", "audio": {"output": {"encoding": "mulaw", "sample_rate": 8000}}}

    def user(self, number: int, text: str) -> Iterator[Any]:
        yield {"type": "ConversationText", "role": "user", "content": text}

    def piece(self, number: int, text: str, ms: int) -> Iterator[Any]:
        if text:
            yield {"type": "ConversationText", "role": "assistant", "content": text}
        yield bytes(ms * BYTES_PER_MS)

    def done(self, number: int, text: str) -> Iterator[Any]:
        yield {"type": "AgentAudioDone"}

    def interrupted(self, number: int, is_complete: bool) -> Iterator[Any]:
        yield {"type": "UserStartedSpeaking"}


STACKS: dict[str, Stack] = {stack.name: stack for stack in (OpenAI(), Gemini(), Deepgram())}


class Call:
    """A call of the corpus of truth, spoken by a vendor, bridged by an app, and played by a phone."""

    def __init__(
        self,
        call: TrueCall,
        stack: Stack,
        network: Network,
        monkeypatch: pytest.MonkeyPatch,
        *,
        truncates: bool = False,
        greeting_ms: int = 0,
        late_ms: int = 0,
        early_ms: int = 0,
        marks: bool = True,
        hang_up_ms: int | None = None,
        speed: float = 1.0,
    ) -> None:
        """The app sends audio on `late_ms` after it has come, and clears `early_ms` before the vendor hears the caller.

        With `hang_up_ms` the caller leaves so long after the first audio of the last reply has come.
        """
        self.replies, self.stack, self.network = call.replies, stack, network
        self.dice = random.Random(f"{call.name} {stack.name} {network}")
        self.clock = Clock()
        monkeypatch.setattr("voicemem.integrations.tee.memory.now_ms", lambda: self.clock.now)
        self.rows: list[tuple[int, str, FrameEvent]] = []
        self.model, self.tee = Teed(self, stack.name), Teed(self, "twilio-media-streams")
        self.to_app = Way(self.clock, network, self.dice, self.frame)
        self.phone = Phone(self.clock, self.to_app.send, speed)
        self.to_phone = Way(self.clock, network, self.dice, self.phone.receive)
        self.truncates, self.marks, self.late_ms, self.early_ms = truncates, marks, late_ms, early_ms
        self.hang_up_ms = hang_up_ms
        self.sent_at: dict[int, int] = {}
        self.cut: set[int] = set()
        """Replies that the app has cleared, and sends no more of."""
        self.stopped: set[int] = set()
        """Replies that the vendor sends no more of."""
        self.is_over = self.is_closed = False
        """Whether the caller has hung up, and whether the app knows."""
        self.reply = 0
        self.complete = False
        self.frame({"event": "start", "streamSid": "MZ1", "start": {"callSid": "CA1", "customParameters": {"a": "b"}}})
        for frame in stack.begin():
            self.vendor(frame)
        if greeting_ms:
            self.play(Played("", 0, greeting_ms))
        self.clock.at(BEGAN + greeting_ms + 500, self.next_turn)

    # The journal

    def keep(self, dialect: str, event: FrameEvent) -> None:
        """A row arrives a little later; each tee keeps its order."""
        before = max((at for at, name, _ in self.rows if name == dialect), default=0)
        self.rows.append((max(before, self.clock.now + self.dice.randint(5, 80)), dialect, event))

    def journal(self, dialects: tuple[str, ...]) -> Iterator[DecodedRow]:
        rows = sorted((row for row in self.rows if row[1] in dialects), key=lambda row: row[0])
        for position, (at, name, event) in enumerate(rows, 1):
            yield DecodedRow(position, at, decode_journaled(msgspec.json.encode(event)), name)
        yield DecodedRow(len(rows) + 1, self.ended, SessionClosed(ts=self.ended, reason=CLOSED))

    def memory(self, with_phone: bool = True) -> list[Message]:
        """What the agent said, as the memory has it."""
        state = State()
        names = (self.stack.name, "twilio-media-streams") if with_phone else (self.stack.name,)
        for row in self.journal(names):
            fold_event(state, *row)
        assert state.ignored == {}
        return [message for message in messages(state) if message.role == "assistant"]

    def run(self) -> None:
        self.clock.run()
        self.ended = self.clock.now

    # What happens

    def vendor(self, frame: Any) -> None:
        self.model.cross(frame, "app" if isinstance(frame, dict) and frame.get("type") == "Settings" else "vendor")

    def frame(self, frame: JsonObject) -> None:
        self.tee.cross(frame, "vendor")
        self.is_closed |= frame["event"] == "stop"

    def play(self, played: Played) -> None:
        """The app sends audio to the phone, and a mark behind it."""
        if self.is_closed:
            return
        payload = base64.b64encode(bytes(played.length_ms * BYTES_PER_MS)).decode()
        media = {"event": "media", "streamSid": "MZ1", "media": {"payload": payload}}
        self.tee.cross(media, "app")
        self.to_phone.send((media, played))
        if self.marks:
            mark = {"event": "mark", "streamSid": "MZ1", "mark": {"name": "responsePart"}}
            self.tee.cross(mark, "app")
            self.to_phone.send((mark, Played("", 0, 0, "responsePart")))

    def next_turn(self) -> None:
        """The caller says something, and the vendor answers."""
        if self.reply == len(self.replies) or self.is_over:
            return
        self.reply += 1
        number, reply = self.reply, self.replies[self.reply - 1]
        self.complete = False
        for frame in self.stack.user(number, f"Question {number}?"):
            self.vendor(frame)
        total_ms = reply.synthesised[-1].audio_ms
        begins = self.clock.now + 400
        for begin in range(0, total_ms, PIECE_MS):
            length = min(PIECE_MS, total_ms - begin)
            text = text_between(reply, begin, self.stack.name == "deepgram-agent")
            self.clock.at(begins + begin // FASTER, partial(self.speak, number, text, begin, length))
        self.clock.at(begins + total_ms // FASTER + 30, lambda: self.finish(number))
        self.clock.at(begins + 100, lambda: self.listen(number))

    def speak(self, number: int, text: str, begin: int, length: int) -> None:
        if number in self.stopped or self.is_over:
            return
        for frame in self.stack.piece(number, text, length):
            self.vendor(frame)
        if number not in self.sent_at:
            self.sent_at[number] = self.clock.now
            if self.hang_up_ms is not None and number == len(self.replies):
                self.clock.at(self.clock.now + self.hang_up_ms, self.hang_up)
        played = Played(self.stack.item(number), begin, length)
        self.clock.at(self.clock.now + self.late_ms, lambda: None if number in self.cut else self.play(played))

    def finish(self, number: int) -> None:
        reply = self.replies[number - 1]
        if number not in self.stopped and not self.is_over:
            self.complete = True
            for frame in self.stack.done(number, reply.text[: reply.synthesised[-1].end]):
                self.vendor(frame)

    def listen(self, number: int) -> None:
        """The caller breaks in where they did, or hears the reply to its end."""
        reply, heard = self.replies[number - 1], self.phone.position(self.stack.item(number))
        total_ms = reply.synthesised[-1].audio_ms
        if self.is_over:
            return
        if reply.cut_ms is not None and heard >= min(reply.position_ms, total_ms - 200):
            self.clock.at(self.clock.now + self.network.usual_ms + 250, lambda: self.clear(number))
        elif heard >= total_ms:
            if self.stack.name == "gemini-live":
                self.vendor({"serverContent": {"turnComplete": True}})
            self.clock.at(self.clock.now + 700, self.next_turn)
        else:
            self.clock.at(self.clock.now + 20, lambda: self.listen(number))

    def clear(self, number: int) -> None:
        """The app has heard the caller, and clears the phone's queue."""
        if self.is_over:
            return
        self.cut.add(number)
        clear = {"event": "clear", "streamSid": "MZ1"}
        self.tee.cross(clear, "app")
        self.to_phone.send((clear, None))
        self.clock.at(self.clock.now + self.early_ms, lambda: self.interrupt(number))

    def interrupt(self, number: int) -> None:
        """The vendor has heard the caller."""
        self.stopped.add(number)
        for frame in self.stack.interrupted(number, self.complete):
            self.vendor(frame)
        if self.truncates and self.stack.name == "openai-realtime":
            item, end_ms = self.stack.item(number), (self.clock.now - self.sent_at[number]) * 2
            truncate = {"type": "conversation.item.truncate", "item_id": item, "audio_end_ms": end_ms}
            self.clock.at(self.clock.now + 10, lambda: self.model.cross(truncate, "app"))
        self.clock.at(self.clock.now + 900, self.next_turn)

    def hang_up(self) -> None:
        """The caller hangs up; the phone stops at once, and the app learns of it."""
        self.is_over = True
        self.phone.is_gone = True
        self.phone.clear()
        self.to_app.send({"event": "stop", "streamSid": "MZ1", "stop": {"callSid": "CA1"}})

    # What is right

    def wrong(self, with_phone: bool = True) -> Iterator[int]:
        """How many words of each cut reply the memory has too many or too few."""
        found = self.memory(with_phone)
        for number, reply in enumerate(self.replies, 1):
            if number in self.cut or (self.is_over and number == len(self.replies)):
                position = self.phone.heard_ms.get(self.stack.item(number), 0)
                text = next((one.content for one in found if one.turn_id == number), "")
                yield words_wrong(reply, position, text)


def text_between(reply: TrueReply, begin_ms: int, by_sentence: bool) -> str:
    """The text that comes with a piece of audio: whole sentences before their audio, or words a little ahead of it."""
    if by_sentence:
        begins = [(0, 0), *((one.audio_ms, one.end) for one in reply.synthesised)]
        ends = [one.end for one in reply.synthesised]
        pairs = zip(begins, ends, strict=False)
        return "".join(reply.text[at:end] for (ms, at), end in pairs if begin_ms <= ms < begin_ms + PIECE_MS)
    total_ms = reply.synthesised[-1].audio_ms
    until_ms = begin_ms + PIECE_MS + AHEAD_MS if begin_ms + PIECE_MS < total_ms else total_ms + AHEAD_MS
    since_ms = begin_ms + AHEAD_MS if begin_ms else 0
    begins_at = [word.begin for word in reply.words if since_ms <= word.start_ms < until_ms]
    after = [word.begin for word in reply.words if word.start_ms >= until_ms]
    return reply.text[begins_at[0] : after[0] if after else reply.synthesised[-1].end] if begins_at else ""


def words_wrong(reply: TrueReply, position_ms: int, content: str) -> int:
    """0 where the text ends between the last word that had ended and the last that had begun."""
    assert reply.text.startswith(content.rstrip()), (reply.text, content)
    ends = (word.begin + len(reply.text[word.begin : word.end].rstrip(MARKS)) for word in reply.words)
    counted = sum(end <= len(content.rstrip()) for end in ends)
    ended = sum(word.end_ms <= position_ms for word in reply.words)
    begun = sum(word.start_ms < position_ms for word in reply.words)
    return max(0, counted - begun, ended - counted)
