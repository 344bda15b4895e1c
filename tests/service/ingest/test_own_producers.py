"""Names of producers that are the service's own."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import json

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from tests.support.callers.producer import connected_producer
from tests.support.callers.rest import RestClient, client_with_key
from tests.support.events import final
from tests.support.rows import every_row
from tests.support.services import Serve
from voicemem.compat.agora.agents import AGORA_PRODUCER
from voicemem.dialects.registry import WITH_WEBHOOKS
from voicemem.errors import Refused
from voicemem.library.sessions import open_library
from voicemem.memory.add_and_forget import API_PRODUCER
from voicemem.memory.checkpoints import CheckpointReader
from voicemem.observer.vendors import VENDORS
from voicemem.protocol.types import JsonObject
from voicemem.transcript.gateway_matching import GATEWAY_PRODUCER

NAMES = (
    *(AGORA_PRODUCER, API_PRODUCER, GATEWAY_PRODUCER),
    *(f"{name}.hooks" for name in WITH_WEBHOOKS),
    *(f"{name}.observer" for name in VENDORS),
    *("not-yet.hooks", "not-yet.observer"),
)
USER = {"role": "user", "content": "Hi."}


@pytest.mark.parametrize("name", NAMES)
async def test_they_are_refused(serve: Serve, name: str) -> None:
    """At an open, which then makes no session, in an address, and over HTTP; nothing is stored, and others go on."""
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


@pytest.mark.parametrize("name", NAMES)
async def test_a_session_token_cannot_take_them(serve: Serve, name: str) -> None:
    """Neither over the websocket nor over HTTP, where the webhooks of a call would be refused from then on."""
    app = await serve()
    admin = await client_with_key(app, "admin")
    await admin.create()
    token = (await admin.post("/v1/sessions/s/tokens")).json["token"]
    answer = await RestClient(app, token).post(f"/v1/sessions/s/events?producer={name}", [final(1, "Hi.", seq=1)])
    assert (400, "invalid_field") == answer.problem
    async with connected_producer(app) as producer:
        await producer.send({"type": "auth", "token": token})
        await producer.send({"type": "session.open", "producer": name})
        await producer.expect_error("invalid_field")


@every_row("dialect", WITH_WEBHOOKS)
async def test_an_address_of_a_dialect_cannot_name_them(serve: Serve, dialect: str) -> None:
    """Frames of another stack come under a name of their own; the handshake says so."""
    app = await serve()
    api = RestClient(app)
    await api.create()
    path = f"/v1/ingest/{dialect}?session_id=s&producer={dialect}.hooks"
    with pytest.raises(InvalidStatus) as refused:
        await connect(f"ws://{app.ingest_address}{path}", compression=None)
    assert 400 == refused.value.response.status_code
    assert f"The producer name {dialect}.hooks is reserved" in (refused.value.response.body or b"").decode()
    assert [] == await api.journal()


@every_row("name", NAMES)
def test_a_checkpoint_cannot_number_them(name: str) -> None:
    """What is restored under such a name has no seq, and no hole, as what the service journals itself."""

    def entry(producer: str | None, seq: int | None, event: JsonObject) -> bytes:
        return json.dumps({"position": 1, "producer": producer, "seq": seq, "received_ms": 1, "event": event}).encode()

    gap = {"type": "session.gap", "producer": name, "from_seq": 1, "to_seq": 7}
    for taken in (entry(name, 1, final(1, "Hi.", seq=1)), entry(None, None, gap)):
        with pytest.raises(Refused, match="reserved for the service"):
            CheckpointReader().add(taken)
    CheckpointReader().add(entry(name, None, final(1, "Hi.")))
    CheckpointReader().add(entry("mine", 1, final(1, "Hi.", seq=1)))


@pytest.mark.parametrize("name", NAMES)
async def test_the_library_refuses_them(name: str) -> None:
    """As the service does."""
    async with open_library() as library:
        session = await library.create("s")
        with pytest.raises(Refused, match="reserved for the service"):
            await session.record(final(1, "Hi.", seq=1), producer=name)
