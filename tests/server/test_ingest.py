"""Who may connect, who holds a producer, and how everybody is sent home (design, sections 5 and 10)."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import itertools
import json
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from callers import PROBLEM, Caller, keyed, make_key, until
from producers import JsonObject, Producer, connected, end, held_store, producing, said, unknown, url_of
from services import Serve
from websockets import exceptions
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus
from websockets.typing import Subprotocol

from voicemem.app import App
from voicemem.server.ingest import connection, server

ADMIN_KEY = "k" * 40
UPGRADE = (
    "Upgrade: websocket",
    "Connection: Upgrade",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Version: 13",
)
HOOK = "https://receiver.example/hook"
S = {"session_id": "s"}
CALLING_OUT: list[JsonObject] = [
    {"webhook": {"url": HOOK}},
    {"webhook": {"secret": "hush"}},
    {"webhook": {"url": None}},
    {"webhook": None},
    {"llm": {"url": HOOK}},
    {"llm": {"api_key": "hush"}},
]
"""Settings that make the server call somebody, or call nobody any more."""


@pytest.fixture
async def app(serve: Serve) -> App:
    """An empty service without keys."""
    return await serve()


@pytest.fixture
async def locked(serve: Serve) -> App:
    """An empty service that needs keys."""
    return await serve(admin_key=ADMIN_KEY)


@pytest.fixture
async def api(app: App) -> Caller:
    """A caller of the service without keys."""
    return Caller(app)


async def refusal(app: App, path: str = "/v1/ingest", host: str = "127.0.0.1", **more: Any) -> tuple[int, str] | None:
    """Status and code with which a handshake is refused; None when it is not."""
    try:
        async with connect(f"ws://{host}{path}", host="127.0.0.1", port=app.ingest_address.port, **more):
            return None
    except InvalidStatus as refused:
        response = refused.response
    assert "application/problem+json" == response.headers["Content-Type"], response.body
    problem = json.loads(response.body)
    assert response.status_code == problem["status"]
    return problem["status"], problem["reason"]


async def status(app: App, *lines: str) -> int:
    """The status that is answered to a request of these lines."""
    reader, writer = await asyncio.open_connection(*app.ingest_address)
    try:
        writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())
        answer = await asyncio.wait_for(reader.readline(), 5)
        return int(answer.split()[1])
    finally:
        writer.close()
        await writer.wait_closed()


def bearer(key: str) -> JsonObject:
    return {"Authorization": f"Bearer {key}"}


# The handshake


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/ingest/", "/v1/ingest/s", "/v2/ingest", "/V1/INGEST"])
async def test_other_paths_are_not_found(app: App, path: str) -> None:
    """There is one path; what is wrong is said as a problem document."""
    assert (404, "not_found") == await refusal(app, path)


async def test_the_protocol_may_be_named(app: App) -> None:
    """A client that offers `voicemem.v1` gets it; one that offers others or none is let in without."""
    ours, other = Subprotocol("voicemem.v1"), Subprotocol("other")
    chosen = []
    for offered in ([ours], [other, ours], [other], None):
        async with connect(url_of(app), subprotocols=offered) as client:
            chosen.append(client.subprotocol)
    assert ["voicemem.v1", "voicemem.v1", None, None] == chosen


async def test_frames_are_not_compressed(app: App) -> None:
    """A client that offers compression is let in without: no bombs."""
    async with connect(url_of(app)) as client:
        assert [] == client.protocol.extensions


@pytest.mark.parametrize("target", ["//[/v1/ingest", "http://[/v1/ingest", "*", "http:"])
async def test_what_is_no_path_is_refused(app: App, caplog: pytest.LogCaptureFixture, target: str) -> None:
    """A request target that cannot be read is the client's fault, and no traceback."""
    host = f"Host: {app.ingest_address}"
    assert await status(app, f"GET {target} HTTP/1.1", host, *UPGRADE) in range(400, 500)
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("header", ["Host: 127.0.0.1", "Origin: http://127.0.0.1", "Authorization: Bearer x"])
async def test_doubled_headers_are_refused(app: App, caplog: pytest.LogCaptureFixture, header: str) -> None:
    """Two values where one counts are the client's fault, and no traceback."""
    host = [] if header.startswith("Host") else ["Host: 127.0.0.1"]
    assert await status(app, "GET /v1/ingest HTTP/1.1", *host, header, header, *UPGRADE) in range(400, 500)
    assert "Traceback" not in caplog.text


async def test_plain_http_is_told_to_upgrade(app: App) -> None:
    """A browser or a probe on the ingest port gets a 4xx, which says where it is."""
    async with aiohttp.ClientSession() as http, http.get(f"http://{app.ingest_address}/v1/ingest") as answer:
        problem = await answer.json(content_type=PROBLEM)
        assert (426, "websocket") == (answer.status, answer.headers["Upgrade"])
        assert (426, "Upgrade Required", "invalid_http") == (problem["status"], problem["title"], problem["reason"])


async def test_other_methods_are_refused(app: App, caplog: pytest.LogCaptureFixture) -> None:
    """A POST gets a 405, or, from a `websockets` that reads nothing but GET, no answer; none of it is in the log."""
    url = f"http://{app.ingest_address}/v1/ingest"
    async with aiohttp.ClientSession() as http:
        if hasattr(exceptions, "InvalidMethod"):
            async with http.post(url) as answer:
                problem = await answer.json(content_type=PROBLEM)
            assert (405, "GET") == (answer.status, answer.headers["Allow"])
            assert (405, "method_not_allowed") == (problem["status"], problem["reason"])
        else:
            with pytest.raises(aiohttp.ServerDisconnectedError):
                await http.post(url)
    assert "" == caplog.text


# Who may come, without keys


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LOCALHOST:1", "[::1]:8765", "127.8.9.1"])
async def test_without_keys_loopback_hosts_may_come(app: App, host: str) -> None:
    """Every name of this machine is good, with any port."""
    assert await refusal(app, host=host) is None


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "10.0.0.1"])
async def test_without_keys_foreign_hosts_may_not(app: App, host: str) -> None:
    """A name that somebody points at this machine does not open it."""
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
    headers = bearer(ADMIN_KEY)
    assert await refusal(locked, host="voice.example", origin="https://a.example", additional_headers=headers) is None


async def test_insecure_lets_everybody_in(serve: Serve) -> None:
    """`--insecure` is for networks that keep others out."""
    app = await serve(insecure=True)
    assert await refusal(app, host="voice.example", origin="https://a.example") is None


# Keys


async def test_a_key_in_the_header(locked: App) -> None:
    """A key with the scope ingest is all that a producer needs."""
    async with connected(locked, bearer(await make_key(locked, "ingest"))) as producer:
        await producer.open()
        await producer.store(said(1))


async def test_a_key_in_the_first_frame(locked: App) -> None:
    """Who cannot set headers sends the key first, alone or with the open."""
    key = await make_key(locked, "ingest")
    async with connected(locked) as producer:
        await producer.send({"type": "auth", "token": key})
        await producer.open()
        await producer.store(said(1))
    async with connected(locked) as producer:
        await producer.send_together({"type": "auth", "token": key}, {"type": "session.open", "session_id": "s"})
        assert 2 == (await producer.expect("session.ready"))["next_seq"]


async def test_without_keys_an_auth_frame_does_no_harm(app: App) -> None:
    """A client may send its key before the operator has made one."""
    async with connected(app) as producer:
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
        async with connected(locked) as producer:
            await producer.send({"type": "auth", "token": wrong}, {"type": "session.open", "session_id": "s"})
            code, frames = await producer.closed()
        assert (1008, ["unauthorized"]) == (code, [frame["code"] for frame in frames])
    assert 404 == (await Caller(locked, ADMIN_KEY).get("/v1/sessions/s")).status


async def test_a_revoked_key(locked: App) -> None:
    """A key that was taken back opens nothing any more."""
    key = await make_key(locked, "ingest")
    assert await locked.services.store.revoke_key(key.split("_")[1], 1)
    assert (401, "unauthorized") == await refusal(locked, additional_headers=bearer(key))


async def test_a_key_without_the_scope(locked: App) -> None:
    """A reader's key does not send events, on either way in."""
    key = await make_key(locked, "read")
    assert (403, "forbidden") == await refusal(locked, additional_headers=bearer(key))
    async with connected(locked) as producer:
        await producer.send({"type": "auth", "token": key})
        code, frames = await producer.closed()
    assert (1008, ["forbidden"]) == (code, [frame["code"] for frame in frames])


@pytest.mark.parametrize(
    "frame", ['{"type":"session.open","session_id":"s"}', "{}", '[{"type":"asr"}]', '{"type":"auth"}']
)
async def test_without_a_key_nothing_is_taken(locked: App, frame: str) -> None:
    """The first frame must be the key."""
    async with connected(locked) as producer:
        await producer.send_raw(frame)
        code, frames = await producer.closed()
    assert (1008, ["unauthorized"]) == (code, [one["code"] for one in frames])
    assert [] == (await Caller(locked, ADMIN_KEY).get("/v1/sessions")).json["sessions"]


@pytest.mark.parametrize("frames", [[], ["[]"], ["[]", "[ ]"]])
async def test_a_key_must_come_soon(locked: App, monkeypatch: pytest.MonkeyPatch, frames: list[str]) -> None:
    """A connection that brings no key in time is closed, whatever nothings it sends."""
    monkeypatch.setattr(connection, "AUTH_TIMEOUT_S", 0.2)
    async with connected(locked) as producer, asyncio.timeout(3):
        for frame in frames:
            await producer.send_raw(frame)
        code, told = await producer.closed()
    assert (1008, ["unauthorized"]) == (code, [frame["code"] for frame in told])


async def test_a_slow_store_is_no_missing_key(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the key is there, what comes with it may take its time."""
    monkeypatch.setattr(connection, "AUTH_TIMEOUT_S", 0.2)
    app = await serve(store=f"sqlite:{tmp_path}/db", admin_key=ADMIN_KEY)
    async with connected(app) as producer:
        with held_store(f"{tmp_path}/db"):
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


@pytest.mark.parametrize("settings", CALLING_OUT, ids=str)
async def test_what_calls_out_needs_admin_in_an_open(locked: App, settings: JsonObject) -> None:
    """A producer's key cannot make the server call anybody; no session is made, the connection lives on."""
    key = await make_key(locked, "ingest", "read")
    async with connected(locked, bearer(key)) as producer:
        await producer.send({"type": "session.open", "session_id": "s", "session": settings})
        await producer.expect_error("forbidden", session_id="s")
        assert 404 == (await Caller(locked, key).get("/v1/sessions/s")).status
        assert 1 == (await producer.open())["epoch"]


@pytest.mark.parametrize("settings", CALLING_OUT, ids=str)
async def test_what_calls_out_needs_admin_in_an_update(locked: App, settings: JsonObject) -> None:
    """An update that may not be made is refused like any event, and changes nothing."""
    config: JsonObject = {"webhook": {"url": HOOK, "contents": "standard"}}
    await Caller(locked, ADMIN_KEY).create(**config)
    async with connected(locked, bearer(await make_key(locked, "ingest"))) as producer:
        await producer.open()
        await producer.send({"type": "session.update", "seq": 1, **settings})
        await producer.expect_error("forbidden", seq=1)
        await producer.store(said(2))
    assert config == (await Caller(locked, ADMIN_KEY).session())["config"]


async def test_an_admin_may_set_what_calls_out(locked: App) -> None:
    """With the scope admin the same settings are taken, and their secrets are shown to nobody."""
    async with connected(locked, bearer(await make_key(locked, "admin"))) as producer:
        await producer.open(session={"webhook": {"url": HOOK, "secret": "hush"}})
        await producer.store({"type": "session.update", "seq": 1, "llm": {"url": HOOK, "api_key": "hush"}})
    config = (await Caller(locked, ADMIN_KEY).session())["config"]
    assert {"webhook": {"url": HOOK}, "llm": {"url": HOOK}} == config


async def test_a_producer_may_set_what_does_not_call_out(locked: App) -> None:
    """All other settings are a producer's own."""
    async with connected(locked, bearer(await make_key(locked, "ingest"))) as producer:
        await producer.open(session={"name": "Call", "llm": {"model": "m"}})
        await producer.store({"type": "session.update", "seq": 1, "system_messages": [], "labels": {"a": "b"}})


async def test_projects_do_not_meet(locked: App) -> None:
    """The same id in another project is another session, and supersedes nobody."""
    one, other = [await make_key(locked, "ingest", "read", project=name) for name in ("one", "other")]
    async with connected(locked, bearer(one)) as first, connected(locked, bearer(other)) as second:
        assert [1, 1] == [(await producer.open())["epoch"] for producer in (first, second)]
        await first.store(said(1, text="One."))
        await second.store(said(1, text="Other."), said(2))
        await first.store(said(2))
    assert ["One.", "Line 2."] == [message["content"] for message in await Caller(locked, one).contents()]


async def test_a_new_key_closes_the_door(app: App) -> None:
    """From the first key on, nobody connects without one."""
    assert await refusal(app) is None
    await keyed(app, "admin")
    async with connected(app) as producer:
        await producer.send({"type": "session.open", "session_id": "s"})
        assert 1008 == (await producer.closed())[0]


# One holder per producer


@pytest.fixture
async def old(app: App) -> AsyncIterator[Producer]:
    """A producer with an open session "s", and one event in it."""
    async with producing(app) as producer:
        await producer.store(said(1))
        yield producer


async def test_the_older_connection_is_told_once(app: App, api: Caller, old: Producer) -> None:
    """It hears of it at once and only once; what it still sends is never stored nor answered."""
    async with producing(app) as new:
        await old.expect_error("superseded", session_id="s", producer="main")
        await old.send(said(2, text="Ghost."), said(7), unknown(2), end(2))
        assert [] == await old.rest()
        await new.store(said(2))
    assert ["Line 1.", "Line 2."] == [message["content"] for message in await api.contents()]


async def test_what_the_older_connection_had_sent_is_kept(app: App, old: Producer) -> None:
    """Events that came before the new open are stored and acknowledged; the new one goes on behind them."""
    await old.send_together(*(said(seq) for seq in range(2, 200)))
    await old.expect("ack", seq=199)
    async with connected(app) as new:
        assert 200 == (await new.open())["next_seq"]


async def test_a_race_of_both_stores_each_seq_once(app: App, api: Caller, old: Producer) -> None:
    """Whichever comes first counts: an ack is for an event that is stored, and none is stored twice."""
    async with connected(app) as new:
        await asyncio.gather(old.send(*(said(seq) for seq in range(2, 100))), new.send({"type": "session.open"} | S))
        start = (await new.expect("session.ready"))["next_seq"]
        await new.store(*(said(seq, text="New.") for seq in range(start, 101)))
    rows = await api.journal()
    assert list(range(1, 101)) == [row["seq"] for row in rows]
    assert ["New."] * (101 - start) == [row["event"]["text"] for row in rows[start - 1 :]]


async def test_other_lines_of_the_older_connection_go_on(app: App, old: Producer) -> None:
    """Only that producer of that session has gone elsewhere."""
    await old.open(producer="llm")
    await old.open("t")
    async with producing(app):
        await old.expect_error("superseded", session_id="s", producer="main")
        await old.store(said(1, session_id="s", producer="llm"))
        await old.store(said(1, session_id="t"))


async def test_opening_again_on_the_same_connection_tells_nobody(old: Producer) -> None:
    """A connection does not supersede itself."""
    assert 2 == (await old.open())["epoch"]
    assert [] == await old.rest()
    await old.store(said(2, session_id="s"))


async def test_the_older_connection_may_take_over_again(app: App, old: Producer) -> None:
    """Whoever opened last holds the producer, as often as it changes."""
    async with producing(app) as new:
        await old.expect_error("superseded")
        assert 3 == (await old.open())["epoch"]
        await new.expect_error("superseded")
        await old.store(said(2))
        await new.send(said(3))
        assert [] == await new.rest()


async def test_the_newest_of_two_opens_at_once_holds(serve: Serve, tmp_path: Path) -> None:
    """When connections open a producer at the same time, the highest epoch goes on, and the other is told."""
    app = await serve(store=f"sqlite:{tmp_path}/db")
    async with connected(app) as holder, connected(app) as other:
        for seq in range(1, 31):
            ready = await asyncio.gather(last_ready(holder), last_ready(other))
            if ready[0]["epoch"] < ready[1]["epoch"]:
                holder, other = other, holder
            await holder.send(said(seq, session_id="s"))
            assert ["ack"] == [frame["type"] for frame in await holder.rest() if "s" == frame.get("session_id")]
            assert ["superseded"] == [frame["code"] for frame in await other.rest() if "s" == frame.get("session_id")]


async def last_ready(producer: Producer) -> JsonObject:
    """Open, past whatever came for older epochs."""
    await producer.send({"type": "session.open"} | S)
    while (frame := await producer.next())["type"] != "session.ready":
        pass
    return frame


LONG = {"session_id": "s" * 128, "producer": "p" * 128}
"""Names that make every answer long."""


@asynccontextmanager
async def clogged(app: App) -> AsyncIterator[None]:
    """Until the block ends a peer sends and reads nothing, so that no answer gets through to it any more."""
    narrow = socket.socket()
    narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    narrow.connect(tuple(app.ingest_address))
    narrow.setblocking(False)
    async with connect(url_of(app), sock=narrow, compression=None) as peer:
        await Producer(peer).open(**LONG)
        for one in app.ingest.connections:  # the system would take megabytes for the peer
            one.websocket.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        peer.transport.pause_reading()
        sending = asyncio.create_task(send_on(Producer(peer)))
        try:
            await until(True, lambda: is_clogged(app))
            yield
        finally:
            peer.transport.abort()
            sending.cancel()
            await asyncio.wait({sending})


async def send_on(producer: Producer) -> None:
    """Send what is answered at length, for ever."""
    for first in itertools.count(1, 500):
        await producer.send_together(*(unknown(seq) for seq in range(first, first + 499)), said(first + 499, turn_id=1))


async def is_clogged(app: App) -> bool:
    """Whether an answer waits for a peer that does not read."""
    return any(one.websocket.transport.get_write_buffer_size() > 32 * 1024 for one in app.ingest.connections)


async def test_who_reads_nothing_holds_up_nobody(app: App) -> None:
    """A dead peer, whose buffers are full, does not keep its successor from the session."""
    async with clogged(app), connected(app) as successor, asyncio.timeout(3):
        assert 2 == (await successor.open(**LONG))["epoch"]


# The end of the service


async def taken_in(app: App) -> bool:
    """Whether something is received that is not answered yet."""
    return any(one.unanswered for one in app.ingest.connections)


async def test_drain_says_goodbye_and_flushes_the_acks(serve: Serve, tmp_path: Path) -> None:
    """Goaway comes first, then the acks of everything received, then 1012."""
    app = await serve(store=f"sqlite:{tmp_path}/db")
    async with producing(app) as producer:
        with held_store(f"{tmp_path}/db"):
            await producer.send_together(said(1), unknown(2), said(3))
            await until(True, lambda: taken_in(app))
            draining = asyncio.create_task(app.ingest.drain())
            await producer.expect("goaway")
        code, frames = await producer.closed()
        await draining
    assert (1012, [("error", 2), ("ack", 3)]) == (code, [(frame["type"], frame["seq"]) for frame in frames])


async def test_drain_sends_everybody_home(locked: App) -> None:
    """Goaway and 1012 reach those who opened nothing, or have not said who they are."""
    async with connected(locked, bearer(ADMIN_KEY)) as one, connected(locked) as other:
        await one.rest()
        await other.socket.ping()
        await asyncio.gather(locked.ingest.drain(), one.closed(), other.closed())
        assert [1012, 1012] == [producer.socket.close_code for producer in (one, other)]


async def test_nobody_comes_in_while_draining(serve: Serve, tmp_path: Path) -> None:
    """A new connection is told to come to the next server."""
    app = await serve(store=f"sqlite:{tmp_path}/db")
    async with producing(app) as producer:
        with held_store(f"{tmp_path}/db"):
            await producer.send(said(1))
            await until(True, lambda: taken_in(app))
            draining = asyncio.create_task(app.ingest.drain())
            await producer.expect("goaway")
            assert (503, "draining") == await refusal(app)
        await draining
        assert 1012 == (await producer.closed())[0]


async def test_drain_waits_for_nobody_for_long(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that reads nothing does not keep the service from its end."""
    monkeypatch.setattr(server, "DRAIN_TIMEOUT_S", 0.5)
    async with clogged(app):
        draining = asyncio.create_task(app.ingest.drain())
        done, _ = await asyncio.wait({draining}, timeout=0.5 + server.CLOSE_TIMEOUT_S + 1)
    await draining
    assert done
