"""The whole service: it starts, is killed, comes back, and stops (design, sections 5 and 9)."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import NamedTuple, cast

import pytest
from appends import append
from callers import Caller, service, until
from producers import BIG, JsonObject, Producer, connected, end, full_store, held_store, producing, said
from services import Serve

from voicemem.app import App
from voicemem.config.secrets import SessionPatch
from voicemem.config.service import Address, parse_address
from voicemem.errors import CannotStart
from voicemem.runtime import now_ms
from voicemem.store.admission import Offer
from voicemem.store.sqlite import SqliteStore
from voicemem.store.streams import SessionEnding

CALLS = Path(__file__).parent.parent / "fixtures" / "voicemem"
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("VOICEMEM_")}
HOUR_MS = 3_600_000


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Where a database may be made."""
    return str(tmp_path / "db")


def recorded(name: str) -> list[JsonObject]:
    """The events of a recorded call."""
    return [json.loads(line) for line in (CALLS / f"{name}.jsonl").read_bytes().splitlines()]


def remembered(name: str) -> list[JsonObject]:
    """The memory that a recorded call must give."""
    return list(json.loads((CALLS / f"{name}.contents.json").read_bytes())["contents"])


async def session_state(api: Caller, session_id: str = "s") -> str:
    """Whether a session runs."""
    return str((await api.session(session_id))["state"])


# A service in a process of its own


class Process(NamedTuple):
    """A running `voicemem serve`."""

    process: asyncio.subprocess.Process
    ingest_address: Address
    rest_address: Address

    @property
    def api(self) -> Caller:
        """A caller of it."""
        return Caller(cast(App, self))

    def kill(self) -> None:
        """As the kernel does it."""
        self.process.send_signal(signal.SIGKILL)

    async def ended(self) -> int:
        """Its exit code."""
        return await asyncio.wait_for(self.process.wait(), 15)


@asynccontextmanager
async def serving(path: str) -> AsyncIterator[Process]:
    """A service on a file, which is killed at the end of the block if it still runs."""
    command = ("serve", "--store", f"sqlite:{path}", "--rest", "127.0.0.1:0", "--ingest", "127.0.0.1:0")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "voicemem", *command), stdout=asyncio.subprocess.PIPE, env=ENVIRONMENT
    )
    assert process.stdout is not None
    try:
        lines = [(await asyncio.wait_for(process.stdout.readline(), 20)).decode() for _ in range(3)]
        ingest, rest = (parse_address(line.split("//")[1].split("/")[0]) for line in lines[1:])
        yield Process(process, ingest, rest)
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


async def stream_until(producer: Producer, events: list[JsonObject], enough: int) -> int:
    """Send events, and read acks meanwhile until this many are covered; the seq of the last one read."""
    sending = asyncio.create_task(producer.send(*events))
    acked = 0
    while acked < enough:
        acked = (await producer.expect("ack"))["seq"]
    sending.cancel()
    await asyncio.wait({sending})
    return acked


async def test_a_call_survives_kills(path: str) -> None:
    """A producer that resumes by next_seq after every kill gets the memory of an undisturbed call."""
    call, acked = recorded("long_call"), 0
    for enough in (300, 1200):
        async with serving(path) as process, connected(process) as producer:
            ready = await producer.open()
            assert ready["next_seq"] > acked
            assert newest_turn(call[: ready["next_seq"] - 1]) + 1 == ready["next_turn"]
            acked = await stream_until(producer, call[ready["next_seq"] - 1 : enough + 300], enough)
            process.kill()
            await process.ended()
    async with serving(path) as process, connected(process) as producer:
        await producer.store(*call[(await producer.open())["next_seq"] - 1 :])
        await until("ended", lambda: session_state(process.api))
        assert list(range(1, len(call) + 1)) == [row["seq"] for row in (await process.api.journal())[:-1]]
        assert remembered("long_call") == await process.api.contents()


def newest_turn(events: list[JsonObject]) -> int:
    """The highest turn of these events."""
    return max([event.get("turn_id", 0) for event in events], default=0)


async def test_many_calls_survive_a_kill(path: str) -> None:
    """Of every session what was acknowledged is there after the kill, in order and once."""
    names = [f"s{number}" for number in range(20)]
    async with serving(path) as process, connected(process) as producer:
        for name in names:
            await producer.open(name)
        sending = asyncio.create_task(send_all(producer, names))
        acked = dict.fromkeys(names, 0)
        while min(acked.values()) < 20:
            ack = await producer.expect("ack")
            acked[ack["session_id"]] = ack["seq"]
        process.kill()
        await process.ended()
        sending.cancel()
        await asyncio.wait({sending})
    async with serving(path) as process:
        for name in names:
            seqs = [row["seq"] for row in await process.api.journal(name)]
            assert list(range(1, len(seqs) + 1)) == seqs
            assert len(seqs) >= acked[name]


async def send_all(producer: Producer, names: list[str]) -> None:
    """Events of all sessions in turn, for ever."""
    for seq in itertools.count(1):
        await producer.send_together(*(said(seq, session_id=name) for name in names))


async def test_an_end_survives_a_kill(path: str) -> None:
    """A session whose end was committed, but not its close, is closed by the restart as that end said."""
    async with serving(path) as process, producing(process, producer="llm") as llm, connected(process) as asr:
        await llm.store(said(1))
        await asr.open(producer="asr")
        await asr.store(end(1, ts=77, reason="hangup"))
        assert "running" == await session_state(process.api)
        process.kill()
        await process.ended()
    async with serving(path) as process:
        await until("ended", lambda: session_state(process.api))
        assert {"type": "session.closed", "ts": 77, "reason": "hangup"} == (await process.api.journal())[-1]["event"]
        assert ["Line 1."] == [message["content"] for message in await process.api.contents()]


async def test_sigterm_drains(path: str) -> None:
    """Everything that was sent is acknowledged, everybody is told, and the process exits with 0."""
    async with serving(path) as process, producing(process) as producer:
        await producer.store(said(1))
        process.process.send_signal(signal.SIGTERM)
        code, frames = await producer.closed()
        assert (1012, [{"type": "goaway"}]) == (code, frames)
        assert 0 == await process.ended()
    async with serving(path) as process, connected(process) as producer:
        assert 2 == (await producer.open())["next_seq"]


# Restarts, in this process


async def test_a_restart_keeps_the_store(path: str) -> None:
    """Sessions, seqs and the incarnation are the store's, not the process's."""
    incarnations = set()
    for number in range(1, 4):
        async with service(store=f"sqlite:{path}") as app, connected(app) as producer:
            ready = await producer.open()
            assert (number, number, number) == (ready["epoch"], ready["next_seq"], ready["next_turn"])
            incarnations.add(ready["incarnation"])
            await producer.store(said(number))
    assert 1 == len(incarnations)


async def test_time_without_a_server_is_not_silence(path: str) -> None:
    """A session that was silent for less than its timeout before the service went is not closed when it returns."""
    store, then = SqliteStore(path), now_ms() - HOUR_MS
    await store.open("default", "s", "main", SessionPatch({"idle_timeout": 1}, {}), None, then)
    await store.silence(stream.key if (stream := await store.stream("default", "s")) else 0, then)
    await store.close_store()
    async with service(store=f"sqlite:{path}") as app:
        began = now_ms()
        assert "running" == await session_state(Caller(app))
        await until("ended", lambda: session_state(Caller(app)))
        assert 900 <= now_ms() - began


async def test_a_producer_that_was_cut_off_is_waited_for(path: str) -> None:
    """A connection that a crash has cut counts as gone from the restart on."""
    store, then = SqliteStore(path), now_ms() - HOUR_MS
    await store.open("default", "s", "main", SessionPatch({"idle_timeout": 0.3}, {}), None, then)
    await store.close_store()
    async with service(store=f"sqlite:{path}") as app:
        await until("ended", lambda: session_state(Caller(app)))
        assert "idle" == (await Caller(app).session())["reason"]


async def test_a_restart_closes_what_had_ended(path: str) -> None:
    """An end that was committed closes its session at once, though its grace has not passed."""
    store = SqliteStore(path)
    opened = await store.open("default", "s", "main", SessionPatch({"idle_timeout": 0}, {}), None, now_ms())
    offer = Offer(1, now_ms(), json.dumps(end(1)).encode(), ending=SessionEnding(5, "hangup"))
    await append(store, opened.stream.key, "main", 1, [offer], now_ms())
    await store.close_store()
    async with service(store=f"sqlite:{path}") as app:
        await until("ended", lambda: session_state(Caller(app)), timeout_s=1)
        assert "hangup" == (await Caller(app).session())["reason"]


# Starting


async def test_both_servers_listen_on_the_ports_that_they_say(serve: Serve) -> None:
    """Port 0 takes a free port, which the addresses name."""
    app = await serve()
    assert 0 not in (app.rest_address.port, app.ingest_address.port)
    assert 200 == (await Caller(app).get("/readyz")).status
    async with connected(app) as producer:
        await producer.open()


async def test_one_server_per_file(path: str) -> None:
    """A second service on a file does not start, and does the first no harm; after the first it does."""
    async with service(store=f"sqlite:{path}") as app, producing(app) as producer:
        with pytest.raises(CannotStart, match="holds"):
            async with service(store=f"sqlite:{path}"):
                pass
        await producer.store(said(1))
    async with service(store=f"sqlite:{path}"):
        pass


@pytest.mark.parametrize("port", ["rest", "ingest"])
async def test_a_port_that_is_taken(path: str, port: str) -> None:
    """The service does not start, and leaves neither a listener nor the file behind."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = Address("127.0.0.1", taken.getsockname()[1])
        with pytest.raises(OSError, match=f"^--{port}: .*in use"):
            async with service(store=f"sqlite:{path}", **{port: address}):
                pass
    async with service(store=f"sqlite:{path}", **{port: address}) as app:
        assert 200 == (await Caller(app).get("/livez")).status


async def test_without_keys_only_loopback(path: str) -> None:
    """Nobody else may reach a service without keys, unless the operator insists; a key is enough."""
    everywhere = Address("0.0.0.0", 0)
    for address in ({"rest": everywhere}, {"ingest": everywhere}):
        with pytest.raises(CannotStart, match="loopback"):
            async with service(store=f"sqlite:{path}", **address):
                pass
    for more in ({"insecure": True}, {"admin_key": "k" * 40}):
        async with service(store=f"sqlite:{path}", rest=everywhere, ingest=everywhere, **more):
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
    api = Caller(app)
    await api.create(idle_timeout=0.3, name=BIG)
    async with full_store(app):
        assert 503 == (await api.post("/v1/sessions/s/events", [said(1, text=BIG)])).status
        await api.get("/livez")
    await until("ended", lambda: session_state(api))
    assert not app.failed.is_set()


async def test_a_stop_while_the_store_is_down(path: str) -> None:
    """The service comes to its end, and what was acknowledged is there afterwards."""
    async with service(store=f"sqlite:{path}") as app:
        async with producing(app) as producer:
            await producer.store(*(said(seq) for seq in range(1, 150)))
            await Caller(app).contents()
        assert isinstance(app.services.store, SqliteStore)
        await app.services.store.database.write(lambda c: c.pragma("max_page_count", c.pragma("page_count")))
    async with service(store=f"sqlite:{path}") as app, connected(app) as producer:
        assert 150 == (await producer.open())["next_seq"]


# Stopping


async def test_a_stop_lets_go_of_everything(path: str) -> None:
    """After the block nobody listens and the file is free."""
    async with service(store=f"sqlite:{path}") as app:
        rest, ingest = app.rest_address, app.ingest_address
    for address in (rest, ingest):
        with pytest.raises(OSError, match=r"."):
            await asyncio.open_connection(*address)
    assert {task for task in asyncio.all_tasks() if task is not asyncio.current_task()} == set()


async def test_a_draining_service_is_not_ready(serve: Serve, path: str) -> None:
    """While acks are flushed `readyz` turns traffic away, and `livez` answers."""
    app = await serve(store=f"sqlite:{path}")
    async with producing(app) as producer:
        with held_store(path):
            await producer.send(said(1))
            await until(True, lambda: taken_in(app))
            stopping = asyncio.create_task(app.stop())
            await producer.expect("goaway")
            assert (503, "draining") == (await Caller(app).get("/readyz")).told
            assert 200 == (await Caller(app).get("/livez")).status
        await producer.expect("ack", seq=1)
        assert (1012, []) == await producer.closed()
        await stopping


async def taken_in(app: App) -> bool:
    """Whether something is received that is not answered yet."""
    return any(one.unanswered for one in app.ingest.connections)


async def test_a_stop_keeps_sessions_running(path: str) -> None:
    """A restart for an upgrade ends no call: the producer comes back to the next process."""
    async with service(store=f"sqlite:{path}") as app, producing(app, session={"idle_timeout": 5}) as producer:
        await producer.store(said(1))
        stopping = asyncio.create_task(app.stop())
        assert 1012 == (await producer.closed())[0]
        await stopping
    async with service(store=f"sqlite:{path}") as app, connected(app) as producer:
        ready = await producer.open()
        assert ("running", 2) == (ready["state"], ready["next_seq"])
