"""What `/metrics` shows of a running service, and what it never shows."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests.support.callers.producer import connected_producer, open_over_websocket, open_producer, send_over_websocket
from tests.support.callers.raw_http import raw_exchange
from tests.support.callers.rest import LOOPBACK, RestClient, client_with_key
from tests.support.events import final, final_transcript
from tests.support.servers.webhook_receiver import Reply, WebhookReceiver, webhook_receiver
from tests.support.services import Serve
from tests.support.stores.failing import locked_database
from tests.support.waiting import eventually
from voicemem.app import App
from voicemem.sessions.read_models.maintenance import relieve
from voicemem.store.sqlite.store import SqliteStore

KEY = "an operator's own key"
Figures = dict[str, float]


async def figures(app: App, key: str | None = None) -> Figures:
    """Every sample of `/metrics`, by name and labels as they are written, without `voicemem_`."""
    answered = await RestClient(app, key).get("/metrics")
    assert (200, "text/plain; version=0.0.4; charset=utf-8") == (answered.status, answered.headers["Content-Type"])
    return read(answered.body)


def read(body: bytes) -> Figures:
    found: Figures = {}
    for family in text_string_to_metric_families(body.decode()):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}".removeprefix("voicemem_").removesuffix("{}")] = sample.value
    return found


async def test_events_are_counted_by_way_and_result(serve: Serve) -> None:
    """What was stored, sent again and refused is told apart, on the websocket and over HTTP."""
    app = await serve()
    await send_over_websocket(app, [final(1, "Hi."), {"type": "bogus"}, final(2, "Ho.")])
    await send_over_websocket(app, [final(1, "Hi.")])
    await RestClient(app).send(final(3, "x"), final(4, "y"), {"type": "asr"}, query="?producer=other")
    now = await figures(app)
    assert (2, 1, 1) == tuple(
        now[f"ingest_events_total{{kind=websocket,result={result}}}"] for result in ("stored", "repeated", "refused")
    )
    assert (2, 0, 1) == tuple(
        now[f"ingest_events_total{{kind=http,result={result}}}"] for result in ("stored", "repeated", "refused")
    )
    assert (1, 1) == (now["refused_events_total{code=unknown_type}"], now["refused_events_total{code=missing_field}"])
    assert (1, 1) == (now["resume_total{result=created}"], now["resume_total{result=resumed}"])
    rows = await RestClient(app).journal()
    assert now["ingest_bytes_total"] >= sum(len(row["event"].get("text", "")) for row in rows)


async def test_commits_and_acks_are_timed_once_for_each_commit(serve: Serve) -> None:
    """The histograms count commits, and their rows sum up to the events that were offered."""
    app = await serve()
    await send_over_websocket(app, [final(turn, "x") for turn in range(1, 101)])
    now = await figures(app)
    commits = now["commits_total{result=committed}"]
    assert 1 <= commits <= 100
    assert [commits] * 3 == [now[f"{n}_count"] for n in ("commit_seconds", "commit_batch_rows", "ack_latency_seconds")]
    assert 100 == now["commit_batch_rows_sum"]
    assert 0 < now["commit_seconds_sum"] <= now["ack_latency_seconds_sum"]


async def test_a_commit_that_fails_is_seen(serve: Serve, tmp_path: Path) -> None:
    """While the store cannot be written the last outcome is 0, and the failure is counted; metrics still answer."""
    app = await serve(store=f"sqlite:{tmp_path}/db")
    await RestClient(app).create()
    assert 1 == (await figures(app))["last_commit_ok"]
    assert isinstance(app.services.store, SqliteStore)
    await app.services.store.database.write(lambda connection: connection.raw.set_busy_timeout(0))
    with locked_database(f"{tmp_path}/db"):
        assert 503 == (await RestClient(app).post("/v1/sessions/s/events", [final(1, "x")])).status
        now = await figures(app)
        assert (0, 1) == (now["last_commit_ok"], now["commits_total{result=failed}"])
    await RestClient(app).send(final(1, "x"))
    assert 1 == (await figures(app))["last_commit_ok"]


async def test_connections_and_sessions_are_gauged(serve: Serve) -> None:
    """Gauges go up and down with what is open."""
    app = await serve()
    await RestClient(app).create("other")
    async with open_producer(app) as producer:
        await producer.send(final_transcript(1))
        await producer.expect_ack(1)
        now = await figures(app)
        assert (1, 1) == (now["connections{kind=websocket}"], now["connections{kind=rest}"])
        assert (2, 1) == (now["sessions{state=running}"], now["sessions_connected"])
    await RestClient(app).end("other")

    async def connected() -> float:
        return (await figures(app))["connections{kind=websocket}"]

    await eventually(0, connected)
    assert 1 == (await figures(app))["sessions{state=running}"]


async def test_who_is_turned_away_is_counted_by_reason(serve: Serve) -> None:
    """A handshake without a right, and a connection that sends no frames, are counted by their code."""
    app = await serve()
    async with open_producer(app) as producer:
        await producer.send_raw("{")
        await producer.closed()
    assert 1 == (await figures(app))["connections_rejected_total{reason=invalid_json}"]
    host, port = app.ingest_address
    _, writer = await asyncio.open_connection(host, port)
    writer.write(b"GET /elsewhere HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n")
    writer.write(b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n")

    async def turned_away() -> float:
        return (await figures(app)).get("connections_rejected_total{reason=not_found}", 0)

    await eventually(1, turned_away)
    writer.close()


async def test_who_is_closed_later_is_counted_by_reason(serve: Serve, tmp_path: Path) -> None:
    """A frame that is too big, and a key that is revoked while it is used; a client that leaves is not counted."""
    app = await serve(store=f"sqlite:{tmp_path}/db", admin_key=KEY)
    key = (await RestClient(app, KEY).post("/v1/keys", {"scopes": ["ingest"]})).json
    headers = {"Authorization": f"Bearer {key['key']}"}
    async with (
        connected_producer(app, headers) as big,
        connected_producer(app, headers) as leaving,
        connected_producer(app, headers) as revoked,
    ):
        await big.send_raw(" " * 1_100_000)
        assert 1009 == (await big.closed())[0]
        await leaving.socket.close(1009)
        await RestClient(app, KEY).delete(f"/v1/keys/{key['id']}")
        assert 1008 == (await revoked.closed())[0]

    async def closed() -> Figures:
        now = await figures(app, KEY)
        return {name: value for name, value in now.items() if name.startswith("connections_rejected_total")}

    reasons = "too_big", "unauthorized"
    await eventually({f"connections_rejected_total{{reason={reason}}}": 1.0 for reason in reasons}, closed)


async def test_memories_in_use_and_packed_and_behind(serve: Serve) -> None:
    """A packed memory is counted as such, and so is what it has not folded yet."""
    app = await serve()
    await send_over_websocket(app, [final(1, "Hi.")])
    await RestClient(app).contents()
    for read_model in app.services.read_models.cached.values():
        read_model.pack()
    await relieve(app.services.read_models)
    await RestClient(app).send(final(2, "x"), final(3, "x"), query="?producer=other")
    now = await figures(app)
    assert (0, 1) == (now["memories{state=in_use}"], now["memories{state=packed}"])
    assert now["memories_bytes{state=packed}"] > 0
    assert now["rows_bytes"] > 0
    assert now["memory_budget_bytes"] == app.services.budget.limit
    assert (0, 0) == (now["evictions_total{kind=memories}"], now["evictions_total{kind=rows}"])
    assert (1, 2) == (now["memories_lagging"], now["fold_lag_events"])
    await RestClient(app).contents()
    now = await figures(app)
    assert (1, 0, 0) == (now["memories{state=in_use}"], now["memories_lagging"], now["fold_lag_events"])


async def ended(app: App, hook: WebhookReceiver, session_id: str) -> None:
    """A session of its own receiver, ended."""
    await RestClient(app).create(session_id, webhook={"url": hook.url(f"/{session_id}")})
    await RestClient(app).end(session_id)


async def test_webhooks_are_counted_by_result_and_gauged_while_they_wait(serve: Serve) -> None:
    """Attempts by result; what is to be tried again waits, and is not due."""
    app = await serve(allow_addresses=LOOPBACK)
    async with webhook_receiver(Reply(200), Reply(410), Reply(500, {"Retry-After": "600"})) as hook:
        for number, session_id in enumerate(("good", "gone", "bad"), 1):
            await ended(app, hook, session_id)
            await hook.wait(number)

        async def attempts() -> list[float]:
            now = await figures(app)
            results = ("delivered", "gone", "failed")
            return [now[f"webhook_attempts_total{{result={result}}}"] for result in results] + [now["outbox_pending"]]

        await eventually([1, 1, 1, 1], attempts)
        now = await figures(app)
        assert (0, 3) == (now["outbox_due"], now["webhook_attempt_seconds_count"])
        app.gauges.clock = lambda: app.services.runtime.clock() + 60_000
        assert (await figures(app))["outbox_oldest_seconds"] >= 60  # one waits for its next attempt


async def test_what_is_due_and_not_under_way_is_a_queue(serve: Serve) -> None:
    """Webhooks that wait for a receiver that takes its time are due, and the oldest says since when."""
    app = await serve()
    await app.services.store.directory.set_operator_endpoint("http://127.0.0.1:9/", None)
    for task in app.tasks:
        task.cancel()
    await asyncio.gather(*app.tasks, return_exceptions=True)
    app.tasks.clear()
    for session_id in "ab":
        await RestClient(app).create(session_id)
        await RestClient(app).end(session_id)
    app.gauges.clock = lambda: app.services.runtime.clock() + 60_000
    now = await figures(app)
    assert (2, 2) == (now["outbox_pending"], now["outbox_due"])
    assert 60 <= now["outbox_oldest_seconds"] < 120


async def test_requests_are_counted_by_route_and_never_by_path(serve: Serve) -> None:
    """Ids, unknown paths and unknown methods do not make labels."""
    app = await serve()
    await RestClient(app).create("an-id-of-mine")
    await RestClient(app).contents("an-id-of-mine")
    await RestClient(app).get("/v1/sessions/another-id/history")
    await RestClient(app).get("/no/such/path")
    await raw_exchange(app, b"PROPFIND /v1/sessions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    now = await figures(app)
    route = "route=/v1/sessions/{id}/history"
    assert 1 == now[f"http_requests_total{{method=GET,{route},status=200}}"]
    assert 1 == now[f"http_requests_total{{method=GET,{route},status=404}}"]
    assert 2 == now[f"http_request_seconds_count{{{route}}}"]
    assert 1 == now["http_requests_total{method=GET,route=none,status=404}"]
    assert any("method=other" in name for name in now)
    assert not any(word in name for name in now for word in ("id-of-mine", "another-id", "PROPFIND", "such"))


async def test_no_label_tells_of_a_call(serve: Serve) -> None:
    """Neither texts, ids, projects, users, producers nor URLs stand anywhere in the metrics."""
    app = await serve(admin_key=KEY, allow_addresses=LOOPBACK)
    api = await client_with_key(app, "admin", project="planted-project")
    async with webhook_receiver() as hook:
        webhook = {"url": hook.url("/planted-hook")}
        await api.create("planted-id", user_id="planted-user", labels={"planted-label": "x"}, webhook=webhook)
        await api.send(
            final(1, "planted-text", user="planted-user"),
            {"type": "planted-type"},
            {"type": "metric", "turn_id": 1, "name": "planted-metric", "latency_ms": 1},
            session_id="planted-id",
            query="?producer=planted-producer",
        )
        await api.end("planted-id", reason="planted-reason")
        await hook.one()
    body = (await RestClient(app, KEY).get("/metrics")).body.decode()
    assert "ingest_events_total" in body
    assert [] == re.findall("planted[a-z-]*", body)


async def test_metrics_are_the_operators(serve: Serve) -> None:
    """With keys, only a key of the project `default` reads figures that are of all projects."""
    app = await serve()
    assert 200 == (await RestClient(app).get("/metrics")).status
    tenant, operator = await client_with_key(app, "admin", project="shop"), await client_with_key(app, "read")
    writer = await client_with_key(app, "ingest")
    assert (401, "unauthorized") == (await RestClient(app).get("/metrics")).problem
    assert (403, "forbidden") == (await tenant.get("/metrics")).problem == (await writer.get("/metrics")).problem
    assert 200 == (await operator.get("/metrics")).status


async def test_draining_is_seen(serve: Serve) -> None:
    """While the service stops the gauge is 1."""
    app = await serve()
    assert 0 == (await figures(app))["draining"]
    app.services.draining.set()
    assert 1 == (await figures(app))["draining"]


async def test_two_services_count_for_themselves(serve: Serve) -> None:
    """Each service has a registry of its own: nothing is global."""
    one, other = await serve(), await serve()
    await open_over_websocket(one)
    assert (1, 0) == tuple([(await figures(app))["resume_total{result=created}"] for app in (one, other)])


async def test_the_store_tells_its_size(serve: Serve, tmp_path: Path) -> None:
    """Database and log are files with a size; in memory there are none."""
    on_file, in_memory = await serve(store=f"sqlite:{tmp_path}/db"), await serve()
    await RestClient(on_file).create()
    sizes = [[(await figures(app))[name] for name in ("db_bytes", "db_wal_bytes")] for app in (on_file, in_memory)]
    assert [(tmp_path / name).stat().st_size for name in ("db", "db-wal")] == sizes[0]
    assert [0, 0] == sizes[1]
