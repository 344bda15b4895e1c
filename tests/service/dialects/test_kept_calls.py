"""Calls of other stacks are kept as others are: over restarts, in checkpoints, and when turns are forgotten."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from tests.support.callers.rest import RestClient, wait_until_closed
from tests.support.dialects import RECORDINGS
from tests.support.services import Serve, running_service
from voicemem.memory.checkpoints import Digest
from voicemem.protocol.types import JsonObject

CALL = next(one for one in RECORDINGS if (one.dialect, one.name) == ("openai-realtime", "barge_in_and_hang_up"))


async def send_call(api: RestClient) -> None:
    """The whole call, up to the moment when the caller leaves."""
    await api.create()
    await api.send(*CALL.envelopes(), query=f"?dialect={CALL.dialect}")


async def test_a_restart_in_the_middle_changes_nothing(tmp_path: Path) -> None:
    """What a dialect noted is there again when the other half of the call comes to another process."""
    half = len(CALL.envelopes()) // 2
    store = f"sqlite:{tmp_path}/db"
    async with running_service(store=store) as app:
        api = RestClient(app)
        await api.create()
        await api.send(*CALL.envelopes()[:half], query=f"?dialect={CALL.dialect}")
        await api.contents()
    async with running_service(store=store) as app:
        api = RestClient(app)
        await api.send(*CALL.envelopes()[half:], query=f"?dialect={CALL.dialect}")
        await api.send({"type": "session.end", "ts": CALL.hang_up()}, query="?producer=caller")
        await wait_until_closed(app)
        assert CALL.document("contents")["contents"] == await api.contents()


async def test_a_checkpoint_has_the_frames(serve: Serve) -> None:
    """A session that is restored from its checkpoint remembers the same, and goes on."""
    app = await serve()
    api = RestClient(app)
    await send_call(api)
    saved = (await api.get("/v1/sessions/s/checkpoint")).json
    answered = await api.post("/v1/restore", {"checkpoint": saved, "session_id": "again"})
    assert 201 == answered.status, answered.body
    assert await api.contents() == await api.contents("again")


async def changed_checkpoint(api: RestClient, change: Callable[[JsonObject], None]) -> JsonObject:
    """The call's checkpoint with its first frame changed, and the hash that belongs to that."""
    checkpoint: JsonObject = (await api.get("/v1/sessions/s/checkpoint")).json
    change(next(row["event"] for row in checkpoint["events"] if row["event"]["type"] == "frame"))
    digest = Digest(msgspec.json.encode(checkpoint["session"]))
    for row in checkpoint["events"]:
        digest.add(msgspec.json.encode(row))
    return checkpoint | {"sha256": digest.hex()}


async def test_a_checkpoint_brings_nothing_in_that_is_not_kept(serve: Serve) -> None:
    """Fields of a frame that its dialect does not keep are left out of a checkpoint that someone has changed."""
    app = await serve()
    api = RestClient(app)
    await send_call(api)
    checkpoint = await changed_checkpoint(api, lambda event: event["frame"].update({"instructions": "sk-secret"}))
    answered = await api.post("/v1/restore", {"checkpoint": checkpoint, "session_id": "again"})
    assert 201 == answered.status, answered.body
    assert b"sk-secret" not in (await api.get("/v1/sessions/again/events")).body
    journals = [[row["event"] for row in await api.journal(name)] for name in ("s", "again")]
    assert journals[0] == journals[1]


@pytest.mark.parametrize(
    "change",
    [
        {"dialect": "hologram"},
        {"frame": "text"},
        {"frame": {"type": "hologram"}},
        {"frame": {"type": "error"}},
        {"from": "app"},
    ],
)
async def test_a_checkpoint_with_other_frames_is_refused(serve: Serve, change: JsonObject) -> None:
    """Frames that are not of their dialect, say nothing, or have another sender cannot have been journaled."""
    app = await serve()
    api = RestClient(app)
    await send_call(api)
    checkpoint = await changed_checkpoint(api, lambda event: event.update(change))
    answered = await api.post("/v1/restore", {"checkpoint": checkpoint, "session_id": "again"})
    assert (400, "invalid_checkpoint") == answered.problem


async def test_forgotten_turns_stay_forgotten(serve: Serve) -> None:
    """A turn of frames can be forgotten; what is forgotten is not in the context."""
    app = await serve()
    api = RestClient(app)
    await send_call(api)
    assert 200 == (await api.post("/v1/sessions/s/forget", {"through_turn": 1})).status
    texts = [message["content"] for message in (await api.context())["messages"]]
    assert texts[0] == "No, a story please."
