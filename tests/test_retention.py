"""Erasure, `ttl_seconds` and compaction in the running service: what is over leaves, what is kept reads as before."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from callers import LOOPBACK, Caller, Reply, closed, receiving, service, until
from producers import BIG, Producer, connected, database_of, end, producing, said
from services import Serve

from voicemem.app import App
from voicemem.config.session import validate_config
from voicemem.sessions.cache import ReadModelCache
from voicemem.sessions.retention import SESSIONS_PER_ROUND, Retention
from voicemem.store.admission import Batch
from voicemem.store.sqlite.store import MemoryStore
from voicemem.store.streams import SessionEnding

NOW = 1_778_390_400_000
CALLS = Path(__file__).parent.parent / "fixtures" / "voicemem"
SECRETS = {"llm": {"api_key": "MARK key"}, "labels": {"a": "MARK label"}, "name": "MARK name"}


def marks(folder: Path, mark: bytes = b"MARK") -> int:
    """How often the mark stands in the files of a database."""
    return sum(file.read_bytes().count(mark) for file in folder.iterdir())


async def leaves(folder: Path) -> None:
    """Wait until the mark has left every file."""

    async def gone() -> bool:
        return await asyncio.to_thread(marks, folder) == 0

    await until(True, gone, 20)


async def recorded_call(app: App, session_id: str, **config: object) -> None:
    """A whole recorded call, closed."""
    events = [json.loads(line) for line in (CALLS / "two_users.jsonl").read_bytes().splitlines()]
    async with connected(app) as producer:
        await producer.open(session_id, session=config)
        await producer.store(*events)
    await Caller(app).end(session_id)


async def test_a_deleted_call_leaves_every_file(serve: Serve, tmp_path: Path) -> None:
    """A call with secrets and a webhook that failed: nothing readable after the answer, and soon nothing there."""
    async with receiving() as receiver:
        receiver.otherwise = Reply(status=500)
        app = await serve(store=f"sqlite:{tmp_path}/db", allow_addresses=LOOPBACK)
        api = Caller(app)
        hook = {"url": receiver.url("/MARK"), "secret": "MARK secret"}
        for name, text in (("gone", "MARK said"), ("kept", "other")):
            async with producing(app, name, session={"webhook": hook, **SECRETS} if name == "gone" else {}) as producer:
                await producer.store(said(1, text), said(2, f"{text} {BIG}"), end(3))
            await closed(app, name)
        await receiver.wait(2)
        assert marks(tmp_path) > 5
        assert 204 == (await api.delete("/v1/sessions/gone")).status
        for path in ("", "/history", "/events", "/turns"):
            assert (404, "unknown_session") == (await api.get(f"/v1/sessions/gone{path}")).told
        sent = len(receiver.notices)
        await leaves(tmp_path)
        assert 2 == len(await api.contents("kept"))
        assert len(receiver.notices) <= sent + 1  # one may have been on its way
        assert "ok" == await database_of(app).write(lambda connection: connection.pragma("integrity_check"))


async def test_an_erasure_goes_on_after_a_restart(tmp_path: Path) -> None:
    """A service that stopped at once after its answer has done nothing yet; the next one does it."""
    async with service(store=f"sqlite:{tmp_path}/db") as app:
        for task in app.tasks:
            task.cancel()
        async with producing(app) as producer:
            await producer.store(*(said(seq, "MARK") for seq in range(1, 500)))
        assert 204 == (await Caller(app).delete("/v1/sessions/s")).status
    assert marks(tmp_path) > 400
    async with service(store=f"sqlite:{tmp_path}/db"):
        await leaves(tmp_path)


async def test_a_session_expires(serve: Serve, tmp_path: Path) -> None:
    """`ttl_seconds` after its end it is erased, and its id is not used again; one without is kept."""
    app = await serve(store=f"sqlite:{tmp_path}/db")
    api = Caller(app)
    for name, config in (("short", {"ttl_seconds": 0.2}), ("kept", {})):
        await api.create(name, **config)
        await api.send(said(1, "MARK" if name == "short" else "other"), session_id=name)
        await api.end(name)

    async def status() -> int:
        return (await api.get("/v1/sessions/short")).status

    await until(404, status)
    assert (410, "session_erased") == (await api.post("/v1/sessions", {"session_id": "short"})).told
    await leaves(tmp_path)
    assert 1 == len(await api.contents("kept"))


@pytest.mark.parametrize("kind", ["memory:", "sqlite:"])
async def test_a_compacted_call_reads_as_before(serve: Serve, tmp_path: Path, kind: str) -> None:
    """History, context and journal are the same; resent events are acknowledged; the export is whole."""
    path = f"sqlite:{tmp_path}/db" if kind == "sqlite:" else kind
    app = await serve(store=path)
    api = Caller(app)
    await recorded_call(app, "plain")
    await recorded_call(app, "compacted", reopen_window=0)

    async def waiting() -> list[int]:
        return await app.services.store.find_compactable(2**53, 10)

    plain = await app.services.store.stream("default", "plain")
    assert plain is not None
    await until([plain.key], waiting)
    app.services.memories.discard_all()
    for view in ("/history", "/context"):
        before, after = [await api.get(f"/v1/sessions/{name}{view}") for name in ("plain", "compacted")]
        assert without_times(before.json) == without_times(after.json)
    events = [[row["event"] for row in await api.journal(name)] for name in ("plain", "compacted")]
    assert events[0][:-1] == events[1][:-1]
    async with connected(app) as producer:
        await producer.open("compacted")
        await resend(producer)
    stored = await database_of(app).write(
        lambda connection: connection.execute("select stream, count(*) from journal group by 1").fetchall()
    )
    assert [plain.key] == [key for key, _ in stored]


def without_times(body: dict[str, object]) -> dict[str, object]:
    """A document without what two calls cannot share."""
    return {key: value for key, value in body.items() if key not in ("session_id", "started_at", "ended_at")}


async def resend(producer: Producer) -> None:
    """Send the recorded call again: all of it is acknowledged."""
    events = [json.loads(line) for line in (CALLS / "two_users.jsonl").read_bytes().splitlines()]
    await producer.send_together(*events)
    await producer.expect_ack(events[-1]["seq"])


async def test_an_export_after_the_compaction_has_the_whole_call(serve: Serve) -> None:
    """A receiver that is away until the journal is compacted gets what it would have got."""
    async with receiving() as receiver:
        url = receiver.url()
        app = await serve(allow_addresses=LOOPBACK)
        hook = {"url": url}
        gate = asyncio.Event()
        receiver.replies = [Reply(status=500, gate=gate)]
        await recorded_call(app, "s", reopen_window=0, webhook=hook)
        first = (await receiver.one()).payload
        await until([], lambda: app.services.store.find_compactable(2**53, 10))
        gate.set()
        assert first == (await receiver.wait(2))[1].payload
        assert await Caller(app).contents() == first["contents"]


# The use case alone


async def ended_sessions(store: MemoryStore, count: int, **config: object) -> list[int]:
    """Keys of sessions with a few events each, which have ended."""
    keys = []
    for number in range(count):
        opened = await store.open("p", f"s{number}", "main", validate_config(config), None, NOW)
        keys.append(opened.stream.key)
        await store.append([Batch(keys[-1], "main", None, NOW, [b'{"type":"llm.done","seq":1,"turn_id":1}'], 1)], NOW)
        assert await store.close(keys[-1], SessionEnding(NOW, "left"), f"n{number}", NOW) is not None
    return keys


async def test_two_workers_expire_sweep_and_compact_each_session_once() -> None:
    """More sessions than one batch; the counts of both workers add up to all of them."""
    store = MemoryStore()
    keys = await ended_sessions(store, SESSIONS_PER_ROUND + 5, ttl_seconds=10, reopen_window=0)
    times = iter([NOW] * 2 + [NOW + 10_000] * 100)
    workers = [Retention(store, ReadModelCache(store), lambda: next(times)) for _ in range(2)]
    assert [0, 0] == [await worker.expire() for worker in workers]
    counts = await asyncio.gather(*(worker.expire() for worker in workers))
    counts += await asyncio.gather(*(worker.expire() for worker in workers))
    assert len(keys) == sum(counts)
    await asyncio.gather(*(worker.sweep() for worker in workers))
    assert ([], True) == (await store.erased(1000), await store.finish_erased())
    assert [[]] * len(keys) == [await store.rows(key, 0, 10) for key in keys]
    await store.close_store()


async def test_an_erased_memory_is_forgotten() -> None:
    """The sweep takes it out of the process too."""
    store = MemoryStore()
    (key,) = await ended_sessions(store, 1)
    memories = ReadModelCache(store)
    retention = Retention(store, memories, lambda: NOW)
    stream = await store.stream("p", "s0")
    assert stream is not None
    await memories.at(stream)
    await store.erase(key, NOW)
    assert (1, {}) == (await retention.sweep(), dict(memories.cached))
    await store.close_store()
