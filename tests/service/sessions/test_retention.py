"""Erasure, `ttl_seconds` and compaction in the running service: what is over leaves, what is kept reads as before."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.support.callers.producer import Producer, connected_producer, open_producer
from tests.support.callers.rest import LOOPBACK, RestClient, wait_until_closed
from tests.support.events import LARGE_TEXT, final_transcript, session_end
from tests.support.paths import FIXTURES
from tests.support.servers.webhook_receiver import Reply, webhook_receiver
from tests.support.services import Serve, running_service
from tests.support.stores.failing import database_of
from tests.support.waiting import eventually
from voicemem.app import App

SECRETS = {"llm": {"api_key": "MARK key"}, "labels": {"a": "MARK label"}, "name": "MARK name"}


def marks(folder: Path, mark: bytes = b"MARK") -> int:
    """How often the mark stands in the files of a database."""
    return sum(file.read_bytes().count(mark) for file in folder.iterdir())


async def leaves(folder: Path) -> None:
    """Wait until the mark has left every file."""

    async def gone() -> bool:
        return await asyncio.to_thread(marks, folder) == 0

    await eventually(True, gone, 20)


async def recorded_call(app: App, session_id: str, **config: object) -> None:
    """A whole recorded call, closed."""
    events = [json.loads(line) for line in (FIXTURES / "two_users.jsonl").read_bytes().splitlines()]
    async with connected_producer(app) as producer:
        await producer.open(session_id, session=config)
        await producer.store(*events)
    await RestClient(app).end(session_id)


async def test_a_deleted_call_leaves_every_file(serve: Serve, tmp_path: Path) -> None:
    """A call with secrets and a webhook that failed: nothing readable after the answer, and soon nothing there."""
    async with webhook_receiver() as receiver:
        receiver.otherwise = Reply(status=500)
        app = await serve(store=f"sqlite:{tmp_path}/db", allow_addresses=LOOPBACK)
        api = RestClient(app)
        hook = {"url": receiver.url("/MARK"), "secret": "MARK secret"}
        for name, text in (("gone", "MARK said"), ("kept", "other")):
            async with open_producer(
                app, name, session={"webhook": hook, **SECRETS} if name == "gone" else {}
            ) as producer:
                await producer.store(
                    final_transcript(1, text), final_transcript(2, f"{text} {LARGE_TEXT}"), session_end(3)
                )
            await wait_until_closed(app, name)
        await receiver.wait(2)
        assert marks(tmp_path) > 5
        assert 204 == (await api.delete("/v1/sessions/gone")).status
        for path in ("", "/history", "/events", "/turns"):
            assert (404, "unknown_session") == (await api.get(f"/v1/sessions/gone{path}")).problem
        sent = len(receiver.webhook_events)
        await leaves(tmp_path)
        assert 2 == len(await api.contents("kept"))
        assert len(receiver.webhook_events) <= sent + 1  # one may have been on its way
        assert "ok" == await database_of(app).write(lambda connection: connection.raw.pragma("integrity_check"))


async def test_an_erasure_goes_on_after_a_restart(tmp_path: Path) -> None:
    """A service that stopped at once after its answer has done nothing yet; the next one does it."""
    async with running_service(store=f"sqlite:{tmp_path}/db") as app:
        for task in app.tasks:
            task.cancel()
        async with open_producer(app) as producer:
            await producer.store(*(final_transcript(seq, "MARK") for seq in range(1, 500)))
        assert 204 == (await RestClient(app).delete("/v1/sessions/s")).status
    assert marks(tmp_path) > 400
    async with running_service(store=f"sqlite:{tmp_path}/db"):
        await leaves(tmp_path)


async def test_a_session_expires(serve: Serve, tmp_path: Path) -> None:
    """`ttl_seconds` after its end it is erased, and its id is not used again; one without is kept."""
    app = await serve(store=f"sqlite:{tmp_path}/db")
    api = RestClient(app)
    for name, config in (("short", {"ttl_seconds": 0.2}), ("kept", {})):
        await api.create(name, **config)
        await api.send(final_transcript(1, "MARK" if name == "short" else "other"), session_id=name)
        await api.end(name)

    async def status() -> int:
        return (await api.get("/v1/sessions/short")).status

    await eventually(404, status)
    assert (410, "session_erased") == (await api.post("/v1/sessions", {"session_id": "short"})).problem
    await leaves(tmp_path)
    assert 1 == len(await api.contents("kept"))


async def to_compact(app: App) -> list[int]:
    """The sessions whose journals are not compacted yet."""
    query = "select stream from retention where compact_ms is not null"
    return await database_of(app).read(lambda connection: [key for (key,) in connection.rows(query)])


@pytest.mark.parametrize("kind", ["memory:", "sqlite:"])
async def test_a_compacted_call_reads_as_before(serve: Serve, tmp_path: Path, kind: str) -> None:
    """History, context and journal are the same; resent events are acknowledged; the delivery is whole."""
    path = f"sqlite:{tmp_path}/db" if kind == "sqlite:" else kind
    app = await serve(store=path)
    api = RestClient(app)
    await recorded_call(app, "plain")
    await recorded_call(app, "compacted", reopen_window=0)

    plain = await app.services.store.journal.find_session("default", "plain")
    assert plain is not None
    await eventually([plain.key], lambda: to_compact(app))
    app.services.read_models.discard_all()
    for view in ("/history", "/context"):
        before, after = [await api.get(f"/v1/sessions/{name}{view}") for name in ("plain", "compacted")]
        assert without_times(before.json) == without_times(after.json)
    events = [[row["event"] for row in await api.journal(name)] for name in ("plain", "compacted")]
    assert events[0][:-1] == events[1][:-1]
    async with connected_producer(app) as producer:
        await producer.open("compacted")
        await resend(producer)
    stored = await database_of(app).write(
        lambda connection: connection.rows("select stream, count(*) from journal group by 1")
    )
    assert [plain.key] == [key for key, _ in stored]


def without_times(body: dict[str, object]) -> dict[str, object]:
    """A document without what two calls cannot share."""
    return {key: value for key, value in body.items() if key not in ("session_id", "started_at", "ended_at")}


async def resend(producer: Producer) -> None:
    """Send the recorded call again: all of it is acknowledged."""
    events = [json.loads(line) for line in (FIXTURES / "two_users.jsonl").read_bytes().splitlines()]
    await producer.send_together(*events)
    await producer.expect_ack(events[-1]["seq"])


async def test_a_delivery_after_the_compaction_has_the_whole_call(serve: Serve) -> None:
    """A receiver that is away until the journal is compacted gets what it would have got."""
    async with webhook_receiver() as receiver:
        url = receiver.url()
        app = await serve(allow_addresses=LOOPBACK)
        hook = {"url": url}
        gate = asyncio.Event()
        receiver.replies = [Reply(status=500, gate=gate)]
        await recorded_call(app, "s", reopen_window=0, webhook=hook)
        first = (await receiver.one()).payload
        await eventually([], lambda: to_compact(app))
        gate.set()
        assert first == (await receiver.wait(2))[1].payload
        assert await RestClient(app).contents() == first["contents"]
