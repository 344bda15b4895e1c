"""Agora's tokens, well made and badly made, written from the layout and not with the code under test."""

from __future__ import annotations

import base64
import hashlib
import hmac
import struct
import zlib
from typing import Any

APP_ID = "0123456789abcdef0123456789abcdef"
CERTIFICATE = "fedcba9876543210fedcba9876543210"
OTHER_CERTIFICATE = "00112233445566778899aabbccddeeff"
SALT = 12345
RTC = {1: 0, 2: 0, 3: 0, 4: 0}


def text(value: bytes) -> bytes:
    return struct.pack("<H", len(value)) + value


def service(kind: int, privileges: dict[int, int], *texts: str) -> bytes:
    """A service as a token has it: its type, its privileges with their seconds, and its texts."""
    pairs = b"".join(struct.pack("<HI", *pair) for pair in sorted(privileges.items()))
    return struct.pack("<HH", kind, len(privileges)) + pairs + b"".join(text(each.encode()) for each in texts)


def rtc(channel: str = "lobby", uid: str = "1001", privileges: dict[int, int] | None = None) -> bytes:
    return service(1, RTC if privileges is None else privileges, channel, uid)


def content(
    issued_s: int,
    lifetime_s: int = 3600,
    app_id: str = APP_ID,
    certificate: str = CERTIFICATE,
    services: tuple[bytes, ...] = (),
    count: int | None = None,
) -> bytes:
    """The inside of a token, with its signature; by default it has the services that the SDK gives it."""
    services = services or (rtc(), service(2, {1: lifetime_s}, "1001"))
    head = struct.pack("<IIIH", issued_s, lifetime_s, SALT, len(services) if count is None else count)
    signed = text(app_id.encode()) + head + b"".join(services)
    key = hmac.new(struct.pack("<I", issued_s), certificate.encode(), hashlib.sha256).digest()
    key = hmac.new(struct.pack("<I", SALT), key, hashlib.sha256).digest()
    return text(hmac.new(key, signed, hashlib.sha256).digest()) + signed


def packed(inside: bytes, version: str = "007") -> str:
    return version + base64.b64encode(zlib.compress(inside)).decode()


def token(issued_s: int, **given: Any) -> str:
    """A token that was issued at this Unix time; see `content`."""
    return packed(content(issued_s, **given))


def bomb(size: int = 1_000_000) -> str:
    """A token of a thousandth of what it inflates to."""
    return packed(bytes(size))
