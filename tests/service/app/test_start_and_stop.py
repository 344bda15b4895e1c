"""The whole service: it starts, is killed, comes back, and stops (docs/ingest.md, docs/storage.md)."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path

import pytest

from tests.support.callers.producer import connected_producer, open_producer
from tests.support.callers.rest import RestClient
from tests.support.events import LARGE_TEXT, final_transcript, session_end
from tests.support.services import Serve, running_service
from tests.support.stores.contract import append_batch
from tests.support.stores.failing import locked_database, store_without_room
from tests.support.waiting import eventually
from voicemem.app import App
from voicemem.config.service import Address
from voicemem.config.session import SessionPatch
from voicemem.errors import CannotStart
from voicemem.runtime import now_ms
from voicemem.store.append_rules import Offer
from voicemem.store.records import DisconnectedProducer
from voicemem.store.sqlite.store import SqliteStore
from voicemem.store.streams import SessionEnding

HOUR_MS = 3_600_000


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Where a database may be made."""
    return str(tmp_path / "db")


# Restarts, in this process


async def test_a_restart_keeps_the_store(path: str) -> None:
    """Sessions, seqs and the incarnation are the store's, not the process's."""
    incarnations = set()
    for number in range(1, 4):
        async with running_service(store=f"sqlite:{path}") as app, connected_producer(app) as producer:
            ready = await producer.open()
            assert (number, number, number) == (ready["epoch"], ready["next_seq"], ready["next_turn"])
            incarnations.add(ready["incarnation"])
            await producer.store(final_transcript(number))
    assert 1 == len(incarnations)


async def test_time_without_a_server_is_not_silence(path: str) -> None:
    """A session that was silent for less than its timeout before the service went is not closed when it returns."""
    store, then = SqliteStore(path), now_ms() - HOUR_MS
    opened = await store.journal.open_producer(
        "default", "s", "main", SessionPatch({"idle_timeout": 1}, {}), None, then
    )
    await store.journal.leave([DisconnectedProducer(opened.stream.key, "main", opened.epoch)], then)
    await store.close_store()
    began = now_ms()
    async with running_service(store=f"sqlite:{path}") as app:
        assert "running" == await RestClient(app).state()
        await eventually("ended", RestClient(app).state)
        assert 900 <= now_ms() - began


async def test_a_producer_that_was_cut_off_is_waited_for(path: str) -> None:
    """A connection that a crash has cut counts as gone from the restart on."""
    store, then = SqliteStore(path), now_ms() - HOUR_MS
    await store.journal.open_producer("default", "s", "main", SessionPatch({"idle_timeout": 0.3}, {}), None, then)
    await store.close_store()
    async with running_service(store=f"sqlite:{path}") as app:
        await eventually("ended", RestClient(app).state)
        assert "idle" == (await RestClient(app).session())["reason"]


async def test_a_restart_closes_what_had_ended(path: str) -> None:
    """An end that was committed closes its session at once, though its grace has not passed."""
    store = SqliteStore(path)
    opened = await store.journal.open_producer(
        "default", "s", "main", SessionPatch({"idle_timeout": 0}, {}), None, now_ms()
    )
    offer = Offer(1, now_ms(), json.dumps(session_end(1)).encode(), ending=SessionEnding(5, "hangup"))
    await append_batch(store.journal, opened.stream.key, "main", 1, [offer], now_ms())
    await store.close_store()
    async with running_service(store=f"sqlite:{path}") as app:
        await eventually("ended", RestClient(app).state, timeout_s=1)
        assert "hangup" == (await RestClient(app).session())["reason"]


# Starting


async def test_both_servers_listen_on_the_ports_that_they_say(serve: Serve) -> None:
    """Port 0 takes a free port, which the addresses name."""
    app = await serve()
    assert 0 not in (app.rest_address.port, app.ingest_address.port)
    assert 200 == (await RestClient(app).get("/readyz")).status
    async with connected_producer(app) as producer:
        await producer.open()


async def test_one_server_per_file(path: str) -> None:
    """A second service on a file does not start, and does the first no harm; after the first it does."""
    async with running_service(store=f"sqlite:{path}") as app, open_producer(app) as producer:
        with pytest.raises(CannotStart, match="already using"):
            async with running_service(store=f"sqlite:{path}"):
                pass
        await producer.store(final_transcript(1))
    async with running_service(store=f"sqlite:{path}"):
        pass


@pytest.mark.parametrize("port", ["rest", "ingest"])
async def test_a_port_that_is_taken(path: str, port: str) -> None:
    """The service does not start, and leaves neither a listener nor the file behind."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = Address("127.0.0.1", taken.getsockname()[1])
        with pytest.raises(OSError, match=f"^--{port}: .*in use"):
            async with running_service(store=f"sqlite:{path}", **{port: address}):
                pass
    async with running_service(store=f"sqlite:{path}", **{port: address}) as app:
        assert 200 == (await RestClient(app).get("/livez")).status


async def test_without_keys_only_loopback(path: str) -> None:
    """No one else may reach a service without keys, unless the operator insists; a key is enough."""
    everywhere = Address("0.0.0.0", 0)
    for address in ({"rest": everywhere}, {"ingest": everywhere}):
        with pytest.raises(CannotStart, match="loopback"):
            async with running_service(store=f"sqlite:{path}", **address):
                pass
    for more in ({"insecure": True}, {"admin_key": "k" * 40}):
        async with running_service(store=f"sqlite:{path}", rest=everywhere, ingest=everywhere, **more):
            pass


async def test_a_background_task_that_fails_is_noted(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    """A service without its sweeper or outbox must not go on as if all were well."""
    app = await serve()
    assert not app.failed.is_set()

    async def fail() -> None:
        raise ValueError

    app.run_in_background(fail())
    await asyncio.wait_for(app.failed.wait(), 1)
    assert "Background work has failed" in caplog.text


# A store that is down


async def test_the_sweeper_outlives_an_outage(serve: Serve) -> None:
    """What could not be closed while the store was down is closed afterwards."""
    app = await serve()
    api = RestClient(app)
    await api.create(idle_timeout=0.3, name=LARGE_TEXT)
    async with store_without_room(app):
        assert 503 == (await api.post("/v1/sessions/s/events", [final_transcript(1, text=LARGE_TEXT)])).status
        await api.get("/livez")
    await eventually("ended", api.state)
    assert not app.failed.is_set()


async def test_a_stop_while_the_store_is_down(path: str) -> None:
    """The service comes to its end, and what was acknowledged is there afterwards."""
    async with running_service(store=f"sqlite:{path}") as app:
        async with open_producer(app) as producer:
            await producer.store(*(final_transcript(seq) for seq in range(1, 150)))
            await RestClient(app).contents()
        assert isinstance(app.services.store, SqliteStore)
        await app.services.store.database.write(lambda c: c.raw.pragma("max_page_count", c.raw.pragma("page_count")))
    async with running_service(store=f"sqlite:{path}") as app, connected_producer(app) as producer:
        assert 150 == (await producer.open())["next_seq"]


# Stopping


async def test_a_stop_lets_go_of_everything(path: str) -> None:
    """After the block no one listens and the file is free."""
    async with running_service(store=f"sqlite:{path}") as app:
        rest, ingest = app.rest_address, app.ingest_address
    for address in (rest, ingest):
        with pytest.raises(OSError, match=r"."):
            await asyncio.open_connection(*address)
    assert {task for task in asyncio.all_tasks() if task is not asyncio.current_task()} == set()


async def test_a_draining_service_is_not_ready(serve: Serve, path: str) -> None:
    """While acks are flushed `readyz` turns traffic away, and `livez` answers."""
    app = await serve(store=f"sqlite:{path}")
    async with open_producer(app) as producer:
        with locked_database(path):
            await producer.send(final_transcript(1))
            await eventually(True, lambda: taken_in(app))
            stopping = asyncio.create_task(app.stop())
            await producer.expect("goaway")
            assert (503, "draining") == (await RestClient(app).get("/readyz")).problem
            assert 200 == (await RestClient(app).get("/livez")).status
        await producer.expect("ack", seq=1)
        assert (1012, []) == await producer.closed()
        await stopping


async def taken_in(app: App) -> bool:
    """Whether something is received that is not answered yet."""
    return any(one.unanswered for one in app.ingest.connections)


async def test_a_stop_keeps_sessions_running(path: str) -> None:
    """A restart for an upgrade ends no call: the producer comes back to the next process."""
    async with (
        running_service(store=f"sqlite:{path}") as app,
        open_producer(app, session={"idle_timeout": 5}) as producer,
    ):
        await producer.store(final_transcript(1))
        stopping = asyncio.create_task(app.stop())
        assert 1012 == (await producer.closed())[0]
        await stopping
    async with running_service(store=f"sqlite:{path}") as app, connected_producer(app) as producer:
        ready = await producer.open()
        assert ("running", 2) == (ready["state"], ready["next_seq"])
