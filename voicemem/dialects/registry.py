"""The dialects by name, and the frame in a message: bare, or in an envelope with its time, sender and number.

A new dialect adds its import and its line here.
"""

from __future__ import annotations

from typing import Any

import msgspec

from voicemem.dialects.agora_ten import AGORA_TEN
from voicemem.dialects.caller_fields import carry
from voicemem.dialects.conversation_relay import CONVERSATION_RELAY
from voicemem.dialects.deepgram_agent import DEEPGRAM_AGENT
from voicemem.dialects.dialect import Dialect, MalformedFrame
from voicemem.dialects.elevenlabs_agents.translation import ELEVENLABS_AGENTS
from voicemem.dialects.gemini_live.translation import GEMINI_LIVE
from voicemem.dialects.livekit_agents import LIVEKIT_AGENTS
from voicemem.dialects.nova_sonic import NOVA_SONIC
from voicemem.dialects.openai_live import OPENAI_LIVE
from voicemem.dialects.openai_realtime.translation import OPENAI_REALTIME
from voicemem.dialects.pipecat_rtvi import PIPECAT_RTVI
from voicemem.dialects.reading import decode_json
from voicemem.dialects.retell.translation import RETELL
from voicemem.dialects.twilio_media_streams import TWILIO_MEDIA_STREAMS
from voicemem.dialects.ultravox import ULTRAVOX
from voicemem.dialects.vapi.translation import VAPI
from voicemem.errors import InvalidFrame, Refused
from voicemem.protocol import codec
from voicemem.protocol.events import FrameEvent
from voicemem.protocol.explanations import did_you_mean

DIALECTS: dict[str, Dialect] = {
    dialect.name: dialect
    for dialect in (
        LIVEKIT_AGENTS,
        OPENAI_REALTIME,
        ELEVENLABS_AGENTS,
        AGORA_TEN,
        CONVERSATION_RELAY,
        GEMINI_LIVE,
        PIPECAT_RTVI,
        DEEPGRAM_AGENT,
        NOVA_SONIC,
        VAPI,
        ULTRAVOX,
        RETELL,
        OPENAI_LIVE,
        TWILIO_MEDIA_STREAMS,
    )
}  # fmt: skip
DIALECTS_VERSION = sum(dialect.version for dialect in DIALECTS.values())
"""A number that grows with every change of any dialect; part of the version of fold states."""
WITH_WEBHOOKS = tuple(name for name, dialect in DIALECTS.items() if dialect.hook is not None)


def no_such_dialect(name: str) -> str:
    """Return the sentence about an unknown dialect, with the nearest name and all names."""
    return f"There is no such dialect{did_you_mean(name, DIALECTS)}; known: {', '.join(sorted(DIALECTS))}."


MAX_DIALECT_FRAME_BYTES = 16 * 1024 * 1024
"""Larger than for other frames, because they may have images and long audio, which are not kept."""
BAD_ENVELOPE = "An envelope has a frame, and may have ts, from, seq, id, session_id and producer."


def decode_message(message: bytes, binary: bool, dialect: str) -> FrameEvent | codec.RejectedEvent:
    """Return the frame in a message, bare or in an envelope. Raises `MalformedFrame` for JSON beyond the limits."""
    return decode_value(message if binary else read_value(message), message, dialect)


def read_value(message: bytes) -> Any:
    """Decode a text message; text that is not JSON is returned. Raises `MalformedFrame` beyond the limits."""
    try:
        codec.check_frame(message, MAX_DIALECT_FRAME_BYTES)
        return decode_json(message)
    except (InvalidFrame, Refused) as error:
        raise MalformedFrame(error.detail) from None
    except codec.MALFORMED:
        return message.decode()


def decode_value(value: Any, text: bytes, dialect: str) -> FrameEvent | codec.RejectedEvent:
    """Return the frame in a JSON value, whose text is `text`, or in another message."""
    if not is_envelope(value):
        return FrameEvent(dialect=dialect, frame=value)
    try:
        return msgspec.convert({**value, "type": "frame", "dialect": dialect}, FrameEvent)
    except msgspec.ValidationError:
        header = codec.decode_header(text)
        return codec.RejectedEvent("malformed_frame", BAD_ENVELOPE, header.session_id, header.producer, header.seq)


def is_envelope(value: Any) -> bool:
    return isinstance(value, dict) and "frame" in value and "type" not in value


def split_frame(event: FrameEvent) -> list[FrameEvent]:
    """Split a message into frames, each of which becomes a row. A message with a number or an id stays whole."""
    dialect = DIALECTS.get(event.dialect)
    is_named = event.seq is not None or event.id is not None
    if dialect is None or dialect.split is None or is_named or not isinstance(event.frame, dict):
        return [event]
    try:
        frames = [*dialect.split(event.frame)]
    except Exception:  # a malformed message is refused when it is reduced
        return [event]
    carrying = carry(dialect.caller.pick(event.frame), frames)
    return [msgspec.structs.replace(event, frame=frame) for frame in carrying]


OF_THE_LEASE = "-"
"""Stands for the dialect that the session's `session.open` has named."""


def decode_enveloped(text: bytes) -> codec.DecodedEvent | codec.RejectedEvent:
    """Decode one event, or one frame in an envelope. Raises `InvalidFrame` when it is not JSON."""
    if b'"frame"' in text and is_envelope(value := codec.decode_or_none(text)):
        frame = decode_value(value, text, OF_THE_LEASE)
        return frame if isinstance(frame, codec.RejectedEvent) else codec.DecodedEvent(frame, text)
    return codec.decode_event(text)
