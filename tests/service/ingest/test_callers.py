"""Who may connect to the ingest port: hosts, pages, keys and scopes."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from tests.support.callers.ingest import ADMIN_KEY, UPGRADE, S, refusal, status
from tests.support.callers.producer import connected_producer
from tests.support.callers.rest import RestClient, bearer_header, client_with_key, fresh_id, make_key
from tests.support.events import final_transcript
from tests.support.rows import every_row
from tests.support.services import Serve
from tests.support.stores.failing import locked_database
from voicemem.app import App
from voicemem.protocol.types import JsonObject

HOOK = "https://receiver.example/hook"
CALLING_OUT: list[JsonObject] = [
    {"webhook": {"url": HOOK}},
    {"webhook": {"secret": "hush"}},
    {"webhook": {"url": None}},
    {"webhook": None},
    {"llm": {"url": HOOK}},
    {"llm": {"api_key": "hush"}},
]
"""Settings that make the server call someone, or call no one any more."""


@pytest.fixture
async def locked(serve: Serve) -> App:
    """An empty service that needs keys."""
    return await serve(admin_key=ADMIN_KEY)


# Who may come, without keys


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LOCALHOST:1", "[::1]:8765", "127.8.9.1"])
async def test_without_keys_loopback_hosts_may_come(app: App, host: str) -> None:
    """Every name of this machine is good, with any port."""
    assert await refusal(app, host=host) is None


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "10.0.0.1"])
async def test_without_keys_foreign_hosts_may_not(app: App, host: str) -> None:
    """A name that someone points at this machine does not open it."""
    assert (403, "foreign_host") == await refusal(app, host=host)


@pytest.mark.parametrize("host", [[], ["Host:"], ["Host: localhost:1:2"], ["Host: [::1].evil.example"], ["Host: @"]])
async def test_without_keys_a_host_is_needed(app: App, host: list[str]) -> None:
    """No host, or none that can be read, is a foreign one."""
    assert 403 == await status(app, "GET /v1/ingest HTTP/1.1", *host, *UPGRADE)


@pytest.mark.parametrize("origin", [None, "http://localhost:3000", "https://127.0.0.1", "http://[::1]:8080"])
async def test_without_keys_loopback_pages_may_come(app: App, origin: Any) -> None:
    """Programs without an origin and pages of this machine are let in."""
    assert await refusal(app, origin=origin) is None


@pytest.mark.parametrize(
    "origin",
    [
        "https://evil.example",
        "null",
        "file://",
        "http://localhost.evil.example",
        "http://127.0.0.1@evil.example",
        "evil",
        "http://[",
        "http://[::1",
        "http://[x]",
    ],
)
async def test_without_keys_foreign_pages_may_not(app: App, caplog: pytest.LogCaptureFixture, origin: Any) -> None:
    """A page elsewhere, or an origin that cannot be read, is refused without a traceback."""
    assert (403, "foreign_origin") == await refusal(app, origin=origin)
    assert "Traceback" not in caplog.text


async def test_with_keys_the_key_decides(locked: App) -> None:
    """Where keys are needed, host and origin do not count."""
    headers = bearer_header(ADMIN_KEY)
    assert await refusal(locked, host="voice.example", origin="https://a.example", additional_headers=headers) is None


async def test_insecure_lets_everybody_in(serve: Serve) -> None:
    """`--insecure` is for networks that keep others out."""
    app = await serve(insecure=True)
    assert await refusal(app, host="voice.example", origin="https://a.example") is None


# Keys


async def test_a_key_in_the_header(locked: App) -> None:
    """A key with the scope ingest is all that a producer needs."""
    async with connected_producer(locked, bearer_header(await make_key(locked, "ingest"))) as producer:
        await producer.open()
        await producer.store(final_transcript(1))


async def test_a_key_in_the_first_frame(locked: App) -> None:
    """Who cannot set headers sends the key first, alone or with the open."""
    key = await make_key(locked, "ingest")
    async with connected_producer(locked) as producer:
        await producer.send({"type": "auth", "token": key})
        await producer.open()
        await producer.store(final_transcript(1))
    async with connected_producer(locked) as producer:
        await producer.send_together({"type": "auth", "token": key}, {"type": "session.open", "session_id": "s"})
        assert 2 == (await producer.expect("session.ready"))["next_seq"]


async def test_without_keys_an_auth_frame_does_no_harm(app: App) -> None:
    """A client may send its key before the operator has made one."""
    async with connected_producer(app) as producer:
        await producer.send({"type": "auth", "token": "anything"})
        assert 1 == (await producer.open())["epoch"]


def wrong_keys(key: str) -> list[str]:
    """Whatever is no key, though some come near."""
    return [key[:-1], key + "x", key[:-1] + ("a" if key[-1] != "a" else "b"), key.swapcase(), "x" * 8000, ADMIN_KEY[1:]]


async def test_a_wrong_key_in_the_header(locked: App) -> None:
    """Who has no key is told so before the upgrade."""
    good = await make_key(locked, "ingest")
    headers = [f"Bearer {one}" for one in wrong_keys(good)[:-2]] + [f"Basic {good}", "Bearer", good, "Bearer é"]
    answers = [await refusal(locked, additional_headers={"Authorization": one}) for one in headers]
    assert [(401, "unauthorized")] * len(headers) == answers


async def test_a_wrong_key_in_the_first_frame(locked: App) -> None:
    """The connection is closed with 1008, and says why."""
    for wrong in wrong_keys(await make_key(locked, "ingest")):
        async with connected_producer(locked) as producer:
            await producer.send({"type": "auth", "token": wrong}, {"type": "session.open", "session_id": "s"})
            code, frames = await producer.closed()
        assert (1008, ["unauthorized"]) == (code, [frame["code"] for frame in frames])
    assert 404 == (await RestClient(locked, ADMIN_KEY).get("/v1/sessions/s")).status


async def test_a_revoked_key(locked: App) -> None:
    """A key that was taken back opens nothing any more."""
    key = await make_key(locked, "ingest")
    assert await locked.services.store.directory.revoke_key(key.split("_")[1], 1)
    assert (401, "unauthorized") == await refusal(locked, additional_headers=bearer_header(key))


async def test_a_key_without_the_scope(locked: App) -> None:
    """A reader's key does not send events, on either way in."""
    key = await make_key(locked, "read")
    assert (403, "forbidden") == await refusal(locked, additional_headers=bearer_header(key))
    async with connected_producer(locked) as producer:
        await producer.send({"type": "auth", "token": key})
        code, frames = await producer.closed()
    assert (1008, ["forbidden"]) == (code, [frame["code"] for frame in frames])


@pytest.mark.parametrize(
    "frame", ['{"type":"session.open","session_id":"s"}', "{}", '[{"type":"asr"}]', '{"type":"auth"}']
)
async def test_without_a_key_nothing_is_taken(locked: App, frame: str) -> None:
    """The first frame must be the key."""
    async with connected_producer(locked) as producer:
        await producer.send_raw(frame)
        code, frames = await producer.closed()
    assert (1008, ["unauthorized"]) == (code, [one["code"] for one in frames])
    assert [] == (await RestClient(locked, ADMIN_KEY).get("/v1/sessions")).json["sessions"]


@pytest.mark.parametrize("frames", [[], ["[]"], ["[]", "[ ]"]])
async def test_a_key_must_come_soon(locked: App, frames: list[str]) -> None:
    """A connection that brings no key in time is closed, whatever nothings it sends."""
    locked.ingest.auth_timeout_s = 0.2
    async with connected_producer(locked) as producer, asyncio.timeout(3):
        for frame in frames:
            await producer.send_raw(frame)
        code, told = await producer.closed()
    assert (1008, ["unauthorized"]) == (code, [frame["code"] for frame in told])


async def test_a_slow_store_is_no_missing_key(serve: Serve, tmp_path: Path) -> None:
    """Once the key is there, what comes with it may take its time."""
    app = await serve(store=f"sqlite:{tmp_path}/db", admin_key=ADMIN_KEY)
    app.ingest.auth_timeout_s = 0.2
    async with connected_producer(app) as producer:
        with locked_database(f"{tmp_path}/db"):
            await producer.send_together({"type": "auth", "token": ADMIN_KEY}, {"type": "session.open"} | S)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(producer.socket.recv(), 0.5)
        await producer.expect("session.ready")


@pytest.mark.parametrize("query", ["token=KEY", "key=KEY", "access_token=KEY", "x"])
async def test_no_key_in_the_query(locked: App, caplog: pytest.LogCaptureFixture, query: str) -> None:
    """Addresses end up in logs, so a key in one is refused, and not logged."""
    caplog.set_level(logging.INFO)
    assert (400, "invalid_query") == await refusal(locked, "/v1/ingest?" + query.replace("KEY", ADMIN_KEY))
    assert ADMIN_KEY not in caplog.text


@every_row("settings", CALLING_OUT, ids=str)
async def test_what_calls_out_needs_admin_in_an_open(locked: App, settings: JsonObject) -> None:
    """A producer's key cannot make the server call anybody; no session is made, the connection lives on."""
    session_id, key = fresh_id(), await make_key(locked, "ingest", "read")
    async with connected_producer(locked, bearer_header(key)) as producer:
        await producer.send({"type": "session.open", "session_id": session_id, "session": settings})
        await producer.expect_error("forbidden", session_id=session_id)
        assert 404 == (await RestClient(locked, key).get(f"/v1/sessions/{session_id}")).status
        assert 1 == (await producer.open(session_id))["epoch"]


@every_row("settings", CALLING_OUT, ids=str)
async def test_what_calls_out_needs_admin_in_an_update(locked: App, settings: JsonObject) -> None:
    """An update that may not be made is refused like any event, and changes nothing."""
    session_id = fresh_id()
    config: JsonObject = {"webhook": {"url": HOOK, "contents": "standard"}}
    await RestClient(locked, ADMIN_KEY).create(session_id, **config)
    async with connected_producer(locked, bearer_header(await make_key(locked, "ingest"))) as producer:
        await producer.open(session_id)
        await producer.send({"type": "session.update", "seq": 1, **settings})
        await producer.expect_error("forbidden", seq=1)
        await producer.store(final_transcript(2))
    assert config == (await RestClient(locked, ADMIN_KEY).session(session_id))["config"]


async def test_an_admin_may_set_what_calls_out(locked: App) -> None:
    """With the scope admin the same settings are taken, and their secrets are shown to no one."""
    async with connected_producer(locked, bearer_header(await make_key(locked, "admin"))) as producer:
        await producer.open(session={"webhook": {"url": HOOK, "secret": "hush"}})
        await producer.store({"type": "session.update", "seq": 1, "llm": {"url": HOOK, "api_key": "hush"}})
    config = (await RestClient(locked, ADMIN_KEY).session())["config"]
    assert {"webhook": {"url": HOOK}, "llm": {"url": HOOK}} == config


async def test_a_producer_may_set_what_does_not_call_out(locked: App) -> None:
    """All other settings are a producer's own."""
    async with connected_producer(locked, bearer_header(await make_key(locked, "ingest"))) as producer:
        await producer.open(session={"name": "Call", "llm": {"model": "m"}})
        await producer.store({"type": "session.update", "seq": 1, "system_messages": [], "labels": {"a": "b"}})


async def test_projects_do_not_meet(locked: App) -> None:
    """The same id in another project is another session, and supersedes no one."""
    one, other = [await make_key(locked, "ingest", "read", project=name) for name in ("one", "other")]
    async with (
        connected_producer(locked, bearer_header(one)) as first,
        connected_producer(locked, bearer_header(other)) as second,
    ):
        assert [1, 1] == [(await producer.open())["epoch"] for producer in (first, second)]
        await first.store(final_transcript(1, text="One."))
        await second.store(final_transcript(1, text="Other."), final_transcript(2))
        await first.store(final_transcript(2))
    assert ["One.", "Line 2."] == [message["content"] for message in await RestClient(locked, one).contents()]


async def test_a_new_key_closes_the_door(app: App) -> None:
    """From the first key on, no one connects without one."""
    assert await refusal(app) is None
    await client_with_key(app, "admin")
    async with connected_producer(app) as producer:
        await producer.send({"type": "session.open", "session_id": "s"})
        assert 1008 == (await producer.closed())[0]
