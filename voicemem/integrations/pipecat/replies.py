"""The tracker of replies: it assigns a pipeline's text and audio to replies, and reports them to the ledger.

The LLM, the TTS and the output report separately and far apart in time: a reply may be generated and synthesised while
the previous one is still heard. They are joined by the LLM's response frame, which the TTS forwards before the audio of
that reply, and by the TTS's id for its audio (a context).
"""

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from voicemem.integrations.background_session import NewestEntries
from voicemem.integrations.ledger import Ledger
from voicemem.integrations.pipecat.audio import TRANSPORT_MS, AudioTimeline, Sound, TimedWord, WordClock, spans_of
from voicemem.integrations.spoken_text import MAX_CHARS
from voicemem.transcript.whole_words import units_of

WORD_MS_PER_UNIT = 30.0
"""How long a word must sound to count as heard: half of its usual time."""
USUAL_MS_PER_UNIT = 66.0
LEAST_SHARE, MOST_SHARE = 0.5, 2.0
"""Shares of the usual length: longer or shorter audio does not belong to the sentence announced with it."""
MAX_SPEECHES = 64


class Audio(NamedTuple):
    """Audio of 16 bits a sample."""

    pcm: bytes
    sample_rate: int
    channels: int

    @property
    def length_ms(self) -> float:
        return 1000.0 * len(self.pcm) / (2 * self.channels * self.sample_rate)


@dataclass
class Reply:
    """One reply of the agent, from the LLM to the output."""

    name: str
    has_text: bool = False
    """False for an answer of the LLM that only calls tools, which is not a reply."""
    generated: bool = False
    passed: bool = False
    skipped: bool = False
    interruptible: bool = True
    text: str = ""
    """Text of the LLM that the TTS has not announced, for a TTS that gets single tokens."""
    unannounced: bool = False
    contexts: set[str] = field(default_factory=set)
    """The contexts whose audio the output is not done with."""
    done_at: float | None = None
    """When the output wrote the last audio."""


@dataclass
class Context:
    """One TTS context: audio that belongs together."""

    reply: Reply
    start_ms: float
    """The start of its audio in the reply's."""
    clock: WordClock = field(default_factory=WordClock)
    sound: Sound = field(default_factory=Sound)
    """Audio since the last complete sentence."""
    text: str = ""
    """Text since that sentence."""
    is_open: bool = False
    """True if audio has come since the TTS last stopped; a context that waits too long for text stops and continues."""
    stopped: int = 0
    """How often the TTS has stopped."""
    played: int = 0
    """How often the output has reached such a stop."""
    alone: bool = False
    """True if the text is one sentence, announced when all earlier audio had its text."""
    timed: bool = False


class ReplyTracker:
    """The replies of one pipeline, from its frames.

    `delay_ms` is the client's buffer before playback. Times named `at` are Unix ms; `at_ns` and `pts` are of the
    pipeline's clock.
    """

    def __init__(self, ledger: Ledger, delay_ms: float) -> None:
        self.ledger = ledger
        self.timeline = AudioTimeline(TRANSPORT_MS + delay_ms)
        self.count = 0
        self.open: dict[str, Reply] = {}
        self.responses: dict[int, Reply] = {}
        """Replies of the LLM by the id of their first frame, until the TTS forwards that."""
        self.generating: Reply | None = None
        self.voicing: Reply | None = None
        """The LLM's reply that the TTS is working on."""
        self.speeches: deque[tuple[str, bool]] = deque(maxlen=MAX_SPEECHES)
        """Texts that the agent will say, and whether each may be interrupted."""
        self.contexts: dict[str, Context] = {}
        self.context: str | None = None
        self.last_pts = 0
        self.interruptions: NewestEntries[int, list[Reply]] = NewestEntries(MAX_SPEECHES)
        """The open replies at each interruption, by its frame."""
        self.anything_said = False
        self.speaks = False
        """True if there is a TTS, or was any audio; a bot that only writes is read, not heard."""

    # The LLM

    def response_started(self, frame_id: int, skipped: bool) -> None:
        self.generating = self.responses[frame_id] = self.new_reply()
        self.generating.skipped = skipped

    def generated(self, text: str, skipped: bool, at: float) -> None:
        if self.generating is None:
            self.generating = self.new_reply()
        self.generating.skipped |= skipped
        self.generating.has_text = True
        self.anything_said = True
        self.generating.text = (self.generating.text + text)[:MAX_CHARS]
        self.ledger.said(self.generating.name, text, at)

    def response_ended(self, at: float) -> None:
        reply, self.generating = self.generating, None
        if reply is None:
            return
        reply.generated = True
        if reply.has_text:
            self.ledger.said_all(reply.name, at)
        if reply.skipped:
            self.finish(reply, at)
        else:
            self.check_done(reply, at)

    def new_reply(self) -> Reply:
        self.count += 1
        reply = Reply(f"r{self.count}")
        self.open[reply.name] = reply
        return reply

    # The TTS

    def voicing_started(self, frame_id: int) -> None:
        self.voicing = self.responses.pop(frame_id, self.voicing)

    def voicing_ended(self, at: float) -> None:
        """Note that the TTS has got all text of a reply."""
        if self.voicing is not None:
            self.voicing.passed = True
            reply, self.voicing = self.voicing, None
            self.check_done(reply, at)

    def context_of(self, name: str | None, text: str, at: float) -> Context | None:
        """Return a context, new if unknown: of a text to say if `text` begins one, else of the LLM's reply."""
        name = name or self.context
        if name is None:
            return None
        known = self.contexts.get(name)
        if known is None:
            reply = self.speech_of(text, at) or self.voicing or self.generating
            reply = reply or next(reversed(self.open.values()), None)
            if reply is None or reply.done_at is not None:
                return None
            reply.contexts.add(name)
            known = self.contexts[name] = Context(reply, self.timeline.track(reply.name).made_ms)
        self.context = name
        return known

    def speech_of(self, text: str, at: float) -> Reply | None:
        """Make the reply for a text to say, when its first sentence comes to the TTS; None for other texts."""
        bare = text.strip()
        match = next((one for one in self.speeches if bare and one[0].strip().startswith(bare)), None)
        if match is None:
            return None
        self.speeches.remove(match)
        speech, interruptible = match
        reply = self.new_reply()
        reply.generated = reply.passed = reply.has_text = True
        reply.interruptible = interruptible
        self.ledger.announced(reply.name, speech, at, "command" if self.anything_said else "greeting")
        self.anything_said = True
        return reply

    def announced(self, context: str | None, text: str, at: float) -> None:
        known = self.context_of(context, text, at)
        if known is not None and not known.reply.unannounced:
            known.reply.text = ""
            known.alone = not known.text and not known.sound.end_ms
            known.text += f" {text.strip()}" if known.text else text.strip()
            self.ledger.voiced(known.reply.name, f"{text.strip()} ")

    def audio_made(self, context: str | None, audio: Audio, interruptible: bool, at: float, at_ns: int) -> None:
        self.speaks = True
        known = self.context_of(context, "", at) if context or self.context else None
        if known is None:
            self.timeline.made("", "", audio.length_ms, interruptible)
            return
        reply = known.reply
        reply.unannounced |= not known.sound.end_ms and not known.text and not known.timed
        reply.interruptible &= interruptible
        known.is_open = True
        reply.contexts.add(self.context or "")
        self.timeline.made(reply.name, f"{self.context}/{known.stopped}", audio.length_ms, interruptible)
        self.ledger.audio_made(reply.name, audio.length_ms)
        self.report_words(known, known.clock.audio(audio.length_ms, at_ns, self.last_pts), at)
        known.sound.add(*audio)

    def text_made(self, context: str | None, text: str, pts: int | None, at: float, at_ns: int) -> None:
        """Note text that the TTS reports as spoken: a word with its time, or a sentence after its audio."""
        known = self.context_of(context, text, at)
        if known is None or not text.strip():
            return
        if not pts:
            self.close_sentence(known, text, at)
        elif pts != self.last_pts or " " not in text.strip():  # else words that the TTS has left out, all in one
            before, self.last_pts = self.last_pts, pts
            known.timed = True
            self.report_words(known, known.clock.word(text, pts, at_ns, before), at)

    def report_words(self, context: Context, words: list[TimedWord], at: float) -> None:
        if words:
            starts = [(text, context.start_ms + start) for text, start in words]
            timed = [(text, start, start + WORD_MS_PER_UNIT * units_of(text.strip())) for text, start in starts]
            self.ledger.words_timed(context.reply.name, timed, at)

    def close_sentence(self, context: Context, text: str, at: float) -> None:
        """End a sentence, if the audio since the last one can be its own.

        A service that sends its audio later reports the sentence as soon as it has sent the text.
        """
        usual_ms = units_of(text.strip()) * USUAL_MS_PER_UNIT
        fits = LEAST_SHARE * usual_ms <= context.sound.sounding_ms <= MOST_SHARE * usual_ms
        if fits and (context.alone or context.reply.unannounced):
            self.report_spans(context, text.strip(), at)
            context.text = context.text.removeprefix(text.strip()).lstrip()
            context.reply.text = context.reply.text.lstrip().removeprefix(text.strip())

    def report_spans(self, context: Context, text: str, at: float) -> None:
        for span in spans_of(text, context.sound):
            self.ledger.span_made(context.reply.name, at, span.text, span.audio_ms)
        context.sound = Sound()

    def context_stopped(self, name: str | None, at: float) -> None:
        known = self.contexts.get(name or self.context or "")
        if known is None:
            return
        self.context, known.is_open = None, False
        known.stopped += 1
        self.report_words(known, known.clock.flush(), at)
        if known.sound.end_ms:
            self.report_spans(known, known.text or known.reply.text, at)
            known.text = known.reply.text = ""

    # The output

    def played(self, audio_ms: float, at: float) -> None:
        reply = self.open.get(self.timeline.played(audio_ms, at) or "")
        if reply is not None:
            self.anything_said = True
            self.ledger.played(reply.name, self.timeline.heard_ms(reply.name, at), at)

    def context_played(self, name: str | None, at: float) -> None:
        known = self.contexts.get(name or "")
        if known is None:
            return
        self.timeline.context_done(f"{name}/{known.played}", at)
        known.played += 1
        if known.played >= known.stopped and not known.is_open:
            known.reply.contexts.discard(name or "")
            self.check_done(known.reply, at)

    def check_done(self, reply: Reply, at: float) -> None:
        is_complete = reply.generated and reply.passed and not reply.contexts
        if is_complete and reply.done_at is None and reply.name in self.open:
            reply.done_at = at

    def settle(self, at: float) -> None:
        """Finish the replies whose last audio was heard by now."""
        for reply in [one for one in self.open.values() if one.done_at is not None]:
            if reply.done_at is not None and at >= reply.done_at + self.timeline.delay_ms:
                self.finish_or_lose(reply, reply.done_at + self.timeline.delay_ms)

    def finish_or_lose(self, reply: Reply, at: float) -> None:
        """Finish a reply, or cut it if it was lost: a client that has gone plays nothing, and a TTS may fail."""
        track = self.timeline.track(reply.name)
        if self.speaks and (not track.made_ms or track.written_ms < track.made_ms - 2 * TRANSPORT_MS):
            self.cut(reply, at, "hang_up")
        else:
            self.finish(reply, at)

    def finish(self, reply: Reply, at: float) -> None:
        if reply.has_text:
            self.ledger.finished(reply.name, at)
        self.forget(reply)

    def forget(self, reply: Reply) -> None:
        self.open.pop(reply.name, None)
        self.timeline.tracks.pop(reply.name, None)
        self.contexts = {name: one for name, one in self.contexts.items() if one.reply is not reply}
        self.responses = {frame: one for frame, one in self.responses.items() if one is not reply}
        self.generating = None if self.generating is reply else self.generating
        self.voicing = None if self.voicing is reply else self.voicing

    # Interruptions and the end

    def interruption_seen(self, frame_id: int) -> None:
        """Note an interruption that is on its way; replies that begin after it are not cut by it."""
        if frame_id not in self.interruptions:
            self.interruptions[frame_id] = list(self.open.values())

    def is_interrupting(self) -> bool:
        """Return whether an interruption is on its way that will cut a reply."""
        return any(one.name in self.open and one.interruptible for met in self.interruptions.values() for one in met)

    def interrupted(self, frame_id: int, at: float) -> None:
        """Cut replies at an interruption that has reached the output, which discards unplayed audio."""
        self.settle(at)
        met, self.interruptions[frame_id] = self.interruptions.get(frame_id, []), []
        self.timeline.interrupted()
        self.last_pts = 0
        self.speeches = deque((one for one in self.speeches if not one[1]), MAX_SPEECHES)
        for reply in met:
            if reply.name in self.open and reply.interruptible:
                self.cut(reply, at, "user_speech")

    def cut(self, reply: Reply, at: float, cause: str) -> None:
        heard_ms = self.timeline.heard_ms(reply.name, at)
        if heard_ms > 0:
            self.ledger.cut(reply.name, heard_ms, at, cause=cause)
        elif reply.has_text:
            self.ledger.withdrawn(reply.name, at)
        self.forget(reply)

    def end(self, at: float, reason: str | None) -> None:
        """End the call: audio not heard by now is never heard."""
        self.settle(at)
        for reply in list(self.open.values()):
            if reply.done_at is not None:
                self.finish_or_lose(reply, at)
            else:
                self.cut(reply, at, "hang_up")
        self.ledger.end(at, reason)
