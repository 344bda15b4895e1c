"""Session tokens on the running service: what they open, on both ports, and how long."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import re
import time
from typing import Any

import jwt
import pytest
from websockets.exceptions import InvalidStatus

from tests.support.callers.producer import connected_producer
from tests.support.callers.rest import RestClient, bearer_header, client_with_key, make_key, wait_until_closed
from tests.support.events import final_transcript, session_end
from tests.support.paths import DOCS
from tests.support.routes import ROUTES
from tests.support.rows import every_row
from tests.support.services import Serve
from voicemem.app import App
from voicemem.protocol.types import JsonObject

ADMIN_KEY = "the operator's own key"
REACHED = [
    ("GET", "/v1/sessions/{id}"),
    ("POST", "/v1/sessions/{id}/end"),
    ("GET", "/v1/sessions/{id}/history"),
    ("GET", "/v1/sessions/{id}/context"),
    ("GET", "/v1/sessions/{id}/turns"),
    ("POST", "/v1/sessions/{id}/events"),
    ("GET", "/v1/sessions/{id}/events"),
    ("POST", "/v1/sessions/{id}/chat/completions"),
    ("POST", "/v1/sessions/{id}/responses"),
    ("GET", "/v1/sessions/{id}/checkpoint"),
    ("POST", "/v1/sessions/{id}/forget"),
    ("POST", "/v1/sessions/{id}/messages"),
    ("GET", "/v1/sessions/{id}/stats"),
    ("GET", "/v1/sessions/{id}/deliveries"),
    ("GET", "/v1/sessions/{id}/memories"),
    ("GET", "/v1/sessions/{id}/memory"),
    ("GET", "/v1/sessions/{id}/export"),
    *((method, "/v1/sessions/{id}/working-memory") for method in ("GET", "PUT", "PATCH", "DELETE")),
    ("GET", "/v1/sessions/{id}/working-memory/versions"),
    ("GET", "/v1/sessions/{id}/working-memory/tools"),
    ("POST", "/v1/sessions/{id}/working-memory/tools"),
    *((method, "/v1/sessions/{id}/data") for method in ("GET", "PUT", "PATCH")),
]
"""All that a session token reaches of its session."""
BOUNDED = [
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/responses"),
    ("GET", "/v1/models"),
    ("POST", "/v1/memories"),
    ("POST", "/v1/memories/search"),
    ("DELETE", "/v1/memories/{memory_id}"),
]
"""What it reaches besides, within its session."""
GUARDED = [(route.method, route.path) for route in ROUTES if route.scope is not None]


def sign(key: str, session_id: str = "s", lasts_s: float = 600, **more: Any) -> str:
    """A token by the recipe of docs/access.md."""
    _, key_id, secret = key.split("_")
    claims = {"sub": session_id, "exp": time.time() + lasts_s, **more}
    return jwt.encode(claims, hashlib.sha256(secret.encode()).digest(), "HS256", headers={"kid": key_id})


@pytest.fixture
async def app(serve: Serve) -> App:
    """A service with keys, and two sessions of the project `default`."""
    app = await serve(admin_key=ADMIN_KEY, request_rate=0)
    for session_id in ("s", "other"):
        await RestClient(app, ADMIN_KEY).create(session_id)
    return app


async def token(app: App, key: str = ADMIN_KEY, session_id: str = "s", **body: Any) -> str:
    """A token that the service makes."""
    answered = await RestClient(app, key).post(f"/v1/sessions/{session_id}/tokens", body)
    assert 201 == answered.status, answered.body
    return str(answered.json["token"])


async def made_and_signed(app: App) -> list[str]:
    """Tokens of the operator's key and of a project's key, made by the service and by the recipe."""
    key = await make_key(app, "admin")
    return [await token(app), await token(app, key), sign(key), sign(await make_key(app, "ingest", "read"))]


async def test_the_recipe_of_the_docs(app: App) -> None:
    """The function in docs/access.md, as printed, signs tokens that hold."""
    recipe = re.findall(r"```python\n(.*?)```", (DOCS / "access.md").read_text(), re.DOTALL)[0]
    known: dict[str, Any] = {}
    exec(recipe, known)
    text = known["session_token"](await make_key(app, "read"), "s")
    assert 200 == (await RestClient(app, text).get("/v1/sessions/s")).status


async def test_a_token_of_the_operators_key_does_not_help_to_guess_it(app: App) -> None:
    """Whoever holds one cannot try words at home until the signature fits."""
    parts, _, signature = (await token(app)).rpartition(".")
    found = base64.urlsafe_b64decode(signature + "=")
    for secret in (ADMIN_KEY.encode(), hashlib.sha256(ADMIN_KEY.encode()).digest()):
        assert hmac.digest(secret, parts.encode(), "sha256") != found
    key = await make_key(app, "admin")
    parts, _, signature = sign(key).rpartition(".")
    secret = hashlib.sha256(key.split("_")[2].encode()).digest()
    assert hmac.digest(secret, parts.encode(), "sha256") == base64.urlsafe_b64decode(signature + "=")


async def test_a_token_is_made_with_an_admin_key(app: App) -> None:
    """It says for which session it is and until when: ten minutes, or what was asked for."""
    before = time.time() * 1000
    answered = await RestClient(app, ADMIN_KEY).post("/v1/sessions/s/tokens")
    assert (201, "s") == (answered.status, answered.json["session_id"])
    assert 598_000 < answered.json["expires_at"] - before < 660_000
    shorter = await RestClient(app, ADMIN_KEY).post("/v1/sessions/s/tokens", {"ttl_seconds": 60})
    assert 58_000 < shorter.json["expires_at"] - before < 120_000


@pytest.mark.parametrize("body", [{"ttl_seconds": 0}, {"ttl_seconds": 3601}, {"ttl_seconds": "1"}, {"sub": "other"}])
async def test_a_token_that_cannot_be_made(app: App, body: JsonObject) -> None:
    """An hour is the longest; nothing else can be asked for."""
    assert (400, "invalid_field") == (await RestClient(app, ADMIN_KEY).post("/v1/sessions/s/tokens", body)).problem


async def test_no_token_for_what_is_not_there(app: App) -> None:
    """A session is made first, and is one's own."""
    assert (404, "unknown_session") == (await RestClient(app, ADMIN_KEY).post("/v1/sessions/nobody/tokens")).problem
    stranger = await client_with_key(app, "admin", project="b")
    assert (404, "unknown_session") == (await stranger.post("/v1/sessions/s/tokens")).problem


async def test_without_keys_there_is_nothing_to_sign_with(serve: Serve) -> None:
    """A service that is open to loopback makes no tokens, and says what to do."""
    api = RestClient(await serve())
    await api.create()
    assert (409, "no_keys") == (await api.post("/v1/sessions/s/tokens")).problem


async def test_a_token_reads_and_writes_its_session_on_both_ports(app: App) -> None:
    """In the header, in a frame, and over HTTP; the session need not even be named on the websocket."""
    for number, text in enumerate(await made_and_signed(app)):
        names = [f"{number}{way}" for way in ("header", "frame", "http")]
        async with connected_producer(app, bearer_header(text)) as producer:
            assert "s" == (await producer.open("s", producer=names[0]))["session_id"]
            await producer.store(final_transcript(1, names[0]))
        async with connected_producer(app) as producer:
            await producer.send({"type": "auth", "token": text})
            assert "s" == (await producer.open(None, producer=names[1]))["session_id"]
            await producer.store(final_transcript(1, names[1]))
        api = RestClient(app, text)
        assert [] == (await api.send(final_transcript(1, names[2]), query=f"?producer={names[2]}"))["errors"]
        assert {*names} <= {str(row["producer"]) for row in await api.journal()}
        assert 200 == (await api.get("/v1/sessions/s/history")).status


@every_row(("method", "path"), GUARDED)
async def test_every_other_route_is_closed_to_a_token(app: App, method: str, path: str) -> None:
    """A token reaches the routes of its own session that read it or take its events, and nothing else."""
    for text in (await token(app), sign(await make_key(app, "admin"))):
        api = RestClient(app, text)
        for session_id in ("s", "other", "nobody"):
            filled = path.replace("{id}", session_id).replace("{key_id}", "k" * 12).replace("{delivery}", "1")
            filled = filled.replace("{app_id}", "f" * 32).replace("{session_id}", session_id)
            answered = await api.call(method, re.sub(r"\{\w+\}", "x", filled))
            if (method, path) in BOUNDED or ((method, path) in REACHED and session_id == "s"):
                assert answered.status not in (401, 403)
            else:
                assert (403, "forbidden") == answered.problem
    for session_id in ("s", "other"):
        assert (await RestClient(app, ADMIN_KEY).session(session_id))["config"] == {}


async def test_a_token_opens_no_other_session_on_the_websocket(app: App) -> None:
    """Another session is refused, whether it is there or not; the connection goes on with its own."""
    for text in await made_and_signed(app):
        async with connected_producer(app, bearer_header(text)) as producer:
            for session_id in ("other", "nobody"):
                await producer.send({"type": "session.open", "session_id": session_id})
                await producer.expect_error("forbidden")
                await producer.send(final_transcript(1, session_id=session_id))
                await producer.expect_error("not_open")
            await producer.open("s")
    assert [] == await RestClient(app, ADMIN_KEY).contents("other")
    assert 404 == (await RestClient(app, ADMIN_KEY).get("/v1/sessions/nobody")).status


async def test_a_token_makes_no_session(app: App) -> None:
    """Whoever signs makes the session first, with a key."""
    async with connected_producer(app, bearer_header(sign(await make_key(app, "admin"), "new"))) as producer:
        await producer.send({"type": "session.open", "session_id": "new", "session": {"name": "x"}})
        await producer.expect_error("unknown_session")
    assert 404 == (await RestClient(app, ADMIN_KEY).get("/v1/sessions/new")).status


@pytest.mark.parametrize("change", [{"name": "x"}, {"system_messages": []}, {"webhook": {"url": "https://a.example"}}])
async def test_a_token_sets_nothing(app: App, change: JsonObject) -> None:
    """No update of the configuration is taken, on either port; events beside it are."""
    text = await token(app)
    update = {"type": "session.update", "seq": 1, **change}
    async with connected_producer(app, bearer_header(text)) as producer:
        await producer.open("s", session=change)
        await producer.send(update, final_transcript(2))
        await producer.expect_error("forbidden", seq=1)
        await producer.expect_ack(2)
    errors = (await RestClient(app, text).send(update, query="?producer=http"))["errors"]
    assert ["forbidden"] == [error["code"] for error in errors]
    assert (403, "forbidden") == (await RestClient(app, text).patch("/v1/sessions/s", change)).problem
    assert {} == (await RestClient(app, ADMIN_KEY).session())["config"]


async def test_a_token_may_no_more_than_its_key(app: App) -> None:
    """Signed by a key that only reads, it only reads; by one that only writes, it only writes."""
    reader, writer = [RestClient(app, sign(await make_key(app, scope))) for scope in ("read", "ingest")]
    assert 200 == (await reader.get("/v1/sessions/s")).status
    assert (403, "forbidden") == (await reader.post("/v1/sessions/s/events", [final_transcript(1)])).problem
    assert 200 == (await writer.post("/v1/sessions/s/events", [final_transcript(1)])).status
    assert (403, "forbidden") == (await writer.get("/v1/sessions/s")).problem


async def test_another_projects_key_signs_for_its_own_project_only(app: App) -> None:
    """Its token finds no session there; under the name of our key, or of none, it is no token."""
    theirs, ours = await make_key(app, "admin", project="theirs"), await make_key(app, "admin")
    assert (404, "unknown_session") == (await RestClient(app, sign(theirs)).get("/v1/sessions/s")).problem
    async with connected_producer(app, bearer_header(sign(theirs))) as producer:
        await producer.send({"type": "session.open", "session_id": "s"})
        await producer.expect_error("unknown_session")
    _, key_id, _ = ours.split("_")
    secret = theirs.split("_")[2]
    for kid in (key_id, "0" * 12, "environment"):
        forged = sign(f"vm_{kid}_{secret}")
        assert (401, "unauthorized") == (await RestClient(app, forged).get("/v1/sessions/s")).problem
        with pytest.raises(InvalidStatus):
            async with connected_producer(app, bearer_header(forged)):
                pass
        async with connected_producer(app) as producer:
            await producer.send({"type": "auth", "token": forged})
            code, frames = await producer.closed()
            assert (1008, ["unauthorized"]) == (code, [frame["code"] for frame in frames])


async def test_a_token_goes_with_its_key(app: App) -> None:
    """What a key signed is revoked with it."""
    key = await make_key(app, "admin")
    api = RestClient(app, sign(key))
    assert 200 == (await api.get("/v1/sessions/s")).status
    await app.services.access.revoke_key("default", key.split("_")[1])
    assert (401, "unauthorized") == (await api.get("/v1/sessions/s")).problem


async def test_an_expired_token_closes_its_connection(app: App) -> None:
    """What was sent before is acknowledged, then the connection is closed with the code's close code."""
    async with connected_producer(app, bearer_header(sign(await make_key(app, "admin"), lasts_s=1.5))) as producer:
        await producer.open("s")
        await producer.store(final_transcript(1))
        code, frames = await producer.closed()
    assert (1008, ["token_expired"]) == (code, [frame["code"] for frame in frames])
    assert 1 == len(await RestClient(app, ADMIN_KEY).journal())


async def test_a_newer_token_in_a_frame_keeps_the_connection(app: App) -> None:
    """Before a token is over the client sends the next one; one for less does not do."""
    key = await make_key(app, "admin")
    async with connected_producer(app, bearer_header(sign(key, lasts_s=1))) as producer:
        await producer.open("s")
        await producer.send({"type": "auth", "token": sign(key, lasts_s=600)})
        await producer.store(final_transcript(1))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(producer.socket.recv(), 1.8)
        await producer.store(final_transcript(2))
        await producer.send({"type": "auth", "token": sign(key, "other")})
        code, frames = await producer.closed()
    assert (1008, ["forbidden"]) == (code, [frame["code"] for frame in frames])


async def test_a_token_may_end_its_session(app: App) -> None:
    """The end of a call is an event like others."""
    async with connected_producer(app, bearer_header(await token(app))) as producer:
        await producer.open("s")
        await producer.store(final_transcript(1), session_end(2))
    await wait_until_closed(app)
