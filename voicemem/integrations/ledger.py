"""The ledger of one call: texts said, synthesised, played and cut, as events of voicemem.v1, for any framework.

    ledger = Ledger(session.send)                         # anything that takes an event and returns at once

    ledger.user_said("Tell me a joke", at, final=True)    # any number of partials and finals in one turn of the caller
    ledger.user_spoke(at)                                 # when they stopped speaking, if you know it
    ledger.user_turn_ended()
    ledger.said("r1", "Why did the scarecrow win?", at)   # "r1": your own id of this reply, new for each
    ledger.said_all("r1", at)
    ledger.voiced("r1", "Why did the scarecrow win?")     # text that the TTS was given
    ledger.audio_made("r1", 20)                           # audio that it made, in ms
    ledger.span_made("r1", at)                            # all of that text now has its audio
    ledger.played("r1", 0, at)                            # how far playback has come, in ms of the reply's audio
    ledger.cut("r1", 1200, at)                            # the caller broke in there
    ledger.end(at)

Times named `at` are Unix ms, positions and lengths are ms of audio; both may have fractions. If the TTS reports the
time of each word, `words_timed` replaces `voiced`, `audio_made` and `span_made`.

No method raises, waits, or reads a clock. Reports after `end`, or about a reply that is over, are dropped. A reply that
was never played leaves no message, once it is `withdrawn` or the call ends.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, Concatenate, NamedTuple, ParamSpec

from voicemem.integrations.spoken_text import MAX_CHARS, SpokenText, SpokenWord, VoiceRate, place_of
from voicemem.protocol.types import MAX_INTEGER, JsonObject

LOG = logging.getLogger("voicemem.integrations")
MAX_REPLIES = 256
"""The number of newest replies that are kept; reports about others are dropped."""
WORDS_PER_EVENT = 500
MAX_NAME = 128
PLAYED_OUT_MS = 60.0
"""A reply with no more audio left than this was played to its end."""
P = ParamSpec("P")


class Reply:
    """One reply on its way from the LLM through the TTS to the caller's ear. Positions are ms of its audio."""

    def __init__(self, name: str, item: str, rate: VoiceRate) -> None:
        self.name = name
        self.item = item
        self.text = ""
        """The generated text, up to the bound of `SpokenText`."""
        self.spoken = SpokenText(rate)
        self.has_word_times = False
        self.position_ms: float | None = None
        """The position of playback; None before it has begun."""
        self.reported_ms = float("-inf")
        self.complete = False
        self.is_named = False
        self.is_cut = False
        self.cut_ms: float | None = None
        """The position of the last cut, if known."""
        self.cut_at = -MAX_INTEGER
        self.resumed_at = -MAX_INTEGER
        self.over = False

    @property
    def whole_ms(self) -> float | None:
        """The length of its audio, once known."""
        closed = self.spoken.closed_ms
        return closed if self.complete and closed and not self.spoken.is_open else None

    def is_played_out(self, position_ms: float) -> bool:
        """Return whether a position is at or near the end of the audio made so far."""
        return position_ms >= self.spoken.audio_ms - PLAYED_OUT_MS

    def said(self, text: str) -> None:
        self.text += text[: MAX_CHARS - len(self.text)]

    def close(self) -> None:
        """Note that the reply is over, and drop its texts."""
        self.over = True
        self.text, self.spoken = "", SpokenText(self.spoken.rate)

    def voice_what_was_said(self) -> None:
        """Take the generated text as the text of the TTS, if no other is known."""
        if not self.spoken.text:
            self.spoken.voice(self.text)

    def evidence(self, position_ms: float | None, heard_text: str | None) -> JsonObject:
        """Return the evidence of an interruption at a position; `heard_text` is the framework's own estimate."""
        if position_ms is None:
            return {"heard_text": heard_text, "estimated": True} if heard_text else {}
        if position_ms <= 0:
            return {"heard_text": "", "audio_end_ms": 0}
        stated: JsonObject = {"audio_end_ms": round(position_ms)}
        if self.has_word_times:
            return stated
        self.voice_what_was_said()
        heard = self.spoken.heard_at(position_ms)
        if heard_text and (not self.spoken.text or (heard is not None and not self.spoken.rate.spans)):
            return {**stated, "heard_text": heard_text, "estimated": True}
        if heard is None:
            return stated
        return {**stated, "heard_text": self.text[: place_of(heard, self.text)], "estimated": True}


class Final(NamedTuple):
    """A final transcript of the caller."""

    event: JsonObject
    at: float
    began: float
    """When its first words came."""
    item: str
    language: str | None


def never_raises(method: Callable[Concatenate[Ledger, P], None]) -> Callable[Concatenate[Ledger, P], None]:
    """Drop reports that cannot be understood, and all after the end."""

    @wraps(method)
    def guarded(ledger: Ledger, /, *arguments: P.args, **named: P.kwargs) -> None:
        if ledger.ended:
            return
        try:
            method(ledger, *arguments, **named)
        except Exception as error:  # whatever it is, the phone call continues
            ledger.missed(method.__name__, error)

    return guarded


def of_reply(method: Callable[Concatenate[Ledger, Reply, P], None]) -> Callable[Concatenate[Ledger, str, P], None]:
    """Like `never_raises`, for reports about a reply, by the integration's id; one that is over gets no more."""

    @wraps(method)
    def of_known(ledger: Ledger, reply: str, /, *arguments: P.args, **named: P.kwargs) -> None:
        known = ledger.reply(reply)
        if known is not None:
            method(ledger, known, *arguments, **named)

    return never_raises(of_known)


class Ledger:
    """Sends the reports of one call as events.

    `send` gets each event at once. `prefix` begins all ids, so that those of two processes differ.
    """

    def __init__(self, send: Callable[[JsonObject], object], prefix: str = "") -> None:
        self.send = send
        self.prefix = prefix
        self.ended = False
        self.misses: set[str] = set()
        self.replies: dict[str, Reply] = {}
        self.rate = VoiceRate()
        self.agent: str | None = None
        self.utterances = 1
        self.segment = 0
        self.segment_began: float | None = None
        self.spoken_until: float | None = None
        """When the caller stopped speaking, unless they speak again."""
        self.newest_final: Final | None = None
        """The last final of the utterance, unless the caller has spoken again."""
        self.utterance_has_final = False
        self.partial: tuple[JsonObject, float, str | None] | None = None
        """The caller's partial transcript: its event, time and language."""

    def missed(self, where: str, error: Exception) -> None:
        """Warn of a report that cannot be understood, once for each kind in a call."""
        if where not in self.misses:
            self.misses.add(where)
            LOG.warning("The memory misses part of this call: `%s` is not as expected: %r.", where, error)

    # The caller

    @never_raises
    def user_said(
        self, text: str, at: float, *, final: bool, user: str | None = None, language: str | None = None
    ) -> None:
        """Report the text of the segment so far; after a `final` the next one begins, in the same turn."""
        if not text and not final:
            return
        item = f"{self.prefix}u{self.utterances}"
        event = {"type": "asr", "text": text, "final": final, "segment": self.segment, "user": user or None}
        began = at if self.segment_began is None else self.segment_began
        if final and text:
            self.newest_final = Final(event, at, began, item, language or None)
            self.emit_final(self.newest_final)
        else:
            self.emit(event, at, item, language=language or None)
        self.partial = None if final else (event, at, language)
        self.segment_began = None if final else began
        if final:
            self.segment += 1
            self.utterance_has_final |= bool(text)

    @never_raises
    def user_spoke(self, until: float | None) -> None:
        """Report when the caller stopped speaking, whenever their words come; None while they speak."""
        self.spoken_until = None if until is None else positive(until)
        if until is None:
            self.newest_final = None
        elif self.newest_final is not None and until < self.newest_final.at:
            self.emit_final(self.newest_final)

    def emit_final(self, final: Final) -> None:
        """Send a final transcript, with the time at which it was said if that is known."""
        event, at, began, item, language = final
        until = self.spoken_until
        if until is not None and until <= at:
            if until < began:  # so that the utterance begins then
                self.emit({**event, "text": "", "final": False}, until, item)
            event = {**event, "start_ms": 0, "end_ms": max(0, round(until) - round(began))}
        self.emit(event, at, item, language=language)

    @property
    def place(self) -> tuple[str, int]:
        """The place of the caller's next words: the item of the utterance, and the number of the segment."""
        return f"{self.prefix}u{self.utterances}", self.segment

    @never_raises
    def user_corrected(self, place: tuple[str, int], text: str, at: float) -> None:
        """Report that the final at a place has changed; an empty text takes it back."""
        item, segment = place
        self.emit({"type": "asr", "text": text, "final": True, "segment": segment}, at, item)
        newest = self.newest_final
        if newest is not None and (newest.item, newest.event["segment"]) == place:
            self.newest_final = newest._replace(event={**newest.event, "text": text}) if text else None

    @never_raises
    def transcribed(self, utterance: str, text: str, at: float, final: bool, *, ended: bool = False) -> None:
        """Report a transcript by the id of its utterance, if the framework has one; an empty text keeps the place.

        `ended`: the caller has just stopped speaking.
        """
        times = {"start_ms": 0, "end_ms": 0} if ended else {}
        self.emit({"type": "asr", "segment": 0, "text": text, "final": final, **times}, at, self.item_of(utterance))

    @never_raises
    def user_turn_ended(self) -> None:
        """Begin another utterance of the caller, as a reply that begins to play does too."""
        self.next_utterance()

    @never_raises
    def user_typed(self, text: str, at: float) -> None:
        """Report a whole message of the user that was not spoken."""
        self.next_utterance()
        event = {"type": "message", "role": "user", "source": "message", "text": text}
        self.emit(event, at, f"{self.prefix}u{self.utterances}")
        self.utterance_has_final = True
        self.next_utterance()

    def next_utterance(self) -> None:
        """Begin another utterance, unless the caller has said nothing yet; a partial transcript moves to it."""
        if not self.utterance_has_final:
            return
        before, partial = f"{self.prefix}u{self.utterances}", self.partial
        self.utterances += 1
        self.segment, self.utterance_has_final = 0, False
        self.segment_began = self.newest_final = None
        if partial is not None:
            event, at, language = partial
            self.emit({**event, "text": "", "final": True}, at, before)
            event["segment"], self.segment_began = 0, at
            self.emit(event, at, f"{self.prefix}u{self.utterances}", language=language or None)

    # Replies

    @of_reply
    def said(self, reply: Reply, text: str, at: float) -> None:
        """Report more text of a reply, from the LLM or the program."""
        if text and not reply.complete:
            reply.said(text)
            self.emit({"type": "llm.delta", "text": text}, at, reply.item, agent=self.agent_of(reply))

    @of_reply
    def said_all(self, reply: Reply, at: float) -> None:
        """Report that the text of a reply is complete."""
        if not reply.complete:
            reply.complete = True
            self.emit({"type": "llm.done"}, at, reply.item)

    @of_reply
    def announced(self, reply: Reply, text: str, at: float, source: str = "greeting") -> None:
        """Report a whole text of the agent without an LLM: `greeting`, `silence`, `command` or `llm_failure`."""
        if text and not reply.complete:
            reply.said(text)
            reply.complete = True
            event = {"type": "message", "role": "assistant", "source": source, "text": text}
            self.emit(event, at, reply.item, agent=self.agent_of(reply))

    def agent_of(self, reply: Reply) -> str | None:
        """Return the agent that speaks a reply; None once it was reported."""
        agent, reply.is_named = None if reply.is_named else self.agent, True
        return agent

    @of_reply
    def withdrawn(self, reply: Reply, at: float) -> None:
        """Report that a reply will no longer be played: it never existed, unless some of it was heard."""
        if not reply.position_ms:
            self.cancel(reply, at)

    @never_raises
    def tool_called(self, call_id: str, name: str, arguments: Any, at: float, reply: str | None = None) -> None:
        """Report that the LLM called a tool, in the same answer as `reply` if that is given."""
        event = {"type": "tool.call", "call_id": call_id, "name": name, "arguments": arguments}
        self.emit(event, at, None if reply is None else self.item_of(reply))

    @never_raises
    def tool_returned(self, call_id: str, result: Any, at: float, name: str | None = None) -> None:
        """Report a tool's result: any JSON."""
        self.emit({"type": "tool.result", "call_id": call_id, "result": result}, at, name=name)

    # Audio

    @of_reply
    def voiced(self, reply: Reply, text: str) -> None:
        """Report that the TTS got more text. Without this report, that is the text that was `said`."""
        reply.spoken.voice(text)

    @of_reply
    def audio_made(self, reply: Reply, audio_ms: float) -> None:
        """Report that the TTS made more audio."""
        reply.spoken.audio_ms += positive(audio_ms)

    @of_reply
    def span_made(self, reply: Reply, at: float, text: str | None = None, audio_ms: float | None = None) -> None:
        """Report that a piece of text has all of its audio: `text`, or all text that the TTS got.

        `audio_ms` is the length of this piece, if the TTS reports it; by default, all audio since the last piece.
        """
        if reply.is_cut:
            return
        if text is None:
            reply.voice_what_was_said()
        words = reply.spoken.close_span(text, None if audio_ms is None else positive(audio_ms))
        if not reply.has_word_times:
            self.emit_words(reply, words, at, estimated=True)

    @of_reply
    def words_timed(self, reply: Reply, words: Iterable[tuple[str, float, float]], at: float) -> None:
        """Report the TTS's times of words: text, start and end, in ms from the start of the reply's audio."""
        timed = [
            SpokenWord(text.strip(), round(positive(start)), round(positive(end)))
            for text, start, end in words
            if text.strip()
        ]
        had_some = reply.has_word_times
        reply.has_word_times |= bool(timed)
        self.emit_words(reply, timed, at, estimated=False)
        if reply.is_cut and reply.has_word_times > had_some:
            self.interrupt(reply, reply.position_ms, None, None)  # now the word at the position is known

    # Playback

    @of_reply
    def played(self, reply: Reply, position_ms: float, at: float) -> None:
        """Report the position of playback: 0 when it begins, then as often as you know it."""
        if reply.is_cut:
            return
        begun = reply.position_ms is None
        reply.position_ms = max(reply.position_ms or 0.0, positive(position_ms))
        self.next_utterance()
        if begun or reply.position_ms - reply.reported_ms >= 500:  # in case the process dies
            reply.reported_ms = reply.position_ms
            self.emit({"type": "tts", "audio_ms": round(reply.position_ms)}, at, reply.item)

    @of_reply
    def finished(self, reply: Reply, at: float) -> None:
        """Report that a reply was played to its end."""
        if not reply.is_cut:
            self.next_utterance()
            self.finish(reply, at)

    @of_reply
    def cut(
        self,
        reply: Reply,
        position_ms: float | None,
        at: float,
        *,
        heard_text: str | None = None,
        cause: str | None = None,
    ) -> None:
        """Report that the caller broke in, or a pause that may be a false alarm, by default at the last position.

        `heard_text` is the framework's own estimate, used if nothing better is known. It may be called again for the
        same cut with a better position.
        """
        if position_ms is not None:
            reply.position_ms = positive(position_ms)
        if reply.is_cut and reply.cut_ms == reply.position_ms:
            return
        reply.is_cut, reply.cut_ms = True, reply.position_ms
        reply.cut_at = max(round(at), reply.resumed_at + 1)
        is_known = position_ms is not None or reply.position_ms != 0.0
        self.interrupt(reply, reply.position_ms or 0.0 if is_known else None, heard_text, cause)

    @of_reply
    def resumed(self, reply: Reply, at: float) -> None:
        """Report that the cut was a false alarm: playback continues."""
        if reply.is_cut:
            reply.is_cut = False
            reply.resumed_at = round(at)
            self.emit({"type": "resume"}, at, reply.item)

    @never_raises
    def end(self, at: float, reason: str | None = None) -> None:
        """End the call: a reply that still plays is cut, and one that was never played is withdrawn."""
        for known in self.open_replies:
            whole = known.whole_ms
            if known.position_ms is None:
                self.cancel(known, at)
            elif whole is not None and known.position_ms >= whole:
                self.finish(known, at)
            else:
                self.cut(known.name, None, at, cause="hang_up")
        self.emit({"type": "session.end"}, at, reason=reason)
        self.ended = True
        self.replies.clear()

    # Events

    def interrupt(self, known: Reply, position_ms: float | None, heard_text: str | None, cause: str | None) -> None:
        evidence = known.evidence(position_ms, heard_text)
        self.emit({"type": "interrupt", **evidence}, known.cut_at, known.item, cause=cause)

    def emit_words(self, known: Reply, words: list[SpokenWord], at: float, estimated: bool) -> None:
        for first in range(0, len(words), WORDS_PER_EVENT):
            batch = [word._asdict() for word in words[first : first + WORDS_PER_EVENT]]
            self.emit({"type": "tts", "words": batch}, at, known.item, estimated=estimated or None)

    def finish(self, known: Reply, at: float) -> None:
        whole = known.whole_ms
        known.close()
        total = {} if whole is None else {"total_audio_ms": round(whole)}
        self.emit({"type": "tts", "done": True, **total}, at, known.item)

    def cancel(self, known: Reply, at: float) -> None:
        known.close()
        self.emit({"type": "llm.cancel"}, at, known.item)

    @property
    def open_replies(self) -> list[Reply]:
        """The replies neither over nor cut, the oldest first."""
        return [one for one in self.replies.values() if not one.over and not one.is_cut]

    def reply(self, name: str) -> Reply | None:
        """Return the reply with this id, new if it is unknown; None if it is over."""
        item = self.item_of(name)
        known = self.replies.get(item)
        if known is None:
            known = self.replies[item] = Reply(name, item, self.rate)
            if len(self.replies) > MAX_REPLIES:  # drop the oldest that is over or cut, else the oldest
                closed = (item for item, one in self.replies.items() if one.over or one.is_cut)
                del self.replies[next(closed, next(iter(self.replies)))]
        return None if known.over else known

    def item_of(self, name: str) -> str:
        item = self.prefix + name
        return item if 0 < len(item) <= MAX_NAME else hashlib.sha256(item.encode()).hexdigest()

    def emit(self, event: JsonObject, at: float, item: str | None = None, **more: Any) -> None:
        if not self.ended:
            known = {"ts": round(at), **event, "item": item, **more}
            self.send({name: value for name, value in known.items() if value is not None})


def now_ms() -> float:
    return time.time() * 1000.0


def positive(value: float) -> float:
    """Return a length or a position, at least 0. Raises `ValueError` if it is no number."""
    if not -MAX_INTEGER < value < MAX_INTEGER:
        raise ValueError("a length must be a number of milliseconds")
    return max(0.0, float(value))
