"""The wire decoder: any bytes give events or `InvalidFrame`; whatever is taken can be journaled and read by others."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable

import atheris

from tests.fuzz.driver import drive

with atheris.instrument_imports(include=["voicemem"]):
    import msgspec
    import orjson

    from tests.support.frames import decode_frame, decode_lines
    from voicemem.config.session import SECRETS
    from voicemem.errors import CODES, InvalidFrame, Refused
    from voicemem.protocol.codec import DecodedEvent, RejectedEvent, decode_event, decode_journaled
    from voicemem.protocol.comparison import is_same_event
    from voicemem.protocol.events import Auth, IncomingEvent, SessionOpen, SessionUpdate
    from voicemem.protocol.types import MAX_INTEGER
    from voicemem.sessions.recording.batches import validated_update

Decoder = Callable[[bytes], list[DecodedEvent | RejectedEvent]]


def check(data: bytes) -> None:
    """Both ways in, which are the same for an array and for one line."""
    frame, lines = decoded(decode_frame, data), decoded(decode_lines, data)
    if data.lstrip().startswith(b"[") or b"\n" not in data:
        assert shown(frame) == shown(lines)
    for arrival in lines or []:
        check_arrival(arrival)


def decoded(decode: Decoder, data: bytes) -> list[DecodedEvent | RejectedEvent] | None:
    """What a decoder makes of these bytes; None when it refuses them as a whole, in the one way that it may."""
    try:
        arrivals = decode(data)
    except InvalidFrame as invalid:
        closing = CODES[invalid.code].close
    else:
        return arrivals
    assert closing in (1007, 1009)
    return None


def shown(arrivals: list[DecodedEvent | RejectedEvent] | None) -> str:
    return repr(arrivals)


def check_arrival(arrival: DecodedEvent | RejectedEvent) -> None:
    if isinstance(arrival, RejectedEvent):
        assert arrival.code in CODES
        assert arrival.detail
        assert arrival.seq is None or 1 <= arrival.seq <= MAX_INTEGER
        return
    event, payload = arrival.event, arrival.payload
    json.loads(payload)
    orjson.dumps(orjson.loads(payload))
    assert is_same_event(payload, payload)
    again = decode_event(payload)
    assert isinstance(again, DecodedEvent), again
    if isinstance(event, SessionUpdate):
        with contextlib.suppress(Refused):
            check_journaled(event, validated_update(event, payload).payload)
    elif not isinstance(event, (SessionOpen, Auth)):
        check_journaled(event, payload)
    if not isinstance(event, SessionUpdate):
        assert again.event == event
        encoded = decode_event(msgspec.json.encode(event))
        assert isinstance(encoded, DecodedEvent), encoded
        assert encoded.event == event


def check_journaled(event: IncomingEvent, payload: bytes) -> None:
    """A journal row gives the event again; of an update it holds no secrets."""
    row = decode_journaled(payload)
    if isinstance(event, SessionUpdate):
        values = json.loads(payload)
        assert not [key for section, key in SECRETS if key in (values.get(section) or {})]
        assert type(row) is SessionUpdate
    else:
        assert row == event


if __name__ == "__main__":
    drive(check)
