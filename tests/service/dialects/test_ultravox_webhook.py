"""Ultravox' data connection and its webhook: the call as Ultravox brings it, signed as Ultravox signs."""

from __future__ import annotations

import hashlib
import hmac
import io
import json
from datetime import UTC, datetime, timedelta

import pytest
from websockets.asyncio.client import connect

from tests.support.callers.rest import RestClient, RestResponse, make_key
from tests.support.dialects import RECORDINGS
from tests.support.paths import ROOT
from tests.support.services import Serve
from tests.support.waiting import all_connections_handled, eventually
from voicemem.app import App

BODY = (ROOT / "fixtures" / "ultravox" / "webhook.json").read_bytes()
CALL = next(one for one in RECORDINGS if str(one) == "ultravox/late_words_and_webhook")
SESSION = "550e8400-e29b-41d4-a716-446655440003"


async def post(app: App, body: bytes = BODY, secret: bytes = b"uv_1", age: timedelta = timedelta()) -> RestResponse:
    """The answer to a webhook that was signed so long ago."""
    stated = (datetime.now(UTC) - age).isoformat()
    signature = hmac.new(secret, body + stated.encode(), hashlib.sha256).hexdigest()
    headers = {
        "Content-Type": "application/json",
        "X-Ultravox-Webhook-Timestamp": stated,
        "X-Ultravox-Webhook-Signature": f"{'0' * 64},{signature}",
    }
    return await RestClient(app).call("POST", "/v1/hooks/ultravox", headers=headers, data=io.BytesIO(body))


@pytest.fixture
async def app(serve: Serve) -> App:
    """A service that has the webhook's secret."""
    return await serve(hook_secrets=("ultravox=uv_1",))


@pytest.fixture
async def admin(app: App) -> RestClient:
    """Whoever looks at the memory."""
    return RestClient(app, await make_key(app, "admin"))


async def dial(app: App, key: str, *, whole: bool = True) -> None:
    """Ultravox dials, and sends its side of the call as bare messages."""
    headers = {"Authorization": f"Bearer {key}"}
    async with connect(f"ws://{app.ingest_address}/v1/ingest/ultravox", additional_headers=headers) as socket:
        for envelope in CALL.envelopes():
            if envelope["from"] == "vendor" and envelope["frame"]["type"] != "call.ended":
                await socket.send(json.dumps(envelope if whole else envelope["frame"]))
        await socket.close()
        assert [message async for message in socket] == []
    await all_connections_handled()


async def test_webhook_ends_the_call_of_the_data_connection(app: App, admin: RestClient) -> None:
    """The connection is told nothing, its session has the call's id, and the webhook closes it with a reason."""
    await dial(app, await make_key(app, "ingest"))
    answered = await post(app)
    assert (answered.status, answered.json) == (200, {"session_id": SESSION, "stored": 1})
    await eventually("ended", lambda: admin.state(SESSION))
    assert (await admin.session(SESSION))["reason"] == "hangup"
    assert await admin.contents(SESSION) == CALL.document("contents")["contents"]
    billed = json.dumps(json.loads(BODY) | {"event": "call.billed"}).encode()
    assert (await post(app, billed)).json["stored"] == 0
    assert b"secret" not in (await admin.get(f"/v1/sessions/{SESSION}/events")).body


async def test_bare_messages_without_times(app: App, admin: RestClient) -> None:
    """As Ultravox really sends them; the same is said in the same turns."""
    await dial(app, await make_key(app, "ingest"), whole=False)

    async def said() -> list[tuple[str, int]]:
        return [(one["role"], one["turn_id"]) for one in await admin.contents(SESSION)]

    await eventually([(one["role"], one["turn_id"]) for one in CALL.document("contents")["contents"]], said)


async def test_forged_and_old_webhooks_are_refused(app: App, admin: RestClient) -> None:
    """Another secret, and a signature that is older than a minute; nothing is stored."""
    for answered in (await post(app, secret=b"other"), await post(app, age=timedelta(minutes=2))):
        assert answered.problem == (401, "unauthorized")
    assert (await admin.get(f"/v1/sessions/{SESSION}")).status == 404


async def test_webhooks_that_say_no_end_are_taken(app: App) -> None:
    """Ultravox tries again what fails."""
    for event in ("call.started", "call.joined"):
        answered = await post(app, json.dumps({"event": event, "call": {"callId": SESSION}}).encode())
        assert (answered.status, answered.json) == (200, {"session_id": None, "stored": 0})
    assert (await post(app, b'{"event":"call.ended"}')).problem == (400, "malformed_frame")
