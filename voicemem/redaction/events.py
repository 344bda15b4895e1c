"""Redaction of `voicemem.v1` events and of other stacks' frames.

Ids, names of users, items and tools, and the configuration of a session are not texts, and stay as they are.

Runs of digits continue from one event to the next, so each producer's speech is followed (`Speech`). Each reply of the
agent is a text of its own, so that its heard text stays comparable. All speech of users is one text: a run continues
from one final to the next, even over a reply. This state is bounded, and can be rebuilt from the newest events in the
journal, because redacting redacted text changes nothing.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from typing import Any, NamedTuple, TypeVar

import msgspec

from voicemem.dialects.dialect import Dialect, Text
from voicemem.dialects.reading import join_part
from voicemem.dialects.registry import DIALECTS
from voicemem.protocol import events
from voicemem.protocol.codec import ENCODER, JSON_DECODER
from voicemem.redaction.digit_runs import START, RunState, close
from voicemem.redaction.texts import FRESH, PieceState, Rules, redact_piece, redact_text, redact_value

MAX_FRAGMENTED = 16
"""Incomplete messages that are kept; of more, the oldest is dropped."""
T = TypeVar("T", bound=events.Event)
Changes = dict[str, Any]
"""The new values of an event's changed fields."""
TIMES = ("interrupt_timestamp",)
UNNAMED = "unnamed"
"""The key of the current reply of a producer that names neither item nor turn."""
MAX_SEGMENTS = 32
"""Segments whose starts are kept."""
MAX_REPLIES = 64
"""Texts in pieces, and texts in words, whose states are kept."""
MAX_WORDS = 64
"""Words of one reply that may be sent again."""
MAX_BEGINNING = 256
PARTS = "parts"
"""The key of the sentences of a reply."""


# Speech of a producer


class UserSpeech:
    """The speech of users: segments, each of which begins where the one before it ended."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.base = START
        """The end of the newest segment so far."""
        self.restated = START
        """The end of the newest text that repeats earlier segments."""
        self.segments: OrderedDict[Hashable, tuple[RunState, RunState]] = OrderedDict()
        """The start and the current end of each segment, the newest last."""
        self.finals = 0
        """How many segments without a key have become final."""

    def find(self, key: Hashable) -> tuple[RunState, RunState]:
        """Return the start and the current end of a segment; a new one continues the one before it."""
        start = self.closed(self.base)
        return self.segments.get(key) or (start, start)

    def closed(self, run: RunState) -> RunState:
        return run if self.rules.limit is None else close(run, self.rules.limit)

    def keep(self, key: Hashable, start: RunState, end: RunState) -> None:
        if key not in self.segments or key == next(reversed(self.segments)):
            self.base = end
        self.segments[key] = start, end
        if len(self.segments) > MAX_SEGMENTS:
            self.segments.popitem(last=False)

    def whole(self, text: str, key: Hashable | None, final: bool) -> str:
        """Redact all of a segment so far; one without a key ends with its final."""
        place = (self.finals,) if key is None else key
        if key is None and final:
            self.finals += 1
        if not text and place not in self.segments:
            return text
        start, _ = self.find(place)
        shown, end = redact_text(text, start, self.rules, complete=final)
        self.keep(place, start, end)
        return shown

    def piece(self, text: str, key: Hashable) -> str:
        """Redact the next piece of a segment."""
        start, so_far = self.find(key)
        shown, end = redact_text(text, so_far, self.rules, complete=False)
        self.keep(key, start, end)
        return shown

    def next(self, text: str, key: Hashable) -> str:
        """Redact a preview of a segment's next words, without adding them."""
        return redact_text(text, self.closed(self.find(key)[1]), self.rules, complete=False)[0]

    def restate(self, text: str, key: Hashable) -> str:
        """Redact a text that repeats earlier segments."""
        start = self.segments[key][0] if key in self.segments else self.restated
        shown, end = redact_text(text, start, self.rules)
        self.keep(key, start, end)
        self.restated = end
        return shown

    def words(self, texts: Iterable[str], key: Hashable | None) -> list[str]:
        """Redact the words of a segment; to be called before its text is redacted."""
        run, shown_words = self.find((self.finals,) if key is None else key)[0], []
        for text in texts:
            shown, run = redact_text(text, run, self.rules)
            shown_words.append(shown)
        return shown_words

    def end(self, key: Hashable) -> None:
        self.base = self.closed(self.base)
        self.segments.pop(key, None)


class Pieces(NamedTuple):
    """A text in pieces, as far as it has arrived."""

    place: PieceState
    beginning: str = ""
    """Its first characters, redacted."""


class Words:
    """The words of a reply with their times; an engine may send some of them again."""

    def __init__(self) -> None:
        self.place = FRESH
        self.before: OrderedDict[int, PieceState] = OrderedDict()
        """The state before each word, by the word's time."""


class AgentSpeech:
    """The agent's speech: each reply is a text of its own, sent in pieces, whole, or as words."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.pieces: OrderedDict[Hashable, Pieces] = OrderedDict()
        self.words: OrderedDict[Hashable, Words] = OrderedDict()
        self.parts = UserSpeech(rules)
        """The sentences of a reply, each of which may be sent again."""

    def whole(self, text: str, key: Hashable | None = None, complete: bool = True) -> str:
        """Redact a text from the start of a reply; with a key, all of the reply so far."""
        shown, place = redact_piece(text, FRESH, self.rules, complete)
        if key is not None:
            self.keep(key, Pieces(place, shown[:MAX_BEGINNING]))
        return shown

    def piece(self, text: str, key: Hashable) -> str:
        """Redact the next piece of a reply."""
        so_far = self.pieces.get(key) or Pieces(FRESH)
        shown, place = redact_piece(text, so_far.place, self.rules)
        self.keep(key, Pieces(place, (so_far.beginning + shown)[:MAX_BEGINNING]))
        return shown

    def keep(self, key: Hashable, pieces: Pieces) -> None:
        self.pieces[key] = pieces
        self.pieces.move_to_end(key)
        if len(self.pieces) > MAX_REPLIES:
            self.pieces.popitem(last=False)

    def grown(self, text: str, key: Hashable) -> str:
        """Redact all of a reply so far, or only its new part."""
        so_far = self.pieces.get(key)
        if so_far is None:
            return self.whole(text, key, complete=False)
        shown = redact_piece(text, FRESH, self.rules)[0]
        if shown.startswith(so_far.beginning) or "".join(shown.split()).startswith("".join(so_far.beginning.split())):
            return self.whole(text, key, complete=False)
        return self.piece(f" {text}" if text[:1].isalnum() else text, key).removeprefix(" ")

    def word(self, text: str, key: Hashable, at_ms: int | None = None) -> str:
        words = self.words.setdefault(key, Words())
        self.words.move_to_end(key)
        if len(self.words) > MAX_REPLIES:
            self.words.popitem(last=False)
        before = words.place if at_ms is None else words.before.get(at_ms, words.place)
        shown, after = redact_piece(text, before, self.rules, complete=True)
        words.place = PieceState(after.run)
        if at_ms is not None:
            words.before[at_ms] = before
            words.before.move_to_end(at_ms)
            if len(words.before) > MAX_WORDS:
                words.before.popitem(last=False)
        return shown

    def end(self, key: Hashable) -> None:
        self.pieces.pop(key, None)
        self.words.pop(key, None)
        if key == PARTS:
            self.parts = UserSpeech(self.rules)


class Speech:
    """The speech of one producer."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.users: dict[str, UserSpeech] = {}
        """By channel: a stack may report the user's words in two ways."""
        self.agent = AgentSpeech(rules)
        self.fragments: OrderedDict[str, dict[str, Any]] = OrderedDict()
        """Parts of messages that cannot be read before all have arrived."""

    def user(self, channel: str = "") -> UserSpeech:
        return self.users.setdefault(channel, UserSpeech(self.rules))


def redact_event(event: T, payload: bytes, speech: Speech) -> tuple[T, bytes] | None:
    """Return the redacted event and its payload; None if nothing changes.

    A word keeps its unknown fields: no one reads them, and a resend has them too.
    """
    if isinstance(event, events.FrameEvent):
        return redact_frame(event, speech)
    rule = RULES.get(type(event))
    changes = {} if rule is None else rule(event, speech)
    if event.metadata:
        # The times that voicemem itself writes there stay.
        times = {key: event.metadata[key] for key in TIMES if key in event.metadata}
        changes["metadata"] = redact_value(event.metadata, speech.rules)
        if times:
            changes["metadata"] |= times
    changes = {name: value for name, value in changes.items() if value != getattr(event, name)}
    values = JSON_DECODER.decode(payload)
    if not changes:  # but a field that came twice may hold more than the event
        plain = ENCODER.encode(values)
        return None if plain == payload else (event, plain)
    words = zip(values.get("words") or (), changes.get("words", ()), strict=False)
    shown = {"words": [before | {"text": word.text} for before, word in words]} if "words" in changes else {}
    return msgspec.structs.replace(event, **changes), ENCODER.encode(values | changes | shown)


def reply_key(event: events.LlmDelta | events.LlmDone | events.LlmError | events.Tts | events.Interrupt) -> Hashable:
    return event.item or event.turn_id if event.item or event.turn_id is not None else UNNAMED


def redact_asr(event: events.Asr, speech: Speech) -> Changes:
    user = speech.user()
    key = None if event.item is None and event.segment is None else (event.item, event.segment or 0)
    words = None if not event.words else with_texts(event.words, user.words([one.text for one in event.words], key))
    return {"text": user.whole(event.text, key, event.final), "words": words or event.words}


def with_texts(words: tuple[events.Word, ...], texts: list[str]) -> tuple[events.Word, ...]:
    return tuple(
        word if word.text == text else msgspec.structs.replace(word, text=text)
        for word, text in zip(words, texts, strict=True)
    )


def redact_delta(event: events.LlmDelta, speech: Speech) -> Changes:
    if event.whole:
        return {"text": speech.agent.whole(event.text, reply_key(event), complete=False)}
    return {"text": speech.agent.piece(event.text, reply_key(event))}


def redact_done(event: events.LlmDone, speech: Speech) -> Changes:
    key = reply_key(event)
    changes = {} if event.text is None else {"text": speech.agent.whole(event.text, key)}
    if key == UNNAMED:  # its words may still come
        speech.agent.pieces.pop(key, None)
    return changes


def redact_error(event: events.LlmError, speech: Speech) -> Changes:
    if reply_key(event) == UNNAMED:
        speech.agent.pieces.pop(UNNAMED, None)
    return {} if event.text is None else {"text": speech.agent.whole(event.text)}


def redact_tts(event: events.Tts, speech: Speech) -> Changes:
    changes: Changes = {}
    for name in ("heard_text", "synthesised_text"):
        text = getattr(event, name)
        if text is not None:
            changes[name] = speech.agent.whole(text, complete=False)
    if event.words:
        key = reply_key(event)
        texts = [speech.agent.word(word.text, key, word.start_ms) for word in event.words]
        changes["words"] = with_texts(event.words, texts)
    if event.done and reply_key(event) == UNNAMED:
        speech.agent.words.pop(UNNAMED, None)
    return changes


def redact_interrupt(event: events.Interrupt, speech: Speech) -> Changes:
    if reply_key(event) == UNNAMED:
        speech.agent.end(UNNAMED)
    heard = event.heard_text
    return {} if heard is None else {"heard_text": speech.agent.whole(heard, complete=False)}


def redact_message(event: events.MessageEvent, speech: Speech) -> Changes:
    if event.role == "user":
        return {"text": speech.user().whole(event.text, None, final=True)}
    return {"text": speech.agent.whole(event.text)}


def values_of(name: str) -> Callable[[Any, Speech], Changes]:
    """Return the rule for events that have any JSON in the field `name`."""
    return lambda event, speech: {name: redact_value(getattr(event, name), speech.rules)}


RULES: dict[type[events.Event], Callable[[Any, Speech], Changes]] = {
    events.Asr: redact_asr,
    events.LlmDelta: redact_delta,
    events.LlmDone: redact_done,
    events.LlmError: redact_error,
    events.Tts: redact_tts,
    events.Interrupt: redact_interrupt,
    events.MessageEvent: redact_message,
    events.ToolCall: values_of("arguments"),
    events.ToolResult: values_of("result"),
    events.MemoryDocument: values_of("content"),
}


def redact_frame(event: T, speech: Speech) -> tuple[T, bytes] | None:
    """Redact the texts that a frame's dialect names. The frame's content is changed in place."""
    assert isinstance(event, events.FrameEvent)
    dialect = DIALECTS.get(event.dialect)
    if dialect is None or not isinstance(event.frame, dict):
        return None
    content = event.frame
    if dialect.parts is not None and (part := dialect.parts.part(content)) is not None:
        whole = join_parts(dialect, part, speech)
        if whole is not None:
            change_texts(dialect, whole, speech)
        # Of an incomplete message only the ids are kept: its content cannot be read yet.
        redacted = msgspec.structs.replace(event, frame=whole)
        return redacted, ENCODER.encode(redacted)
    if not change_texts(dialect, content, speech):
        return None
    return event, ENCODER.encode(event)


def join_parts(dialect: Dialect, part: tuple[str, int, int | None, str], speech: Speech) -> Any:
    """Return the message that this part completes; None if other parts are missing."""
    assert dialect.parts is not None
    id = part[0]
    whole = join_part(speech.fragments.setdefault(id, {}), *part[1:])
    if whole is not None:
        del speech.fragments[id]
        return dialect.parts.join(whole)
    if len(speech.fragments) > MAX_FRAGMENTED:
        speech.fragments.popitem(last=False)
    return None


def change_texts(dialect: Dialect, content: Any, speech: Speech) -> bool:
    """Redact the texts of a frame in place. Return whether any changed."""
    changes = False
    for text in dialect.texts(content):
        if text.form == "end":
            if text.side == "user":
                speech.user(text.channel).end(text.item)
            else:
                speech.agent.end(text.item)
                speech.agent.end(PARTS)
            continue
        before = text.holder.get(text.key) if isinstance(text.holder, dict) else text.holder[text.key]
        after = redact_value(before, speech.rules) if text.form == "value" else shown_text(text, before, speech)
        if after is not before and after != before:
            text.holder[text.key] = after
            changes = True
    return changes


def shown_text(text: Text, value: Any, speech: Speech) -> Any:
    """Return one text of a frame, redacted."""
    if not isinstance(value, str):
        return value
    if text.side == "user":
        user, key = speech.user(text.channel), text.item
        match text.form:
            case "piece":
                return user.piece(value, key)
            case "again":
                return user.restate(value, key)
            case "next":
                return user.next(value, key)
        return user.whole(value, key, text.final)
    agent = speech.agent
    match text.form:
        case "piece":
            return agent.piece(value, text.item)
        case "grown":
            return agent.grown(value, str(text.item))
        case "word":
            return agent.word(value, text.item, text.at_ms)
        case "sentence":
            return agent.parts.whole(value, text.item, text.final)
    return agent.whole(value, text.item, text.final)
