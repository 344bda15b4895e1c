"""Checkpoints, forks and what is carried over, over REST."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import gzip
import io
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.callers.producer import open_over_websocket, send_over_websocket
from tests.support.callers.rest import LOOPBACK, RestClient, RestResponse, client_with_key, context_texts
from tests.support.events import JOKE, delta, dialogue, done, interrupt
from tests.support.rows import every_row
from tests.support.servers.webhook_receiver import webhook_receiver
from tests.support.services import Serve

REPLY = {"type": "message", "role": "assistant", "source": "llm"}


@pytest.fixture
async def api(serve: Serve) -> RestClient:
    return RestClient(await serve())


async def restored(api: RestClient, checkpoint: Any, **more: Any) -> RestResponse:
    return await api.post("/v1/restore", {"checkpoint": checkpoint, **more})


async def test_what_a_restore_does_not_know_is_refused(api: RestClient) -> None:
    """A field too many in the body, or in the document; a bad id is told as such."""
    await api.create()
    checkpoint = (await api.get("/v1/sessions/s/checkpoint")).json
    more = await api.post("/v1/restore", {"checkpoint": checkpoint, "session": "t"})
    inside = await api.post("/v1/restore", {"checkpoint": checkpoint | {"signature": "x"}})
    bad_id = await api.post("/v1/restore", {"checkpoint": checkpoint, "session_id": "not one"})
    assert [(400, "invalid_field"), (400, "invalid_checkpoint")] == [more.problem, inside.problem]
    assert "It has an unknown field" in inside.json["detail"]
    assert ((400, "invalid_field"), True) == (bad_id.problem, "A session id is" in bad_id.json["detail"])
    assert 201 == (await api.post("/v1/restore", {"checkpoint": checkpoint, "session_id": "t"})).status


async def test_a_checkpoint_goes_to_a_fresh_store(serve: Serve, tmp_path: Path) -> None:
    """Everything but what the two services say of themselves is the same, and the call goes on where it was."""
    app = await serve(store=f"sqlite:{tmp_path}/one")
    here = RestClient(app)
    await here.create(llm={"max_history": 3}, system_messages=[{"role": "system", "content": "Be kind."}])
    await send_over_websocket(app, [*dialogue(2), delta(3, JOKE), interrupt(3, heard_text="Why did ")])
    await here.post("/v1/sessions/s/forget", {"through_turn": 1})
    await here.patch("/v1/sessions/s", {"labels": {"tier": "vip"}})
    checkpoint = await here.get("/v1/sessions/s/checkpoint")
    again = await serve(store=f"sqlite:{tmp_path}/two")
    there = RestClient(again)
    answered = await there.post("/v1/restore", b'{"session_id":"s","checkpoint":%s}' % checkpoint.body)
    assert (201, await here.session()) == (answered.status, answered.json)
    for path in ("history", "context?tools=true", "turns", "events", "checkpoint"):
        assert (await here.get(f"/v1/sessions/s/{path}")).body == (await there.get(f"/v1/sessions/s/{path}")).body
    one, other = [await open_over_websocket(each) | {"incarnation": "", "epoch": 0} for each in (app, again)]
    assert one == other
    frames = await send_over_websocket(again, [done(3, 9) | {"seq": 9}])
    assert "ack" == frames[-1]["type"]


async def test_what_has_ended_has_ended_and_is_not_told_again(serve: Serve) -> None:
    """An ended session is restored as it ended, and its webhook hears nothing of it."""
    async with webhook_receiver() as receiver:
        app = await serve(allow_addresses=LOOPBACK)
        api = RestClient(app)
        await api.create(webhook={"url": receiver.url(), "secret": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"})
        await api.send(*dialogue(1))
        ended = await api.end(reason="done")
        await receiver.wait()
        checkpoint = await api.get("/v1/sessions/s/checkpoint")
        assert b"whsec_" not in checkpoint.body
        again = (await restored(api, checkpoint.json)).json
        same = ("state", "reason", "started_at", "ended_at", "position", "config")
        assert [ended[name] for name in same] == [again[name] for name in same]
        assert (410, "session_ended") == (
            await api.post(f"/v1/sessions/{again['session_id']}/messages", {"role": "user", "content": "x"})
        ).problem
        figures = await app.services.store.read_figures(app.services.runtime.clock())
        assert (1, 0) == (len(receiver.webhook_events), figures.pending)


async def test_an_id_is_taken_once(api: RestClient) -> None:
    """Neither a session that is there nor one that was erased is replaced; without an id the server makes one."""
    await api.create()
    checkpoint = (await api.get("/v1/sessions/s/checkpoint")).json
    assert (409, "session_exists") == (await restored(api, checkpoint, session_id="s")).problem
    await api.delete("/v1/sessions/s")
    assert (410, "session_erased") == (await restored(api, checkpoint, session_id="s")).problem
    assert 201 == (await restored(api, checkpoint)).status


async def test_a_checkpoint_outlives_its_session(api: RestClient) -> None:
    """It is a copy: the original's erasure does not reach it."""
    await api.create()
    await api.send(*dialogue(1))
    checkpoint = (await api.get("/v1/sessions/s/checkpoint")).json
    await api.delete("/v1/sessions/s")
    await restored(api, checkpoint, session_id="t")
    assert ["Q1", "A1"] == context_texts(await api.context(session_id="t"))


@pytest.mark.parametrize("packed", [True, False])
async def test_a_checkpoint_may_be_larger_than_other_bodies(api: RestClient, packed: bool) -> None:
    """One of several MiB is restored, compressed or not; other routes keep their limit."""
    await api.create()
    for _ in range(3):
        await api.send(*(REPLY | {"turn_id": 1, "text": "word " * 40_000} for _ in range(4)))
    checkpoint = await api.get("/v1/sessions/s/checkpoint")
    body = b'{"session_id":"t","checkpoint":' + checkpoint.body + b"}"
    assert len(body) > 2 * 1024 * 1024
    headers = {"Content-Encoding": "gzip"} if packed else {}
    answered = await api.call(
        "POST", "/v1/restore", headers=headers, data=io.BytesIO(gzip.compress(body) if packed else body)
    )
    assert 201 == answered.status, answered.body
    assert await api.contents() == await api.contents("t")
    assert (413, "too_big") == (await api.post("/v1/sessions/s/fork", body)).problem


async def test_two_checkpoints_are_restored_at_a_time(api: RestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others wait, and are told to come back when neither ends; a turn that is free again is taken."""
    await api.create()
    checkpoint = (await api.get("/v1/sessions/s/checkpoint")).json
    going_on, end = [asyncio.Event(), asyncio.Event()], asyncio.Event()

    async def body(begun: asyncio.Event) -> AsyncIterator[bytes]:
        text = json.dumps({"checkpoint": checkpoint}).encode()
        yield text[:1]
        begun.set()
        await end.wait()
        yield text[1:]

    slow = [asyncio.create_task(api.call("POST", "/v1/restore", data=body(begun))) for begun in going_on]
    async with asyncio.timeout(30):
        await asyncio.gather(*(begun.wait() for begun in going_on))
        while not (await restored_at_once(api, checkpoint, monkeypatch)).headers.get("Retry-After"):
            pass  # until both have their turns
    waiting = asyncio.create_task(restored(api, checkpoint))
    assert not (await asyncio.wait([waiting], timeout=0.1))[0]
    end.set()
    assert [201] * 3 == [one.status for one in await asyncio.gather(*slow, waiting)]
    assert 201 == (await restored_at_once(api, checkpoint, monkeypatch)).status


async def restored_at_once(api: RestClient, checkpoint: Any, monkeypatch: pytest.MonkeyPatch) -> RestResponse:
    """The answer of a restore that is not to wait for long."""
    with monkeypatch.context() as patched:
        patched.setattr("voicemem.server.rest.checkpoints.SLOT_WAIT_S", 0.05)
        answered = await restored(api, checkpoint)
    assert answered.status == 201 or answered.problem == (429, "rate_limited")
    return answered


async def test_a_body_without_end_is_cut_off(api: RestClient) -> None:
    """Beyond 64 MiB nothing is read, unpacked or not."""
    bomb = gzip.compress(b" " * (64 * 1024 * 1024 + 1))
    answered = await api.call("POST", "/v1/restore", headers={"Content-Encoding": "gzip"}, data=bomb)
    assert (413, "too_big") == answered.problem
    assert "64 MiB" in answered.json["detail"]


BAD_BODIES: list[tuple[Any, tuple[int, str]]] = [
    (b"", (400, "invalid_json")),
    (b"{", (400, "invalid_json")),
    (b"[" * 100_000, (400, "invalid_field")),
    (b'{"checkpoint":' + b"[" * 100_000, (400, "invalid_checkpoint")),
    (b'{"x":' + b"[" * 100_000, (400, "invalid_field")),
    (b'{"checkpoint":{"voicemem":"\xff"}}', (400, "invalid_checkpoint")),
    ([], (400, "invalid_field")),
    ({}, (400, "invalid_field")),
    ({"checkpoint": {}, "session_id": "not one"}, (400, "invalid_field")),
    ({"checkpoint": 1}, (400, "invalid_checkpoint")),
    ({"checkpoint": {}}, (400, "invalid_checkpoint")),
    ({"checkpoint": {"voicemem": "checkpoint", "version": 2}}, (400, "invalid_checkpoint")),
]


@every_row(("body", "told"), BAD_BODIES, ids=range(len(BAD_BODIES)))
async def test_what_is_no_checkpoint_makes_no_session(api: RestClient, body: Any, told: tuple[int, str]) -> None:
    """Each gets its code."""
    assert told == (await api.post("/v1/restore", body)).problem
    assert [] == (await api.get("/v1/sessions")).json["sessions"]


async def test_a_schema_that_cannot_be_used_is_not_restored(api: RestClient) -> None:
    """Patches can make one; a new session begins with none that refers to nothing."""
    await api.create(working_memory={"schema": {"properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": {}}}})
    usable = (await api.get("/v1/sessions/s/checkpoint")).json
    await api.patch("/v1/sessions/s", {"working_memory": {"schema": {"$defs": None}}})
    broken = (await api.get("/v1/sessions/s/checkpoint")).json
    assert 201 == (await restored(api, usable, session_id="t")).status
    assert (400, "invalid_field") == (await restored(api, broken, session_id="u")).problem


@pytest.mark.parametrize("what", ["version", "events", "sha256", "session"])
async def test_a_checkpoint_that_was_tampered_with_is_refused(api: RestClient, what: str) -> None:
    """A word of the call, the configuration, the hash, the version: nothing can be another."""
    await api.create(user_id="ann")
    await api.send(*dialogue(1))
    checkpoint = (await api.get("/v1/sessions/s/checkpoint")).json
    checkpoint["version"] += what == "version"
    if what == "events":
        checkpoint["events"][0]["event"]["text"] = "Something else"
    if what == "sha256":
        checkpoint["sha256"] = "0" + checkpoint["sha256"][1:-1] + "x"
    if what == "session":
        checkpoint["session"]["config"]["user_id"] = "bob"
    assert (400, "invalid_checkpoint") == (await restored(api, checkpoint, session_id="t")).problem
    assert (404, "unknown_session") == (await api.get("/v1/sessions/t")).problem


async def test_what_calls_out_needs_admin(serve: Serve) -> None:
    """A checkpoint with a webhook, and a fork that gets one, are like a configuration with one."""
    app = await serve()
    admin, ingest = await client_with_key(app, "admin", "ingest", "read"), await client_with_key(app, "ingest")
    await admin.create(webhook={"url": "https://example.com/hook"})
    await admin.send(*dialogue(1))
    checkpoint = (await admin.get("/v1/sessions/s/checkpoint")).json
    assert (403, "forbidden") == (await restored(ingest, checkpoint)).problem
    assert 201 == (await restored(admin, checkpoint)).status
    calling = {"at_turn": 1, "webhook": {"url": "https://example.com/other"}}
    assert (403, "forbidden") == (await ingest.post("/v1/sessions/s/fork", calling)).problem
    assert 201 == (await ingest.post("/v1/sessions/s/fork", {"at_turn": 1})).status
