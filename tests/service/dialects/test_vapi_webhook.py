"""Vapi's webhooks, as Vapi or an app in between posts them, at their door."""

from __future__ import annotations

import hashlib
import hmac
import io
import json
import time
from typing import Any

import pytest

from tests.support.callers.rest import RestClient, RestResponse, make_key
from tests.support.dialects import RECORDINGS, Recording
from tests.support.services import Serve
from tests.support.waiting import eventually
from voicemem.app import App

CALLS = [one for one in RECORDINGS if one.dialect == "vapi"]
"""Of these, those that end with a report."""
ENDED = [
    one
    for one in CALLS
    if one.name not in ("webhook_alone", "transcripts_alone", "speech_updates", "shapes_of_the_documentation")
]
SECRET = "vapi_secret"


async def post(app: App, body: Any, headers: dict[str, str] | None = None) -> RestResponse:
    """The answer to a webhook, signed now unless headers say otherwise."""
    data, now = json.dumps(body).encode(), str(int(time.time() * 1000))
    signed = hmac.new(SECRET.encode(), now.encode() + b"." + data, hashlib.sha256).hexdigest()
    headers = {"X-Vapi-Signature": signed, "X-Vapi-Timestamp": now} if headers is None else headers
    headers = {"Content-Type": "application/json"} | headers
    return await RestClient(app).call("POST", "/v1/hooks/vapi", headers=headers, data=io.BytesIO(data))


@pytest.fixture
async def app(serve: Serve) -> App:
    """A service that has the webhooks' secret."""
    return await serve(hook_secrets=(f"vapi={SECRET}",))


@pytest.fixture
async def admin(app: App) -> RestClient:
    """Whoever looks at the memory."""
    return RestClient(app, await make_key(app, "admin"))


@pytest.mark.parametrize("call", ENDED, ids=str)
async def test_webhooks_of_a_call_give_its_memory(app: App, admin: RestClient, call: Recording) -> None:
    """All webhooks of a call, each sent twice; the report ends the session, and nothing comes after it."""
    bodies = [one["frame"] for one in call.envelopes()]
    for body in bodies:
        assert [(await post(app, body)).status for _ in range(2)] == [200, 200]
    session = bodies[0]["message"]["call"]["id"]
    await eventually("ended", lambda: admin.state(session))
    assert call.document("contents")["contents"] == await admin.contents(session)
    assert (await post(app, bodies[0])).status == 200
    assert call.document("contents")["contents"] == await admin.contents(session)


async def test_what_is_new_is_stored(app: App) -> None:
    """A history that comes again takes no room: only what it adds is stored."""
    (call,) = (one for one in CALLS if one.name == "barge_in_and_hang_up")
    updates = [one["frame"] for one in call.envelopes() if one["frame"]["message"]["type"] == "conversation-update"]
    assert [(await post(app, body)).json["stored"] for body in updates] == [1, 1, 1, 1]
    assert (await post(app, updates[-1])).json["stored"] == 0


async def test_the_secret_itself_is_taken(app: App) -> None:
    """Credentials of Vapi's may be the secret in a header."""
    body = {"message": {"type": "hang", "call": {"id": "call_1"}}}
    shapes = ({"X-Vapi-Secret": SECRET}, *({"Authorization": f"{scheme} {SECRET}"} for scheme in ("Bearer", "bearer")))
    for headers in shapes:
        assert (await post(app, body, headers)).status == 200


async def test_forged_and_old_webhooks_are_refused(app: App, admin: RestClient) -> None:
    """Without the secret, with another one, or long after it was signed, nothing is stored."""
    body = next(
        one["frame"] for one in CALLS[0].envelopes() if one["frame"]["message"]["type"] == "conversation-update"
    )
    data = json.dumps(body).encode()
    old = str(int(time.time() * 1000) - 10 * 60 * 1000)
    signed = hmac.new(SECRET.encode(), old.encode() + b"." + data, hashlib.sha256).hexdigest()
    replayed = {"X-Vapi-Signature": signed, "X-Vapi-Timestamp": old}
    for headers in ({}, {"X-Vapi-Secret": "wrong"}, {"X-Vapi-Signature": "0" * 64}, replayed):
        assert (await post(app, body, headers)).status == 401
    assert (await admin.get("/v1/sessions")).json["sessions"] == []


async def test_messages_that_say_nothing_are_counted(app: App, admin: RestClient) -> None:
    """What is no part of a conversation, and types that no one knows, are answered 200 and make no session."""
    for kind in ("speech-update", "transfer-destination-request", "brand-new"):
        answered = await post(app, {"message": {"type": kind, "call": {"id": "call_1"}}})
        assert (answered.status, answered.json) == (200, {"session_id": None, "stored": 0})
    metrics = (await admin.get("/metrics")).body.decode()
    assert 'voicemem_frames_total{dialect="vapi",result="ignored"} 2.0' in metrics
    assert 'voicemem_frames_total{dialect="vapi",result="unknown"} 1.0' in metrics


async def test_bodies_that_are_none_are_refused(app: App) -> None:
    """A body without a message is an error that says what it should be, and stores nothing."""
    bodies: list[Any] = [{}, {"message": {}}, {"message": {"type": "conversation-update", "messages": ["x"]}}]
    for body in bodies:
        answered = await post(app, body)
        assert (answered.status, answered.json["reason"]) == (400, "malformed_frame"), answered.json
