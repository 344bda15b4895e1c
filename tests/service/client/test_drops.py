"""Events that `send` cannot take: it never raises, and the ack, the counts, the callback and the metrics say so."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.callers.client_sessions import (
    acknowledged_seqs,
    behind_proxy,
    client_to,
    nested,
    numbered_transcript,
    send_transcripts,
)
from tests.support.callers.rest import fresh_id
from tests.support.rows import every_row
from voicemem.app import App
from voicemem.client import (
    ClientError,
    EventRefused,
)
from voicemem.protocol.types import JsonObject


@pytest.mark.parametrize(
    ("event", "code"), [({"text": "x" * 1024 * 1024}, "too_big"), ({"metadata": {"a": []}}, "too_deep")]
)
async def test_what_would_close_the_connection_is_not_taken(app: App, event: JsonObject, code: str) -> None:
    """An event that could be no frame is refused at once and uses up no seq."""
    if code == "too_deep":
        event = {"metadata": {"a": nested(40)}}
    async with client_to(app) as client:
        session = await client.open("s")
        with pytest.raises(EventRefused) as refused:
            await session.send(numbered_transcript(1) | event)
        assert (code, None) == (refused.value.code, refused.value.seq)
        assert [1] == await acknowledged_seqs(send_transcripts(session, [1]))


LOOP: JsonObject = {}
LOOP["again"] = LOOP


@every_row(
    ("event", "code"),
    [
        ({"text": "\ud800"}, "invalid_json"),
        ({"text": object()}, "invalid_json"),
        ({"metadata": {(): 1}}, "invalid_json"),
        ({"metadata": LOOP}, "invalid_json"),
        ({"type": "session.open"}, "unknown_type"),
        ({"type": "auth"}, "unknown_type"),
        ({"seq": 2}, "seq_conflict"),
    ],
    ids=lambda value: str(value)[:20],
)
async def test_what_is_not_an_event_is_not_taken(app: App, event: JsonObject, code: str) -> None:
    """What is not JSON, or not for users to send, does not raise, uses up no seq, and its ack says why."""
    async with client_to(app) as client:
        session = await client.open(fresh_id())
        ack = session.send(numbered_transcript(1) | event)
        assert (True, 0, 1) == (ack.done(), ack.seq, session.dropped)
        with pytest.raises(EventRefused) as refused:
            await ack
        assert (code, None) == (refused.value.code, refused.value.seq)
        assert [1] == await acknowledged_seqs([session.send(numbered_transcript(1, seq=1))])


@pytest.mark.parametrize("event", [None, "hello", 1, [{"type": "asr"}]], ids=str)
async def test_a_mistake_of_the_program_does_not_stop_its_audio(app: App, event: Any) -> None:
    """Whatever is sent as an event, `send` returns an ack."""
    async with client_to(app) as client:
        session = await client.open("s")
        with pytest.raises(EventRefused, match="not_events"):
            await session.send(event)


async def test_what_is_not_taken_is_reported(app: App, caplog: pytest.LogCaptureFixture) -> None:
    """Each dropped event is counted by its code and reported to the program; the log has fewer and fewer of them."""
    reports: list[tuple[str, str, str]] = []

    def on_dropped(session_id: str, producer: str, error: ClientError) -> None:
        reports.append((session_id, producer, error.code))
        raise RuntimeError("mine")

    async with client_to(app, on_dropped=on_dropped) as client:
        session, other = await client.open("s"), await client.open("other", producer="asr")
        for _ in range(9):
            session.send({"type": "auth"})
        await other.end()
        other.send(numbered_transcript(1))
        assert ({"unknown_type": 9, "session_ended": 1}, 9, 1) == (client.dropped, session.dropped, other.dropped)
    assert [("s", "main", "unknown_type")] * 9 + [("other", "asr", "session_ended")] == reports
    logged = [record.getMessage() for record in caplog.records if "not taken" in record.getMessage()]
    assert ["number 1 ", "number 2 ", "number 4 ", "number 8 ", "number 1 "] == [
        text[text.index("number") :][:9] for text in logged
    ]
    assert 10 == sum("on_dropped has failed" in record.getMessage() for record in caplog.records)


async def test_what_the_server_refuses_is_said_less_and_less(app: App, caplog: pytest.LogCaptureFixture) -> None:
    """A call goes on beyond a quota for as long as it lasts: each ack has the error, and the log has few of them."""
    async with client_to(app) as client:
        session = await client.open("s")
        acks = [session.send(numbered_transcript(1) | {"final": "no"}) for _ in range(9)]
        for ack in acks:
            with pytest.raises(EventRefused, match="invalid_field"):
                await ack
    assert 4 == sum("invalid_field" in record.getMessage() for record in caplog.records)


async def test_metrics_are_prometheus_text(app: App) -> None:
    """A client shows what it dropped, what is unacknowledged and how it is connected, and Prometheus can read it."""
    async with behind_proxy(app) as (proxy, client):
        session = await client.open("s")
        session.send({"type": "auth"})
        assert {
            ("voicemem_client_dropped_events_total", (("code", "unknown_type"),)): 1,
            ("voicemem_client_unacknowledged_events", ()): 0,
            ("voicemem_client_unacknowledged_bytes", ()): 0,
            ("voicemem_client_connected", (("transport", "http"),)): 0,
            ("voicemem_client_connected", (("transport", "websocket"),)): 1,
        } == parsed(client.metrics())
        await proxy.down()
        acks = send_transcripts(session, [1, 2])
        held = parsed(client.metrics())
        assert 2 == held["voicemem_client_unacknowledged_events", ()]
        assert session.unacknowledged_bytes == held["voicemem_client_unacknowledged_bytes", ()] > 0
        await proxy.up()
        await acknowledged_seqs(acks)


def parsed(metrics: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    samples = [sample for family in text_string_to_metric_families(metrics) for sample in family.samples]
    return {(sample.name, tuple(sample.labels.items())): sample.value for sample in samples}
