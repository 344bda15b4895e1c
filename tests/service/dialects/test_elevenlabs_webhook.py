"""ElevenLabs' webhook after a call, signed as ElevenLabs signs it, at its door."""

from __future__ import annotations

import hashlib
import hmac
import io
import json
import time

from tests.support.callers.rest import RestClient, make_key
from tests.support.paths import ROOT
from tests.support.services import Serve
from tests.support.waiting import eventually

CALLS = ROOT / "fixtures" / "elevenlabs-agents"


async def test_signed_webhook_gives_the_whole_call(serve: Serve) -> None:
    """It makes the memory of the call and ends the session; delivered again, it changes nothing."""
    app = await serve(hook_secrets=("elevenlabs-agents=wsec_1",))
    admin = RestClient(app, await make_key(app, "admin"))
    body = (CALLS / "webhook.json").read_bytes()
    seconds = int(time.time())
    signed = hmac.new(b"wsec_1", f"{seconds}.".encode() + body, hashlib.sha256).hexdigest()
    for header, status in ((f"t={seconds},v0={signed}", 200), (f"t={seconds},v0={signed}", 200), (f"v0={signed}", 401)):
        headers = {"Content-Type": "application/json", "ElevenLabs-Signature": header}
        answered = await RestClient(app).call(
            "POST", "/v1/hooks/elevenlabs-agents", headers=headers, data=io.BytesIO(body)
        )
        assert status == answered.status
    await eventually("ended", lambda: admin.state("conv_7201"))
    expected = json.loads((CALLS / "webhook_alone.contents.json").read_text("utf-8"))
    assert expected["contents"] == await admin.contents("conv_7201")
