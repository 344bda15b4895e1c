"""Agora's tokens (AccessToken2, `007…`): signed with the certificate of an app, for one channel and a day at most.

A token is `007` and the base64 of a zlib stream of: signature, App ID, time of issue, lifetime, salt, and services with
their privileges. Numbers are little-endian; a text follows its length, and the signature is written as a text. All
services follow the signature directly and are signed with it, so nothing but the App ID is used before it is verified.
"""

import base64
import binascii
import hmac
import io
import re
import struct
import zlib
from collections.abc import Iterable

from msgspec import Struct

from voicemem.errors import Refused

VERSION = "007"
TOKEN_PATTERN = re.compile(r"00[0-9][A-Za-z0-9+/]", re.ASCII)
APP_ID_PATTERN = re.compile(r"[0-9A-Fa-f]{32}\Z", re.ASCII)
"""Of certificates too."""
MAX_TOKEN_LENGTH = 2048
MAX_CONTENT_BYTES = 4096
"""The size limit of an inflated token; Agora's builders make some 200 bytes."""
MAX_LIFETIME_S = 86_400
"""Agora's own limit; a token that says more is valid for this long."""
CLOCK_SKEW_S = 60
"""How far the clock of a maker of tokens may be ahead."""
RTC_SERVICE = 1
"""Agora's builders write services by rising type, so it is the first."""
JOIN_CHANNEL = 1
ANY_CHANNEL = "*"
NOT_A_TOKEN = "The token is not an AccessToken2 of Agora's (007…); make it with Agora's SDK or token builder."  # noqa: S105
WRONG_SIGNATURE = "The token is not signed with a certificate of an App ID that is registered here."
"""One sentence for both: a caller must not learn which App IDs are registered."""
NO_CHANNEL = "The token must have the privilege to join a channel; make it as for a user of a channel (RTC)."
EXPIRED = "The token has expired; make a new one."


class SignedToken(Struct, frozen=True):
    """A token as it came; nothing but its form has been checked."""

    app_id: str
    issued_s: int
    lifetime_s: int
    salt: int
    signature: bytes
    signed: bytes
    service_count: int
    services: bytes


class Reader(io.BytesIO):
    """Reads the fields of a token, one after the other. Raises `ValueError` at the end of the content."""

    def take(self, size: int) -> bytes:
        taken = self.read(size)
        if len(taken) < size:
            raise ValueError("the content ends too early")
        return taken

    def uint(self, size: int) -> int:
        return int.from_bytes(self.take(size), "little")

    def text(self) -> bytes:
        return self.take(self.uint(2))

    def rest(self) -> bytes:
        return self.getvalue()[self.tell() :]


def looks_like_agora_token(text: str) -> bool:
    """Return whether this begins like a token of Agora's, of any version, and not like a key or session token."""
    return TOKEN_PATTERN.match(text) is not None


def decode_agora_token(text: str) -> SignedToken:
    """Decode a token, which may be anything. Raises `Refused` (`unauthorized`)."""
    try:
        reader = Reader(inflate(text))
        signature, signed = reader.text(), reader.rest()
        app_id = reader.text().decode("ascii")
        issued_s, lifetime_s, salt, service_count = (reader.uint(4), reader.uint(4), reader.uint(4), reader.uint(2))
    except ValueError:
        raise Refused("unauthorized", NOT_A_TOKEN) from None
    if not APP_ID_PATTERN.match(app_id):
        raise Refused("unauthorized", NOT_A_TOKEN)
    return SignedToken(app_id, issued_s, lifetime_s, salt, signature, signed, service_count, reader.rest())


def inflate(text: str) -> bytes:
    """The content of a token; never more than a little, however much it would be. Raises `ValueError`."""
    if not text.startswith(VERSION) or len(text) > MAX_TOKEN_LENGTH:
        raise ValueError("another version, or too long")
    stream = zlib.decompressobj()
    try:
        content = stream.decompress(base64.b64decode(text[len(VERSION) :], validate=True), MAX_CONTENT_BYTES)
    except (binascii.Error, zlib.error) as error:
        raise ValueError(str(error)) from None
    if not stream.eof or stream.unused_data:
        raise ValueError("too large, cut off, or with something behind it")
    return content


def verify_agora_token(token: SignedToken, certificates: Iterable[str], now_ms: int) -> tuple[str, int]:
    """The channel of a token signed with one of these certificates, and when it expires, Unix ms.

    Raises `Refused` (`unauthorized`, `token_expired`).
    """
    if not any(is_signed_with(token, certificate) for certificate in certificates):
        raise Refused("unauthorized", WRONG_SIGNATURE)
    if token.issued_s * 1000 > now_ms + CLOCK_SKEW_S * 1000:
        raise Refused("unauthorized", "The token was issued in the future; check the clock of its maker.")
    channel, privilege_s = channel_of(token)
    lifetimes = [MAX_LIFETIME_S, token.lifetime_s, *([privilege_s] if privilege_s else [])]
    expires_ms = (token.issued_s + min(lifetimes)) * 1000
    if expires_ms <= now_ms:
        raise Refused("token_expired", EXPIRED)
    return channel, expires_ms


def is_signed_with(token: SignedToken, certificate: str) -> bool:
    key = hmac.digest(struct.pack("<I", token.issued_s), certificate.encode(), "sha256")
    key = hmac.digest(struct.pack("<I", token.salt), key, "sha256")
    return hmac.compare_digest(hmac.digest(key, token.signed, "sha256"), token.signature)


def channel_of(token: SignedToken) -> tuple[str, int]:
    """The channel that the token's holder may join, and for how many seconds (0: as long as the token is valid).

    Raises `Refused` (`unauthorized`).
    """
    reader = Reader(token.services)
    try:
        if token.service_count == 0 or reader.uint(2) != RTC_SERVICE:
            raise Refused("unauthorized", NO_CHANNEL)
        privileges = {reader.uint(2): reader.uint(4) for _ in range(reader.uint(2))}
        channel = reader.text().decode()
    except ValueError:
        raise Refused("unauthorized", NOT_A_TOKEN) from None
    if JOIN_CHANNEL not in privileges or not channel:
        raise Refused("unauthorized", NO_CHANNEL)
    return channel, privileges[JOIN_CHANNEL]
