"""What an operator sees of a PostgreSQL that is away, or that lets a node open only some of its connections."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial

import pytest

from tests.support.needs import needs_postgresql

needs_postgresql()

from bench.harness.postgresql import Cluster  # noqa: E402
from tests.service.telemetry.test_metrics import read  # noqa: E402
from tests.support import postgresql  # noqa: E402
from tests.support.callers.producer import open_producer  # noqa: E402
from tests.support.callers.rest import RestClient  # noqa: E402
from tests.support.events import final_transcript  # noqa: E402
from tests.support.services import Serve, running_service  # noqa: E402
from tests.support.waiting import eventually  # noqa: E402
from voicemem.app import App  # noqa: E402
from voicemem.store.postgresql.store import PostgresqlStore  # noqa: E402

pytestmark = [pytest.mark.postgresql, pytest.mark.long]
ADMIN_KEY = "an operator's own key"


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A server that a test may stop."""
    cluster = Cluster()
    cluster.execute("create database calls")
    yield cluster
    cluster.remove()


async def last_commit_ok(app: App, key: str | None = None) -> float:
    answered = await RestClient(app, key).get("/metrics")
    assert 200 == answered.status
    return read(answered.body)["last_commit_ok"]


async def status(app: App, path: str, key: str | None = None) -> int:
    return (await RestClient(app, key).get(path)).status


async def test_metrics_are_served_while_postgresql_is_away(
    serve: Serve, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """They say that nothing can be committed, and again that it can; the log has one line for each of the two."""
    app = await serve(store=cluster.url("calls"))
    assert (1, 200) == (await last_commit_ok(app), await status(app, "/readyz"))
    await asyncio.to_thread(cluster.stop)
    await eventually(0.0, partial(last_commit_ok, app))
    for _ in range(20):
        assert (0, 503) == (await last_commit_ok(app), await status(app, "/readyz"))
        await asyncio.sleep(0.1)
    await asyncio.to_thread(cluster.start)
    await eventually(1.0, partial(last_commit_ok, app), timeout_s=30)
    await eventually(200, partial(status, app, "/readyz"))
    begun, over = (one.getMessage() for one in caplog.records if one.name == "voicemem.store")
    assert begun.startswith("The store is in trouble: The store cannot be ")
    assert over.startswith("The store is out of trouble after ")


async def test_a_key_that_cannot_be_checked_does_not_scrape(serve: Serve, cluster: Cluster) -> None:
    """No one knows whether it was revoked meanwhile; the operator's own key is not in the store."""
    app = await serve(store=cluster.url("calls"), admin_key=ADMIN_KEY)
    made = (await RestClient(app, ADMIN_KEY).post("/v1/keys", {"scopes": ["read"]})).json["key"]
    assert 200 == await status(app, "/metrics", made)
    await asyncio.to_thread(cluster.stop)
    await eventually(503, partial(status, app, "/metrics", made))
    await eventually(0.0, partial(last_commit_ok, app, ADMIN_KEY))
    await asyncio.to_thread(cluster.start)
    await eventually(200, partial(status, app, "/metrics", made), timeout_s=30)


async def test_a_node_without_all_of_its_connections_is_not_ready() -> None:
    """While a lane has none, `/readyz` says why, though the other one commits; with more room that ends by itself."""
    server, name = postgresql.server(), postgresql.take_database()
    rights = "grant all on all tables in schema public to guest"
    with postgresql.role(name, rights) as url:
        async with running_service(store=url) as app:
            await fail_the_lane_in_use(app)
            await eventually(503, partial(status, app, "/readyz"))
            for _ in range(20):  # the node's heartbeats come through
                answered = await RestClient(app).get("/readyz")
                assert (503, 0) == (answered.status, await last_commit_ok(app))
                assert "PostgreSQL accepts no more connections" in answered.json["detail"]
                await asyncio.sleep(0.1)
            server.execute("alter role guest connection limit 20")
            await eventually(200, partial(status, app, "/readyz"))
            assert 1 == await last_commit_ok(app)
    postgresql.give_back(name)


async def fail_the_lane_in_use(app: App) -> None:
    """End the connection of the lane in which a call's events are committed, and let the role open no other."""
    store = app.services.store
    assert isinstance(store, PostgresqlStore)
    async with open_producer(app) as producer:
        for turn in range(1, 4):
            await producer.send(final_transcript(turn))
            await producer.expect_ack(turn)
        (session,) = (
            lane.writer.connection for lane in store.database.append_connections if lane.writer.connection is not None
        )
        process = session.raw.info.backend_pid
        postgresql.server().execute("alter role guest connection limit 0")
        postgresql.server().execute(f"select pg_terminate_backend({process}, 5000)")
        await producer.send(final_transcript(4))
