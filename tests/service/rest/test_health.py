"""Is the service alive, is it ready: also when its store is not."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import apsw
import pytest

from tests.support.callers.producer import send_over_websocket
from tests.support.callers.rest import RestClient, make_key
from tests.support.events import final
from tests.support.services import Serve
from voicemem.app import App
from voicemem.store.sqlite.store import SqliteStore

KEY = "an operator's own key"


def sqlite_of(app: App) -> SqliteStore:
    """The store of a service that runs on a file."""
    assert isinstance(app.services.store, SqliteStore)
    return app.services.store


@asynccontextmanager
async def unwritable(app: App) -> AsyncIterator[None]:
    """Hold the database's write lock, so that every commit of the service fails at once."""
    store = sqlite_of(app)
    await store.database.write(lambda connection: connection.raw.set_busy_timeout(0))
    holder = apsw.Connection(store.database.path)
    try:
        holder.execute("begin immediate")
        yield
        holder.execute("rollback")
    finally:
        holder.close()


@pytest.mark.parametrize("path", ["/livez", "/readyz"])
async def test_a_service_that_runs_is_alive_and_ready(serve: Serve, path: str) -> None:
    """Both probes answer 200 with a word."""
    answered = await RestClient(await serve()).get(path)
    assert (200, {"status": "ok"}) == (answered.status, answered.json)


@pytest.mark.parametrize("path", ["/livez", "/readyz"])
async def test_probes_need_no_key_and_take_no_parameters(serve: Serve, path: str) -> None:
    """Whoever reaches the port may ask, also when everything else needs a key."""
    app = await serve()
    await make_key(app, "read")
    assert 200 == (await RestClient(app).get(path)).status
    assert 200 == (await RestClient(app, "no such key").get(path)).status
    assert (400, "invalid_query") == (await RestClient(app).get(f"{path}?verbose")).problem


async def test_livez_answers_while_the_store_is_broken(serve: Serve, tmp_path: Path) -> None:
    """An outage of the store is no reason to restart the process."""
    app = await serve(store=f"sqlite:{tmp_path}/v.db")
    await sqlite_of(app).database.read(lambda connection: connection.raw.close())
    assert (503, "store_unavailable") == (await RestClient(app).get("/v1/sessions")).problem
    assert 200 == (await RestClient(app).get("/livez")).status


async def test_livez_answers_while_the_store_hangs(serve: Serve, tmp_path: Path) -> None:
    """A disk that does not answer does not make the process look dead."""
    app = await serve(store=f"sqlite:{tmp_path}/v.db")
    release = threading.Event()
    sqlite_of(app).database.readers.submit(release.wait)
    try:
        answered = await asyncio.wait_for(RestClient(app).get("/livez"), 1)
    finally:
        release.set()
    assert 200 == answered.status


async def test_readyz_knows_the_last_commits_outcome(serve: Serve, tmp_path: Path) -> None:
    """While commits fail the service is not ready; with the next good one it is again."""
    app = await serve(store=f"sqlite:{tmp_path}/v.db")
    api = RestClient(app)
    async with unwritable(app):
        assert (503, "store_unavailable") == (await api.post("/v1/sessions", {"session_id": "s"})).problem
        assert (503, "store_unavailable") == (await api.get("/readyz")).problem
        assert 200 == (await api.get("/livez")).status
    await api.create()
    assert 200 == (await api.get("/readyz")).status


async def test_writes_without_a_store_are_503_and_can_be_repeated(serve: Serve, tmp_path: Path) -> None:
    """Nothing is half done and nothing of the request is told; afterwards the same requests succeed, once each."""
    app = await serve(store=f"sqlite:{tmp_path}/v.db")
    api = RestClient(app)
    await api.create()
    events = [final(1, "hush", seq=1)]
    async with unwritable(app):
        answers = [await api.post("/v1/sessions/s/events", events), await api.post("/v1/sessions/s/end")]
        answers += [await api.patch("/v1/sessions/s", {"name": "hush"}), await api.delete("/v1/sessions/s")]
        assert [] == await api.contents()
    assert [(503, "store_unavailable")] * 4 == [answered.problem for answered in answers]
    assert not any(b"hush" in answered.body for answered in answers)
    assert [{"next_seq": 2, "errors": []}] * 2 == [await api.send(*events) for _ in range(2)]
    assert ["hush"] == [one["content"] for one in await api.contents()]


async def test_reads_without_a_store_are_503(serve: Serve, tmp_path: Path) -> None:
    """No reader gets an empty or an old answer when the store must be asked and cannot be."""
    app = await serve(store=f"sqlite:{tmp_path}/v.db", admin_key=KEY)
    api = RestClient(app, KEY)
    await api.create()
    await api.send(final(1, "Hi."))
    await api.contents()
    sqlite_of(app).database.streams.invalidate()
    await sqlite_of(app).database.read(lambda connection: connection.raw.close())
    for path in ("", "/s", "/s/history", "/s/context", "/s/turns", "/s/events"):
        assert (503, "store_unavailable") == (await api.get(f"/v1/sessions{path}")).problem


async def test_a_service_that_stops_is_not_ready(serve: Serve) -> None:
    """While it drains it is alive, and gets no new traffic."""
    app = await serve()
    app.services.draining.set()
    assert (503, "draining") == (await RestClient(app).get("/readyz")).problem
    assert 200 == (await RestClient(app).get("/livez")).status


async def test_probes_do_not_hear_of_the_calls(serve: Serve) -> None:
    """A busy service is alive and ready like an idle one."""
    app = await serve()
    await send_over_websocket(app, [final(turn, "x") for turn in range(1, 200)])
    assert [200, 200] == [(await RestClient(app).get(path)).status for path in ("/livez", "/readyz")]
