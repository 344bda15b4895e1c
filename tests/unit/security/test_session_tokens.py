"""Session tokens: what holds, and everything that does not."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import base64
import hashlib
import hmac
import json
import math
from typing import Any

import jwt
import pytest

from tests.support.rows import every_row
from voicemem.errors import Refused
from voicemem.security.session_tokens import (
    CLOCK_SKEW_S,
    MAX_TOKEN_S,
    Claims,
    looks_like_token,
    sign_token,
    signer_of,
    verify_token,
)

SECRET = bytes(range(32))
NOW_S = 1_800_000_000
NOW_MS = NOW_S * 1000
GOOD: dict[str, Any] = {"sub": "call-1", "exp": NOW_S + 600}


def signed(claims: dict[str, Any], algorithm: str = "HS256", secret: Any = SECRET, **header: Any) -> str:
    """A token as a foreign program makes it."""
    return jwt.encode(claims, secret, algorithm, headers={"kid": "k" * 12, **header})


def pieces(header: bytes, claims: bytes, signature: bytes = b"x") -> str:
    """Three parts that no one checked."""
    return ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in (header, claims, signature))


def code_of(text: str, secret: bytes = SECRET) -> str:
    """The code with which a token is refused."""

    def read() -> None:
        signer_of(text)
        verify_token(text, secret, NOW_MS)

    with pytest.raises(Refused) as caught:
        read()
    assert text not in caught.value.detail
    return caught.value.code


def test_a_token_names_its_key_its_session_and_its_end() -> None:
    """What is signed here is read here."""
    text = sign_token("call-1", NOW_S + 600, "k" * 12, SECRET)
    assert looks_like_token(text)
    assert "k" * 12 == signer_of(text)
    assert Claims("call-1", NOW_S + 600) == verify_token(text, SECRET, NOW_MS)


@pytest.mark.parametrize(
    "more",
    [{}, {"exp": NOW_S + 0.5}, {"nbf": NOW_S}, {"iat": NOW_S + 30}, {"iss": "me", "aud": "you", "jti": "1"}],
    ids=str,
)
def test_other_claims_are_passed_over(more: dict[str, Any]) -> None:
    """A library may add its own, and write times with fractions."""
    assert "call-1" == verify_token(signed({**GOOD, **more}), SECRET, NOW_MS).sub


def test_it_ends_in_the_millisecond_of_its_exp() -> None:
    """It holds until then, and not then; the code says that a new one helps."""
    text = signed(GOOD)
    assert verify_token(text, SECRET, NOW_MS + 599_999)
    with pytest.raises(Refused) as caught:
        verify_token(text, SECRET, NOW_MS + 600_000)
    assert "token_expired" == caught.value.code


CLAIMS: list[dict[str, Any]] = [
    {"sub": "call-1"},
    {"exp": NOW_S + 600},
    {**GOOD, "exp": None},
    {**GOOD, "exp": str(NOW_S + 600)},
    {**GOOD, "exp": True},
    {**GOOD, "exp": math.nan},
    {**GOOD, "exp": math.inf},
    {**GOOD, "exp": 10**400},
    {**GOOD, "exp": [NOW_S + 600]},
    {**GOOD, "exp": NOW_S + MAX_TOKEN_S + CLOCK_SKEW_S + 1},
    {**GOOD, "nbf": NOW_S + 1},
    {**GOOD, "nbf": math.nan},
    {**GOOD, "nbf": "now"},
    {**GOOD, "sub": ""},
    {**GOOD, "sub": "a/b"},
    {**GOOD, "sub": "x" * 129},
    {**GOOD, "sub": 1},
    {**GOOD, "sub": None},
]


@every_row("claims", CLAIMS, ids=lambda claims: str(claims)[:60])
def test_claims_that_do_not_hold(claims: dict[str, Any]) -> None:
    """Signed well, and refused all the same."""
    text = ".".join(pieces(b'{"alg":"HS256","kid":"kkkkkkkkkkkk"}', json.dumps(claims).encode()).split(".")[:2])
    signature = base64.urlsafe_b64encode(hmac.digest(SECRET, text.encode(), hashlib.sha256)).decode().rstrip("=")
    assert "unauthorized" == code_of(f"{text}.{signature}")


@pytest.mark.parametrize("exp", [0, -1, -(10**15), NOW_S, NOW_S - 0.001])
def test_long_over(exp: float) -> None:
    """Whatever time it was."""
    assert "token_expired" == code_of(signed({**GOOD, "exp": exp}))


@pytest.mark.parametrize("algorithm", ["HS384", "HS512"])
def test_other_algorithms(algorithm: str) -> None:
    """The right secret with another algorithm is wrong, as is the header alone."""
    assert "unauthorized" == code_of(signed(GOOD, algorithm, SECRET * 2), SECRET * 2)
    with pytest.raises(Refused):
        verify_token(signed(GOOD, algorithm, SECRET * 2), SECRET * 2, NOW_MS)


@every_row(
    "header",
    [
        {"alg": "none"},
        {"alg": "None"},
        {"alg": "RS256"},
        {"alg": "hs256"},
        {"alg": None},
        {"alg": ["HS256"]},
        {},
        {"alg": "HS256", "kid": 1},
        {"alg": "HS256", "kid": None},
        {"alg": "HS256", "crit": ["x"], "x": 1},
        {"alg": "HS256", "b64": False},
    ],
    ids=str,
)
def test_headers_that_do_not_hold(header: dict[str, Any]) -> None:
    """No header gets by without the signature."""
    claims = json.dumps(GOOD).encode()
    for signature in (b"", b"x", SECRET):
        assert "unauthorized" == code_of(pieces(json.dumps({"kid": "k" * 12, **header}).encode(), claims, signature))


@every_row(
    "text",
    [
        "..",
        "a.b.c",
        "é.é.é",
        "\ud800.a.b",
        pieces(b"[]", b"{}"),
        pieces(b"[" * 1000, b"{}"),
        pieces(b'{"alg":"HS256","kid":"k"}', b"[" * 1000),
        pieces(b"\xff", b"{}"),
        signed({**GOOD, "more": "x" * 3000}),
        signed(GOOD) + "x",
        signed(GOOD)[:-4] + "AAAA",
        signed(GOOD, secret=b"y" * 32),
        signed(GOOD) + "\n",
        " " + signed(GOOD),
    ],
    ids=lambda text: ascii(text[:30]),
)
def test_what_is_no_token(text: str) -> None:
    """Garbage, too long, too deep, cut, or signed with another secret."""
    assert "unauthorized" == code_of(text)
