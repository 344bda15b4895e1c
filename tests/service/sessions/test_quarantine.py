"""A session whose memory cannot be made: its events are taken, its reads say so, and others do not notice."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from tests.support.callers.producer import connected_producer, open_producer
from tests.support.callers.rest import LOOPBACK, RestClient, client_with_key
from tests.support.events import event, final_transcript, session_end
from tests.support.servers.webhook_receiver import WebhookReceiver, webhook_receiver
from tests.support.services import Serve, running_service
from tests.support.stores.damage import Run, damage_entry, replace_run
from tests.support.stores.failing import database_of
from tests.support.waiting import eventually
from voicemem.app import App
from voicemem.protocol.types import JsonObject
from voicemem.sessions.tails.tail import MemoryChange, SessionOver, TailView
from voicemem.store.session_filters import SessionFilter

QUARANTINED = (503, "session_set_aside")
READS: tuple[tuple[str, str, JsonObject | None], ...] = (
    ("GET", "/history", None),
    ("GET", "/history?open=true", None),
    ("GET", "/turns", None),
    ("GET", "/context", None),
    ("GET", "/stats", None),
    ("GET", "/working-memory", None),
    ("GET", "/data", None),
    ("POST", "/messages", {"role": "user", "content": "Hi."}),
    ("POST", "/forget", {}),
    ("POST", "/fork", {"at_turn": 1}),
    ("POST", "/refold", None),
)


async def poisoned(app: App, session_id: str = "bad", **config: Any) -> tuple[int, Run]:
    """The key of a session of one utterance that cannot be read any more, and what its journal held."""
    api = RestClient(app)
    await api.create(session_id, **config)
    await api.send(final_transcript(1), session_id=session_id)
    stream = await app.services.store.journal.get_session("default", session_id)
    held = await damage_entry(database_of(app), stream.key)
    app.services.read_models.discard(stream.key)
    return stream.key, held


async def test_reads_say_that_it_is_quarantined(serve: Serve) -> None:
    """Every one that needs the memory; others are answered, and show it."""
    app = await serve()
    await poisoned(app)
    api = RestClient(app)
    for method, path, body in READS:
        answered = await api.call(method, f"/v1/sessions/bad{path}", json=body)
        assert QUARANTINED == answered.problem, path
    shown = await api.session("bad")
    assert {"reason", "since_ms", "version"} == shown["set_aside"].keys()
    assert "damaged" == shown["set_aside"]["reason"]
    assert ["bad"] == [session["session_id"] for session in (await api.get("/v1/sessions")).json["sessions"]]
    assert {"session_id": "bad", "state": "running"}.items() <= (await api.patch("/v1/sessions/bad", {})).json.items()


async def test_its_events_are_acknowledged(serve: Serve) -> None:
    """Over websocket and HTTP; a producer may open it, and gets a turn that no other is likely to have."""
    app = await serve()
    await poisoned(app)
    assert QUARANTINED == (await RestClient(app).get("/v1/sessions/bad/history")).problem
    await RestClient(app).send(final_transcript(2), session_id="bad")
    async with connected_producer(app) as producer:
        ready = await producer.open("bad")
        assert (3, 3) == (ready["next_seq"], ready["next_turn"])
        await producer.store(final_transcript(3), session_end(4))
    await eventually("ended", lambda: RestClient(app).state("bad"))


async def test_it_can_be_erased(serve: Serve) -> None:
    """Nothing of it is left in any report."""
    app = await serve()
    await poisoned(app)
    api = RestClient(app)
    assert QUARANTINED == (await api.get("/v1/sessions/bad/turns")).problem
    assert 204 == (await api.delete("/v1/sessions/bad")).status
    assert (404, "unknown_session") == (await api.get("/v1/sessions/bad")).problem
    await app.services.read_models.quarantined.refresh()
    assert {"status": "ok"} == (await api.get("/readyz")).json


async def test_operators_are_told(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    """`readyz` stays 200 and names it, the metric counts it, and the log has one line."""
    app = await serve()
    await poisoned(app)
    api = RestClient(app)
    assert {"status": "ok"} == (await api.get("/readyz")).json
    for _ in range(2):
        assert QUARANTINED == (await api.get("/v1/sessions/bad/history")).problem
    ready = await api.get("/readyz")
    assert (200, {"count": 1, "sessions": ["bad"]}) == (ready.status, ready.json["set_aside"])
    assert b"\nvoicemem_sessions_set_aside 1.0\n" in (await api.get("/metrics")).body
    (line,) = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert "session bad in project default" in line


async def test_where_keys_are_needed_strangers_learn_a_number(serve: Serve) -> None:
    """`readyz` needs no key, so it names no one's sessions."""
    app = await serve(admin_key="k" * 40)
    api = RestClient(app, "k" * 40)
    await api.create("bad")
    await api.send(final_transcript(1), session_id="bad")
    stream = await app.services.store.journal.get_session("default", "bad")
    await damage_entry(database_of(app), stream.key)
    app.services.read_models.discard(stream.key)
    assert QUARANTINED == (await api.get("/v1/sessions/bad/history")).problem
    assert {"status": "ok", "set_aside": {"count": 1}} == (await RestClient(app).get("/readyz")).json
    reader = await client_with_key(app, "read")
    assert (403, "forbidden") == (await reader.post("/v1/sessions/bad/refold")).problem


async def deliveries(api: RestClient, webhook: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await api.get(f"/v1/webhooks/{webhook}/deliveries")).json["deliveries"]
    return found


async def project_webhook(app: App, receiver: WebhookReceiver) -> str:
    body = {"url": receiver.url(), "event_types": [102, 103]}
    identifier: str = (await RestClient(app).post("/v1/webhooks", body)).json["id"]
    return identifier


async def test_its_export_waits_and_others_do_not(serve: Serve) -> None:
    """The delivery says what for, counts no attempt, and is made after a refold."""
    async with webhook_receiver() as receiver:
        app = await serve(allow_addresses=LOOPBACK)
        api = RestClient(app)
        webhook = await project_webhook(app, receiver)
        key, held = await poisoned(app)
        await api.create("good")
        for session_id in ("bad", "good"):
            await api.end(session_id)

        async def waiting() -> list[tuple[str, int]]:
            return [
                (one["session_id"], len(one["attempts"]))
                for one in await deliveries(api, webhook)
                if "waiting_for" in one
            ]

        await eventually([("bad", 0)], waiting)
        await eventually(3, lambda: delivered(receiver))  # 102 of both, 103 of the other
        assert QUARANTINED == (await api.post("/v1/sessions/bad/refold")).problem
        await replace_run(database_of(app), key, held)
        refolded = await api.post("/v1/sessions/bad/refold")
        assert (200, "bad") == (refolded.status, refolded.json["session_id"])
        await eventually(4, lambda: delivered(receiver))
        assert [] == await waiting()
        assert 1 == len(await api.contents("bad"))
        assert "set_aside" not in await api.session("bad")


async def delivered(receiver: WebhookReceiver) -> int:
    return len(receiver.webhook_events)


async def test_tails_of_its_memory_end_with_the_error(serve: Serve) -> None:
    """A tail of its journal cannot send the damaged entry either; that of its memory says why it ends."""
    app = await serve()
    await poisoned(app)
    sse = {"Accept": "text/event-stream"}
    tail = await RestClient(app).get("/v1/sessions/bad/events?view=messages", sse)
    assert b"event: error" in tail.body
    assert b"session_set_aside" in tail.body


async def test_a_tail_of_several_sessions_goes_on(serve: Serve) -> None:
    """What cannot be shown is left out, and the other session is sent to its end."""
    app = await serve()
    await poisoned(app)
    api = RestClient(app)
    await api.create("good")
    tail = await app.services.tails.tail_several(SessionFilter(project="default"), TailView(messages=True), None)
    await api.send(final_transcript(1), session_id="good")
    await api.end("good")
    seen = []
    async with asyncio.timeout(30), aclosing(app.services.tails.watch(tail)) as batches:
        async for items in batches:
            seen += [type(item.content) for item in items if item.content is not None]
            if seen[-1:] == [SessionOver]:
                break
    assert MemoryChange in seen
    assert [app.services.read_models.quarantined.report.sessions] == [(("default", "bad"),)]


async def test_a_damaged_journal_does_not_keep_others_from_being_compacted(serve: Serve) -> None:
    """It is passed over for good, so the worker comes to those after it."""
    app = await serve()
    key, held = await poisoned(app, reopen_window=0)
    await replace_run(database_of(app), key, Run(held.payload, 1))
    api = RestClient(app)
    await api.create("good", reopen_window=0)
    for session_id in ("bad", "good"):
        await api.end(session_id)
    store, now = app.services.store, app.services.runtime.clock
    await eventually([], lambda: store.compaction.claim_compactable("", now(), 1, 10))


async def test_the_next_call_of_its_user_goes_on(serve: Serve) -> None:
    """A call that carries over from earlier ones carries nothing from this one."""
    app = await serve()
    await poisoned(app, user_id="anna")
    api = RestClient(app)
    await api.end("bad")
    await api.create("next", user_id="anna", memory_from={"sessions": 3})
    assert 200 == (await api.get("/v1/sessions/next/context")).status


async def test_a_start_does_not_try_it_again(tmp_path: Path) -> None:
    """What the store knows to be set aside costs a start nothing, and stays so."""
    store = f"sqlite:{tmp_path / 'calls.db'}"
    async with running_service(store=store) as app:
        key, held = await poisoned(app)
        assert QUARANTINED == (await RestClient(app).get("/v1/sessions/bad/history")).problem
        await replace_run(database_of(app), key, held)
    async with running_service(store=store) as app:
        api = RestClient(app)
        assert QUARANTINED == (await api.get("/v1/sessions/bad/history")).problem
        assert 200 == (await api.post("/v1/sessions/bad/refold")).status
        assert 1 == len(await api.contents("bad"))


async def test_what_the_fold_ignores_is_counted(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """By bound, when it is first folded."""
    monkeypatch.setattr("voicemem.transcript.fold.BOUND", 3)
    app = await serve()
    async with open_producer(app) as producer:
        await producer.store(*(event("metric", 1, seq=seq, name="x", latency_ms=seq) for seq in range(1, 6)))
    await RestClient(app).contents()
    metrics = (await RestClient(app).get("/metrics")).body
    assert b'voicemem_fold_ignored_total{bound="traces"} 2.0' in metrics
    assert b'voicemem_fold_ignored_total{bound="segments"} 0.0' in metrics
