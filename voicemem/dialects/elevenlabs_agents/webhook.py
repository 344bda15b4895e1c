"""ElevenLabs' webhook after a call: who signed it, and the frames of its transcript."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator, Mapping

from voicemem.dialects.dialect import MalformedFrame
from voicemem.dialects.elevenlabs_agents.frames import ENDED, ITEM
from voicemem.dialects.reading import Record, read
from voicemem.protocol.types import JsonObject

SIGNATURE = "elevenlabs-signature"
TOLERANCE_MS = 30 * 60 * 1000
"""How old or new a signature may be, as in ElevenLabs' own SDK."""
MAX_DIGITS = 15
TRANSCRIPT = "post_call_transcription"


def verify(body: bytes, headers: Mapping[str, str], secret: str, now: int) -> bool:
    """Whether a body was signed with this secret within the last half hour: `t=UNIX_SECONDS,v0=HEX`."""
    parts = [part.strip().partition("=") for part in headers.get(SIGNATURE, "").split(",")]
    stated = [value for name, _, value in parts if name == "t"]
    signed = [value for name, _, value in parts if name == "v0"]
    if len(stated) != 1 or not stated[0].isascii() or not stated[0].isdecimal() or len(stated[0]) > MAX_DIGITS:
        return False
    if not secret or abs(now - int(stated[0]) * 1000) > TOLERANCE_MS:
        return False
    expected = hmac.new(secret.encode(), stated[0].encode() + b"." + body, hashlib.sha256).hexdigest()
    return any(value.isascii() and hmac.compare_digest(expected, value) for value in signed)


class CallTimes(Record):
    """Unix seconds, and seconds."""

    start_time_unix_secs: int | None = None
    call_duration_secs: int | None = None


class Data(Record):
    conversation_id: str
    transcript: list[JsonObject]
    metadata: CallTimes | None = None


def frames(body: JsonObject) -> Iterator[JsonObject]:
    """One frame for each item of the transcript, and one for the end; nothing for other webhooks.

    Raises `MalformedFrame`.
    """
    if not isinstance(body.get("type"), str):
        raise MalformedFrame("A webhook has a type.")
    if body["type"] != TRANSCRIPT:
        return
    data = read(Data, body.get("data"))
    call = data.metadata or CallTimes()
    times = [time_of(item, call) for item in data.transcript]
    for index, item in enumerate(data.transcript):
        until = times[index + 1] if index + 1 < len(times) else None
        place = {"type": ITEM, "conversation_id": data.conversation_id, "index": index}
        yield {**item, **place, "ts": times[index], "until": until}
    yield {"type": ENDED, "conversation_id": data.conversation_id, "ts": end_of(call)}


def time_of(item: JsonObject, call: CallTimes) -> int | None:
    """When an item began, Unix ms."""
    created, seconds = item.get("created_at_unix_ms"), item.get("time_in_call_secs")
    if type(created) is int:
        return created
    if call.start_time_unix_secs is None or type(seconds) is not int:
        return None
    return (call.start_time_unix_secs + seconds) * 1000


def end_of(call: CallTimes) -> int | None:
    """When the call ended, Unix ms."""
    if call.start_time_unix_secs is None or call.call_duration_secs is None:
        return None
    return (call.start_time_unix_secs + call.call_duration_secs) * 1000
