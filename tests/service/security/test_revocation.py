"""A key that is revoked while it is used: nothing acknowledged is lost, and nothing more is taken."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import hashlib
import itertools
import time
from pathlib import Path

import jwt
import pytest
from click.testing import CliRunner

from tests.support.callers.producer import Producer, connected_producer
from tests.support.callers.rest import RestClient, bearer_header, client_with_key, make_key
from tests.support.events import final_transcript
from tests.support.services import Serve
from tests.support.stores.failing import locked_database
from voicemem.app import App
from voicemem.cli import main
from voicemem.client import Client, RequestRefused
from voicemem.protocol.types import JsonObject

SOON_S = 1.0
"""Within this time a connection is closed, plus what a loaded machine needs."""


@pytest.fixture
async def app(serve: Serve, tmp_path: Path) -> App:
    """A service on a file."""
    return await serve(store=f"sqlite:{tmp_path}/v.db")


async def revoke_beside(tmp_path: Path, key: str) -> None:
    """By the command, as another process."""
    arguments = ["keys", "revoke", key.split("_")[1], "--store", f"sqlite:{tmp_path}/v.db"]
    result = await asyncio.to_thread(CliRunner().invoke, main, arguments)
    assert 0 == result.exit_code, result.output


async def stream_until_closed(producer: Producer) -> tuple[int | None, list[JsonObject]]:
    """Send one event after the other, without waiting, until the server closes; what it said."""

    async def send() -> None:
        for seq in itertools.count(1):
            await producer.send(final_transcript(seq))
            await asyncio.sleep(0.001)

    sending = asyncio.create_task(send())
    try:
        return await producer.closed()
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)


@pytest.mark.parametrize("way", ["rest", "command line"])
@pytest.mark.parametrize("first", ["header", "frame"])
async def test_a_key_that_is_revoked_in_the_middle_of_a_stream(app: App, tmp_path: Path, way: str, first: str) -> None:
    """The connection is closed with 1008 within a second, and the journal has what was acknowledged, in order."""
    admin = await client_with_key(app, "admin")
    key = await make_key(app, "ingest")
    async with connected_producer(app, bearer_header(key) if first == "header" else {}) as producer:
        if first == "frame":
            await producer.send({"type": "auth", "token": key})
        await producer.open("s")
        streaming = asyncio.create_task(stream_until_closed(producer))
        await asyncio.sleep(0.2)
        if way == "rest":
            assert 204 == (await admin.delete(f"/v1/keys/{key.split('_')[1]}")).status
        else:
            await revoke_beside(tmp_path, key)
        async with asyncio.timeout(SOON_S + 4):
            code, frames = await streaming
    assert (1008, "unauthorized") == (code, frames[-1]["code"])
    acked = [frame["seq"] for frame in frames[:-1]]
    assert {"ack"} == {frame["type"] for frame in frames[:-1]}
    assert list(range(1, acked[-1] + 1)) == [row["seq"] for row in await admin.journal() if row["seq"]]
    assert (401, "unauthorized") == (
        await RestClient(app, key).post("/v1/sessions/s/events", [final_transcript(acked[-1] + 1)])
    ).problem


async def test_the_connections_of_other_keys_go_on(app: App, tmp_path: Path) -> None:
    """Only what the key opened is closed, its tokens' connections too."""
    revoked, kept = await make_key(app, "ingest", "read"), await make_key(app, "ingest")
    await (await client_with_key(app, "admin")).create()
    _, key_id, secret = revoked.split("_")
    claims = {"sub": "s", "exp": int(time.time()) + 600}
    token = jwt.encode(claims, hashlib.sha256(secret.encode()).digest(), "HS256", headers={"kid": key_id})
    async with (
        connected_producer(app, bearer_header(revoked)) as one,
        connected_producer(app, bearer_header(token)) as two,
        connected_producer(app, bearer_header(kept)) as other,
    ):
        for name, producer in (("one", one), ("two", two), ("other", other)):
            await producer.open("s", producer=name)
        await revoke_beside(tmp_path, revoked)
        assert [1008, 1008] == [(await producer.closed())[0] for producer in (one, two)]
        await other.store(final_transcript(1))


async def test_a_store_that_hangs_holds_up_no_closing(app: App, tmp_path: Path) -> None:
    """What cannot be committed is not acknowledged; the connection is closed all the same."""
    key = await make_key(app, "ingest")
    async with connected_producer(app, bearer_header(key)) as producer:
        await producer.open("s")
        app.services.access.directory = Revoked(key.split("_")[1])  # type: ignore[assignment]
        with locked_database(f"{tmp_path}/v.db"):
            await producer.send(final_transcript(1))
            async with asyncio.timeout(SOON_S + 4):
                code, frames = await producer.closed()
    assert (1008, ["unauthorized"]) == (code, [frame["code"] for frame in frames])


class Revoked:
    """A directory whose one key was revoked just now: a store that is held takes no revocation."""

    def __init__(self, key_id: str) -> None:
        self.key_id = key_id

    async def revoked_keys(self, _: object) -> frozenset[str]:
        return frozenset({self.key_id})


async def test_the_client_is_told_and_does_not_come_back(app: App) -> None:
    """The Python client ends with the code, and has the acks of what was stored."""
    admin = await client_with_key(app, "admin")
    key = await make_key(app, "ingest")
    async with Client(f"ws://{app.ingest_address}", key=key) as client:
        session = await client.open("s")
        await session.send({"type": "asr", "turn_id": 1, "text": "Hi.", "final": True})
        assert 204 == (await admin.delete(f"/v1/keys/{key.split('_')[1]}")).status

        async def go_on() -> None:
            while True:  # the close is on its way
                await session.send({"type": "asr", "turn_id": 1, "text": "Hi.", "final": True})

        with pytest.raises(RequestRefused) as refused:
            await asyncio.wait_for(go_on(), 10)
    assert "unauthorized" == refused.value.code
