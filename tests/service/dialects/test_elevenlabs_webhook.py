"""ElevenLabs' webhook after a call, signed as ElevenLabs signs it, at its door."""

from __future__ import annotations

import hashlib
import hmac
import io
import json
import time

import pytest

from tests.support.callers.rest import RestClient, RestResponse, make_key
from tests.support.paths import ROOT
from tests.support.services import Serve
from tests.support.waiting import eventually
from voicemem.app import App
from voicemem.store.streams import SessionEnding

CALLS = ROOT / "fixtures" / "elevenlabs-agents"


BODY = (CALLS / "webhook.json").read_bytes()


async def post(app: App, body: bytes = BODY, header: str | None = None) -> RestResponse:
    """The answer to a webhook, signed now unless a header says otherwise."""
    seconds = int(time.time())
    signed = hmac.new(b"wsec_1", f"{seconds}.".encode() + body, hashlib.sha256).hexdigest()
    headers = {"Content-Type": "application/json", "ElevenLabs-Signature": header or f"t={seconds},v0={signed}"}
    return await RestClient(app).call("POST", "/v1/hooks/elevenlabs-agents", headers=headers, data=io.BytesIO(body))


@pytest.fixture
async def app(serve: Serve) -> App:
    """A service that has the webhook's secret."""
    return await serve(hook_secrets=("elevenlabs-agents=wsec_1",))


@pytest.fixture
async def admin(app: App) -> RestClient:
    """Whoever looks at the memory."""
    return RestClient(app, await make_key(app, "admin"))


async def send_live(admin: RestClient) -> None:
    """The conversation as it was heard live, before its webhook."""
    await admin.create("conv_7201")
    lines = (CALLS / "live_and_webhook.jsonl").read_text("utf-8").splitlines()
    frames = [line for line in map(json.loads, lines) if "frame" in line]
    live = [line for line in frames if not line["frame"]["type"].startswith("post_call")]
    await admin.send(*live, query="?dialect=elevenlabs-agents", session_id="conv_7201")


async def test_signed_webhook_gives_the_whole_call(app: App, admin: RestClient) -> None:
    """It makes the memory of the call and ends the session; delivered again, it changes nothing."""
    for stored in (True, False):
        answered = await post(app)
        assert (200, stored) == (answered.status, answered.json["stored"] > 0)
        assert "refused" not in answered.json
    assert (await post(app, header=f"v0={'0' * 64}")).status == 401
    await eventually("ended", lambda: admin.state("conv_7201"))
    expected = json.loads((CALLS / "webhook_alone.contents.json").read_text("utf-8"))
    assert expected["contents"] == await admin.contents("conv_7201")


@pytest.mark.parametrize("reason", ["closed", "idle"])
async def test_webhook_after_the_connection_has_gone(app: App, admin: RestClient, reason: str) -> None:
    """The session of a call that ended by itself is opened again, takes the webhook, and is closed with it."""
    await send_live(admin)
    store, now = app.services.store, app.services.sessions.clock()
    stream = await store.journal.find_session("default", "conv_7201")
    assert stream is not None
    await store.journal.close_session(stream.key, SessionEnding(now, reason, True), "e" * 32, now)
    assert (await admin.state("conv_7201"), (await post(app)).json["stored"] > 0) == ("ended", True)
    await eventually("ended", lambda: admin.state("conv_7201"))
    message = (await admin.contents("conv_7201"))[2]
    assert message["content"] == "Why did the scarecrow win an"
    assert "heard" not in message["metadata"]


async def test_webhook_after_the_session_was_ended(app: App, admin: RestClient) -> None:
    """A session that someone has ended, or erased, takes no webhook; the answer is 200 and says so."""
    await send_live(admin)
    await admin.post("/v1/sessions/conv_7201/end", {})
    refused = {"session_id": "conv_7201", "stored": 0, "refused": "session_ended"}
    assert (200, refused) == ((answered := await post(app)).status, answered.json)
    await admin.delete("/v1/sessions/conv_7201")
    answered = await post(app)
    assert (answered.status, answered.json["refused"]) == (200, "session_erased")


async def test_webhooks_that_say_nothing_are_taken(app: App) -> None:
    """Audio after the call and calls that never began are answered 200: ElevenLabs gives up on what fails."""
    for kind in ("post_call_audio", "call_initiation_failure"):
        body = json.dumps({"type": kind, "data": {"conversation_id": "conv_7201", "full_audio": "AAAA"}}).encode()
        answered = await post(app, body)
        assert (answered.status, answered.json) == (200, {"session_id": None, "stored": 0})
