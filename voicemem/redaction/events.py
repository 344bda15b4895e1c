"""Events of `voicemem.v1`, and frames of other stacks, without what must not be kept.

Ids, names of users, items and tools, and the configuration of a session are not texts, and stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import msgspec

from voicemem.dialects.dialect import Dialect, Text
from voicemem.dialects.registry import DIALECTS
from voicemem.protocol.codec import ENCODER
from voicemem.protocol.events import (
    Asr,
    Event,
    FrameEvent,
    Interrupt,
    LlmDelta,
    LlmDone,
    LlmError,
    MemoryDocument,
    MessageEvent,
    ToolCall,
    ToolResult,
    Tts,
    Word,
)
from voicemem.protocol.strict_json import JSON_DECODER
from voicemem.protocol.types import JsonObject
from voicemem.redaction.speech import PARTS, Speech
from voicemem.redaction.texts import redact_value

MAX_FRAGMENTED = 16
"""Messages of which parts may be missing; of more, the oldest is given up."""
T = TypeVar("T", bound=Event)
Changes = dict[str, Any]
"""The new values of the fields of an event that change."""
TIMES = ("interrupt_timestamp",)
UNNAMED = "unnamed"
"""The reply under way of a producer that names neither item nor turn."""


def redact_event(event: T, payload: bytes, speech: Speech) -> tuple[T, bytes] | None:
    """The event without what must not be kept, and its payload; None if it stays as it is.

    A word keeps what else its sender says about it: nobody reads that, and a resend has it too.
    """
    if isinstance(event, FrameEvent):
        return redact_frame(event, speech)
    rule = RULES.get(type(event))
    changes = {} if rule is None else rule(event, speech)
    if event.metadata:
        changes["metadata"] = redact_metadata(event.metadata, speech)
    changes = {name: value for name, value in changes.items() if value != getattr(event, name)}
    if not changes:
        return None
    values = JSON_DECODER.decode(payload)
    for name, value in changes.items():
        values[name] = (
            value
            if name != "words"
            else [given | {"text": word.text} for given, word in zip(values[name], value, strict=True)]
        )
    return msgspec.structs.replace(event, **changes), ENCODER.encode(values)


def redact_metadata(metadata: JsonObject, speech: Speech) -> JsonObject:
    """What a producer adds to a message; of what voicemem itself writes there, times stay."""
    changed: JsonObject = redact_value(metadata, speech.rules)
    times = {key: metadata[key] for key in TIMES if key in metadata}
    return changed | times if times else changed


def reply_key(event: LlmDelta | LlmDone | LlmError | Tts | Interrupt) -> Hashable:
    """The text that an event of a reply belongs to."""
    return event.item or event.turn_id if event.item or event.turn_id is not None else UNNAMED


def redact_asr(event: Asr, speech: Speech) -> Changes:
    user = speech.user()
    key = None if event.item is None and event.segment is None else (event.item, event.segment or 0)
    words = None if not event.words else with_texts(event.words, user.words([one.text for one in event.words], key))
    return {"text": user.whole(event.text, key, event.final), "words": words or event.words}


def with_texts(words: tuple[Word, ...], texts: list[str]) -> tuple[Word, ...]:
    return tuple(
        word if word.text == text else msgspec.structs.replace(word, text=text)
        for word, text in zip(words, texts, strict=True)
    )


def redact_delta(event: LlmDelta, speech: Speech) -> Changes:
    if event.whole:
        return {"text": speech.agent.whole(event.text, reply_key(event), complete=False)}
    return {"text": speech.agent.piece(event.text, reply_key(event))}


def redact_done(event: LlmDone, speech: Speech) -> Changes:
    key = reply_key(event)
    changes = {} if event.text is None else {"text": speech.agent.whole(event.text, key)}
    if key == UNNAMED:  # its words may still come
        speech.agent.pieces.pop(key, None)
    return changes


def redact_error(event: LlmError, speech: Speech) -> Changes:
    if reply_key(event) == UNNAMED:
        speech.agent.pieces.pop(UNNAMED, None)
    return {} if event.text is None else {"text": speech.agent.whole(event.text)}


def redact_tts(event: Tts, speech: Speech) -> Changes:
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


def redact_interrupt(event: Interrupt, speech: Speech) -> Changes:
    if reply_key(event) == UNNAMED:
        speech.agent.end(UNNAMED)
    heard = event.heard_text
    return {} if heard is None else {"heard_text": speech.agent.whole(heard, complete=False)}


def redact_message(event: MessageEvent, speech: Speech) -> Changes:
    if event.role == "user":
        return {"text": speech.user().whole(event.text, None, final=True)}
    return {"text": speech.agent.whole(event.text)}


def redact_call(event: ToolCall, speech: Speech) -> Changes:
    return {"arguments": redact_value(event.arguments, speech.rules)}


def redact_result(event: ToolResult, speech: Speech) -> Changes:
    return {"result": redact_value(event.result, speech.rules)}


def redact_document(event: MemoryDocument, speech: Speech) -> Changes:
    return {"content": redact_value(event.content, speech.rules)}


RULES: dict[type[Event], Callable[[Any, Speech], Changes]] = {
    Asr: redact_asr,
    LlmDelta: redact_delta,
    LlmDone: redact_done,
    LlmError: redact_error,
    Tts: redact_tts,
    Interrupt: redact_interrupt,
    MessageEvent: redact_message,
    ToolCall: redact_call,
    ToolResult: redact_result,
    MemoryDocument: redact_document,
}


def redact_frame(event: T, speech: Speech) -> tuple[T, bytes] | None:
    """A frame of another stack, at the places that its dialect says. The frame's content is changed in place."""
    assert isinstance(event, FrameEvent)
    dialect = DIALECTS.get(event.dialect)
    if dialect is None or not isinstance(event.frame, dict):
        return None
    content = event.frame
    if dialect.parts is not None and (part := dialect.parts.part(content)) is not None:
        whole = join_parts(dialect, part, speech)
        if whole is not None:
            change_texts(dialect, whole, speech)
        # Of a message that is not whole yet only the ids count: what it holds cannot be read, so it is not kept.
        found = msgspec.structs.replace(event, frame=whole)
        return found, ENCODER.encode(found)
    if not change_texts(dialect, content, speech):
        return None
    return event, ENCODER.encode(event)


def join_parts(dialect: Dialect, part: tuple[str, int, int | None, str], speech: Speech) -> Any:
    """The message that is whole with this part; None if others are missing."""
    assert dialect.parts is not None
    id, number, of, data = part
    parts = speech.fragments.setdefault(id, {})
    parts[number] = data
    if of is not None:
        parts[0] = str(of)
    count = int(parts.get(0, 0))
    pieces = [parts[index] for index in range(1, count + 1) if index in parts]
    if not count or len(pieces) < count:
        if len(speech.fragments) > MAX_FRAGMENTED:
            speech.fragments.popitem(last=False)
        return None
    del speech.fragments[id]
    return dialect.parts.join("".join(pieces))


def change_texts(dialect: Dialect, content: Any, speech: Speech) -> bool:
    """Replace the texts of a frame by those that may be kept; whether any changed."""
    changes = False
    for text in dialect.texts(content):
        if text.form == "end":
            end_text(text, speech)
            continue
        before = text.holder.get(text.key) if isinstance(text.holder, dict) else text.holder[text.key]
        after = redact_value(before, speech.rules) if text.form == "value" else shown_text(text, before, speech)
        if after is not before and after != before:
            text.holder[text.key] = after
            changes = True
    return changes


def end_text(text: Text, speech: Speech) -> None:
    if text.side == "user":
        speech.user(text.channel).end(text.item)
    else:
        speech.agent.end(text.item)
        speech.agent.end(PARTS)


def shown_text(text: Text, value: Any, speech: Speech) -> Any:
    """What may be kept of one text of a frame."""
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
