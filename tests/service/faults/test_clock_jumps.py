"""Faults of time (list F): the clock of a running service jumps, or two nodes disagree. Closes, leases, retries and
keys stay sane: what was acknowledged is there once and in order, every close is told under one id."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.callers.producer import connected_producer, open_producer
from tests.support.callers.rest import RestClient, client_with_key, make_key
from tests.support.events import final_transcript, session_end
from tests.support.servers.webhook_receiver import (
    Reply,
    WebhookEvent,
    WebhookReceiver,
    body_without_send_time,
    webhook_receiver,
)
from tests.support.services import Serve, node_on, running_service
from tests.support.waiting import eventually
from voicemem.app import App
from voicemem.store.deliveries import Delivery
from voicemem.store.port import Store
from voicemem.store.sqlite.store import SqliteStore
from voicemem.store.streams import SessionEnding
from voicemem.webhooks.outbox import LEASE_MS

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
JUMPS = [
    pytest.param(-HOUR_MS, id="back", marks=pytest.mark.fault(63)),
    pytest.param(DAY_MS, id="forward", marks=pytest.mark.fault(64)),
]


class Wall:
    """The wall clock of a machine, which someone sets."""

    def __init__(self, off_ms: int = 0) -> None:
        self.off_ms = off_ms

    def __call__(self) -> int:
        return time.time_ns() // 1_000_000 + self.off_ms


@pytest.fixture
def wall() -> Wall:
    """The clock that the services of a test share."""
    return Wall()


@pytest.fixture
async def hook() -> AsyncIterator[WebhookReceiver]:
    """A receiver of webhooks."""
    async with webhook_receiver() as receiver:
        yield receiver


async def deliveries(store: Store, session_id: str = "s") -> list[Delivery]:
    stream = await store.journal.find_session("default", session_id)
    assert stream is not None
    return await store.deliveries.list_deliveries(stream.key)


async def told(hook: WebhookReceiver) -> set[str]:
    return {webhook_event.json["sid"] for webhook_event in hook.webhook_events}


def contents_by_id(webhook_events: list[WebhookEvent]) -> dict[str, int]:
    """How many different bodies came under each noticeId."""
    return {
        one.id: len({body_without_send_time(other.body) for other in webhook_events if other.id == one.id})
        for one in webhook_events
    }


async def state(api: RestClient, session_id: str = "s") -> tuple[str, str | None]:
    session = await api.session(session_id)
    return session["state"], session["reason"]


# The clock jumps


@pytest.mark.parametrize("jump_ms", JUMPS)
async def test_a_call_goes_on(serve: Serve, wall: Wall, hook: WebhookReceiver, jump_ms: int) -> None:
    """A call in which the clock jumps is not closed by that; its events keep their order, its end is told once."""
    app = await serve(wall, webhook_url=hook.url())
    async with open_producer(app, session={"idle_timeout": 5}) as producer:
        await producer.store(final_transcript(1), final_transcript(2))
        wall.off_ms += jump_ms
        await producer.store(final_transcript(3), final_transcript(2), final_transcript(4))
        await asyncio.sleep(0.5)  # more than one sweep
        assert ("running", None) == await state(RestClient(app))
        await producer.store(session_end(5))
        await hook.one()
    journal = await RestClient(app).journal()
    assert [1, 2, 3, 4, 5, None] == [row["seq"] for row in journal]
    assert ["Line 1.", "Line 2.", "Line 3.", "Line 4."] == [one["content"] for one in await RestClient(app).contents()]
    assert [(1, "delivered")] == [(len(one.attempts), one.state) for one in await deliveries(app.services.store)]


@pytest.mark.fault(63)
async def test_silence_does_not_end_early_when_the_clock_goes_back(serve: Serve, wall: Wall) -> None:
    """A silent session is closed later by as much as the clock was set back, but it is closed."""
    app = await serve(wall)
    api = RestClient(app)
    await api.create(idle_timeout=60)
    await api.send(final_transcript(1))
    wall.off_ms -= HOUR_MS
    await asyncio.sleep(0.5)
    assert ("running", None) == await state(api)
    wall.off_ms += HOUR_MS + 61_000
    await eventually(("ended", "idle"), lambda: state(api))


@pytest.mark.fault(63)
async def test_time_without_a_server_is_no_silence_when_the_clock_went_back(tmp_path: Path, wall: Wall) -> None:
    """A restart counts silence again by the clock of its own: nothing waits for the hour to pass again."""
    settings = {"store": f"sqlite:{tmp_path}/calls.db"}
    async with running_service(wall, **settings) as app:
        await RestClient(app).create(idle_timeout=1)
    wall.off_ms -= HOUR_MS
    async with running_service(wall, **settings) as app:
        assert ("running", None) == await state(RestClient(app))
        await eventually(("ended", "idle"), lambda: state(RestClient(app)))


@pytest.mark.fault(64)
async def test_a_session_that_seems_silent_for_a_day_comes_back(
    serve: Serve, wall: Wall, hook: WebhookReceiver
) -> None:
    """The jump closes it as idle, which its producer undoes: nothing is lost, and each close has its own webhook."""
    app = await serve(wall, webhook_url=hook.url())
    async with open_producer(app) as producer:
        await producer.store(final_transcript(1))
    await eventually(False, lambda: is_connected(app))
    wall.off_ms += DAY_MS
    await eventually(("ended", "idle"), lambda: state(RestClient(app)))
    async with connected_producer(app) as producer:
        ready = await producer.open()
        assert (2, "running") == (ready["next_seq"], ready["state"])
        await producer.store(final_transcript(2), session_end(3))
    await hook.wait(2)
    kinds = [row["event"]["type"] for row in await RestClient(app).journal()]
    assert ["asr", "session.closed", "session.reopened", "asr", "session.end", "session.closed"] == kinds
    assert [1, 1] == list(contents_by_id(hook.webhook_events).values())


async def is_connected(app: App) -> bool:
    return bool(app.services.presence.connected)


@pytest.mark.parametrize("jump_ms", JUMPS)
async def test_a_retry_comes_once(serve: Serve, wall: Wall, hook: WebhookReceiver, jump_ms: int) -> None:
    """A webhook event that waits when the clock jumps comes too early or too late, but it comes, and is then done."""
    hook.replies = [Reply(503, {"Retry-After": "600"})]
    app = await serve(wall, webhook_url=hook.url())
    await RestClient(app).create()
    await RestClient(app).end()
    await hook.one()
    await eventually(1, lambda: attempts(app))
    wall.off_ms += jump_ms
    if jump_ms < 0:
        await asyncio.sleep(1.5)  # more than one look of the outbox
        assert 1 == len(hook.webhook_events)
        wall.off_ms += HOUR_MS + 13 * MINUTE_MS
    await hook.wait(2)
    await eventually([[503, 200]], lambda: statuses(app))
    assert [1] == list(contents_by_id(hook.webhook_events).values())


async def attempts(app: App) -> int:
    return sum(len(one.attempts) for one in await deliveries(app.services.store))


async def statuses(app: App) -> list[list[int | None]]:
    return [[attempt.status for attempt in one.attempts] for one in await deliveries(app.services.store)]


@pytest.mark.parametrize("jump_ms", JUMPS)
async def test_a_lease_of_a_dead_process_holds_up_nobody(
    tmp_path: Path, wall: Wall, hook: WebhookReceiver, jump_ms: int
) -> None:
    """What a process had leased when it died is sent by the next at once, whatever the clock says by then."""
    path = f"{tmp_path}/calls.db"
    async with running_service(wall, store=f"sqlite:{path}") as app:
        await RestClient(app).create()
    store = SqliteStore(path)
    await store.directory.set_operator_endpoint(hook.url(), None)
    stream = await store.journal.find_session("default", "s")
    assert stream is not None
    assert await store.journal.close_session(stream.key, SessionEnding(wall(), "left"), "n1", wall())
    assert 1 == len(await store.outbox.claim_deliveries(wall(), LEASE_MS, {}, 10))
    await store.close_store()
    wall.off_ms += jump_ms
    async with running_service(wall, store=f"sqlite:{path}", webhook_url=hook.url()) as app:
        assert "n1" == (await hook.one()).id
        await eventually([[200]], lambda: statuses(app))


@pytest.mark.parametrize("jump_ms", JUMPS)
async def test_keys_know_no_time(serve: Serve, wall: Wall, jump_ms: int) -> None:
    """A key that was made or revoked before the jump is so after it."""
    app = await serve(wall)
    good, text = await client_with_key(app, "admin"), await make_key(app, "admin")
    revoked = next(key for key in await app.services.store.directory.list_keys() if text.split("_")[1] == key.id)
    assert await app.services.store.directory.revoke_key(revoked.id, wall())
    wall.off_ms += jump_ms
    assert 200 == (await good.get("/v1/sessions")).status
    assert 401 == (await RestClient(app, text).get("/v1/sessions")).status
    later = await client_with_key(app, "read")
    assert 200 == (await later.get("/v1/sessions")).status


# Two nodes


@pytest.mark.fault(13)
@pytest.mark.fault(65)
async def test_two_nodes_ten_minutes_apart(tmp_path: Path, hook: WebhookReceiver) -> None:
    """Producers on either node, closes, retries and reads: all is there once and in order, each close under one id."""
    hook.replies = [Reply(503)] * 3
    store = SqliteStore(f"{tmp_path}/calls.db")
    url = hook.url()
    async with (
        node_on(store, Wall(), webhook_url=url) as slow,
        node_on(store, Wall(10 * MINUTE_MS), webhook_url=url) as fast,
    ):
        await both_producing(slow, fast)
        await change_nodes(slow, fast)
        await eventually({"shared", *(f"s{number}" for number in range(10))}, lambda: told(hook))
        await eventually(0, lambda: undelivered(store))
        for app in (slow, fast):
            assert [1, 1, 2, 2, 3] == sorted(await seqs(app, "shared"))
            for number in range(10):
                assert [1, 2, 3, 4] == await seqs(app, f"s{number}")
    await store.close_store()
    assert {1} == set(contents_by_id(hook.webhook_events).values())
    by_close = {
        (webhook_event.json["sid"], webhook_event.payload["stop_ts"], webhook_event.id)
        for webhook_event in hook.webhook_events
    }
    assert len(by_close) == len({webhook_event.id for webhook_event in hook.webhook_events})


async def both_producing(slow: App, fast: App) -> None:
    """One session with a producer on each node."""
    async with open_producer(slow, "shared", producer="a") as one, open_producer(fast, "shared", producer="b") as other:
        await one.store(final_transcript(1), final_transcript(2))
        await other.store(final_transcript(1), final_transcript(2))
        await one.store(final_transcript(3))
        for app in (slow, fast):
            assert [1, 1, 2, 2, 3] == sorted(await seqs(app, "shared"))


async def change_nodes(slow: App, fast: App) -> None:
    """Sessions that begin on one node and end on the other."""
    for number in range(10):
        here, there = (slow, fast) if number % 2 else (fast, slow)
        async with open_producer(here, f"s{number}") as producer:
            await producer.store(final_transcript(1), final_transcript(2))
        async with connected_producer(there) as producer:
            ready = await producer.open(f"s{number}")
            assert 3 == ready["next_seq"]
            await producer.store(final_transcript(2), final_transcript(3), session_end(4))


async def seqs(app: App, session_id: str) -> list[int]:
    return [row["seq"] for row in await RestClient(app).journal(session_id) if row["seq"] is not None]


async def undelivered(store: SqliteStore) -> int:
    query = "select count(*) from deliveries where state = 'pending'"
    return int(await store.database.read(lambda connection: connection.one(query)[0]))
