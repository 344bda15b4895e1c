"""Agora's tokens: what is accepted, and everything else that may arrive as one."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import base64
import tracemalloc
import warnings
import zlib
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.rows import every_row
from tests.support.samples.agora_tokens import (
    APP_ID,
    CERTIFICATE,
    OTHER_CERTIFICATE,
    bomb,
    content,
    packed,
    rtc,
    service,
    token,
)
from voicemem.compat.agora.apps import (
    MAX_CONTENT_BYTES,
    MAX_TOKEN_LENGTH,
    decode_agora_token,
    looks_like_agora_token,
    verify_agora_token,
)
from voicemem.errors import Refused
from voicemem.runtime import now_ms

NOW_S = 1_800_000_000
FROM_NPM = {
    "RTC and RTM": (
        "007eJxTYDhno/frfa69ltQhm46et5dK7tULHWK2s9v/7WOe5cLyprcKDAaGRsYmpmbmFpaJSckpqWnofKFI5mwBPgYGpqX5j"
        "EwMjAwsDIwMIMAEJpnBJAuYZGXIyU9KqmRhMDQwMAQpZWQAaYTwAdlxH8k="
    ),
    "with ConvoAI": (
        "007eJxTYEg3qUuwjBKZfSlpf4Z96coWvZq9soJeGgcZl4c4Zlr8aFdgMDA0MjYxNTO3sExMSk5JTUPnC0UyZ0cwMTB8dw1mY"
        "WZgZGBhYGQA8ZnAJDOYZAGTrAw5+UlJlSwMhgYGhkwMjFCFED4nAwMDAP0DHnE="
    ),
}
"""Made by npm's agora-token 2.0.6, with which Agora's TypeScript SDK signs: lobby, 1001, for 3600 and 600 s."""
GOOD = token(NOW_S)


def opened(text: str, *certificates: str, now_s: float = NOW_S) -> tuple[str, int]:
    """Channel and expiry of a token, in seconds."""
    decoded = decode_agora_token(text)
    channel, expires_ms = verify_agora_token(decoded, certificates or (CERTIFICATE,), int(now_s * 1000))
    return channel, expires_ms // 1000


def refused(text: str, *certificates: str, now_s: float = NOW_S) -> str:
    """The code with which a token is refused."""
    with pytest.raises(Refused) as raised:
        opened(text, *certificates, now_s=now_s)
    assert raised.value.detail.endswith(".")
    return raised.value.code


@pytest.fixture(scope="module")
def sdk() -> Any:
    """What makes tokens in Agora's SDK, which takes seconds to import."""
    with warnings.catch_warnings(action="ignore"):  # it declares its models as pydantic 1 did
        from agora_agent.agentkit import token as tokens
    return tokens


def test_tokens_of_agoras_sdk_are_accepted(sdk: Any) -> None:
    """Those that it makes for REST requests, and those that it makes for users of a channel."""
    now_s = now_ms() // 1000
    for text in (
        sdk.generate_convo_ai_token(APP_ID, CERTIFICATE, "lobby", 1001, token_expire=600),
        sdk.generate_convo_ai_token(APP_ID, CERTIFICATE, "lobby", 0, token_expire=7200, privilege_expire=600),
        sdk.generate_rtc_token(APP_ID, CERTIFICATE, "lobby", 0, expiry_seconds=600),
    ):
        assert looks_like_agora_token(text)
        assert APP_ID == decode_agora_token(text).app_id
        channel, expires_s = opened(text, OTHER_CERTIFICATE, CERTIFICATE, now_s=now_s)
        assert "lobby" == channel
        assert now_s + 590 < expires_s <= now_s + 601
        assert "unauthorized" == refused(text, OTHER_CERTIFICATE, now_s=now_s)


@pytest.mark.parametrize(("made", "lifetime_s"), [("RTC and RTM", 3600), ("with ConvoAI", 600)])
def test_tokens_of_the_typescript_sdk_are_accepted(made: str, lifetime_s: int) -> None:
    """Another implementation makes the same: its tokens are valid for the channel and the time that it was given."""
    text = FROM_NPM[made]
    issued_s = decode_agora_token(text).issued_s
    assert 1_795_000_000 < issued_s < 1_796_000_000
    assert ("lobby", issued_s + lifetime_s) == opened(text, now_s=issued_s)
    assert "token_expired" == refused(text, now_s=issued_s + lifetime_s)
    assert "unauthorized" == refused(text, OTHER_CERTIFICATE, now_s=issued_s)


def test_our_own_tokens_are_what_the_sdk_makes(sdk: Any) -> None:
    """The tests' tokens have the layout of the SDK's: all that follows here is about real tokens."""
    made = decode_agora_token(sdk.generate_convo_ai_token(APP_ID, CERTIFICATE, "lobby", 1001, token_expire=600))
    privileges = dict.fromkeys((1, 2, 3, 4), 600)
    services = (rtc(privileges=privileges), service(2, {1: 600}, "1001"))
    assert (2, b"".join(services)) == (made.service_count, made.services)
    assert ("lobby", NOW_S + 3600) == opened(GOOD)


def test_a_token_lives_as_long_as_it_says() -> None:
    """Until its lifetime or the privilege to join is over, and a day at most; then its code says that it expired."""
    assert "token_expired" == refused(GOOD, now_s=NOW_S + 3600)
    assert ("lobby", NOW_S + 3600) == opened(GOOD, now_s=NOW_S + 3599)
    long = token(NOW_S, lifetime_s=2**32 - 1)
    assert ("lobby", NOW_S + 86_400) == opened(long)
    assert "token_expired" == refused(long, now_s=NOW_S + 86_400)
    short = token(NOW_S, services=(rtc(privileges={1: 60}),))
    assert ("lobby", NOW_S + 60) == opened(short)
    assert "token_expired" == refused(short, now_s=NOW_S + 60)
    assert "token_expired" == refused(token(NOW_S, lifetime_s=0))


def test_clocks_may_differ_by_a_minute() -> None:
    """A token from further in the future is refused."""
    assert ("lobby", NOW_S + 3600) == opened(GOOD, now_s=NOW_S - 60)
    assert "unauthorized" == refused(GOOD, now_s=NOW_S - 61)


def test_the_signature_is_checked_before_the_times() -> None:
    """An expired token of someone else is a wrong token, and not an expired one."""
    assert "unauthorized" == refused(token(NOW_S, certificate=OTHER_CERTIFICATE), now_s=NOW_S + 90_000)


def test_any_of_several_certificates_will_do() -> None:
    """Without certificates nothing is accepted."""
    assert ("lobby", NOW_S + 3600) == opened(GOOD, OTHER_CERTIFICATE, CERTIFICATE)
    with pytest.raises(Refused):
        verify_agora_token(decode_agora_token(GOOD), (), NOW_S * 1000)


def test_a_token_for_every_channel() -> None:
    """The channel `*` is handed on as it is."""
    assert "*" == opened(token(NOW_S, services=(rtc("*", ""),)))[0]


@every_row(
    "services",
    [
        (service(2, {1: 0}, "1001"),),
        (service(9, {}),),
        (rtc(privileges={2: 0}),),
        (rtc(privileges={}),),
        (rtc(channel=""),),
        (rtc()[:-20],),
        (b"\1",),
        (service(1, {1: 0}) + b"\1\0\xff\0\0",),
    ],
    ids=["RTM", "ConvoAI", "publish only", "no privileges", "no channel", "cut", "cut type", "not UTF-8"],
)
def test_a_token_must_be_for_a_channel(services: tuple[bytes, ...]) -> None:
    """A signed token without the privilege to join a channel is refused."""
    assert "unauthorized" == refused(token(NOW_S, services=services))


def test_services_are_counted() -> None:
    """A token that says that it has no services has none."""
    assert "unauthorized" == refused(token(NOW_S, count=0))


def inside(text: str) -> bytes:
    return zlib.decompress(base64.b64decode(text[3:]))


BAD = {
    "nothing": "",
    "version alone": "007",
    "version 6": packed(content(NOW_S), "006"),
    "version 8": packed(content(NOW_S), "008"),
    "not base64": GOOD[:20] + "*" + GOOD[20:],
    "other alphabet": GOOD[:10] + "-_" + GOOD[12:],
    "not ASCII": GOOD[:20] + "ä" + GOOD[20:],
    "not zlib": "007" + base64.b64encode(content(NOW_S)).decode(),
    "empty inside": packed(b""),
    "cut": GOOD[:-8],
    "cut inside": packed(inside(GOOD)[:60]),
    "more behind": "007" + base64.b64encode(zlib.compress(content(NOW_S)) + b"more").decode(),
    "bomb": bomb(),
    "too large inside": packed(content(NOW_S, services=(rtc("c" * MAX_CONTENT_BYTES),))),
    "huge": "007" + "A" * 1_000_000,
    "no App ID": token(NOW_S, app_id=""),
    "another form of App ID": token(NOW_S, app_id="x" * 32),
    "App ID not ASCII": token(NOW_S, app_id="ä" * 16),
    "long signature": packed(b"\xff\xff" + inside(GOOD)[2:]),
    "empty signature": packed(b"\0\0" + inside(GOOD)[34:]),
    "short signature": packed(b"\1\0" + inside(GOOD)[2:3] + inside(GOOD)[34:]),
}


@every_row("text", BAD.values(), ids=BAD.keys())
def test_what_is_not_a_token_is_refused(text: str) -> None:
    """Whatever arrives in place of a token is an answer of 401, and nothing else."""
    assert "unauthorized" == refused(text)


@every_row("position", range(0, len(inside(GOOD)), 3))
def test_a_changed_token_is_refused(position: int) -> None:
    """Each byte counts, of the signature and of what it signs."""
    changed = bytearray(inside(GOOD))
    changed[position] ^= 1
    assert "unauthorized" == refused(packed(bytes(changed)))


def test_a_bomb_takes_no_memory() -> None:
    """A token is inflated up to a few kilobytes, whatever is in it."""
    text = packed(bytes(1_400_000))
    assert len(text) < MAX_TOKEN_LENGTH
    tracemalloc.start()
    try:
        assert "unauthorized" == refused(text)
        assert tracemalloc.get_traced_memory()[1] < 200_000
    finally:
        tracemalloc.stop()


@given(st.binary(max_size=200))
def test_anything_may_be_inside(inside: bytes) -> None:
    """Random content is refused, signed or not."""
    assert "unauthorized" == refused(packed(inside))
    signed = token(NOW_S, services=(inside,))
    with suppress(Refused):
        opened(signed)


@pytest.mark.parametrize("text", ["", "vm_0123456789ab_x", "ey.ey.sig", "007", "sixteen letters and more"])
def test_keys_do_not_look_like_tokens(text: str) -> None:
    """Keys and session tokens are not taken for tokens of Agora's."""
    assert not looks_like_agora_token(text)
