"""Quotas of a project: how many sessions it may have open, and begin in a day."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import re
from pathlib import Path

from tests.support.callers.producer import connected_producer
from tests.support.callers.rest import RestClient, bearer_header, client_with_key, wait_until_closed
from tests.support.events import final_transcript
from tests.support.services import Serve, running_service
from tests.support.waiting import eventually

QUOTA = (429, "quota_exceeded")


async def test_open_sessions_are_bounded(serve: Serve) -> None:
    """One too many is refused, by name, until another one has ended or was erased; what is open goes on."""
    app = await serve(open_sessions=2)
    api = RestClient(app)
    await api.create("a")
    await api.create("b")
    refused = await api.post("/v1/sessions", {"session_id": "c"})
    assert QUOTA == refused.problem
    assert "open_sessions" in refused.json["detail"]
    assert "Retry-After" not in refused.headers
    assert 200 == (await api.post("/v1/sessions", {"session_id": "a"})).status
    assert 2 == (await api.send(final_transcript(1), session_id="a"))["next_seq"]
    await api.end("a")
    await api.create("c")
    assert QUOTA == (await api.post("/v1/sessions", {"session_id": "d"})).problem
    await api.delete("/v1/sessions/b")
    await api.create("d")


async def test_a_websocket_over_the_quota_stays_open(serve: Serve) -> None:
    """The open is refused with an error; the connection's other sessions go on."""
    app = await serve(open_sessions=1)
    async with connected_producer(app) as producer:
        await producer.open("a")
        await producer.send({"type": "session.open", "session_id": "b"})
        await producer.expect_error("quota_exceeded", session_id="b")
        await producer.send(final_transcript(1))
        await producer.expect_ack(1)
        await producer.send({"type": "session.open", "session_id": "a"})
        await producer.expect("session.ready")


async def test_sessions_of_a_day_are_bounded(tmp_path: Path) -> None:
    """Also across restarts, and erased ones count; Retry-After is the time until midnight."""
    store = f"sqlite:{tmp_path}/db"
    async with running_service(store=store, sessions_per_day=2) as app:
        api = RestClient(app)
        await api.create("a")
        await api.create("b")
        await api.delete("/v1/sessions/b")
    async with running_service(store=store, sessions_per_day=2) as app:
        refused = await RestClient(app).post("/v1/sessions", {"session_id": "c"})
        assert QUOTA == refused.problem
        assert "sessions_per_day" in refused.json["detail"]
        assert 0 < int(refused.headers["Retry-After"]) <= 86_400


async def test_every_way_to_begin_a_session_is_bounded(serve: Serve) -> None:
    """Forks and restored checkpoints are sessions too."""
    app = await serve(sessions_per_day=1)
    api = RestClient(app)
    await api.create("a")
    await api.send(final_transcript(1, turn_id=0), session_id="a")
    assert QUOTA == (await api.post("/v1/sessions/a/fork", {"at_turn": 0})).problem
    document = (await api.get("/v1/sessions/a/checkpoint")).json
    assert QUOTA == (await api.post("/v1/restore", {"session_id": "b", "checkpoint": document})).problem


async def test_projects_do_not_share_a_quota(serve: Serve) -> None:
    """What one project has used up, another one still has."""
    app = await serve(open_sessions=1)
    one, other = [await client_with_key(app, "admin", project=name) for name in ("one", "other")]
    await one.create("a")
    assert QUOTA == (await one.post("/v1/sessions", {"session_id": "b"})).problem
    await other.create("a")


async def test_a_key_has_quotas_of_its_own(serve: Serve) -> None:
    """They hold for every way to begin a session with it, and for no other key of the project."""
    app = await serve()
    admin = await client_with_key(app, "admin")
    made = (await admin.post("/v1/keys", {"scopes": ["admin"], "open_sessions": 1, "sessions_per_day": 2})).json
    bounded = RestClient(app, made["key"])
    async with connected_producer(app, bearer_header(made["key"])) as producer:
        await producer.open("a")
        await producer.store(final_transcript(1, turn_id=0))
        await producer.send({"type": "session.open", "session_id": "b"})
        assert "key" in (await producer.expect_error("quota_exceeded", session_id="b"))["detail"]
    assert QUOTA == (await bounded.post("/v1/sessions/a/fork", {"at_turn": 0})).problem
    await admin.create("b")
    await admin.end("a")
    await bounded.create("c")
    await bounded.end("c")
    refused = await bounded.post("/v1/sessions", {"session_id": "d"})
    assert QUOTA == refused.problem
    assert 0 < int(refused.headers["Retry-After"]) <= 86_400
    await admin.create("d")


async def test_stored_bytes_are_bounded(tmp_path: Path) -> None:
    """Beyond them events and sessions are refused, also after a restart; calls can end, and erasing frees."""
    store = f"sqlite:{tmp_path}/db"
    async with running_service(store=store, stored_bytes=3000) as app:
        api = RestClient(app)
        async with connected_producer(app) as producer:
            await producer.open("a")
            await producer.store(final_transcript(1))
            await producer.store(final_transcript(2, text="x" * 3000))
            await producer.send(final_transcript(3))
            await producer.expect_error("quota_exceeded", seq=3)
        assert QUOTA == (await api.post("/v1/sessions", {"session_id": "b"})).problem
    async with running_service(store=store, stored_bytes=3000) as app:
        api = RestClient(app)
        assert "stored_bytes" in (await api.post("/v1/sessions", {"session_id": "b"})).json["detail"]
        refused = await api.post("/v1/sessions/a/events", [final_transcript(4)])
        assert (422, "events_refused") == refused.problem
        assert ["quota_exceeded"] == [error["code"] for error in refused.json["errors"]]
        assert QUOTA == (await api.post("/v1/sessions/a/messages", {"role": "user", "content": "x"})).problem
        async with connected_producer(app) as producer:
            await producer.open("a")
            await producer.store({"type": "session.end", "seq": 5})
        await wait_until_closed(app, "a")
        assert [1, 2] == [row["seq"] for row in await api.journal("a") if row["event"].get("type") == "asr"]
        await api.delete("/v1/sessions/a")

        async def begun() -> int:
            return (await api.post("/v1/sessions", {"session_id": "b"})).status

        await eventually(201, begun)
        metrics = (await api.get("/metrics")).body.decode()
        assert re.search(r'^voicemem_quota_refusals_total\{quota="stored_bytes"\} [1-9]', metrics, re.MULTILINE)
