"""Bad input 61 to 76: what breaks the websocket protocol itself, sent below any library."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import zlib
from typing import NamedTuple

import pytest

from tests.support.both_ways import serve as serve
from tests.support.callers.bad_input import MIB, SECRET, event
from tests.support.callers.producer import connected_producer
from tests.support.callers.raw_websocket import (
    BINARY,
    CLOSE,
    CONTINUATION,
    PING,
    PONG,
    TEXT,
    upgraded_socket,
    websocket_frame,
)
from tests.support.callers.rest import RestClient, fresh_id
from tests.support.events import final_transcript
from tests.support.rows import every_row
from voicemem.app import App

GOOD = event().encode()
"""A good event, which must not be taken when it comes in a bad frame, or behind one."""


class Broken(NamedTuple):
    """Bytes on an open connection, and the code that closes it."""

    number: str
    sent: bytes
    close: int


def deflated(text: bytes) -> bytes:
    """Compressed as permessage-deflate does it."""
    squeeze = zlib.compressobj(wbits=-15)
    return (squeeze.compress(text) + squeeze.flush(zlib.Z_SYNC_FLUSH)).removesuffix(b"\x00\x00\xff\xff")


CASES = [
    Broken("61 unmasked", websocket_frame(TEXT, GOOD, masked=False), 1002),
    Broken("61 unmasked ping", websocket_frame(PING, masked=False), 1002),
    Broken("62 RSV1", websocket_frame(TEXT, GOOD, rsv=4), 1002),
    Broken("62 RSV2", websocket_frame(TEXT, GOOD, rsv=2), 1002),
    Broken("62 RSV3", websocket_frame(TEXT, GOOD, rsv=1), 1002),
    Broken("62 RSV1 on a ping", websocket_frame(PING, rsv=4), 1002),
    *(Broken(f"63 reserved opcode {code}", websocket_frame(code, GOOD[:100]), 1002) for code in (3, 4, 5, 6, 7)),
    *(
        Broken(f"63 reserved control opcode {code}", websocket_frame(code, GOOD[:100]), 1002)
        for code in (11, 12, 13, 14, 15)
    ),
    Broken("64 stray continuation", websocket_frame(CONTINUATION, GOOD), 1002),
    Broken("64 stray continuation to be continued", websocket_frame(CONTINUATION, GOOD, fin=False), 1002),
    Broken(
        "64 continuation of a whole message", websocket_frame(TEXT, b"[]") + websocket_frame(CONTINUATION, GOOD), 1002
    ),
    Broken(
        "65 a message inside of fragments",
        websocket_frame(TEXT, GOOD[:50], fin=False) + websocket_frame(TEXT, GOOD),
        1002,
    ),
    Broken(
        "65 a binary message inside of fragments",
        websocket_frame(TEXT, GOOD[:50], fin=False) + websocket_frame(BINARY, GOOD),
        1002,
    ),
    Broken("66 a ping of 126 bytes", websocket_frame(PING, bytes(126)), 1002),
    Broken("66 a pong of 126 bytes", websocket_frame(PONG, bytes(126)), 1002),
    Broken("66 a close of 126 bytes", websocket_frame(CLOSE, b"\x03\xe8" + bytes(124)), 1002),
    Broken("67 a fragmented ping", websocket_frame(PING, SECRET.encode(), fin=False), 1002),
    Broken("67 a fragmented close", websocket_frame(CLOSE, b"\x03\xe8", fin=False), 1002),
    Broken("68 a close of 1 byte", websocket_frame(CLOSE, b"\x03"), 1002),
    *(
        Broken(f"69 close {code}", websocket_frame(CLOSE, code.to_bytes(2) + SECRET.encode()), 1002)
        for code in (0, 999, 1004, 1005, 1006, 1015, 1016, 2999, 5000, 65_535)
    ),
    Broken("69 a close whose reason is no UTF-8", websocket_frame(CLOSE, b"\x03\xe8\xff"), 1007),
    Broken("70 declared 1 GiB", websocket_frame(TEXT, GOOD, length=2**30), 1009),
    Broken(
        "70 declared 1 GiB in a fragment",
        websocket_frame(TEXT, b"[", fin=False) + websocket_frame(0, GOOD, length=2**30),
        1009,
    ),
    Broken("71 declared 2^63-1", websocket_frame(TEXT, GOOD, length=2**63 - 1), 1009),
    Broken("71 declared 2^63", websocket_frame(TEXT, GOOD, length=2**63), 1009),
    Broken("71 declared 2^64-1", websocket_frame(TEXT, GOOD, length=2**64 - 1), 1009),
    Broken("72 limit+1 bytes", websocket_frame(TEXT, GOOD + b" " * (MIB + 1 - len(GOOD))), 1009),
    Broken(
        "72 limit+1 bytes in two fragments",
        websocket_frame(TEXT, GOOD + b" " * 1000, fin=False) + websocket_frame(0, b" " * (MIB - 999 - len(GOOD))),
        1009,
    ),
    Broken(
        "73 300k empty fragments",
        websocket_frame(TEXT, GOOD, fin=False) + websocket_frame(0, fin=False) * 300_000,
        1009,
    ),
    Broken(
        "73 300k fragments of a byte",
        websocket_frame(TEXT, b"[", fin=False) + websocket_frame(0, b" ", fin=False) * 300_000,
        1009,
    ),
    Broken("74 a zlib bomb", websocket_frame(TEXT, deflated(GOOD + b" " * 50_000_000), rsv=4), 1002),
    Broken("75 compressed without negotiation", websocket_frame(TEXT, deflated(GOOD), rsv=4), 1002),
    Broken("75 compressed and not marked", websocket_frame(TEXT, deflated(GOOD)), 1007),
    Broken("76 binary where text is due", websocket_frame(BINARY, GOOD), 1003),
    Broken("76 an empty binary frame", websocket_frame(BINARY), 1003),
]


async def check_nothing_came_of_it(app: App, session_id: str, logged: pytest.LogCaptureFixture) -> None:
    """The session has what it had, and takes its next event on a new connection; nothing was logged."""
    assert [1] == [row["seq"] for row in await RestClient(app).journal(session_id)]
    async with connected_producer(app) as again:
        assert 2 == (await again.open(session_id))["next_seq"]
        await again.store(final_transcript(2))
    assert "" == logged.text


@every_row("broken", CASES, ids=lambda broken: broken.number)
async def test_broken_frames(app: App, caplog: pytest.LogCaptureFixture, broken: Broken) -> None:
    """Each closes its connection with the code of the protocol; nothing in or behind it is taken."""
    session_id = fresh_id()
    async with upgraded_socket(app.ingest_address) as raw:
        await raw.send_event({"type": "session.open", "session_id": session_id})
        await raw.expect("session.ready")
        await raw.send_event(final_transcript(1))
        await raw.expect("ack")
        sending = asyncio.create_task(raw.send(broken.sent, websocket_frame(TEXT, GOOD)))
        assert broken.close == await raw.closed()
        sending.cancel()
    await check_nothing_came_of_it(app, session_id, caplog)


async def test_74_no_compression_is_ever_negotiated(app: App) -> None:
    """Whatever a client offers, frames come as they are, so that there are no bombs."""
    for offer in ("permessage-deflate", "permessage-deflate; client_max_window_bits=15", "x-webkit-deflate-frame"):
        async with upgraded_socket(app.ingest_address, f"Sec-WebSocket-Extensions: {offer}") as raw:
            await raw.send_event({"type": "session.open"})
            await raw.expect("session.ready")


async def test_76_a_ping_flood_is_answered_and_hurts_nobody(app: App, caplog: pytest.LogCaptureFixture) -> None:
    """Of pings that come together the last one is answered; the connection and others go on meanwhile."""
    async with upgraded_socket(app.ingest_address) as raw, connected_producer(app) as other:
        await raw.send_event({"type": "session.open", "session_id": "s"})
        await raw.expect("session.ready")
        flooding = asyncio.create_task(raw.send(*[websocket_frame(PING, SECRET.encode()) * 100] * 100))
        await other.open("other")
        await other.store(final_transcript(1))
        await flooding
        await raw.send(websocket_frame(PING, b"last"))
        while (await raw.next()).payload != b"last":
            pass
        await raw.send_event(final_transcript(1))
        await raw.expect("ack")
    await check_nothing_came_of_it(app, "s", caplog)


async def test_76_messages_in_fragments_with_pings_between_are_whole(app: App) -> None:
    """What is allowed is not refused: fragments, and control frames between them."""
    pieces = [GOOD[at : at + 10] for at in range(0, len(GOOD), 10)]
    async with upgraded_socket(app.ingest_address) as raw:
        await raw.send_event({"type": "session.open", "session_id": "s"})
        await raw.send_event(final_transcript(1))
        await raw.send(websocket_frame(TEXT, fin=False))
        for piece in pieces:
            await raw.send(websocket_frame(PING), websocket_frame(CONTINUATION, piece, fin=False))
        await raw.send(websocket_frame(CONTINUATION))
        await raw.expect("session.ready")
        while (await raw.expect("ack"))["seq"] < 2:
            pass
    assert SECRET == (await RestClient(app).contents())[-1]["content"]
