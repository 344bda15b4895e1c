"""Names of producers that are the service's own."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import json

import pytest

from tests.support.callers.producer import connected_producer
from tests.support.callers.rest import RestClient
from tests.support.events import final
from tests.support.services import Serve
from voicemem.app import App
from voicemem.protocol.codec import decode_event
from voicemem.sessions.recording.batches import RESERVED_PRODUCERS, ProducerLease

NAMES = sorted(RESERVED_PRODUCERS)
USER = {"role": "user", "content": "Hi."}


@pytest.mark.parametrize("name", NAMES)
async def test_they_are_refused(serve: Serve, name: str) -> None:
    """At an open, which then makes no session, and over HTTP; nothing is stored, and others go on."""
    app = await serve()
    api = RestClient(app)
    async with connected_producer(app) as producer:
        await producer.send({"type": "session.open", "session_id": "s", "producer": name})
        error = await producer.expect_error("invalid_field")
        assert f"The producer name {name} is reserved for the service; use another one." == error["detail"]
        assert (404, "unknown_session") == (await api.get("/v1/sessions/s")).problem
        await producer.open()
    answer = await api.post(f"/v1/sessions/s/events?producer={name}", [final(1, "Hi.", seq=1)])
    assert ((400, "invalid_field"), error["detail"]) == (answer.problem, answer.json["detail"])
    assert 200 == (await api.post("/v1/sessions/s/messages", USER)).status
    answer = await api.post(f"/v1/sessions/s/events?producer={name}", [final(1, "Hi.")])
    assert (400, "invalid_field") == answer.problem
    assert ["message"] == [row["event"]["type"] for row in await api.journal()]


async def test_one_that_counted_before_goes_on(serve: Serve) -> None:
    """In a store of earlier days a producer may have such a name: it resumes, and loses nothing."""
    app = await serve()
    api = RestClient(app)
    await api.create()
    await of_earlier_days(app, "api")
    async with connected_producer(app) as producer:
        ready = await producer.open(producer="api")
        assert 2 == ready["next_seq"]
        await producer.store(final(2, "Two.", seq=2))
    assert 4 == (await api.post("/v1/sessions/s/events?producer=api", [final(3, "Three.", seq=3)])).json["next_seq"]
    assert ["One.", "Two.", "Three."] == [one["content"] for one in await api.contents()]
    assert (400, "seq_required") == (await api.post("/v1/sessions/s/messages", USER)).problem
    await api.create("other")
    assert (400, "invalid_field") == (await api.post("/v1/sessions/other/events?producer=api", [])).problem


async def of_earlier_days(app: App, name: str) -> None:
    stream = await app.services.store.journal.find_session("default", "s")
    assert stream is not None
    event = decode_event(json.dumps(final(1, "One.", seq=1)).encode())
    await app.services.recorder.record(ProducerLease(stream, name, None, may_call_out=False), [event])
