"""What a client says in the log about an outage, and how it comes back."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import logging

import pytest

from tests.support.callers.client_sessions import (
    acknowledged_seqs,
    client_for,
    send_transcripts,
)
from tests.support.servers.listeners import box_that_forbids_websockets
from tests.support.servers.network_proxy import NetworkProxy
from tests.support.waiting import eventually
from voicemem.app import App


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if (record.name, record.levelno) == ("voicemem.client", logging.WARNING)
    ]


async def test_each_new_reason_is_logged_once(app: App, caplog: pytest.LogCaptureFixture) -> None:
    """The first failure is logged with what to check, each other reason too, and the websocket's return."""

    async def said(text: str) -> bool:
        return any(text in line for line in logged(caplog))

    async with NetworkProxy(app.ingest_address) as proxy:
        await proxy.down()
        async with client_for(proxy.address) as client:
            opening = asyncio.create_task(client.open("s"))
            await eventually(True, lambda: said("connection refused. Check that `voicemem serve`"))

            proxy.to_client.limit_bytes = 1
            await proxy.up()
            await eventually(True, lambda: said("the connection was closed before the answer was complete. Check"))
            proxy.to_client.limit_bytes = None
            await opening
            await eventually(True, lambda: said("the websocket is back after"))
    lines = logged(caplog)
    assert (len(lines), len(set(lines))) == (3, 3)
    assert all(line.startswith(f"ws://{proxy.address}/v1/ingest: ") for line in lines)


async def test_the_log_says_when_events_go_over_http(app: App, caplog: pytest.LogCaptureFixture) -> None:
    """It says why the websocket cannot be used, then that HTTP is, once something has gone that way."""
    async with box_that_forbids_websockets() as blocked:
        async with client_for(blocked, app.rest_address) as client:
            await acknowledged_seqs(send_transcripts(await client.open("s"), [1, 2]))
        first, second = logged(caplog)
        assert f"ws://{blocked}/v1/ingest: HTTP status 403: " in first
        assert f"http://{app.rest_address}: events go over HTTP until the websocket is back" == second


async def test_the_websocket_is_back_while_a_request_hangs(app: App) -> None:
    """A request that gets no answer does not keep the websocket waiting that works again."""
    async with (
        NetworkProxy(app.ingest_address) as ws,
        NetworkProxy(app.rest_address) as rest,
        client_for(ws.address, rest.address, fallback_after=1, request_timeout_s=60.0) as client,
    ):
        session = await client.open("s")
        await acknowledged_seqs(send_transcripts(session, [1]))
        rest.to_client.swallow = True
        await ws.down()
        acks = send_transcripts(session, [2, 3])
        await eventually(True, lambda: has_accepted(rest))
        await ws.up()
        assert [2, 3] == await acknowledged_seqs(acks)
        assert "websocket" == client.transport


async def has_accepted(proxy: NetworkProxy) -> bool:
    return proxy.accepted > 0
