"""Bad input 93 to 104: callers without the right key, on both ports."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import itertools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from websockets.exceptions import InvalidStatus

from tests.support.callers.bad_input import SECRET, event
from tests.support.callers.producer import connected_producer
from tests.support.callers.raw_http import handshake_head as handshake
from tests.support.callers.raw_http import raw_answers, status_codes
from tests.support.callers.rest import RestClient, client_with_key, make_key
from tests.support.events import final_transcript
from tests.support.rows import every_row
from tests.support.services import Serve
from voicemem.app import App
from voicemem.security.access import ASK_AGAIN_MS, Access
from voicemem.store.sqlite.store import SqliteStore

EVENTS = "/v1/sessions/s/events"


class Wrong(NamedTuple):
    """An `Authorization` made from a good key, and the status that it gets."""

    number: str
    made: Callable[[str], bytes]
    status: int = 401


def bearer(text: str) -> bytes:
    return b"Bearer " + text.encode()


def jwt(header: object, claims: object, signature: str = SECRET) -> str:
    """A token that looks like a JWT."""
    parts = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in (header, claims)]
    return ".".join([*parts, signature])


CASES = [
    Wrong("93 none", lambda key: b""),
    Wrong("93 a scheme alone", lambda key: b"Bearer"),
    Wrong("93 a key alone", lambda key: key.encode()),
    Wrong("93 another scheme", lambda key: b"Token " + key.encode()),
    Wrong("93 a password", lambda key: b"Basic " + base64.b64encode(f"{key}:".encode())),
    Wrong("94 another secret", lambda key: bearer(key[:16] + SECRET * 6 + key[-4:])),
    Wrong("94 the last letter changed", lambda key: bearer(key[:-1] + ("a" if key[-1] != "a" else "b"))),
    Wrong("94 the last letter left out", lambda key: bearer(key[:-1])),
    Wrong("94 a letter more", lambda key: bearer(key + "a")),
    Wrong("94 another id", lambda key: bearer("vm_000000000000" + key[15:])),
    Wrong("94 in capitals", lambda key: bearer(key.upper())),
    Wrong("94 the id alone", lambda key: bearer(key[:16])),
    Wrong("94 the hash's place", lambda key: bearer(key[:16] + "0" * 64)),
    Wrong("103 a token of 8,000 bytes", lambda key: bearer(key + SECRET * 1_300)),
    Wrong("103 a token of 10 KB", lambda key: bearer(key + SECRET * 1_700), 400),
    Wrong("103 Cyrillic", lambda key: bearer("ключ" + key)),
    Wrong("103 Latin-1", lambda key: b"Bearer \xff\xfe" + key.encode()),
    Wrong("103 a full-width letter", lambda key: bearer(key[:-1] + "ａ")),
    Wrong("103 an Arabic digit in the id", lambda key: bearer("vm_\u0661" + key[4:])),
    Wrong("103 a tab", lambda key: bearer(key[:20] + "\t" + key[20:])),
    Wrong("103 two keys", lambda key: bearer(f"{key}, {key}")),
]


@pytest.fixture
async def app(serve: Serve) -> App:
    """A service with keys, and a session of the project `default`."""
    app = await serve()
    await (await client_with_key(app, "admin")).create()
    return app


async def check(app: App, logged: pytest.LogCaptureFixture, *keys: str) -> None:
    """Nothing was stored, no key or part of one was logged, and who has a key is served."""
    assert [] == await (await client_with_key(app, "read")).journal()
    assert "" == logged.text
    assert not [key for key in keys if key in logged.text]


@every_row("wrong", CASES, ids=lambda wrong: wrong.number)
async def test_bad_keys(app: App, caplog: pytest.LogCaptureFixture, wrong: Wrong) -> None:
    """Each is refused alike on both ports, before anything is read or stored, and repeated nowhere."""
    caplog.set_level("INFO")
    authorization = wrong.made(await make_key(app, "admin"))
    line = b"Authorization: " + authorization + b"\r\n" if authorization else b""
    body = event(seq=1).encode()
    post = b"POST %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n" % (EVENTS.encode(), len(body))
    answer = await raw_answers(app.rest_address, post + line + b"\r\n" + body)
    assert [wrong.status] == status_codes(answer)
    assert SECRET.encode() not in answer
    shake = handshake(app.ingest_address).removesuffix(b"\r\n")
    if authorization:
        refusal = await raw_answers(app.ingest_address, shake + line + b"\r\n")
        assert [wrong.status] == [400 if status == 431 else status for status in status_codes(refusal)]
        assert SECRET.encode() not in refusal
    await check(app, caplog)


async def test_93_no_key_on_the_websocket(app: App, caplog: pytest.LogCaptureFixture) -> None:
    """Without a key the first frame must bring one; anything else closes the connection and is not read on."""
    for frame in (event(seq=1), f"[{event(seq=1)},{event(seq=2)}]", '{"type":"session.open","session_id":"s"}'):
        async with connected_producer(app) as producer:
            await producer.send_raw(frame)
            code, frames = await producer.closed()
            assert (1008, ["unauthorized"]) == (code, [one["code"] for one in frames])
    await check(app, caplog)


async def test_94_wrong_keys_in_the_first_frame(app: App, caplog: pytest.LogCaptureFixture) -> None:
    """A wrong key in a frame closes the connection; what stands behind it in the frame is not taken."""
    caplog.set_level("INFO")
    key = await make_key(app, "ingest")
    tokens = [key[:-1], key.upper(), key + "\n", f"Bearer {key}", "", SECRET * 600, "ключ", "\u0000"]
    for token in [json.dumps(text) for text in tokens] + ["null", "1", '["x"]', "{}"]:
        async with connected_producer(app) as producer:
            await producer.send_raw(f'[{{"type":"auth","token":{token}}},{event(seq=1)}]')
            code, frames = await producer.closed()
            assert (1008, ["unauthorized"]) == (code, [one["code"] for one in frames])
    await check(app, caplog, key[16:])


async def test_95_a_revoked_key(serve: Serve, caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """From the moment of its revocation a key opens nothing more, on either port."""
    app = await serve(store=f"sqlite:{tmp_path}/v.db")
    beside = SqliteStore(f"{tmp_path}/v.db", exclusive=False)
    try:
        key, text = await Access(beside.directory).create_key("default", "", ["admin"])
        await asyncio.sleep(ASK_AGAIN_MS / 1000)
        api = RestClient(app, text)
        await api.create()
        assert await beside.directory.revoke_key(key.id, 1)
        assert (401, "unauthorized") == (await api.post(EVENTS, [final_transcript(1)])).problem
        with pytest.raises(InvalidStatus) as refused:
            async with connected_producer(app, {"Authorization": f"Bearer {text}"}):
                pass
        assert 401 == refused.value.response.status_code
    finally:
        await beside.close_store()
    await check(app, caplog, text)


async def test_100_a_session_of_another_tenant(app: App, caplog: pytest.LogCaptureFixture) -> None:
    """Another project's session is not there: nothing is read from it, written to it, or told of it."""
    stranger = await make_key(app, "admin", project="other")
    other = RestClient(app, stranger)
    for method, path in (("GET", ""), ("PATCH", ""), ("DELETE", ""), ("GET", "/history"), ("GET", "/events")):
        assert (404, "unknown_session") == (await other.call(method, f"/v1/sessions/s{path}")).problem
    assert (404, "unknown_session") == (await other.post(EVENTS, [final_transcript(1, text=SECRET)])).problem
    assert (404, "unknown_session") == (await other.post("/v1/sessions/s/end")).problem
    async with connected_producer(app, {"Authorization": f"Bearer {stranger}"}) as producer:
        assert 1 == (await producer.open("s"))["epoch"]  # a session of its own, of the same name
        await producer.store(final_transcript(1, text=SECRET))
    assert [SECRET] == [message["content"] for message in await other.contents()]
    await check(app, caplog)


@pytest.mark.parametrize("scope", ["read", "ingest"])
async def test_101_a_scope_that_does_not_reach(app: App, caplog: pytest.LogCaptureFixture, scope: str) -> None:
    """A key that may read does not write, one that may write does not read, and neither erases."""
    key = await make_key(app, scope)
    api = RestClient(app, key)
    writes = [("POST", "/v1/sessions"), ("POST", EVENTS), ("PATCH", "/v1/sessions/s"), ("POST", "/v1/sessions/s/end")]
    reads = [("GET", "/v1/sessions"), ("GET", "/v1/sessions/s"), ("GET", "/v1/sessions/s/history"), ("GET", EVENTS)]
    for method, path in [("DELETE", "/v1/sessions/s"), *(writes if scope == "read" else reads)]:
        assert (403, "forbidden") == (await api.call(method, path, data=event(seq=1))).problem
    if scope == "read":
        with pytest.raises(InvalidStatus) as refused:
            async with connected_producer(app, {"Authorization": f"Bearer {key}"}):
                pass
        assert 403 == refused.value.response.status_code
    await check(app, caplog)


async def test_104_many_wrong_keys_hold_up_nobody(app: App, caplog: pytest.LogCaptureFixture) -> None:
    """Of hundreds of guesses from an address most are told to wait; who has a key is served, and nothing is logged."""
    key = await make_key(app, "admin")
    guesses = [RestClient(app, key[:-3] + f"{guess:03}") for guess in range(300) if not key.endswith(f"{guess:03}")]
    told = await guess_all(guesses)
    assert {(401, "unauthorized"), (429, "rate_limited")} == set(told)
    assert 200 == (await RestClient(app, key).get("/v1/sessions")).status
    over = next(answered for answered in [await one.get("/v1/sessions") for one in guesses] if answered.status == 429)
    assert "1" == over.headers["Retry-After"]
    assert 429 in [await refused_handshake(app, f"{key}{number}") for number in range(100)]
    async with connected_producer(app, {"Authorization": f"Bearer {key}"}) as producer:
        await producer.open("mine")
    await check(app, caplog)


async def guess_all(guesses: list[RestClient]) -> list[tuple[int, str]]:
    """What is answered to guesses that come all at once, as fast as the service takes them."""
    return [answered.problem for answered in await asyncio.gather(*(one.get("/v1/sessions") for one in guesses))]


async def refused_handshake(app: App, token: str) -> int:
    """The status with which a websocket is refused."""
    with pytest.raises(InvalidStatus) as refused:
        async with connected_producer(app, {"Authorization": f"Bearer {token}"}):
            pass
    return refused.value.response.status_code


BAD_TOKENS: dict[str, Callable[[str, bytes], str]] = {
    "96 expired": lambda kid, secret: signed(kid, secret, exp=time.time() - 1),
    "96 in the year 1970": lambda kid, secret: signed(kid, secret, exp=1),
    "97 no exp": lambda kid, secret: signed(kid, secret, exp=None),
    "97 for years": lambda kid, secret: signed(kid, secret, exp=2**40),
    "97 exp is a text": lambda kid, secret: signed(kid, secret, exp="soon"),
    "97 exp is no number": lambda kid, secret: signed(kid, secret, exp=float("nan")),
    "98 alg none": lambda kid, secret: jwt({"alg": "none", "kid": kid}, good_claims(), ""),
    "98 alg none with a signature": lambda kid, secret: jwt({"alg": "none", "kid": kid}, good_claims()),
    "98 no alg": lambda kid, secret: jwt({"kid": kid}, good_claims(), ""),
    "98 the signature cut off": lambda kid, secret: signed(kid, secret).rpartition(".")[0] + ".",
    "99 HS512": lambda kid, secret: signed(kid, secret * 2, "HS512"),
    "99 RS256": lambda kid, secret: jwt({"alg": "RS256", "kid": kid}, good_claims()),
    "99 the header says so": lambda kid, secret: swapped(signed(kid, secret), {"alg": "HS384", "kid": kid}),
    "99 signed with nothing": lambda kid, secret: signed(kid, bytes(32)),
    "99 signed with the key's id": lambda kid, secret: signed(kid, kid.encode() * 3),
}
"""Made from the id and the signing secret of a key that could sign a good one."""


def good_claims() -> dict[str, object]:
    return {"sub": "s", "exp": time.time() + 600}


def signed(kid: str, secret: bytes, algorithm: str = "HS256", **claims: object) -> str:
    """A token with these claims instead of the good ones; None leaves one out."""
    chosen = {name: value for name, value in {**good_claims(), **claims}.items() if value is not None}
    parts = jwt({"alg": algorithm, "kid": kid}, chosen).rpartition(".")[0]
    digest = hmac.digest(secret, parts.encode(), f"sha{algorithm[2:]}")
    return f"{parts}.{base64.urlsafe_b64encode(digest).decode().rstrip('=')}"


def swapped(token: str, header: object) -> str:
    """A good token under another header."""
    return ".".join([jwt(header, {}).split(".")[0], *token.split(".")[1:]])


@every_row("name", BAD_TOKENS)
async def test_bad_tokens(app: App, caplog: pytest.LogCaptureFixture, name: str) -> None:
    """Each is refused on both ports, in the header and in the first frame, where a good one is taken."""
    _, kid, text = (await make_key(app, "admin")).split("_")
    secret = hashlib.sha256(text.encode()).digest()
    assert 200 == (await RestClient(app, signed(kid, secret)).get("/v1/sessions/s")).status
    token = BAD_TOKENS[name](kid, secret)
    code = "token_expired" if name.startswith("96") else "unauthorized"
    assert (401, code) == (await RestClient(app, token).get("/v1/sessions/s")).problem
    assert (401, code) == (await RestClient(app, token).post(EVENTS, [final_transcript(1, text=SECRET)])).problem
    assert 401 == await refused_handshake(app, token)
    async with connected_producer(app) as producer:
        await producer.send({"type": "auth", "token": token}, {"type": "session.open", "session_id": "s"})
        closed, frames = await producer.closed()
        assert (1008, [code]) == (closed, [frame["code"] for frame in frames])
    await check(app, caplog, token)


async def test_102_a_token_that_expires_while_connected(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    """What came in time is stored and acknowledged; then the connection is closed, and what follows is not taken."""
    app = await serve(event_rate=0.0)  # a fast machine would be over the token's rate before its end
    await RestClient(app).create()
    _, kid, text = (await make_key(app, "admin")).split("_")
    token = signed(kid, hashlib.sha256(text.encode()).digest(), exp=time.time() + 1.5)
    acked: list[int] = []
    async with connected_producer(app, {"Authorization": f"Bearer {token}"}) as producer:
        await producer.open("s")
        for seq in itertools.count(1):
            await producer.send(final_transcript(seq))
            frame = await producer.next()
            if frame["type"] == "error":
                break
            acked.append(frame["seq"])
        closed, _ = await producer.closed()
    assert (1008, "token_expired") == (closed, frame["code"])
    rows = await (await client_with_key(app, "read")).journal()
    assert list(range(1, len(acked) + 1)) == acked == [row["seq"] for row in rows]
    assert (401, "token_expired") == (
        await RestClient(app, token).post(EVENTS, [final_transcript(len(acked) + 2)])
    ).problem
    assert "" == caplog.text


TWICE = [
    "Authorization: Bearer {key}",
    "authorization: Bearer other",
    "Origin: http://localhost",
    "X-Voicemem-Session: other",
    "Content-Length: 2",
    "X-Vapi-Signature: other",
]


async def test_a_header_that_decides_comes_once(app: App) -> None:
    """Of two, a proxy before the service may have gone by the other one: both ports refuse them with a sentence."""
    key = await make_key(app, "admin")
    own = [f"Authorization: Bearer {key}", "Origin: http://localhost", "X-Voicemem-Session: s"]
    own += ["Content-Length: 2", "X-Vapi-Signature: one", "Host: localhost", "Connection: close"]
    for line in (one.format(key=key) for one in TWICE):
        said = "not valid HTTP" if "Length" in line else f"The header {line.partition(':')[0]} may be sent once."
        for path in (EVENTS, "/v1/hooks/vapi", "/v1/chat/completions", "/livez"):
            head = "\r\n".join([f"POST {path} HTTP/1.1", *own, line, "", "[]"])
            answer = await raw_answers(app.rest_address, head.encode())
            assert [400] == status_codes(answer), (line, path, answer)
            assert said.lower() in answer.decode().lower()
    for line in TWICE[:3]:
        answer = await raw_answers(app.ingest_address, handshake(app.ingest_address, *own[:2], line.format(key=key)))
        assert [400] == status_codes(answer), (line, answer)
        assert b"may be sent once" in answer


async def test_a_key_and_a_token_of_the_url_are_two(app: App) -> None:
    """A handshake that shows both is refused: which of them counted would depend on who reads it."""
    key = await make_key(app, "ingest")
    token = jwt({"alg": "HS256"}, {"sub": "s"})
    shake = handshake(
        app.ingest_address, f"Authorization: Bearer {key}", path=f"/v1/ingest/vapi?session_id=s&token={token}"
    )
    answer = await raw_answers(app.ingest_address, shake)
    assert [400] == status_codes(answer)
    assert b"Send one key" in answer
