"""What nodes may do together: two services on one store of each engine, as callers and receivers see them."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator

import pytest

from tests.support.callers.rest import RestClient
from tests.support.events import final_transcript
from tests.support.servers.webhook_receiver import Reply, webhook_receiver
from tests.support.services import node_on
from tests.support.waiting import eventually
from voicemem.app import App
from voicemem.store.port import Store
from voicemem.webhooks.outbox import MAX_IN_FLIGHT

LOOPBACK = ("127.0.0.0/8",)


@pytest.fixture
async def nodes(two_handles: tuple[Store, Store]) -> AsyncIterator[tuple[App, App]]:
    """Two services."""
    one, other = two_handles
    async with node_on(one, allow_addresses=LOOPBACK) as here, node_on(other, allow_addresses=LOOPBACK) as there:
        yield here, there


async def test_a_receiver_gets_no_more_at_a_time_than_from_one_node(nodes: tuple[App, App]) -> None:
    """However slow it is, and whichever node the sessions end on; each webhook event comes once."""
    gate, count = asyncio.Event(), 5 * MAX_IN_FLIGHT
    async with webhook_receiver() as hook:
        hook.otherwise = Reply(gate=gate)
        for number in range(count):
            api = RestClient(nodes[number % 2])
            await api.create(f"s{number}", webhook={"url": hook.url()})
            await api.end(f"s{number}")
        await hook.wait(MAX_IN_FLIGHT)
        assert [0, 0] == [await app.services.outbox.start_due() for app in nodes]
        assert MAX_IN_FLIGHT == len(hook.webhook_events)
        gate.set()
        await hook.wait(count, timeout_s=60)
        assert MAX_IN_FLIGHT == hook.most["/hook"]
        assert count == len({webhook_event.id for webhook_event in hook.webhook_events}) == len(hook.webhook_events)


async def test_a_project_has_its_bytes_on_all_nodes_together(two_handles: tuple[Store, Store]) -> None:
    """What it stores through one counts on the other, and so does what is erased there."""
    numbers = itertools.count(1)
    async with (
        node_on(two_handles[0], stored_bytes=3_000) as here,
        node_on(two_handles[1], stored_bytes=3_000) as there,
    ):
        one, other = RestClient(here), RestClient(there)
        await one.create("a")
        await other.create("b")
        await one.send(final_transcript(1, text="x" * 3_000), session_id="a")

        async def begun(api: RestClient) -> int:
            return (await api.post("/v1/sessions", {"session_id": f"s{next(numbers)}"})).status

        await eventually(429, lambda: begun(other))
        refused = await other.post("/v1/sessions/b/events", [final_transcript(1)])
        assert ["quota_exceeded"] == [error["code"] for error in refused.json["errors"]]
        await other.delete("/v1/sessions/a")
        await eventually(201, lambda: begun(one))
