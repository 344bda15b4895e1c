"""A memory that cannot be reached while calls go through the proxy (docs/proxy.md)."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import json
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import ServerConnection

from tests.support.callers.rest import RestClient, wait_until_closed
from tests.support.callers.tees import vendor_at
from tests.support.servers.network_proxy import NetworkProxy
from tests.support.servers.voice_proxy import RunningProxy, proxy_to
from tests.support.waiting import eventually
from voicemem.app import App


def said(number: int) -> str:
    """What the user said, as the vendor tells it."""
    return json.dumps(
        {
            "type": "conversation.item.input_audio_transcription.completed",
            "event_id": f"event_{number}",
            "item_id": f"item_{number}",
            "content_index": 0,
            "transcript": f"Line {number}.",
        }
    )


async def say(caller: ClientConnection, upstream: ServerConnection, numbers: range) -> None:
    """The vendor sends, and the caller gets it."""
    for number in numbers:
        await upstream.send(said(number))
        assert said(number) == await caller.recv()


async def journal(app: App) -> list[dict[str, Any]]:
    return [row["event"] for row in await RestClient(app).journal("call")]


async def until_read(proxy: RunningProxy, frames: int) -> None:
    """Until so many frames were reduced."""

    async def count() -> bool:
        counts = proxy.server.memories.counts()
        return counts["taken"] >= frames

    await eventually(True, count)


@pytest.mark.parametrize("when", ["before", "during"])
async def test_what_has_no_room_is_a_gap(app: App, when: str) -> None:
    """Away for longer than there is room for: the call has all, and the journal says how many frames it has not."""
    async with vendor_at() as (url, vendor), NetworkProxy(app.ingest_address) as network:
        memory: dict[str, Any] = {
            "ingest_url": f"ws://{network.address}",
            "rest_url": "http://127.0.0.1:1",
            "buffer_bytes": 20_000,
        }
        if when == "before":
            await network.down()
        async with (
            proxy_to(None, {"openai-realtime": url}, **memory) as proxy,
            connect(f"{proxy.url('openai-realtime')}?voicemem_session=call") as caller,
        ):
            upstream = await vendor.connected
            if when == "during":
                await say(caller, upstream, range(10))
                await until_read(proxy, 10)
                await network.down()
            await say(caller, upstream, range(10, 300))
            await until_read(proxy, 290)
            assert 20_000 >= proxy.server.memories.room.used
            dropped = proxy.server.memories.counts()["dropped"]
            assert dropped
            await network.up()

            async def held() -> int:
                return proxy.server.memories.room.used

            await eventually(0, held)
            await say(caller, upstream, range(300, 310))
        await wait_until_closed(app, "call")
    gaps = [event for event in await journal(app) if event["type"] == "session.gap"]
    assert dropped == sum(gap["to_seq"] - gap["from_seq"] + 1 for gap in gaps)
    texts = [message["content"] for message in await RestClient(app).contents("call")]
    assert "Line 10." in str(texts)
    assert "Line 309." in str(texts)
